//! Devices by name, and the one that a program computes on.

use std::{fmt, sync::OnceLock};

use burn::tensor::Device;
use regard_kernels::{AttentionOptions, Mechanism};

use crate::ops::{runs_fused, runs_kernels};

/// Kinds of devices, and whether this build has them.
const KINDS: [(&str, bool); 5] = [
    ("cpu", true),
    ("wgpu", cfg!(feature = "wgpu")),
    ("metal", cfg!(feature = "metal")),
    ("cuda", cfg!(feature = "cuda")),
    ("rocm", cfg!(feature = "rocm")),
];

/// A device that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No such kind.
    #[error(
        "device '{0}' is unknown; expected cpu, wgpu, metal, cuda or rocm, with an index if there are several, as in cuda:1"
    )]
    Unknown(String),
    /// A kind that this build leaves out.
    #[error("device '{kind}' is not part of this build, which has {}; build it with: --features {kind}", built().join(", "))]
    NotBuilt {
        /// Its name.
        kind: &'static str,
    },
    /// A kind of which the machine has fewer.
    #[error("device '{name}' is not there: this machine has {} of kind {kind}; 'regard doctor' lists devices", if *found == 0 { "none".into() } else { found.to_string() })]
    Missing {
        /// As asked for.
        name: String,
        /// Its kind.
        kind: &'static str,
        /// How many there are.
        found: usize,
    },
}

/// A device by its name: `cpu`, `wgpu`, `metal`, `cuda` or `rocm`, with an index after a colon for any but the first.
///
/// # Errors
/// A name of another form, a kind that this build leaves out, or a device that the machine does not have.
pub fn find(name: &str) -> Result<Device, DeviceError> {
    let unknown = || DeviceError::Unknown(name.into());
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, index.parse().map_err(|_| unknown())?),
        None => (name, 0usize),
    };
    let (kind, _) = KINDS.into_iter().find(|(known, _)| *known == kind).ok_or_else(unknown)?;
    let devices = all(kind).ok_or(DeviceError::NotBuilt { kind })?;
    let found = devices.len();
    devices.into_iter().nth(index).ok_or_else(|| DeviceError::Missing { name: name.into(), kind, found })
}

/// Kinds that this build has.
pub fn built() -> Vec<&'static str> {
    KINDS.into_iter().filter_map(|(kind, built)| built.then_some(kind)).collect()
}

/// The devices of a kind, `None` where the build leaves it out.
fn all(kind: &str) -> Option<Vec<Device>> {
    match kind {
        "cpu" => Some(vec![Device::flex()]),
        #[cfg(feature = "wgpu")]
        "wgpu" => Some(Device::enumerate(burn::tensor::DeviceType::Wgpu).into_vec()),
        #[cfg(feature = "metal")]
        "metal" => Some(Device::enumerate(burn::tensor::DeviceType::Metal).into_vec()),
        #[cfg(feature = "cuda")]
        "cuda" => Some(Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec()),
        #[cfg(feature = "rocm")]
        "rocm" => Some(Device::enumerate(burn::tensor::DeviceType::Rocm).into_vec()),
        _ => None,
    }
}

/// A device that the machine has.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Found {
    /// The name that [`find`] takes.
    pub name: String,
    /// The part, where the driver says.
    pub part: String,
    /// Whether attention runs as kernels of the CPU.
    pub kernels: bool,
    /// Mechanisms whose attention runs as fused kernels of GPUs, with default options.
    pub fused: Vec<&'static str>,
    /// Mechanisms of which this is so under a causal mask only; under others they are composed.
    pub fused_causal: Vec<&'static str>,
    /// Mechanisms whose attention is composed of tensor operations.
    pub composed: Vec<&'static str>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}; attention by ", self.name, self.part)?;
        if self.kernels {
            return write!(f, "kernels)");
        }
        let kinds = [
            ("fused kernels", &self.fused),
            ("under a causal mask also", &self.fused_causal),
            ("composed forms", &self.composed),
        ];
        let said = kinds.iter().filter(|(_, names)| !names.is_empty());
        let said: Vec<String> = said.map(|(kind, names)| format!("{kind}: {}", names.join(", "))).collect();
        write!(f, "{})", said.join("; "))
    }
}

/// Every device of every kind that this build has.
pub fn list() -> Vec<Found> {
    let of_kind = |kind_name: &'static str| {
        let devices = all(kind_name).unwrap_or_default();
        devices.into_iter().enumerate().map(move |(index, device)| {
            let kernels = runs_kernels(&device);
            // Under any mask, under a causal one, and never.
            let kind = |mechanism| {
                let options = AttentionOptions { mechanism, ..AttentionOptions::default() };
                [true, false].map(|causal| runs_fused(&options, causal, &device))
            };
            let of = |kinds: [bool; 2]| {
                let names = Mechanism::ALL.iter().filter(|&&mechanism| !kernels && kind(mechanism) == kinds);
                names.map(|mechanism| mechanism.name()).collect()
            };
            Found {
                name: if index == 0 { kind_name.into() } else { format!("{kind_name}:{index}") },
                part: part(&device),
                kernels,
                fused: of([true, true]),
                fused_causal: of([true, false]),
                composed: of([false, false]),
            }
        })
    };
    built().into_iter().flat_map(of_kind).collect()
}

fn part(device: &Device) -> String {
    #[cfg(feature = "cube")]
    if let Some(identity) = device.identity() {
        return identity.name;
    }
    let _ = device;
    "Flex".into()
}

static CHOSEN: OnceLock<(String, Device)> = OnceLock::new();

/// Makes the device of this name, as in [`find`], that of this program: once, and before anything is computed.
///
/// # Errors
/// Those of [`find`].
pub fn choose(name: &str) -> Result<(), DeviceError> {
    let device = find(name)?;
    CHOSEN.get_or_init(|| (name.into(), device));
    Ok(())
}

/// The chosen device, the CPU if none was.
pub fn chosen() -> Device {
    CHOSEN.get().map_or_else(Device::flex, |(_, device)| device.clone())
}

/// The name of the chosen device.
pub fn name() -> &'static str {
    CHOSEN.get().map_or("cpu", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_not_there_are_told_apart() {
        assert!(find("cpu").is_ok() && find("cpu:0").is_ok());
        assert_eq!(find("gpu").unwrap_err(), DeviceError::Unknown("gpu".into()));
        assert_eq!(find("cuda:x").unwrap_err(), DeviceError::Unknown("cuda:x".into()));
        let missing = find("cpu:3").unwrap_err();
        assert!(missing.to_string().contains("has 1 of kind cpu"), "{missing}");
        for (kind, _) in KINDS.into_iter().filter(|(_, built)| !built) {
            let error = find(kind).unwrap_err();
            assert!(error.to_string().ends_with(&format!("--features {kind}")), "{error}");
        }
        assert!(list().iter().any(|found| found.name == "cpu" && found.kernels));
    }
}
