//! What is measured about attention: cost, comparisons, reports.
