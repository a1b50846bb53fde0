//! The exit code of an error.

use regard_tasks::Class;
pub use regard_tasks::Failure;

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Exit code of each class, as `regard --help` lists them. An interrupt has the code of its signal where that is known.
pub fn code(class: Class) -> u8 {
    match class {
        Class::Check => 1,
        Class::Usage => 2,
        Class::Data => 3,
        Class::Numeric => 4,
        Class::Budget => 5,
        Class::Interrupted => 130,
    }
}

#[cfg(test)]
mod tests {
    use regard_lab::{bench::BenchError, compare::CompareError, probe::ProbeError};

    use super::*;

    #[test]
    fn an_interrupt_has_one_code_whatever_it_ends() {
        let failures: [Failure; 4] = [
            BenchError::Interrupted.into(),
            ProbeError::Interrupted.into(),
            CompareError::Interrupted.into(),
            Failure::interrupted("x").at("entry"),
        ];
        assert!(failures.iter().all(|failure| code(failure.class) == 130));
    }
}
