//! A closure as a policy.

use std::fmt;

use windrow_env::{EnvError, StateVisitor};
use windrow_slab::{LeafSpec, RowsMut};

use crate::weights::expect_none;
use crate::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights};

/// A policy that is a function of its inputs; made by [`policy_fn`].
#[derive(Clone)]
pub struct FnPolicy<F> {
    columns: Vec<LeafSpec>,
    act: F,
}

/// `act` as a policy that writes `columns`: the environment's action leaves, then any of its own.
///
/// ```
/// use tensordict::DType;
/// use windrow_policy::policy_fn;
/// use windrow_slab::{Key, LeafSpec};
///
/// let columns = [LeafSpec::new("action", DType::I64, [])];
/// let push_right = policy_fn(columns, |_input, mut out| {
///     out.get_mut::<i64>(Key::new(0))?.fill(1);
///     Ok(())
/// });
/// # let _ = push_right;
/// ```
pub fn policy_fn<F>(columns: impl IntoIterator<Item = LeafSpec>, act: F) -> FnPolicy<F>
where
    F: FnMut(&PolicyIn<'_>, RowsMut<'_>) -> Result<(), PolicyError> + Send,
{
    FnPolicy {
        columns: columns.into_iter().collect(),
        act,
    }
}

impl<F> fmt::Debug for FnPolicy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnPolicy")
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

impl<F> Policy for FnPolicy<F>
where
    F: FnMut(&PolicyIn<'_>, RowsMut<'_>) -> Result<(), PolicyError> + Send,
{
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let spec = PolicySpec::new(self.columns.clone());
        spec.check_actions("function as policy", binding.spec)?;
        Ok(spec)
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        input.check_rows(out.envs())?;
        (self.act)(input, out)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        Ok(expect_none(weights)?)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        Ok(expect_none(weights)?)
    }

    /// A function is taken for one that remembers nothing.
    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}
