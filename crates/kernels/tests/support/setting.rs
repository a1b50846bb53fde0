//! One variant at one size under one mask, with its inputs.

use super::{Array, Outcome, Sizes, Subject, Variant, array::token_axis, sees_any};
use regard_kernels::{
    Layout, Mask, View,
    mechanism::Inference,
    reference::{
        mixture_of_heads::product,
        scatterbrain::{groups, support},
    },
};
use regard_testkit::{Random, Report, measure::largest};

/// Equal but for the order of float32 sums.
pub const ROUNDING: f64 = 3e-6;

/// A float32 kernel against its twin on inputs of size 1.
pub const TWIN_BOUND: f64 = 1e-5;

/// One variant at one size under one mask.
#[derive(Clone)]
pub struct Setting {
    pub variant: Variant,
    pub sizes: Sizes,
    pub mask: Mask,
    pub subject: Subject,
    pub inputs: Vec<Array>,
    pub grad_out: Array,
}

impl Setting {
    pub fn new(variant: &Variant, sizes: Sizes, mask: Mask, layout: Layout) -> Self {
        Self::drawn(variant, sizes, mask, layout, 11)
    }

    /// As [`Setting::new`]; drawn again until with hard inference no query nearly ties between two components, and no
    /// token comes near another group of its hash or near another choice of experts, so that float32 and float64 decide
    /// alike.
    pub fn decided(variant: &Variant, sizes: Sizes, mask: Mask, layout: Layout) -> Self {
        // Above the rounding of logits of size 16; among 100000 pairs a draw has an even chance to stay clear of it.
        const MARGIN: f64 = 5e-6;
        // Above the rounding of projections, which grow as the root of the width: 30 in size at 64.
        let hash_margin = 2.5e-6 * (sizes.width as f64).sqrt();
        let mut draws = (11..).map(|seed| Self::drawn(variant, sizes, mask.clone(), layout, seed));
        let clear = |drawn: &Self| {
            drawn.margin() > MARGIN && drawn.hash_margin() > hash_margin && drawn.router_margin() > MARGIN
        };
        draws.find(clear).expect("an endless supply")
    }

    pub fn drawn(variant: &Variant, sizes: Sizes, mask: Mask, layout: Layout, seed: u64) -> Self {
        let sizes = variant.fit(sizes);
        let subject = variant.subject(&sizes, &mask, layout);
        let inputs = variant.inputs(&sizes, seed);
        let grad_out = Array::normal(&subject.head_first_out_shape(&inputs), 1.0, &mut Random::new(seed + 1000));
        Self { variant: variant.clone(), sizes, mask, subject, inputs, grad_out }
    }

    fn input(&self, name: &str) -> Option<&Array> {
        self.subject.names().iter().position(|n| *n == name).map(|n| &self.inputs[n])
    }

    /// Smallest distance between the best and the next best component of any pair; infinite but with hard inference.
    fn margin(&self) -> f64 {
        if self.variant.options.mixture.inference != Inference::Hard {
            return f64::INFINITY;
        }
        let [q, k, variance] = ["q", "k", "variance"].map(|name| self.input(name).expect("inputs of a mixture"));
        let Sizes { batch, heads, key_heads, queries, keys, width, .. } = self.sizes;
        let components = variance.data.len();
        let mut margin = f64::INFINITY;
        for (pair, j) in (0..batch * heads * queries).flat_map(|pair| (0..keys).map(move |j| (pair, j))) {
            let (b, h) = (pair / queries / heads, pair / queries % heads * key_heads / heads);
            let query = &q.data[pair * width..][..width];
            let mut logits: Vec<f64> = (0..components)
                .map(|r| {
                    let (key, shift) = match self.input("shift") {
                        Some(shift) => {
                            ((b * key_heads + h) * keys + j, Some(&shift.data[(h * components + r) * width..]))
                        }
                        None => (((b * key_heads + h) * components + r) * keys + j, None),
                    };
                    let shifted = |c: usize| k.data[key * width + c] + shift.map_or(0.0, |shift| shift[c]);
                    let squared: f64 = (0..width).map(|c| (query[c] - shifted(c)).powi(2)).sum();
                    -squared / (2.0 * variance.data[r])
                })
                .collect();
            logits.sort_by(f64::total_cmp);
            margin = margin.min(logits[components - 1] - logits[components - 2]);
        }
        margin
    }

    /// Smallest change of a projection that would put a real token into another group; infinite without hashes.
    pub fn hash_margin(&self) -> f64 {
        let operator = self.variant.scatterbrain(&self.sizes, &self.mask);
        operator.map_or(f64::INFINITY, |operator| groups(&operator, &self.views()).margin)
    }

    /// Smallest distance between the logits of the last expert that a token chose and of the next one; infinite without
    /// routing, or where all are chosen.
    pub fn router_margin(&self) -> f64 {
        let (Some(x), Some(w_gate)) = (self.input("x"), self.input("w_gate")) else { return f64::INFINITY };
        let (experts, active) = (w_gate.shape[1], self.variant.options.moa.active);
        let mut logits = product(x.view(), w_gate.view());
        let rows = logits.chunks_exact_mut(experts).map(|row| {
            row.sort_by(|a, b| b.total_cmp(a));
            row.get(active).map_or(f64::INFINITY, |next| row[active - 1] - next)
        });
        rows.fold(f64::INFINITY, f64::min)
    }

