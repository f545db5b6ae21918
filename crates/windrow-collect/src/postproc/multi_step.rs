//! Rewards over several steps.

use std::ops::{Add, Mul, Range};

use tensordict::{DType, Element, NestedKey, Tensor, TensorDict, TensorError};

use crate::error::ArgumentError;
use crate::trajectories::{
    BatchRows, IDS, MASK, Marks, Move, done_of, mask_of, one_each, rearranged,
};

const REWARD: &[&str] = &["next", "reward"];
const ORIGINAL: &str = "original_reward";
const TERMINATED: &[&str] = &["next", "terminated"];

/// Multi-step rewards: the target of a step is the observation `n` steps later, with the sum of the
/// rewards on the way.
///
/// A step `t` looks `k` steps ahead: at most `n - 1`, and never beyond the episode, the batch or
/// the mask. It gets
///
/// - `("next", "reward")`: `r_t + γ r_{t+1} + … + γ^k r_{t+k}`, and `r_t` as
///   `("next", "original_reward")`;
/// - all other entries under `"next"` as they are at `t + k`, except for those named `done`,
///   `terminated` or `truncated`;
/// - `"steps_to_next_obs"`, `int64`: `k + 1`; `"gamma"`, `float32`: `γ^(k + 1)`;
/// - `"nonterminal"`, `bool`: whether `k` is not 0, and false where `("collector", "mask")` is;
/// - `"next_obs_terminated"`, `bool`: `("next", "terminated")` as it is at `t + k`, where the batch
///   has it.
///
/// `"steps_to_next_obs"`, `"gamma"` and `"nonterminal"` are `[…, time]`. `("next", "terminated")`
/// itself says whether the episode terminated in step `t`, not whether it did so up to step
/// `t + k`: with a value function `v`, the target of step `t` is `("next", "reward") + gamma · (1 -
/// next_obs_terminated) · v(("next",
/// "observation"))`. `"nonterminal"` is no substitute: it is false wherever `k` is 0, also where an
/// episode continues.
///
/// An episode continues as long as `("next", "done")` is false and `("collector", "traj_ids")`,
/// where there are any, stay the same. Frames that the mask excludes stay as they are, with `k` =
/// 0.
///
/// ```
/// use windrow_collect::{Collector, postproc::MultiStep};
///
/// let multi_step = MultiStep::new(0.5, 3)?;
/// let mut collector = Collector::builder("CartPole-v1")
///     .frames_per_batch(4)
///     .postproc(move |mut batch| multi_step.apply(&mut batch).map(|()| batch))
///     .build()?;
/// let batch = collector.next().unwrap()?;
/// assert_eq!(batch.as_slice::<f32>(("next", "reward"))?, [1.75, 1.75, 1.5, 1.0]);
/// assert_eq!(batch.as_slice::<i64>("steps_to_next_obs")?, [3, 3, 2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: Sutton, "Learning to predict by the methods of temporal differences", 1988.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MultiStep {
    gamma: f32,
    n_steps: usize,
}

impl MultiStep {
    /// With discount `gamma`, above 0 and at most 1, over `n_steps` steps, at least 1.
    ///
    /// # Errors
    /// [`ArgumentError::OutOfRange`] and [`ArgumentError::NotPositive`] when one of them is out of
    /// its range.
    pub fn new(gamma: f32, n_steps: usize) -> Result<Self, ArgumentError> {
        if !(gamma > 0.0 && gamma <= 1.0) {
            return Err(ArgumentError::OutOfRange {
                name: "gamma",
                expected: "0 (excluded) to 1",
                got: f64::from(gamma),
            });
        }
        ArgumentError::check_positive("n_steps", n_steps)?;
        Ok(Self { gamma, n_steps })
    }

