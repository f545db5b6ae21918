//! One environment driven by hand, for tests.

use tensordict::Element;
use windrow_slab::{Key, RowBlock};

use crate::{Env, EnvError, Outcome};

pub(crate) struct Driver<E> {
    env: E,
    obs: RowBlock,
    action: RowBlock,
}

impl<E: Env> Driver<E> {
    pub(crate) fn new(env: E) -> Self {
        Self {
            obs: RowBlock::new(&env.spec().observation_leaves(), 1).unwrap(),
            action: RowBlock::new(&env.spec().action_leaves(), 1).unwrap(),
            env,
        }
    }

    pub(crate) fn reset(&mut self, seed: Option<u64>) {
        self.try_reset(seed).unwrap();
    }

    pub(crate) fn try_reset(&mut self, seed: Option<u64>) -> Result<(), EnvError> {
        self.env
            .reset(seed, self.obs.rows_mut().env_mut(0).unwrap())
    }

    /// Takes a step with an action of one element.
    pub(crate) fn step<T: Element>(&mut self, action: T) -> Result<Outcome, EnvError> {
        let mut rows = self.action.rows_mut();
        rows.env_mut(0).unwrap().write(Key::new(0), &[action])?;
        let action = self.action.rows().env(0).unwrap();
        self.env
            .step(action, self.obs.rows_mut().env_mut(0).unwrap())
    }

    /// The first leaf of the observation.
    pub(crate) fn observation<T: Element>(&self) -> &[T] {
        self.leaf(0)
    }

    /// Leaf `leaf` of the observation.
    pub(crate) fn leaf<T: Element>(&self, leaf: usize) -> &[T] {
        self.obs.rows().get(Key::new(leaf)).unwrap()
    }

    /// The first observation after each of a seeded reset and `actions`, and the rewards.
    pub(crate) fn play<T: Element>(
        &mut self,
        seed: u64,
        actions: &[T],
    ) -> (Vec<Vec<f32>>, Vec<f32>) {
        self.reset(Some(seed));
        let mut observations = vec![self.observation().to_vec()];
        let mut rewards = Vec::new();
        for &action in actions {
            rewards.push(self.step(action).unwrap().reward);
            observations.push(self.observation().to_vec());
        }
        (observations, rewards)
    }

    /// Steps until an episode ends, and says how.
    pub(crate) fn run<T: Element>(&mut self, action: T) -> (usize, Outcome) {
        for steps in 1..1_000_000 {
            let outcome = self.step(action).unwrap();
            if outcome.terminated || outcome.truncated {
                return (steps, outcome);
            }
        }
        panic!("the episode does not end")
    }
}

/// Checks the errors of an environment with `choices` discrete actions.
pub(crate) fn assert_choices_are_checked(env: impl Env, choices: i64) {
    let mut env = Driver::new(env);
    assert!(matches!(env.step(0i64), Err(EnvError::NotReset)));
    env.reset(None);
    for wrong in [-1, choices, i64::MIN, i64::MAX] {
        let error = env.step(wrong).unwrap_err();
        assert!(matches!(error, EnvError::Action { .. }));
        assert_eq!(
            error.to_string(),
            format!(
                "action out of range: expected an integer from 0 to {}, got {wrong}",
                choices - 1
            )
        );
    }
    for right in 0..choices {
        env.step(right).unwrap();
    }
}

/// Checks that unseeded environments differ and that seeds bring an episode back.
pub(crate) fn assert_seeds_are_kept<E: Env>(make: impl Fn() -> E) {
    let first = |env: &mut Driver<E>, seed| {
        env.reset(seed);
        env.observation::<f32>().to_vec()
    };
    let (mut a, mut b) = (Driver::new(make()), Driver::new(make()));
    assert_ne!(first(&mut a, None), first(&mut b, None));
    assert_eq!(first(&mut a, Some(3)), first(&mut b, Some(3)));
    let later = first(&mut a, None);
    assert_eq!(later, first(&mut b, None));
    assert_ne!(later, first(&mut a, None));
}
