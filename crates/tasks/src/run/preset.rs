//! Named configurations.

/// Name, summary, and text of each preset.
pub const PRESETS: &[(&str, &str, &str)] = &[
    (
        "quick",
        "seven mechanisms on short ListOps expressions, about five minutes on 2 cores",
        include_str!("../../configs/quick.toml"),
    ),
    ("smoke", "the same in seconds, to see that everything works", include_str!("../../configs/smoke.toml")),
    (
        "lra-listops",
        "Long Range Arena ListOps: expressions of 500 to 2000 tokens",
        include_str!("../../configs/lra-listops.toml"),
    ),
    (
        "lra-text",
        "Long Range Arena text: reviews read byte by byte, 4000 long",
        include_str!("../../configs/lra-text.toml"),
    ),
    (
        "ag-news",
        "topics of news by words: Fastformer and others in its paper's setting",
        include_str!("../../configs/ag-news.toml"),
    ),
    ("sst2", "sentiment of sentences by words: SST-2 of GLUE", include_str!("../../configs/sst2.toml")),
    ("imdb", "reviews of films by words, good or bad", include_str!("../../configs/imdb.toml")),
    (
        "imdb-10",
        "stars of reviews by words, 1 to 10, with a model of the Fastformer paper's size",
        include_str!("../../configs/imdb-10.toml"),
    ),
    (
        "glue",
        "a task of GLUE by its folder: sentences or pairs, labels or scores",
        include_str!("../../configs/glue.toml"),
    ),
    (
        "lra-retrieval",
        "Long Range Arena retrieval: do two documents belong together, byte by byte, 4000 long each",
        include_str!("../../configs/lra-retrieval.toml"),
    ),
    (
        "lra-image",
        "Long Range Arena image: CIFAR-10 in grey, pixel by pixel",
        include_str!("../../configs/lra-image.toml"),
    ),
    (
        "lra-pathfinder",
        "Long Range Arena Pathfinder: does a dashed contour join two discs, pixel by pixel",
        include_str!("../../configs/lra-pathfinder.toml"),
    ),
    (
        "copy",
        "0 w 0 w with exact attention and four mechanisms at a budget of 1/8",
        include_str!("../../configs/copy.toml"),
    ),
    (
        "copy-budget",
        "a copier trained by 'copy' goes on with other attention at a budget of 1/8",
        include_str!("../../configs/copy-budget.toml"),
    ),
    (
        "translation",
        "English to German on the pairs of Multi30k, about 20 minutes on 2 cores",
        include_str!("../../configs/translation.toml"),
    ),
    (
        "scitldr",
        "one-sentence summaries of abstracts (SciTLDR), minutes on 2 cores",
        include_str!("../../configs/scitldr.toml"),
    ),
    (
        "fastformer-summary",
        "summaries of news: Fastformer in the encoder, in its paper's setting as far as it is known",
        include_str!("../../configs/fastformer-summary.toml"),
    ),
    ("mlm", "masked language model on byte pairs of Shakespeare", include_str!("../../configs/mlm.toml")),
    (
        "austen",
        "language model of subwords of Jane Austen's novels, about an hour on 2 cores",
        include_str!("../../configs/austen.toml"),
    ),
    (
        "wikitext103-mgk",
        "words of WikiText-103, as in the paper on mixtures of Gaussian keys",
        include_str!("../../configs/wikitext103-mgk.toml"),
    ),
    (
        "wikitext103-scatterbrain",
        "words of WikiText-103, as in the Scatterbrain paper",
        include_str!("../../configs/wikitext103-scatterbrain.toml"),
    ),
    (
        "news",
        "news recommendation on a generated log whose best scores are known, about a minute on 2 cores",
        include_str!("../../configs/news.toml"),
    ),
    (
        "mind",
        "news recommendation on MIND, in the setting of the Fastformer paper",
        include_str!("../../configs/mind.toml"),
    ),
    ("char-lm", "character language model on Shakespeare", include_str!("../../configs/char-lm.toml")),
];

/// Text of the preset with this name.
pub fn find(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(preset, ..)| *preset == name).map(|(.., text)| *text)
}
