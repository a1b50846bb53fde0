//! Fused element-wise operations.
