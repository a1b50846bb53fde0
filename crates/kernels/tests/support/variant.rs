//! Every mechanism with every option that changes its arithmetic.

use super::{Array, Subject};
use regard_kernels::{
    AttentionOptions, Call, Dropout, InputSizes, InputSpec, Layout, Mask, Mechanism, Scatterbrain,
    features::{FeatureKind, FeatureOptions},
    inputs::Fill,
    mechanism::{AdditiveScores, Combination, Inference, KeyDesign, NamedVariances, Prior, Score, Sharing, Variances},
    routing::{GateKind, MoaOptions},
    support::{SupportKind, SupportOptions},
};
use regard_testkit::Random;

/// Sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub batch: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
    pub value_width: usize,
}

impl Sizes {
    /// `batch` rows, `heads` heads with keys of their own, `queries` queries, `keys` keys; heads 8 and 5 wide.
    pub fn new(batch: usize, heads: usize, queries: usize, keys: usize) -> Self {
        Self { batch, heads, key_heads: heads, queries, keys, width: 8, value_width: 5 }
    }
}

/// A mechanism with its options.
#[derive(Clone, Debug)]
pub struct Variant {
    pub name: &'static str,
    pub options: AttentionOptions,
    pub bias: bool,
    pub alibi: bool,
    pub dropout: bool,
    /// Keys come from a second sequence, where the mechanism projects them itself.
    pub second: bool,
}

impl Variant {
    pub fn new(name: &'static str, mechanism: Mechanism) -> Self {
        let features = FeatureOptions { rows: 5, ..FeatureOptions::default() };
        // So small that short sequences meet every border.
        let support = SupportOptions {
            radius: 2,
            globals: 3,
            random: 1,
            block: 3,
            cluster: 3,
            bucket: 2,
            hash_values: Some(4),
            ..SupportOptions::default()
        };
        let moa = MoaOptions { experts: 5, ..MoaOptions::default() };
        let options = AttentionOptions { mechanism, features, support, moa, ..AttentionOptions::default() };
        Self { name, options, bias: false, alibi: false, dropout: false, second: false }
    }

