use tensordict::TensorDict;
use windrow_env::EnvSpec;
use windrow_slab::{LeafSpec, Rows, RowsMut};

use crate::{ExplorationType, Noise, PolicyError};

/// Parameters by name, as PyTorch's `state_dict` names them (`"0.weight"`, `"0.bias"`, …).
pub type Weights = TensorDict;

/// Chooses actions for a block of rows.
///
/// State that outlives a step (of a recurrent network, of noise) belongs to the policy, addressed by `env_ids`.
pub trait Policy: Send {
    /// Looks at the environment that the policy is to act in, and says which columns it will write: first the
    /// action leaves, exactly as [`EnvSpec::action_leaves`] gives them, then any extra ones of its own.
    ///
    /// Called once, before the first [`act`](Policy::act).
    ///
    /// # Errors
    /// [`PolicyError`] when the policy does not fit the environment: what was expected and what came.
    fn bind(&mut self, env: &EnvSpec) -> Result<PolicySpec, PolicyError>;

    /// Writes an action (and the extra columns) for every row of `input`.
    ///
    /// # Errors
    /// Whatever kept the policy from acting.
    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError>;

    /// Takes over new parameters, all of them or (on error) none.
    ///
    /// # Errors
    /// [`PolicyError`] naming the missing, unexpected or misshapen tensor.
    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError>;

    /// A copy of the parameters; empty when the policy has none.
    fn weights(&self) -> Weights {
        Weights::new([])
    }
}

/// Columns that a policy writes for each environment and step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicySpec {
    /// Action leaves, then extra columns.
    pub columns: Vec<LeafSpec>,
}

/// What a policy sees of one step.
#[derive(Debug, Clone, Copy)]
pub struct PolicyIn<'a> {
    /// Observations, `[rows, *shape]` a leaf, in the order of the environment's observation leaves.
    pub obs: Rows<'a>,
    /// Rows that begin an episode: state of their environment is to be forgotten. `[rows]`.
    pub is_first: &'a [bool],
    /// Which environment each row belongs to, over all workers. `[rows]`.
    pub env_ids: &'a [u32],
    /// How many frames each row's environment has delivered before. `[rows]`.
    pub frame: &'a [u64],
    /// Seed of the collector: with `env_ids` and `frame` it keys all randomness, so that actions do not depend on
    /// how environments are spread over workers.
    pub seed: u64,
    /// Whether to explore.
    pub exploration: ExplorationType,
}

impl PolicyIn<'_> {
    /// The random numbers of row `row`, which must exist.
    #[inline(always)]
    #[must_use]
    pub fn noise(&self, row: usize) -> Noise {
        Noise::new(self.seed, self.env_ids[row], self.frame[row])
    }

    /// Whether there is an environment id, a frame and an observation for each of `rows` rows.
    ///
    /// # Errors
    /// [`PolicyError::Rows`] naming the first input of another length.
    #[inline(always)]
    pub fn check_rows(&self, rows: usize) -> Result<(), PolicyError> {
        let fit = (self.env_ids.len() == rows)
            & (self.frame.len() == rows)
            & (self.is_first.len() == rows)
            & (self.obs.envs() == rows);
        if fit { Ok(()) } else { Err(self.misfit(rows)) }
    }

    #[cold]
    fn misfit(&self, rows: usize) -> PolicyError {
        let inputs = [
            ("env_ids", self.env_ids.len()),
            ("frame", self.frame.len()),
            ("is_first", self.is_first.len()),
            ("obs", self.obs.envs()),
        ];
        let (what, got) = inputs
            .into_iter()
            .find(|&(_, got)| got != rows)
            .unwrap_or(("rows", rows));
        PolicyError::Rows {
            what,
            expected: rows,
            got,
        }
    }
}
