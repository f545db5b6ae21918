use std::ffi::OsString;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::external::ExternalProfiler;
use super::summary::Tally;
use super::{Phase, Probe, ProfileConfig, ProfilerRecipe};
use crate::error::ProfileError;

/// The start of time, the same for all workers, so that their traces fit together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeline {
    pub(super) began: Instant,
    /// The same moment in nanoseconds since 1970.
    pub(super) unix_nanos: u64,
}

impl Timeline {
    pub(crate) fn start() -> Self {
        let (unix, began) = together(SystemTime::now, Instant::now);
        let unix = unix.duration_since(UNIX_EPOCH);
        Self {
            began,
            unix_nanos: unix.map_or(0, |since| since.as_nanos() as u64),
        }
    }

    /// Nanoseconds since the start.
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// The readings of two clocks at one moment. Reads them several times and takes the closest pair,
/// since the system may stop a thread between two reads.
pub(super) fn together<A, B>(mut one: impl FnMut() -> A, mut other: impl FnMut() -> B) -> (A, B) {
    const LOOKS: usize = 5;
    let mut look = || {
        let began = Instant::now();
        let told = (one(), other());
        (began.elapsed(), told)
    };
    let mut best = look();
    for _ in 1..LOOKS {
        let another = look();
        if another.0 < best.0 {
            best = another;
        }
    }
    best.1
}

/// A phase that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Nanoseconds since the start of the timeline.
    pub(super) start: u64,
    pub(super) nanos: u64,
    /// Number of the step, for a phase that occurs once a step; number of steps, for a rollout.
    pub(super) step: u32,
    pub(super) phase: Phase,
}

/// What is recorded of one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recording {
    pub(super) worker: usize,
    /// The file of its trace.
    pub(super) path: OsString,
    pub(super) warmup_rollouts: usize,
    num_rollouts: usize,
    /// Most steps of a rollout.
    steps: usize,
    /// What another process makes the other profiler of, if there is one.
    pub(super) profiler: Option<Vec<u8>>,
}

impl Recording {
    /// What `config` says of worker `worker`, whose parts have `steps` steps at most.
    pub(crate) fn new(worker: usize, config: &ProfileConfig, steps: usize) -> Self {
        Self {
            worker,
            path: config.path_of(worker).into(),
            warmup_rollouts: config.warmup_rollouts,
            num_rollouts: config.num_rollouts,
            steps,
            profiler: config
                .profiler
                .as_ref()
                .and_then(ProfilerRecipe::written)
                .cloned(),
        }
    }
}

/// Records the phases of one worker, in memory that is allocated at the start.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(super) recording: Recording,
    pub(super) timeline: Timeline,
    /// Rollouts that have ended.
    rollouts: usize,
    /// Each rollout followed by its phases.
    pub(super) spans: Vec<Span>,
    /// Index of the present rollout in `spans`, if it is recorded.
    rollout: Option<usize>,
    /// End of the last span.
    last: u64,
    step: u32,
    /// When the worker began to wait for its next part.
    waiting_since: Option<u64>,
    pub(super) tally: Tally,
    beside: ExternalProfiler,
}

/// Spans of a rollout that do not occur once a step.
const SPANS_OF_ROLLOUT: usize = 5;
const SPANS_OF_STEP: usize = 3;

impl Recorder {
    /// A recorder whose times are those of `timeline`.
    ///
    /// # Errors
    /// [`ProfileError::Memory`] when there is no memory for so many spans.
    pub(crate) fn new(recording: Recording, timeline: Timeline) -> Result<Self, ProfileError> {
        let count = recording
            .steps
            .saturating_mul(SPANS_OF_STEP)
            .saturating_add(SPANS_OF_ROLLOUT)
            .saturating_mul(recording.num_rollouts - recording.warmup_rollouts);
        let mut spans = Vec::new();
        if spans.try_reserve_exact(count).is_err() {
            return Err(ProfileError::Memory {
                worker: recording.worker,
                spans: count,
            });
        }
        Ok(Self {
            recording,
            timeline,
            rollouts: 0,
            spans,
            rollout: None,
            last: 0,
            step: 0,
            waiting_since: None,
            tally: Tally::default(),
            beside: ExternalProfiler::None,
        })
    }

    /// The same, beside a profiler that is made of `recipe`.
    pub(super) fn beside(mut self, recipe: Option<ProfilerRecipe>) -> Self {
        self.beside = recipe.map_or(ExternalProfiler::None, ExternalProfiler::Pending);
        self
    }

    /// Ends the recording of the other profiler.
    ///
    /// # Errors
    /// [`ProfileError::Profiler`].
    pub(super) fn end_beside(&mut self) -> Result<(), ProfileError> {
        let ended = self.beside.end(Path::new(&self.recording.path));
        ended.map_err(|source| ProfileError::Profiler {
            worker: self.recording.worker,
            source,
        })
    }

    /// Begins a rollout, and returns this recorder if the rollout is recorded.
    pub(crate) fn begin(&mut self) -> Option<&mut Self> {
        self.beside.begin(self.recording.worker);
        if self.rollouts < self.recording.warmup_rollouts {
            return None;
        }
        self.rollout = Some(self.spans.len());
        self.step = 0;
        let now = self.timeline.now();
        let start = self.waiting_since.unwrap_or(now);
        self.last = start;
        // The rollout comes before its phases, since viewers take the first of several spans that
        // begin together as the outer one.
        self.push(Phase::Rollout, start);
        self.push(Phase::WaitSlab, now);
        Some(self)
    }

    /// Ends a rollout; `filled`: whether its part was committed.
    pub(super) fn end(&mut self, filled: bool) {
        match filled {
            true => self.finish(),
            false => self.abandon(),
        }
    }

    /// Ends a rollout whose part was committed.
    fn finish(&mut self) {
        let now = self.timeline.now();
        if let Some(rollout) = self.rollout.take() {
            self.push(Phase::Commit, now);
            let span = &mut self.spans[rollout];
            span.nanos = now - span.start;
            span.step = self.step;
            self.tally.add(&self.spans[rollout..]);
        }
        self.rollouts += 1;
        self.beside.step();
        self.waiting_since = Some(now);
    }

    /// Drops a rollout whose part was not committed.
    fn abandon(&mut self) {
        if let Some(rollout) = self.rollout.take() {
            self.spans.truncate(rollout);
        }
        // The worker does not wait now: it makes environments and policy anew.
        self.waiting_since = None;
    }

    pub(super) fn is_done(&self) -> bool {
        self.rollouts >= self.recording.num_rollouts
    }

    fn push(&mut self, phase: Phase, now: u64) {
        self.spans.push(Span {
            start: self.last,
            nanos: now - self.last,
            step: self.step,
            phase,
        });
        self.last = now;
    }
}

impl Probe for Recorder {
    #[inline]
    fn mark(&mut self, phase: Phase) {
        self.push(phase, self.timeline.now());
        self.step += u32::from(phase == Phase::Close);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::together;

    #[test]
    fn clocks_between_which_a_thread_was_held_up_are_read_again() {
        let mut looks = 0;
        let look = || {
            looks += 1;
            looks
        };
        let mut is_held_up = true;
        let (look, ()) = together(look, || {
            if std::mem::take(&mut is_held_up) {
                thread::sleep(Duration::from_millis(100));
            }
        });
        assert!(look > 1);
    }
}
