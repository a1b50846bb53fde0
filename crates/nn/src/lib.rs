//! Attention layers, transformer blocks and models on Burn.

pub mod ops;