    fn views(&self) -> Vec<View<'_, f64>> {
        self.inputs.iter().map(Array::view).collect()
    }

    /// Which rows have anything to average, by an index into the output: those with a visible key and, on a support
    /// without features, with one in it.
    pub fn sees(&self) -> impl Fn(&[usize]) -> bool + '_ {
        let masked = self.variant.masked(&self.mask);
        let options = &self.variant.options;
        let sparse = options.uses_support() && !options.uses_features();
        let operator = self.variant.scatterbrain(&self.sizes, &self.mask).filter(|_| sparse);
        let support = operator.map(|operator| support(&operator, &self.views()));
        let Sizes { heads, queries, keys, .. } = self.sizes;
        let axis = self.out_axis();
        move |ix| {
            let supported = |pairs: &Vec<bool>| {
                pairs[((ix[0] * heads + ix[1]) * queries + ix[axis]) * keys..][..keys].contains(&true)
            };
            sees_any(&masked, ix[0], ix[axis], queries, keys) && support.as_ref().is_none_or(supported)
        }
    }

    /// Positions and names of the inputs that have a gradient.
    pub fn learned(&self) -> impl Iterator<Item = (usize, &'static str)> + '_ {
        self.subject.names().into_iter().enumerate().filter(|(_, name)| !self.subject.is_constant(name))
    }

    pub fn kernel(&self) -> Outcome {
        self.subject.kernel(&self.inputs, &self.grad_out)
    }

    /// Bound for the error of gradient `n` of `expected`: [`TWIN_BOUND`], and for parameters what their sum over all
    /// tokens may lose. Terms as large as a token's gradient may all but cancel there, and their roundings do not.
    pub fn gradient_bound(&self, n: usize, expected: &[Array]) -> f64 {
        let of_tokens = |name: &str, grad: &Array| token_axis(name, grad.shape.len()).is_some();
        let names = self.subject.names();
        if of_tokens(names[n], &expected[n]) {
            return TWIN_BOUND;
        }
        let tokens = names.iter().zip(expected).filter(|(name, grad)| of_tokens(name, grad));
        let term = tokens.map(|(_, grad)| largest(&grad.data)).fold(0.0, f64::max);
        let roundings = ((self.sizes.batch * self.sizes.queries) as f64).sqrt();
        TWIN_BOUND.max(ROUNDING * roundings * term / largest(&expected[n].data))
    }

    pub fn label(&self, what: &str) -> String {
        let Sizes { batch, heads, key_heads, queries, keys, .. } = self.sizes;
        let masks = (self.mask.causal, self.mask.valid.is_some());
        let mask = match masks {
            (false, false) => "",
            (true, false) => " causal",
            (false, true) => " padded",
            (true, true) => " causal padded",
        };
        let layout = self.subject.layout;
        format!("{} B{batch} H{heads}/{key_heads} N{queries} S{keys}{mask} {layout:?}: {what}", self.variant.name)
    }

    /// Changes the inputs at the tokens that `query` and `key` choose by batch row and token.
    pub fn spoil(&mut self, value: f64, query: impl Fn(usize, usize) -> bool, key: impl Fn(usize, usize) -> bool) {
        self.spoil_only(&["q", "k", "v", "x", "x_kv"], value, query, key);
    }

    /// As [`Setting::spoil`], the inputs of these names alone.
    pub fn spoil_only(
        &mut self,
        names: &[&str],
        value: f64,
        query: impl Fn(usize, usize) -> bool,
        key: impl Fn(usize, usize) -> bool,
    ) {
        let second = self.variant.second;
        let inputs = self.subject.names().into_iter().zip(&mut self.inputs);
        for (name, input) in inputs.filter(|(name, _)| names.contains(name)) {
            let axis = token_axis(name, input.shape.len());
            match (name, axis) {
                ("q", Some(axis)) => *input = input.with(value, |ix| query(ix[0], ix[axis])),
                ("k" | "v" | "x_kv", Some(axis)) => *input = input.with(value, |ix| key(ix[0], ix[axis])),
                ("x", Some(axis)) => {
                    let chosen = |b, t| query(b, t) || !second && key(b, t);
                    *input = input.with(value, |ix| chosen(ix[0], ix[axis]));
                }
                _ => {}
            }
        }
    }

    /// Sets the output gradient of the queries that `chosen` names by batch row and token to 0.
    pub fn silence(&mut self, chosen: impl Fn(usize, usize) -> bool) {
        let axis = self.out_axis();
        self.grad_out = self.grad_out.with(0.0, |ix| chosen(ix[0], ix[axis]));
    }

    pub fn out_axis(&self) -> usize {
        token_axis("out", self.grad_out.shape.len()).expect("outputs have tokens")
    }
}

/// Sizes that cross the borders of small tiles, with keys of their own, shared and multi-query.
pub fn usual_sizes() -> [Sizes; 4] {
    [
        Sizes::new(5, 2, 21, 21),
        Sizes { key_heads: 2, ..Sizes::new(5, 4, 9, 150) },
        Sizes { key_heads: 1, ..Sizes::new(5, 2, 70, 33) },
        // So few queries take another way, on which keys are cut into segments.
        Sizes { key_heads: 1, ..Sizes::new(5, 3, 2, 530) },
    ]
}

/// The layout of layers, and that of files.
pub const LAYOUTS: [Layout; 2] = [Layout::TokenFirst, Layout::HeadFirst];

/// Runs `check` on every variant.
pub fn walk(check: impl Fn(&Variant, &mut Report)) {
    let mut report = Report::new();
    Variant::all().iter().for_each(|variant| check(variant, &mut report));
    report.finish();
}
