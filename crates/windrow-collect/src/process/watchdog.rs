//! Finds workers that are frozen: alive, but in a call that does not return.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use windrow_sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use windrow_sync::thread::Builder;

use super::crew::Crew;
use crate::CollectError;

/// Where a worker was when it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pulse {
    /// Slab of the part that it fills.
    pub(super) seq: u64,
    /// Grows with each phase of each step.
    pub(super) beat: u32,
}

/// What a worker that does not move can still be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    /// It was asked for its stack, and will write it to its standard error.
    Stack,
    Nothing,
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

/// How long a worker that shows its stack has time to do so.
const GRACE: Duration = Duration::from_millis(500);

/// What was seen of a worker.
struct Look {
    pulse: Option<Pulse>,
    /// Since when.
    since: Instant,
    /// When it was asked for its stack.
    asked: Option<Instant>,
}

impl Look {
    fn new(pulse: Option<Pulse>, since: Instant) -> Self {
        Self {
            pulse,
            since,
            asked: None,
        }
    }
}

fn watch(crew: &Weak<Crew>, patience: Duration, ended: &Receiver<()>) {
    let mut looks: Vec<Look> = Vec::new();
    // A worker is noticed at most a quarter late.
    let pause = (patience / 4).clamp(Duration::from_millis(1), GRACE);
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(crew) = crew.upgrade() else { return };
        let now = Instant::now();
        let pulses = crew.pulses();
        looks.resize_with(pulses.len(), || Look::new(None, now));
        for (worker, (pulse, look)) in pulses.into_iter().zip(&mut looks).enumerate() {
            if pulse.is_none() || pulse != look.pulse || crew.is_debugged(worker) {
                if look.asked.is_some() {
                    crew.thawed(worker);
                }
                *look = Look::new(pulse, now);
            } else if let Some(asked) = look.asked {
                if now - asked >= GRACE {
                    crew.kill_frozen(worker);
                    *look = Look::new(None, now);
                }
            } else if now - look.since >= patience {
                match crew.frozen(worker, patience) {
                    Answers::Stack => look.asked = Some(now),
                    Answers::Nothing => {
                        crew.kill_frozen(worker);
                        *look = Look::new(None, now);
                    }
                }
            }
        }
    }
}
