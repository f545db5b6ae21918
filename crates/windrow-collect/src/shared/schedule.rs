//! Who collects how much.

use serde::{Deserialize, Serialize};

/// How many frames each slab holds, how they are shared out, and which slabs are random.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// Environments of a worker.
    pub(crate) envs: usize,
    /// Steps of each part of a full slab.
    pub(crate) steps: Vec<usize>,
    /// Parts that are still filled; false for the own part of a retired worker.
    pub(crate) alive: Vec<bool>,
    /// Frames of a slab.
    pub(crate) frames_per_slab: u64,
    pub(crate) slabs_per_batch: u64,
    pub(crate) total_frames: Option<u64>,
    pub(crate) init_random_frames: u64,
    /// Frames that came before slab `first_seq`.
    pub(crate) start: u64,
    /// The slab that the following ones are counted from.
    pub(crate) first_seq: u64,
    /// Whether slabs count towards the total.
    pub(crate) counting: bool,
}

/// A worker's share of one slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) steps: usize,
    /// Whether it belongs to the random warm-up, which ignores the policy.
    pub(crate) random: bool,
}

impl Schedule {
    /// The share of part `part` of slab `seq`.
    pub(crate) fn share(&self, seq: u64, part: usize) -> Share {
        let before = self.start + seq.saturating_sub(self.first_seq) * self.frames_per_slab;
        let left = self
            .total_frames
            .filter(|_| self.counting)
            .map_or(u64::MAX, |total| total.saturating_sub(before));
        let full = self.steps[part];
        let steps = if left < self.frames_per_slab {
            self.part_of((left / self.envs as u64) as usize, part)
        } else {
            full
        };
        Share {
            steps: steps.min(full),
            random: before < self.init_random_frames,
        }
    }

    /// Frames of a batch.
    pub(crate) fn frames_per_batch(&self) -> u64 {
        self.frames_per_slab * self.slabs_per_batch
    }

    /// The slab before which collection ends.
    pub(crate) fn end(&self) -> u64 {
        self.total_frames
            .filter(|_| self.counting)
            .map_or(u64::MAX, |total| {
                let left = total.saturating_sub(self.start);
                self.first_seq + left.div_ceil(self.frames_per_slab)
            })
    }

    /// Counts on from `frames` frames with slab `seq`.
    pub(crate) fn count_from(&mut self, frames: u64, seq: u64) {
        (self.start, self.first_seq) = (frames, seq);
    }

    /// Leaves the part of worker `worker` empty from now on, if every worker has its own.
    pub(crate) fn retire(&mut self, worker: usize) {
        if let Some(alive) = self.alive.get_mut(worker) {
            *alive = false;
        }
    }

    /// The share of part `part` in `steps` steps, which are shared out in the proportions of a full
    /// slab.
    fn part_of(&self, steps: usize, part: usize) -> usize {
        let room = |parts: usize| -> usize {
            let parts = self.steps[..parts].iter().zip(&self.alive);
            parts
                .map(|(steps, &alive)| if alive { *steps } else { 0 })
                .sum()
        };
        let whole = room(self.steps.len()).max(1);
        let up_to = |parts: usize| steps * room(parts) / whole;
        up_to(part + 1) - up_to(part)
    }
}

/// `steps` steps for `parts` workers, as evenly as they go; the first ones get one more.
pub(crate) fn even_shares(steps: usize, parts: usize) -> Vec<usize> {
    (0..parts)
        .map(|part| steps / parts + usize::from(part < steps % parts))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(steps: &[usize], total_frames: u64) -> Schedule {
        Schedule {
            envs: 2,
            frames_per_slab: 2 * steps.iter().sum::<usize>() as u64,
            slabs_per_batch: 1,
            steps: steps.to_vec(),
            alive: vec![true; steps.len()],
            total_frames: Some(total_frames),
            init_random_frames: 11,
            start: 0,
            first_seq: 0,
            counting: true,
        }
    }

    #[test]
    fn the_last_batch_is_short_and_warm_up_rounds_up_to_whole_batches() {
        let schedule = schedule(&[5], 24);
        let shares = [0, 1, 2].map(|seq| schedule.share(seq, 0));
        assert_eq!(shares.map(|share| share.steps), [5, 5, 2]);
        assert_eq!(shares.map(|share| share.random), [true, true, false]);
        assert_eq!(schedule.end(), 3);
    }

    #[test]
    fn batches_outside_the_count_are_whole() {
        let uncounted = Schedule {
            counting: false,
            start: 20,
            first_seq: 7,
            ..schedule(&[5], 24)
        };
        assert_eq!(uncounted.share(7, 0).steps, 5);
        assert_eq!(uncounted.end(), u64::MAX);
    }

    #[test]
    fn shares_add_up_whatever_is_left() {
        assert_eq!(even_shares(1000, 3), [334, 333, 333]);
        for left in 0..=20 {
            let schedule = schedule(&[4, 3, 3], 2 * left);
            let shares = [0, 1, 2].map(|part| schedule.share(0, part).steps);
            assert_eq!(shares.iter().sum::<usize>() as u64, left.min(10));
            assert!(
                shares
                    .iter()
                    .zip(&[4, 3, 3])
                    .all(|(share, full)| share <= full)
            );
        }
    }
}
