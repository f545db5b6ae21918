//! Recordings of workers in other processes: what their collector keeps of them, and what both sides tell each other.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use windrow_process::shared_clock;
use windrow_sync::{error_chain, unpoisoned};

use super::beside::{MakeProfiler, made_of};
use super::profile::{Place, Profile};
use super::recorder::Recording;
use super::summary::Tally;
use super::{ProfileConfig, ProfilerRecipe, Recorder, Timeline, trace};
use crate::CollectError;

/// A recording in the process of its worker.
#[derive(Debug)]
pub(super) struct Away {
    recording: Recording,
    timeline: Timeline,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The process has yet to be told.
    Due,
    Recording,
    /// It is to be told to end.
    Recalled,
    /// It was told to end.
    Ending,
}

impl Away {
    /// What is left of it once it is to end: nothing if it has not begun.
    pub(super) fn recalled(mut self) -> Option<Self> {
        match self.stage {
            Stage::Due => return None,
            Stage::Recording => self.stage = Stage::Recalled,
            Stage::Recalled | Stage::Ending => {}
        }
        Some(self)
    }
}

/// What a worker's process is to be told.
#[derive(Debug)]
pub(crate) enum Due {
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
        let now = shared_clock();
        Self {
            recording,
            began: now.saturating_sub(timeline.began.elapsed()),
            unix_nanos: timeline.unix_nanos,
        }
    }

    fn timeline(&self) -> Timeline {
        let now = Instant::now();
        let since = shared_clock().saturating_sub(self.began);
        Timeline {
            began: now.checked_sub(since).unwrap_or(now),
            unix_nanos: self.unix_nanos,
        }
    }

    /// The recorder that is asked for.
    ///
    /// # Errors
    /// What is to be reported in place of a recording.
    pub(crate) fn recorder(mut self, make: MakeProfiler) -> Result<Box<Recorder>, Box<Recorded>> {
        let timeline = self.timeline();
        let beside = self.recording.profiler.take();
        let beside = beside.map(|text| made_of(make, text));
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
    fn of(error: &CollectError) -> Option<Self> {
        match error {
            CollectError::ProfileMemory { spans, .. } => Some(Self::Memory { spans: *spans }),
            CollectError::ProfileFile { source, .. } => Some(Self::File {
                code: source.raw_os_error(),
                message: source.to_string(),
            }),
            CollectError::Profiler { source, .. } => Some(Self::Profiler {
                message: error_chain(&**source),
            }),
            _ => None,
        }
    }

    fn into_error(self, worker: usize, path: OsString) -> CollectError {
        match self {
            Self::Memory { spans } => CollectError::ProfileMemory { worker, spans },
            Self::Profiler { message } => CollectError::Profiler {
                worker,
                source: message.into(),
            },
            Self::File { code, message } => CollectError::ProfileFile {
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
    /// Ends a rollout, and the recording if that was the last one; what is to be told.
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

    /// Writes the trace, if a rollout was recorded; what is to be told.
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
    /// As there.
    pub(crate) fn enable_away(
        &self,
        config: &ProfileConfig,
        steps: usize,
    ) -> Result<(), CollectError> {
        let written = |recipe: &ProfilerRecipe| recipe.written().is_some();
        if !config.profiler.as_ref().is_none_or(written) {
            return Err(CollectError::Needs {
                name: "a profiler of workers in processes",
                needs: "to be written down for them",
            });
        }
        // What cannot be recorded is refused here, as everywhere. The recorders themselves are made where they record.
        let recorders = self.recorders(config, steps)?;
        self.place(recorders.into_iter().map(|recorder| {
            let away = Away {
                timeline: recorder.timeline,
                recording: recorder.recording,
                stage: Stage::Due,
            };
            (away.recording.worker, Place::Away(Box::new(away)))
        }));
        Ok(())
    }

    /// What the process of worker `worker`, which is between two parts, is to be told.
    pub(crate) fn due(&self, worker: usize) -> Option<Due> {
        if self.active.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let seat = &mut self.seats()[worker];
        let Place::Away(away) = &mut seat.place else {
            return None;
        };
        match away.stage {
            Stage::Due => {
                away.stage = Stage::Recording;
                // Of one process, as its trace: not that of one that has died.
                seat.tally = Some(Tally::default());
                let order = Order::new(&away.recording, away.timeline);
                Some(Due::Begin(Box::new(order)))
            }
            Stage::Recalled => {
                away.stage = Stage::Ending;
                Some(Due::End)
            }
            Stage::Recording | Stage::Ending => None,
        }
    }

    /// Worker `worker` has told what it has recorded.
    pub(crate) fn hear(&self, worker: usize, recorded: Recorded) {
        let failure = {
            let seat = &mut self.seats()[worker];
            let Place::Away(away) = &mut seat.place else {
                return;
            };
            seat.tally = Some(recorded.tally);
            let path = || away.recording.path.clone();
            let failure = recorded
                .failure
                .map(|failure| failure.into_error(worker, path()));
            if recorded.over {
                self.leave(&mut seat.place);
            }
            failure
        };
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// Process `pid` of worker `worker` has ended. One that takes its place begins the recording anew.
    pub(crate) fn bury(&self, worker: usize, pid: u32) {
        let seat = &mut self.seats()[worker];
        let Place::Away(away) = &mut seat.place else {
            return;
        };
        let path = Path::new(&away.recording.path);
        // Mostly there is none.
        let _ = std::fs::remove_file(trace::partial(path, pid, away.timeline.unix_nanos));
        match away.stage {
            Stage::Due | Stage::Recording => away.stage = Stage::Due,
            Stage::Recalled | Stage::Ending => self.leave(&mut seat.place),
        }
    }

    fn leave(&self, place: &mut Place) {
        *place = Place::Nowhere;
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.ended.notify_all();
    }

    /// Waits at most `timeout` until those have written their traces that were told to end; `pump` is called now and then.
    pub(crate) fn await_traces(&self, timeout: Duration, mut pump: impl FnMut()) {
        const SLICE: Duration = Duration::from_millis(100);
        let deadline = Instant::now() + timeout;
        loop {
            pump();
            let seats = self.seats();
            let left = deadline.saturating_duration_since(Instant::now());
            let waits = seats.iter().any(|seat| match &seat.place {
                Place::Away(away) => away.stage == Stage::Ending,
                _ => false,
            });
            if !waits || left.is_zero() {
                return;
            }
            let woken = self.ended.wait_timeout(seats, left.min(SLICE));
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
