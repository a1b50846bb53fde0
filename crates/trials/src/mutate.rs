//! Inputs made from valid ones.

use rand::{Rng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

/// The draws of one input.
pub type Stream = ChaCha8Rng;

/// Numbers and values at the ends of what parsers and sizes take.
pub const EXTREMES: [&str; 30] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "255",
    "256",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "-1e308",
    "1e309",
    "1e-320",
    "0.5",
    "nan",
    "inf",
    "-inf",
    "",
    "null",
    "true",
    "[]",
    "{}",
];

/// Longest input: long enough for deep nesting.
const LONGEST: usize = 1 << 20;

/// A sample, changed in one to a few places; `others` give pieces, `words` are what the format is made of.
pub fn mutated(stream: &mut Stream, sample: &[u8], others: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    let mut changes = 1;
    while changes < 6 && stream.random_bool(0.4) {
        changes += 1;
    }
    for _ in 0..changes {
        change(stream, &mut bytes, others, words);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(stream: &mut Stream, bytes: &mut Vec<u8>, others: &[Vec<u8>], words: &[&str]) {
    let length = bytes.len();
    let at = stream.random_range(0..=length);
    let end = (at + (1 << stream.random_range(0..7))).min(length);
    match stream.random_range(0..16) {
        0 | 1 if at < length => bytes[at] ^= 1 << stream.random_range(0..8),
        2 if at < length => {
            bytes[at] = *[0, 1, 0x7f, 0x80, 0xff, b'\n', b'\r', b' ', b'"'].choose(stream).expect("some")
        }
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..end)),
        5 => {
            let piece = bytes[at..end].to_vec();
            insert(bytes, at, &piece);
        }
        6 => {
            let piece: Vec<u8> = (0..stream.random_range(1..9)).map(|_| stream.random()).collect();
            insert(bytes, at, &piece);
        }
        7 | 8 if !words.is_empty() => insert(bytes, at, words.choose(stream).expect("some").as_bytes()),
        9 | 10 => number(stream, bytes, at),
        // A binary number at the ends of its range.
        11 if length >= 8 => {
            let value: u64 =
                *[0, 1, u64::MAX, 1 << 63, u64::MAX >> 1, 1 << 32, u64::from(u32::MAX)].choose(stream).expect("some");
            let width = 1 << stream.random_range(0..4);
            let at = at.min(length - width);
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        12 if !others.is_empty() => {
            let other = others.choose(stream).expect("some");
            let from = stream.random_range(0..=other.len());
            let to = (from + (1 << stream.random_range(0..10))).min(other.len());
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        13 => {
            let to = stream.random_range(0..=length);
            let piece: Vec<u8> = bytes.drain(at..end).collect();
            insert(bytes, to.min(bytes.len()), &piece);
        }
        14 => insert(bytes, at, EXTREMES.choose(stream).expect("some").as_bytes()),
        // Nesting as deep as a stack, seldom since it is long.
        15 if end > at && stream.random_bool(0.02) => {
            let piece = bytes[at..end.min(at + 8)].repeat(1 << stream.random_range(4..16));
            insert(bytes, at, &piece);
        }
        _ => bytes.truncate(length.saturating_sub(1)),
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    drop(bytes.splice(at..at, piece.iter().copied()));
}

/// Puts an extreme in place of the first number after `at`.
fn number(stream: &mut Stream, bytes: &mut Vec<u8>, at: usize) {
    let digit = |byte: &u8| byte.is_ascii_digit() || b".-+e".contains(byte);
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|place| at + place) else { return };
    let end = bytes[start..].iter().position(|byte| !digit(byte)).map_or(bytes.len(), |place| start + place);
    bytes.splice(start..end, EXTREMES.choose(stream).expect("some").bytes());
}

#[cfg(test)]
mod tests {
    use regard_tasks::data::Streams;

    use super::*;

    #[test]
    fn an_input_is_a_function_of_its_stream_and_most_differ_from_the_sample() {
        let streams = Streams::new(1, "mutations");
        let sample = b"{\"a\": 12, \"b\": [1, 2]}".to_vec();
        let input = |i| mutated(&mut streams.at(i), &sample, std::slice::from_ref(&sample), &["{", "}"]);
        let changed = (0..1000).filter(|&i| input(i) != sample).count();
        assert!(changed > 900 && (0..100).all(|i| input(i) == input(i)), "{changed}");
        assert!((0..2000).any(|i| input(i).len() > 10_000));
    }
}
