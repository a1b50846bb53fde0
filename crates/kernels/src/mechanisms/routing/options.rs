//! Options of the mixture of attention heads.

use serde::{Deserialize, Serialize};

use super::RouterCoefficients;
use crate::Error;

/// `moa.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MoaOptions {
    /// Experts `E`: pairs of a query and an output projection to choose from.
    pub experts: usize,
    /// Experts per token, `k`.
    pub active: usize,
    /// Head width; default: model width divided by `active`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_width: Option<usize>,
    /// Weights of the chosen experts' outputs.
    pub gates: GateKind,
    /// Initial weights of the router.
    pub router: RouterStart,
    /// Standard deviation of the Gaussian noise on the router logits, in training only (Shazeer et al. 2017, section
    /// 2.1, with a fixed deviation).
    pub noise: f64,
    /// How many of the `active` experts of a token are sampled by their probabilities, without replacement, after the
    /// others are chosen; in training only.
    pub sampled: usize,
    /// Coefficient `alpha` of the balance loss.
    pub balance: f64,
    /// Coefficient `beta` of the router's z-loss.
    pub z: f64,
    /// Coefficient of the squared coefficient of variation of the experts' importance.
    pub cv: f64,
    /// What the router losses are added to.
    pub losses: LossScale,
}

impl Default for MoaOptions {
    fn default() -> Self {
        Self {
            experts: 8,
            active: 2,
            head_width: None,
            gates: GateKind::default(),
            router: RouterStart::default(),
            noise: 0.0,
            sampled: 0,
            balance: 0.01,
            z: 0.001,
            cv: 0.0,
            losses: LossScale::default(),
        }
    }
}

/// `moa.gates`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateKind {
    /// The probability divided by the sum over the chosen experts, without a gradient through the sum (arXiv
    /// 2210.05144, equation 5).
    #[default]
    Paper,
    /// The raw probability, as in the released code.
    Released,
}

/// `moa.router`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouterStart {
    /// Small Gaussian values.
    #[default]
    Normal,
    /// Zeros, as in the released code: at first every token takes the first experts.
    Released,
}

/// `moa.losses`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossScale {
    /// The mean loss per token.
    #[default]
    Mean,
    /// The sum of the losses over all tokens, as in the released training code: relative to the mean their weight falls
    /// with the batch size.
    Released,
}

impl MoaOptions {
    /// Coefficients of the losses for a batch of `tokens` real queries.
    pub fn coefficients(&self, tokens: usize) -> RouterCoefficients {
        let scale = match self.losses {
            LossScale::Mean => 1.0,
            LossScale::Released => 1.0 / tokens.max(1) as f64,
        };
        RouterCoefficients { balance: self.balance, z: self.z, cv: self.cv }.scaled(scale)
    }

    /// # Errors
    /// A size of 0, more active experts than experts, or a number out of range.
    pub fn check(&self) -> Result<(), Error> {
        let Self { experts, active, .. } = *self;
        if experts == 0 || experts > MOST_EXPERTS {
            return Err(Error::option("moa.experts", experts, format!("at least 1 and at most {MOST_EXPERTS}")));
        }
        if active == 0 || active > experts {
            return Err(Error::option("moa.active", active, format!("at least 1 and at most moa.experts ({experts})")));
        }
        if self.head_width == Some(0) {
            return Err(Error::option("moa.head_width", 0, "at least 1"));
        }
        if self.sampled > active {
            return Err(Error::option("moa.sampled", self.sampled, format!("at most moa.active ({active})")));
        }
        let numbers = [("noise", self.noise), ("balance", self.balance), ("z", self.z), ("cv", self.cv)];
        match numbers.into_iter().find(|(_, number)| !(number.is_finite() && *number >= 0.0)) {
            Some((name, number)) => Err(Error::option(format!("moa.{name}"), number, "at least 0")),
            None => Ok(()),
        }
    }
}

/// Far more than any model has, and few enough that the router matrix fits into memory.
const MOST_EXPERTS: usize = 1 << 16;
