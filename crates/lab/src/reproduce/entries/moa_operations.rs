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
    claim: "The paper's multiply-adds of six translators (604.2, 628.6, 654.4, 840.9, 843.1 and 1220.6 million) follow from their sizes; with as many \
            active heads, more experts cost the same.",
    data: "none",
    models: &[],
    paper_setting: "Six encoder and six decoder layers, width 512, feed-forward 2,048, joint vocabulary of 32,000; 10 tokens on each side.",
    setups: &[Setup {
        scale: Scale::Paper,
        setting: "The same sizes; counted, not run.",
        differences: &[],
        minutes: 0.0,
    }],
    run,
};

/// Active experts, experts, head width, and the paper's count in millions; the first is a plain transformer with 8
/// heads.
const MODELS: [(usize, usize, usize, f64); 6] = [
    (8, 0, 64, 604.2),
    (8, 8, 128, 628.6),
    (4, 32, 256, 654.4),
    (8, 8, 256, 840.9),
    (8, 32, 256, 843.1),
    (16, 32, 256, 1220.6),
];

fn run(_: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let counts = ["active", "experts", "head width"].map(|name| Column::number(name, Format::Plain));
    let millions = ["counted", "paper"].map(|name| Column::number(name, Format::Fixed(1)).unit("M"));
    let mut table = Table::new("Multiply-adds of translators", counts.into_iter().chain(millions).collect())
        .note("Linear parts of a pass over 10 tokens on each side; the first row has 8 plain heads.");
    let mut equal = 0;
    for (active, experts, width, paper) in MODELS {
        let counted = (translator(active, experts, width)? as f64 / 1e5).round() / 10.0;
        equal += usize::from(counted == paper);
        table.push(vec![active.into(), experts.into(), width.into(), counted.into(), paper.into()]);
    }
    let [few, some, many] = [8, 16, 32].map(|experts| translator(8, experts, 256));
    let (few, some, many) = (few? as f64, some? as f64, many? as f64);
    let more = 100.0 * (many / few - 1.0);
    Ok(Finding {
        clauses: vec![
            Clause::paper("The six counts are those of the sizes.").exactly(equal == MODELS.len()),
            Clause::paper("With 8 active heads of 256, 8, 16 and 32 experts cost the same, to within 1 %.")
                .exactly(many < 1.01 * few && some < 1.01 * few)
                .note(format!("{:.1}, {:.1} and {:.1} million", few / 1e6, some / 1e6, many / 1e6)),
            Clause::ours("The counts are of linear parts alone: without the products of queries and keys, and of weights and values.")
                .exactly(equal == MODELS.len()),
        ],
        statement: format!(
            "{equal} of {} counts equal the paper's to its last digit, of linear parts alone; four times the experts cost {more:.1} % more, for the router.",
            MODELS.len()
        ),
        tables: vec![table],
        charts: Vec::new(),
    })
}

/// Multiply-adds of everything but the attention matrices themselves.
fn translator(active: usize, experts: usize, head_width: usize) -> Result<Count, CostError> {
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
            width: 512,
            layers: 6,
            feed_forward: 2_048,
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

    #[test]
    fn counts_are_those_of_the_paper() {
        for (active, experts, width, paper) in MODELS {
            let counted = translator(active, experts, width).expect("sizes");
            assert_eq!((counted as f64 / 1e5).round() / 10.0, paper, "{active} of {experts} of {width}");
        }
    }
}
