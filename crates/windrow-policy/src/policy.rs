use serde::{Deserialize, Serialize};
use tensordict::TensorDict;
use windrow_env::{EnvError, StateVisitor};
use windrow_slab::{LeafSpec, Rows, RowsMut};

use crate::{Binding, EnvRows, ExplorationType, PolicyError, PolicyRecipe};

/// Parameters by name, as PyTorch's `state_dict` names them (`"0.weight"`, `"0.bias"`, …).
pub type Weights = TensorDict;

/// Chooses actions for a block of rows.
///
/// State that outlives a step, such as that of a recurrent network, belongs to the policy, one for
/// each row: a policy sees the same environments in the same order in each call, unless it is
/// [served](crate::InferenceServer): then rows are any of them, and state goes by
/// [`EnvRows::place`], which the policy declares by [`States::ByPlace`].
/// [`KnownRows`](crate::KnownRows) tracks which states are there. The policy resets the state of a
/// row to its first value where [`EnvRows::is_first`] says that an episode begins. It declares the
/// part that a learner needs in [`PolicySpec`] and writes it like other columns: the state from
/// which an action was chosen as `k`, the state after it as `("next", k)`. The policy does not see
/// random steps at the start, and its own columns are zero there; [`EnvRows::frames`] skips numbers
/// in a row that went on without the policy.
///
/// ```
/// use tensordict::DType;
/// use windrow_policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights};
/// use windrow_slab::{Key, LeafSpec, RowsMut};
///
/// /// Pushes left and right by turns.
/// struct Turns {
///     /// Steps since the episode began, by row: a policy always sees the same environments, in the same order.
///     steps: Vec<i64>,
/// }
///
/// impl Policy for Turns {
///     fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
///         let mut columns = binding.spec.action_leaves();
///         columns.push(LeafSpec::new("steps", DType::I64, []));
///         columns.push(LeafSpec::new(("next", "steps"), DType::I64, []));
///         Ok(PolicySpec::new(columns))
///     }
///
///     fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
///         self.steps.resize(input.envs.len(), 0);
///         for (row, &first) in input.envs.is_first().iter().enumerate() {
///             if first {
///                 self.steps[row] = 0;
///             }
///             out.get_mut::<i64>(Key::new(0))?[row] = self.steps[row] % 2;
///             out.get_mut::<i64>(Key::new(1))?[row] = self.steps[row];
///             self.steps[row] += 1;
///             out.get_mut::<i64>(Key::new(2))?[row] = self.steps[row];
///         }
///         Ok(())
///     }
///
///     fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
///         Ok(())
///     }
/// }
/// ```
pub trait Policy: Send {
    /// Prepares the policy for the environments of one worker, or of all clients of a
    /// [server](crate::InferenceServer), and returns the columns that it will write: first the
    /// action leaves, exactly as [`EnvSpec::action_leaves`](windrow_env::EnvSpec::action_leaves)
    /// gives them or such as the environment [takes](windrow_env::EnvSpec::takes) in their place,
    /// then any of its own.
    ///
    /// Called once, before the first [`act`](Policy::act).
    ///
    /// # Errors
    /// [`PolicyError`] if the policy does not fit the environment.
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError>;

    /// Whether [`Binding::first_rows`] is to hold observations: a collector then begins an episode
    /// in each environment before it binds the policy. Asked once, before [`bind`](Policy::bind).
    fn needs_first_rows(&self) -> bool {
        false
    }

    /// Prepares a policy that is never bound and never acts, but [checks](Policy::check) weights
    /// and has some [of its own](Policy::weights). A policy of the same kind was bound and returned
    /// `bound`.
    fn become_reference(&mut self, bound: &PolicySpec) {
        let _ = bound;
    }

    /// Writes an action (and the extra columns) for every row of `input`.
    ///
    /// # Errors
    /// The reason why the policy could not act.
    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError>;

    /// Takes over new parameters, all of them or (on error) none.
    ///
    /// # Errors
    /// [`PolicyError`] naming the missing, unexpected or misshapen tensor.
    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError>;

    /// Whether [`load`](Policy::load) would take these parameters, without copying them. A
    /// collector asks before it publishes them to its workers. The default says yes; workers then
    /// fail when they load parameters that do not fit.
    ///
    /// # Errors
    /// As for [`load`](Policy::load).
    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        let _ = weights;
        Ok(())
    }

    /// A copy of the parameters; empty when the policy has none.
    fn weights(&self) -> Weights {
        Weights::new([])
    }

    /// The version of the weights that chose the last actions, for a policy that a
    /// [server](crate::InferenceServer) evaluates; `None` if it is the version
    /// [loaded](Policy::load) last.
    fn version(&self) -> Option<i64> {
        None
    }

    /// Saves or loads what the policy remembers from one step to the next, such as the state of a
    /// recurrent network, of the environments that it is bound to; its weights and
    /// [`EnvRows::noise`] are saved without it. A policy that remembers nothing returns `Ok(())`.
    ///
    /// # Errors
    /// [`EnvError::NotHeld`] where the state cannot be saved, which is the default: environments of
    /// a resumed run then begin new episodes. [`EnvError::State`] for a state that does not fit.
    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let _ = state;
        Err(EnvError::not_held("the policy"))
    }

    /// The policy with its parameters as a value that can be serialized; `None` for closures and
    /// the like.
    fn recipe(&self) -> Option<PolicyRecipe> {
        None
    }
}

