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
    Pass, Passes, Tile, Traffic,
    device::{element, supports},
    kernel::{
        Form,
        key_gradients::key_gradients,
        outputs::outputs,
        query_gradients::query_gradients,
        ranges::{first_key, last_key},
    },
    traffic::of_kernel,
};

/// What scores are, and which keys a query sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Scores are half squared distances, negative, instead of products.
    pub distances: bool,
    /// Hides keys after the query's own position; query `i` of `N` is at position `i + S - N`.
    pub causal: bool,
    /// Largest distance between a query's position and a visible key.
    pub window: Option<usize>,
}

/// What attention reads, all but `valid` and `slopes` of one type of float.
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
    /// `[B,S]`, float32, 0 where a key is padding.
    pub valid: Option<CubeTensor>,
    /// `[H]`, float32.
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

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences, `B`.
    pub batch: usize,
    /// Queries, `N`.
    pub queries: usize,
    /// Keys, `S`.
    pub keys: usize,
    /// Query heads, `H`.
    pub heads: usize,
    /// Key heads, `Hk`.
    pub key_heads: usize,
    /// Components, `M`.
    pub components: usize,
    /// Channels of queries and keys, `D`.
    pub width: usize,
    /// Channels of values, `Dv`.
    pub value_width: usize,
}

/// All that decides how a call runs, but for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What scores are.
    pub call: Call,
    /// Sizes.
    pub sizes: Sizes,
    /// There is padding.
    pub padded: bool,
    /// There are slopes.
    pub slopes: bool,
    /// Axes of the log prior, 0 without one.
    pub prior_axes: usize,
}

impl Setting {
    fn form(&self, tile: Tile) -> Form {
        Form {
            tile,
            width: self.sizes.width,
            value_width: self.sizes.value_width,
            components: self.sizes.components,
            distances: self.call.distances,
            causal: self.call.causal,
            window: self.call.window.is_some(),
            padded: self.padded,
            slopes: self.slopes,
            prior: self.prior_axes > 0,
            positions: self.prior_axes == 3,
        }
    }

    fn reach(&self) -> usize {
        self.call.window.unwrap_or(0).min(self.sizes.queries + self.sizes.keys)
    }

    fn tiles(&self, pass: Pass, shared: usize, threads: usize) -> Vec<Tile> {
        Tile::fitting(pass, [self.sizes.width, self.sizes.value_width], shared, threads)
    }

    /// Bytes of the forward and of the backward pass, with floats of `float` bytes, on a device with `shared` bytes of shared
    /// memory and `threads` threads for a block of them; nothing where no tile fits.
    pub fn traffic(&self, float: usize, shared: usize, threads: usize) -> Option<[Traffic; 2]> {
        let of = |pass| {
            let tile = *self.tiles(pass, shared, threads).first()?;
            Some(of_kernel(pass, &self.form(tile), &self.sizes, self.reach(), float))
        };
        Some([of(Pass::Forward)?, of(Pass::Queries)?.plus(of(Pass::Keys)?)])
    }
}

impl Setting {
    /// Fewest bytes of the forward and of the backward pass of the form that is composed of tensor operations, with floats of
    /// `float` bytes: see [`Passes`].
    pub fn composed_bytes(&self, float: usize) -> [u64; 2] {
        /// Bytes of a block of queries, and tensors of the size of its scores.
        const BLOCK: usize = (192 << 20) / 6;
        let Sizes { batch, queries: n, keys: s, heads, key_heads, components, width, value_width } = self.sizes;
        let Call { distances, causal, window } = self.call;
        let (limited, reach) = (window.is_some(), self.reach());
        let block = (BLOCK / (batch * heads * components * s * float).max(1)).clamp(1, n.max(1));
        let seen = |first: usize| {
            let last = n.min(first + block);
            let end = last_key(last, n, s, reach, causal, limited);
            (last - first) * end.saturating_sub(first_key(first, n, s, reach, limited))
        };
        let pairs: usize = (0..n).step_by(block).map(seen).sum();
        let masked = causal || limited || self.padded;
        let passes = match distances || components > 1 {
            true => Passes::mixture(components, distances, masked),
            false => Passes::softmax(masked),
        };
        // Products read and write rows too.
        let queries = batch * n * heads * (width + value_width);
        let keys = batch * s * key_heads * (components * width + value_width);
        let [forward, backward] = passes.bytes((batch * heads * pairs) as u64, float);
        let own = ((queries + keys) * float) as u64;
        [forward + own, backward + 3 * own]
    }
}

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
    accepts(&operands.q.client, &operands.setting(call), operands.q.dtype)
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

