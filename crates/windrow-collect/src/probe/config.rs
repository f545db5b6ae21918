use std::path::PathBuf;

use super::ProfilerRecipe;
use crate::error::ProfileError;

/// The placeholder for the worker's number in a path.
const PLACEHOLDER: &str = "{worker_idx}";

/// What [`Collector::enable_profile`](crate::Collector::enable_profile) records.
///
/// ```
/// use windrow_collect::ProfileConfig;
///
/// let config = ProfileConfig::new()
///     .workers([0, 2])
///     .num_rollouts(5)
///     .warmup_rollouts(2)
///     .save_path("traces/worker_{worker_idx}.json");
/// assert!(config.profiles(2) && !config.profiles(1));
/// assert_eq!(config.path_of(2).to_str(), Some("traces/worker_2.json"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileConfig {
    /// Workers to profile; `None` for the first one.
    pub workers: Option<Vec<usize>>,
    /// Rollouts after which the profile of a worker ends, those that warm up included. 3 by
    /// default.
    pub num_rollouts: usize,
    /// Rollouts at the start that are not recorded. 1 by default.
    pub warmup_rollouts: usize,
    /// Where the trace of each worker goes, with `{worker_idx}` in place of its number;
    /// `./collector_profile_{worker_idx}.json` by default.
    pub save_path: PathBuf,
    /// What else records the workers that are profiled; nothing by default.
    pub profiler: Option<ProfilerRecipe>,
}

impl Default for ProfileConfig {
    fn default() -> Self {
        Self {
            workers: None,
            num_rollouts: 3,
            warmup_rollouts: 1,
            save_path: PathBuf::from("./collector_profile_{worker_idx}.json"),
            profiler: None,
        }
    }
}

impl ProfileConfig {
    /// The first worker's second and third rollout.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Workers to profile.
    #[must_use]
    pub fn workers(mut self, workers: impl IntoIterator<Item = usize>) -> Self {
        self.workers = Some(workers.into_iter().collect());
        self
    }

    /// Rollouts after which the profile of a worker ends, those that warm up included.
    #[must_use]
    pub fn num_rollouts(mut self, rollouts: usize) -> Self {
        self.num_rollouts = rollouts;
        self
    }

    /// Rollouts at the start that are not recorded.
    #[must_use]
    pub fn warmup_rollouts(mut self, rollouts: usize) -> Self {
        self.warmup_rollouts = rollouts;
        self
    }

    /// Where the traces go, with `{worker_idx}` in place of the worker's number.
    #[must_use]
    pub fn save_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.save_path = path.into();
        self
    }

    /// Has another profiler record the same workers.
    #[doc(hidden)]
    #[must_use]
    pub fn profiler(mut self, profiler: ProfilerRecipe) -> Self {
        self.profiler = Some(profiler);
        self
    }

    /// Whether worker `worker` is profiled.
    #[must_use]
    pub fn profiles(&self, worker: usize) -> bool {
        match &self.workers {
            Some(workers) => workers.contains(&worker),
            None => worker == 0,
        }
    }

    /// The file for the trace of worker `worker`.
    #[must_use]
    pub fn path_of(&self, worker: usize) -> PathBuf {
        match self.save_path.to_str() {
            Some(path) => path.replace(PLACEHOLDER, &worker.to_string()).into(),
            None => self.save_path.clone(),
        }
    }

    /// The first of the named workers that a collector of `workers` workers does not have.
    pub(crate) fn unknown(&self, workers: usize) -> Option<usize> {
        let mut named = self.workers.iter().flatten().copied();
        named.find(|&worker| worker >= workers)
    }

    /// The profiled workers of a collector of `workers` workers, which has all that are named. An
    /// error where nothing would be recorded, or two workers would write one file.
    pub(super) fn chosen(&self, workers: usize) -> Result<Vec<usize>, ProfileError> {
        if self.num_rollouts <= self.warmup_rollouts {
            return Err(ProfileError::Rollouts {
                num_rollouts: self.num_rollouts,
                warmup_rollouts: self.warmup_rollouts,
            });
        }
        let chosen: Vec<usize> = (0..workers).filter(|&idx| self.profiles(idx)).collect();
        match chosen[..] {
            [] => Err(ProfileError::Workers),
            [first, second, ..] if self.path_of(first) == self.path_of(second) => {
                Err(ProfileError::Path {
                    workers: chosen.len(),
                    path: self.save_path.clone(),
                })
            }
            _ => Ok(chosen),
        }
    }
}
