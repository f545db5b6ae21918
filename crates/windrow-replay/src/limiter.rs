//! The rate limiter keeps a ratio between frames written and frames sampled.

use crate::{Access, LimiterWait, ReplayError};

/// Bounds the ratio of samples to insertions: makes either wait for the other, counted in frames.
///
/// It bounds the cursor `inserted * samples_per_insert - sampled`. A sample of `n` frames waits
/// while the buffer holds fewer than `min_size_to_sample` frames, or the sample would take the
/// cursor below `min_diff`; an insertion waits while it would take the cursor above `max_diff`, but
/// never before the buffer holds `min_size_to_sample` frames. These are the rules of Reverb's rate
/// limiters.
///
/// Only a [ratio](Self::sample_to_insert_ratio) makes insertions wait. With
/// [`min_size`](Self::min_size), as without a limiter, a collector that was started collects as
/// fast as it can: it may overwrite frames, or reach its end, before a learner has sampled them:
/// see [`ReplayStats::overwritten`](crate::ReplayStats).
#[derive(Debug, Clone, PartialEq)]
pub struct RateLimiter {
    samples_per_insert: f64,
    min_size_to_sample: usize,
    min_diff: f64,
    max_diff: f64,
    counts: LimiterCounts,
}

impl RateLimiter {
    /// Samples wait until the buffer holds `min_size_to_sample` frames; insertions never wait.
    #[must_use]
    pub fn min_size(min_size_to_sample: usize) -> Self {
        Self {
            samples_per_insert: 1.0,
            min_size_to_sample,
            min_diff: f64::NEG_INFINITY,
            max_diff: f64::INFINITY,
            counts: LimiterCounts::default(),
        }
    }

    /// Every frame written is sampled `samples_per_insert` times on average; the cursor may be off
    /// by `error_buffer`, in sampled frames, to either side of
    /// `samples_per_insert * min_size_to_sample`.
    ///
    /// Waiting on both sides is impossible when `2 * error_buffer` is at least what the largest
    /// insertion adds and the largest sample takes away.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] when `samples_per_insert` is not positive, `min_size_to_sample` is
    /// 0, or `error_buffer` is less than 1 or than `samples_per_insert`: not even one frame would
    /// then get through.
    pub fn sample_to_insert_ratio(
        samples_per_insert: f64,
        min_size_to_sample: usize,
        error_buffer: f64,
    ) -> Result<Self, ReplayError> {
        let argument = |name, expected: String, got: f64| {
            Err(ReplayError::Argument {
                name,
                expected,
                got: got.to_string(),
            })
        };
        if !(samples_per_insert.is_finite() && samples_per_insert > 0.0) {
            let expected = "a positive number".to_owned();
            return argument("samples_per_insert", expected, samples_per_insert);
        }
        if min_size_to_sample == 0 {
            return argument("min_size_to_sample", "at least 1".to_owned(), 0.0);
        }
        let least = samples_per_insert.max(1.0);
        if error_buffer.is_nan() || error_buffer < least {
            return argument("error_buffer", format!("at least {least}"), error_buffer);
        }
        let offset = samples_per_insert * min_size_to_sample as f64;
        Ok(Self {
            samples_per_insert,
            min_size_to_sample,
            min_diff: offset - error_buffer,
            max_diff: offset + error_buffer,
            counts: LimiterCounts::default(),
        })
    }

    /// Checks that a buffer of `capacity` frames can hold the frames that samples wait for.
    ///
    /// # Errors
    /// [`ReplayError::Argument`].
    pub(crate) fn check(&self, capacity: usize) -> Result<(), ReplayError> {
        if self.min_size_to_sample <= capacity {
            return Ok(());
        }
        Err(ReplayError::Argument {
            name: "min_size_to_sample",
            expected: format!("at most {capacity} frames, which the buffer has room for"),
            got: self.min_size_to_sample.to_string(),
        })
    }

    fn cursor(&self, inserted: u64, sampled: u64) -> f64 {
        inserted as f64 * self.samples_per_insert - sampled as f64
    }

    /// The reason why a sample of `frames` frames from a buffer that holds `size` must wait, if it
    /// must.
    pub(crate) fn blocks_sample(&self, frames: usize, size: usize) -> Option<LimiterWait> {
        if size < self.min_size_to_sample {
            return Some(LimiterWait::Size {
                needed: self.min_size_to_sample,
                held: size,
            });
        }
        let cursor = self.cursor(self.counts.inserted, self.counts.sampled + frames as u64);
        (cursor < self.min_diff).then_some(LimiterWait::Insertions {
            inserted: self.counts.inserted,
            samples_per_insert: self.samples_per_insert,
            sampled: self.counts.sampled,
            frames,
            cursor,
            min_diff: self.min_diff,
        })
    }

