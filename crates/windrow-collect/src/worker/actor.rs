use tensordict::{NestedKey, Tensor, for_dtype};
use windrow_env::{EnvError, EnvSpec, Reset, StateVisitor, VecEnv};
use windrow_policy::{
    Binding, EnvRows, ExplorationType, Policy, PolicyError, PolicyIn, PolicySpec, Published,
    RandomPolicy,
};
use windrow_slab::{Key, LeafSpec, RowBlock, Rows, RowsMut};

use crate::error::{BuildError, IsInterruption, WorkerError, WorkerFault};

/// A policy with its random warm-up and the version of its weights.
pub(crate) struct Actor {
    policy: Box<dyn Policy>,
    random: RandomPolicy,
    /// Random actions in the environment's types, where the policy writes actions of others.
    drawn: Option<Drawn>,
    warming_up: bool,
    /// Leaves that are the action; the policy's columns after them are extra ones.
    action_leaves: usize,
    spec: PolicySpec,
    /// The observation that each extra column replaces.
    replaced: Vec<Option<usize>>,
    exploration: ExplorationType,
    version: i64,
    /// Whether the policy tells which version has acted.
    tells_version: bool,
    /// Whether the next weights are taken even if they have the same version.
    forgotten: bool,
}

impl Actor {
    /// Binds `policy` to the environments of its worker.
    ///
    /// # Errors
    /// [`BuildError::Policy`] when the policy does not fit; [`BuildError::PolicyColumns`] when it
    /// declares other action columns than the environment has; [`BuildError::PolicyWrites`] when it
    /// writes an observation of another type or shape.
    pub(crate) fn new(
        mut policy: Box<dyn Policy>,
        binding: &Binding<'_>,
        exploration: ExplorationType,
    ) -> Result<Self, BuildError> {
        let env = binding.spec;
        let unfit = |source| BuildError::Policy {
            worker: binding.worker,
            source,
        };
        let spec = policy.bind(binding).map_err(unfit)?;
        let action = env.action_leaves();
        for (i, expected) in action.iter().enumerate() {
            let column = spec.columns.get(i);
            if !column.is_some_and(|column| env.takes(expected, column)) {
                return Err(BuildError::PolicyColumns {
                    env: env.id.clone(),
                    expected: describe(Some(expected)),
                    got: describe(column),
                });
            }
        }
        let mut random = RandomPolicy::new();
        random.bind(binding).map_err(unfit)?;
        let drawn = match spec.columns.starts_with(&action) {
            true => None,
            false => Some(Drawn {
                rows: RowBlock::new(&action, binding.num_envs)?,
                leaves: action.clone(),
            }),
        };
        Ok(Self {
            drawn,
            tells_version: policy.version().is_some(),
            policy,
            random,
            warming_up: false,
            action_leaves: action.len(),
            replaced: replaced(&spec.columns, action.len(), env)?,
            spec,
            exploration,
            version: 0,
            forgotten: false,
        })
    }

    /// Saves or loads what the policy remembers, between two parts.
    pub(crate) fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.value(&mut self.version)?;
        self.policy.visit_state(state)
    }

    /// What the policy says about itself.
    pub(crate) fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// Whether the following steps ignore the policy.
    pub(crate) fn set_warming_up(&mut self, warming_up: bool) {
        self.warming_up = warming_up;
    }

    pub(crate) fn version(&self) -> i64 {
        self.version
    }

    /// Takes the newest weights at the next [`refresh`](Self::refresh), whatever their version.
    pub(crate) fn forget_version(&mut self) {
        self.forgotten = true;
    }

    /// Loads the weights that `newer` returns, which gets the version that is held; `None` asks for
    /// the newest weights whatever their version.
    pub(crate) fn refresh(
        &mut self,
        newer: impl FnOnce(Option<i64>) -> Option<Published>,
    ) -> Result<(), PolicyError> {
        let held = (!self.forgotten).then_some(self.version);
        if let Some(Published { version, weights }) = newer(held) {
            self.policy.load(&weights)?;
            self.version = version;
        }
        self.forgotten = false;
        Ok(())
    }

    /// Another policy of the same kind in place of this one, with the weights that it was made
    /// with.
    ///
    /// # Errors
    /// [`BuildError::Policy`] when it does not fit; [`BuildError::OtherColumns`] when it writes
    /// other columns.
    pub(crate) fn replace(
        &mut self,
        mut policy: Box<dyn Policy>,
        binding: &Binding<'_>,
    ) -> Result<(), BuildError> {
        let bound = policy.bind(binding);
        let bound = bound.map_err(|source| BuildError::Policy {
            worker: binding.worker,
            source,
        });
        let columns = bound?.columns;
        if columns != self.spec.columns {
            return Err(BuildError::OtherColumns {
                expected: describe_all(&self.spec.columns),
                got: describe_all(&columns),
            });
        }
        self.tells_version = policy.version().is_some();
        self.policy = policy;
        self.forgotten = true;
        Ok(())
    }

    /// Writes the actions of one step and the version that chose them.
    #[inline(always)]
    pub(crate) fn act(
        &mut self,
        envs: &EnvRows,
        obs: Rows<'_>,
        mut out: RowsMut<'_>,
        version: &mut [i64],
    ) -> Result<(), PolicyError> {
        let input = PolicyIn::new(obs, envs, self.exploration);
        if self.warming_up {
            for (leaf, replaced) in (self.action_leaves..).zip(&self.replaced) {
                match *replaced {
                    None => out.zero(leaf)?,
                    Some(index) => out.copy_leaf(leaf, obs, index)?,
                }
            }
            match &mut self.drawn {
                None => self.random.act(&input, out)?,
                Some(drawn) => {
                    self.random.act(&input, drawn.rows.rows_mut())?;
                    drawn.copy(&self.spec.columns, &mut out)?;
                }
            }
        } else {
            self.policy.act(&input, out)?;
            if self.tells_version {
                self.version = self.policy.version().unwrap_or(self.version);
            }
        }
        version.fill(self.version);
        Ok(())
    }
}

