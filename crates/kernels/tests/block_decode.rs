//! Decoding with a block layout: against the whole sequence and the float64 twin.

use regard_kernels::{
    Layout, Mask, Operator, Scatterbrain, Storage, View, draws,
    features::{FeatureKind, RowNorms, RowsDrawn},
    parallel::Team,
    support::{SupportKind, SupportOptions},
};
use regard_testkit::{Random, Report, wide};

const WIDTH: usize = 8;
const VALUE_WIDTH: usize = 5;
const ROWS: usize = 6;
const BATCH: usize = 2;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;

/// Own blocks that are hidden (rows 1 and 3), a row that sees nothing (2), more columns than rows.
const LAYOUT: [&str; 5] = ["1000000", "1000000", "0001111", "0110000", "1101100"];

/// A causal operator, token first, with the inputs of `tokens` tokens.
struct Sample {
    operator: Scatterbrain,
    tokens: usize,
    inputs: Vec<(Vec<usize>, Vec<f32>)>,
}

fn operator(layout: &[&str], block: usize, features: Option<FeatureKind>, naive: bool) -> Scatterbrain {
    let layout = Some(layout.iter().map(|row| (*row).to_owned()).collect());
    let support = SupportOptions { kind: SupportKind::Block, block, layout, ..SupportOptions::default() };
    let mask = Mask::causal();
    Scatterbrain { layout: Layout::TokenFirst, mask, scale: None, support: Some(support), features, naive }
}

impl Sample {
    fn new(operator: Scatterbrain, tokens: usize) -> Self {
        let mut random = Random::new(11);
        let input = |name| {
            let shape = match name {
                "q" => vec![BATCH, tokens, HEADS, WIDTH],
                "k" => vec![BATCH, tokens, KEY_HEADS, WIDTH],
                "v" => vec![BATCH, tokens, KEY_HEADS, VALUE_WIDTH],
                _ => vec![ROWS, WIDTH],
            };
            let numbers = match name {
                "projection" => draws::projection(ROWS, WIDTH, RowsDrawn::Orthogonal, RowNorms::Gaussian, 1),
                _ => random.normals(shape.iter().product()).into_iter().map(|x| x as f32).collect(),
            };
            (shape, numbers)
        };
        let inputs = operator.inputs().into_iter().map(input).collect();
        Self { operator, tokens, inputs }
    }

    /// The inputs of tokens `from .. from + count`.
    fn part(&self, from: usize, count: usize) -> Vec<(Vec<usize>, Vec<f32>)> {
        let part = |(shape, numbers): &(Vec<usize>, Vec<f32>)| {
            if shape.len() == 2 {
                return (shape.clone(), numbers.clone());
            }
            let width = shape[2] * shape[3];
            let rows = numbers.chunks_exact(self.tokens * width);
            let cut = rows.flat_map(|row| &row[from * width..(from + count) * width]).copied().collect();
            (vec![BATCH, count, shape[2], shape[3]], cut)
        };
        self.inputs.iter().map(part).collect()
    }

    /// Outputs of the first `count` tokens in one pass, `[B,N,H,Dv]`.
    fn whole(&self, count: usize) -> Vec<f32> {
        let part = self.part(0, count);
        let mut out = vec![f32::NAN; BATCH * count * HEADS * VALUE_WIDTH];
        self.operator.forward(&views(&part), &mut out);
        out
    }

    fn twin(&self) -> Vec<f64> {
        let wide: Vec<Vec<f64>> = self.inputs.iter().map(|(_, x)| x.iter().map(|&x| f64::from(x)).collect()).collect();
        let views: Vec<_> = wide.iter().zip(&self.inputs).map(|(data, (shape, _))| View::new(data, shape)).collect();
        self.operator.reference(&views, None).out
    }

