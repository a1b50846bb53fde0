//! Attention layers, transformer blocks and models on Burn.

pub mod attention;
pub mod blocks;
pub mod models;
pub mod ops;
