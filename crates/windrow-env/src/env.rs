use windrow_slab::{Row, RowMut};

use crate::{AtOnce, EnvError, EnvSpec, StateVisitor};

/// The name under which rewards are observed in double precision (`float64`, before they are
/// rounded), where the argument `info` of an environment has it: those of MuJoCo and of tables,
/// such as `Taxi-v4`. Gymnasium's `info` has no such entry.
pub const EXACT_REWARD: &str = "exact_reward";

/// One environment. It writes into lent rows and keeps no reference to them.
///
/// An episode starts with [`reset`](Env::reset) and lasts until [`step`](Env::step) reports
/// `terminated` or `truncated`. An environment never resets by itself: the engine does, in the same
/// step, after it has kept the last observation.
pub trait Env: Send {
    /// Observation and action; the same for its whole life.
    fn spec(&self) -> &EnvSpec;

    /// Starts an episode and writes its first observation, every leaf of it.
    ///
    /// With a seed, the environment's generator restarts from it. Without, the generator continues;
    /// the first time, the operating system seeds it.
    ///
    /// # Errors
    /// The reason why the episode cannot start.
    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError>;

    /// Takes one action and writes the observation that follows, every leaf of it.
    ///
    /// # Errors
    /// [`EnvError::Action`] for an action outside the space, [`EnvError::NotReset`] before the
    /// first reset, or the reason why the step failed.
    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError>;

    /// Keeps the states of `envs` and steps all at once. By default there is no such thing: they
    /// are stepped one after the other.
    #[doc(hidden)]
    fn at_once<'a>(
        envs: impl ExactSizeIterator<Item = &'a Self> + Clone,
    ) -> Option<Box<dyn AtOnce<Self>>>
    where
        Self: Sized + 'static,
    {
        let _ = envs;
        None
    }

    /// Saves or loads the state of the simulator and its generator, all that changes from step to
    /// step: an environment of the same kind that has loaded it goes on as this one would.
    ///
    /// # Errors
    /// [`EnvError::NotHeld`] where the state cannot be saved, which is the default: an environment
    /// of a resumed run then begins a new episode. [`EnvError::State`] for a state that does not
    /// fit.
    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let _ = state;
        Err(EnvError::not_held(&self.spec().id))
    }
}

/// Reward and flags of one step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Outcome {
    /// Reward of the step.
    pub reward: f32,
    /// The episode ended by itself: there is no future to bootstrap from.
    pub terminated: bool,
    /// The episode was cut, for instance by a time limit: the future would continue unseen.
    pub truncated: bool,
}

impl<E: Env + ?Sized> Env for Box<E> {
    fn spec(&self) -> &EnvSpec {
        (**self).spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        (**self).reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        (**self).step(action, obs)
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        (**self).visit_state(state)
    }
}

impl<E: Env + ?Sized> Env for &mut E {
    fn spec(&self) -> &EnvSpec {
        (**self).spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        (**self).reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        (**self).step(action, obs)
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        (**self).visit_state(state)
    }
}
