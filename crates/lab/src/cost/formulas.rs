//! The papers' closed forms, exact in integers. Operations are multiplications plus additions, as the papers count
//! them; exponentials, divisions and biases are left out there and here.

use super::Count;

/// Sizes of one attention layer as the MGK paper names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperSizes {
    /// `N`, sequence length.
    pub tokens: usize,
    /// `H`, heads of the softmax layer that is compared against.
    pub heads: usize,
    /// `D`, head width.
    pub head_width: usize,
    /// `Dx`, input width.
    pub width: usize,
}

impl PaperSizes {
    /// `(N, H, D, Dx)`.
    fn counts(self) -> (Count, Count, Count, Count) {
        (self.tokens as Count, self.heads as Count, self.head_width as Count, self.width as Count)
    }
}

/// Operations of a layer of `heads` heads with `components` dot products per pair and an output of `out` channels, summed
/// by part: projections, scores, values, output.
fn operations_by_part(sizes: PaperSizes, heads: Count, components: Count, out: Count) -> Count {
    let (n, _, d, dx) = sizes.counts();
    let projections = (2 + components) * n * heads * d * (2 * dx - 1);
    let scores = n * n * heads * (components * (2 * d - 1) + components - 1);
    let values = n * heads * d * (2 * n - 1);
    projections + scores + values + n * out * (2 * heads * d - 1)
}

/// Operations of softmax attention with `H` heads, summed by part.
pub fn softmax_operations(sizes: PaperSizes) -> Count {
    let (_, h, d, _) = sizes.counts();
    operations_by_part(sizes, h, 1, h * d)
}

/// `N^2 H (4D - 1) + N H D (6 Dx + 2 H D - 5)`: softmax attention with `H` heads (MGK paper, appendix B).
pub fn softmax_operations_closed(sizes: PaperSizes) -> Count {
    let (n, h, d, dx) = sizes.counts();
    n * n * h * (4 * d - 1) + n * h * d * (6 * dx + 2 * h * d - 5)
}

/// Operations of MGK with two keys and `H / 2` heads, summed by part. `None` when `H` is odd.
pub fn mgk_operations(sizes: PaperSizes) -> Option<Count> {
    let (_, h, d, _) = sizes.counts();
    h.is_multiple_of(2).then(|| operations_by_part(sizes, h / 2, 2, h * d))
}

/// `N^2 H (3D - 0.5) + N H D (4 Dx + H D - 3.5)`: MGK with two keys and `H / 2` heads (MGK paper, appendix B, where the
/// printed `-4` is a slip). `None` when `H` is odd.
pub fn mgk_operations_closed(sizes: PaperSizes) -> Option<Count> {
    let (n, h, d, dx) = sizes.counts();
    let twice = n * n * h * (6 * d - 1) + n * h * d * (8 * dx + 2 * h * d - 7);
    h.is_multiple_of(2).then_some(twice / 2)
}

/// `3 H D Dx + (H D)^2`: parameters of softmax attention with `H` heads, without biases.
pub fn softmax_parameters(sizes: PaperSizes) -> Count {
    let (_, h, d, dx) = sizes.counts();
    3 * h * d * dx + (h * d).pow(2)
}

/// `2 H D Dx + 0.5 (H D)^2 + H`: parameters of MGK with two keys and `H / 2` heads, without biases. `None` when `H` is
/// odd.
pub fn mgk_parameters(sizes: PaperSizes) -> Option<Count> {
    let (_, h, d, dx) = sizes.counts();
    h.is_multiple_of(2).then(|| 2 * h * d * dx + (h * d).pow(2) / 2 + h)
}

/// Sizes of one layer of a mixture of attention heads (MoA paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoaSizes {
    /// `E`, experts.
    pub experts: usize,
    /// `k`, experts per token.
    pub active: usize,
    /// `dh`, width of an expert's head.
    pub head_width: usize,
    /// `d`, input width.
    pub width: usize,
    /// `T`, sequence length.
    pub tokens: usize,
}

/// `(2E + 2) dh d + d E`: parameters of a layer.
pub fn moa_parameters(sizes: MoaSizes) -> Count {
    let (experts, width) = (sizes.experts as Count, sizes.width as Count);
    (2 * experts + 2) * sizes.head_width as Count * width + width * experts
}

/// `2 (k + 1) T dh d + T d E`: multiply-adds of the projections and the router of a layer.
pub fn moa_linear_macs(sizes: MoaSizes) -> Count {
    let (tokens, width) = (sizes.tokens as Count, sizes.width as Count);
    2 * (sizes.active as Count + 1) * tokens * sizes.head_width as Count * width
        + tokens * width * sizes.experts as Count
}

/// `2 k T^2 dh`: multiply-adds of the attention itself.
pub fn moa_attention_macs(sizes: MoaSizes) -> Count {
    2 * sizes.active as Count * (sizes.tokens as Count).pow(2) * sizes.head_width as Count
}

/// `3 h d^2 + 2 h d`: the Fastformer paper's count, one `d x d` matrix per head.
pub fn fastformer_parameters(heads: usize, head_width: usize) -> Count {
    let (h, d) = (heads as Count, head_width as Count);
    3 * h * d * d + 2 * h * d
}

/// `3 (h d)^2 + 2 h d`: Fastformer with query-value sharing and dense projections of width `h d`, without biases.
pub fn fastformer_parameters_dense(heads: usize, head_width: usize) -> Count {
    let inner = heads as Count * head_width as Count;
    3 * inner * inner + 2 * inner
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: PaperSizes = PaperSizes { tokens: 17, heads: 4, head_width: 8, width: 32 };
    const LARGE: PaperSizes = PaperSizes { tokens: 256, heads: 8, head_width: 64, width: 512 };

    // Values from the reference data, `costs` of its manifest.
    #[test]
    fn reference_values() {
        assert_eq!(mgk_operations(SMALL), Some(112_302));
        assert_eq!(mgk_operations(LARGE), Some(435_486_720));
        assert_eq!(mgk_operations_closed(LARGE), Some(435_486_720));
        assert_eq!(softmax_operations_closed(SMALL), 172_380);
        assert_eq!(softmax_operations_closed(LARGE), 669_908_992);
        assert_eq!(mgk_parameters(SMALL), Some(2_564));
        assert_eq!(softmax_parameters(SMALL), 4_096);
        let moa = MoaSizes { experts: 6, active: 2, head_width: 8, width: 12, tokens: 10 };
        assert_eq!(moa_parameters(moa), 1_416);
        let moa = MoaSizes { experts: 32, active: 4, head_width: 256, width: 512, tokens: 10 };
        assert_eq!(moa_parameters(moa), 8_667_136);
        assert_eq!(moa_linear_macs(moa), 13_271_040);
        assert_eq!(moa_attention_macs(moa), 204_800);
        assert_eq!(fastformer_parameters(3, 8), 624);
        assert_eq!(fastformer_parameters_dense(3, 8), 1_776);
    }

    #[test]
    fn sums_by_part_equal_closed_forms() {
        for (tokens, heads, head_width, width) in [(1, 2, 1, 1), (5, 6, 3, 7), (1_000, 12, 64, 768)] {
            let sizes = PaperSizes { tokens, heads, head_width, width };
            assert_eq!(softmax_operations(sizes), softmax_operations_closed(sizes));
            assert_eq!(mgk_operations(sizes), mgk_operations_closed(sizes));
        }
        assert_eq!(mgk_operations(PaperSizes { heads: 3, ..SMALL }), None);
        assert_eq!(mgk_operations_closed(PaperSizes { heads: 3, ..SMALL }), None);
    }
}
