use windrow_env::EnvError;

/// Why a state of a collector cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The state was saved in another form, by another version of windrow.
    #[error("expected simulators of version {expected}, got version {got}")]
    Version {
        /// The version that is read.
        expected: u32,
        /// That of the state.
        got: u32,
    },
    /// The state was saved by another number of workers.
    #[error("expected the state of {expected} workers, got that of {got}")]
    Workers {
        /// Workers of the collector.
        expected: usize,
        /// Workers in the state.
        got: usize,
    },
    /// Environments or policy of a worker.
    #[error("worker {worker}: {reason}")]
    Worker {
        /// The worker.
        worker: usize,
        /// What was expected, and what came.
        reason: String,
    },
    /// Running statistics do not fit.
    #[error(transparent)]
    Statistics(EnvError),
    /// What was saved cannot be read or written.
    #[error("{0}")]
    Failed(String),
}
