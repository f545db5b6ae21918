//! An environment that does something bad.

use windrow_env::{CartPole, Env, EnvError, EnvSpec, Outcome};
use windrow_slab::{Row, RowMut};

/// A CartPole that does something bad in its 30th step.
pub(crate) struct Fatal {
    env: CartPole,
    steps: usize,
    act: fn() -> Result<(), EnvError>,
}

impl Fatal {
    pub(crate) fn new(act: fn() -> Result<(), EnvError>) -> Self {
        Self {
            env: CartPole::new(),
            steps: 0,
            act,
        }
    }
}

impl Env for Fatal {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.steps += 1;
        if self.steps == 30 {
            eprintln!("the kettle is empty");
            (self.act)()?;
        }
        self.env.step(action, obs)
    }
}
