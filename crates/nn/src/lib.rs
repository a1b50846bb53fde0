//! Attention layers, transformer blocks and models on Burn.
