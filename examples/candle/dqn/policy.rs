//! A policy of one's own: another one, with random actions now and then.

use windrow::nn::Sequential;
use windrow::policy::{Binding, PolicyIn, PolicySpec};
use windrow::{
    ExplorationType, Head, Key, NetworkPolicy, Policy, PolicyError, RowsMut, Spec, Tensor, Weights,
};

/// The action to which the network gives the largest value; with probability `epsilon` any action,
/// while exploring.
///
/// Its weights are those of the network, and `"epsilon"`: so the learner decides how much is
/// explored.
#[derive(Clone)]
pub(crate) struct EpsilonGreedy {
    greedy: NetworkPolicy,
    epsilon: f32,
    /// Number of actions, known when the policy is bound.
    actions: usize,
}

const EPSILON: &str = "epsilon";
/// CartPole's only action leaf.
const ACTION: Key<i64> = Key::new(0);

impl EpsilonGreedy {
    /// `network` gives a value for each action. Before it has been given weights, all actions are
    /// random.
    pub(crate) fn new(network: Sequential) -> Self {
        Self {
            greedy: NetworkPolicy::new(network, Head::Deterministic),
            epsilon: 1.0,
            actions: 0,
        }
    }

    /// Weights of such a policy, from those of its network.
    pub(crate) fn pack(mut network: Weights, epsilon: f32) -> Result<Weights, PolicyError> {
        let packed = network.set(EPSILON, Tensor::scalar(epsilon));
        packed.map_err(PolicyError::failed)?;
        Ok(network)
    }

    /// Weights of the network, and epsilon.
    fn unpack(weights: &Weights) -> Result<(Weights, f32), PolicyError> {
        let epsilon = weights.get(EPSILON).and_then(Tensor::item);
        let epsilon = epsilon.map_err(PolicyError::failed)?;
        Ok((weights.exclude(&[EPSILON]), epsilon))
    }
}

impl Policy for EpsilonGreedy {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let Spec::Discrete { n } = binding.spec.action else {
            let got = format!(
                "epsilon-greedy needs discrete actions, got {:?}",
                binding.spec.action
            );
            return Err(PolicyError::failed(got));
        };
        self.actions = n;
        self.greedy.bind(binding)
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.greedy.act(input, out.reborrow())?;
        if input.exploration != ExplorationType::Random {
            return Ok(());
        }
        for (row, action) in out.get_mut(ACTION)?.iter_mut().enumerate() {
            // A generator of its own would make actions depend on how environments are spread over
            // workers.
            let mut noise = input.envs.noise(row);
            if noise.f32() < self.epsilon {
                *action = noise.below(self.actions as u64) as i64;
            }
        }
        Ok(())
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        self.greedy.check(&Self::unpack(weights)?.0)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        let (network, epsilon) = Self::unpack(weights)?;
        self.greedy.load(&network)?;
        self.epsilon = epsilon;
        Ok(())
    }

    fn weights(&self) -> Weights {
        // Cannot fail: a number fits in beside whatever a network has.
        Self::pack(self.greedy.weights(), self.epsilon).unwrap_or_else(|_| Weights::new([]))
    }
}
