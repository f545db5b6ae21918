//! Returns and lengths of episodes, and their report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tensordict::{DType, TensorDict, TensorError};

/// Which frames belong to episodes that count.
pub(super) const MASK: &[&str] = &["collector", "mask"];
/// Which frames end an episode.
pub(super) const DONE: &[&str] = &["next", "done"];
const IDS: &[&str] = &["collector", "traj_ids"];
const REWARD: &[&str] = &["next", "reward"];
const RETURN: &[&str] = &["next", "episode_reward"];
const STEPS: &[&str] = &["next", "step_count"];

/// Entries that a report reads; batches have the last two when environments observe them.
pub(super) const KEYS: [&[&str]; 5] = [IDS, DONE, REWARD, RETURN, STEPS];

/// The result of an evaluation.
///
/// ```
/// use windrow_collect::Evaluator;
/// use windrow_policy::RandomPolicy;
///
/// let evaluator = Evaluator::builder("CartPole-v1").policy(RandomPolicy::new()).build()?;
/// let result = evaluator.evaluate(None, None)?;
/// let sum: f64 = result.returns.iter().copied().map(f64::from).sum();
/// assert_eq!(result.reward, sum / result.num_episodes as f64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// The step of training that the request named; otherwise the number of requests accepted
    /// before.
    pub step: u64,
    /// Version of the weights that acted: 0 for the policy's own; those that are given have the
    /// versions from 1 on, or [others](crate::Evaluator::set_next_version).
    pub policy_version: i64,
    /// Mean of the returns; NaN without an episode.
    pub reward: f64,
    /// Standard deviation of the returns, as of a sample; 0 for a single episode, NaN for none.
    pub reward_std: f64,
    /// Number of episodes, all of them whole.
    pub num_episodes: usize,
    /// Mean of the lengths in steps; NaN without an episode.
    pub episode_length: f64,
    /// Frames of these episodes per second.
    pub fps: f64,
    /// Return of each episode, in the order in which they ended; for those that ended in the same
    /// step, in the order of environments: `("next", "episode_reward")` at the end where
    /// environments observe it, otherwise the sum of rewards.
    pub returns: Vec<f32>,
    /// Length of each episode in steps, in the same order: `("next", "step_count")` at the end
    /// where environments observe it, otherwise the number of frames.
    pub lengths: Vec<u64>,
    /// The result of [`metrics`](crate::EvaluatorBuilder::metrics), in its order.
    pub metrics: Vec<(String, f64)>,
    /// Time from the reset of the environments to the end of the last episode.
    pub time: Duration,
    /// The seed of the environments and of the policy's noise.
    pub seed: u64,
    /// The prefix of the keys of [`to_map`](Self::to_map).
    pub log_prefix: Arc<str>,
}

impl Evaluation {
    /// Numbers by name, for a logger: `reward`, `reward_std`, `num_episodes`, `episode_length`,
    /// `fps`, `step`, `policy_version`, and the metrics; a metric replaces a number of the same
    /// name. All names begin with `<log_prefix>/`.
    ///
    /// ```
    /// use tensordict::TensorError;
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1")
    ///     .policy(RandomPolicy::new())
    ///     .metrics(|trajectories| {
    ///         let longest = trajectories.batch_size()[1] as f64;
    ///         Ok::<_, TensorError>(vec![("longest".to_owned(), longest)])
    ///     })
    ///     .build()?;
    /// let result = evaluator.evaluate(None, Some(3))?;
    /// let numbers = result.to_map();
    /// assert_eq!((numbers["eval/step"], numbers["eval/num_episodes"]), (3.0, 10.0));
    /// assert_eq!(numbers["eval/longest"] as u64, *result.lengths.iter().max().unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, f64> {
        let own = [
            ("reward", self.reward),
            ("reward_std", self.reward_std),
            ("num_episodes", self.num_episodes as f64),
            ("episode_length", self.episode_length),
            ("fps", self.fps),
            ("step", self.step as f64),
            ("policy_version", self.policy_version as f64),
        ];
        let metrics = self.metrics.iter();
        own.into_iter()
            .chain(metrics.map(|(name, value)| (name.as_str(), *value)))
            .map(|(name, value)| (format!("{}/{name}", self.log_prefix), value))
            .collect()
    }
}

/// Return and length of each episode.
#[derive(Debug)]
pub(super) struct Episodes {
    pub(super) returns: Vec<f32>,
    pub(super) lengths: Vec<u64>,
    /// Of all episodes.
    frames: usize,
}

impl Episodes {
    /// From trajectories `[episodes, longest]` with a mask.
    ///
    /// # Errors
    /// [`TensorError`] naming an entry that is missing or not what it must be.
    pub(super) fn of(trajectories: &TensorDict) -> Result<Self, TensorError> {
        let &[_, longest] = trajectories.batch_size() else {
            unreachable!("Padded trajectories have two dimensions.");
        };
        let mask = trajectories.get(MASK)?.to_vec::<bool>()?;
        let rewards = column(trajectories, REWARD)?.unwrap_or_default();
        let totals = column(trajectories, RETURN)?;
        let counts = column(trajectories, STEPS)?;
        let mut episodes = Self {
            returns: Vec::new(),
            lengths: Vec::new(),
            frames: 0,
        };
        // Every episode has a frame, and so has every row.
        let rows = mask
            .chunks(longest.max(1))
            .zip(rewards.chunks(longest.max(1)));
        for (row, (mask, rewards)) in rows.enumerate() {
            let frames = mask.iter().filter(|frame| **frame).count();
            let last = row * longest + frames.saturating_sub(1);
            let total = match &totals {
                Some(totals) => totals[last],
                None => rewards[..frames].iter().sum(),
            };
            episodes.returns.push(total as f32);
            episodes.lengths.push(match &counts {
                Some(counts) => counts[last] as u64,
                None => frames as u64,
            });
            episodes.frames += frames;
        }
        Ok(episodes)
    }

