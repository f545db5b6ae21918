use crate::config::plan::Placement;
use crate::deliver::collector::Collector;
use crate::deliver::stage::LastStage;
use crate::error::{ControlError, ProfileError};
use crate::probe::{ProfileConfig, ProfileSummary};

impl<S: LastStage> Collector<S> {
    /// Records where the time of workers goes, from their first rollouts on, and writes one trace
    /// for each of them, which [Perfetto](https://ui.perfetto.dev) and `chrome://tracing` open: a
    /// [`Phase`](crate::Phase) is a span.
    ///
    /// A worker writes its trace once it has `num_rollouts` rollouts behind it, and is not looked
    /// at any more. While it is, each phase takes a look at the clock longer. A rollout is the
    /// filling of one part: a worker's share of a batch. A trace that could not be written is
    /// reported by the next call that asks for a batch, or by
    /// [`disable_profile`](Self::disable_profile) or [`shutdown`](Self::shutdown); the collector
    /// can be used on.
    ///
    /// Workers in processes write their traces themselves; times of all traces are those of one
    /// clock. Where a process dies, what it has recorded is lost, unless its trace was written; the
    /// one that takes its place begins the recording anew.
    ///
    /// Asked for twice, the second answer counts.
    ///
    /// ```
    /// use windrow_collect::{MultiSyncCollector, ProfileConfig};
    ///
    /// let path = std::env::temp_dir().join("windrow_trace_{worker_idx}.json");
    /// let mut collector = MultiSyncCollector::builder("CartPole-v1")
    ///     .num_workers(2)
    ///     .frames_per_batch(200)
    ///     .total_frames(800)
    ///     .build()?;
    /// let config = ProfileConfig::new().workers([0, 1]).save_path(path);
    /// collector.enable_profile(&config)?;
    /// for batch in &mut collector {
    ///     batch?;
    /// }
    /// collector.shutdown()?;
    /// for worker in [0, 1] {
    ///     let trace = std::fs::read_to_string(config.path_of(worker))?;
    ///     assert!(trace.contains("\"name\":\"EnvStep\""));
    /// #   std::fs::remove_file(config.path_of(worker))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ControlError::Profile`] with what is wrong with the profile, or when the first batch was
    /// asked for already; [`ControlError::NoSuchWorker`] when there is no such worker;
    /// [`ControlError::Next`] when the collector is over.
    pub fn enable_profile(&mut self, config: &ProfileConfig) -> Result<(), ControlError> {
        self.check_running()?;
        if self.core.counters().throughput.has_begun() {
            return Err(ProfileError::TooLate.into());
        }
        let workers = self.core.workers();
        if let Some(worker) = config.unknown(workers) {
            return Err(ControlError::NoSuchWorker { worker, workers });
        }
        let longest = self.core.shared.schedule().steps.iter().copied().max();
        let (profile, longest) = (&self.core.shared.profile, longest.unwrap_or(0));
        let enabled = match self.core.plan.placement {
            #[cfg(target_os = "linux")]
            Placement::Processes => profile.enable_away(config, longest),
            _ => profile.enable(config, longest),
        };
        Ok(enabled?)
    }

    /// Stops recording, and writes down what there is: at once for workers between two parts, as
    /// soon as they are through for others. No file is written for a worker without a recorded
    /// rollout. Nothing happens where nothing is recorded. A process that does not answer within
    /// five seconds is not waited for.
    ///
    /// # Errors
    /// [`ProfileError::File`] when a trace could not be written; [`ProfileError::Profiler`] when
    /// the other [profiler](ProfileConfig::profiler) failed.
    pub fn disable_profile(&mut self) -> Result<(), ProfileError> {
        let profile = &self.core.shared.profile;
        profile.end();
        #[cfg(target_os = "linux")]
        if self.core.plan.placement == Placement::Processes {
            // The pump tells them, and takes their answers.
            profile.await_traces(Self::PATIENCE, || self.core.ring.pump());
        }
        profile.check()
    }

    /// How long each phase took, in the rollouts that were recorded so far. Stays when the
    /// recording is over.
    #[must_use]
    pub fn profile_summary(&self) -> ProfileSummary {
        self.core.shared.profile.summary()
    }
}
