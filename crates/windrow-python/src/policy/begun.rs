//! Environments that have begun before collection does.

use tensordict::DType;
use windrow::env::{EnvError, EnvSpec, Outcomes, Reset, VecEnv, VecEnvError};
use windrow::slab::{LeafSpec, RowBlock, Rows, RowsMut};

use crate::env::copy_rows;

/// Environments whose first episodes have begun, since policies were to see what they observe. A first reset without seeds
/// goes on with these episodes, so that nobody can tell that there was one before.
pub(super) struct Begun {
    env: Box<dyn VecEnv>,
    dtypes: Vec<DType>,
    first: Option<RowBlock>,
}

impl Begun {
    /// Begins an episode in each environment. Where that fails it fails again when collection begins, which tells where.
    pub(super) fn new(mut env: Box<dyn VecEnv>) -> Self {
        let leaves = env.spec().observation_leaves();
        let resets: Vec<_> = (0..env.num_envs())
            .map(|env| Reset { env, seed: None })
            .collect();
        let mut block = RowBlock::new(&leaves, env.num_envs()).ok();
        let begun = block
            .as_mut()
            .is_some_and(|block| env.reset(&resets, block.rows_mut()).is_ok());
        Self {
            env,
            dtypes: leaves.iter().map(|leaf| leaf.dtype).collect(),
            first: block.filter(|_| begun),
        }
    }

    /// What was observed first.
    pub(super) fn first(&self) -> Option<Rows<'_>> {
        self.first.as_ref().map(RowBlock::rows)
    }
}

impl VecEnv for Begun {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn num_envs(&self) -> usize {
        self.env.num_envs()
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        let whole = resets.len() == self.env.num_envs();
        let goes_on = whole && resets.iter().all(|reset| reset.seed.is_none());
        match self.first.take().filter(|_| goes_on) {
            Some(first) => copy_rows(&self.dtypes, 0..resets.len(), first.rows(), &mut obs),
            None => self.env.reset(resets, obs),
        }
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.env.step(actions, obs, outcomes)
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        self.env.bind(columns)
    }

    fn panicked_at(&self) -> Option<usize> {
        self.env.panicked_at()
    }
}