    /// Outputs token by token, `[B,N,H,Dv]`, and bytes of the state; the first `absorbed` tokens have none.
    fn decoded(&self, storage: Storage, absorbed: usize) -> (Vec<f32>, usize) {
        let mut decoder = self.operator.decoder(storage).expect("a decoder");
        let width = HEADS * VALUE_WIDTH;
        let mut out = vec![0.0; BATCH * self.tokens * width];
        for t in 0..self.tokens {
            let part = self.part(t, 1);
            let mut rows = vec![f32::NAN; BATCH * width];
            match t < absorbed {
                true => decoder.absorb(&views(&part), &mut rows),
                false => {
                    decoder.step(&views(&part), &mut rows);
                    for (b, row) in rows.chunks_exact(width).enumerate() {
                        out[(b * self.tokens + t) * width..][..width].copy_from_slice(row);
                    }
                }
            }
        }
        (out, decoder.bytes())
    }
}

fn views(inputs: &[(Vec<usize>, Vec<f32>)]) -> Vec<View<'_, f32>> {
    inputs.iter().map(|(shape, data)| View::new(data, shape)).collect()
}

/// Every kind of features and none, over several layouts: small blocks, and long ones that exceed a segment of keys.
fn samples() -> Vec<(String, Sample)> {
    let kinds = [None, Some(FeatureKind::Hyperbolic), Some(FeatureKind::Plain), Some(FeatureKind::Elu)];
    let long = ["1111", "1111", "1011", "0110"];
    let mut samples = Vec::new();
    for features in kinds {
        for naive in [false, true] {
            if naive && features.is_none() {
                continue;
            }
            let label = format!("{features:?} naive {naive}");
            let small = operator(&LAYOUT, 3, features, naive);
            samples.push((format!("{label} small"), Sample::new(small, 14)));
            samples.push((format!("{label} long"), Sample::new(operator(&long, 600, features, naive), 1900)));
        }
    }
    samples
}

#[test]
fn tokens_give_the_rows_of_the_whole_and_of_the_twin() {
    let mut report = Report::new();
    for (label, sample) in samples() {
        let (decoded, bytes) = sample.decoded(Storage::F32, 0);
        report.compare(format!("{label}: whole"), &wide(&decoded), &wide(&sample.whole(sample.tokens)), 1e-5);
        if sample.tokens < 100 {
            report.compare(format!("{label}: twin"), &wide(&decoded), &sample.twin(), 1e-5);
        }
        // After tokens without an output, in the middle of a block, the others are the same to the bit.
        let absorbed = sample.tokens / 2 + 1;
        let (late, _) = sample.decoded(Storage::F32, absorbed);
        let row = sample.tokens * HEADS * VALUE_WIDTH;
        let from = absorbed * HEADS * VALUE_WIDTH;
        for b in 0..BATCH {
            report.same(
                format!("{label}: after absorbed tokens"),
                &wide(&late[b * row + from..(b + 1) * row]),
                &wide(&decoded[b * row + from..(b + 1) * row]),
            );
        }
        // All keys and values, and for each block the scales and sums of features.
        let support = sample.operator.support.as_ref().unwrap();
        let features = match sample.operator.features {
            None => 0,
            Some(FeatureKind::Hyperbolic) => 2 * ROWS,
            Some(FeatureKind::Plain) => ROWS,
            Some(FeatureKind::Elu) => WIDTH,
        };
        let blocks = if sample.operator.naive { 1 } else { sample.tokens.div_ceil(support.block) + 1 };
        let floats = sample.tokens * (WIDTH + VALUE_WIDTH) + blocks * features * (VALUE_WIDTH + 2);
        assert_eq!(bytes, BATCH * KEY_HEADS * floats * 4, "{label}");
    }
    report.finish();
}

#[test]
fn fewer_bits_stay_near_and_any_number_of_threads_gives_the_same_bits() {
    let mut report = Report::new();
    for (label, sample) in samples().into_iter().filter(|(_, sample)| sample.tokens < 100) {
        let (exact, bytes) = sample.decoded(Storage::F32, 0);
        for (storage, bound) in [(Storage::Bf16, 2e-2), (Storage::F16, 2e-3), (Storage::Int8, 3e-2)] {
            let (near, fewer) = sample.decoded(storage, 0);
            report.compare(format!("{label} as {}", storage.name()), &wide(&near), &wide(&exact), bound);
            report.require(near != exact && fewer < bytes, format!("{label} as {}: {fewer} bytes", storage.name()));
        }
        for threads in [1, 3] {
            let other = Team::new(threads).unwrap().run(|| sample.decoded(Storage::F32, 0).0);
            report.same(format!("{label} on {threads} threads"), &wide(&other), &wide(&exact));
        }
    }
    report.finish();
}

