use windrow::Weights;
use windrow::env::EnvSpec;
use windrow::policy::{Policy, PolicyError, PolicyIn, PolicySpec};
use windrow::slab::RowsMut;

/// Any policy, where one type is asked for.
pub(crate) struct Boxed(pub(super) Box<dyn Policy>);

impl Policy for Boxed {
    fn bind(&mut self, env: &EnvSpec) -> Result<PolicySpec, PolicyError> {
        self.0.bind(env)
    }

    #[inline]
    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.0.act(input, out)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.load(weights)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.check(weights)
    }

    fn weights(&self) -> Weights {
        self.0.weights()
    }
}
