//! The text form: tokens separated by spaces, `[SM 1 2 [MED 3 4 ] ]`.

use super::{CLOSER, FIRST_OPENER, Operator, TOKENS};
use crate::data::DataError;

/// Formats symbols as text.
///
/// # Panics
/// A symbol above 14.
pub fn format(symbols: &[u8]) -> String {
    symbols.iter().map(|&symbol| TOKENS[usize::from(symbol)]).collect::<Vec<_>>().join(" ")
}

/// Parses an expression to symbols.
///
/// # Errors
/// An unknown token; anything but one complete expression.
pub fn parse(text: &str) -> Result<Vec<u8>, DataError> {
    let symbol = |token: &str| {
        let place = TOKENS.iter().position(|known| *known == token);
        place.map(|place| place as u8).ok_or_else(|| {
            let shown: String = token.chars().take(20).collect();
            DataError::Value(format!("unknown token {shown:?}; the tokens are {}", TOKENS.join(" ")))
        })
    };
    let symbols = text.split_whitespace().map(symbol).collect::<Result<Vec<u8>, _>>()?;
    evaluate(&symbols)?;
    Ok(symbols)
}

/// The value of an expression, 0 to 9.
///
/// # Errors
/// Symbols above 14; anything but one complete expression.
pub fn evaluate(symbols: &[u8]) -> Result<usize, DataError> {
    let error = |place: usize, problem: &str| Err(DataError::Value(format!("token {}: {problem}", place + 1)));
    // Operators not yet closed, each with the values of its arguments so far. A loop instead of recursion, since user
    // input determines the depth.
    let mut open: Vec<(Operator, Vec<usize>)> = Vec::new();
    let mut result = None;
    for (place, &symbol) in symbols.iter().enumerate() {
        if result.is_some() {
            return error(place, "follows a complete expression; give one expression");
        }
        let value = match symbol {
            0..FIRST_OPENER => usize::from(symbol),
            FIRST_OPENER..CLOSER => {
                open.push((Operator::ALL[usize::from(symbol - FIRST_OPENER)], Vec::new()));
                continue;
            }
            CLOSER => match open.pop() {
                Some((_, values)) if values.is_empty() => return error(place, "closes an operator without arguments"),
                Some((operator, values)) => operator.of_values(values),
                None => return error(place, "`]` closes nothing"),
            },
            _ => return error(place, "is no symbol of ListOps; symbols are 0 to 14"),
        };
        match open.last_mut() {
            Some((_, values)) => values.push(value),
            None => result = Some(value),
        }
    }
    match result {
        Some(value) => Ok(value),
        None if open.is_empty() => error(symbols.len(), "missing; the expression is empty"),
        None => error(symbols.len(), &format!("missing; open operators: {}, each needs its `]`", open.len())),
    }
}

impl Operator {
    /// The value over one or more digits.
    fn of_values(self, mut values: Vec<usize>) -> usize {
        values.sort_unstable();
        let last = values.len() - 1;
        match self {
            Self::Min => values[0],
            Self::Max => values[last],
            Self::Median => (values[last / 2] + values[values.len() / 2]) / 2,
            Self::SumModulo => values.iter().sum::<usize>() % 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::data::Streams;

    #[test]
    fn operators_have_their_values() {
        for (text, value) in [
            ("7", 7),
            ("[MIN 3 [SM 1 2 ] 9 ]", 3),
            ("[MAX 3 [SM 9 8 ] 5 ]", 7),
            ("[MED 9 1 5 ]", 5),
            ("[MED 1 4 ]", 2),
            ("[MED 0 9 2 5 ]", 3),
            ("[SM 9 9 9 ]", 7),
            ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ] {
            assert_eq!(evaluate(&parse(text).unwrap()).unwrap(), value, "{text}");
            assert_eq!(format(&parse(text).unwrap()), text);
        }
    }

    #[test]
    fn malformed_expressions_are_refused_with_the_place() {
        for (text, expected) in [
            ("", "token 1: missing; the expression is empty"),
            ("[MIN 1 2", "token 4: missing; open operators: 1,"),
            ("1 2", "token 2: follows a complete expression"),
            ("]", "token 1: `]` closes nothing"),
            ("[SM ]", "token 2: closes an operator without arguments"),
            ("[AVG 1 2 ]", "unknown token \"[AVG\""),
            ("12", "unknown token \"12\""),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(evaluate(&[15]).is_err());
    }

    /// Arbitrary bytes and arbitrary tokens give a value or an error, and what parses survives a round trip.
    #[test]
    fn arbitrary_input_never_panics() {
        let mut stream = Streams::new(0, "fuzz").at(0);
        let mut parsed = 0;
        for _ in 0..20_000 {
            let length = stream.random_range(0..12);
            let bytes: Vec<u8> = (0..length).map(|_| stream.random()).collect();
            let _ = parse(&String::from_utf8_lossy(&bytes));
            let _ = evaluate(&bytes);
            let tokens: Vec<&str> = (0..length).map(|_| TOKENS[stream.random_range(0..TOKENS.len())]).collect();
            if let Ok(symbols) = parse(&tokens.join(" ")) {
                assert_eq!(format(&symbols), tokens.join(" "));
                parsed += 1;
            }
        }
        assert!(parsed > 1000, "{parsed} expressions parsed");
        let deep = "[MIN ".repeat(100_000);
        assert!(parse(&deep).is_err());
    }
}
