use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use windrow_sync::unpoisoned;

use super::recorder::Recording;
#[cfg(target_os = "linux")]
use super::remote::RemoteRecording;
use super::summary::Tally;
use super::{ProfileConfig, ProfileSummary, Recorder, Timeline, trace};
use crate::error::ProfileError;

/// The recorders of a collector, between two parts of their workers.
#[derive(Debug)]
pub(crate) struct Profile {
    /// One for each worker.
    slots: Mutex<Vec<ProfileSlot>>,
    /// Told when the recording of a worker in another process ends.
    pub(super) ended: Condvar,
    /// Recorders that have not ended. A worker that is not profiled reads only this.
    pub(super) active: AtomicUsize,
    /// Whether `failures` holds an error that no call has returned.
    failed: AtomicBool,
    failures: Mutex<Vec<ProfileError>>,
}

#[derive(Debug, Default)]
pub(super) struct ProfileSlot {
    pub(super) place: RecorderPlace,
    /// What was recorded up to the last whole rollout; `None` for a worker that is not profiled.
    pub(super) tally: Option<Tally>,
}

/// Where a recorder is.
#[derive(Debug, Default)]
pub(super) enum RecorderPlace {
    /// There is no recorder, or it has ended.
    #[default]
    Nowhere,
    Here(Box<Recorder>),
    /// With its worker.
    Lent,
    /// With its worker, which will end it.
    Stopping,
    /// In the process of its worker.
    #[cfg(target_os = "linux")]
    RemoteRecording(Box<RemoteRecording>),
}