/// Random actions that are copied to columns of other integer types.
struct Drawn {
    rows: RowBlock,
    leaves: Vec<LeafSpec>,
}

impl Drawn {
    /// Copies the actions to the first of `columns`.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for actions that a column cannot hold.
    fn copy(&self, columns: &[LeafSpec], to: &mut RowsMut<'_>) -> Result<(), PolicyError> {
        let rows = self.rows.rows();
        for (index, (leaf, column)) in self.leaves.iter().zip(columns).enumerate() {
            let drawn = for_dtype!(leaf.dtype, T => {
                let drawn = rows.get::<T>(Key::new(index))?;
                Tensor::from_slice(drawn, [drawn.len()])
            });
            let drawn = drawn.map_err(PolicyError::failed)?;
            let cast = drawn.cast(column.dtype).map_err(PolicyError::failed)?;
            if cast.cast(leaf.dtype).map_err(PolicyError::failed)? != drawn {
                return Err(PolicyError::failed(format!(
                    "{:?}: expected random actions that {} can hold, in which the policy writes its own, got {}",
                    leaf.key, column.dtype, leaf.dtype
                )));
            }
            for_dtype!(column.dtype, T => {
                let values = cast.as_slice::<T>().map_err(PolicyError::failed)?;
                to.get_mut::<T>(Key::new(index))?.copy_from_slice(values);
            });
        }
        Ok(())
    }
}

/// Where a policy is to act, before there are environments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicySeat {
    pub(crate) worker: usize,
    /// Whether batches have a dimension for the environments.
    pub(crate) batched: bool,
    /// Whether the worker runs in the thread that asks for batches.
    pub(crate) in_caller: bool,
    pub(crate) is_interruption: IsInterruption,
}

impl PolicySeat {
    /// Has `bind` bind `policy` to `env`, whose spec is `spec`. Returns the first observations too,
    /// where episodes were begun since the policy needs to see them.
    ///
    /// # Errors
    /// As `bind`; an interruption while episodes begin.
    pub(crate) fn take<T>(
        self,
        policy: Box<dyn Policy>,
        env: &mut dyn VecEnv,
        spec: &EnvSpec,
        bind: impl FnOnce(Box<dyn Policy>, &Binding<'_>) -> Result<T, BuildError>,
    ) -> Result<(T, Option<RowBlock>), BuildError> {
        let first = match policy.needs_first_rows() {
            true => first_rows(env, spec, self.is_interruption)
                .map_err(|fault| WorkerError::new(self.worker, None, fault))?,
            false => None,
        };
        let binding = Binding::new(spec, env.num_envs())
            .batched(self.batched)
            .worker(self.worker)
            .in_caller(self.in_caller)
            .first_rows(first.as_ref().map(RowBlock::rows));
        Ok((bind(policy, &binding)?, first))
    }
}

/// Begins an episode in each environment. Returns no observations where that fails: it fails again
/// when collection begins, which tells where.
fn first_rows(
    env: &mut dyn VecEnv,
    spec: &EnvSpec,
    is_interruption: IsInterruption,
) -> Result<Option<RowBlock>, WorkerFault> {
    let mut rows = RowBlock::new(&spec.observation_leaves(), env.num_envs())?;
    let resets: Vec<_> = (0..env.num_envs())
        .map(|env| Reset { env, seed: None })
        .collect();
    match env
        .reset(&resets, rows.rows_mut())
        .map_err(WorkerFault::from)
    {
        Ok(()) => Ok(Some(rows)),
        Err(fault) if is_interruption(&fault) => Err(fault),
        Err(_) => Ok(None),
    }
}

impl std::fmt::Debug for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Actor")
            .field("spec", &self.spec)
            .field("exploration", &self.exploration)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The observation that each column behind the first `actions` replaces. A state replaces none, nor
/// does a reward, which no root has.
fn replaced(
    columns: &[LeafSpec],
    actions: usize,
    env: &EnvSpec,
) -> Result<Vec<Option<usize>>, BuildError> {
    let observed = env.observation_leaves();
    let next = NestedKey::from("next");
    columns[actions..]
        .iter()
        .map(|column| {
            let is_state = columns
                .iter()
                .any(|other| other.key == next.join(&column.key));
            let is_reward = env.rewards.contains(&column.key);
            let index = observed.iter().position(|leaf| leaf.key == column.key);
            let Some(index) = index.filter(|_| !is_state && !is_reward) else {
                return Ok(None);
            };
            match observed[index] == *column {
                true => Ok(Some(index)),
                false => Err(BuildError::PolicyWrites {
                    env: env.id.clone(),
                    expected: match env.info.contains(&column.key) {
                        true => format!("{}, which info brings", describe(observed.get(index))),
                        false => describe(observed.get(index)),
                    },
                    got: describe(Some(column)),
                }),
            }
        })
        .collect()
}

/// Names, element types and shapes of `leaves`.
pub(crate) fn describe_all(leaves: &[LeafSpec]) -> String {
    let leaves: Vec<String> = leaves.iter().map(LeafSpec::to_string).collect();
    leaves.join(", ")
}

/// Name, element type and shape of `leaf`.
pub(crate) fn describe(leaf: Option<&LeafSpec>) -> String {
    leaf.map_or_else(|| "no such column".to_owned(), LeafSpec::to_string)
}
