//! Counts and times of an inference server.

use std::time::Duration;

/// Counts and times of an [`InferenceServer`](crate::InferenceServer) since its start.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Clients at present.
    pub clients: usize,
    /// Requests answered, including those answered with an error.
    pub requests: u64,
    /// Batches evaluated.
    pub batches: u64,
    /// Rows of all batches.
    pub rows: u64,
    /// Batches that failed.
    pub failed_batches: u64,
    /// Mean of a batch's rows over `max_batch_size`: 0 to 1.
    pub batch_fill: f64,
    /// Median time from a request to the beginning of its batch, over the last 1024 requests.
    pub queue_p50: Duration,
    /// The 95th percentile of these times.
    pub queue_p95: Duration,
    /// Median time that the policy took for a batch, over the last 1024 batches.
    pub forward_p50: Duration,
    /// The 95th percentile of these times.
    pub forward_p95: Duration,
    /// Version of the weights of the last batch.
    pub policy_version: i64,
}

/// Collects the figures of [`ServerStats`].
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: ServerStats,
    queue: Window,
    forward: Window,
}

impl Tally {
    /// Counts a batch that took `forward`; `version` is `None` if it failed.
    pub(super) fn batch(&mut self, rows: usize, forward: Duration, version: Option<i64>) {
        self.counts.batches += 1;
        self.counts.rows += rows as u64;
        match version {
            Some(version) => self.counts.policy_version = version,
            None => self.counts.failed_batches += 1,
        }
        self.forward.add(forward);
    }

    /// Counts a request that waited for `queued`.
    pub(super) fn request(&mut self, queued: Duration) {
        self.counts.requests += 1;
        self.queue.add(queued);
    }

    pub(super) fn stats(&self, clients: usize, max_batch_size: usize) -> ServerStats {
        let most = self.counts.batches.max(1) as f64 * max_batch_size as f64;
        let ([queue_p50, queue_p95], [forward_p50, forward_p95]) =
            (self.queue.quantiles(), self.forward.quantiles());
        ServerStats {
            clients,
            batch_fill: self.counts.rows as f64 / most,
            queue_p50,
            queue_p95,
            forward_p50,
            forward_p95,
            ..self.counts
        }
    }
}

/// The last 1024 of a series of durations.
#[derive(Debug, Default)]
struct Window {
    times: Vec<Duration>,
    oldest: usize,
}

impl Window {
    const LENGTH: usize = 1024;

    fn add(&mut self, time: Duration) {
        if self.times.len() < Self::LENGTH {
            self.times.push(time);
        } else {
            self.times[self.oldest] = time;
            self.oldest = (self.oldest + 1) % Self::LENGTH;
        }
    }

    /// Median and 95th percentile; zero without any durations.
    fn quantiles(&self) -> [Duration; 2] {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        [50, 95].map(|percent| {
            let rank = (sorted.len() * percent).div_ceil(100);
            sorted
                .get(rank.saturating_sub(1))
                .copied()
                .unwrap_or_default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_what_was_counted() {
        let mut tally = Tally::default();
        assert_eq!(
            tally.stats(2, 8),
            ServerStats {
                clients: 2,
                ..ServerStats::default()
            }
        );
        let millis = Duration::from_millis;
        tally.batch(8, millis(4), Some(3));
        tally.batch(2, millis(2), None);
        (1..=100).for_each(|time| tally.request(millis(time)));
        let stats = tally.stats(1, 8);
        assert_eq!((stats.batches, stats.rows, stats.requests), (2, 10, 100));
        assert_eq!((stats.failed_batches, stats.policy_version), (1, 3));
        assert_eq!(stats.batch_fill, 10.0 / 16.0);
        assert_eq!((stats.queue_p50, stats.queue_p95), (millis(50), millis(95)));
        assert_eq!(
            (stats.forward_p50, stats.forward_p95),
            (millis(2), millis(4))
        );
        // Old times are forgotten.
        (0..1024).for_each(|_| tally.request(millis(7)));
        assert_eq!(tally.stats(1, 8).queue_p95, millis(7));
        assert_eq!(tally.queue.times.len(), Window::LENGTH);
    }
}
