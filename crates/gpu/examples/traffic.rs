//! Bytes between memory and threads of fused and composed forms, one line a call.

use std::io::{self, Write};

use regard_gpu::{Call, FeatureSizes, Setting, Sizes};

/// Shared memory of a block of threads of Metal and software Vulkan.
const SHARED: usize = 32 << 10;
const THREADS: usize = 256;

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "| | N | D | fused, forward | composed | fused, backward | composed |")?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|")?;
    let mechanisms = [("softmax", 1, false), ("gaussian", 1, true), ("mgk, 2 components", 2, true)];
    for (name, components, distances) in mechanisms {
        for causal in [false, true] {
            for (tokens, width) in [(1024, 32), (1024, 64), (1024, 128), (4096, 64), (16384, 64)] {
                let sizes = Sizes {
                    batch: 1,
                    queries: tokens,
                    keys: tokens,
                    heads: 8,
                    key_heads: 8,
                    components,
                    width,
                    value_width: width,
                };
                let call = Call { distances, causal, window: None };
                let prior_axes = if components > 1 { 2 } else { 0 };
                let setting = Setting { call, sizes, padded: false, slopes: false, prior_axes };
                let fused = setting.traffic(4, SHARED, THREADS).expect("a tile").map(|traffic| traffic.total());
                let composed = setting.composed_bytes(4);
                let [fused, composed] = [fused, composed].map(|bytes| bytes.map(|bytes| bytes as f64 / 1e6));
                let name = if causal { format!("{name}, causal") } else { name.to_owned() };
                writeln!(
                    out,
                    "| {name} | {tokens} | {width} | {:.0} | {:.0} | {:.0} | {:.0} |",
                    fused[0], composed[0], fused[1], composed[1]
                )?;
            }
        }
    }
    for tokens in [1024, 4096, 16384] {
        for width in [32, 64] {
            let sizes = FeatureSizes { batch: 1, heads: 8, tokens, features: width, width };
            let fused = sizes.traffic(4, SHARED).expect("a state that fits").map(|traffic| traffic.total());
            let [fused, composed] = [fused, sizes.composed_bytes(4)].map(|bytes| bytes.map(|bytes| bytes as f64 / 1e6));
            writeln!(
                out,
                "| linear, causal | {tokens} | {width} | {:.0} | {:.0} | {:.0} | {:.0} |",
                fused[0], composed[0], fused[1], composed[1]
            )?;
        }
    }
    Ok(())
}
