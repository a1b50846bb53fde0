//! Softmax attention over keys of one or several components, and its gradients.

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    CubeDevice,
    cubecl::{client::Client, ir::ElemType, prelude::*},
    kernel::into_contiguous,
    ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};

use crate::{
    Call, Pass, Setting, Sizes, Tile, Traffic,
    device::{element, supports},
    kernel::{key_gradients::key_gradients, outputs::outputs, query_gradients::query_gradients},
    tune,
};

/// What attention reads: queries, keys and values of one type of float, all else in float32.
///
/// The score of query `i` of head `h` and component `r` of key `j` is `inverse_r (q_i . k_jr) + prior_hrj - slope_h |i - j|`, or with
/// `-|q_i - k_jr|^2 / 2` instead of the product; the weight of a key is the sum over its components.
#[derive(Clone, Debug)]
pub struct Operands {
    /// `[B,N,H,D]`.
    pub q: CubeTensor,
    /// `[B,S,M,Hk,D]`.
    pub k: CubeTensor,
    /// `[B,S,Hk,Dv]`.
    pub v: CubeTensor,
    /// `[M]`.
    pub inverse: CubeTensor,
    /// `[H,M,S]` or `[H,M]`.
    pub prior: Option<CubeTensor>,
    /// `[B,S]`, 0 where a key is padding.
    pub valid: Option<CubeTensor>,
    /// `[H]`.
    pub slopes: Option<CubeTensor>,
}

/// Gradients of [`Operands`].
#[derive(Clone, Debug)]
pub struct Gradients {
    /// `[B,N,H,D]`.
    pub q: CubeTensor,
    /// `[B,S,M,Hk,D]`.
    pub k: CubeTensor,
    /// `[B,S,Hk,Dv]`.
    pub v: CubeTensor,
    /// `[B,Hk,tiles,M]`, float32, to be summed over all but the last.
    pub inverse: CubeTensor,
    /// `[B,H,M,S]`, float32, to be summed over the batch, and over positions where the prior has none.
    pub prior: Option<CubeTensor>,
}

/// Most components of a key: each thread holds the scores of all of them.
const MOST_COMPONENTS: usize = 8;
/// Buffers of the kernel that has most, with one for their sizes.
const BUFFERS: usize = 15;

impl Operands {
    /// All that decides how a call runs, but for the device.
    pub fn setting(&self, call: Call) -> Setting {
        let axes = |prior: &CubeTensor| prior.meta.shape().num_dims();
        Setting {
            call,
            sizes: self.sizes(),
            padded: self.valid.is_some(),
            slopes: self.slopes.is_some(),
            prior_axes: self.prior.as_ref().map_or(0, axes),
        }
    }

    /// Sizes of a call.
    pub fn sizes(&self) -> Sizes {
        let (q, k, v) = (self.q.meta.shape(), self.k.meta.shape(), self.v.meta.shape());
        Sizes {
            batch: q[0],
            queries: q[1],
            keys: k[1],
            heads: q[2],
            key_heads: k[3],
            components: k[2],
            width: q[3],
            value_width: v[3],
        }
    }

    /// The same in row-major order.
    fn dense(self) -> Self {
        let dense = into_contiguous;
        Self {
            q: dense(self.q),
            k: dense(self.k),
            v: dense(self.v),
            inverse: dense(self.inverse),
            prior: self.prior.map(dense),
            valid: self.valid.map(dense),
            slopes: self.slopes.map(dense),
        }
    }
}

/// Whether the kernels take this call: on its device, of its sizes and type of float, and with less traffic than the composed form.
pub fn takes(call: Call, operands: &Operands) -> bool {
    let Operands { q, k, v, inverse, prior, valid, slopes } = operands;
    let wide = [Some(inverse), prior.as_ref(), valid.as_ref(), slopes.as_ref()];
    [k, v].iter().all(|tensor| tensor.dtype == q.dtype)
        && wide.into_iter().flatten().all(|tensor| tensor.dtype == DType::F32)
        && accepts(&q.client, &operands.setting(call), q.dtype)
}

/// Whether the kernels can run on this device, for heads of up to 64 channels in float32 at least.
pub fn serves(device: &CubeDevice) -> bool {
    let sizes = Sizes {
        batch: 1,
        queries: 1024,
        keys: 1024,
        heads: 1,
        key_heads: 1,
        components: 1,
        width: 64,
        value_width: 64,
    };
    let setting = Setting { call: Call::default(), sizes, padded: false, slopes: false, prior_axes: 0 };
    accepts(&device.client(), &setting, DType::F32)
}

