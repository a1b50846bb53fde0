//! Parts shared by several mechanisms: tiled exact attention, its dropout, where distances are measured from, caches for decoding.

pub(crate) mod cache;
pub(crate) mod centred;
pub(crate) mod deltas;
mod dropout;
pub(crate) mod scaled;
pub mod stored;
pub(crate) mod tiled;

pub use dropout::Dropout;
pub use scaled::ScaledSums;
