//! Multiply-adds of translators with mixtures of attention heads.

use regard_kernels::{AttentionOptions, Mechanism, mechanism::Position};
use regard_nn::models::{ModelConfig, NormPlace};
use regard_report::{Column, Format, Table};
use regard_tasks::Failure;

use crate::{
    cost::{AttentionSizes, CostError, Count, DecoderSizes, Head, ModelCost, ModelSizes, Part, Run},
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "moa-operations",
    paper: Paper::Moa,
    figures: "tables 1 and 3, multiply-adds",
    claim: "The multiply-adds that the paper states (654, 841, 1,220 and 2,090 million) follow from the sizes of its translators; with as many active \
            heads, more experts cost the same; the large mixture needs far less than the large transformer.",
    data: "none",
    models: &[],
    paper_setting: "Six encoder and six decoder layers, width 512, feed-forward 2,048, joint vocabulary of 32,000; 10 tokens on each side. The large \
                    transformer: width 1,024, feed-forward 4,096, 16 heads.",
    setups: &[Setup {
        scale: Scale::Paper,
        setting: "The same sizes; counted, not run.",
        differences: &["the numbers of the text, in whole millions, which are met to within half a per cent"],
        minutes: 0.0,
    }],
    run,
};

/// A translator.
struct Sizes {
    /// As the paper calls it.
    name: &'static str,
    active: usize,
    /// None of plain heads.
    experts: usize,
    head_width: usize,
    width: usize,
    /// Millions of multiply-adds in the text of the paper.
    stated: Option<f64>,
}

const fn mixture(name: &'static str, [active, experts, head_width]: [usize; 3], stated: Option<f64>) -> Sizes {
    Sizes { name, active, experts, head_width, width: 512, stated }
}

const MODELS: [Sizes; 10] = [
    mixture("transformer base", [8, 0, 64], None),
    mixture("8K8E128D", [8, 8, 128], None),
    mixture("8K32E64D", [8, 32, 64], None),
    mixture("8K32E128D", [8, 32, 128], None),
    mixture("8K32E256D", [8, 32, 256], Some(841.0)),
    mixture("8K16E256D", [8, 16, 256], None),
    mixture("8K8E256D", [8, 8, 256], None),
    mixture("4K32E256D", [4, 32, 256], Some(654.0)),
    mixture("16K32E256D", [16, 32, 256], Some(1220.0)),
    Sizes { width: 1024, ..mixture("transformer big", [16, 0, 64], Some(2090.0)) },
];

/// Share by which a count may differ from what is stated.
const NEAR: f64 = 0.005;

fn run(_: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let mut columns = vec![Column::text("translator")];
    columns.extend(["counted", "stated"].map(|name| Column::number(name, Format::Fixed(1)).unit("M")));
    let mut table = Table::new("Multiply-adds of translators", columns).note(
        "Linear parts of a pass over 10 tokens on each side: without the products of queries and keys, and of weights and values. 8K32E64D: 8 of \
         32 experts of 64.",
    );
    let mut clauses = Vec::new();
    for model in &MODELS {
        let counted = millions(model)?;
        table.push(vec![model.name.into(), counted.into(), model.stated.into()]);
        if let Some(stated) = model.stated {
            let near = (counted / stated - 1.0).abs() < NEAR;
            let clause = Clause::paper(format!("{} needs {stated} million multiply-adds.", model.name)).exactly(near);
            clauses.push(clause.note(format!("counted {counted:.1}")));
        }
    }
    let of = |name: &str| millions(MODELS.iter().find(|model| model.name == name).expect("in the list"));
    let (few, some, many) = (of("8K8E256D")?, of("8K16E256D")?, of("8K32E256D")?);
    let (mixture, plain) = (of("16K32E256D")?, of("transformer big")?);
    let more = 100.0 * (many / few - 1.0);
    clauses.push(
        Clause::paper("With 8 active heads of 256, 8, 16 and 32 experts cost the same, to within 1 %.")
            .exactly(many < 1.01 * few && some < 1.01 * few)
            .note(format!("{few:.1}, {some:.1} and {many:.1} million")),
    );
    clauses.push(
        Clause::paper("The large mixture needs fewer than the large transformer.")
            .exactly(mixture < plain)
            .note(format!("{mixture:.1} and {plain:.1} million")),
    );
    Ok(Finding {
        clauses,
        statement: format!(
            "Counts of linear parts: {many:.1} million for 8 of 32 experts of 256, {mixture:.1} for 16, {plain:.1} for the large transformer; four \
             times the experts cost {more:.1} % more, for the router."
        ),
        tables: vec![table],
        charts: Vec::new(),
    })
}

fn millions(sizes: &Sizes) -> Result<f64, CostError> {
    Ok(translator(sizes)? as f64 / 1e6)
}

/// Multiply-adds of everything but the attention matrices themselves.
fn translator(sizes: &Sizes) -> Result<Count, CostError> {
    let Sizes { active, experts, head_width, width, .. } = *sizes;
    let mut options = AttentionOptions { position: Position::Sinusoidal, ..AttentionOptions::default() };
    if experts == 0 {
        options.heads = active;
    } else {
        options.mechanism = Mechanism::Moa;
        (options.moa.experts, options.moa.active, options.moa.head_width) = (experts, active, Some(head_width));
    }
    let attention = |causal| {
        let options = AttentionOptions { causal, ..options.clone() };
        AttentionSizes { options, head_width, bias: true, output_bias: true }
    };
    let sizes = ModelSizes {
        model: ModelConfig {
            width,
            layers: 6,
            feed_forward: 4 * width,
            norm: NormPlace::Post,
            ..ModelConfig::default()
        },
        vocabulary: 32_000,
        context: 10,
        head: Head::Tokens,
        attention: attention(false),
        decoder: Some(DecoderSizes { attention: attention(true), cross: attention(false) }),
    };
    let cost = ModelCost::of(&sizes, Run { batch: 1, length: 10, decoded: 10 })?;
    let linear = |part: &&Part| !part.name.ends_with("core") && part.name != "norms";
    Ok(cost.parts.iter().filter(linear).map(|part| part.multiply_adds).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected numbers: an independent count, in millions to a tenth.
    #[test]
    fn counts_are_those_of_another_program() {
        for (name, expected) in [
            ("transformer base", 604.2),
            ("8K8E128D", 628.6),
            ("4K32E256D", 654.4),
            ("8K8E256D", 840.9),
            ("8K32E256D", 843.1),
            ("16K32E256D", 1220.6),
        ] {
            let model = MODELS.iter().find(|model| model.name == name).expect("a model");
            assert_eq!((10.0 * millions(model).expect("sizes")).round() / 10.0, expected, "{name}");
        }
    }
}
