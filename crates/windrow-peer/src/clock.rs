//! A clock that processes share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time of a clock that all processes of the machine read alike: it only grows, from some
/// moment in the past. It is the clock of [`Instant`](std::time::Instant), as a number that can be
/// sent.
#[must_use]
pub fn shared_clock() -> Duration {
    // Of this clock, neither number is ever negative.
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_clock_is_that_of_instants() {
        let outer = Instant::now();
        let first = shared_clock();
        let inner = Instant::now();
        while inner.elapsed() < Duration::from_millis(2) {}
        let least = inner.elapsed();
        let passed = shared_clock() - first;
        assert!(least <= passed && passed <= outer.elapsed());
    }
}
