//! Beam search against searches written to be read.

mod common;

use burn::tensor::Device;
use common::{VOCABULARY, attention, batch, small, values};
use regard_kernels::{Mechanism, support::SupportKind};
use regard_nn::{
    attention::Attentions,
    blocks::Context,
    models::{
        BeamOptions, ModelConfig, TokenBatch, Translator, beam_search, load_parameters, named_parameters, special,
    },
};

const CONTEXT: usize = 12;

/// A model whose predictions are far from even, so that searches differ.
fn model(mechanism: Mechanism, vocabulary: usize, seed: u64) -> Translator {
    let mut attentions = Attentions::from(&attention(mechanism));
    attentions.cross.support.kind = SupportKind::Full;
    if mechanism == Mechanism::Fastformer {
        attentions.cross = attention(Mechanism::Softmax);
    }
    let config = ModelConfig { layers: 1, ..small() };
    let model = Translator::new(&config, &attentions, vocabulary, CONTEXT, seed, &Device::flex()).unwrap();
    let louder =
        |name: &str| if name == "token_embedding" || name.ends_with("position_embedding") { 40.0 } else { 2.0 };
    let scale = |p: regard_nn::models::NamedParameter| {
        let factor = if p.buffer { 1.0 } else { louder(&p.name) };
        (p.name, (p.shape, p.values.iter().map(|x| x * factor).collect()))
    };
    let parameters = named_parameters(&model).into_iter().map(scale).collect();
    load_parameters(model, parameters).unwrap()
}

/// Log-probabilities of the token after `prefix`, by a whole forward pass over one sentence alone.
fn next(model: &Translator, source: &TokenBatch, prefix: &[i32]) -> Vec<f64> {
    let ids: Vec<i32> = [special::BEGIN].iter().chain(prefix).copied().collect();
    let count = ids.len();
    let logits = values(model.forward(source, &TokenBatch::full(ids, 1).unwrap(), &Context::evaluation()));
    let vocabulary = model.sizes().vocabulary;
    let last: Vec<f64> = logits[(count - 1) * vocabulary..].iter().map(|&z| f64::from(z)).collect();
    let normaliser = last.iter().map(|z| z.exp()).sum::<f64>().ln();
    last.into_iter().map(|z| z - normaliser).collect()
}

/// Row `row` of a batch without its padding.
fn alone(tokens: &TokenBatch, lengths: &[usize], row: usize) -> TokenBatch {
    TokenBatch::full(&tokens.ids[row * tokens.length..][..lengths[row]], 1).unwrap()
}

fn speaks(token: i32) -> bool {
    ![special::PADDING, special::BEGIN, special::MASK].contains(&token)
}

fn penalty(tokens: usize, alpha: f64) -> f64 {
    ((5 + tokens) as f64 / 6.0).powf(alpha)
}

/// The best of all sequences that end or reach the longest length, and the lead over the second.
fn exhaustive(model: &Translator, source: &TokenBatch, options: &BeamOptions) -> (Vec<i32>, f64) {
    let mut all: Vec<(f64, Vec<i32>)> = Vec::new();
    let mut open = vec![(0.0, Vec::new())];
    for length in 1..=options.longest {
        let mut longer = Vec::new();
        for (log, prefix) in open {
            for (token, own) in next(model, source, &prefix).into_iter().enumerate() {
                let (token, log) = (token as i32, log + own);
                let mut tokens: Vec<i32> = prefix.clone();
                if token == special::END {
                    all.push((log / penalty(length, options.length_penalty), tokens));
                } else if speaks(token) {
                    tokens.push(token);
                    longer.push((log, tokens));
                }
            }
        }
        open = longer;
    }
    all.extend(open.into_iter().map(|(log, tokens)| (log / penalty(options.longest, options.length_penalty), tokens)));
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    (all[0].1.clone(), all[0].0 - all[1].0)
}

/// Beam search over one sentence with a forward pass for every hypothesis.
fn plain(model: &Translator, source: &TokenBatch, options: &BeamOptions) -> Vec<i32> {
    let mut open = vec![(0.0, Vec::<i32>::new())];
    let mut finished: Vec<(f64, Vec<i32>)> = Vec::new();
    for length in 1..=options.longest {
        let mut longer = Vec::new();
        for (log, prefix) in &open {
            let after = next(model, source, prefix).into_iter().enumerate();
            longer.extend(after.filter(|(token, _)| speaks(*token as i32)).map(|(token, own)| {
                let tokens: Vec<i32> = prefix.iter().copied().chain([token as i32]).collect();
                (log + own, tokens)
            }));
        }
        longer.sort_by(|a, b| b.0.total_cmp(&a.0));
        open.clear();
        for (rank, (log, tokens)) in longer.into_iter().enumerate() {
            if open.len() == options.beam {
                break;
            }
            match tokens.split_last() {
                Some((&special::END, rest)) if rank < options.beam => {
                    finished.push((log / penalty(length, options.length_penalty), rest.to_vec()));
                }
                Some((&special::END, _)) => {}
                _ => open.push((log, tokens)),
            }
        }
        if finished.len() >= options.beam {
            open.clear();
            break;
        }
    }
    finished
        .extend(open.into_iter().map(|(log, tokens)| (log / penalty(options.longest, options.length_penalty), tokens)));
    finished.sort_by(|a, b| b.0.total_cmp(&a.0));
    finished[0].1.clone()
}

