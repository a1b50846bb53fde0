//! The sets, where they come from, and what is published of them.
//!
//! Checksums are those that TensorFlow Datasets and CorpusLoaders.jl publish for the same addresses.

/// A public data set.
#[derive(Clone, Copy, Debug)]
pub struct Dataset {
    /// Its name on the command line and of its folder.
    pub name: &'static str,
    /// What it is, and its authors.
    pub about: &'static str,
    /// Its licence, as far as there is one.
    pub licence: &'static str,
    /// Tasks that read it as it is; the others need its texts in another form, such as one row of a TSV file each.
    pub tasks: &'static [&'static str],
    /// Its files; none where it has to be brought by hand.
    pub downloads: &'static [Download],
    /// Where it is to be had, if it has to be brought by hand.
    pub by_hand: &'static str,
}

/// A file of a set.
#[derive(Clone, Copy, Debug)]
pub struct Download {
    /// Its name.
    pub name: &'static str,
    /// Where it is, the first address first.
    pub urls: &'static [&'static str],
    /// Its size in bytes, if published.
    pub bytes: Option<u64>,
    /// Its SHA-256 in hexadecimal digits.
    pub sha256: &'static str,
}

/// The set of this name.
pub fn find(name: &str) -> Option<&'static Dataset> {
    CATALOGUE.iter().find(|set| set.name == name)
}

const fn file(name: &'static str, urls: &'static [&'static str], bytes: Option<u64>, sha256: &'static str) -> Download {
    Download { name, urls, bytes, sha256 }
}

const fn set(
    name: &'static str,
    about: &'static str,
    licence: &'static str,
    tasks: &'static [&'static str],
    downloads: &'static [Download],
) -> Dataset {
    Dataset { name, about, licence, tasks, downloads, by_hand: "" }
}

const fn by_hand(
    name: &'static str,
    about: &'static str,
    licence: &'static str,
    tasks: &'static [&'static str],
    by_hand: &'static str,
) -> Dataset {
    Dataset { name, about, licence, tasks, downloads: &[], by_hand }
}

const NONE_STATED: &str = "none stated; the authors ask to be cited";