    /// The reason why an insertion of `frames` frames into a buffer that holds `size` must wait, if
    /// it must.
    pub(crate) fn blocks_insert(&self, frames: usize, size: usize) -> Option<LimiterWait> {
        if size + frames <= self.min_size_to_sample {
            return None;
        }
        let cursor = self.cursor(self.counts.inserted + frames as u64, self.counts.sampled);
        (cursor > self.max_diff).then_some(LimiterWait::Samples {
            inserted: self.counts.inserted,
            frames,
            samples_per_insert: self.samples_per_insert,
            sampled: self.counts.sampled,
            cursor,
            max_diff: self.max_diff,
        })
    }

    /// The error of a call that would wait forever, since it moves the cursor beyond its bounds.
    pub(crate) fn forbids(&self, what: Access, frames: usize) -> Option<ReplayError> {
        let moves = match what {
            Access::Insert => frames as f64 * self.samples_per_insert,
            Access::Sample => frames as f64,
        };
        let room = self.max_diff - self.min_diff;
        (moves > room).then_some(ReplayError::NeverThrough {
            what,
            frames,
            error_buffer: room / 2.0,
            needed: moves / 2.0,
        })
    }

    pub(crate) fn inserted(&mut self, frames: usize) {
        self.counts.inserted += frames as u64;
    }

    pub(crate) fn sampled(&mut self, frames: usize) {
        self.counts.sampled += frames as u64;
    }

    pub(crate) fn counts(&self) -> LimiterCounts {
        self.counts
    }

    pub(crate) fn set_counts(&mut self, counts: LimiterCounts) {
        self.counts = counts;
    }
}

/// Frames that a limiter let through since the buffer was last empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LimiterCounts {
    pub(crate) inserted: u64,
    pub(crate) sampled: u64,
}

#[cfg(test)]
mod tests {
    use super::RateLimiter;
    use crate::Access;

    #[test]
    fn a_minimum_size_is_waited_for() {
        let limiter = RateLimiter::min_size(10);
        assert_eq!(
            limiter.blocks_sample(4, 9).unwrap().to_string(),
            "the limiter waits for 10 frames, the buffer holds 9"
        );
        assert_eq!(limiter.blocks_sample(400, 10), None);
        assert_eq!(limiter.blocks_insert(1 << 40, 1 << 40), None);
    }

    #[test]
    fn more_frames_than_a_buffer_holds_cannot_be_waited_for() {
        let ratio = |size| RateLimiter::sample_to_insert_ratio(1.0, size, 10.0).unwrap();
        for make in [RateLimiter::min_size, ratio] {
            assert!(make(10).check(10).is_ok());
            assert_eq!(
                make(1000).check(10).unwrap_err().to_string(),
                "min_size_to_sample: expected at most 10 frames, which the buffer has room for, got 1000"
            );
        }
    }

    #[test]
    fn a_ratio_lets_either_side_be_ahead_by_the_buffer() {
        // The cursor may be within 20 +- 8.
        let mut limiter = RateLimiter::sample_to_insert_ratio(2.0, 10, 8.0).unwrap();
        assert_eq!(limiter.blocks_insert(10, 0), None);
        limiter.inserted(10);
        assert_eq!(limiter.blocks_insert(4, 10), None);
        limiter.inserted(4);
        assert_eq!(
            limiter.blocks_insert(1, 14).unwrap().to_string(),
            "the limiter waits for more to be sampled: (14 frames inserted + 1) * 2 - 0 sampled = 30 > 28"
        );
        assert_eq!(limiter.blocks_sample(16, 14), None);
        limiter.sampled(16);
        assert_eq!(
            limiter.blocks_sample(1, 14).unwrap().to_string(),
            "the limiter waits for more to be written: 14 frames inserted * 2 - 16 sampled - 1 asked for = 11 < 12"
        );
        assert_eq!(limiter.blocks_insert(8, 14), None);
        assert!(limiter.blocks_insert(9, 14).is_some());
        // Up to the least that is sampled from, writes are let in whatever was written before.
        limiter.inserted(1000);
        assert_eq!(limiter.blocks_insert(4, 6), None);
        assert!(limiter.blocks_insert(5, 6).is_some());
        assert!(limiter.blocks_sample(1, 9).is_some());
        assert_eq!(limiter.blocks_sample(1, 10), None);
    }

    #[test]
    fn what_would_wait_for_ever_is_an_error() {
        let limiter = RateLimiter::sample_to_insert_ratio(2.0, 10, 8.0).unwrap();
        assert!(limiter.forbids(Access::Sample, 16).is_none());
        assert_eq!(
            limiter.forbids(Access::Sample, 17).unwrap().to_string(),
            "17 frames can never be sampled together: error_buffer=8 must be at least 8.5"
        );
        assert!(limiter.forbids(Access::Insert, 8).is_none());
        assert!(limiter.forbids(Access::Insert, 9).is_some());
        for (samples_per_insert, min_size, error_buffer) in [
            (0.0, 1, 2.0),
            (f64::NAN, 1, 2.0),
            (1.0, 0, 2.0),
            (3.0, 1, 2.9),
            (0.1, 1, 0.9),
        ] {
            assert!(
                RateLimiter::sample_to_insert_ratio(samples_per_insert, min_size, error_buffer)
                    .is_err()
            );
        }
    }
}
