//! `env.json`: where and when a run ran.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What speed depends on besides the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of this program.
    pub version: String,
    /// Commit that it was built from, where known.
    pub commit: Option<String>,
    /// The processor's name.
    pub processor: String,
    /// Available logical processors.
    pub processors: usize,
    /// Compute threads.
    pub threads: usize,
    /// Ranks of the job, where there are several; processor and threads are those of rank 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<usize>,
    /// Device of the models, where it is not the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Operating system and instruction set.
    pub platform: String,
    /// Start in UTC, as in `2026-01-31T23:59:59Z`.
    pub date: String,
}

impl Environment {
    /// Describes this machine and the current time.
    pub fn capture(commit: Option<&str>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: commit.map(Into::into),
            processor: processor().unwrap_or_else(|| "unknown".into()),
            processors: std::thread::available_parallelism().map_or(1, Into::into),
            threads: regard_kernels::parallel::threads(),
            ranks: None,
            device: Some(regard_nn::device::name()).filter(|name| *name != "cpu").map(Into::into),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())),
        }
    }
}

impl Environment {
    /// The processor, what of it is used, and the device beside it.
    pub fn machine(&self) -> String {
        let threads = if self.threads == 1 { "1 thread".into() } else { format!("{} threads", self.threads) };
        let device = self.device.as_ref().map(|device| format!(", device {device}")).unwrap_or_default();
        let ranks = self.ranks.map(|ranks| format!(" on each of {ranks} ranks")).unwrap_or_default();
        format!("{}, {threads}{ranks}{device}", self.processor)
    }
}

fn processor() -> Option<String> {
    let about = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = about.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().into())
}

/// UTC date and time of seconds since 1970. The calendar by Howard Hinnant's `civil_from_days`.
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days and years count from 1 March of year 0, so that a leap day ends its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn a_capture_says_something_everywhere() {
        let environment = Environment::capture(Some("abc"));
        assert!(environment.threads >= 1 && !environment.processor.is_empty());
        assert_eq!(environment.commit.as_deref(), Some("abc"));
    }
}
