//! Every figure and table of the five papers, with the entries that reproduce it or the reason why none does.

use super::Paper;

/// A figure, table or theorem of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The paper.
    pub paper: Paper,
    /// As the paper numbers it: "figure 2, left", "table 6", "theorem 1".
    pub place: &'static str,
    /// What it shows, in a few words.
    pub shows: &'static str,
    /// What became of it here.
    pub here: Here,
}

/// What became of an item.
#[derive(Clone, Copy, Debug)]
pub enum Here {
    /// Entries that measure it.
    Entries(&'static [&'static str]),
    /// It cannot be run here, or not yet.
    Not {
        /// Why.
        reason: &'static str,
        /// The preset that would run it elsewhere, if there is one.
        preset: Option<&'static str>,
    },
    /// It shows nothing to measure, such as a drawing of the architecture.
    Drawing,
}

/// All items: paper by paper, each in the order of its text.
pub const CATALOGUE: &[Item] = &[
    // Transformer with a mixture of Gaussian keys. Its numbering is that of the ICML version.
    mgk("theorem 1", "a mixture of few Gaussians of one variance comes near any density", of(&["mgk-theorem"])),
    mgk("table 1", "Long Range Arena: MGK and softmax by number of heads", of(&["mgk-half-heads"])),
    mgk("table 2", "Long Range Arena: MLK and linear attention by number of heads", of(&["mgk-linear"])),
    mgk("figure 1", "retrieval: curves of loss and accuracy", not(RETRIEVAL, "lra-retrieval")),
    mgk("table 3, softmax and MGK", "WikiText-103: perplexity by number of heads", of(&["mgk-language"])),
    mgk("table 3, linear and MLK", "the same", WIKITEXT_MGK),
    mgk("section 3.2, medium model", "WikiText-103: perplexity of a larger model", WIKITEXT_MGK),
    mgk("table 4", "translation: BLEU with half the heads", of(&["mgk-translation"])),
    mgk("section 3.4, likelihood", "likelihood of queries under the keys of two models", of(&["mgk-likelihood"])),
    mgk("section 3.4, variances", "translation: BLEU by the variance of the second key", of(&["mgk-variance"])),
    mgk("figure 2, left", "retrieval: attention matrices of softmax and MGK", of(&["mgk-redundancy"])),
    mgk("figure 2, right", "retrieval: ranks of attention matrices", of(&["mgk-rank"])),
    mgk("table 5", "accuracy with soft and hard assignment and fitted priors", of(&["mgk-inference"])),
    mgk("figure 3", "language model: operations and parameters by width and length, MGK", of(&["mgk-costs"])),
    mgk("figure 4", "retrieval model: operations and parameters by number of heads", of(&["mgk-costs"])),
    mgk("figure 5", "WikiText-103: perplexity during training", WIKITEXT_MGK),
    mgk("figure 6", "WikiText-103: attention matrices of softmax and MGK", of(&["mgk-redundancy"])),
    mgk("figure 7", "WikiText-103: ranks of attention matrices", of(&["mgk-rank"])),
    mgk("figure 8", "operations and parameters with soft and hard assignment and fitted priors", of(&["mgk-costs"])),
    mgk("figure 9", "retrieval: attention matrices of linear attention and MLK", of(&["mgk-redundancy"])),
    mgk("table 6", "retrieval: mixture of keys, Gaussian kernel and shifted keys, one by one", of(&["mgk-ablation"])),
    mgk("figure 10", "language model: operations and parameters by width and length, MLK", of(&["mgk-costs"])),
    mgk("table 7", "time and memory with half the heads", of(&["mgk-efficiency"])),
    mgk("table 8", "priors that a model with one head has learned", of(&["mgk-priors"])),
    mgk("figure 11", "retrieval: the curves of figure 1 to their end", not(RETRIEVAL, "lra-retrieval")),
    mgk("figure 12", "WikiText-103: the curves of figure 5 to their end", WIKITEXT_MGK),
    mgk("figure 13", "projections of keys with one and two heads", KEYS),
    mgk("figure 14", "keys with one and two heads", KEYS),
    mgk("figure 15", "retrieval model: operations of an update by number of heads", of(&["mgk-costs"])),
    mgk("figure 16", "operations of an update with soft and hard assignment and fitted priors", of(&["mgk-costs"])),
    mgk("table 9", "retrieval: 6 heads of mixtures against 12", not(RETRIEVAL, "lra-retrieval")),
    mgk("table 10", "WikiText-103: mixture of keys, keys and values shared by heads", of(&["mgk-language"])),
    mgk("appendix B", "operations and parameters of a layer in closed form", of(&["mgk-operations"])),
    // Scatterbrain.
    scatterbrain("figure 1, left", "oracles by entropy of the matrix", of(&["scatterbrain-trained"])),
    scatterbrain("figure 1, right", "the computation", Here::Drawing),
    scatterbrain("figure 2", "clusters of the generative process", Here::Drawing),
    scatterbrain("theorem 1", "which approximation suffices at which temperature", of(&["scatterbrain-regimes"])),
    scatterbrain("figure 3", "methods placed by accuracy and cost", Here::Drawing),
    scatterbrain("theorem 2", "mean and variance of the estimate of one entry", of(&["scatterbrain-entries"])),
    scatterbrain("figure 4", "error of entries by their size", of(&["scatterbrain-entries"])),
    scatterbrain("figure 5, first panel", "BigGAN: error beside robust PCA", of(&["scatterbrain-oracle"])),
    scatterbrain("figure 5, second panel", "BigGAN: error by entropy", of(&["scatterbrain-estimators"])),
    scatterbrain("figure 5, other panels", "BigGAN: scores of images by budget", not_here(IMAGES)),
    scatterbrain(
        "table 1",
        "vision transformer: attention replaced",
        of(&["scatterbrain-replaced", "swap-vit-replaced"]),
    ),
    scatterbrain("table 2, copying", "perplexity of copying at a budget of 1/8", of(&["scatterbrain-copying"])),
    scatterbrain("table 2, WikiText-103", "perplexity at a budget of 1/8", WIKITEXT),
    scatterbrain("table 2, Long Range Arena", "accuracy at a budget of 1/8", of(&["scatterbrain-arena"])),
    scatterbrain("figure 6", "time and memory by length", of(&["scatterbrain-efficiency"])),
    scatterbrain("table 3", "correlation of sparse and low-rank errors", of(&["scatterbrain-correlation"])),
    scatterbrain("figure 7, left", "sparse error against low-rank error", of(&["scatterbrain-correlation"])),
    scatterbrain("figure 7, right", "errors of oracles by entropy", of(&["scatterbrain-trained"])),
    scatterbrain("theorem 3", "sparse and low-rank together need fewer parameters", of(&["scatterbrain-separation"])),
    scatterbrain("theorem 4", "the same with linearly many parameters", of(&["scatterbrain-separation"])),
    scatterbrain("lemmas 5 to 9", "classes of matrices, eigenvalues and polynomials", not_here(PROOF)),
    scatterbrain("table 4, copying", "table 2 with deviations over runs", of(&["scatterbrain-copying"])),
    scatterbrain("table 4, WikiText-103", "the same", WIKITEXT),
    scatterbrain("table 4, Long Range Arena", "the same", of(&["scatterbrain-arena"])),
    scatterbrain("figure 8", "error by entropy in trained models", of(&["scatterbrain-training-errors"])),
    scatterbrain("table 5", "WikiText-103: perplexity and speed at three budgets", WIKITEXT),
    scatterbrain("table 6", "vision transformer: other supports", of(&["scatterbrain-replaced", "swap-vit-replaced"])),
    scatterbrain("table 7, copying", "perplexity of copying with a window", of(&["scatterbrain-copying"])),
    scatterbrain("table 7, WikiText-103", "perplexity with a window", WIKITEXT),
    scatterbrain("table 8", "BERT fine-tuned on GLUE with other attention", not_here(GLUE)),
    // Mixture of attention heads.
    moa("figure 1", "the idea", Here::Drawing),
    moa("figure 2", "the architecture", Here::Drawing),
    moa("equations 18 to 20", "operations and parameters of a layer beside plain heads", of(&["moa-complexity"])),
    moa("table 1, BLEU", "WMT 2014: BLEU of translators", of(&["moa-translation"])),
    moa("table 1, English to French, and large models", "the same", not(BIG, "translation")),
    moa("table 1, multiply-adds", "multiply-adds of translators", of(&["moa-operations"])),
    moa("table 2", "WikiText-103: perplexity of masked language models", of(&["moa-masked"])),
    moa("table 3, perplexity", "effect of active experts, experts and head width", of(&["moa-sizes"])),
    moa("table 3, BLEU", "the same", not(WMT, "translation")),
    moa("table 3, multiply-adds", "multiply-adds of these translators", of(&["moa-operations"])),
    moa("figure 3", "loads of the experts of one layer", of(&["moa-loads"])),
    moa("table 4", "tokens that each expert prefers", of(&["moa-specialised"])),
    moa("figure 4", "loads of the experts of other layers", of(&["moa-loads"])),
    moa("appendix B", "fewer parameters than plain heads of the same total width", of(&["moa-complexity"])),
    moa("table 5", "it is not in the text at hand", Here::Drawing),
    moa("table 6", "settings of training", Here::Drawing),
    moa("table 7", "score with each loss of the router", of(&["moa-losses"])),
    // Fastformer.
    fastformer("figure 1", "the architecture", Here::Drawing),
    fastformer("figure 2", "it is not in the text at hand", Here::Drawing),
    fastformer("complexity", "linear time and memory, parameters with sharing", of(&["fastformer-complexity"])),
    fastformer("tables, topics", "accuracy on news", of(&["fastformer-topics"])),
    fastformer("tables, sentiment", "accuracy on reviews", of(&["fastformer-sentiment"])),
    fastformer("tables, recommendation", "ranking of news", not(MIND, "mind")),
    fastformer("tables, summaries", "ROUGE of summaries of news and articles", not(SUMMARIES, "fastformer-summary")),
    fastformer("figure 3", "interaction of global and local vectors", of(&["fastformer-interaction"])),
    fastformer("figure 4", "sharing of parameters", of(&["fastformer-sharing"])),
    // Decoders without positional embeddings.
    nope("figure 1", "the architecture", Here::Drawing),
    nope("figure 2", "error of a classifier of positions by depth", of(&["nope-probe"])),
    nope("lemma 1", "variance of queries, keys and values", of(&["nope-lemmas"])),
    nope("lemma 2", "variance of scores", of(&["nope-products"])),
    nope("property 1", "attention is nearly even if weights are small", of(&["nope-deviations"])),
    nope("figure 3", "attention is nearly even before training", of(&["nope-deviations"])),
    nope("lemma 3", "variance of the output falls as one over the position", of(&["nope-variance"])),
    nope("figure 4", "the same, simulated", of(&["nope-variance"])),
    nope("section 3.4", "variance after the residual", of(&["nope-variance"])),
    nope("lemma 4", "variance of each channel after the norm", of(&["nope-lemmas"])),
    nope("figure 5", "the same for other deviations of weights", of(&["nope-deviations"])),
    nope("section 3.5", "the same for other distributions of weights", of(&["nope-initialisations"])),
    nope("section 4, lower layers", "lower layers tell positions worse", of(&["nope-probe"])),
    nope("section 4, later tokens", "later positions are harder to tell", of(&["nope-probe"])),
    nope("section 4, both ways", "without a causal mask the variance is the same everywhere", of(&["nope-variance"])),
    nope("section 4, masked models", "masked models need positions, causal ones do not", of(&["nope-masked"])),
    nope("figure 6", "trained decoder: attention of the lowest layer is nearly even", of(&["nope-trained"])),
    nope("figure 7", "trained decoder: variance by position", of(&["nope-trained"])),
    nope("table 1", "setting of the trained decoder", Here::Drawing),
];

