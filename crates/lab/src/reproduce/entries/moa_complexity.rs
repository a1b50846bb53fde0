//! Operations and parameters of a mixture of attention heads beside those of plain heads, in closed form.

use regard_report::{Column, Format, Table};
use regard_tasks::Failure;

use crate::{
    cost::{
        Count,
        formulas::{MoaSizes, moa_attention_macs, moa_linear_macs, moa_parameters},
    },
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "moa-complexity",
    paper: Paper::Moa,
    figures: "equations 18 to 20, appendix B",
    claim: "If the chosen heads together are as wide as the model, a layer needs fewer multiply-adds than plain heads; its operations do not depend \
            on the number of experts, the router apart; if all experts are chosen and together are as wide as the model, it has fewer parameters.",
    data: "none",
    models: &[],
    paper_setting: "Closed forms for any sizes.",
    setups: &[Setup {
        scale: Scale::Paper,
        setting: "The closed forms at widths of 128 to 1,024, 2 to 32 active heads, 8 to 4,096 tokens; and counted with the router.",
        differences: &[],
        minutes: 0.0,
    }],
    run,
};

/// Equation 18: `k T^2 dh + 2 (k + 1) T dh d`.
fn printed_operations(sizes: MoaSizes) -> Count {
    let MoaSizes { active, head_width, width, tokens, .. } = sizes;
    let [k, dh, d, t] = [active, head_width, width, tokens].map(|size| size as Count);
    k * t * t * dh + 2 * (k + 1) * t * dh * d
}

/// Equation 19 for plain heads: `T^2 d + 4 T d^2`.
fn plain_operations(width: usize, tokens: usize) -> Count {
    let [d, t] = [width, tokens].map(|size| size as Count);
    t * t * d + 4 * t * d * d
}

/// Equation 20: `(2E + 2) dh d`.
fn printed_parameters(sizes: MoaSizes) -> Count {
    (2 * sizes.experts as Count + 2) * sizes.head_width as Count * sizes.width as Count
}

/// Equation 20 for plain heads: `4 d^2`.
fn plain_parameters(width: usize) -> Count {
    4 * (width as Count).pow(2)
}

/// Widths, active heads and lengths at which the claims are checked; heads are as wide as the model together.
fn grid() -> impl Iterator<Item = MoaSizes> {
    let sizes = |width: usize, active: usize, tokens: usize| MoaSizes {
        experts: active,
        active,
        head_width: width / active,
        width,
        tokens,
    };
    [128, 512, 1024].into_iter().flat_map(move |width| {
        [2, 4, 8, 16, 32].into_iter().flat_map(move |active| [8, 128, 4096].map(|tokens| sizes(width, active, tokens)))
    })
}

fn run(_: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let cheaper = grid().all(|own| printed_operations(own) < plain_operations(own.width, own.tokens));
    // What is counted, less the router's T d E.
    let unrouted = |own: MoaSizes| {
        moa_linear_macs(own) + moa_attention_macs(own) - (own.tokens * own.width * own.experts) as Count
    };
    let same = grid().all(|own| unrouted(MoaSizes { experts: 64, ..own }) == unrouted(own));
    let smaller = grid().all(|own| printed_parameters(own) < plain_parameters(own.width));
    // 8K8E128D at width 512.
    let base = MoaSizes { experts: 8, active: 8, head_width: 128, width: 512, tokens: 128 };
    let (own, plain) = (printed_parameters(base), plain_parameters(512));
    let counted = |own: MoaSizes| moa_linear_macs(own) + moa_attention_macs(own);
    let columns = vec![
        Column::text("layer of width 512"),
        Column::number("equation, operations", Format::Count),
        Column::number("counted", Format::Count),
        Column::number("equation, parameters", Format::Count),
        Column::number("counted", Format::Count),
    ];
    let mut table = Table::new("Layers of 128 tokens", columns)
        .note("The equations count one product of the attention matrix where there are two, and leave out the router.");
    let two_products = plain_operations(512, 128) + 128 * 128 * 512;
    table.push(vec![
        "8 plain heads of 64".into(),
        plain_operations(512, 128).into(),
        two_products.into(),
        plain.into(),
        plain.into(),
    ]);
    for (experts, active, head_width) in [(8, 8, 64), (8, 8, 128), (32, 8, 128), (32, 16, 256)] {
        let sizes = MoaSizes { experts, active, head_width, width: 512, tokens: 128 };
        table.push(vec![
            format!("{active} of {experts} experts of {head_width}").into(),
            printed_operations(sizes).into(),
            counted(sizes).into(),
            printed_parameters(sizes).into(),
            moa_parameters(sizes).into(),
        ]);
    }
    Ok(Finding {
        clauses: vec![
            Clause::paper("If k dh = d, a layer needs fewer multiply-adds (18, 19), for k > 1.").exactly(cheaper),
            Clause::paper("Counted operations do not depend on the number of experts (18), the router's apart, which the equation leaves out.")
                .exactly(same),
            Clause::paper("If k = E and E dh = d, it has fewer parameters (20), for E > 1.").exactly(smaller),
            Clause::ours("The paper's base model, 8 experts of 128 at width 512, has more parameters than plain heads: its E dh is 2 d.")
                .exactly(own > plain)
                .note(format!("{own} and {plain}")),
        ],
        statement: format!(
            "By the equations a layer with k dh = d has 2 (1 + 1 / k) T d^2 operations of projections for 4 T d^2, and 1 / 2 + 1 / (2 E) of the \
             parameters. The base model has {:.3} times those of plain heads.",
            own as f64 / plain as f64
        ),
        tables: vec![table],
        charts: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand for d = 8, T = 4, k = E = 2, dh = 4: 2 x 16 x 4 + 2 x 3 x 4 x 4 x 8 = 896 against 16 x 8 + 4 x 4 x 64 = 1,152; parameters
    /// 6 x 4 x 8 = 192 against 256.
    #[test]
    fn equations_are_those_printed() {
        let sizes = MoaSizes { experts: 2, active: 2, head_width: 4, width: 8, tokens: 4 };
        assert_eq!((printed_operations(sizes), plain_operations(8, 4)), (896, 1152));
        assert_eq!((printed_parameters(sizes), plain_parameters(8)), (192, 256));
        // With the router, and with both products of the attention matrix.
        assert_eq!(moa_parameters(sizes), 192 + 16);
        assert_eq!(moa_linear_macs(sizes) + moa_attention_macs(sizes), 896 + 128 + 64);
    }
}