fn accepts(client: &Client, setting: &Setting, float: DType) -> bool {
    let Sizes { batch, queries, keys, heads, components, width, value_width, .. } = setting.sizes;
    let hardware = &client.properties().hardware;
    let (most, row) = (hardware.max_cube_count, heads * width.max(value_width));
    // Places are 32 bits wide.
    let short = [queries * row, keys * components * row, queries * heads, heads * components * keys]
        .iter()
        .all(|floats| floats.saturating_mul(batch) < 1 << 31);
    let fused = setting.traffic(float.size(), hardware.max_shared_memory_size, hardware.max_units_per_cube as usize);
    let gains = |fused: [Traffic; 2]| {
        fused.iter().map(Traffic::total).sum::<u64>() < setting.composed_bytes(float.size()).iter().sum()
    };
    supports(client, float, BUFFERS)
        && short
        && components <= MOST_COMPONENTS
        && [batch, queries, keys, width, value_width].iter().all(|&size| size > 0)
        && queries.max(keys) <= most.0 as usize
        && heads <= most.1 as usize
        && batch <= most.2 as usize
        && fused.is_some_and(gains)
}

/// A call on its way to the device.
#[derive(Clone)]
pub(crate) struct Launch {
    pub client: Client,
    pub device: CubeDevice,
    pub setting: Setting,
    float: DType,
    operands: Operands,
    nothing: CubeTensor,
}

impl Launch {
    fn new(call: Call, operands: Operands) -> Self {
        let (client, device) = (operands.q.client.clone(), operands.q.device.clone());
        Self {
            setting: operands.setting(call),
            float: operands.q.dtype,
            nothing: empty_device_contiguous_dtype(client.clone(), device.clone(), Shape::new([1]), DType::F32),
            operands: operands.dense(),
            client,
            device,
        }
    }

    /// Tiles that the device has room for, that of least traffic first.
    pub fn tiles(&self, pass: Pass) -> Vec<Tile> {
        let hardware = &self.client.properties().hardware;
        self.setting.tiles(pass, hardware.max_shared_memory_size, hardware.max_units_per_cube as usize)
    }

    fn empty<const D: usize>(&self, shape: [usize; D], kind: DType) -> CubeTensor {
        empty_device_contiguous_dtype(self.client.clone(), self.device.clone(), Shape::new(shape), kind)
    }

    fn reach(&self) -> u32 {
        self.setting.reach() as u32
    }

    fn element(&self) -> ElemType {
        element(self.float).expect("a float that the kernels take")
    }

    fn or_nothing(&self, tensor: Option<&CubeTensor>) -> TensorArg {
        arg(tensor.unwrap_or(&self.nothing))
    }
}

fn arg(tensor: &CubeTensor) -> TensorArg {
    tensor.clone().into_tensor_arg()
}

/// One block of threads for each tile of tokens, head and sequence.
fn blocks(tokens: usize, heads: usize, batch: usize, tile: &Tile) -> (CubeCount, CubeDim) {
    let count = CubeCount::Static(tokens.div_ceil(tile.rows) as u32, heads as u32, batch as u32);
    (count, CubeDim::new_2d(tile.across as u32, tile.down as u32))
}

/// Outputs `[B,N,H,Dv]`, and log-sum-exp `[B,H,N]` in float32, of a call that [`takes`] accepts.
pub fn forward(call: Call, operands: Operands) -> (CubeTensor, CubeTensor) {
    let [out, lse] = taken(tune::run(Launch::new(call, operands), Pass::Forward, Vec::new(), launch_outputs));
    (out, lse)
}

/// `out` and `lse`.
fn launch_outputs(launch: &Launch, _: &[CubeTensor], tile: Tile) -> Vec<CubeTensor> {
    let Sizes { batch, queries, heads, value_width, .. } = launch.setting.sizes;
    let out = launch.empty([batch, queries, heads, value_width], launch.float);
    let lse = launch.empty([batch, heads, queries], DType::F32);
    let Operands { q, k, v, inverse, prior, valid, slopes } = &launch.operands;
    let (count, dim) = blocks(queries, heads, batch, &tile);
    outputs::launch(
        &launch.client,
        count,
        dim,
        arg(q),
        arg(k),
        arg(v),
        arg(inverse),
        launch.or_nothing(prior.as_ref()),
        launch.or_nothing(valid.as_ref()),
        launch.or_nothing(slopes.as_ref()),
        arg(&out),
        arg(&lse),
        launch.reach(),
        launch.setting.form(tile),
        launch.element(),
    );
    vec![out, lse]
}

