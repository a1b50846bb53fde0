//! Causal attention with weights of positive features, and its gradients.

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    cubecl::{client::Client, prelude::*},
    kernel::into_contiguous,
    ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};

use crate::{
    Traffic,
    device::{element, supports},
    kernel::features::{
        Form, THREADS, key_gradients::key_gradients, outputs::outputs, query_gradients::query_gradients, sums::sums,
    },
};

/// What the attention reads, of one type of float: query `i` sees keys `j <= i` with weights `sum_f exp(q_if + k_jf)`.
#[derive(Clone, Debug)]
pub struct FeatureOperands {
    /// Logarithms of features, `[B,H,N,m]`.
    pub q: CubeTensor,
    /// The same of keys.
    pub k: CubeTensor,
    /// `[B,H,N,Dv]`.
    pub v: CubeTensor,
}

/// What the forward pass returns.
#[derive(Clone, Debug)]
pub struct FeatureOutputs {
    /// `[B,H,N,Dv]`.
    pub out: CubeTensor,
    /// Logarithms of the sums of weights, `[B,H,N]`, float32; [`UNSEEN`](crate::UNSEEN) where there is none.
    pub logs: CubeTensor,
    sums: Segments,
}

impl FeatureOutputs {
    /// The same as part of a whole whose outputs and logarithms these are: their gradients are those of the part.
    #[must_use]
    pub fn within(&self, out: CubeTensor, logs: CubeTensor) -> Self {
        Self { out: into_contiguous(out), logs: into_contiguous(logs), sums: self.sums.clone() }
    }
}

/// Sums over the tokens of each segment: `[B,H,segments,m,Dv+1]` and their scales `[B,H,segments,m]`.
#[derive(Clone, Debug)]
struct Segments {
    sums: CubeTensor,
    scales: CubeTensor,
}

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureSizes {
    /// Sequences, `B`.
    pub batch: usize,
    /// Heads, `H`.
    pub heads: usize,
    /// Tokens, `N`.
    pub tokens: usize,
    /// Features of a token, `m`.
    pub features: usize,
    /// Channels of a value, `Dv`.
    pub width: usize,
}

/// Fewest tokens of a segment, of which each begins by adding up the sums of all before it, and most segments.
const SEGMENT: usize = 256;
const MOST_SEGMENTS: usize = 32;
/// Tokens of a chunk, the first that fits into shared memory. Pairs in a chunk take an exponential a feature.
const CHUNKS: [usize; 2] = [16, 8];
/// Buffers of the kernel that has most, with one for their sizes.
const BUFFERS: usize = 11;

impl FeatureSizes {
    fn form(&self, shared: usize) -> Option<Form> {
        let of = |&chunk: &usize| Form { chunk, features: self.features, width: self.width };
        CHUNKS.iter().map(of).find(|form| form.floats() * size_of::<f32>() <= shared)
    }

    /// Chunks of a segment, and segments.
    fn cut(&self, form: &Form) -> [usize; 2] {
        let length = SEGMENT.max(self.tokens.div_ceil(MOST_SEGMENTS)).next_multiple_of(form.chunk);
        [length / form.chunk, self.tokens.div_ceil(length)]
    }

    /// Bytes of the forward and of the backward pass, with floats of `float` bytes, on a device with `shared` bytes of shared
    /// memory for a block of threads; nothing where the state does not fit.
    pub fn traffic(&self, float: usize, shared: usize) -> Option<[Traffic; 2]> {
        let form = self.form(shared)?;
        let [_, segments] = self.cut(&form);
        let (m, width, tokens) = (self.features * float, self.width * float, self.tokens);
        let wide = size_of::<f32>();
        let state = (form.state() + self.features) * wide;
        let before = segments * (segments - 1) / 2 * state;
        let of = |read: usize, written: usize| {
            let heads = self.batch * self.heads;
            Traffic { read: (heads * read) as u64, written: (heads * written) as u64 }
        };
        let [sums, backward_sums] = match segments {
            1 => [Traffic::default(); 2],
            _ => [0, 2 * wide].map(|more| of(tokens * (m + width + more), segments * state)),
        };
        let forward = sums.plus(of(tokens * (2 * m + width) + before, tokens * (width + wide)));
        let queries = of(tokens * (2 * m + 3 * width + wide) + before, tokens * (m + wide));
        let keys = of(tokens * (2 * m + 2 * width + 2 * wide) + before, tokens * (m + width));
        Some([forward, queries.plus(backward_sums).plus(keys)])
    }

