use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use windrow_sync::unpoisoned;

#[cfg(target_os = "linux")]
use super::away::Away;
use super::recorder::Recording;
use super::summary::Tally;
use super::{ProfileConfig, ProfileSummary, Recorder, Timeline, trace};
use crate::CollectError;

/// The recorders of a collector, between two parts of their workers.
#[derive(Debug)]
pub(crate) struct Profile {
    /// One for each worker.
    seats: Mutex<Vec<Seat>>,
    /// Told when the recording of a worker in another process ends.
    pub(super) ended: Condvar,
    /// Recorders that have not ended. A worker that is not profiled reads only this.
    pub(super) active: AtomicUsize,
    /// Whether `failures` holds an error that no call has returned.
    failed: AtomicBool,
    failures: Mutex<Vec<CollectError>>,
}

#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) place: Place,
    /// What was recorded up to the last whole rollout; `None` for a worker that is not profiled.
    pub(super) tally: Option<Tally>,
}

/// Where a recorder is.
#[derive(Debug, Default)]
pub(super) enum Place {
    /// There is no recorder, or it has ended.
    #[default]
    Nowhere,
    Here(Box<Recorder>),
    /// With its worker.
    Lent,
    /// With its worker, which will end it.
    Recalled,
    /// In the process of its worker.
    #[cfg(target_os = "linux")]
    Away(Box<Away>),
}

impl Profile {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            seats: Mutex::new((0..workers).map(|_| Seat::default()).collect()),
            ended: Condvar::new(),
            active: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            failures: Mutex::default(),
        }
    }

    /// Prepares to record workers whose parts have `steps` steps at most. No worker may have started.
    ///
    /// # Errors
    /// When nothing would be recorded, a worker does not exist, two workers would write one file, or there is no memory
    /// for the spans.
    pub(crate) fn enable(&self, config: &ProfileConfig, steps: usize) -> Result<(), CollectError> {
        let recorders = self.recorders(config, steps)?;
        self.place(recorders.into_iter().map(|recorder| {
            let worker = recorder.recording.worker;
            (worker, Place::Here(Box::new(recorder)))
        }));
        Ok(())
    }

    /// A recorder for each worker that is to be profiled.
    pub(super) fn recorders(
        &self,
        config: &ProfileConfig,
        steps: usize,
    ) -> Result<Vec<Recorder>, CollectError> {
        let chosen = config.chosen(self.seats().len())?;
        let timeline = Timeline::start();
        let recordings = chosen
            .iter()
            .map(|&worker| Recording::new(worker, config, steps));
        recordings
            .map(|recording| {
                let recorder = Recorder::new(recording, timeline)?;
                Ok(recorder.beside(config.profiler.clone()))
            })
            .collect()
    }

    /// Places recorders in place of all that were there.
    pub(super) fn place(&self, places: impl ExactSizeIterator<Item = (usize, Place)>) {
        let mut seats = self.seats();
        seats.fill_with(Seat::default);
        self.active.store(places.len(), Ordering::Relaxed);
        for (worker, place) in places {
            let tally = Some(Tally::default());
            seats[worker] = Seat { place, tally };
        }
    }

    pub(super) fn seats(&self) -> MutexGuard<'_, Vec<Seat>> {
        unpoisoned(self.seats.lock())
    }

    /// Ends all recordings and writes their traces. A worker in the middle of a part does so after the part.
    pub(crate) fn end(&self) {
        let recalled: Vec<_> = {
            let mut seats = self.seats();
            seats
                .iter_mut()
                .filter_map(|seat| self.recall(seat))
                .collect()
        };
        for mut recorder in recalled {
            self.save(&mut recorder);
        }
    }

    /// Takes the recorder out of its seat; if its worker has it, tells the worker to end it.
    fn recall(&self, seat: &mut Seat) -> Option<Box<Recorder>> {
        match std::mem::take(&mut seat.place) {
            Place::Here(recorder) => {
                self.active.fetch_sub(1, Ordering::Relaxed);
                Some(recorder)
            }
            Place::Nowhere => None,
            Place::Lent | Place::Recalled => {
                seat.place = Place::Recalled;
                None
            }
            #[cfg(target_os = "linux")]
            Place::Away(away) => {
                match away.recalled() {
                    Some(away) => seat.place = Place::Away(Box::new(away)),
                    None => _ = self.active.fetch_sub(1, Ordering::Relaxed),
                }
                None
            }
        }
    }

    /// Lends worker `worker` its recorder, if there is one. The worker gives it back after each part.
    #[inline]
    pub(crate) fn lend(&self, worker: usize) -> Option<Box<Recorder>> {
        // The counter is set before workers start, and a worker that reads an old value finds an empty seat.
        if self.active.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.lend_from(worker)
    }

    #[cold]
    fn lend_from(&self, worker: usize) -> Option<Box<Recorder>> {
        let seat = &mut self.seats()[worker];
        match std::mem::replace(&mut seat.place, Place::Lent) {
            Place::Here(recorder) => Some(recorder),
            other => {
                seat.place = other;
                None
            }
        }
    }

    /// Ends the recording of worker `worker`, whose thread ends.
    pub(crate) fn end_with_thread(&self, worker: usize) {
        if let Some(recorder) = self.lend(worker)
            && let Some(mut ended) = self.seat(recorder, true)
        {
            self.save(&mut ended);
        }
    }

    /// Takes a recorder back; `filled` says whether the worker has committed the part.
    #[cold]
    pub(crate) fn give_back(&self, mut recorder: Box<Recorder>, filled: bool) {
        recorder.end(filled);
        if let Some(mut ended) = self.seat(recorder, false) {
            self.save(&mut ended);
        }
    }

    /// Puts a recorder back into its seat, or returns it if its recording has ended, as where its worker `ends`.
    fn seat(&self, recorder: Box<Recorder>, ends: bool) -> Option<Box<Recorder>> {
        let seat = &mut self.seats()[recorder.recording.worker];
        let over = match seat.place {
            Place::Lent => ends || recorder.is_done(),
            Place::Recalled => true,
            // The profile was enabled again meanwhile: this recorder is dropped.
            _ => return None,
        };
        seat.tally = Some(recorder.tally);
        if over {
            seat.place = Place::Nowhere;
            self.active.fetch_sub(1, Ordering::Relaxed);
            return Some(recorder);
        }
        seat.place = Place::Here(recorder);
        None
    }

    /// Writes the trace in the thread that ends the recording, so that no other thread waits for the file.
    fn save(&self, recorder: &mut Recorder) {
        if let Err(error) = trace::save(recorder) {
            self.fail(error);
        }
    }

    pub(super) fn fail(&self, error: CollectError) {
        unpoisoned(self.failures.lock()).push(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Returns the errors of writing traces, one with each call.
    ///
    /// # Errors
    /// [`CollectError::ProfileFile`] and [`CollectError::Profiler`].
    #[inline]
    pub(crate) fn check(&self) -> Result<(), CollectError> {
        if self.failed.load(Ordering::Acquire) {
            self.take_failure()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn take_failure(&self) -> Result<(), CollectError> {
        let mut failures = unpoisoned(self.failures.lock());
        if failures.is_empty() {
            return Ok(());
        }
        let oldest = failures.remove(0);
        self.failed.store(!failures.is_empty(), Ordering::Release);
        Err(oldest)
    }

    pub(crate) fn summary(&self) -> ProfileSummary {
        let seats = self.seats();
        let workers = seats.iter().enumerate();
        let workers = workers.filter_map(|(worker, seat)| Some(seat.tally?.profile(worker)));
        ProfileSummary {
            workers: workers.collect(),
        }
    }
}
