use std::sync::Arc;

use windrow_slab::{Row, RowMut, Rows, RowsMut};

use crate::{AtOnce, Env, EnvError, EnvSpec, Outcome, Outcomes, SpecError, StateVisitor};

/// An environment whose episodes are truncated after a number of steps.
///
/// A step can be both terminated and truncated. The limit is found in
/// [`EnvSpec::max_episode_steps`]; of two limits around one environment the shorter one.
#[derive(Debug, Clone)]
pub struct TimeLimit<E> {
    env: E,
    limit: usize,
    elapsed: usize,
    spec: Arc<EnvSpec>,
}

impl<E: Env> TimeLimit<E> {
    /// `env`, truncated after `max_episode_steps` steps.
    ///
    /// # Errors
    /// [`SpecError::Argument`] when `max_episode_steps` is 0.
    pub fn new(env: E, max_episode_steps: usize) -> Result<Self, EnvError> {
        if max_episode_steps == 0 {
            return Err(SpecError::no_steps("max_episode_steps", env.spec()));
        }
        Ok(Self::of(env, max_episode_steps))
    }

    /// As [`new`](Self::new) for a limit that is known not to be 0.
    pub(crate) fn of(env: E, limit: usize) -> Self {
        let mut spec = env.spec().clone();
        spec.max_episode_steps = Some(spec.max_episode_steps.unwrap_or(limit).min(limit));
        Self {
            env,
            limit,
            elapsed: 0,
            spec: Arc::new(spec),
        }
    }

    /// Whether the step just made is the last one.
    #[inline(always)]
    fn is_reached(&mut self) -> bool {
        self.elapsed += 1;
        self.elapsed >= self.limit
    }

    /// The environment without its limit.
    pub fn into_inner(self) -> E {
        self.env
    }
}

impl<E: Env> Env for TimeLimit<E> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.elapsed = 0;
        self.env.reset(seed, obs)
    }

    #[inline(always)]
    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let mut outcome = self.env.step(action, obs)?;
        outcome.truncated |= self.is_reached();
        Ok(outcome)
    }

    fn at_once<'a>(
        envs: impl ExactSizeIterator<Item = &'a Self> + Clone,
    ) -> Option<Box<dyn AtOnce<Self>>>
    where
        E: 'static,
    {
        Some(Box::new(Limited {
            inner: E::at_once(envs.clone().map(|env| &env.env))?,
            clock: 0,
            begun: vec![0; envs.len()],
            due: usize::MAX,
            limits: envs.map(|env| env.limit).collect(),
        }))
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.env.visit_state(state)?;
        state.steps(&mut self.elapsed)
    }
}

/// Steps environments with their limits at once.
struct Limited<E> {
    inner: Box<dyn AtOnce<E>>,
    /// Steps so far, of all.
    clock: usize,
    /// `clock` at the beginning of each episode.
    begun: Vec<usize>,
    limits: Vec<usize>,
    /// No episode reaches its limit before `clock` is this.
    due: usize,
}

impl<E> Limited<E> {
    /// Whether environment `place` has reached its limit. Otherwise, `due` is no later than when it
    /// does.
    #[inline]
    fn is_reached(&mut self, place: usize) -> bool {
        let elapsed = self.clock.wrapping_sub(self.begun[place]);
        let left = self.limits[place].saturating_sub(elapsed);
        self.due = self.due.min(self.clock.saturating_add(left));
        left == 0
    }
}

impl<E: 'static> AtOnce<TimeLimit<E>> for Limited<E> {
    fn load(&mut self, place: usize, env: &TimeLimit<E>) -> bool {
        self.begun[place] = self.clock.wrapping_sub(env.elapsed);
        self.is_reached(place);
        self.inner.load(place, &env.env)
    }

    fn store(&self, place: usize, env: &mut TimeLimit<E>) {
        env.elapsed = self.clock.wrapping_sub(self.begun[place]);
        self.inner.store(place, &mut env.env);
    }

    fn step(&mut self, actions: Rows<'_>, obs: RowsMut<'_>, mut outcomes: Outcomes<'_>) -> usize {
        let stepped = self.inner.step(actions, obs, outcomes.reborrow());
        self.clock += 1;
        for begun in &mut self.begun[stepped..] {
            *begun = begun.wrapping_add(1);
        }
        if self.clock >= self.due {
            self.due = usize::MAX;
            for place in 0..stepped {
                outcomes.truncated[place] |= self.is_reached(place);
            }
        }
        stepped
    }

    fn copied(&self) -> Box<dyn AtOnce<TimeLimit<E>>> {
        Box::new(Self {
            inner: self.inner.copied(),
            begun: self.begun.clone(),
            limits: self.limits.clone(),
            ..*self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CartPole;
    use crate::driver::Driver;
    use crate::testing::CountingEnv;

    #[test]
    fn truncates_at_the_limit_and_starts_again() {
        let mut env = Driver::new(TimeLimit::new(CountingEnv::new(100, 0), 3).unwrap());
        for _ in 0..2 {
            env.reset(None);
            let (steps, end) = env.run(1i8);
            assert_eq!((steps, end.terminated, end.truncated), (3, false, true));
        }
    }

    #[test]
    fn a_step_can_be_both_terminated_and_truncated() {
        let mut env = Driver::new(TimeLimit::new(CountingEnv::new(2, 0), 3).unwrap());
        env.reset(None);
        let (steps, end) = env.run(1i8);
        assert_eq!((steps, end.terminated, end.truncated), (3, true, true));
    }

    #[test]
    fn the_spec_tells_the_shorter_limit() {
        let env = TimeLimit::new(CartPole::v1(), 800).unwrap();
        assert_eq!(env.spec().max_episode_steps, Some(500));
        let env = TimeLimit::new(env, 10).unwrap();
        assert_eq!(env.spec().max_episode_steps, Some(10));
        assert_eq!(env.into_inner().spec().max_episode_steps, Some(500));
    }

    #[test]
    fn no_step_at_all_is_an_error() {
        let error = TimeLimit::new(CartPole::new(), 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "max_episode_steps of CartPole-v1: expected 1 step or more, got 0"
        );
    }
}
