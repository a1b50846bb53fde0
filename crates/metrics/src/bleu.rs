//! BLEU of a corpus (Papineni et al. 2002) as `sacrebleu` computes it by default (Post 2018, arXiv 1804.08771).
//!
//! Texts are tokenised by the rules of NIST's `mteval-v13a`; counts are summed over all sentences before any ratio is
//! taken; an order without a match counts as half a match the first time, a quarter the second time, and so on (Chen and
//! Cherry 2014, method 3).

use std::{collections::HashMap, fmt};

/// How [`Bleu`] is computed, in sacrebleu's notation.
pub const BLEU_SIGNATURE: &str = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp";

/// Longest n-grams.
const ORDERS: usize = 4;

/// Another number of texts than of references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{hypotheses} texts for {references} references; give one for each")]
pub struct Unpaired {
    /// Number of texts.
    pub hypotheses: usize,
    /// Number of references.
    pub references: usize,
}

/// BLEU of a corpus against one reference per sentence; see [`BLEU_SIGNATURE`]. Displayed as sacrebleu prints it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Bleu {
    /// The score, 0 to 100.
    pub score: f64,
    /// Share of the n-grams of one to four tokens that the references have too, in percent, smoothed.
    pub precisions: [f64; ORDERS],
    /// Brevity penalty; 1 is none.
    pub brevity_penalty: f64,
    /// Tokens of all hypotheses.
    pub hypothesis_length: usize,
    /// Tokens of all references.
    pub reference_length: usize,
}

impl Bleu {
    /// Of `hypotheses`, sentence by sentence, against `references`, both as plain text.
    ///
    /// # Errors
    /// Another number of hypotheses than of references.
    pub fn corpus(hypotheses: &[impl AsRef<str>], references: &[impl AsRef<str>]) -> Result<Self, Unpaired> {
        if hypotheses.len() != references.len() {
            return Err(Unpaired { hypotheses: hypotheses.len(), references: references.len() });
        }
        let mut counts = Counts::default();
        for (hypothesis, reference) in hypotheses.iter().zip(references) {
            counts.add(&tokenize_13a(hypothesis.as_ref()), &tokenize_13a(reference.as_ref()));
        }
        Ok(counts.score())
    }
}

impl fmt::Display for Bleu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, three, four] = self.precisions;
        let (hypothesis, reference) = (self.hypothesis_length, self.reference_length);
        let ratio = if reference == 0 { 0.0 } else { hypothesis as f64 / reference as f64 };
        write!(
            f,
            "BLEU = {:.2} {one:.1}/{two:.1}/{three:.1}/{four:.1} (BP = {:.3} ratio = {ratio:.3} hyp_len = {hypothesis} \
             ref_len = {reference})",
            self.score, self.brevity_penalty
        )
    }
}

/// What the score is made of, summed over sentences; orders count from 0.
#[derive(Default)]
struct Counts {
    matches: [usize; ORDERS],
    total: [usize; ORDERS],
    hypothesis: usize,
    reference: usize,
}

impl Counts {
    fn add(&mut self, hypothesis: &[String], reference: &[String]) {
        self.hypothesis += hypothesis.len();
        self.reference += reference.len();
        for order in 0..ORDERS {
            let mut left: HashMap<&[String], usize> = HashMap::new();
            reference.windows(order + 1).for_each(|words| *left.entry(words).or_default() += 1);
            for words in hypothesis.windows(order + 1) {
                self.total[order] += 1;
                // An n-gram matches as often as the reference has it, not more.
                if let Some(left) = left.get_mut(words).filter(|left| **left > 0) {
                    *left -= 1;
                    self.matches[order] += 1;
                }
            }
        }
    }

    fn score(&self) -> Bleu {
        let (hypothesis, reference) = (self.hypothesis as f64, self.reference as f64);
        let brevity_penalty = match self.hypothesis {
            length if length >= self.reference => 1.0,
            0 => 0.0,
            _ => (1.0 - reference / hypothesis).exp(),
        };
        let mut precisions = [0.0; ORDERS];
        if self.matches.iter().any(|&matches| matches > 0) {
            let mut smoothing = 1.0;
            // Sentences too short for an order end the list: with `eff:no` such a corpus scores 0.
            let orders = self.matches.iter().zip(&self.total).take_while(|(_, total)| **total > 0);
            for (precision, (&matches, &total)) in precisions.iter_mut().zip(orders) {
                let matches = match matches {
                    0 => {
                        smoothing *= 0.5;
                        smoothing
                    }
                    _ => matches as f64,
                };
                *precision = 100.0 * matches / total as f64;
            }
        }
        let mean = precisions.iter().map(|precision| precision.ln()).sum::<f64>() / ORDERS as f64;
        Bleu {
            score: brevity_penalty * mean.exp(),
            precisions,
            brevity_penalty,
            hypothesis_length: self.hypothesis,
            reference_length: self.reference,
        }
    }
}

