//! Work that a ring's threads do for workers in other processes (ADR 0014).

use std::sync::{OnceLock, Weak};

use windrow_sync::atomic::{AtomicU32, Ordering};

/// Does what workers in other processes cannot do: claims parts of a [`Ring`](crate::Ring) for
/// them, names these to them, and commits or drops what they have reported.
///
/// The threads that wait for the ring call it (ADR 0014). An implementation may rely on:
///
/// * *No change is missed.* After each change that may let a worker go on (a request, a slab that
///   was freed or taken, a resume, a moved end, a worker retired, a stop), and after each ring of
///   the bell that a thread waits for, [`pump`](Self::pump) begins at least once more. It sees all
///   that was written before.
/// * *One at a time.* Two threads never run it at once: while one does, another that wants it run
///   asks the first to do so once more, and goes on.
/// * *No lock of the ring is held.* It may call [`try_claim`](crate::Ring::try_claim), and commit,
///   shorten and drop parts. None of these calls it again. Other functions of the ring have it
///   called once more after it has returned.
///
/// A lock that it shares with other code is to be waited for: what it gave up there would be
/// missed. For the same reason, nobody may call the ring's other functions while holding such a
/// lock.
pub trait Pump: Send + Sync {
    /// Takes what workers have reported, and gives new parts to those that have none. Does not wait
    /// for workers.
    fn pump(&self);
}

/// Runs a pump in whichever thread wants it run, in one at a time.
#[derive(Debug)]
pub(super) struct Pumping {
    pump: OnceLock<Weak<dyn Pump>>,
    /// How often it was wanted since a thread began to run it; 0 while none does.
    wanted: AtomicU32,
}

impl Pumping {
    pub(super) fn new() -> Self {
        Self {
            pump: OnceLock::new(),
            wanted: AtomicU32::new(0),
        }
    }

    /// Uses `pump` from now on. Only the first one counts.
    pub(super) fn attend(&self, pump: Weak<dyn Pump>) {
        let _ = self.pump.set(pump);
        self.run();
    }

    /// Runs the pump once more from its beginning: in this thread, or in the thread that runs it
    /// already.
    pub(super) fn run(&self) {
        if self.wanted.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let turn = PumpGuard(&self.wanted);
        let mut seen = 1;
        loop {
            if let Some(pump) = self.pump.get().and_then(Weak::upgrade) {
                pump.pump();
            }
            let end = self
                .wanted
                .compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire);
            match end {
                Ok(_) => break,
                Err(wanted) => seen = wanted,
            }
        }
        std::mem::forget(turn);
    }
}

/// Releases the pump if it panics, so that another thread can run it.
struct PumpGuard<'a>(&'a AtomicU32);

impl Drop for PumpGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
