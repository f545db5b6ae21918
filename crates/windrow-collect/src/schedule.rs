/// How many frames each batch holds, and which batches are random.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// Environments of a worker.
    pub(crate) envs: usize,
    /// Steps of a full share.
    pub(crate) steps: usize,
    pub(crate) frames_per_batch: u64,
    pub(crate) total_frames: Option<u64>,
    pub(crate) init_random_frames: u64,
    /// Frames that came before batch `first_seq`.
    pub(crate) start: u64,
    /// The batch that the following ones are counted from.
    pub(crate) first_seq: u64,
    /// Whether batches count towards the total.
    pub(crate) counting: bool,
}

/// What a worker is to do for one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) steps: usize,
    /// Ignore the policy: the batch belongs to the random warm-up.
    pub(crate) random: bool,
}

impl Schedule {
    /// A worker's share of batch `seq`.
    pub(crate) fn share(&self, seq: u64) -> Share {
        let before = self.start + seq.saturating_sub(self.first_seq) * self.frames_per_batch;
        let left = self
            .total_frames
            .filter(|_| self.counting)
            .map_or(u64::MAX, |total| total.saturating_sub(before));
        let steps = if left < self.frames_per_batch {
            (left / self.envs as u64) as usize
        } else {
            self.steps
        };
        Share {
            steps,
            random: before < self.init_random_frames,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> Schedule {
        Schedule {
            envs: 2,
            steps: 5,
            frames_per_batch: 10,
            total_frames: Some(24),
            init_random_frames: 11,
            start: 0,
            first_seq: 0,
            counting: true,
        }
    }

    #[test]
    fn the_last_batch_is_short_and_warm_up_rounds_up_to_whole_batches() {
        let shares = [0, 1, 2].map(|seq| schedule().share(seq));
        assert_eq!(shares.map(|share| share.steps), [5, 5, 2]);
        assert_eq!(shares.map(|share| share.random), [true, true, false]);
    }

    #[test]
    fn batches_outside_the_count_are_whole() {
        let uncounted = Schedule {
            counting: false,
            start: 20,
            first_seq: 7,
            ..schedule()
        };
        assert_eq!(uncounted.share(7).steps, 5);
    }
}
