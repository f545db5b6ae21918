use std::path::PathBuf;

use super::kind::ErrorKind;

/// An error of profiling workers: of what [`enable_profile`](crate::Collector::enable_profile) was
/// asked for, or of writing a trace, which the next call for a batch reports, or the end of the
/// profile or of the collector.
///
/// ```
/// use windrow_collect::{Collector, ControlError, ProfileConfig, ProfileError};
///
/// let mut collector = Collector::builder("CartPole-v1").frames_per_batch(100).build()?;
/// let config = ProfileConfig::new().num_rollouts(1).warmup_rollouts(1);
/// let refused = collector.enable_profile(&config);
/// assert!(matches!(refused, Err(ControlError::Profile(ProfileError::Rollouts { .. }))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A profile was asked for after workers had begun.
    #[error(
        "a profile records workers from their start: enable_profile must be called before the first batch is asked for"
    )]
    TooLate,
    /// The profile would record nothing.
    #[error(
        "num_rollouts={num_rollouts} must be greater than warmup_rollouts={warmup_rollouts}, or nothing is recorded"
    )]
    Rollouts {
        /// Rollouts for which a worker is profiled.
        num_rollouts: usize,
        /// Those of them that are not recorded.
        warmup_rollouts: usize,
    },
    /// A profile was asked for of no worker.
    #[error("a profile needs a worker: expected at least one in workers, got none")]
    Workers,
    /// Several workers would write their profiles to one file.
    #[error(
        "{workers} workers cannot write their profiles to one file: expected {{worker_idx}} in save_path, got {}",
        path.display()
    )]
    Path {
        /// Profiled workers.
        workers: usize,
        /// The path that was given.
        path: PathBuf,
    },
    /// The [profiler](crate::Profiler) beside windrow's was not written down for workers in
    /// processes.
    #[error("a profiler of workers in processes needs to be written down for them")]
    Unwritten,
    /// A profile would be too large.
    #[error(
        "no memory for {spans} spans of worker {worker}: profile fewer rollouts, or shorter ones"
    )]
    Memory {
        /// Number of the worker.
        worker: usize,
        /// Spans that were to be recorded.
        spans: usize,
    },
    /// A worker's profile could not be written.
    #[error("failed to write the profile of worker {worker} to {}", path.display())]
    File {
        /// Number of the worker.
        worker: usize,
        /// The path of the file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The [profiler](crate::Profiler) beside windrow's failed.
    #[error("the profiler of worker {worker} failed")]
    Profiler {
        /// Number of the worker.
        worker: usize,
        /// The error of the profiler.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ProfileError {
    /// Its cause, roughly.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Rollouts { .. } | Self::Workers | Self::Path { .. } | Self::Unwritten => {
                ErrorKind::Argument
            }
            Self::File { .. } => ErrorKind::File,
            Self::TooLate | Self::Memory { .. } | Self::Profiler { .. } => ErrorKind::Failure,
        }
    }
}
