//! Data sets: generators, readers, the cache of generated sets, and batches.
//!
//! A [`TaskConfig`] describes a task; [`TaskConfig::load`] loads its [`TaskData`]. The items of batch `t` are a pure
//! function of the data, the seed and `t`, so a resumed run only needs its step.

mod batch;
mod cache;
mod char_lm;
mod classification;
mod config;
mod copy;
mod cut;
mod error;
mod file;
mod image;
pub mod listops;
mod lm;
mod masked_lm;
mod news;
mod order;
pub mod pathfinder;
mod plain_text;
mod retrieval;
mod sentences;
mod sequences;
mod stream;
mod summary;
mod task;
mod text;
mod text_blocks;
pub mod tokenizer;
mod translation;

pub use self::{
    batch::{BatchOptions, ClassificationBatch, TrainBatches, evaluation_batches},
    cache::load_listops,
    char_lm::{CharLmConfig, LanguageBatch, LanguageData, Vocabulary},
    classification::ClassificationData,
    config::{TaskConfig, TaskName},
    copy::{CopyConfig, CopyData},
    error::DataError,
    image::ImageConfig,
    listops::ListOpsConfig,
    lm::{
        Batching, Counts, FileSum, LmConfig, LmData, PrepareError, Prepared, RowReader, SourceFile, TextUnits,
        TokenIds, TokenKind, VOCABULARY, WordVocabulary, is_wikitext, prepare,
    },
    masked_lm::{MaskedBatch, MaskedBatches, MaskedData, MaskedLmConfig, Windows},
    news::{CLICK, GeneratedNews, Impression, ImpressionLog, ImpressionPart, NewsConfig, NewsData},
    pathfinder::PathfinderConfig,
    plain_text::{TextLines, read_text},
    retrieval::{DocumentPairs, PairData, RetrievalConfig, RetrievalFormat},
    sequences::{Sequences, Symbol},
    stream::Streams,
    summary::{References, SummaryConfig, SummaryData},
    task::{
        Batch, Batches, Held, Objective, Shape, Split, SplitBatches, Task, TaskData, TaskOptions, TextExtent, evenly,
        score_target, split_batches, target_score,
    },
    text::{
        Column, Columns, Encoded, FORMATS, InputOptions, Target, TextConfig, TextData, TextEncoder, TextFormat,
        TextInput, TextPart,
    },
    tokenizer::TextTokenizer,
    translation::{SentencePairs, TranslationBatch, TranslationBatches, TranslationConfig, TranslationData},
};
pub(crate) use news::{NewsRows, check_rows as check_impressions, histories as news_histories, titles as news_titles};
pub(crate) use summary::with_query;
pub(crate) use task::padded;
pub(crate) use text::expressions;

/// Token ids of pixels: grey values.
pub(crate) const GREYS: usize = 256;

/// Loading progress: parts done and their total, in a task-specific unit (trees, bytes).
pub type Progress<'a> = &'a dyn Fn(u64, u64);
