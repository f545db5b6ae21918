//! Proximal policy optimisation: an actor and a critic that learn from batches.
//!
//! Source: Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7.

use anyhow::Result;
use windrow::postproc::Gae;
use windrow::replay::Minibatches;
use windrow::{Tensor, TensorDict, Weights};

use super::network::Network;

const GAMMA: f32 = 0.99;
const LAMBDA: f32 = 0.95;
const CLIP: f32 = 0.2;
const EPOCHS: usize = 10;
const MINIBATCH: usize = 128;
const LEARNING_RATE: f32 = 1e-3;

/// Actions of CartPole.
const ACTIONS: usize = 2;

/// An actor and a critic, and what they learn with.
pub(crate) struct Learner {
    actor: Network,
    critic: Network,
    gae: Gae,
    minibatches: Minibatches,
}

impl Learner {
    pub(crate) fn new(actor: &Weights, critic: &Weights, seed: u64) -> Result<Self> {
        Ok(Self {
            actor: Network::new(actor)?,
            critic: Network::new(critic)?,
            gae: Gae::new(GAMMA, LAMBDA)?,
            minibatches: Minibatches::new(MINIBATCH)?.epochs(EPOCHS).seed(seed),
        })
    }

    /// The actor's parameters, for the policy that collects.
    pub(crate) fn weights(&self) -> Result<Weights> {
        self.actor.weights()
    }

    /// Learns from a batch `[env, time]`, at a rate that falls with `remaining`, the share of
    /// training still to come. Values and advantages are left in the batch.
    pub(crate) fn learn(&mut self, batch: &mut TensorDict, remaining: f64) -> Result<()> {
        let value = self.values(batch.get("observation")?)?;
        let next_value = self.values(batch.get(("next", "observation"))?)?;
        batch.set("state_value", value)?;
        batch.set(("next", "state_value"), next_value)?;
        self.gae.estimate(batch)?;

        let rate = LEARNING_RATE * remaining as f32;
        let mut gradient = Vec::new();
        for minibatch in self.minibatches.of(&batch.select(&READ)?) {
            let minibatch = minibatch?;
            let observation = minibatch.as_slice("observation")?;
            let frames = Frames::of(&minibatch)?;

            let logits = self.actor.forward(observation);
            policy_gradient(logits, &frames, &mut gradient);
            self.actor.backward(observation, &gradient);
            self.actor.descend(rate);

            let values = self.critic.forward(observation);
            value_gradient(values, &frames, &mut gradient);
            self.critic.backward(observation, &gradient);
            self.critic.descend(rate);
        }
        Ok(())
    }

    /// What the critic expects from observations `[env, time, 4]` on: `[env, time, 1]`.
    fn values(&mut self, observation: &Tensor) -> Result<Tensor> {
        let mut shape = observation.shape().to_vec();
        shape.pop();
        shape.push(1);
        let values = self.critic.forward(&observation.to_vec()?);
        Ok(Tensor::from_slice(values, shape)?)
    }
}

/// The columns that a learner reads.
const READ: [&str; 5] = [
    "observation",
    "action",
    "action_log_prob",
    "advantage",
    "value_target",
];

/// What the losses read beside outputs of the networks, frame after frame.
struct Frames {
    action: Vec<i64>,
    /// Of the action, when it was chosen.
    log_prob: Vec<f32>,
    /// With mean 0 and standard deviation 1.
    advantage: Vec<f32>,
    value_target: Vec<f32>,
}

impl Frames {
    fn of(minibatch: &TensorDict) -> Result<Self> {
        let column = |name: &str| minibatch.get(name)?.to_vec::<f32>();
        let mut advantage = column("advantage")?;
        standardize(&mut advantage);
        Ok(Self {
            action: minibatch.get("action")?.to_vec()?,
            log_prob: column("action_log_prob")?,
            advantage,
            value_target: column("value_target")?,
        })
    }
}

/// How the loss of the policy changes with its logits, `[frames, actions]`.
///
/// Actions that turned out better than expected shall become likelier, the others less likely, but
/// neither by much: the loss is minus the mean of
/// `min(ratio · advantage, clamp(ratio) · advantage)`.
fn policy_gradient(logits: &[f32], frames: &Frames, gradient: &mut Vec<f32>) {
    let count = frames.action.len() as f32;
    gradient.clear();
    for (frame, logits) in logits.chunks_exact(ACTIONS).enumerate() {
        let (action, advantage) = (frames.action[frame] as usize, frames.advantage[frame]);
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = logits.iter().map(|x| (x - largest).exp()).sum();
        let log_sum = largest + sum.ln();
        let ratio = (logits[action] - log_sum - frames.log_prob[frame]).exp();
        let clamped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP);
        // Where the clamped ratio counts, the loss does not change with the policy.
        let slope = match ratio * advantage <= clamped * advantage {
            true => -ratio * advantage / count,
            false => 0.0,
        };
        let chosen = |i| if i == action { 1.0 } else { 0.0 };
        let of_logit = |(i, x): (usize, &f32)| slope * (chosen(i) - (x - log_sum).exp());
        gradient.extend(logits.iter().enumerate().map(of_logit));
    }
}

