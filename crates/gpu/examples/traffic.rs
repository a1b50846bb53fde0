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
                let setting = setting(tokens, width, components, Call { distances, causal, window: None });
                let fused = setting.traffic(4, SHARED, THREADS).expect("a tile").map(|traffic| traffic.total());
                let name = if causal { format!("{name}, causal") } else { name.to_owned() };
                line(&mut out, &name, [tokens, width], fused, setting.composed_bytes(4))?;
            }
        }
    }
    for tokens in [1024, 4096, 16384] {
        for width in [32, 64] {
            let sizes = FeatureSizes { batch: 1, heads: 8, tokens, features: width, width };
            let fused = sizes.traffic(4, SHARED).expect("a state that fits").map(|traffic| traffic.total());
            line(&mut out, "linear, causal", [tokens, width], fused, sizes.composed_bytes(4))?;
        }
    }
    for (tokens, radius) in [(1024, 32), (4096, 32), (4096, 128)] {
        let setting = setting(tokens, 64, 1, Call { causal: true, window: Some(radius), ..Call::default() });
        let features = FeatureSizes { batch: 1, heads: 8, tokens: tokens - radius - 1, features: 64, width: 64 };
        let far = features.traffic(4, SHARED).expect("a state that fits");
        let fused = setting.window_traffic(far, 4, SHARED, THREADS).expect("a tile");
        let name = format!("scatterbrain, causal, radius {radius}");
        line(&mut out, &name, [tokens, 64], fused, setting.window_composed_bytes(4))?;
    }
    Ok(())
}

fn setting(tokens: usize, width: usize, components: usize, call: Call) -> Setting {
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
    let prior_axes = if components > 1 { 2 } else { 0 };
    Setting { call, sizes, padded: false, slopes: false, prior_axes }
}

fn line(
    out: &mut impl Write,
    name: &str,
    [tokens, width]: [usize; 2],
    fused: [u64; 2],
    composed: [u64; 2],
) -> io::Result<()> {
    let [fused, composed] = [fused, composed].map(|bytes| bytes.map(|bytes| bytes as f64 / 1e6));
    writeln!(
        out,
        "| {name} | {tokens} | {width} | {:.0} | {:.0} | {:.0} | {:.0} |",
        fused[0], composed[0], fused[1], composed[1]
    )
}