    /// Replaces the rewards and next observations of `batch`, `[…, time]`, and adds the new
    /// entries.
    ///
    /// # Errors
    /// [`TensorError`] when `("next", "reward")`, `float32` or `float64`, or `("next", "done")` is
    /// missing or of another type, when ids or mask are of another type, or when the batch has no
    /// dimension. The batch then stays as it was.
    pub fn apply(&self, batch: &mut TensorDict) -> Result<(), TensorError> {
        let rows = BatchRows::of(batch)?;
        let (dims, size) = (batch.ndim(), batch.batch_size().to_vec());
        let ahead = self.look_ahead(batch, rows)?;
        let moves = targets(&ahead.steps);
        let original = batch.get(REWARD)?.clone();
        let reward = match original.dtype() {
            DType::F64 => self.sums::<f64>(&original, dims, &ahead, |power| power)?,
            _ => self.sums::<f32>(&original, dims, &ahead, |power| power as f32)?,
        };
        let mut next = batch.get_dict("next")?.map(|key, tensor| {
            if stays(key) {
                Ok(tensor.clone())
            } else {
                rearranged(tensor, dims, &moves, &size)
            }
        })?;
        next.set("reward", reward)?;
        next.set(ORIGINAL, original)?;

        let terminated = match batch.get(TERMINATED) {
            Ok(terminated) => Some(rearranged(terminated, dims, &moves, &size)?),
            Err(_) => None,
        };
        let steps: Vec<i64> = ahead.steps.iter().map(|&k| k as i64 + 1).collect();
        let discounts = ahead.steps.iter().map(|&k| self.discount(k + 1));
        let discounts: Vec<f32> = discounts.collect();
        let nonterminal: Vec<bool> = ahead.steps.iter().map(|&k| k != 0).collect();
        let steps = Tensor::from_vec(steps, &size)?;
        let discounts = Tensor::from_vec(discounts, &size)?;
        let nonterminal = Tensor::from_vec(nonterminal, &size)?;
        batch.set("next", next)?;
        batch.set("steps_to_next_obs", steps)?;
        batch.set("gamma", discounts)?;
        batch.set("nonterminal", nonterminal)?;
        if let Some(terminated) = terminated {
            batch.set("next_obs_terminated", terminated)?;
        }
        Ok(())
    }

    fn look_ahead(&self, batch: &TensorDict, rows: BatchRows) -> Result<Ahead, TensorError> {
        let frames = batch.numel();
        let done = done_of(batch)?;
        let mask = mask_of(batch, MASK)?;
        let ids = if batch.contains_key(IDS) {
            one_each::<i64>(batch, IDS)?
        } else {
            Tensor::zeros(DType::I64, [frames])?
        };
        let marks = Marks::of(&ids, &done, mask.as_ref())?;
        let (mut steps, mut runs) = (vec![0; frames], Vec::new());
        marks.runs(rows, |run| {
            let run = run.start..run.start + run.len;
            for (left, steps) in steps[run.clone()].iter_mut().rev().enumerate() {
                *steps = left.min(self.n_steps - 1);
            }
            runs.push(run);
        });
        Ok(Ahead { steps, runs })
    }

