use std::ops::{Add, Mul, Sub};

use tensordict::{DType, Element, NestedKey, Tensor, TensorDict, TensorError};

use crate::error::ArgumentError;
use crate::trajectories::{IDS, MASK};

const REWARD: &[&str] = &["next", "reward"];

/// Generalised advantage estimation: λ-weighted returns along time.
///
/// With `v` and `v'` the values of an observation and of the one that followed,
/// `δ_t = r_t + γ v'_t (1 - terminated_t) - v_t` and `A_t = δ_t + γ λ (1 - done_t) A_{t+1}`; the
/// value target is `A_t + v_t`. The sum ends where an episode is truncated, but bootstraps from the
/// last value, as it does at the end of the batch. Several rewards a frame, as of several agents or
/// objectives, are estimated separately. A change of `("collector", "traj_ids")` without an end, as
/// between the shares of two workers in one row, counts as the end of a batch. Frames that
/// `("collector", "mask")` excludes have no influence, and an advantage of 0.
///
/// ```
/// use windrow_collect::{Collector, postproc::Gae};
/// use tensordict::{Tensor, TensorDict};
///
/// let gae = Gae::new(0.99, 0.95)?;
/// let mut collector = Collector::builder("CartPole-v1")
///     .num_envs(2)
///     .frames_per_batch(100)
///     .postproc(move |mut batch: TensorDict| {
///         // Where a value network would be asked for `"observation"` and `("next", "observation")`:
///         batch.set("state_value", Tensor::from_vec(vec![0.0f32; 100], [2, 50, 1])?)?;
///         batch.set(("next", "state_value"), Tensor::from_vec(vec![0.0f32; 100], [2, 50, 1])?)?;
///         gae.estimate(&mut batch)?;
///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(batch)
///     })
///     .build()?;
/// let batch = collector.next().unwrap()?;
/// assert_eq!(batch.get("advantage")?.shape(), &[2, 50, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: Schulman et al., "High-dimensional continuous control using generalized advantage
/// estimation", 2016, eq. 16.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gae {
    gamma: f64,
    lmbda: f64,
}

