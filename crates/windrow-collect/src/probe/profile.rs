use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::summary::Tally;
use super::{ProfileConfig, ProfileSummary, Recorder, Timeline, trace};
use crate::CollectError;

/// The recorders of a collector, between two parts of their workers.
#[derive(Debug)]
pub(crate) struct Profile {
    /// One for each worker.
    seats: Vec<Mutex<Seat>>,
    /// Workers that are still looked at: all that one who is not profiled ever asks.
    active: AtomicUsize,
    /// Whether there is a failure to be told.
    failed: AtomicBool,
    failures: Mutex<Vec<CollectError>>,
}

#[derive(Debug, Default)]
struct Seat {
    place: Place,
    /// What was recorded up to the last whole rollout; `None` where nothing was to be.
    tally: Option<Tally>,
}

/// Where a recorder is.
#[derive(Debug, Default)]
enum Place {
    /// There is none, or none any more.
    #[default]
    Nowhere,
    Here(Box<Recorder>),
    /// With its worker.
    Lent,
    /// With its worker, who is to end it.
    Recalled,
}

impl Profile {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            seats: (0..workers).map(|_| Mutex::default()).collect(),
            active: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            failures: Mutex::default(),
        }
    }

    /// Prepares to record workers whose parts have `steps` steps at most. No worker may have started.
    ///
    /// # Errors
    /// When `config` makes no sense for these workers, or there is no memory for so many spans.
    pub(crate) fn enable(&self, config: &ProfileConfig, steps: usize) -> Result<(), CollectError> {
        let chosen = config.chosen(self.seats.len())?;
        let timeline = Timeline::start();
        let recorders = chosen
            .iter()
            .map(|&worker| Recorder::new(worker, config, timeline, steps))
            .collect::<Result<Vec<_>, _>>()?;
        for seat in &self.seats {
            *lock(seat) = Seat::default();
        }
        self.active.store(recorders.len(), Ordering::Relaxed);
        for recorder in recorders {
            let seat = &self.seats[recorder.worker];
            *lock(seat) = Seat {
                tally: Some(Tally::default()),
                place: Place::Here(Box::new(recorder)),
            };
        }
        Ok(())
    }

    /// Ends what is still being recorded and writes it down. A worker in the middle of a part does so when it is through.
    pub(crate) fn end(&self) {
        for seat in &self.seats {
            if let Some(recorder) = self.recall(&mut lock(seat)) {
                self.save(&recorder);
            }
        }
    }

    /// The recorder, if it is in its seat; otherwise its worker is to end it.
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
        }
    }

    /// The recorder of worker `worker`, if it is looked at. It is to be given back after each part.
    #[inline]
    pub(crate) fn lend(&self, worker: usize) -> Option<Box<Recorder>> {
        // Whoever starts a worker's thread has set this before, and a worker that sees it fall late finds an empty seat.
        if self.active.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.lend_from(worker)
    }

    #[cold]
    fn lend_from(&self, worker: usize) -> Option<Box<Recorder>> {
        let mut seat = lock(&self.seats[worker]);
        match std::mem::replace(&mut seat.place, Place::Lent) {
            Place::Here(recorder) => Some(recorder),
            other => {
                seat.place = other;
                None
            }
        }
    }

    /// Takes a recorder back; `filled`: whether the part was handed over.
    #[cold]
    pub(crate) fn give_back(&self, mut recorder: Box<Recorder>, filled: bool) {
        if filled {
            recorder.finish();
        } else {
            recorder.abandon();
        }
        if let Some(ended) = self.seat(recorder) {
            self.save(&ended);
        }
    }

    /// Puts a recorder back to its seat; returns it when it has nothing left to do.
    fn seat(&self, recorder: Box<Recorder>) -> Option<Box<Recorder>> {
        let mut seat = lock(&self.seats[recorder.worker]);
        let over = match seat.place {
            Place::Lent => recorder.is_done(),
            Place::Recalled => true,
            // Another one was seated meanwhile: this one is forgotten.
            Place::Here(_) | Place::Nowhere => return None,
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

    /// Writes down what was recorded, in the thread of whoever ends it: nobody else waits for the file.
    fn save(&self, recorder: &Recorder) {
        if recorder.spans.is_empty() {
            return;
        }
        if let Err(error) = trace::save(recorder) {
            lock(&self.failures).push(error);
            self.failed.store(true, Ordering::Release);
        }
    }

    /// Tells what could not be written, one file at a time.
    ///
    /// # Errors
    /// [`CollectError::ProfileFile`].
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
        let mut failures = lock(&self.failures);
        if failures.is_empty() {
            return Ok(());
        }
        let oldest = failures.remove(0);
        self.failed.store(!failures.is_empty(), Ordering::Release);
        Err(oldest)
    }

    pub(crate) fn summary(&self) -> ProfileSummary {
        let workers = self.seats.iter().enumerate().filter_map(|(worker, seat)| {
            let tally = lock(seat).tally?;
            Some(tally.profile(worker))
        });
        ProfileSummary {
            workers: workers.collect(),
        }
    }
}

/// Nothing that is locked here is left half changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