/// Every set, those that can be fetched first.
pub const CATALOGUE: &[Dataset] = &[
    set(
        "wikitext-103",
        "good and featured articles of Wikipedia as words, 103 million (Merity et al. 2016)",
        "CC BY-SA 3.0",
        &["lm"],
        &[file(
            "wikitext-103-v1.zip",
            &[
                "https://wikitext.smerity.com/wikitext-103-v1.zip",
                "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
            ],
            None,
            "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        )],
    ),
    set(
        "wikitext-103-raw",
        "the same articles as text",
        "CC BY-SA 3.0",
        &["lm", "masked-lm"],
        &[file(
            "wikitext-103-raw-v1.zip",
            &[
                "https://wikitext.smerity.com/wikitext-103-raw-v1.zip",
                "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-raw-v1.zip",
            ],
            Some(191_984_949),
            "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
        )],
    ),
    set(
        "wikitext-2",
        "good articles of Wikipedia as words, 2 million (Merity et al. 2016)",
        "CC BY-SA 3.0",
        &["lm"],
        &[file(
            "wikitext-2-v1.zip",
            &[
                "https://wikitext.smerity.com/wikitext-2-v1.zip",
                "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip",
            ],
            None,
            "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        )],
    ),
    set(
        "tinyshakespeare",
        "40,000 lines of Shakespeare (Karpathy 2015); embedded in the program too",
        "public domain",
        &["char-lm", "lm", "masked-lm"],
        &[file(
            "input.txt",
            &["https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"],
            Some(1_115_394),
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        )],
    ),
    set(
        "imdb",
        "50,000 reviews of films with stars (Maas et al. 2011); Long Range Arena's Text",
        NONE_STATED,
        &["text"],
        &[file(
            "aclImdb_v1.tar.gz",
            &["https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"],
            Some(84_125_825),
            "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        )],
    ),
    set(
        "cifar10",
        "60,000 images of 32 x 32 pixels in ten classes (Krizhevsky 2009), binary; Long Range Arena's Image",
        NONE_STATED,
        &["image"],
        &[file(
            "cifar-10-binary.tar.gz",
            &["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"],
            Some(170_052_171),
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        )],
    ),
    set(
        "mnist",
        "70,000 handwritten digits of 28 x 28 pixels (LeCun et al. 1998)",
        "CC BY-SA 3.0",
        &["image"],
        &[
            file(
                "train-images-idx3-ubyte.gz",
                &["https://storage.googleapis.com/cvdf-datasets/mnist/train-images-idx3-ubyte.gz"],
                Some(9_912_422),
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            file(
                "train-labels-idx1-ubyte.gz",
                &["https://storage.googleapis.com/cvdf-datasets/mnist/train-labels-idx1-ubyte.gz"],
                Some(28_881),
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            file(
                "t10k-images-idx3-ubyte.gz",
                &["https://storage.googleapis.com/cvdf-datasets/mnist/t10k-images-idx3-ubyte.gz"],
                Some(1_648_877),
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            file(
                "t10k-labels-idx1-ubyte.gz",
                &["https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz"],
                Some(4_542),
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ],
    ),
    set(
        "ag-news",
        "127,600 news items in four topics (Zhang et al. 2015)",
        "research and other use that is not commercial",
        &["text"],
        &[file(
            "ag_news_csv.tar.gz",
            &["https://drive.google.com/uc?export=download&id=0Bz8a_Dbh9QhbUDNpeUdjb0wxRms"],
            Some(11_784_327),
            "4e2fc37d369e6e317a8b62d0d2f11d379f8c3dde60c07c35a46b069a246498ad",
        )],
    ),
    set(
        "glue-cola",
        "GLUE: is a sentence grammatical (Warstadt et al. 2018)",
        NONE_STATED,
        &["text"],
        &[file(
            "CoLA.zip",
            &["https://dl.fbaipublicfiles.com/glue/data/CoLA.zip"],
            Some(376_971),
            "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
        )],
    ),
    set(
        "glue-sst2",
        "GLUE: is a sentence of a film review positive (Socher et al. 2013)",
        NONE_STATED,
        &["text"],
        &[file(
            "SST-2.zip",
            &["https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"],
            Some(7_439_277),
            "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
        )],
    ),
    set(
        "glue-stsb",
        "GLUE: how alike are two sentences (Cer et al. 2017)",
        "CC BY-SA 4.0 for the scores; texts of several licences",
        &["text"],
        &[file(
            "STS-B.zip",
            &["https://dl.fbaipublicfiles.com/glue/data/STS-B.zip"],
            Some(802_872),
            "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85",
        )],
    ),
    set(
        "glue-rte",
        "GLUE: does one sentence follow from another",
        NONE_STATED,
        &["text"],
        &[file(
            "RTE.zip",
            &["https://dl.fbaipublicfiles.com/glue/data/RTE.zip"],
            Some(697_150),
            "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee",
        )],
    ),
    set(
        "glue-qnli",
        "GLUE: does a sentence answer a question (Rajpurkar et al. 2016)",
        "CC BY-SA 4.0",
        &["text"],
        &[file(
            "QNLIv2.zip",
            &["https://dl.fbaipublicfiles.com/glue/data/QNLIv2.zip"],
            Some(10_627_589),
            "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
        )],
    ),
    set(
        "glue-mnli",
        "GLUE: entailment between sentences of many genres (Williams et al. 2018)",
        "OANC, CC BY-SA 3.0, CC BY 3.0",
        &["text"],
        &[file(
            "MNLI.zip",
            &["https://dl.fbaipublicfiles.com/glue/data/MNLI.zip"],
            Some(312_783_507),
            "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
        )],
    ),
    by_hand(
        "lra",
        "Long Range Arena as released (Tay et al. 2021); ListOps and Pathfinder are generated here",
        "Apache-2.0; AAN's texts state none",
        &["retrieval"],
        "lra_release.gz (7.7 GB) at storage.googleapis.com/long-range-arena, which no longer answers everybody",
    ),
    by_hand(
        "mind",
        "impressions of news readers (Wu et al. 2020), small and large",
        "Microsoft Research licence; not for commercial use",
        &["news"],
        "MINDsmall_train.zip and MINDsmall_dev.zip, after agreeing to the terms at msnews.github.io",
    ),
    by_hand(
        "multi30k",
        "29,000 captions in English and German (Elliott et al. 2016)",
        "research and education that are not commercial",
        &["translation"],
        "the folder data/task1/raw of the repository multi30k/dataset at GitHub",
    ),
    by_hand(
        "cnn-dailymail",
        "300,000 news articles with highlights (Nallapati et al. 2016)",
        NONE_STATED,
        &["summary"],
        "JSON lines of article and highlights, as in the set abisee/cnn_dailymail of the Hugging Face hub",
    ),
    by_hand(
        "scitldr",
        "abstracts of papers with summaries of one sentence (Cachola et al. 2020)",
        "Apache-2.0",
        &["summary"],
        "train.jsonl, dev.jsonl and test.jsonl of the folder SciTLDR-Data/SciTLDR-A of the repository allenai/scitldr at GitHub",
    ),
    by_hand(
        "qmsum",
        "meetings with queries and their answers (Zhong et al. 2021)",
        "MIT; transcripts of AMI and ICSI are CC BY 4.0",
        &["summary"],
        "train.jsonl, val.jsonl and test.jsonl of the folder data/ALL/jsonl of the repository Yale-LILY/QMSum at GitHub",
    ),
    by_hand(
        "pubmed-summaries",
        "articles of PubMed with their abstracts (Cohan et al. 2018)",
        NONE_STATED,
        &["summary"],
        "train.txt, val.txt and test.txt of pubmed-dataset.zip, which the repository armancohan/long-summarization at GitHub \
         links to",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_whole() {
        for (at, set) in CATALOGUE.iter().enumerate() {
            assert!(CATALOGUE[..at].iter().all(|other| other.name != set.name), "{} twice", set.name);
            assert!(!set.about.is_empty() && !set.licence.is_empty(), "{}", set.name);
            assert_eq!(set.downloads.is_empty(), !set.by_hand.is_empty(), "{}: fetched or brought", set.name);
            for file in set.downloads {
                let digits = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
                assert!(file.sha256.len() == 64 && file.sha256.chars().all(digits), "{}", file.name);
                assert!(
                    file.urls.iter().all(|url| url.starts_with("https://")) && !file.urls.is_empty(),
                    "{}",
                    file.name
                );
            }
        }
        assert!(find("wikitext-103").is_some() && find("wikitext").is_none());
    }
}
