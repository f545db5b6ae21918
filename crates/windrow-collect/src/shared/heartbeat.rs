//! Signs of life: what tells a worker that moves from one that is in a call that does not return.

// Nothing follows from them but what is said of a worker, and when: models need not see them.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::probe::{Phase, Probe};

/// Where a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    /// Slab of the part that it fills, or number of the command that it executes.
    pub(crate) seq: u64,
    /// Grows with each phase of each step.
    pub(crate) beat: u32,
}

/// The heartbeat of a worker in this process. Even while it has nothing to do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// The worker fills a part: its probe.
    pub(crate) fn begin(&self) -> PulseProbe {
        let beat = (self.0.load(Ordering::Relaxed) + 2) | 1;
        self.0.store(beat, Ordering::Relaxed);
        PulseProbe {
            pulse: Arc::clone(&self.0),
            beat,
        }
    }

    /// The worker has handed the part over, or given it back.
    pub(crate) fn end(&self) {
        let beat = self.0.load(Ordering::Relaxed);
        self.0.store((beat + 1) & !1, Ordering::Relaxed);
    }

    pub(crate) fn heartbeat(&self) -> Option<Heartbeat> {
        let seq = self.0.load(Ordering::Relaxed);
        (seq & 1 == 1).then_some(Heartbeat { seq, beat: 0 })
    }
}

/// Notes each phase of a rollout. Only the worker's own thread does.
#[derive(Debug)]
pub(crate) struct PulseProbe {
    pulse: Arc<AtomicU64>,
    beat: u64,
}

impl Probe for PulseProbe {
    #[inline(always)]
    fn mark(&mut self, _: Phase) {
        self.beat += 2;
        self.pulse.store(self.beat, Ordering::Relaxed);
    }
}

/// Workers that do not move while somebody waits for them.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Of each, the heartbeat that was seen last, since when, and whether that was reported.
    seen: Vec<(Option<Heartbeat>, Instant, bool)>,
}

impl Silence {
    /// The numbers of those that have not moved for `after`, each once until it moves again.
    pub(crate) fn look(
        &mut self,
        heartbeats: impl IntoIterator<Item = Option<Heartbeat>>,
        after: Duration,
    ) -> Vec<usize> {
        let now = Instant::now();
        let mut silent = Vec::new();
        for (worker, heartbeat) in heartbeats.into_iter().enumerate() {
            if self.seen.len() <= worker {
                self.seen.push((heartbeat, now, false));
            }
            let (seen, since, is_reported) = &mut self.seen[worker];
            if heartbeat.is_none() || heartbeat != *seen {
                (*seen, *since, *is_reported) = (heartbeat, now, false);
            } else if !*is_reported && now - *since >= after {
                *is_reported = true;
                silent.push(worker);
            }
        }
        silent
    }
}

/// The report of a worker, which it names, that has not moved for `after` and does what `doing`
/// says, in words that follow "it".
pub(crate) fn silent(name: &str, after: Duration, doing: &str) -> String {
    let seconds = after.as_secs_f64();
    let doing = match doing {
        "" => String::new(),
        doing => format!("; it {doing}"),
    };
    format!(
        "{name}: no call of its environment or policy has returned for {seconds} s{doing}. The wait goes on; in a process, step_timeout ends it"
    )
}

/// Environments from number `first` on, in words.
pub(crate) fn environments(first: usize, count: usize) -> String {
    match count {
        1 => format!("environment {first}"),
        _ => format!("environments {first} to {}", first + count - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_silent_once_until_it_moves_again() {
        let pulse = Pulse::default();
        let mut silence = Silence::default();
        let at_once = Duration::ZERO;
        let mut look = || silence.look([pulse.heartbeat()], at_once);
        assert!(look().is_empty(), "it has nothing to do");
        let mut probe = pulse.begin();
        assert!(look().is_empty(), "it has just begun");
        assert_eq!((look(), look()), (vec![0], vec![]));
        probe.mark(Phase::Policy);
        assert!(look().is_empty(), "it has moved");
        assert_eq!(look(), [0]);
        pulse.end();
        assert!(look().is_empty() && look().is_empty());
    }
}