    /// Discounted sums of `reward`, each over its own frame and those that it looks ahead.
    ///
    /// The time does not depend on `n_steps`: runs are cut into blocks of `n_steps` frames, and a
    /// sum is the rest of the block of its first frame plus the beginning of the block of its last
    /// frame.
    fn sums<T>(
        &self,
        reward: &Tensor,
        dims: usize,
        ahead: &Ahead,
        round: fn(f64) -> T,
    ) -> Result<Tensor, TensorError>
    where
        T: Element + Add<Output = T> + Mul<Output = T>,
    {
        let values = reward.to_vec::<T>().map_err(|error| error.at(REWARD))?;
        let width: usize = reward.shape()[dims..].iter().product();
        let longest = ahead.runs.iter().map(Range::len).max().unwrap_or(0);
        let powers: Vec<T> = (0..=longest.min(self.n_steps))
            .map(|n| round(f64::from(self.gamma).powf(n as f64)))
            .collect();
        let gamma = round(f64::from(self.gamma));
        // For each frame, the discounted sum from it to the end of its block, and from the
        // beginning of its block to it.
        let (mut rests, mut firsts) = (values.clone(), values);
        for run in &ahead.runs {
            for start in run.clone().step_by(self.n_steps.min(run.len())) {
                let block = start..run.end.min(start.saturating_add(self.n_steps));
                for i in (start * width..(block.end - 1) * width).rev() {
                    rests[i] = rests[i] + gamma * rests[i + width];
                }
                for (frame, power) in block.zip(&powers).skip(1) {
                    for i in frame * width..(frame + 1) * width {
                        firsts[i] = firsts[i - width] + *power * firsts[i];
                    }
                }
            }
        }
        let mut sums = rests;
        for run in &ahead.runs {
            for (offset, frame) in run.clone().enumerate() {
                // Frames of its block from this one on.
                let own = self.n_steps - offset % self.n_steps;
                let k = ahead.steps[frame];
                if k < own {
                    continue;
                }
                let power = powers[own];
                for i in frame * width..(frame + 1) * width {
                    sums[i] = sums[i] + power * firsts[i + k * width];
                }
            }
        }
        Tensor::from_vec(sums, reward.shape())
    }

    fn discount(&self, steps: usize) -> f32 {
        self.gamma.powf(steps as f32)
    }
}

/// How far frames look ahead.
struct Ahead {
    /// Steps of each frame, row-major.
    steps: Vec<usize>,
    /// Frames of one trajectory that follow each other.
    runs: Vec<Range<usize>>,
}

/// The moves that put the frame `ahead` frames later in place of each frame.
fn targets(ahead: &[usize]) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for (to, &k) in ahead.iter().enumerate() {
        let from = to + k;
        match moves.last_mut() {
            Some(last) if last.from + last.len == from => last.len += 1,
            _ => moves.push(Move { from, to, len: 1 }),
        }
    }
    moves
}

