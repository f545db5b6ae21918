//! Who may read and who may write: one writer, and any number of readers that it waits for or that wait for nothing.

use std::ops::Range;
use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Readers never wait. A writer waits for the writer before it and for the readers that were there when it began; those
/// that come later are told which rows it has, and leave them alone.
///
/// Readers are counted in two generations. A writer starts the other one and waits until the old one is empty; the next
/// writer turns back, to a generation that is empty because the writer before has waited for it.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Rows of the writer, while there is one.
    flight: Option<Flight>,
    /// Generation of readers that come now.
    generation: usize,
    /// Readers of both generations.
    readers: [usize; 2],
    /// Writers asleep: waking nobody costs a system call as well.
    asleep: usize,
}

/// Rows that are being written: `len` of them from `first` on, modulo the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) first: usize,
    pub(super) len: usize,
}

impl Flight {
    /// Whether `row` is one of these, in a store of `capacity` rows.
    #[inline(always)]
    pub(super) fn has(self, row: usize, capacity: usize) -> bool {
        let behind = if row >= self.first {
            row - self.first
        } else {
            row + capacity - self.first
        };
        behind < self.len
    }

    /// The same rows as one or two ranges, in order.
    pub(super) fn pieces(self, capacity: usize) -> Vec<Range<u32>> {
        let before_seam = self.len.min(capacity - self.first);
        let range = |start: usize, end: usize| start as u32..end as u32;
        let mut pieces = vec![
            range(0, self.len - before_seam),
            range(self.first, self.first + before_seam),
        ];
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }
}

/// A reader's registration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    generation: usize,
    /// Rows that were being written when the reader came: not for it.
    pub(super) flight: Option<Flight>,
}

/// A writer's turn; dropping it lets others on.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    gate: &'a Gate,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.flight = None;
        let awaited = state.asleep > 0;
        drop(state);
        if awaited {
            self.gate.changed.notify_all();
        }
    }
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                flight: None,
                generation: 0,
                readers: [0; 2],
                asleep: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change under the lock is one assignment: a panic elsewhere leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a reader.
    pub(super) fn enter(&self) -> Pass {
        let mut state = self.state();
        let generation = state.generation;
        state.readers[generation] += 1;
        Pass {
            generation,
            flight: state.flight,
        }
    }

    /// The reader has gone.
    pub(super) fn leave(&self, pass: Pass) {
        let mut state = self.state();
        state.readers[pass.generation] -= 1;
        // Only a writer turns the generation, so one waits for this reader's.
        let awaited = state.generation != pass.generation && state.readers[pass.generation] == 0;
        drop(state);
        if awaited {
            self.changed.notify_all();
        }
    }

    /// Waits for the writer's turn, and until nobody reads who began before.
    pub(super) fn begin(&self, flight: Flight) -> Turn<'_> {
        let mut state = self.state();
        while state.flight.is_some() {
            state = self.wait(state);
        }
        state.flight = Some(flight);
        let old = state.generation;
        state.generation = 1 - old;
        while state.readers[old] > 0 {
            state = self.wait(state);
        }
        drop(state);
        Turn { gate: self }
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.asleep += 1;
        let mut state = self
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
        state.asleep -= 1;
        state
    }
}
