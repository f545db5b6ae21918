use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Phase;
use super::recorder::Span;

/// How long each phase took, over all recorded rollouts of each profiled worker. Displayed as a
/// table.
///
/// ```
/// use windrow_collect::{Collector, Phase, ProfileConfig};
///
/// let path = std::env::temp_dir().join("windrow_summary_{worker_idx}.json");
/// let mut collector = Collector::builder("CartPole-v1")
///     .frames_per_batch(100)
///     .build()?;
/// collector.enable_profile(&ProfileConfig::new().save_path(&path))?;
/// for batch in collector.by_ref().take(3) {
///     batch?;
/// }
/// let summary = collector.profile_summary();
/// let worker = &summary.workers[0];
/// assert_eq!(worker.phase(Phase::EnvStep).count, 2 * 100);
/// println!("{summary}");
/// # std::fs::remove_file(path.with_file_name("windrow_summary_0.json"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ProfileSummary {
    /// The profiled workers, in their order; none before
    /// [`enable_profile`](crate::Collector::enable_profile).
    pub workers: Vec<WorkerProfile>,
}

/// How long each phase took one worker.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WorkerProfile {
    /// Number of the worker.
    pub worker: usize,
    phases: [PhaseProfile; Phase::ALL.len()],
}

/// How long one phase took one worker.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PhaseProfile {
    /// The phase.
    pub phase: Phase,
    /// How often it occurred.
    pub count: u64,
    /// Its duration in all.
    pub total: Duration,
    /// Its mean duration.
    pub mean: Duration,
    /// Its share of the duration of all rollouts, 0 to 1.
    pub share: f64,
}

impl WorkerProfile {
    /// The figures of each phase, in the order of [`Phase::ALL`].
    #[must_use]
    pub fn phases(&self) -> &[PhaseProfile] {
        &self.phases
    }

    /// The figures of one phase.
    #[must_use]
    pub fn phase(&self, phase: Phase) -> &PhaseProfile {
        &self.phases[phase as usize]
    }
}

/// Counts and durations, by phase.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    counts: [u64; Phase::ALL.len()],
    nanos: [u64; Phase::ALL.len()],
}

impl Tally {
    pub(super) fn add(&mut self, spans: &[Span]) {
        for span in spans {
            self.counts[span.phase as usize] += 1;
            self.nanos[span.phase as usize] += span.nanos;
        }
    }

    pub(super) fn profile(&self, worker: usize) -> WorkerProfile {
        let whole = self.nanos[Phase::Rollout as usize].max(1) as f64;
        let phases = Phase::ALL.map(|phase| {
            let (count, nanos) = (self.counts[phase as usize], self.nanos[phase as usize]);
            PhaseProfile {
                phase,
                count,
                total: Duration::from_nanos(nanos),
                mean: Duration::from_nanos(nanos / count.max(1)),
                share: nanos as f64 / whole,
            }
        });
        WorkerProfile { worker, phases }
    }
}

impl fmt::Display for ProfileSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.workers.is_empty() {
            return f.write_str("no worker is profiled");
        }
        for (i, worker) in self.workers.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{worker}")?;
        }
        Ok(())
    }
}

impl fmt::Display for WorkerProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("worker {}", self.worker);
        write!(
            f,
            "{name:<12}{:>10}{:>12}{:>12}{:>9}",
            "count", "total", "mean", "share"
        )?;
        for phase in &self.phases {
            write!(f, "\n{phase}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PhaseProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, mean) = (format!("{:.2?}", self.total), format!("{:.2?}", self.mean));
        write!(
            f,
            "{:<12}{:>10}{total:>12}{mean:>12}{:>7.1} %",
            self.phase,
            self.count,
            100.0 * self.share
        )
    }
}