/// Whether an entry is a flag about its own step, or the reward, which is replaced.
fn stays(key: &NestedKey) -> bool {
    matches!(key.last(), "done" | "terminated" | "truncated")
        || (key.depth() == 1 && key.last() == "reward")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row of frames: reward and observation `t` say which they are.
    fn row(done: &[bool]) -> TensorDict {
        let n = done.len();
        let mut batch = TensorDict::new([n]);
        let numbers = Tensor::arange(0..n as i64).unwrap();
        let reward = numbers.cast(DType::F32).unwrap().view([n, 1]).unwrap();
        batch.set("observation", &numbers).unwrap();
        batch.set(("next", "observation"), &numbers).unwrap();
        batch.set(("next", "agents", "state"), numbers).unwrap();
        batch.set(REWARD, reward).unwrap();
        for name in ["done", "terminated"] {
            let flags = Tensor::from_slice(done, [n, 1]).unwrap();
            batch.set(("next", name), flags).unwrap();
        }
        batch
    }

    fn applied(mut batch: TensorDict, gamma: f32, n_steps: usize) -> TensorDict {
        let multi_step = MultiStep::new(gamma, n_steps).unwrap();
        multi_step.apply(&mut batch).unwrap();
        batch
    }

    fn ints(batch: &TensorDict, key: &[&str]) -> Vec<i64> {
        batch.get(key).unwrap().to_vec().unwrap()
    }

    fn floats(batch: &TensorDict, key: &[&str]) -> Vec<f32> {
        batch.get(key).unwrap().to_vec().unwrap()
    }

    fn flags(batch: &TensorDict, key: &[&str]) -> Vec<bool> {
        batch.get(key).unwrap().to_vec().unwrap()
    }

    #[test]
    fn what_follows_is_looked_up_ahead_within_the_episode() {
        let (o, x) = (false, true);
        let batch = row(&[o, o, o, x, o, o]);
        let out = applied(batch.clone(), 0.5, 3);
        assert_eq!(ints(&out, &["next", "observation"]), [2, 3, 3, 3, 5, 5]);
        assert_eq!(ints(&out, &["next", "agents", "state"]), [2, 3, 3, 3, 5, 5]);
        assert_eq!(floats(&out, REWARD), [1.0, 2.75, 3.5, 3.0, 6.5, 5.0]);
        assert_eq!(ints(&out, &["steps_to_next_obs"]), [3, 3, 2, 1, 2, 1]);
        assert_eq!(
            floats(&out, &["gamma"]),
            [0.125, 0.125, 0.25, 0.5, 0.25, 0.5]
        );
        assert_eq!(flags(&out, &["nonterminal"]), [x, x, x, o, x, o]);
        let terminated = flags(&out, &["next_obs_terminated"]);
        assert_eq!(terminated, [o, x, x, x, o, o]);
        assert_eq!(out.get("gamma").unwrap().shape(), [6]);
        // These say what they said.
        for key in [
            &["observation"][..],
            &["next", "done"],
            &["next", "terminated"],
        ] {
            assert_eq!(out.get(key).unwrap(), batch.get(key).unwrap());
        }
        let original = out.get(("next", ORIGINAL)).unwrap();
        assert_eq!(original, batch.get(REWARD).unwrap());
    }

    #[test]
    fn one_can_bootstrap_from_the_new_columns() {
        // Terminated after frame 2, truncated after frame 4, cut by the end of the batch after
        // frame 6.
        let mut batch = row(&[false, false, true, false, true, false, false]);
        let terminated = Tensor::from_vec((0..7).map(|t| t == 2).collect(), [7, 1]).unwrap();
        batch.set(TERMINATED, terminated).unwrap();
        let out = applied(batch, 0.5, 2);
        let (rewards, gammas) = (floats(&out, REWARD), floats(&out, &["gamma"]));
        let terminated = flags(&out, &["next_obs_terminated"]);
        let values = ints(&out, &["next", "observation"]);
        let targets: Vec<f32> = (0..7)
            .map(|t| match terminated[t] {
                true => rewards[t],
                false => rewards[t] + gammas[t] * values[t] as f32,
            })
            .collect();
        // Rewards and values of frame `t` are `t`.
        let expected = [
            0.0 + 0.5 * (1.0 + 0.5 * 1.0),
            1.0 + 0.5 * 2.0,
            2.0,
            3.0 + 0.5 * (4.0 + 0.5 * 4.0),
            4.0 + 0.5 * 4.0,
            5.0 + 0.5 * (6.0 + 0.5 * 6.0),
            6.0 + 0.5 * 6.0,
        ];
        assert_eq!(targets, expected);
    }

    #[test]
    fn one_step_adds_bookkeeping_only() {
        let batch = row(&[false, true, false]);
        let out = applied(batch.clone(), 0.9, 1);
        for (key, tensor) in batch.leaves() {
            assert_eq!(out.get(&key).unwrap(), tensor);
        }
        assert_eq!(ints(&out, &["steps_to_next_obs"]), [1; 3]);
        assert_eq!(flags(&out, &["nonterminal"]), [false; 3]);
    }

    #[test]
    fn more_steps_than_there_are_reach_the_end() {
        let out = applied(row(&[false; 4]), 1.0, usize::MAX);
        assert_eq!(ints(&out, &["next", "observation"]), [3; 4]);
        assert_eq!(floats(&out, REWARD), [6.0, 6.0, 5.0, 3.0]);
    }

    #[test]
    fn sums_of_any_length_are_those_that_adding_step_by_step_gives() {
        let done: Vec<bool> = (0..23).map(|t| [4, 5, 12].contains(&t)).collect();
        let rows = [row(&done), row(&[false; 23])];
        let mut batch = TensorDict::stack(&rows, 0).unwrap();
        let rewards: Vec<f32> = (0..2 * 23 * 2).map(|i| ((i * 37) % 11) as f32).collect();
        let rewards_of = |frame: usize| [rewards[2 * frame], rewards[2 * frame + 1]];
        let tensor = Tensor::from_slice(&rewards, [2, 23, 2]).unwrap();
        batch.set(REWARD, tensor).unwrap();
        for n_steps in (1..=24).chain([1000, usize::MAX - 1, usize::MAX]) {
            let out = applied(batch.clone(), 0.75, n_steps);
            let sums = floats(&out, REWARD);
            let steps = ints(&out, &["steps_to_next_obs"]);
            for (frame, &steps) in steps.iter().enumerate() {
                let mut expected = [0.0f64; 2];
                for later in (frame..frame + steps as usize).rev() {
                    let now = rewards_of(later);
                    expected = [0, 1].map(|i| f64::from(now[i]) + 0.75 * expected[i]);
                }
                for (i, expected) in expected.into_iter().enumerate() {
                    let got = f64::from(sums[2 * frame + i]);
                    assert!((got - expected).abs() < 1e-4, "{n_steps}, frame {frame}");
                }
            }
        }
    }

    #[test]
    fn rows_and_ids_do_not_run_into_each_other() {
        let rows = [row(&[false; 3]), row(&[false, true, false])];
        let stacked = applied(TensorDict::stack(&rows, 0).unwrap(), 0.5, 2);
        for (i, row) in rows.iter().enumerate() {
            assert_eq!(stacked.index(i).unwrap(), applied(row.clone(), 0.5, 2));
        }
        let mut flat = row(&[false; 4]);
        let ids = Tensor::from_vec(vec![1i64, 1, 2, 2], [4]).unwrap();
        flat.set(IDS, ids).unwrap();
        let out = applied(flat, 1.0, 4);
        assert_eq!(ints(&out, &["next", "observation"]), [1, 1, 3, 3]);
    }

    #[test]
    fn a_mask_ends_what_it_excludes() {
        let mut batch = row(&[false; 4]);
        let mask = Tensor::from_vec(vec![true, true, false, false], [4]).unwrap();
        batch.set(MASK, mask).unwrap();
        let out = applied(batch, 1.0, 3);
        assert_eq!(ints(&out, &["next", "observation"]), [1, 1, 2, 3]);
        assert_eq!(floats(&out, REWARD), [1.0, 1.0, 2.0, 3.0]);
        let nonterminal = flags(&out, &["nonterminal"]);
        assert_eq!(nonterminal, [true, false, false, false]);
    }

    #[test]
    fn doubles_stay_doubles() {
        let batch = row(&[false; 4]);
        let doubles = batch.get(REWARD).unwrap().cast(DType::F64).unwrap();
        let mut wide = batch.clone();
        wide.set(REWARD, doubles).unwrap();
        let (out, wide) = (applied(batch, 0.5, 3), applied(wide, 0.5, 3));
        let narrow = wide.get(REWARD).unwrap().cast(DType::F32).unwrap();
        assert_eq!(wide.get(REWARD).unwrap().dtype(), DType::F64);
        assert_eq!(&narrow, out.get(REWARD).unwrap());
    }

    #[test]
    fn a_refused_batch_stays_as_it_was() {
        let mut batch = row(&[false; 2]);
        let whole = Tensor::arange(0..2).unwrap().view([2, 1]).unwrap();
        batch.set(REWARD, whole).unwrap();
        let before = batch.clone();
        let multi_step = MultiStep::new(0.9, 2).unwrap();
        assert_eq!(
            multi_step.apply(&mut batch).unwrap_err().to_string(),
            r#"entry ("next", "reward"): expected dtype float32, got int64"#
        );
        assert_eq!(batch, before);
    }

    #[test]
    fn impossible_arguments_are_refused() {
        let message = |gamma, n_steps| MultiStep::new(gamma, n_steps).unwrap_err().to_string();
        assert_eq!(
            message(0.0, 1),
            "gamma must be within 0 (excluded) to 1, got 0"
        );
        assert_eq!(
            message(1.5, 1),
            "gamma must be within 0 (excluded) to 1, got 1.5"
        );
        assert!(MultiStep::new(f32::NAN, 1).is_err());
        assert_eq!(message(0.9, 0), "n_steps must be a positive number, got 0");
    }
}