/// The tokens of a sentence by the rules of `mteval-v13a` that sacrebleu applies: symbols of ASCII stand alone, except
/// apostrophes and dashes in words and points and commas in numbers.
pub fn tokenize_13a(sentence: &str) -> Vec<String> {
    let mut text = sentence.trim_end_matches(is_space).replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    // In this order: `&amp;lt;` is `<`.
    for (entity, symbol) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
        text = text.replace(entity, symbol);
    }
    let mut padded = Vec::from([' ']);
    padded.extend(text.chars());
    padded.push(' ');
    let text = separate_symbols(&padded);
    let mark = |c: char| c == '.' || c == ',';
    let digit = |c: char| c.is_ascii_digit();
    // Points and commas part from what is before them unless that is a digit, then from what is after them; a dash parts
    // from a digit before it.
    let text = replace_pairs(&text, |a, b| !digit(a) && mark(b), |a, b| [a, ' ', b, ' ']);
    let text = replace_pairs(&text, |a, b| mark(a) && !digit(b), |a, b| [' ', a, ' ', b]);
    let text = replace_pairs(&text, |a, b| digit(a) && b == '-', |a, b| [a, ' ', b, ' ']);
    let words = text.split(|&c| is_space(c)).filter(|word| !word.is_empty());
    words.map(|word| word.iter().collect()).collect()
}

/// Spaces around every symbol but `'`, `,`, `-` and `.`, and around spaces.
fn separate_symbols(text: &[char]) -> Vec<char> {
    let symbol = |c: char| c == ' ' || c.is_ascii_punctuation() && !matches!(c, '\'' | ',' | '-' | '.');
    let spaced = |&c: &char| if symbol(c) { vec![' ', c, ' '] } else { vec![c] };
    text.iter().flat_map(spaced).collect()
}