#[test]
fn a_beam_as_wide_as_everything_finds_the_best_of_all_sequences() {
    // Four tokens that can be said: unknown and three words.
    let vocabulary = 8;
    let (mut compared, mut outcomes) = (0, std::collections::BTreeSet::new());
    for seed in 0..6 {
        let model = model(Mechanism::Softmax, vocabulary, seed);
        let source = TokenBatch::full([5, 7, 6, 5, 3, 2, 7, 7], 2).unwrap();
        for length_penalty in [0.0, 0.6, 1.5] {
            let options = BeamOptions { beam: 400, length_penalty, longest: 4, ..BeamOptions::default() };
            let found = beam_search(&model, &source, &options).unwrap();
            for (row, found) in found.into_iter().enumerate() {
                let (best, lead) = exhaustive(&model, &alone(&source, &[4, 4], row), &options);
                // Where two are as good as equal, rounding decides.
                if lead > 1e-4 {
                    assert_eq!(found, best, "seed {seed}, penalty {length_penalty}, row {row}");
                    compared += 1;
                    outcomes.insert(found);
                }
            }
        }
    }
    assert!(compared > 20 && outcomes.len() > 3, "{compared} compared, {outcomes:?}");
}

#[test]
fn rows_searched_side_by_side_find_what_each_finds_alone() {
    let lengths = [7, 4, 1, 5];
    let source = batch(&lengths, 9, 0);
    let mut outcomes = std::collections::BTreeSet::new();
    for &mechanism in Mechanism::ALL {
        for seed in 0..2 {
            let model = model(mechanism, VOCABULARY, seed);
            for (beam, length_penalty) in [(1, 0.6), (2, 0.0), (4, 0.6), (3, 2.0)] {
                let options = BeamOptions { beam, length_penalty, longest: 8, ..BeamOptions::default() };
                let found = beam_search(&model, &source, &options).unwrap();
                for (row, found) in found.into_iter().enumerate() {
                    let expected = plain(&model, &alone(&source, &lengths, row), &options);
                    assert_eq!(found, expected, "{mechanism} seed {seed} row {row} {options:?}");
                    outcomes.insert(found);
                }
            }
        }
    }
    assert!(outcomes.len() > 20 && outcomes.iter().map(Vec::len).collect::<std::collections::BTreeSet<_>>().len() > 3);
}

#[test]
fn translations_are_as_long_as_asked_and_repeat_no_run() {
    let lengths = [7, 4, 1, 5];
    let source = batch(&lengths, 9, 0);
    let repeats = |tokens: &[i32], run: usize| {
        let runs: Vec<_> = tokens.windows(run).collect();
        runs.iter().enumerate().any(|(i, one)| runs[..i].contains(one))
    };
    let (mut longer, mut other) = (0, 0);
    for seed in 0..4 {
        let model = model(Mechanism::Softmax, VOCABULARY, seed);
        let search = |options: &BeamOptions| beam_search(&model, &source, options).unwrap();
        let free = BeamOptions { beam: 3, longest: 10, ..BeamOptions::default() };
        for (one, found) in search(&free).iter().zip(search(&BeamOptions { shortest: 6, ..free })) {
            // The end is the sixth token at least.
            assert!((5..=10).contains(&found.len()), "{found:?}");
            longer += usize::from(one.len() < 5);
        }
        for no_repeat in [1, 2, 3] {
            for (one, found) in search(&free).iter().zip(search(&BeamOptions { no_repeat, ..free })) {
                assert!(!repeats(&found, no_repeat), "{found:?} without runs of {no_repeat} twice");
                other += usize::from(repeats(one, no_repeat));
            }
        }
    }
    assert!(longer > 0 && other > 0, "{longer} were shorter and {other} repeated themselves without it");
}

#[test]
fn one_beam_is_greedy_search_whatever_the_penalty() {
    let lengths = [7, 4, 2];
    let source = batch(&lengths, 7, 0);
    for seed in 0..5 {
        let model = model(Mechanism::Softmax, VOCABULARY, seed);
        let greedy = |row| {
            let source = alone(&source, &lengths, row);
            let mut tokens = Vec::new();
            while tokens.len() < CONTEXT {
                let after = next(&model, &source, &tokens);
                let best = (0..VOCABULARY).filter(|&t| speaks(t as i32));
                let best = best.max_by(|&a, &b| after[a].total_cmp(&after[b])).unwrap() as i32;
                if best == special::END {
                    break;
                }
                tokens.push(best);
            }
            tokens
        };
        for length_penalty in [0.0, 3.0] {
            // Longer than the model's context: the context ends it.
            let options = BeamOptions { beam: 1, length_penalty, longest: 1000, ..BeamOptions::default() };
            let found = beam_search(&model, &source, &options).unwrap();
            assert_eq!(found, [greedy(0), greedy(1), greedy(2)], "seed {seed}");
        }
    }
}

#[test]
fn sources_that_do_not_fit_are_refused() {
    let model = model(Mechanism::Softmax, VOCABULARY, 1);
    let refused = |source: TokenBatch, options: &BeamOptions, part: &str| {
        let error = beam_search(&model, &source, options).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(TokenBatch::full([99], 1).unwrap(), &BeamOptions::default(), "vocabulary (11)");
    refused(batch(&[3], CONTEXT + 1, 0), &BeamOptions::default(), "at most 12");
    refused(batch(&[3], 3, 0), &BeamOptions { beam: 0, ..BeamOptions::default() }, "beam is 0");
    // A source without a real token is translated to something.
    let found = beam_search(&model, &batch(&[3, 0], 3, 0), &BeamOptions::default()).unwrap();
    assert_eq!(found.len(), 2);
}
