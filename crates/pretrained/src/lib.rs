//! Hugging Face model folders: what a model is made of, its weights under one set of names, its tokenizer.
//!
//! [`Folder::open`] reads `config.json` into an [`Architecture`] that all families share, maps the weights into memory and checks
//! that every tensor has a place. [`Folder::load`] then gives one [`Parameter`] after the other under the names below, and
//! [`Folder::save`] writes the folder back, byte for byte where nothing changed. [`Tokenizer`] cuts texts, puts them together
//! again token by token, and renders conversations.
//!
//! BERT (MiniLM), RoBERTa, ALBERT, GPT-2, Llama (SmolLM2), ViT and DINOv2 are read. Weights are f32, f16 or bf16 in safetensors.
//!
//! # Names
//!
//! Matrices are `[in, out]` and are applied as `x W`.
//!
//! | name | shape | |
//! |---|---|---|
//! | `token_embedding` | `[vocabulary, e]` | `e` is `embedding_width` |
//! | `token_type_embedding` | `[token_types, e]` | |
//! | `position_embedding` | `[rows, e]` | with the rows before `offset` |
//! | `w_patch`, `b_patch` | `[channels * patch * patch, d]`, `[d]` | `d` is `width` |
//! | `class_token` | `[1, d]` | |
//! | `norm_embedding.{weight,bias}` | `[e]` | |
//! | `w_embedding`, `b_embedding` | `[e, d]`, `[d]` | ALBERT |
//! | `layers.I.norm_1.{weight,bias}` | `[d]` | before the attention, or after it (`NormPlace::Post`) |
//! | `layers.I.attention.{w_q,w_k,w_v,w_o}` | `[d, heads * head_width]`, ... | biases `b_q`, `b_k`, `b_v`, `b_o` |
//! | `layers.I.scale_1`, `scale_2` | `[d]` | layer scale of attention and feed-forward part |
//! | `layers.I.norm_2.{weight,bias}` | `[d]` | before the feed-forward part, or after it |
//! | `layers.I.ff.{w_1,w_gate,w_2}` | `[d, feed_forward]`, `w_2` `[feed_forward, d]` | biases `b_1`, `b_gate`, `b_2` |
//! | `norm_f.{weight,bias}` | `[d]` | |
//! | `pooler.{w,b}` | `[d, d]`, `[d]` | |
//! | `transform.{w,b}`, `norm_transform.{weight,bias}` | `[d, e]`, `[e]` | of the head for hidden tokens |
//! | `head`, `b_head` | `[d, vocabulary]` or `[d, classes]` | no `head` where it is tied to `token_embedding` |

mod architecture;
mod error;
mod folder;
mod generation;
#[cfg(feature = "hub")]
mod hub;
mod keys;
mod mapping;
mod model;
mod plan;
pub mod run;
mod save;
mod shards;
mod tokenizer;

pub use self::{
    architecture::{
        Activation, Architecture, Biases, Family, Features, Head, Norm, NormKind, NormPlace, Patch, Position,
        RotaryScaling,
    },
    error::{ConfigProblem, PretrainedError, TensorProblem},
    folder::{Folder, HUB, Parameter},
    generation::Generation,
    mapping::{Entry, How, mapping},
    model::{LoadOptions, Model, Pretrained},
    plan::{Plan, PlanGroup},
    shards::Element,
    tokenizer::{Encoded, Message, SpecialTokens, TokenStream, Tokenizer},
};

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
