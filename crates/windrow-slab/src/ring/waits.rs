//! The threads that wait for a ring's states to change, and how to wake them.

#[cfg(target_os = "linux")]
use std::sync::{Arc, Weak};
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::time::Instant;

use windrow_sync::Mutex;
#[cfg(target_os = "linux")]
use windrow_sync::lock;

#[cfg(target_os = "linux")]
use super::pump::{Pump, Pumping};
#[cfg(target_os = "linux")]
use crate::control::Control;
#[cfg(target_os = "linux")]
use crate::spin::AdaptiveSpin;
use crate::wait_queue::WaitQueue;

/// The threads that wait for a ring. Call the functions that wake them after the lock of the states
/// was released.
#[derive(Debug)]
pub(super) struct Waits {
    /// Workers wait here until they may fill another part.
    pub(super) room: WaitQueue,
    /// The consumer waits here for a slab, or for all parts to come back.
    ready: WaitQueue,
    /// In place of `ready`, where workers are in other processes.
    #[cfg(target_os = "linux")]
    pumped: Option<Pumped>,
}

/// The wait of a ring whose workers are in other processes. They report in shared memory and ring a
/// bell; the thread that waits for the ring wakes, and runs the pump to claim and commit parts for
/// them (ADR 0014).
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Pumped {
    control: Arc<Control>,
    pumping: Pumping,
    spin: AdaptiveSpin,
}

impl Waits {
    pub(super) fn new() -> Self {
        Self {
            room: WaitQueue::new(),
            ready: WaitQueue::new(),
            #[cfg(target_os = "linux")]
            pumped: None,
        }
    }

    /// For workers in other processes, which ring the bell of `control`.
    #[cfg(target_os = "linux")]
    pub(super) fn pumped(control: Arc<Control>) -> Self {
        let pumped = Pumped {
            control,
            pumping: Pumping::new(),
            spin: AdaptiveSpin::new(),
        };
        Self {
            pumped: Some(pumped),
            ..Self::new()
        }
    }

    /// Runs the pump if the ring has workers in other processes; returns whether it has.
    pub(super) fn pump(&self) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(pumped) = &self.pumped {
            pumped.pumping.run();
            return true;
        }
        false
    }

    #[cfg(target_os = "linux")]
    pub(super) fn attend(&self, pump: Weak<dyn Pump>) {
        if let Some(pumped) = &self.pumped {
            pumped.pumping.attend(pump);
        }
    }

    /// Wakes workers in this process, and runs the pump for those in others.
    pub(super) fn wake_workers(&self) {
        self.room.wake_all();
        self.pump();
    }

    /// Wakes the consumer, which looks again. The pump calls this too.
    pub(super) fn wake_consumer(&self) {
        #[cfg(target_os = "linux")]
        if let Some(pumped) = &self.pumped {
            return pumped.control.bell.ring();
        }
        self.ready.wake_all();
    }

    pub(super) fn wake_everyone(&self) {
        self.wake_consumer();
        self.wake_workers();
    }

    /// Waits as the consumer until `attempt` returns something, or `timeout` has passed.
    pub(super) fn wait<T, R>(
        &self,
        mutex: &Mutex<T>,
        timeout: Option<Duration>,
        attempt: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        #[cfg(target_os = "linux")]
        if let Some(pumped) = &self.pumped {
            return pumped.wait(mutex, timeout, attempt);
        }
        self.ready.wait_within(mutex, timeout, attempt)
    }
}

#[cfg(target_os = "linux")]
impl Pumped {
    fn wait<T, R>(
        &self,
        mutex: &Mutex<T>,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let bell = &self.control.bell;
        // The order matters: count, then look. A report that comes after the look rings the bell
        // beyond `seen`, so that the sleep below returns at once.
        let mut look = || {
            let seen = bell.count();
            self.pumping.run();
            attempt(&mut lock(mutex)).ok_or(seen)
        };
        let mut seen = match look() {
            Ok(out) => return Some(out),
            Err(seen) => seen,
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let waiting = self.spin.begin();
        let mut awake = true;
        let out = loop {
            awake = awake && waiting.yield_until(|| bell.count() != seen);
            if !awake {
                let left =
                    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    break None;
                }
                bell.sleep(seen, left);
            }
            match look() {
                Ok(out) => break Some(out),
                Err(now) => seen = now,
            }
        };
        self.spin.end(&waiting);
        out
    }
}
