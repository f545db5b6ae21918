//! A vector of environments driven by hand, for tests.

use tensordict::Element;
use windrow_slab::{Key, RowBlock};

use crate::{Outcomes, Reset, VecEnv, VecEnvError};

pub(crate) struct VecDriver<V> {
    pub(crate) envs: V,
    obs: RowBlock,
    actions: RowBlock,
    pub(crate) reward: Vec<f32>,
    pub(crate) terminated: Vec<bool>,
    pub(crate) truncated: Vec<bool>,
}

impl<V: VecEnv> VecDriver<V> {
    pub(crate) fn new(envs: V) -> Self {
        let total = envs.num_envs();
        Self {
            obs: RowBlock::new(&envs.spec().observation_leaves(), total).unwrap(),
            actions: RowBlock::new(&envs.spec().action_leaves(), total).unwrap(),
            reward: vec![0.0; total],
            terminated: vec![false; total],
            truncated: vec![false; total],
            envs,
        }
    }

    /// Resets the environments named; the first of them with `seed`, the others with those that
    /// follow.
    pub(crate) fn reset_seeded(&mut self, envs: &[usize], seed: u64) -> Result<(), VecEnvError> {
        let seeds = (seed..).map(Some);
        self.reset_with(envs, seeds)
    }

    pub(crate) fn reset(&mut self, envs: &[usize]) -> Result<(), VecEnvError> {
        self.reset_with(envs, std::iter::repeat(None))
    }

    fn reset_with(
        &mut self,
        envs: &[usize],
        seeds: impl Iterator<Item = Option<u64>>,
    ) -> Result<(), VecEnvError> {
        let resets = envs.iter().zip(seeds);
        let resets: Vec<_> = resets.map(|(&env, seed)| Reset { env, seed }).collect();
        self.envs.reset(&resets, self.obs.rows_mut())
    }

    /// Steps all environments with the same action of one element.
    pub(crate) fn step<T: Element>(&mut self, action: T) -> Result<(), VecEnvError> {
        let mut rows = self.actions.rows_mut();
        rows.get_mut(Key::<T>::new(0)).unwrap().fill(action);
        let outcomes = Outcomes {
            reward: &mut self.reward,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
        };
        self.envs
            .step(self.actions.rows(), self.obs.rows_mut(), outcomes)
    }

    /// What all environments observe in leaf `leaf`.
    pub(crate) fn seen_at<T: Element>(&self, leaf: usize) -> Vec<T> {
        self.obs.rows().get(Key::<T>::new(leaf)).unwrap().to_vec()
    }

    /// What all environments observe as `name`.
    pub(crate) fn seen<T: Element>(&self, name: &str) -> Vec<T> {
        let key = self.envs.spec().observation_key::<T>(name).unwrap();
        self.obs.rows().get(key).unwrap().to_vec()
    }
}