/// Replaces pairs of neighbours, from left to right; a character is part of one pair at most, as in a substitution by a
/// regular expression.
fn replace_pairs(text: &[char], is: impl Fn(char, char) -> bool, by: impl Fn(char, char) -> [char; 4]) -> Vec<char> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 4);
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        match tail {
            [second, after @ ..] if is(*first, *second) => {
                out.extend(by(*first, *second));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// White space as Python sees it: Unicode's and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, hypotheses, references, and what sacrebleu 2.6.0 makes of them: score, precisions, brevity penalty, lengths.
    type Case = (&'static str, &'static [&'static str], &'static [&'static str], f64, [f64; 4], f64, (usize, usize));

    #[rustfmt::skip]
    const CASES: &[Case] = &[
        (
            "ordinary",
            &["Ein Mann schläft auf dem Sofa.", "Zwei Hunde spielen im Schnee, und ein Kind sieht zu."],
            &["Ein Mann schläft in einem Raum auf dem Sofa.", "Zwei braune Hunde spielen im Schnee und ein Kind schaut zu."],
            37.09997498520887,
            [89.47368421052632, 64.70588235294117, 40.0, 15.384615384615385],
            0.8539396656235351,
            (19, 22),
        ),
        (
            "numbers",
            &["It cost 1,234.56 dollars (about 3.5% more), not 12-13.", "In 1999-2000, version 2.0.1 was out.", "a 5-year-old; .5 or 5. or ,5,"],
            &["It cost 1,234.56 dollars (some 3.5 % more), not 12 - 13.", "In 1999-2000 version 2.0.1 came out.", "a 5 - year-old ; .5 or 5. or ,5 ,"],
            78.82338816522896,
            [92.5, 83.78378378378379, 73.52941176470588, 67.74193548387096],
            1.0,
            (40, 39),
        ),
        (
            "quotes",
            &["\"It's his,\" she said -- 'isn't it?'", "„Das ist’s“, sagte er…", "e-mail: a_b@c.de / x|y {z} [w] ~`^"],
            &["\"It's his\", she said - 'is it not?'", "„Das ist es“, sagte er ...", "e-mail: a_b@c.de / x | y {z} [v] ~ ` ^"],
            55.505257963438055,
            [87.17948717948718, 66.66666666666667, 54.54545454545455, 50.0],
            0.879672914909989,
            (39, 44),
        ),
        (
            "entities",
            &["a &lt;b&gt; &amp;amp; &quot;c&quot; &amp;lt; &apos;d <skipped>e", "x &amp y&lt;z"],
            &["a <b> &amp; \"c\" &lt; 'd e", "x & y < z"],
            38.20583097254731,
            [68.18181818181819, 50.0, 33.333333333333336, 18.75],
            1.0,
            (22, 16),
        ),
        (
            "unicode",
            &["Привет, мир! 你好，世界。 naïve café\u{a0}au lait\u{2028}x\u{1c}y", "١٢٣,٤٥ ½. ．，"],
            &["Привет мир! 你好，世界。 naïve cafe au lait x y", "١٢٣,٤٥ ½ . ．，"],
            65.2254267760294,
            [88.23529411764706, 73.33333333333333, 61.53846153846154, 45.45454545454545],
            1.0,
            (17, 16),
        ),
        (
            "empty hypothesis",
            &["", "the cat sat on the mat", "   "],
            &["a dog runs", "the cat sat on a mat today", "nothing here"],
            19.765609300943975,
            [83.33333333333333, 60.0, 50.0, 33.333333333333336],
            0.36787944117144233,
            (6, 12),
        ),
        (
            "all empty",
            &["", ""],
            &["a b", "c"],
            0.0,
            [0.0, 0.0, 0.0, 0.0],
            0.0,
            (0, 3),
        ),
        (
            "too short",
            &["ja", "nein doch"],
            &["ja", "nein doch"],
            0.0,
            [100.0, 100.0, 0.0, 0.0],
            1.0,
            (3, 3),
        ),
        (
            "three words",
            &["a b c", "d e"],
            &["a b c", "d f"],
            0.0,
            [80.0, 66.66666666666667, 100.0, 0.0],
            1.0,
            (5, 5),
        ),
        (
            "no four-gram",
            &["the the the the the", "a cat is big"],
            &["the cat the mat", "a dog is big here"],
            16.036590969929364,
            [55.55555555555556, 14.285714285714286, 10.0, 8.333333333333334],
            1.0,
            (9, 9),
        ),
        (
            "no pair",
            &["a x b y c z d"],
            &["d c b a e f g"],
            9.287528999566801,
            [57.142857142857146, 8.333333333333334, 5.0, 3.125],
            1.0,
            (7, 7),
        ),
        (
            "nothing in common",
            &["a b c d e"],
            &["f g h i j"],
            0.0,
            [0.0, 0.0, 0.0, 0.0],
            1.0,
            (5, 5),
        ),
        (
            "repeated",
            &["the the the the the the the", "it is a guide to action which ensures that"],
            &["the cat is on the mat", "it is a guide to action that ensures that the"],
            40.45533557851107,
            [62.5, 42.857142857142854, 33.333333333333336, 30.0],
            1.0,
            (16, 16),
        ),
        (
            "long",
            &["the quick brown fox jumps over the lazy dog and more and more words"],
            &["the quick brown fox jumps over the lazy dog"],
            59.5640359271809,
            [64.28571428571429, 61.53846153846154, 58.333333333333336, 54.54545454545455],
            1.0,
            (14, 9),
        ),
        (
            "marks in a row",
            &["wait...,what?!,., 3.,4 ..5,-6 7--8 a-,b\n", "..", "1.,.2 ,,x"],
            &["wait ..., what?!. , 3 .,4 .. 5,-6 7- -8 a- ,b", ". .", "1 ., .2 , , x"],
            61.85009045079458,
            [85.29411764705883, 70.96774193548387, 57.142857142857146, 42.30769230769231],
            1.0,
            (34, 34),
        ),
        (
            "line breaks",
            &["a hy-\nphen and a\nbreak \n\n"],
            &["a hyphen and a break"],
            100.00000000000004,
            [100.0, 100.0, 100.0, 100.0],
            1.0,
            (5, 5),
        ),
    ];

    #[test]
    fn scores_are_those_of_sacrebleu() {
        for &(name, hypotheses, references, score, precisions, penalty, lengths) in CASES {
            let bleu = Bleu::corpus(hypotheses, references).unwrap();
            assert_eq!((bleu.hypothesis_length, bleu.reference_length), lengths, "{name}");
            let near = |seen: f64, expected: f64| (seen - expected).abs() < 1e-9;
            assert!(near(bleu.score, score), "{name}: {} for {score}", bleu.score);
            assert!(near(bleu.brevity_penalty, penalty), "{name}: {bleu}");
            let all = bleu.precisions.iter().zip(precisions).all(|(&seen, expected)| near(seen, expected));
            assert!(all, "{name}: {:?} for {precisions:?}", bleu.precisions);
        }
    }

    #[test]
    fn tokens_are_those_of_sacrebleu() {
        for (text, tokens) in [
            ("wait...,what?!,., 3.,4 ..5,-6 7--8 a-,b", "wait . . . , what ? ! , . , 3 . , 4 . .5 , -6 7 - -8 a- , b"),
            ("1.,.2 ,,x", "1 . , .2 , , x"),
            ("x &amp y&lt;z", "x & amp y < z"),
        ] {
            assert_eq!(tokenize_13a(text).join(" "), tokens);
        }
    }

    #[test]
    fn it_prints_as_sacrebleu_does_and_refuses_what_does_not_pair() {
        let bleu = Bleu::corpus(&["a x b y c z d"], &["d c b a e f g"]).unwrap();
        let expected = "BLEU = 9.29 57.1/8.3/5.0/3.1 (BP = 1.000 ratio = 1.000 hyp_len = 7 ref_len = 7)";
        assert_eq!(bleu.to_string(), expected);
        assert!(Bleu::corpus(&["a"], &["a", "b"]).unwrap_err().to_string().contains("1 texts for 2 references"));
        let none: [&str; 0] = [];
        assert_eq!(Bleu::corpus(&none, &none).unwrap().score, 0.0);
    }
}