impl Gae {
    /// With discount `gamma` and weight `lmbda`, both from 0 to 1.
    ///
    /// # Errors
    /// [`ArgumentError::OutOfRange`] when one of them is outside.
    pub fn new(gamma: impl Into<f64>, lmbda: impl Into<f64>) -> Result<Self, ArgumentError> {
        let (gamma, lmbda) = (gamma.into(), lmbda.into());
        for (name, value) in [("gamma", gamma), ("lmbda", lmbda)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ArgumentError::OutOfRange {
                    name,
                    expected: "0 to 1",
                    got: value,
                });
            }
        }
        Ok(Self { gamma, lmbda })
    }

    /// Adds `"advantage"` and `"value_target"`, of the reward's shape and element type, to a batch
    /// whose last dimension is time.
    ///
    /// Reads `"state_value"` and, under `"next"`, `state_value` and `reward`, `[…, time, rewards]`
    /// of `float32` or `float64`, `done` and `terminated`, of the same shape or with 1 in place of
    /// dimensions behind time, and, where there are any, `("collector", "traj_ids")` and
    /// `("collector", "mask")`, `[…, time]`.
    ///
    /// # Errors
    /// [`TensorError`] when one of those is missing, or of another element type or shape.
    pub fn estimate(&self, batch: &mut TensorDict) -> Result<(), TensorError> {
        match batch.get(REWARD)?.dtype() {
            DType::F64 => self.estimate_in::<f64>(batch),
            _ => self.estimate_in::<f32>(batch),
        }
    }

    /// As [`estimate`](Self::estimate), of rewards and values of the type `T`.
    fn estimate_in<T: Real>(&self, batch: &mut TensorDict) -> Result<(), TensorError> {
        let reward = batch.get(REWARD)?;
        let shape = reward.shape().to_vec();
        let steps = batch.batch_size().last().copied().unwrap_or(1);
        let values = |key: &[&str]| -> Result<Vec<T>, TensorError> {
            let values = batch.get(key)?;
            if values.shape() != shape {
                let error = TensorError::Shape {
                    op: "advantages",
                    expected: shape.clone(),
                    got: values.shape().to_vec(),
                };
                return Err(error.at(key));
            }
            values.to_vec::<T>().map_err(|error| error.at(key))
        };
        let flags = |name: &str| -> Result<Vec<bool>, TensorError> {
            let key = NestedKey::from(("next", name));
            let flags = batch.get(&key)?.expand(&shape);
            flags
                .and_then(|flags| flags.to_vec::<bool>())
                .map_err(|error| error.at(&key))
        };
        let frames = GaeInput {
            width: shape[batch.ndim()..].iter().product(),
            reward: values(REWARD)?,
            value: values(&["state_value"])?,
            next_value: values(&["next", "state_value"])?,
            done: flags("done")?,
            terminated: flags("terminated")?,
            ids: each(batch, IDS)?,
            mask: each(batch, MASK)?,
        };
        let (advantage, target) = self.advantages(&frames, steps);
        batch.set("advantage", Tensor::from_vec(advantage, &shape)?)?;
        batch.set("value_target", Tensor::from_vec(target, &shape)?)?;
        Ok(())
    }

    /// The advantages and value targets of rows of `steps` frames, each computed from its end to
    /// its beginning.
    fn advantages<T: Real>(&self, frames: &GaeInput<T>, steps: usize) -> (Vec<T>, Vec<T>) {
        let width = frames.width;
        let (gamma, decay) = (T::of(self.gamma), T::of(self.gamma * self.lmbda));
        let mut out = vec![T::ZERO; frames.reward.len()];
        let mut target = frames.value.clone();
        let rows = out.len() / (steps * width).max(1);
        let mut following = vec![T::ZERO; width];
        for row in 0..rows {
            following.fill(T::ZERO);
            for frame in (row * steps..(row + 1) * steps).rev() {
                if !frames.is_one(frame) {
                    following.fill(T::ZERO);
                    continue;
                }
                let is_cut = frame + 1 < (row + 1) * steps && frames.is_cut(frame);
                for (i, following) in (frame * width..).zip(&mut following) {
                    let bootstrap = if frames.terminated[i] {
                        T::ZERO
                    } else {
                        frames.next_value[i]
                    };
                    let delta = frames.reward[i] + gamma * bootstrap - frames.value[i];
                    let ends = frames.done[i] || is_cut;
                    let onward = if ends { T::ZERO } else { *following };
                    *following = delta + decay * onward;
                    out[i] = *following;
                    target[i] = *following + frames.value[i];
                }
            }
        }
        (out, target)
    }
}

/// `f32` or `f64`.
trait Real: Element + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    const ZERO: Self;

    /// The nearest number to `value`.
    fn of(value: f64) -> Self;
}

impl Real for f32 {
    const ZERO: Self = 0.0;