/// Values of a block that the last row does not see hold what is no number.
#[test]
fn a_token_reads_the_blocks_of_its_row_alone() {
    let mut sample = Sample::new(operator(&["100", "010", "101"], 4, None, false), 12);
    let (shape, values) = &mut sample.inputs[2];
    let width = shape[2] * shape[3];
    for (at, x) in values.iter_mut().enumerate() {
        // The middle block.
        if (4..8).contains(&(at / width % 12)) {
            *x = f32::NAN;
        }
    }
    let (out, _) = sample.decoded(Storage::F32, 0);
    let finite = |t: usize| out[t * HEADS * VALUE_WIDTH..(t + 1) * HEADS * VALUE_WIDTH].iter().all(|x| x.is_finite());
    assert_eq!((0..12).map(finite).collect::<Vec<_>>(), [[true; 4], [false; 4], [true; 4]].concat());
}

#[test]
fn rows_of_a_batch_trade_places() {
    for features in [None, Some(FeatureKind::Hyperbolic)] {
        let sample = Sample::new(operator(&LAYOUT, 3, features, false), 14);
        let mut straight = sample.operator.decoder(Storage::Int8).unwrap();
        let mut crossed = sample.operator.decoder(Storage::Int8).unwrap();
        crossed.reorder(&[1, 0]);
        let width = HEADS * VALUE_WIDTH;
        let step = |decoder: &mut dyn regard_kernels::Decode, t: usize, swap: bool| {
            let mut part = sample.part(t, 1);
            for (shape, numbers) in part.iter_mut().filter(|(shape, _)| swap && shape.len() == 4) {
                numbers.rotate_left(shape[2] * shape[3]);
            }
            let mut out = vec![f32::NAN; BATCH * width];
            decoder.step(&views(&part), &mut out);
            out
        };
        for t in 0..14 {
            let swap = t >= 7;
            if t == 7 {
                crossed.reorder(&[1, 0]);
            }
            let (plain, mut other) = (step(straight.as_mut(), t, false), step(crossed.as_mut(), t, swap));
            if swap {
                other.rotate_left(width);
            }
            assert_eq!(plain, other, "token {t}");
        }
        let bytes = crossed.bytes();
        crossed.reorder(&[0, 1, 1, 0]);
        assert_eq!(crossed.bytes(), 2 * bytes);
    }
}

#[test]
fn tokens_beyond_the_layout_are_refused() {
    let sample = Sample::new(operator(&LAYOUT, 3, None, false), 15);
    let mut decoder = sample.operator.decoder(Storage::F32).unwrap();
    for t in 0..15 {
        decoder.check(15 - t).unwrap();
        let expected = "support.layout is 5 rows and columns of blocks of 3, expected at least 6, for 16 tokens";
        assert_eq!(decoder.check(16 - t).unwrap_err().to_string(), expected);
        decoder.absorb(&views(&sample.part(t, 1)), &mut []);
    }
    assert!(decoder.check(0).is_ok() && decoder.check(usize::MAX).is_err());
    let shapes: Vec<Vec<usize>> = [vec![BATCH, 16, HEADS, WIDTH], vec![BATCH, 16, KEY_HEADS, WIDTH]]
        .into_iter()
        .chain([vec![BATCH, 16, KEY_HEADS, VALUE_WIDTH]])
        .collect();
    let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let error = sample.operator.out_shape(&shapes).unwrap_err().to_string();
    assert_eq!(error, "tensor 'layout' has shape [5, 7], expected at least [6, 6]");
    // One query of many is not in the first row.
    let shapes = [[BATCH, 1, HEADS, WIDTH], [BATCH, 12, KEY_HEADS, WIDTH], [BATCH, 12, KEY_HEADS, VALUE_WIDTH]];
    let error = sample.operator.out_shape(&shapes.each_ref().map(|shape| &shape[..])).unwrap_err().to_string();
    assert_eq!(error, "tensor 'layout' has shape [5, 7], expected [1, 4]");
}
