//! Data sets, metrics and the training loop.
