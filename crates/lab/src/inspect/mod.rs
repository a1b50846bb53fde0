//! Analysis of the attention of a trained model.
//!
//! A forward pass records its attention in a log ([`AttentionLog`](regard_nn::attention::AttentionLog)); everything
//! here reads only those records. So any model with layers built from [`Attention`](regard_nn::attention::Attention)
//! can be inspected, and any mechanism whose operator provides its [weights](regard_kernels::Operator::weights).
//!
//! Rows of attention are computed on demand, one query at a time for all heads, in float64 from the mechanism's twin. A
//! full matrix exists only while its singular values are computed, and as an image.

mod attended;
mod entropy;
mod experts;
mod likelihood;
mod parameters;
mod pictures;
mod rank;
mod redundancy;
mod report;
mod sequences;
mod survey;
#[cfg(test)]
mod tests;

pub use attended::{Attended, place_name};
pub use entropy::Entropy;
pub use experts::{Experts, Load, Preference, Router, Tally, Wanted, routers, token_texts};
pub use likelihood::Likelihood;
pub use parameters::{HeadParameters, KeyProjection, key_projections};
pub use rank::{MatrixRank, RANK_TOLERANCE};
pub use redundancy::Redundancy;
pub use report::Inspection;
pub use sequences::Recording;
pub use survey::{Attention, Part, Plan, Survey, SurveyError, survey};