const WIKITEXT: Here = not(WORDS, "wikitext103-scatterbrain");
const WIKITEXT_MGK: Here = not(WORDS, "wikitext103-mgk");
const WORDS: &str = "not done: the training set of WikiText-103 is not at hand, and takes GPUs; characters stand for it in other entries";
const KEYS: Here = not_here("pictures without a claim; `regard inspect --what keys` draws them of any run");
const RETRIEVAL: &str = "not done: the articles of AAN are not at hand, and 30,000 updates of pairs of 4,000 bytes are days on two cores; short \
                         expressions stand for them in other entries";
const IMAGES: &str = "it needs BigGAN and ImageNet";
const PROOF: &str = "steps of the proof of theorem 1";
const GLUE: &str = "it needs BERT base and the nine tasks of GLUE, of which one and a part of another are at hand";
const WMT: &str = "not done: seven translators of several seeds each are a day on two cores; the perplexity by sizes is that of masked models";
const BIG: &str =
    "it needs the pairs of WMT 2014 and many GPUs; moa-translation has a choice of experts beside the same plain heads";
const MIND: &str = "it needs the MIND set, which is not at hand";
const SUMMARIES: &str = "it needs CNN/DailyMail and PubMed, which are not at hand";

const fn of(entries: &'static [&'static str]) -> Here {
    Here::Entries(entries)
}

