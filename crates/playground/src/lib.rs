//! What the web page in `docs/playground` computes: a small Llama reads and writes text, and the attention of any of its
//! heads is shown beside that of another mechanism with the same queries, keys and values.
//!
//! Everything goes through [`Playground::answer`], one request in JSON at a time, so that a browser needs no bindings:
//! [`exports`] is five functions on numbers. Computation is that of `regard-kernels`.

mod compare;
pub mod exports;
mod model;
mod session;
mod tokenizer;
mod writer;

pub use compare::{Comparison, Head};
pub use model::{Model, Reading};
pub use session::{Answer, Playground};
pub use tokenizer::Tokenizer;
pub use writer::Writer;