fn tiles(client: &Client, pass: Pass, sizes: &Sizes) -> Vec<Tile> {
    let hardware = &client.properties().hardware;
    let widths = [sizes.width, sizes.value_width];
    Tile::fitting(pass, widths, hardware.max_shared_memory_size, hardware.max_units_per_cube as usize)
}

/// A call on its way to the device.
struct Launch {
    client: Client,
    device: CubeDevice,
    setting: Setting,
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

    fn empty<const D: usize>(&self, shape: [usize; D], kind: DType) -> CubeTensor {
        empty_device_contiguous_dtype(self.client.clone(), self.device.clone(), Shape::new(shape), kind)
    }

    /// With the tile of least traffic: the same on every run, so that bits are.
    fn form(&self, pass: Pass) -> Form {
        self.setting.form(tiles(&self.client, pass, &self.setting.sizes)[0])
    }

    fn reach(&self) -> u32 {
        self.setting.reach() as u32
    }

    fn element(&self) -> ElemType {
        element(self.float).expect("a float that the kernels take")
    }

    fn or_nothing(&self, tensor: &Option<CubeTensor>) -> TensorArg {
        tensor.as_ref().unwrap_or(&self.nothing).clone().into_tensor_arg()
    }
}

fn arg(tensor: &CubeTensor) -> TensorArg {
    tensor.clone().into_tensor_arg()
}

/// Outputs `[B,N,H,Dv]`, and log-sum-exp `[B,H,N]` in float32, of a call that [`takes`] accepts.
pub fn forward(call: Call, operands: Operands) -> (CubeTensor, CubeTensor) {
    let launch = Launch::new(call, operands);
    let Sizes { batch, queries, heads, value_width, .. } = launch.setting.sizes;
    let out = launch.empty([batch, queries, heads, value_width], launch.float);
    let lse = launch.empty([batch, heads, queries], DType::F32);
    let form = launch.form(Pass::Forward);
    let Operands { q, k, v, inverse, prior, valid, slopes } = &launch.operands;
    outputs::launch(
        &launch.client,
        CubeCount::Static(queries.div_ceil(form.tile.rows) as u32, heads as u32, batch as u32),
        CubeDim::new_2d(form.tile.across as u32, form.tile.down as u32),
        arg(q),
        arg(k),
        arg(v),
        arg(inverse),
        launch.or_nothing(prior),
        launch.or_nothing(valid),
        launch.or_nothing(slopes),
        arg(&out),
        arg(&lse),
        launch.reach(),
        form,
        launch.element(),
    );
    (out, lse)
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
    let Sizes { batch, queries, keys, heads, key_heads, components, width, value_width } = launch.setting.sizes;
    let (out, lse, out_gradient) = (into_contiguous(out), into_contiguous(lse), into_contiguous(out_gradient));
    let along = launch.empty([batch, heads, queries], DType::F32);
    let q_gradient = launch.empty([batch, queries, heads, width], launch.float);
    let form = launch.form(Pass::Queries);
    let Operands { q, k, v, inverse, prior, valid, slopes } = &launch.operands;
    query_gradients::launch(
        &launch.client,
        CubeCount::Static(queries.div_ceil(form.tile.rows) as u32, heads as u32, batch as u32),
        CubeDim::new_2d(form.tile.across as u32, form.tile.down as u32),
        arg(q),
        arg(k),
        arg(v),
        arg(inverse),
        launch.or_nothing(prior),
        launch.or_nothing(valid),
        launch.or_nothing(slopes),
        arg(&out),
        arg(&out_gradient),
        arg(&lse),
        arg(&along),
        arg(&q_gradient),
        launch.reach(),
        form,
        launch.element(),
    );
    let form = launch.form(Pass::Keys);
    let tiles = keys.div_ceil(form.tile.rows);
    let gradients = Gradients {
        q: q_gradient,
        k: launch.empty([batch, keys, components, key_heads, width], launch.float),
        v: launch.empty([batch, keys, key_heads, value_width], launch.float),
        inverse: launch.empty([batch, key_heads, tiles, components], DType::F32),
        prior: prior.is_some().then(|| launch.empty([batch, heads, components, keys], DType::F32)),
    };
    key_gradients::launch(
        &launch.client,
        CubeCount::Static(tiles as u32, key_heads as u32, batch as u32),
        CubeDim::new_2d(form.tile.across as u32, form.tile.down as u32),
        arg(q),
        arg(k),
        arg(v),
        arg(inverse),
        launch.or_nothing(prior),
        launch.or_nothing(valid),
        launch.or_nothing(slopes),
        arg(&out_gradient),
        arg(&lse),
        arg(&along),
        arg(&gradients.k),
        arg(&gradients.v),
        launch.or_nothing(&gradients.prior),
        arg(&gradients.inverse),
        launch.reach(),
        form,
        launch.element(),
    );
    gradients
}