const fn not(reason: &'static str, preset: &'static str) -> Here {
    Here::Not { reason, preset: Some(preset) }
}

const fn not_here(reason: &'static str) -> Here {
    Here::Not { reason, preset: None }
}

const fn mgk(place: &'static str, shows: &'static str, here: Here) -> Item {
    Item { paper: Paper::Mgk, place, shows, here }
}

const fn scatterbrain(place: &'static str, shows: &'static str, here: Here) -> Item {
    Item { paper: Paper::Scatterbrain, place, shows, here }
}

const fn moa(place: &'static str, shows: &'static str, here: Here) -> Item {
    Item { paper: Paper::Moa, place, shows, here }
}

const fn fastformer(place: &'static str, shows: &'static str, here: Here) -> Item {
    Item { paper: Paper::Fastformer, place, shows, here }
}

const fn nope(place: &'static str, shows: &'static str, here: Here) -> Item {
    Item { paper: Paper::Nope, place, shows, here }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use regard_tasks::run::PRESETS;

    use super::*;
    use crate::reproduce::{ENTRIES, find};

    /// Items with the names of their entries.
    fn named() -> impl Iterator<Item = (&'static Item, &'static str)> {
        CATALOGUE.iter().flat_map(|item| {
            let names = if let Here::Entries(names) = item.here { names } else { &[] };
            names.iter().map(move |name| (item, *name))
        })
    }

    #[test]
    fn items_name_entries_of_their_paper() {
        for (item, name) in named() {
            let entry = find(name).unwrap_or_else(|| panic!("{}, {}: no entry {name}", item.paper, item.place));
            assert_eq!(entry.paper, item.paper, "{name} at {}", item.place);
        }
        let empty = CATALOGUE.iter().find(|item| matches!(item.here, Here::Entries([])));
        assert!(empty.is_none(), "an item without an entry needs a reason: {empty:?}");
    }

    #[test]
    fn every_entry_is_named_unless_it_goes_beyond_its_paper() {
        let names: BTreeSet<&str> = named().map(|(_, name)| name).collect();
        for entry in ENTRIES {
            let beyond = entry.figures.starts_with("beyond the paper");
            assert_ne!(names.contains(entry.name), beyond, "{}: {}", entry.name, entry.figures);
        }
    }

    #[test]
    fn reasons_are_given_and_presets_exist() {
        for item in CATALOGUE {
            if let Here::Not { reason, preset } = item.here {
                assert!(!reason.is_empty(), "{}", item.place);
                let known = |wanted: &str| PRESETS.iter().any(|(name, ..)| *name == wanted);
                assert!(preset.is_none_or(known), "{}: {preset:?}", item.place);
            }
        }
    }

    #[test]
    fn papers_follow_each_other_and_places_are_distinct() {
        assert!(CATALOGUE.is_sorted_by_key(|item| item.paper));
        let places: BTreeSet<(Paper, &str)> = CATALOGUE.iter().map(|item| (item.paper, item.place)).collect();
        assert_eq!(places.len(), CATALOGUE.len());
        let papers: BTreeSet<Paper> = CATALOGUE.iter().map(|item| item.paper).collect();
        assert_eq!(papers.len(), 5);
    }
}
