//! Language models with mixtures of keys, also with keys and values shared by all heads.

use regard_report::{Cell, Column, Format, Table};
use regard_tasks::Failure;

use super::mgk_inside::{TEXT_MODELS, text_recipe};
use crate::reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence};

const DATA: &str = "characters of one text for the words of WikiText-103";
const SIZE: &str = "4 layers for 16";
const LEFT: &str = "softmax and sMGK with half the heads are left out";
const TRAINED: &str = "feed-forward 512 for 2,048, rate 1e-3 for 2.5e-4";
const PAIRED: &str = "losses are paired by seed, on the same test text";

pub const ENTRY: Entry = Entry {
    name: "mgk-language",
    paper: Paper::Mgk,
    figures: "tables 3 and 10",
    claim: "With half the heads, MGK has a better test perplexity than softmax; with as many heads, too, and a better one than with half of them; with \
            keys and values shared by all heads, MGK with half the heads is better on the test text.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "16 layers with heads of 16 on WikiText-103, 256 words, 120 epochs of batches of 96: softmax with 8 heads 34.29, MGK with \
                    4 34.21 and with 8 33.93; shared keys and values: 36.03 and, with half the heads, 35.79.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "4 layers of width 128, heads of 16, 256 characters, 20 updates of 8, one seed.",
            differences: &[
                DATA,
                SIZE,
                TRAINED,
                LEFT,
                PAIRED,
                "20 updates and one model of each kind: it cannot decide",
            ],
            minutes: 2.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "4 layers of width 128, heads of 16, 256 characters, 1,500 updates of 8, five seeds.",
            differences: &[DATA, SIZE, TRAINED, LEFT, PAIRED, "1,500 updates of 8"],
            minutes: 40.0,
        },
    ],
    run,
};

/// Keys and values that all heads share.
const SHARED: [(&str, &str); 2] = [
    ("softmax, 8 heads, shared keys", "softmax:key_value_heads=1"),
    ("MGK, 4 heads, shared keys", "mgk:heads=4,key_value_heads=1"),
];

fn run(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let columns = vec![
        Column::text("model"),
        Column::number("test loss", Format::Fixed(4)).unit("nats a character"),
        Column::number("parameters", Format::Count),
    ];
    let mut table = Table::new("Language models", columns).note("Mean and deviation over seeds.");
    let mut losses: Vec<Vec<f64>> = Vec::new();
    for (name, members) in [("mgk-inside-text", &TEXT_MODELS[..]), ("mgk-language", &SHARED[..])] {
        let compared = bench.train(name, &text_recipe(scale, &entries(members)))?;
        for ((member, _), runs) in members.iter().zip(compared.candidates()) {
            let own: Vec<f64> = runs.iter().map(|run| run.test_loss).collect();
            table.push(vec![(*member).into(), Cell::estimate(&own), runs[0].parameters.into()]);
            losses.push(own);
        }
    }
    let less = |first: usize, second: usize| Estimate::paired(&losses[first], &losses[second], confidence(4), "seeds");
    let clauses = vec![
        Clause::paper("MGK with half the heads less softmax.").below(less(2, 0), 0.0),
        Clause::paper("MGK with as many heads less softmax.").below(less(1, 0), 0.0),
        Clause::paper("MGK with all heads less MGK with half of them.").below(less(1, 2), 0.0),
        Clause::paper("With shared keys and values, MGK with half the heads less softmax.").below(less(4, 3), 0.0),
    ];
    let value = |clause: &Clause| clause.estimate.as_ref().map_or(f64::NAN, |estimate| estimate.value);
    let said: Vec<String> =
        clauses.iter().map(|clause| format!("{} {:+.4}", clause.text.trim_end_matches('.'), value(clause))).collect();
    let statement = format!("Nats a character: {}.", said.join("; "));
    Ok(Finding { clauses, statement, tables: vec![table], charts: Vec::new() })
}

fn entries<'a>(members: &[(&str, &'a str)]) -> Vec<&'a str> {
    members.iter().map(|member| member.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_resolve_with_heads_of_the_paper() {
        let mut layers = regard_tasks::run::Layers::new();
        layers.text(&text_recipe(Scale::Here, &entries(&SHARED)), "x").expect("TOML");
        let config = layers.resolve().expect("a configuration");
        for (_, entry) in TEXT_MODELS.into_iter().chain(SHARED) {
            let (_, own) = config.candidate(entry).expect("an entry");
            own.check_model().expect("a model");
            assert_eq!(own.model.head_width(&own.attention), 16, "{entry}");
        }
    }
}