    pub fn set(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Every variant of every mechanism.
    pub fn all() -> Vec<Variant> {
        Mechanism::ALL.iter().flat_map(|&mechanism| Self::of(mechanism)).collect()
    }

    /// Every variant of one mechanism.
    pub fn of(mechanism: Mechanism) -> Vec<Variant> {
        let variant = |name| Self::new(name, mechanism);
        match mechanism {
            Mechanism::Softmax => vec![
                variant("softmax"),
                variant("softmax, bias").set(|v| v.bias = true),
                variant("softmax, alibi").set(|v| v.alibi = true),
                variant("softmax, window").set(|v| v.options.window = Some(3)),
                variant("softmax, dropout").set(|v| v.dropout = true),
            ],
            Mechanism::Cosine => vec![
                variant("cosine"),
                variant("cosine, window").set(|v| v.options.window = Some(3)),
                variant("cosine, dropout").set(|v| v.dropout = true),
            ],
            Mechanism::Gaussian => vec![variant("gaussian")],
            Mechanism::Mgk => vec![
                variant("mgk"),
                variant("mgk, unequal").set(|v| {
                    v.options.mixture.variances = Variances::Named(NamedVariances::Paper13);
                }),
                variant("mgk, three").set(|v| {
                    v.options.keys.components = 3;
                    v.options.mixture.variances = Variances::List(vec![2.0, 3.5, 1.25]);
                }),
                variant("mgk, per position").set(|v| v.options.mixture.prior = Prior::PerPosition),
                variant("mgk, shifted").set(|v| v.options.keys.design = KeyDesign::Shifted),
                variant("mgk, hard").set(|v| {
                    v.options.mixture.inference = Inference::Hard;
                    v.options.mixture.variances = Variances::Named(NamedVariances::Paper13);
                }),
                variant("mgk, hard, shifted").set(|v| {
                    v.options.mixture.inference = Inference::Hard;
                    v.options.keys.design = KeyDesign::Shifted;
                }),
                variant("mgk, dot").set(|v| v.options.mixture.score = Score::Dot),
                variant("mgk, window").set(|v| v.options.window = Some(3)),
                variant("mgk, dropout").set(|v| v.dropout = true),
            ],
            Mechanism::Linear => vec![variant("linear")],
            Mechanism::Mlk => vec![
                variant("mlk"),
                variant("mlk, three").set(|v| v.options.keys.components = 3),
                variant("mlk, shifted").set(|v| v.options.keys.design = KeyDesign::Shifted),
            ],
            Mechanism::Performer => vec![
                variant("performer"),
                variant("performer, plain").set(|v| v.options.features.kind = FeatureKind::Plain),
            ],
            Mechanism::Sparse => vec![
                variant("sparse, local"),
                variant("sparse, diagonal").set(|v| v.options.support.radius = 0),
                variant("sparse, longformer").set(|v| v.options.support.kind = SupportKind::Longformer),
                variant("sparse, bigbird").set(|v| v.options.support.kind = SupportKind::Bigbird),
                variant("sparse, block").set(|v| v.options.support.kind = SupportKind::Block),
                variant("sparse, smyrf").set(|v| v.options.support.kind = SupportKind::Smyrf),
                variant("sparse, lsh").set(|v| v.options.support.kind = SupportKind::Lsh),
                variant("sparse, lsh, not cyclic").set(|v| {
                    v.options.support.kind = SupportKind::Lsh;
                    v.options.support.cyclic = false;
                }),
            ],
            Mechanism::Scatterbrain => vec![
                variant("scatterbrain, local"),
                variant("scatterbrain, local, plain").set(|v| v.options.features.kind = FeatureKind::Plain),
                variant("scatterbrain, local, elu").set(|v| v.options.features.kind = FeatureKind::Elu),
                variant("scatterbrain, local, naive").set(|v| {
                    v.options.scatterbrain.combination = Combination::Naive;
                }),
                variant("scatterbrain, full").set(|v| v.options.support.kind = SupportKind::Full),
                variant("scatterbrain, empty").set(|v| v.options.support.kind = SupportKind::Empty),
                variant("scatterbrain, longformer").set(|v| v.options.support.kind = SupportKind::Longformer),
                variant("scatterbrain, bigbird").set(|v| v.options.support.kind = SupportKind::Bigbird),
                variant("scatterbrain, block").set(|v| v.options.support.kind = SupportKind::Block),
                variant("scatterbrain, smyrf").set(|v| {
                    v.options.support.kind = SupportKind::Smyrf;
                    v.options.support.cluster = 10;
                    v.options.support.rounds = 3;
                }),
                variant("scatterbrain, smyrf, naive").set(|v| {
                    v.options.support.kind = SupportKind::Smyrf;
                    v.options.scatterbrain.combination = Combination::Naive;
                }),
                variant("scatterbrain, lsh").set(|v| {
                    v.options.support.kind = SupportKind::Lsh;
                    v.options.support.bucket = 12;
                }),
            ],
            Mechanism::Moa => vec![
                variant("moa"),
                variant("moa, released").set(|v| v.options.moa.gates = GateKind::Released),
                variant("moa, released, one").set(|v| {
                    v.options.moa.gates = GateKind::Released;
                    v.options.moa.active = 1;
                }),
                variant("moa, released, all").set(|v| {
                    v.options.moa.gates = GateKind::Released;
                    v.options.moa.active = 5;
                }),
                variant("moa, released, second sequence").set(|v| {
                    v.options.moa.gates = GateKind::Released;
                    v.second = true;
                }),
                variant("moa, second sequence").set(|v| v.second = true),
                variant("moa, window").set(|v| v.options.window = Some(3)),
                variant("moa, dropout").set(|v| v.dropout = true),
            ],
            Mechanism::Fastformer => vec![
                variant("fastformer"),
                variant("fastformer, own value").set(|v| v.options.fastformer.sharing = Sharing::None),
                variant("fastformer, released").set(|v| v.options.fastformer.scores = AdditiveScores::Released),
                variant("fastformer, released, own value").set(|v| {
                    v.options.fastformer.scores = AdditiveScores::Released;
                    v.options.fastformer.sharing = Sharing::None;
                }),
            ],
        }
    }

    pub fn mechanism(&self) -> Mechanism {
        self.options.mechanism
    }

    /// Whether queries and keys may differ in number.
    pub fn cross(&self) -> bool {
        self.mechanism().facts().cross && !self.shares_keys() && (!self.routes() || self.second)
    }

    /// Whether tokens choose heads, which share the one head of keys.
    pub fn routes(&self) -> bool {
        self.mechanism() == Mechanism::Moa
    }

    /// Whether the gradient is the derivative of the output: with the gates of the paper a divisor counts as a constant.
    pub fn derives(&self) -> bool {
        !self.routes() || self.options.moa.gates == GateKind::Released
    }

    /// Whether the queries are the keys.
    pub fn shares_keys(&self) -> bool {
        self.options.uses_support() && self.options.support.kind == SupportKind::Lsh
    }

    /// Whether what tokens hold decides who sees whom.
    pub fn hashes(&self) -> bool {
        self.options.uses_support() && self.options.support.kind.hashes()
    }

    /// Whether a token's position, and not only what it holds, enters beside causality.
    pub fn positional(&self) -> bool {
        // LSH sorts tokens of one hash by position.
        let anywhere = matches!(self.options.support.kind, SupportKind::Smyrf | SupportKind::Full | SupportKind::Empty);
        let supported = self.options.uses_support() && !anywhere;
        self.alibi || self.options.window.is_some() || self.dropout || supported
    }

    /// Whether the output is an average of values whose weights sum to 1.
    pub fn averages(&self) -> bool {
        self.mechanism() != Mechanism::Fastformer && !self.routes() && !self.dropout
    }

    /// The sizes nearest to `sizes` that the mechanism takes.
    pub fn fit(&self, sizes: Sizes) -> Sizes {
        if self.cross() {
            return sizes;
        }
        let value_width = if self.shares_keys() { sizes.value_width } else { sizes.width };
        Sizes { key_heads: sizes.heads, keys: sizes.queries, value_width, ..sizes }
    }

    /// The options at these sizes under this mask.
    fn options_for(&self, sizes: &Sizes, mask: &Mask) -> AttentionOptions {
        let mut options = self.options.clone();
        options.heads = sizes.heads;
        options.key_value_heads = (!self.routes()).then_some(sizes.key_heads);
        options.causal = mask.causal;
        if options.uses_support() && options.support.kind == SupportKind::Block {
            let [above, aside] = [sizes.queries, sizes.keys].map(|tokens| tokens.div_ceil(options.support.block));
            let block = |a: usize, b: usize| if (3 * a + b) % 4 < 2 { '1' } else { '0' };
            options.support.layout = Some((0..above).map(|a| (0..aside).map(|b| block(a, b)).collect()).collect());
        }
        options
    }

    /// The operator by its own type where it is sparse or low-rank, head first.
    pub fn scatterbrain(&self, sizes: &Sizes, mask: &Mask) -> Option<Scatterbrain> {
        let options = self.options_for(sizes, mask);
        let call = Call { layout: Layout::HeadFirst, mask: mask.clone(), ..Call::default() };
        (options.uses_support() || options.uses_features()).then(|| super::scatterbrain(&options, call))
    }

    /// The operator; `mask` gets the window of the options.
    pub fn subject(&self, sizes: &Sizes, mask: &Mask, layout: Layout) -> Subject {
        let options = self.options_for(sizes, mask);
        let slope = |h: usize| (-8.0 * (h + 1) as f32 / sizes.heads as f32).exp2();
        let call = Call {
            layout,
            mask: self.masked(mask),
            scale: None,
            slopes: self.alibi.then(|| (0..sizes.heads).map(slope).collect()),
            bias: self.bias,
            dropout: self.dropout.then_some(Dropout { rate: 0.3, key: 7 }),
            cross: self.second,
        };
        let operator = options.operator(call).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        Subject { operator, layout }
    }

    /// `mask` with the window of the options.
    pub fn masked(&self, mask: &Mask) -> Mask {
        Mask { window: self.options.window, ..mask.clone() }
    }

    /// What the operator takes.
    pub fn specs(&self, sizes: &Sizes, layout: Layout) -> Vec<InputSpec> {
        let Sizes { batch, heads, queries, keys, width, value_width, .. } = *sizes;
        let sized = InputSizes { keys, value_width, ..InputSizes::new(layout, batch, queries, heads, width) };
        let operator = self.subject(sizes, &Mask::none(), layout).operator;
        self.options_for(sizes, &Mask::none()).inputs(&*operator, &sized)
    }

    /// Inputs in the order of the operator, head first.
    pub fn inputs(&self, sizes: &Sizes, seed: u64) -> Vec<Array> {
        let random = &mut Random::new(seed);
        let specs = self.specs(sizes, Layout::HeadFirst);
        let array = |InputSpec { name, shape, fill, .. }: InputSpec| match (name, fill) {
            ("log_prior", _) => log_prior(&shape, random),
            (_, Fill::Variances(choice, width)) => {
                let variances = choice.resolve(shape[0], width).expect("a valid choice");
                Array::new(&shape, variances.iter().map(|&s| f64::from(s as f32)).collect())
            }
            // Products with what tokens hold are of size 1; scores and hashes may be larger.
            ("w_gate" | "w_query" | "w_key" | "w_value" | "w_out" | "w_t", _) => {
                Array::normal(&shape, 1.0 / (shape[shape.len() - 2] as f64).sqrt(), random)
            }
            _ => Array::normal(&shape, 1.0, random),
        };
        specs.into_iter().map(array).collect()
    }
}

/// Logs of random probabilities that sum to 1 over axis 1, as near as float32 can say.
fn log_prior(shape: &[usize], random: &mut Random) -> Array {
    let mut prior = Array::normal(shape, 1.0, random);
    let inner: usize = shape[2..].iter().product();
    for head in prior.data.chunks_exact_mut(shape[1] * inner) {
        for j in 0..inner {
            let sum: f64 = head[j..].iter().step_by(inner).map(|x| x.exp()).sum();
            head[j..].iter_mut().step_by(inner).for_each(|x| *x = f64::from((*x - sum.ln()) as f32));
        }
    }
    prior
}