    /// Fewest bytes of the forward and backward pass of the form that is composed of tensor operations, which goes in chunks of 64
    /// tokens: what it reads and writes of the pairs in a chunk (a product, its logarithm, scales, exponentials and the product
    /// with the values: 17 numbers a pair), of features (maxima, differences, exponentials and products, of a chunk and of its
    /// state: 12 numbers each) and values (4), and, where there are several chunks, of the state of each (two sums of two states
    /// under a common scale, over pairs, pairs of pairs and so on: 28 numbers); backward at least as many again.
    pub fn composed_bytes(&self, float: usize) -> [u64; 2] {
        const CHUNK: usize = 64;
        let chunk = CHUNK.min(self.tokens);
        let chunks = self.tokens.div_ceil(chunk);
        let states = if chunks > 1 { 28 * chunks * self.features * (self.width + 1) } else { 0 };
        let own = self.tokens * (24 * self.features + 4 * self.width);
        let bytes = (self.batch * self.heads * (17 * chunks * chunk * chunk + states + own) * float) as u64;
        [bytes, bytes]
    }
}

impl FeatureOperands {
    /// Sizes of a call.
    pub fn sizes(&self) -> FeatureSizes {
        let (q, v) = (self.q.meta.shape(), self.v.meta.shape());
        FeatureSizes { batch: q[0], heads: q[1], tokens: q[2], features: q[3], width: v[3] }
    }

    /// Whether the kernels take this call: on its device, of its sizes and type of float.
    pub fn taken(&self) -> bool {
        let Self { q, k, v } = self;
        [k, v].iter().all(|tensor| tensor.dtype == q.dtype) && accepts(&q.client, &self.sizes(), q.dtype)
    }
}

fn accepts(client: &Client, sizes: &FeatureSizes, float: DType) -> bool {
    let FeatureSizes { batch, heads, tokens, features, width } = *sizes;
    let hardware = &client.properties().hardware;
    let shared = hardware.max_shared_memory_size;
    let Some(form) = sizes.form(shared) else { return false };
    let [_, segments] = sizes.cut(&form);
    let most = [tokens * features.max(width), segments * form.state()];
    let beats = sizes.traffic(float.size(), shared).is_some_and(|fused| {
        let fused: u64 = fused.iter().map(Traffic::total).sum();
        fused < sizes.composed_bytes(float.size()).iter().sum()
    });
    supports(client, float, BUFFERS)
        && [batch, heads, tokens, features, width].iter().all(|&size| size > 0)
        // Places are 32 bits wide.
        && most.iter().all(|floats| floats.saturating_mul(batch * heads) < 1 << 31)
        && batch * heads <= hardware.max_cube_count.1 as usize
        && hardware.max_units_per_cube as usize >= THREADS
        && beats
}

struct Launch {
    operands: FeatureOperands,
    sizes: FeatureSizes,
    form: Form,
    chunks: usize,
    segments: usize,
}

impl Launch {
    fn new(operands: FeatureOperands) -> Self {
        let sizes = operands.sizes();
        let shared = operands.q.client.properties().hardware.max_shared_memory_size;
        let form = sizes.form(shared).expect("a call that was taken");
        let [chunks, segments] = sizes.cut(&form);
        let FeatureOperands { q, k, v } = operands;
        Self { operands: FeatureOperands { q: rows(q), k: rows(k), v: rows(v) }, sizes, form, chunks, segments }
    }

    fn empty<const D: usize>(&self, shape: [usize; D], kind: DType) -> CubeTensor {
        let q = &self.operands.q;
        empty_device_contiguous_dtype(q.client.clone(), q.device.clone(), Shape::new(shape), kind)
    }

    fn count(&self) -> CubeCount {
        CubeCount::Static(self.segments as u32, (self.sizes.batch * self.sizes.heads) as u32, 1)
    }

    fn dim(&self) -> CubeDim {
        CubeDim::new_1d(THREADS as u32)
    }

    /// Sums of segments, forward or backward. A single segment has none before or behind it, and nobody reads them.
    fn sums(&self, [features, values]: [&CubeTensor; 2], [logs, lasts]: [&CubeTensor; 2], backward: bool) -> Segments {
        if self.segments == 1 {
            return Segments { sums: self.empty([1], DType::F32), scales: self.empty([1], DType::F32) };
        }
        let FeatureSizes { batch, heads, features: count, width, .. } = self.sizes;
        let result = Segments {
            sums: self.empty([batch, heads, self.segments, count, width + 1], DType::F32),
            scales: self.empty([batch, heads, self.segments, count], DType::F32),
        };
        sums::launch(
            &features.client,
            self.count(),
            self.dim(),
            arg(features),
            arg(values),
            arg(logs),
            arg(lasts),
            arg(&result.sums),
            arg(&result.scales),
            self.chunks as u32,
            backward,
            self.form,
            element(features.dtype).expect("a float that the kernels take"),
        );
        result
    }
}

/// The same with contiguous rows.
fn rows(tensor: CubeTensor) -> CubeTensor {
    if tensor.meta.strides()[3] == 1 && !tensor.meta.is_tiled() { tensor } else { into_contiguous(tensor) }
}

fn arg(tensor: &CubeTensor) -> TensorArg {
    tensor.clone().into_tensor_arg()
}

