//! Options inferred from tensor shapes.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::InputSizes;
use crate::{
    AttentionOptions, Error, Layout, Mechanism,
    features::FeatureKind,
    mechanism::{KeyDesign, Sharing},
    support::SupportKind,
};

/// Maximum components if no tensor gives their number: far more than any mixture has, and few enough to fit into
/// memory.
const MOST_COMPONENTS: usize = 1024;

/// Shapes of tensors, by name.
pub type Shapes<'a> = BTreeMap<&'a str, &'a [usize]>;

/// The tensors of a call.
struct Given<'a> {
    mechanism: Mechanism,
    shapes: &'a Shapes<'a>,
    layout: Layout,
    chosen: &'a dyn Fn(&str) -> bool,
}

impl Given<'_> {
    fn need(&self, name: &str, ranks: RangeInclusive<usize>) -> Result<&[usize], Error> {
        let missing = || Error::missing(name, format!("{} needs it", self.mechanism));
        let shape = *self.shapes.get(name).ok_or_else(missing)?;
        if !ranks.contains(&shape.len()) {
            return Err(Error::rank(name, shape, *ranks.start()));
        }
        if shape.contains(&0) {
            return Err(Error::shape(name, shape, "every size at least 1"));
        }
        Ok(shape)
    }

    /// A size of a tensor. The operator reports a tensor of the wrong rank or without elements.
    fn axis(&self, name: &str, rank: usize, axis: usize) -> Option<usize> {
        let shape = self.shapes.get(name).filter(|shape| shape.len() == rank);
        shape.map(|shape| shape[axis]).filter(|size| *size > 0)
    }

    /// The head and token axes of a tensor of this rank.
    fn axes(&self, rank: usize) -> (usize, usize) {
        match self.layout {
            Layout::HeadFirst => (1, rank - 2),
            Layout::TokenFirst => (rank - 2, 1),
        }
    }

    /// Adopts the size of a tensor, or fails if another was chosen.
    fn agree(&self, key: &str, size: &mut usize, seen: Option<usize>) -> Result<(), Error> {
        agree(key, (self.chosen)(key), size, seen)
    }
}

fn agree(key: &str, fixed: bool, size: &mut usize, seen: Option<usize>) -> Result<(), Error> {
    match seen {
        Some(seen) if fixed && seen != *size => {
            return Err(Error::option(key, *size, format!("{seen}, as the tensors have them")));
        }
        Some(seen) => *size = seen,
        None => {}
    }
    Ok(())
}

impl AttentionOptions {
    /// The options with unset ones (heads, components, key design, shared values, rows, rounds, experts) inferred from
    /// tensors of these shapes and a budget replaced by its sizes, and the sizes of the call.
    ///
    /// # Errors
    /// Required tensors that are missing, tensors that contradict chosen options, and a budget that is too small.
    pub fn fit(
        &self,
        shapes: &Shapes,
        layout: Layout,
        chosen: &dyn Fn(&str) -> bool,
    ) -> Result<(Self, InputSizes), Error> {
        let given = Given { mechanism: self.mechanism, shapes, layout, chosen };
        let mut options = self.clone();
        if self.mechanism == Mechanism::Moa {
            let sizes = options.fit_experts(&given)?;
            return Ok((options, sizes));
        }
        let sizes = options.fit_heads(&given)?;
        if self.mechanism.is_mixture() {
            options.fit_components(&given)?;
        }
        if self.mechanism == Mechanism::Fastformer && shapes.contains_key("v") && !chosen("fastformer.sharing") {
            options.fastformer.sharing = Sharing::None;
        }
        if self.uses_support() {
            options.fit_hashes(&given)?;
        }
        options = options.within_budget(sizes.queries, sizes.keys, sizes.head_width)?;
        if self.uses_features() && self.features.kind != FeatureKind::Elu {
            let fixed = self.budget.is_some() || chosen("features.rows");
            agree("features.rows", fixed, &mut options.features.rows, given.axis("projection", 2, 0))?;
        }
        Ok((options, sizes))
    }

