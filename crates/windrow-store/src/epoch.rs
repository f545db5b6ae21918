//! The lock between one writer and many readers. The crate's README describes the protocol, ADR
//! 0005 its reasons.

use std::ops::Range;

use windrow_sync::{Condvar, Mutex, MutexGuard, lock, unpoisoned};

/// Readers never wait. A writer waits for the writer before it and for the readers that registered
/// before it began; later readers get its rows, and skip them.
///
/// Readers are counted in two epochs. A writer starts the other epoch and waits until the old one
/// is empty; the next writer uses that one again, which is empty because the writer before has
/// waited for it.
#[derive(Debug)]
pub(crate) struct EpochLock {
    state: Mutex<Epochs>,
    changed: Condvar,
}

#[derive(Debug)]
struct Epochs {
    /// Rows of the writer, while there is one.
    pending: Option<PendingWrite>,
    /// Epoch of readers that register now.
    current: usize,
    /// Readers of both epochs.
    readers: [usize; 2],
    /// Number of sleeping writers, since a wake-up costs a system call even if none sleeps.
    asleep: usize,
}

/// Rows that are being written: `len` of them from `first` on, modulo the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingWrite {
    pub(crate) first: usize,
    pub(crate) len: usize,
}

impl PendingWrite {
    /// Whether `row` is one of these, in a store of `capacity` rows.
    #[inline(always)]
    pub(crate) fn has(self, row: usize, capacity: usize) -> bool {
        let behind = if row >= self.first {
            row - self.first
        } else {
            row + capacity - self.first
        };
        behind < self.len
    }

    /// The rows up to the last one of the store, then those from row 0 on. Either may be empty.
    pub(crate) fn pieces(self, capacity: usize) -> [Range<usize>; 2] {
        let before_seam = self.len.min(capacity - self.first);
        [
            self.first..self.first + before_seam,
            0..self.len - before_seam,
        ]
    }
}

/// A reader's registration, to be given back to [`leave`](EpochLock::leave).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadToken {
    epoch: usize,
    /// Rows that were being written when the reader registered: it must not read them.
    pub(crate) pending: Option<PendingWrite>,
}

/// The right to write; dropping it lets the next writer begin.
#[derive(Debug)]
pub(crate) struct WriteGuard<'a> {
    lock: &'a EpochLock,
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.lock.state();
        state.pending = None;
        let awaited = state.asleep > 0;
        drop(state);
        if awaited {
            self.lock.changed.notify_all();
        }
    }
}

impl EpochLock {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(Epochs {
                pending: None,
                current: 0,
                readers: [0; 2],
                asleep: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Epochs> {
        // Each change under the lock is one assignment: a panic elsewhere leaves nothing half-done.
        lock(&self.state)
    }

    /// Registers a reader.
    pub(crate) fn enter(&self) -> ReadToken {
        let mut state = self.state();
        let epoch = state.current;
        state.readers[epoch] += 1;
        ReadToken {
            epoch,
            pending: state.pending,
        }
    }

    /// Ends a reader's registration.
    pub(crate) fn leave(&self, token: ReadToken) {
        let mut state = self.state();
        state.readers[token.epoch] -= 1;
        // The epoch differs only if a writer has started another one, and waits for the readers of
        // this one.
        let awaited = state.current != token.epoch && state.readers[token.epoch] == 0;
        drop(state);
        if awaited {
            self.changed.notify_all();
        }
    }

    /// Waits until no other writes, and until the readers that registered before are gone.
    pub(crate) fn begin(&self, write: PendingWrite) -> WriteGuard<'_> {
        let mut state = self.state();
        while state.pending.is_some() {
            state = self.wait(state);
        }
        state.pending = Some(write);
        let old = state.current;
        state.current = 1 - old;
        while state.readers[old] > 0 {
            state = self.wait(state);
        }
        drop(state);
        WriteGuard { lock: self }
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, Epochs>) -> MutexGuard<'a, Epochs> {
        state.asleep += 1;
        let mut state = unpoisoned(self.changed.wait(state));
        state.asleep -= 1;
        state
    }
}