/// How the mean squared distance of values from their targets changes with the values.
fn value_gradient(values: &[f32], frames: &Frames, gradient: &mut Vec<f32>) {
    let count = values.len() as f32;
    let errors = values.iter().zip(&frames.value_target);
    gradient.clear();
    gradient.extend(errors.map(|(value, target)| 2.0 * (value - target) / count));
}

/// Gives the numbers mean 0 and standard deviation 1.
fn standardize(values: &mut [f32]) {
    let count = values.len() as f32;
    let mean = values.iter().sum::<f32>() / count;
    values.iter_mut().for_each(|x| *x -= mean);
    let variance = values.iter().map(|x| x * x).sum::<f32>() / count;
    let scale = 1.0 / (variance.sqrt() + 1e-8);
    values.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::{ACTIONS, CLIP, Frames, policy_gradient, standardize, value_gradient};

    /// Ratios far from 1 and near to it, below and above, with advantages of both signs.
    fn frames() -> (Vec<f32>, Frames) {
        let log_probs = [-0.1, -0.7, -0.68, -2.0, -0.3, -3.0, -0.72, -0.2];
        let count = log_probs.len();
        let frames = Frames {
            action: (0..count).map(|i| (i / 2 % 2) as i64).collect(),
            log_prob: log_probs.to_vec(),
            advantage: (0..count)
                .map(|i| if i % 2 == 0 { 1.5 } else { -0.5 })
                .collect(),
            value_target: (0..count).map(|i| i as f32).collect(),
        };
        let logits = (0..count * ACTIONS).map(|i| (i as f32 * 0.4).sin() * 0.3);
        (logits.collect(), frames)
    }

    /// Equation 7 of the paper, in double precision.
    fn policy_loss(logits: &[f64], frames: &Frames) -> f64 {
        let objectives = logits.chunks(ACTIONS).enumerate().map(|(i, logits)| {
            let total: f64 = logits.iter().map(|x| x.exp()).sum();
            let probability = logits[frames.action[i] as usize].exp() / total;
            let ratio = probability / f64::from(frames.log_prob[i]).exp();
            let (clip, advantage) = (f64::from(CLIP), f64::from(frames.advantage[i]));
            (ratio * advantage).min(ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
        });
        -objectives.sum::<f64>() / frames.action.len() as f64
    }

    fn value_loss(values: &[f64], frames: &Frames) -> f64 {
        let errors = values.iter().zip(&frames.value_target);
        let squares = errors.map(|(value, target)| (value - f64::from(*target)).powi(2));
        squares.sum::<f64>() / values.len() as f64
    }

    fn assert_finite_differences(
        loss: fn(&[f64], &Frames) -> f64,
        at: &[f32],
        frames: &Frames,
        gradient: &[f32],
    ) {
        const STEP: f64 = 1e-5;
        assert_eq!(gradient.len(), at.len());
        for (i, gradient) in gradient.iter().enumerate() {
            let loss_at = |step: f64| {
                let mut moved: Vec<f64> = at.iter().map(|x| f64::from(*x)).collect();
                moved[i] += step;
                loss(&moved, frames)
            };
            let difference = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP);
            let error = (f64::from(*gradient) - difference).abs();
            assert!(error < 1e-5, "{i}: {gradient} instead of {difference}");
        }
    }

    #[test]
    fn the_gradient_of_the_policy_is_that_of_finite_differences() {
        let (logits, frames) = frames();
        let mut gradient = Vec::new();
        policy_gradient(&logits, &frames, &mut gradient);
        assert_finite_differences(policy_loss, &logits, &frames, &gradient);
        let clipped = gradient.iter().filter(|x| **x == 0.0).count();
        assert!(clipped > 0 && clipped < gradient.len(), "{clipped}");
    }

    #[test]
    fn the_gradient_of_values_is_that_of_finite_differences() {
        let (_, frames) = frames();
        let values: Vec<f32> = (0..8).map(|i| 3.0 - i as f32).collect();
        let mut gradient = Vec::new();
        value_gradient(&values, &frames, &mut gradient);
        assert_finite_differences(value_loss, &values, &frames, &gradient);
    }

    #[test]
    fn equal_numbers_become_zeros() {
        let mut values = [3.0; 4];
        standardize(&mut values);
        assert_eq!(values, [0.0; 4]);
    }
}