    /// The number of experts and the head width.
    fn fit_experts(&mut self, given: &Given) -> Result<InputSizes, Error> {
        let x = given.need("x", 3..=3)?;
        let (experts, head_width) = (given.need("w_gate", 2..=2)?[1], given.need("w_query", 3..=3)?[2]);
        given.agree("moa.experts", &mut self.moa.experts, Some(experts))?;
        agree("moa.head_width", true, self.moa.head_width.get_or_insert(head_width), Some(head_width))?;
        let keys = given.axis("x_kv", 3, 1).unwrap_or(x[1]);
        let sizes = InputSizes::new(given.layout, x[0], x[1], 1, head_width);
        Ok(InputSizes { keys, width: x[2], ..sizes })
    }

    fn fit_heads(&mut self, given: &Given) -> Result<InputSizes, Error> {
        let shares_queries = self.uses_support() && self.support.kind == SupportKind::Lsh;
        // Values have as many heads and tokens as keys.
        let key_name = if shares_queries { "v" } else { "k" };
        let (q, k) = (given.need("q", 4..=4)?, given.need(key_name, 4..=if shares_queries { 4 } else { 5 })?);
        let ((head_axis, token_axis), (key_head_axis, key_axis)) = (given.axes(4), given.axes(k.len()));
        let (heads, queries, key_heads, keys) = (q[head_axis], q[token_axis], k[key_head_axis], k[key_axis]);
        given.agree("heads", &mut self.heads, Some(heads))?;
        agree("key_value_heads", true, self.key_value_heads.get_or_insert(key_heads), Some(key_heads))?;
        if !heads.is_multiple_of(key_heads) {
            let expected = format!("a number of heads that divides that of q, {heads}");
            return Err(Error::shape(key_name, k, expected));
        }
        if shares_queries && keys != queries {
            let expected = format!("{queries} tokens, as q: with support.kind = 'lsh' the queries are the keys");
            return Err(Error::shape(key_name, k, expected));
        }
        self.key_value_heads = self.key_value_heads.filter(|key_heads| *key_heads != heads);
        let value_width = given.axis("v", 4, 3).unwrap_or(q[3]);
        Ok(InputSizes { keys, value_width, ..InputSizes::new(given.layout, q[0], queries, heads, q[3]) })
    }

    fn fit_components(&mut self, given: &Given) -> Result<(), Error> {
        let k = given.shapes["k"];
        if given.shapes.contains_key("shift") && !(given.chosen)("keys.design") {
            self.keys.design = KeyDesign::Shifted;
        }
        let axis = |name: &str, axis: usize| given.shapes.get(name)?.get(axis).copied();
        let seen = match self.keys.design {
            KeyDesign::Projected if k.len() == 5 => Some(k[2]),
            KeyDesign::Projected => {
                let axes = if given.layout == Layout::HeadFirst { "[B,Hk,M,S,D]" } else { "[B,S,M,Hk,D]" };
                let expected = format!("{axes}, one key a component (or a tensor 'shift')");
                return Err(Error::shape("k", k, expected));
            }
            KeyDesign::Shifted => axis("shift", 1).or_else(|| axis("log_prior", 1)).or_else(|| axis("variance", 0)),
        };
        given.agree("keys.components", &mut self.keys.components, seen)?;
        if seen.is_none() && self.keys.components > MOST_COMPONENTS {
            let expected = format!("at most {MOST_COMPONENTS}");
            return Err(Error::option("keys.components", self.keys.components, expected));
        }
        Ok(())
    }

    fn fit_hashes(&mut self, given: &Given) -> Result<(), Error> {
        let support = &mut self.support;
        let rounds = match support.kind {
            SupportKind::Smyrf => given.axis("directions", 2, 0),
            SupportKind::Lsh => given.axis("rotations", 3, 0),
            _ => None,
        };
        given.agree("support.rounds", &mut support.rounds, rounds)?;
        if let (SupportKind::Lsh, Some(half)) = (support.kind, given.axis("rotations", 3, 2)) {
            let values = 2 * half;
            agree("support.hash_values", true, support.hash_values.get_or_insert(values), Some(values))?;
        }
        Ok(())
    }
}