/// The gradients, from those of the outputs and what [`forward`] returned.
pub fn backward(
    call: Call,
    operands: Operands,
    out: CubeTensor,
    lse: CubeTensor,
    out_gradient: CubeTensor,
) -> Gradients {
    let launch = Launch::new(call, operands);
    let [out, lse, out_gradient] = [out, lse, out_gradient].map(into_contiguous);
    let given = vec![out, out_gradient.clone(), lse.clone()];
    let [q, along] = taken(tune::run(launch.clone(), Pass::Queries, given, launch_query_gradients));
    let given = vec![out_gradient, lse, along];
    let [k, v, inverse, prior] = taken(tune::run(launch.clone(), Pass::Keys, given, launch_key_gradients));
    Gradients { q, k, v, inverse, prior: launch.operands.prior.is_some().then_some(prior) }
}

/// Of `out`, its gradient and `lse`: the gradient of `q`, and products of outputs and their gradients.
fn launch_query_gradients(launch: &Launch, given: &[CubeTensor], tile: Tile) -> Vec<CubeTensor> {
    let Sizes { batch, queries, heads, width, .. } = launch.setting.sizes;
    let [out, out_gradient, lse] = given else { unreachable!("three tensors") };
    let along = launch.empty([batch, heads, queries], DType::F32);
    let q_gradient = launch.empty([batch, queries, heads, width], launch.float);
    let Operands { q, k, v, inverse, prior, valid, slopes } = &launch.operands;
    let (count, dim) = blocks(queries, heads, batch, &tile);
    query_gradients::launch(
        &launch.client,
        count,
        dim,
        arg(q),
        arg(k),
        arg(v),
        arg(inverse),
        launch.or_nothing(prior.as_ref()),
        launch.or_nothing(valid.as_ref()),
        launch.or_nothing(slopes.as_ref()),
        arg(out),
        arg(out_gradient),
        arg(lse),
        arg(&along),
        arg(&q_gradient),
        launch.reach(),
        launch.setting.form(tile),
        launch.element(),
    );
    vec![q_gradient, along]
}

/// Of the gradient of `out`, `lse` and what [`launch_query_gradients`] adds: gradients of `k`, `v`, `inverse` and the prior.
fn launch_key_gradients(launch: &Launch, given: &[CubeTensor], tile: Tile) -> Vec<CubeTensor> {
    let Sizes { batch, keys, heads, key_heads, components, width, value_width, .. } = launch.setting.sizes;
    let [out_gradient, lse, along] = given else { unreachable!("three tensors") };
    let Operands { q, k, v, inverse, prior, valid, slopes } = &launch.operands;
    let k_gradient = launch.empty([batch, keys, components, key_heads, width], launch.float);
    let v_gradient = launch.empty([batch, keys, key_heads, value_width], launch.float);
    let inverse_gradient = launch.empty([batch, key_heads, keys.div_ceil(tile.rows), components], DType::F32);
    let prior_gradient = match prior {
        Some(_) => launch.empty([batch, heads, components, keys], DType::F32),
        None => launch.empty([1], DType::F32),
    };
    let (count, dim) = blocks(keys, key_heads, batch, &tile);
    key_gradients::launch(
        &launch.client,
        count,
        dim,
        arg(q),
        arg(k),
        arg(v),
        arg(inverse),
        launch.or_nothing(prior.as_ref()),
        launch.or_nothing(valid.as_ref()),
        launch.or_nothing(slopes.as_ref()),
        arg(out_gradient),
        arg(lse),
        arg(along),
        arg(&k_gradient),
        arg(&v_gradient),
        arg(&prior_gradient),
        arg(&inverse_gradient),
        launch.reach(),
        launch.setting.form(tile),
        launch.element(),
    );
    vec![k_gradient, v_gradient, inverse_gradient, prior_gradient]
}

/// As many tensors as a kernel returns.
fn taken<const N: usize>(tensors: Vec<CubeTensor>) -> [CubeTensor; N] {
    tensors.try_into().unwrap_or_else(|_| unreachable!("{N} tensors"))
}