    fn of(value: f64) -> Self {
        value as Self
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;

    fn of(value: f64) -> Self {
        value
    }
}

/// The values of the entry `key`, one for each frame, row-major; `None` when there is no such
/// entry.
fn each<T: Element>(batch: &TensorDict, key: &[&str]) -> Result<Option<Vec<T>>, TensorError> {
    let Ok(values) = batch.get(key) else {
        return Ok(None);
    };
    let values = values.expand(batch.batch_size());
    values
        .and_then(|values| values.to_vec::<T>())
        .map(Some)
        .map_err(|error| error.at(key))
}

/// The columns that the estimate reads, row-major: `[…, time, width]`, but ids and mask
/// `[…, time]`.
struct GaeInput<T> {
    /// Rewards of a frame.
    width: usize,
    reward: Vec<T>,
    value: Vec<T>,
    next_value: Vec<T>,
    done: Vec<bool>,
    terminated: Vec<bool>,
    ids: Option<Vec<i64>>,
    mask: Option<Vec<bool>>,
}

impl<T> GaeInput<T> {
    /// Whether entry `frame` is a frame, not padding.
    fn is_one(&self, frame: usize) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask[frame])
    }

    /// Whether the frame after `frame` is of another trajectory.
    fn is_cut(&self, frame: usize) -> bool {
        let ids = self.ids.as_ref();
        ids.is_some_and(|ids| ids[frame] != ids[frame + 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(value: &[f32], next_value: &[f32], done: &[bool], terminated: &[bool]) -> TensorDict {
        let n = value.len();
        let mut batch = TensorDict::new([n]);
        let floats = |x: &[f32]| Tensor::from_vec(x.to_vec(), [n, 1]).unwrap();
        let bools = |x: &[bool]| Tensor::from_vec(x.to_vec(), [n, 1]).unwrap();
        batch.set("state_value", floats(value)).unwrap();
        batch
            .set(("next", "state_value"), floats(next_value))
            .unwrap();
        batch
            .set(("next", "reward"), floats(&vec![1.0; n]))
            .unwrap();
        batch.set(("next", "done"), bools(done)).unwrap();
        batch
            .set(("next", "terminated"), bools(terminated))
            .unwrap();
        batch
    }

    #[test]
    fn with_lambda_one_the_target_is_the_discounted_return() {
        let mut batch = batch(
            &[0.5, 0.25, 0.0],
            &[0.25, 0.0, 8.0],
            &[false, false, true],
            &[false, false, true],
        );
        Gae::new(0.5, 1.0).unwrap().estimate(&mut batch).unwrap();
        let target = batch.get("value_target").unwrap().to_vec::<f32>().unwrap();
        assert_eq!(target, [1.75, 1.5, 1.0]);
    }

    #[test]
    fn a_truncated_episode_is_cut_but_bootstraps_and_so_does_the_end_of_the_batch() {
        let mut batch = batch(
            &[0.0; 3],
            &[0.0, 8.0, 4.0],
            &[false, true, false],
            &[false; 3],
        );
        Gae::new(0.5, 1.0).unwrap().estimate(&mut batch).unwrap();
        let target = batch.get("value_target").unwrap().to_vec::<f32>().unwrap();
        assert_eq!(target, [3.5, 5.0, 3.0]);
    }

    #[test]
    fn rows_do_not_run_into_each_other() {
        let one = |done| batch(&[0.0, 0.0], &[1.0, 2.0], &[false, done], &[false, false]);
        let rows = [one(true), one(false)];
        let mut stacked = TensorDict::stack(&rows, 0).unwrap();
        let gae = Gae::new(0.9, 0.8).unwrap();
        gae.estimate(&mut stacked).unwrap();
        for (i, mut row) in rows.into_iter().enumerate() {
            gae.estimate(&mut row).unwrap();
            let alone = row.get("advantage").unwrap();
            assert_eq!(
                &stacked.get("advantage").unwrap().select(0, i).unwrap(),
                alone
            );
        }
    }

    #[test]
    fn trajectories_of_one_row_do_not_run_into_each_other() {
        let one = || batch(&[0.5, 0.0], &[1.0, 2.0], &[false; 2], &[false; 2]);
        let gae = Gae::new(0.9, 0.8).unwrap();
        let mut flat = TensorDict::cat(&[one(), one()], 0).unwrap();
        let ids = Tensor::from_vec(vec![7i64, 7, 9, 9], [4]).unwrap();
        flat.set(IDS, ids).unwrap();
        gae.estimate(&mut flat).unwrap();
        let mut alone = one();
        gae.estimate(&mut alone).unwrap();
        let alone = alone.get("advantage").unwrap();
        for half in flat.get("advantage").unwrap().chunk(0, 2).unwrap() {
            assert_eq!(&half, alone);
        }
    }

    #[test]
    fn padding_counts_for_nothing() {
        let gae = Gae::new(0.9, 0.8).unwrap();
        let mut alone = batch(&[0.5, 0.25], &[1.0, 2.0], &[false; 2], &[false; 2]);
        let mut padded = batch(
            &[0.5, 0.25, 3.0],
            &[1.0, 2.0, 4.0],
            &[false; 3],
            &[false; 3],
        );
        let mask = Tensor::from_vec(vec![true, true, false], [3]).unwrap();
        padded.set(MASK, mask).unwrap();
        for batch in [&mut alone, &mut padded] {
            gae.estimate(batch).unwrap();
        }
        let values = |batch: &TensorDict| batch.get("advantage").unwrap().to_vec::<f32>().unwrap();
        assert_eq!(values(&padded)[..2], values(&alone));
        assert_eq!(values(&padded)[2], 0.0);
    }

    #[test]
    fn each_of_several_rewards_is_on_its_own() {
        let gae = Gae::new(0.9, 0.8).unwrap();
        let (done, ends) = ([false, true, false, false], [false, true, false, false]);
        let one = |k: f32| {
            let values = [0.5 * k, 0.25, k, 0.0];
            let mut batch = batch(&values, &[1.0, k, 2.0, 4.0], &done, &ends);
            let reward = Tensor::from_vec(vec![k, 2.0, 3.0 * k, 4.0], [4, 1]).unwrap();
            batch.set(REWARD, reward).unwrap();
            let ids = Tensor::from_vec(vec![1i64, 1, 2, 3], [4]).unwrap();
            batch.set(IDS, ids).unwrap();
            batch
        };
        let alone = [1.0, -3.0, 7.0].map(one);
        let mut joined = alone[0].clone();
        for key in [REWARD, &["state_value"], &["next", "state_value"]] {
            let columns = alone.each_ref().map(|batch| batch.get(key).unwrap());
            joined.set(key, Tensor::cat(&columns, 1).unwrap()).unwrap();
        }
        let rows = TensorDict::stack(&[joined.clone(), joined], 0);
        let mut joined = rows.unwrap();
        gae.estimate(&mut joined).unwrap();
        let advantage = joined.get("advantage").unwrap();
        assert_eq!(advantage.shape(), [2, 4, 3]);
        for (k, mut alone) in alone.into_iter().enumerate() {
            gae.estimate(&mut alone).unwrap();
            for row in 0..2 {
                let column = advantage.select(0, row).unwrap().narrow(1, k, 1).unwrap();
                assert_eq!(&column, alone.get("advantage").unwrap());
            }
        }
    }

    #[test]
    fn values_of_another_shape_than_the_reward_are_refused() {
        let mut batch = batch(&[0.0; 2], &[0.0; 2], &[false; 2], &[false; 2]);
        let reward = Tensor::zeros(tensordict::DType::F32, [2, 3]).unwrap();
        batch.set(REWARD, reward).unwrap();
        let error = Gae::new(0.9, 0.8).unwrap().estimate(&mut batch);
        assert_eq!(
            error.unwrap_err().to_string(),
            r#"entry "state_value": advantages: expected shape [2, 3], got [2, 1]"#
        );
    }

    #[test]
    fn double_precision_stays_double() {
        let (value, next_value) = ([0.1f32, 0.2, 0.3], [0.2f32, 0.3, 0.7]);
        let mut single = batch(&value, &next_value, &[false; 3], &[false; 3]);
        let mut double = single
            .map(|_, tensor| match tensor.dtype() {
                DType::F32 => tensor.cast(DType::F64),
                _ => Ok(tensor.clone()),
            })
            .unwrap();
        let gae = Gae::new(0.99, 0.95).unwrap();
        gae.estimate(&mut single).unwrap();
        gae.estimate(&mut double).unwrap();
        let advantage = double.get("advantage").unwrap();
        assert_eq!(advantage.dtype(), DType::F64);
        let last = 1.0 + 0.99 * f64::from(0.7f32) - f64::from(0.3f32);
        assert_eq!(advantage.to_vec::<f64>().unwrap()[2], last);
        let rounded = advantage.cast(DType::F32).unwrap();
        assert!(
            rounded
                .allclose(single.get("advantage").unwrap(), 1e-6, 0.0)
                .unwrap()
        );
    }

    #[test]
    fn impossible_weights_are_refused() {
        let message = Gae::new(0.9, 1.5).unwrap_err().to_string();
        assert_eq!(message, "lmbda must be within 0 to 1, got 1.5");
    }
}
