//! Recordings of workers in other processes: what their collector keeps of them, and the messages
//! of both sides.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use windrow_peer::shared_clock;
use windrow_sync::{error_chain, unpoisoned};

use super::external::{MakeProfiler, made_of};
use super::profile::{Profile, RecorderPlace};
use super::recorder::{Recording, together};
use super::summary::Tally;
use super::{ProfileConfig, ProfilerRecipe, Recorder, Timeline, trace};
use crate::error::ProfileError;

/// A recording in the process of its worker.
#[derive(Debug)]
pub(super) struct RemoteRecording {
    recording: Recording,
    timeline: Timeline,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The process was not sent the command to record yet.
    Pending,
    Recording,
    /// It was not sent the command to end yet.
    Stopping,
    /// It was sent the command to end.
    Ending,
}

impl RemoteRecording {
    /// What is left of it once it is to end: nothing if it has not begun.
    pub(super) fn stopping(mut self) -> Option<Self> {
        match self.stage {
            Stage::Pending => return None,
            Stage::Recording => self.stage = Stage::Stopping,
            Stage::Stopping | Stage::Ending => {}
        }
        Some(self)
    }
}

/// The next command to a worker's process.
#[derive(Debug)]
pub(crate) enum NextRecording {
    Begin(Box<Order>),
    End,
}

/// To the process of a worker: record.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    recording: Recording,
    /// When the timeline began, by the clock that both processes read.
    began: Duration,
    /// The same moment in nanoseconds since 1970.
    unix_nanos: u64,
}

impl Order {
    fn new(recording: &Recording, timeline: Timeline) -> Self {
        let mut recording = recording.clone();
        // The folder of the collector; that of the worker may be another one.
        if let Ok(path) = std::path::absolute(&recording.path) {
            recording.path = path.into();
        }
        let (now, elapsed) = together(shared_clock, || timeline.began.elapsed());
        Self {
            recording,
            began: now.saturating_sub(elapsed),
            unix_nanos: timeline.unix_nanos,
        }
    }

    fn timeline(&self) -> Timeline {
        let (now, shared) = together(Instant::now, shared_clock);
        let since = shared.saturating_sub(self.began);
        Timeline {
            began: now.checked_sub(since).unwrap_or(now),
            unix_nanos: self.unix_nanos,
        }
    }

    /// The recorder.
    ///
    /// # Errors
    /// What is to be reported in place of a recording.
    pub(crate) fn recorder(mut self, make: MakeProfiler) -> Result<Box<Recorder>, Box<Recorded>> {
        let timeline = self.timeline();
        let beside = self.recording.profiler.take();
        let beside = beside.map(|written| made_of(make, written));
        let recorder = Recorder::new(self.recording, timeline);
        let recorder = recorder.map(|recorder| Box::new(recorder.beside(beside)));
        recorder.map_err(|error| {
            Box::new(Recorded {
                tally: Tally::default(),
                over: true,
                failure: Failure::of(&error),
            })
        })
    }
}

/// From the process of a worker: what it has recorded so far.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Recorded {
    tally: Tally,
    /// The recording has ended, and its trace was written unless there was a failure.
    over: bool,
    failure: Option<Failure>,
}

/// Why there is no trace.
#[derive(Debug, Serialize, Deserialize)]
enum Failure {
    Memory { spans: usize },
    File { code: Option<i32>, message: String },
    Profiler { message: String },
}

impl Failure {
    fn of(error: &ProfileError) -> Option<Self> {
        match error {
            ProfileError::Memory { spans, .. } => Some(Self::Memory { spans: *spans }),
            ProfileError::File { source, .. } => Some(Self::File {
                code: source.raw_os_error(),
                message: source.to_string(),
            }),
            ProfileError::Profiler { source, .. } => Some(Self::Profiler {
                message: error_chain(&**source),
            }),
            _ => None,
        }
    }

    fn into_error(self, worker: usize, path: OsString) -> ProfileError {
        match self {
            Self::Memory { spans } => ProfileError::Memory { worker, spans },
            Self::Profiler { message } => ProfileError::Profiler {
                worker,
                source: message.into(),
            },
            Self::File { code, message } => ProfileError::File {
                worker,
                path: path.into(),
                source: code
                    .map_or_else(|| io::Error::other(message), io::Error::from_raw_os_error),
            },
        }
    }
}

/// In the process of the worker.
impl Recorder {
    /// Ends a rollout, and the recording if that was the last one; the report.
    pub(crate) fn end_rollout(&mut self, filled: bool) -> Recorded {
        self.end(filled);
        match self.is_done() {
            true => self.finished(),
            false => Recorded {
                tally: self.tally,
                over: false,
                failure: None,
            },
        }
    }

    /// Writes the trace, if a rollout was recorded; the report.
    pub(crate) fn finished(&mut self) -> Recorded {
        Recorded {
            tally: self.tally,
            over: true,
            failure: trace::save(self).err().as_ref().and_then(Failure::of),
        }
    }
}