/// A boxed policy is a policy, so that code which is generic over policies takes any.
impl<P: Policy + ?Sized> Policy for Box<P> {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        (**self).bind(binding)
    }

    fn needs_first_rows(&self) -> bool {
        (**self).needs_first_rows()
    }

    fn become_reference(&mut self, bound: &PolicySpec) {
        (**self).become_reference(bound);
    }

    #[inline]
    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        (**self).act(input, out)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        (**self).load(weights)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        (**self).check(weights)
    }

    fn weights(&self) -> Weights {
        (**self).weights()
    }

    fn version(&self) -> Option<i64> {
        (**self).version()
    }

    fn recipe(&self) -> Option<PolicyRecipe> {
        (**self).recipe()
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        (**self).visit_state(state)
    }
}

/// The properties of a bound policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PolicySpec {
    /// Columns that the policy writes for each environment and step: action leaves, then extra
    /// columns. One with the name of an observation is delivered in its place, at the root, while
    /// what follows stays the environment's; unless the policy writes it under `"next"` too: it is
    /// state then, which the environment gives the first value of, and is delivered as the policy
    /// writes it.
    pub columns: Vec<LeafSpec>,
    /// The code that evaluates the policy.
    pub backend: Backend,
    /// How it keeps states of environments.
    #[serde(default)]
    pub states: States,
}

impl PolicySpec {
    /// A policy that writes `columns` and is evaluated natively.
    #[must_use]
    pub fn new(columns: Vec<LeafSpec>) -> Self {
        Self {
            columns,
            backend: Backend::Native,
            states: States::ByRow,
        }
    }

    /// The same policy, evaluated by `backend`.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// The same policy, with `states`.
    #[must_use]
    pub fn states(mut self, states: States) -> Self {
        self.states = states;
        self
    }
}

/// The code that evaluates a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Backend {
    /// Rust code.
    Native,
    /// A learning framework, such as PyTorch, which the policy calls.
    Framework,
}

/// How a policy keeps states of environments, if it has any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum States {
    /// By row: each call has the same environments in the same order. Such a policy cannot be
    /// [served](crate::InferenceServer) if it writes a state.
    #[default]
    ByRow,
    /// By [`EnvRows::place`]: each call may have any of the environments.
    ByPlace,
}

/// The inputs of a policy at one step.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PolicyIn<'a> {
    /// Observations, `[rows, *shape]` a leaf, in the order of the environment's observation leaves.
    pub obs: Rows<'a>,
    /// The environment behind each row, and the key of its noise. `[rows]`.
    pub envs: &'a EnvRows,
    /// Whether to explore.
    pub exploration: ExplorationType,
}

impl<'a> PolicyIn<'a> {
    /// The inputs of one step: observations `[rows, *shape]`, the environment behind each row
    /// `[rows]`, and whether to explore.
    #[must_use]
    pub fn new(obs: Rows<'a>, envs: &'a EnvRows, exploration: ExplorationType) -> Self {
        Self {
            obs,
            envs,
            exploration,
        }
    }

    /// Checks that there is an environment and an observation for each of `rows` rows.
    ///
    /// # Errors
    /// [`PolicyError::Rows`] naming the first input of another length.
    #[inline(always)]
    pub fn check_rows(&self, rows: usize) -> Result<(), PolicyError> {
        if self.envs.len() == rows && self.obs.envs() == rows {
            return Ok(());
        }
        Err(self.misfit(rows))
    }

    #[cold]
    fn misfit(&self, rows: usize) -> PolicyError {
        let (what, got) = if self.envs.len() == rows {
            ("obs", self.obs.envs())
        } else {
            ("envs", self.envs.len())
        };
        PolicyError::Rows {
            what,
            expected: rows,
            got,
        }
    }
}

#[cfg(test)]
mod tests {
    use tensordict::DType;

    use super::*;

    #[test]
    fn what_a_policy_says_of_itself_is_written_and_read_again() {
        let columns = vec![
            LeafSpec::new("action", DType::I64, []),
            LeafSpec::new(("next", "hidden"), DType::F32, [2, 0, 3]),
        ];
        for backend in [Backend::Native, Backend::Framework] {
            let spec = PolicySpec::new(columns.clone()).backend(backend);
            let spec = spec.states(States::ByPlace);
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<PolicySpec>(&json).unwrap(), spec);
        }
        let json = r#"{"columns": [], "backend": "Native", "device": "cpu"}"#;
        let error = serde_json::from_str::<PolicySpec>(json).unwrap_err();
        assert!(
            error.to_string().contains("unknown field `device`"),
            "{error}"
        );
    }
}
