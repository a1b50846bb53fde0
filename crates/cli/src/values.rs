//! Numbers and paths as they are typed: what is none, or out of bounds, is refused in the words of all other messages.

use std::{
    any::TypeId,
    ffi::{OsStr, OsString},
    fmt::Display,
    marker::PhantomData,
    path::PathBuf,
};

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, PossibleValuesParser, Resettable, TypedValueParser},
    error::ErrorKind,
};

/// Lets numbers and paths of options begin with a dash: a negative number is then refused for its range, not taken for an
/// option.
pub fn with_dashes(command: Command) -> Command {
    let numbers = [TypeId::of::<usize>(), TypeId::of::<u64>(), TypeId::of::<f64>()];
    let dashes = |arg: Arg| {
        let empty = arg.get_env().is_some_and(|name| std::env::var_os(name).is_some() && variable(name).is_none());
        let arg = if empty { arg.env(Resettable::Reset) } else { arg };
        let value = arg.get_value_parser().type_id();
        // What follows several values is the next option.
        let several = arg.get_num_args().is_some_and(|count| count.max_values() > 1);
        if numbers.iter().any(|number| value == *number) {
            arg.allow_hyphen_values(true)
        } else if value == TypeId::of::<PathBuf>() && !arg.is_positional() && !several {
            arg.allow_hyphen_values(true).value_parser(OptionPath)
        } else {
            arg
        }
    };
    command.mut_args(dashes).mut_subcommands(with_dashes)
}

/// An environment variable; an empty one counts for none.
pub fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// A path that does not look like an option: one would mean that the path was forgotten.
#[derive(Clone, Copy)]
struct OptionPath;

impl TypedValueParser for OptionPath {
    type Value = PathBuf;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<PathBuf, Error> {
        let seen = value.to_string_lossy();
        if seen.is_empty() {
            return Err(refused(arg, "empty", "a path"));
        }
        let short = |other: &Arg| other.get_short().is_some_and(|short| *seen == format!("-{short}"));
        if seen.starts_with("--") || command.get_arguments().any(short) {
            let expected = format!("a path; if it is one, give ./{seen}");
            return Err(refused(arg, &format!("{seen}, an option"), expected));
        }
        Ok(value.into())
    }
}

/// Sizes and counts from `least`.
pub fn size(least: u64) -> Whole<usize> {
    within(least, usize::MAX as u64)
}

/// Sizes and counts from `least` to `most`.
pub fn within(least: u64, most: u64) -> Whole<usize> {
    Whole { least, most, number: PhantomData }
}

/// Numbers of threads.
pub fn threads() -> Whole<usize> {
    within(1, 1024)
}

/// Seeds and other numbers of 64 bits.
pub fn seed() -> Whole<u64> {
    Whole { least: 0, most: u64::MAX, number: PhantomData }
}

/// One of the values of a list, each with its name and what it is.
pub fn choice<T: Copy + Send + Sync + 'static>(
    all: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = all.iter().map(|(name, what, _)| PossibleValue::new(*name).help(*what));
    let value = |name: String| all.iter().find(|(own, ..)| *own == name).expect("a name of the list").2;
    PossibleValuesParser::new(names).map(value)
}

/// Numbers with a fraction, whatever their size.
#[derive(Clone, Copy)]
pub struct Real;

/// Whole numbers from `least` to `most`.
#[derive(Clone)]
pub struct Whole<T> {
    least: u64,
    most: u64,
    number: PhantomData<T>,
}

impl<T: TryFrom<u64> + Clone + Send + Sync + 'static> TypedValueParser for Whole<T> {
    type Value = T;

    fn parse_ref(&self, _: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let (least, most) = (self.least, self.most);
        let seen = value.to_string_lossy();
        let number = seen.parse::<i128>();
        let fits = |number: &i128| (i128::from(least)..=i128::from(most)).contains(number);
        let number_in =
            number.as_ref().ok().filter(|number| fits(number)).and_then(|number| u64::try_from(*number).ok());
        number_in.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match number {
            _ if most < u64::from(u32::MAX) => refused(arg, &seen, format_args!("{least} to {most}")),
            Ok(number) if number < i128::from(least) => refused(arg, &seen, format_args!("at least {least}")),
            Ok(_) => refused(arg, &seen, format_args!("at most {most}")),
            Err(_) => refused(arg, &seen, format_args!("a whole number from {least}")),
        })
    }
}

impl TypedValueParser for Real {
    type Value = f64;

    fn parse_ref(&self, _: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<f64, Error> {
        let seen = value.to_string_lossy();
        seen.parse().map_err(|_| refused(arg, &seen, "a number"))
    }
}

fn refused(arg: Option<&Arg>, seen: &str, expected: impl Display) -> Error {
    let name = arg.and_then(Arg::get_long).unwrap_or("number");
    let verb = if arg.is_some_and(|arg| arg.get_value_delimiter().is_some()) { "has" } else { "is" };
    Error::raw(ErrorKind::ValueValidation, format!("--{name} {verb} {seen}, expected {expected}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told<P: TypedValueParser>(parser: P, value: &str) -> Result<P::Value, String> {
        let arg = Arg::new("x").long("x");
        let parsed = parser.parse_ref(&Command::new("x"), Some(&arg), OsStr::new(value));
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn what_fits_is_taken_and_the_rest_told_with_what_was_expected() {
        assert_eq!(told(size(1), "1"), Ok(1));
        assert_eq!(told(seed(), "18446744073709551615"), Ok(u64::MAX));
        assert_eq!(told(threads(), "1024"), Ok(1024));
        assert_eq!(told(Real, "-1e3"), Ok(-1000.0));
        let refused = [
            (told(size(1), "0").map(drop), "--x is 0, expected at least 1"),
            (told(size(0), "-1").map(drop), "--x is -1, expected at least 0"),
            (told(size(1), "many").map(drop), "--x is many, expected a whole number from 1"),
            (
                told(seed(), "18446744073709551616").map(drop),
                "--x is 18446744073709551616, expected at most 18446744073709551615",
            ),
            (told(threads(), "-1").map(drop), "--x is -1, expected 1 to 1024"),
            (told(threads(), "two").map(drop), "--x is two, expected 1 to 1024"),
            (told(Real, "--causal").map(drop), "--x is --causal, expected a number"),
        ];
        for (result, message) in refused {
            assert_eq!(result, Err(format!("error: {message}\n")));
        }
    }
}
