//! Finds workers that are frozen: alive, but in a call that does not return.

use std::fs::read_to_string;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::crew::Crew;
use crate::CollectError;
use crate::sync::Builder;
use crate::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// Where a worker was when it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pulse {
    /// Slab of the part that it fills.
    pub(super) seq: u64,
    /// Grows with each phase of each step.
    pub(super) beat: u32,
}

/// Ends the watchdog's thread when it is dropped.
pub(super) type Leash = Sender<()>;

/// Starts a thread that kills workers of `crew` that have not moved for `patience`.
///
/// # Errors
/// [`CollectError::Start`] when the operating system refuses a thread.
pub(super) fn start(crew: &Arc<Crew>, patience: Duration) -> Result<Leash, CollectError> {
    let (leash, ended) = channel();
    let crew = Arc::downgrade(crew);
    Builder::new()
        .name("windrow-watchdog".to_owned())
        .spawn(move || watch(&crew, patience, &ended))
        .map_err(CollectError::Start)?;
    Ok(leash)
}

fn watch(crew: &Weak<Crew>, patience: Duration, ended: &Receiver<()>) {
    let mut seen: Vec<(Option<Pulse>, Instant)> = Vec::new();
    // A worker is noticed at most a quarter late.
    let pause = (patience / 4).clamp(Duration::from_millis(1), Duration::from_secs(1));
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(crew) = crew.upgrade() else { return };
        let now = Instant::now();
        let pulses = crew.pulses();
        seen.resize(pulses.len(), (None, now));
        for (worker, (pulse, last)) in pulses.into_iter().zip(&mut seen).enumerate() {
            if pulse.is_none() || pulse != last.0 || crew.is_debugged(worker) {
                *last = (pulse, now);
            } else if now - last.1 >= patience {
                crew.kill_frozen(worker, patience);
                *last = (None, now);
            }
        }
    }
}

/// Whether process `pid` is traced, as by a debugger.
pub(super) fn is_traced(pid: u32) -> bool {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}