    pub(super) fn report(self, about: About) -> Evaluation {
        let About {
            step,
            policy_version,
            seed,
            log_prefix,
            metrics,
            took,
        } = about;
        let returns: Vec<f64> = self.returns.iter().copied().map(f64::from).collect();
        let lengths: Vec<f64> = self.lengths.iter().map(|&steps| steps as f64).collect();
        Evaluation {
            step,
            policy_version,
            reward: mean(&returns),
            reward_std: sample_std(&returns),
            num_episodes: returns.len(),
            episode_length: mean(&lengths),
            // The clock may be too coarse to measure the evaluation: this keeps the rate finite.
            fps: self.frames as f64 / took.as_secs_f64().max(1e-9),
            returns: self.returns,
            lengths: self.lengths,
            metrics,
            time: took,
            seed,
            log_prefix,
        }
    }
}

/// The contents of a report besides the episodes.
#[derive(Debug)]
pub(super) struct About {
    pub(super) step: u64,
    pub(super) policy_version: i64,
    pub(super) seed: u64,
    pub(super) log_prefix: Arc<str>,
    pub(super) metrics: Vec<(String, f64)>,
    pub(super) took: Duration,
}

/// One number for each frame; `None` when there is no such entry, or when it has another shape and
/// so another meaning.
///
/// # Errors
/// [`TensorError`] when the entry does not hold numbers.
fn column(trajectories: &TensorDict, key: &[&str]) -> Result<Option<Vec<f64>>, TensorError> {
    if !trajectories.contains_key(key) {
        return Ok(None);
    }
    let tensor = trajectories.get(key)?;
    if tensor.numel() != trajectories.numel() {
        return Ok(None);
    }
    tensor.cast(DType::F64)?.to_vec::<f64>().map(Some)
}

/// The mean; NaN when there is no value.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation; 0 for a single value, NaN when there is none.
fn sample_std(values: &[f64]) -> f64 {
    match values.len() {
        0 => f64::NAN,
        1 => 0.0,
        count => {
            let mean = mean(values);
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (count - 1) as f64).sqrt()
        }
    }
}

#[cfg(test)]
mod tests {
    use tensordict::Tensor;

    use super::*;

    fn about() -> About {
        About {
            step: 4,
            policy_version: 2,
            seed: 0,
            log_prefix: "test".into(),
            metrics: vec![("more".to_owned(), 0.5)],
            took: Duration::from_secs(2),
        }
    }

    /// Two episodes, of 3 frames and of 1.
    fn trajectories() -> TensorDict {
        let mut dict = TensorDict::new([2, 3]);
        let mask = vec![true, true, true, true, false, false];
        let rewards = vec![1.0f32, 2.0, 3.0, 10.0, 99.0, 99.0];
        dict.set(MASK, Tensor::from_vec(mask, [2, 3]).unwrap())
            .unwrap();
        dict.set(REWARD, Tensor::from_vec(rewards, [2, 3]).unwrap())
            .unwrap();
        dict
    }

    #[test]
    fn returns_are_sums_over_the_frames_of_an_episode() {
        let report = Episodes::of(&trajectories()).unwrap().report(about());
        assert_eq!(
            (&report.returns[..], &report.lengths[..]),
            (&[6.0, 10.0][..], &[3, 1][..])
        );
        assert_eq!((report.reward, report.episode_length), (8.0, 2.0));
        assert_eq!(report.reward_std, 8f64.sqrt());
        assert_eq!(report.fps, 2.0);
    }

    #[test]
    fn what_environments_have_counted_themselves_is_believed() {
        let mut dict = trajectories();
        let totals = vec![0.0f32, 0.0, 60.0, 100.0, 7.0, 7.0];
        let counts = vec![4i64, 8, 12, 4, 0, 0];
        dict.set(RETURN, Tensor::from_vec(totals, [2, 3, 1]).unwrap())
            .unwrap();
        dict.set(STEPS, Tensor::from_vec(counts, [2, 3, 1]).unwrap())
            .unwrap();
        let episodes = Episodes::of(&dict).unwrap();
        assert_eq!(
            (episodes.returns, episodes.lengths),
            (vec![60.0, 100.0], vec![12, 4])
        );
    }

    #[test]
    fn a_report_without_an_episode_holds_no_number() {
        let none = Episodes {
            returns: Vec::new(),
            lengths: Vec::new(),
            frames: 0,
        };
        let numbers = none.report(about()).to_map();
        for name in ["reward", "reward_std", "episode_length"] {
            assert!(numbers[&format!("test/{name}")].is_nan(), "{name}");
        }
        assert_eq!(
            (numbers["test/num_episodes"], numbers["test/fps"]),
            (0.0, 0.0)
        );
    }

    #[test]
    fn the_map_has_every_key() {
        let numbers = Episodes::of(&trajectories())
            .unwrap()
            .report(about())
            .to_map();
        let keys: Vec<&str> = numbers.keys().map(String::as_str).collect();
        let expected = [
            "test/episode_length",
            "test/fps",
            "test/more",
            "test/num_episodes",
            "test/policy_version",
            "test/reward",
            "test/reward_std",
            "test/step",
        ];
        assert_eq!(keys, expected);
        assert_eq!(
            (numbers["test/policy_version"], numbers["test/more"]),
            (2.0, 0.5)
        );
    }
}