/// Outputs of a call that was [taken](FeatureOperands::taken).
pub fn feature_forward(operands: FeatureOperands) -> FeatureOutputs {
    let launch = Launch::new(operands);
    let FeatureSizes { batch, heads, tokens, width, .. } = launch.sizes;
    let FeatureOperands { q, k, v } = &launch.operands;
    let nothing = [launch.empty([1], DType::F32), launch.empty([1], DType::F32)];
    let result = FeatureOutputs {
        out: launch.empty([batch, heads, tokens, width], q.dtype),
        logs: launch.empty([batch, heads, tokens], DType::F32),
        sums: launch.sums([k, v], nothing.each_ref(), false),
    };
    outputs::launch(
        &q.client,
        launch.count(),
        launch.dim(),
        arg(q),
        arg(k),
        arg(v),
        arg(&result.sums.sums),
        arg(&result.sums.scales),
        arg(&result.out),
        arg(&result.logs),
        launch.chunks as u32,
        launch.form,
        element(q.dtype).expect("a float that the kernels take"),
    );
    result
}

/// Gradients of `q`, `k` and `v`, from that of the outputs.
pub fn feature_backward(
    operands: FeatureOperands,
    outputs: &FeatureOutputs,
    out_gradient: CubeTensor,
) -> FeatureOperands {
    let launch = Launch::new(operands);
    let FeatureSizes { batch, heads, tokens, features, width } = launch.sizes;
    let FeatureOperands { q, k, v } = &launch.operands;
    let FeatureOutputs { out, logs, sums } = outputs;
    let out_gradient = rows(out_gradient);
    let float = element(q.dtype).expect("a float that the kernels take");
    let along = launch.empty([batch, heads, tokens], DType::F32);
    let gradients = FeatureOperands {
        q: launch.empty([batch, heads, tokens, features], q.dtype),
        k: launch.empty([batch, heads, tokens, features], q.dtype),
        v: launch.empty([batch, heads, tokens, width], q.dtype),
    };
    query_gradients::launch(
        &q.client,
        launch.count(),
        launch.dim(),
        arg(q),
        arg(k),
        arg(v),
        arg(&sums.sums),
        arg(&sums.scales),
        arg(out),
        arg(&out_gradient),
        arg(logs),
        arg(&along),
        arg(&gradients.q),
        launch.chunks as u32,
        launch.form,
        float,
    );
    let behind = launch.sums([q, &out_gradient], [logs, &along], true);
    key_gradients::launch(
        &q.client,
        launch.count(),
        launch.dim(),
        arg(q),
        arg(k),
        arg(v),
        arg(&behind.sums),
        arg(&behind.scales),
        arg(&out_gradient),
        arg(logs),
        arg(&along),
        arg(&gradients.k),
        arg(&gradients.v),
        launch.chunks as u32,
        launch.form,
        float,
    );
    gradients
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_call_is_counted_by_hand() {
        // Three segments of 256 tokens, the last of 8.
        let sizes = FeatureSizes { batch: 2, heads: 3, tokens: 520, features: 4, width: 5 };
        let state = 4 * 6 + 4;
        let [forward, backward] = sizes.traffic(2, 32 << 10).expect("a small state");
        // Floats of two bytes; log-sum-exp and states of four. The second segment reads one state, the third two.
        let sums = [520 * (4 + 5) * 2, 3 * state * 4];
        let outputs = [520 * (4 + 4 + 5) * 2 + 3 * state * 4, 520 * (5 * 2 + 4)];
        let whole = |read: usize, written: usize| Traffic { read: 6 * read as u64, written: 6 * written as u64 };
        assert_eq!(forward, whole(sums[0] + outputs[0], sums[1] + outputs[1]));
        let queries = [520 * ((4 + 4 + 3 * 5) * 2 + 4) + 3 * state * 4, 520 * (4 * 2 + 4)];
        let keys = [520 * ((4 + 4 + 2 * 5) * 2 + 2 * 4) + 3 * state * 4, 520 * (4 + 5) * 2];
        let sums = [sums[0] + 520 * 2 * 4, sums[1]];
        assert_eq!(backward, whole(queries[0] + keys[0] + sums[0], queries[1] + keys[1] + sums[1]));
        // A single segment needs no sums.
        let one = FeatureSizes { tokens: 1, batch: 1, heads: 1, ..sizes };
        let [forward, _] = one.traffic(4, 32 << 10).expect("a small state");
        assert_eq!(forward, Traffic { read: (4 + 4 + 5) * 4, written: (5 + 1) * 4 });
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused() {
        let sizes = FeatureSizes { batch: 1, heads: 1, tokens: 4, features: 128, width: 128 };
        assert_eq!(sizes.traffic(4, 32 << 10), None);
        assert!(sizes.traffic(4, 128 << 10).is_some());
    }
}
