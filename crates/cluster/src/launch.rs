//! Whether a launcher of MPI has started this process.

/// What launchers tell of a process in its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its rank.
    pub rank: usize,
    /// Processes of the job.
    pub ranks: usize,
}

/// Names of rank and number of ranks: of Open MPI, of MPICH and its kin, and of Slurm's `srun --mpi=pmix`, where the second
/// is Slurm's own.
const NAMES: [[&str; 2]; 3] =
    [["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], ["PMI_RANK", "PMI_SIZE"], ["PMIX_RANK", "SLURM_NTASKS"]];

impl Launch {
    /// Of this process; `None` if no launcher of MPI has started it.
    pub fn of_process() -> Option<Self> {
        Self::from(|name| std::env::var(name).ok())
    }

    fn from(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name| variable(name)?.parse().ok();
        let found = NAMES.iter().find_map(|[rank, ranks]| Some(Self { rank: number(rank)?, ranks: number(ranks)? }));
        found.filter(|launch| launch.rank < launch.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launcher_is_known() {
        let of = |all: &[(&str, &str)]| {
            Launch::from(|name| all.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned()))
        };
        let third = Some(Launch { rank: 2, ranks: 4 });
        assert_eq!(of(&[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")]), third);
        assert_eq!(of(&[("PMI_RANK", "2"), ("PMI_SIZE", "4")]), third);
        assert_eq!(of(&[("PMIX_RANK", "2"), ("SLURM_NTASKS", "4")]), third);
        // A job of Slurm without MPI, and half a launcher.
        assert_eq!(of(&[("SLURM_NTASKS", "4")]), None);
        assert_eq!(of(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]), None);
    }
}
