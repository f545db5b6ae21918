//! The information that binds a policy to environments.

use windrow_env::EnvSpec;
use windrow_slab::Rows;

/// Everything that a policy learns before it acts; see [`Policy::bind`](crate::Policy::bind).
///
/// A collector fills all of it in. By hand, the environment and the number of rows are enough:
///
/// ```
/// use tensordict::DType;
/// use windrow_env::{EnvSpec, Spec};
/// use windrow_policy::{Binding, Policy, RandomPolicy};
///
/// let env = EnvSpec::new("Coin", Spec::unbounded(DType::F32, [1]), Spec::discrete(2));
/// let spec = RandomPolicy::new().bind(&Binding::new(&env, 8))?;
/// assert_eq!(spec.columns, env.action_leaves());
/// # Ok::<(), windrow_policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Binding<'a> {
    /// The observations and actions of the environments.
    pub spec: &'a EnvSpec,
    /// Environments that the policy acts for at a time: the rows of each call. Calls of a
    /// [served](crate::InferenceServer) policy have any number of rows: this is the number of the
    /// first client.
    pub num_envs: usize,
    /// Whether batches have a dimension for the environments, which they may have for a single one
    /// too.
    pub batched: bool,
    /// Number of the worker.
    pub worker: usize,
    /// Whether the policy acts in the thread that asks for batches.
    pub in_caller: bool,
    /// First observations of the environments, `[num_envs, *shape]` a leaf, in the order of
    /// [`EnvSpec::observation_leaves`]. `None` unless the policy [needs
    /// them](crate::Policy::needs_first_rows), and if an environment failed to begin an episode,
    /// which collection will report.
    pub first_rows: Option<Rows<'a>>,
}

impl<'a> Binding<'a> {
    /// A binding to `num_envs` environments of worker 0, without first observations; batched if
    /// there are several.
    #[must_use]
    pub fn new(spec: &'a EnvSpec, num_envs: usize) -> Self {
        Self {
            spec,
            num_envs,
            batched: num_envs > 1,
            worker: 0,
            in_caller: false,
            first_rows: None,
        }
    }

    /// Whether batches have a dimension for the environments.
    #[must_use]
    pub fn batched(mut self, batched: bool) -> Self {
        self.batched = batched;
        self
    }

    /// The number of the worker.
    #[must_use]
    pub fn worker(mut self, worker: usize) -> Self {
        self.worker = worker;
        self
    }

    /// Whether the policy acts in the thread that asks for batches.
    #[doc(hidden)]
    #[must_use]
    pub fn in_caller(mut self, in_caller: bool) -> Self {
        self.in_caller = in_caller;
        self
    }

    /// First observations of the environments, if there are any.
    #[must_use]
    pub fn first_rows(mut self, rows: Option<Rows<'a>>) -> Self {
        self.first_rows = rows;
        self
    }
}