impl Profile {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            slots: Mutex::new((0..workers).map(|_| ProfileSlot::default()).collect()),
            ended: Condvar::new(),
            active: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            failures: Mutex::default(),
        }
    }

    /// Prepares to record workers whose parts have `steps` steps at most. No worker may have
    /// started.
    ///
    /// # Errors
    /// [`ProfileError::Rollouts`] and [`ProfileError::Workers`] when nothing would be recorded,
    /// [`ProfileError::Path`] when two workers would write one file, [`ProfileError::Memory`] when
    /// there is no memory for the spans.
    pub(crate) fn enable(&self, config: &ProfileConfig, steps: usize) -> Result<(), ProfileError> {
        let recorders = self.recorders(config, steps)?;
        self.place(recorders.into_iter().map(|recorder| {
            let worker = recorder.recording.worker;
            (worker, RecorderPlace::Here(Box::new(recorder)))
        }));
        Ok(())
    }

    /// A recorder for each worker that is to be profiled.
    pub(super) fn recorders(
        &self,
        config: &ProfileConfig,
        steps: usize,
    ) -> Result<Vec<Recorder>, ProfileError> {
        let chosen = config.chosen(self.slots().len())?;
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
    pub(super) fn place(&self, places: impl ExactSizeIterator<Item = (usize, RecorderPlace)>) {
        let mut slots = self.slots();
        slots.fill_with(ProfileSlot::default);
        self.active.store(places.len(), Ordering::Relaxed);
        for (worker, place) in places {
            let tally = Some(Tally::default());
            slots[worker] = ProfileSlot { place, tally };
        }
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Vec<ProfileSlot>> {
        unpoisoned(self.slots.lock())
    }

    /// Ends all recordings and writes their traces. A worker in the middle of a part does so after
    /// the part.
    pub(crate) fn end(&self) {
        let stopped: Vec<_> = {
            let mut slots = self.slots();
            slots
                .iter_mut()
                .filter_map(|slot| self.stop(slot))
                .collect()
        };
        for mut recorder in stopped {
            self.save(&mut recorder);
        }
    }

    /// Takes the recorder out of its slot; if its worker has it, asks the worker to end it.
    fn stop(&self, slot: &mut ProfileSlot) -> Option<Box<Recorder>> {
        match std::mem::take(&mut slot.place) {
            RecorderPlace::Here(recorder) => {
                self.active.fetch_sub(1, Ordering::Relaxed);
                Some(recorder)
            }
            RecorderPlace::Nowhere => None,
            RecorderPlace::Lent | RecorderPlace::Stopping => {
                slot.place = RecorderPlace::Stopping;
                None
            }
            #[cfg(target_os = "linux")]
            RecorderPlace::RemoteRecording(remote) => {
                match remote.stopping() {
                    Some(remote) => slot.place = RecorderPlace::RemoteRecording(Box::new(remote)),
                    None => _ = self.active.fetch_sub(1, Ordering::Relaxed),
                }
                None
            }
        }
    }

    /// Lends worker `worker` its recorder, if there is one. The worker gives it back after each
    /// part.
    #[inline]
    pub(crate) fn lend(&self, worker: usize) -> Option<Box<Recorder>> {
        // The counter is set before workers start, and a worker that reads an old value finds an
        // empty slot.
        if self.active.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.lend_from(worker)
    }

    #[cold]
    fn lend_from(&self, worker: usize) -> Option<Box<Recorder>> {
        let slot = &mut self.slots()[worker];
        match std::mem::replace(&mut slot.place, RecorderPlace::Lent) {
            RecorderPlace::Here(recorder) => Some(recorder),
            other => {
                slot.place = other;
                None
            }
        }
    }

    /// Ends the recording of worker `worker`, whose thread ends.
    pub(crate) fn end_with_thread(&self, worker: usize) {
        if let Some(recorder) = self.lend(worker)
            && let Some(mut ended) = self.put_back(recorder, true)
        {
            self.save(&mut ended);
        }
    }

    /// Takes a recorder back; `filled` says whether the worker has committed the part.
    #[cold]
    pub(crate) fn give_back(&self, mut recorder: Box<Recorder>, filled: bool) {
        recorder.end(filled);
        if let Some(mut ended) = self.put_back(recorder, false) {
            self.save(&mut ended);
        }
    }

    /// Puts a recorder back into its slot, or returns it if its recording has ended, as where its
    /// worker `ends`.
    fn put_back(&self, recorder: Box<Recorder>, ends: bool) -> Option<Box<Recorder>> {
        let slot = &mut self.slots()[recorder.recording.worker];
        let over = match slot.place {
            RecorderPlace::Lent => ends || recorder.is_done(),
            RecorderPlace::Stopping => true,
            // The profile was enabled again meanwhile: this recorder is dropped.
            _ => return None,
        };
        slot.tally = Some(recorder.tally);
        if over {
            slot.place = RecorderPlace::Nowhere;
            self.active.fetch_sub(1, Ordering::Relaxed);
            return Some(recorder);
        }
        slot.place = RecorderPlace::Here(recorder);
        None
    }

    /// Writes the trace in the thread that ends the recording, so that no other thread waits for
    /// the file.
    fn save(&self, recorder: &mut Recorder) {
        if let Err(error) = trace::save(recorder) {
            self.fail(error);
        }
    }

    pub(super) fn fail(&self, error: ProfileError) {
        unpoisoned(self.failures.lock()).push(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Returns the errors of writing traces, one with each call.
    ///
    /// # Errors
    /// [`ProfileError::File`] and [`ProfileError::Profiler`].
    #[inline]
    pub(crate) fn check(&self) -> Result<(), ProfileError> {
        if self.failed.load(Ordering::Acquire) {
            self.take_failure()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn take_failure(&self) -> Result<(), ProfileError> {
        let mut failures = unpoisoned(self.failures.lock());
        if failures.is_empty() {
            return Ok(());
        }
        let oldest = failures.remove(0);
        self.failed.store(!failures.is_empty(), Ordering::Release);
        Err(oldest)
    }

    pub(crate) fn summary(&self) -> ProfileSummary {
        let slots = self.slots();
        let workers = slots.iter().enumerate();
        let workers = workers.filter_map(|(worker, slot)| Some(slot.tally?.profile(worker)));
        ProfileSummary {
            workers: workers.collect(),
        }
    }
}
