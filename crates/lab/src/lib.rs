//! What is measured about attention: cost, comparisons, reports.

pub mod cost;
pub mod report;