impl Recorded {
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}

/// For workers in processes.
impl Profile {
    /// As [`enable`](Self::enable), where each worker records in its own process.
    ///
    /// # Errors
    /// Those of [`enable`](Self::enable), and [`ProfileError::Unwritten`].
    pub(crate) fn enable_away(
        &self,
        config: &ProfileConfig,
        steps: usize,
    ) -> Result<(), ProfileError> {
        let written = |recipe: &ProfilerRecipe| recipe.written().is_some();
        if !config.profiler.as_ref().is_none_or(written) {
            return Err(ProfileError::Unwritten);
        }
        // What cannot be recorded is refused here, as everywhere. The recorders themselves are made
        // where they record.
        let recorders = self.recorders(config, steps)?;
        self.place(recorders.into_iter().map(|recorder| {
            let remote = RemoteRecording {
                timeline: recorder.timeline,
                recording: recorder.recording,
                stage: Stage::Pending,
            };
            (
                remote.recording.worker,
                RecorderPlace::RemoteRecording(Box::new(remote)),
            )
        }));
        Ok(())
    }

    /// The next command to the process of worker `worker`, which is between two parts.
    pub(crate) fn next_command(&self, worker: usize) -> Option<NextRecording> {
        if self.active.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let slot = &mut self.slots()[worker];
        let RecorderPlace::RemoteRecording(remote) = &mut slot.place else {
            return None;
        };
        match remote.stage {
            Stage::Pending => {
                remote.stage = Stage::Recording;
                // Of one process, as its trace: not that of one that has died.
                slot.tally = Some(Tally::default());
                let order = Order::new(&remote.recording, remote.timeline);
                Some(NextRecording::Begin(Box::new(order)))
            }
            Stage::Stopping => {
                remote.stage = Stage::Ending;
                Some(NextRecording::End)
            }
            Stage::Recording | Stage::Ending => None,
        }
    }

    /// Takes what worker `worker` has recorded.
    pub(crate) fn recorded(&self, worker: usize, recorded: Recorded) {
        let failure = {
            let slot = &mut self.slots()[worker];
            let RecorderPlace::RemoteRecording(remote) = &mut slot.place else {
                return;
            };
            slot.tally = Some(recorded.tally);
            let path = || remote.recording.path.clone();
            let failure = recorded
                .failure
                .map(|failure| failure.into_error(worker, path()));
            if recorded.over {
                self.leave(&mut slot.place);
            }
            failure
        };
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// Process `pid` of worker `worker` has ended. One that takes its place begins the recording
    /// anew.
    pub(crate) fn process_ended(&self, worker: usize, pid: u32) {
        let slot = &mut self.slots()[worker];
        let RecorderPlace::RemoteRecording(remote) = &mut slot.place else {
            return;
        };
        let path = Path::new(&remote.recording.path);
        // Mostly there is none.
        let _ = std::fs::remove_file(trace::partial(path, pid, remote.timeline.unix_nanos));
        match remote.stage {
            Stage::Pending | Stage::Recording => remote.stage = Stage::Pending,
            Stage::Stopping | Stage::Ending => self.leave(&mut slot.place),
        }
    }

    fn leave(&self, place: &mut RecorderPlace) {
        *place = RecorderPlace::Nowhere;
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.ended.notify_all();
    }

    /// Waits at most `timeout` until those that are ending have written their traces; `pump` is
    /// called now and then.
    pub(crate) fn await_traces(&self, timeout: Duration, mut pump: impl FnMut()) {
        const SLICE: Duration = Duration::from_millis(100);
        let deadline = Instant::now() + timeout;
        loop {
            pump();
            let slots = self.slots();
            let left = deadline.saturating_duration_since(Instant::now());
            let waits = slots.iter().any(|slot| match &slot.place {
                RecorderPlace::RemoteRecording(remote) => remote.stage == Stage::Ending,
                _ => false,
            });
            if !waits || left.is_zero() {
                return;
            }
            let woken = self.ended.wait_timeout(slots, left.min(SLICE));
            drop(unpoisoned(woken));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_two_processes_are_those_of_one_timeline() {
        let began = Instant::now();
        let timeline = Timeline::start();
        let recording = Recording::new(0, &ProfileConfig::new(), 1);
        let asked = Instant::now();
        let order = serde_json::to_string(&Order::new(&recording, timeline)).unwrap();
        let order: Order = serde_json::from_str(&order).unwrap();
        let other = order.timeline();
        let error = asked.elapsed();
        assert_eq!(other.unix_nanos, timeline.unix_nanos);
        assert!(other.began <= timeline.began && other.began >= began - error);
        // Neither is off by more than this thread was kept waiting.
        assert!(timeline.began - other.began <= error);
    }
}
