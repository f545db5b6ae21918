//! Signs of life, which distinguish a worker that moves from one in a call that does not return.

// Only reports and kills depend on them, so models of concurrency need not see these atomics.
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

/// The heartbeat of a worker in this process. The number is even while the worker has nothing to
/// do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Notes that the worker begins to fill a part. Returns its probe.
    pub(crate) fn begin(&self) -> PulseProbe {
        let beat = (self.0.load(Ordering::Relaxed) + 2) | 1;
        self.0.store(beat, Ordering::Relaxed);
        PulseProbe {
            pulse: Arc::clone(&self.0),
            beat,
        }
    }

    /// Notes that the worker has handed the part over, or returned it.
    pub(crate) fn end(&self) {
        let beat = self.0.load(Ordering::Relaxed);
        self.0.store((beat + 1) & !1, Ordering::Relaxed);
    }

    pub(crate) fn heartbeat(&self) -> Option<Heartbeat> {
        let seq = self.0.load(Ordering::Relaxed);
        (seq & 1 == 1).then_some(Heartbeat { seq, beat: 0 })
    }
}

/// Counts each phase of a rollout as a heartbeat. Only the worker's own thread uses it.
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

/// Finds workers that do not move while a call waits for them.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// By worker: the heartbeat at the last look, since when it is the same, and whether the worker
    /// was reported.
    seen: Vec<(Option<Heartbeat>, Instant, bool)>,
}

impl Silence {
    /// The workers that have not moved for `after`. Each is returned once, until it moves again.
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

/// The report that worker `name` has not moved for `after`. `doing` is its state, in words that
/// follow "it"; empty if it is unknown.
pub(crate) fn silent(name: &str, after: Duration, doing: &str) -> String {
    let what = "no call of its environment or policy has returned";
    waiting(&format!("{name}: {what}"), after, doing)
}

/// The report that worker `name`, whose environments are stepped one after the other, has not
/// finished a step or reset of all of them for `after`. `doing` is as in [`silent`].
pub(crate) fn unfinished(name: &str, after: Duration, doing: &str) -> String {
    let what = "a step or reset of these has not ended";
    waiting(&format!("{name}: {what}"), after, doing)
}

fn waiting(what: &str, after: Duration, doing: &str) -> String {
    let seconds = after.as_secs_f64();
    let doing = match doing {
        "" => String::new(),
        doing => format!("; it {doing}"),
    };
    format!("{what} for {seconds} s{doing}. The wait goes on; in a process, step_timeout ends it")
}

/// The `count` environments from number `first` on, in words.
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
