//! The tile of a kernel.
//!
//! Without the feature `autotune` it is that of least traffic: the same on every run, and so are the bits of results, whose sums
//! go by tiles. With it, the first call of its kind measures all tiles that the device has room for, and keeps the fastest.

use burn_cubecl::tensor::CubeTensor;

use crate::{Pass, Tile, attention::Launch};

/// A kernel: what it writes, from what else it is given, by this tile.
type Kernel = fn(&Launch, &[CubeTensor], Tile) -> Vec<CubeTensor>;

/// Runs a kernel by its best tile.
#[cfg(not(feature = "autotune"))]
pub(crate) fn run(launch: Launch, pass: Pass, given: Vec<CubeTensor>, kernel: Kernel) -> Vec<CubeTensor> {
    let tile = *launch.tiles(pass).first().expect("a call that was taken has a tile");
    kernel(&launch, &given, tile)
}

#[cfg(feature = "autotune")]
pub(crate) use measured::run;

#[cfg(feature = "autotune")]
mod measured {
    use burn_cubecl::{
        CubeTuneId,
        cubecl::tune::{AutotuneOutput, LocalTuner, Tunable, TunableSet, local_tuner},
    };

    use super::{CubeTensor, Kernel, Launch, Pass};

    /// A call with its kernel.
    type Job = (Launch, Pass, Vec<CubeTensor>, Kernel);

    struct Written(Vec<CubeTensor>);

    impl AutotuneOutput for Written {}

    /// Most tiles that a device has room for.
    const TILES: usize = 7;

    static TUNER: LocalTuner<String, CubeTuneId> = local_tuner!();

    pub(crate) fn run(launch: Launch, pass: Pass, given: Vec<CubeTensor>, kernel: Kernel) -> Vec<CubeTensor> {
        let client = launch.client.clone();
        let id = CubeTuneId::new(&client, &launch.device);
        let tunables = TUNER.init(&id, || {
            let kind = |(launch, pass, ..): &Job| launch.setting.kind(*pass);
            let all: TunableSet<_, Job, _> = TunableSet::new_cloning_inputs(kind);
            (0..TILES).fold(all, |all, place| {
                let by = move |(launch, pass, given, kernel): Job| match launch.tiles(pass).get(place) {
                    Some(&tile) => Ok(Written(kernel(&launch, &given, tile))),
                    None => Err(format!("{} tiles fit", launch.tiles(pass).len())),
                };
                all.with(Tunable::new(&format!("tile {place}"), by))
            })
        });
        TUNER.execute(&id, &client, tunables, (launch, pass, given, kernel)).0
    }
}
