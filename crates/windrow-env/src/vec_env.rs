use std::fmt;

use windrow_slab::{LeafSpec, Rows, RowsMut};

use crate::factory::many;
use crate::{
    Env, EnvError, EnvSpec, Gathering, SpecError, StateVisitor, Transform, Transformed, VecEnvError,
};

/// `num_envs` environments in lockstep. They never reset by themselves: the engine resets them.
pub trait VecEnv: Send {
    /// Observation and action of each environment; the same for all and for their whole life.
    fn spec(&self) -> &EnvSpec;

    /// Number of environments.
    fn num_envs(&self) -> usize;

    /// Starts an episode in each environment named, and writes the first observation into its row;
    /// the rows of the others stay as they are.
    ///
    /// # Errors
    /// The first environment that could not be reset, and the reason.
    fn reset(&mut self, resets: &[Reset], obs: RowsMut<'_>) -> Result<(), VecEnvError>;

    /// Steps all environments: `actions` and `obs` are `[num_envs, *shape]` a leaf, `outcomes`
    /// `[num_envs]`.
    ///
    /// # Errors
    /// The first environment that could not be stepped, and the reason.
    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError>;

    /// As [`step`](Self::step), but steps only the environments `which`, in rising order. The
    /// others, their rows and their outcomes stay as they are.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step), and [`not_apart`] if these environments can only step
    /// together, which is the default.
    fn step_some(
        &mut self,
        which: &[usize],
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        match which.len() == self.num_envs() {
            true => self.step(actions, obs, outcomes),
            false => Err(not_apart(self.spec(), self.num_envs(), which)),
        }
    }

    /// Whether [`step_some`](Self::step_some) steps any of these environments without the others.
    fn step_apart(&self) -> bool {
        self.num_envs() == 1
    }

    /// Announces the columns of `actions` in [`step`](Self::step): those of the action, then the
    /// policy's others. Environments that read the action alone do nothing; those that contain
    /// others forward the call.
    ///
    /// # Errors
    /// A column that the environments read is missing, or of another type or shape.
    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError>;

    /// The environment whose [`reset`](Self::reset) or [`step`](Self::step) panicked, if known, for
    /// the error message. Nothing else is called after a panic.
    fn panicked_at(&self) -> Option<usize> {
        None
    }

    /// The running statistics that these environments share with others, in the order of
    /// [`EnvSpec::statistics`]. Those around others forward the call.
    fn gatherings(&mut self) -> Vec<&mut Gathering> {
        Vec::new()
    }

    /// Saves or loads the states of all environments, see [`Env::visit_state`].
    ///
    /// # Errors
    /// Those of [`Env::visit_state`].
    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let _ = state;
        Err(EnvError::not_held(&self.spec().id))
    }

    /// These environments with `transform` around them.
    ///
    /// # Errors
    /// The error of [`Transform::attach`].
    fn transformed<T: Transform>(self, transform: T) -> Result<Transformed<Self, T>, EnvError>
    where
        Self: Sized,
    {
        Transformed::new(self, &transform)
    }
}

/// One environment to be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reset {
    /// Index of the environment.
    pub env: usize,
    /// Seed of its generator; `None` goes on with the one it has.
    pub seed: Option<u64>,
}

/// Rewards and flags of a step, `[num_envs]` each, which a [`VecEnv`] writes.
#[derive(Debug)]
pub struct Outcomes<'a> {
    /// Rewards.
    pub reward: &'a mut [f32],
    /// See [`Outcome::terminated`](crate::Outcome::terminated).
    pub terminated: &'a mut [bool],
    /// See [`Outcome::truncated`](crate::Outcome::truncated).
    pub truncated: &'a mut [bool],
}

impl Outcomes<'_> {
    /// The same places for a shorter time.
    #[inline(always)]
    #[must_use]
    pub fn reborrow(&mut self) -> Outcomes<'_> {
        Outcomes {
            reward: self.reward,
            terminated: self.terminated,
            truncated: self.truncated,
        }
    }
}

/// Steps environments at once, and keeps their states between steps.
#[doc(hidden)]
pub trait AtOnce<E>: Send {
    /// Reads the state of `env`, which is environment number `place`. False where it has none,
    /// before its first reset.
    fn load(&mut self, place: usize, env: &E) -> bool;

    /// Writes the state of environment number `place` into `env`.
    fn store(&self, place: usize, env: &mut E);

    /// Steps environments from the first one on, as [`Env::step`] would, bit for bit, and returns
    /// how many: it stops before an action that is none.
    fn step(&mut self, actions: Rows<'_>, obs: RowsMut<'_>, outcomes: Outcomes<'_>) -> usize;

    /// A copy.
    fn copied(&self) -> Box<dyn AtOnce<E>>;
}

impl<E> fmt::Debug for dyn AtOnce<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtOnce").finish_non_exhaustive()
    }
}

impl<E> Clone for Box<dyn AtOnce<E>> {
    fn clone(&self) -> Self {
        (**self).copied()
    }
}

/// Environments of one type, stepped in the calling thread: the native ones by vector instructions,
/// others one after the other.
#[derive(Debug, Clone)]
pub struct Serial<E> {
    envs: Vec<E>,
    at_once: Option<Box<dyn AtOnce<E>>>,
    /// Whether the states are those in `at_once`; in `envs`, they are old then.
    is_ahead: bool,
    panicked_at: Option<usize>,
}

/// Records the environment that is being called, if a panic drops this. Stores nothing before, so
/// it costs nothing.
struct Calling<'a> {
    env: usize,
    panicked_at: &'a mut Option<usize>,
}

impl Calling<'_> {
    /// All calls have returned.
    #[inline(always)]
    fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Calling<'_> {
    #[cold]
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.panicked_at = Some(self.env);
        }
    }
}

impl<E: Env> Serial<E> {
    /// As [`new`](Self::new), of environments that need not be `'static`, never stepped at once.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn one_by_one(envs: Vec<E>) -> Result<Self, EnvError> {
        let [first, others @ ..] = envs.as_slice() else {
            return Err(EnvError::Empty);
        };
        if let Some(i) = others.iter().position(|env| env.spec() != first.spec()) {
            return Err(SpecError::Differs {
                first: Box::new(first.spec().clone()),
                env: i + 1,
                other: Box::new(others[i].spec().clone()),
            }
            .into());
        }
        Ok(Self {
            at_once: None,
            envs,
            is_ahead: false,
            panicked_at: None,
        })
    }
}

impl<E: Env + 'static> Serial<E> {
    /// The given environments as one.
    ///
    /// # Errors
    /// [`EnvError::Empty`], or [`SpecError::Differs`] for the first with another spec than
    /// environment 0.
    pub fn new(envs: Vec<E>) -> Result<Self, EnvError> {
        let mut serial = Self::one_by_one(envs)?;
        serial.at_once = E::at_once(serial.envs.iter());
        Ok(serial)
    }

    /// `num_envs` environments made by `make`.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`EnvError::NoMemory`].
    pub fn from_fn(num_envs: usize, make: impl FnMut() -> E) -> Result<Self, EnvError> {
        Self::new(many(num_envs, make)?)
    }
}

impl<E: Env> VecEnv for Serial<E> {
    fn spec(&self) -> &EnvSpec {
        self.envs[0].spec()
    }

    fn num_envs(&self) -> usize {
        self.envs.len()
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        let mut calling = Calling {
            env: 0,
            panicked_at: &mut self.panicked_at,
        };
        for &Reset { env, seed } in resets {
            calling.env = env;
            let (total, rows) = (self.envs.len(), obs.envs());
            let (Some(world), Some(row)) = (self.envs.get_mut(env), obs.env_mut(env)) else {
                return Err(out_of_range(env, total, rows));
            };
            world
                .reset(seed, row)
                .map_err(|source| VecEnvError { env, source })?;
            if let (true, Some(at_once)) = (self.is_ahead, &mut self.at_once) {
                at_once.load(env, world);
            }
        }
        calling.end();
        Ok(())
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        // Of a single environment, there are no loop and few checks.
        if let [world] = &mut self.envs[..]
            && let [reward] = &mut *outcomes.reward
            && let [terminated] = &mut *outcomes.terminated
            && let [truncated] = &mut *outcomes.truncated
            && let (1, Some(action)) = (actions.envs(), actions.env(0))
            && let (1, Some(row)) = (obs.envs(), obs.env_mut(0))
        {
            let calling = Calling {
                env: 0,
                panicked_at: &mut self.panicked_at,
            };
            let outcome = match world.step(action, row) {
                Ok(outcome) => outcome,
                Err(source) => return Err(source.of(0)),
            };
            calling.end();
            *reward = outcome.reward;
            *terminated = outcome.terminated;
            *truncated = outcome.truncated;
            return Ok(());
        }
        self.step_all(actions, obs, outcomes)
    }

    fn step_some(
        &mut self,
        which: &[usize],
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.catch_up();
        self.step_each(which.iter().copied(), actions, obs, outcomes)
    }

    fn step_apart(&self) -> bool {
        true
    }

    fn bind(&mut self, _: &[LeafSpec]) -> Result<(), EnvError> {
        Ok(())
    }

    fn panicked_at(&self) -> Option<usize> {
        self.panicked_at
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.catch_up();
        state.section(format!("{} x {}", self.envs.len(), self.spec().id))?;
        self.envs
            .iter_mut()
            .try_for_each(|env| env.visit_state(state))
    }
}

impl<E: Env> Serial<E> {
    /// Steps all environments. A function of its own, because a step of a single one is a few
    /// instructions without it.
    #[inline(never)]
    fn step_all(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        let total = self.envs.len();
        check_rows(total, actions, &obs, &outcomes)?;
        let stepped = match self.go_ahead() {
            Some(at_once) => at_once.step(actions, obs.reborrow(), outcomes.reborrow()),
            None => 0,
        };
        if stepped == total {
            return Ok(());
        }
        self.catch_up();
        self.step_each(stepped..total, actions, obs, outcomes)
    }

    /// Loads the states into `at_once` for a step, unless they are there. `None` if the
    /// environments are stepped one after the other.
    #[inline]
    fn go_ahead(&mut self) -> Option<&mut dyn AtOnce<E>> {
        let at_once = self.at_once.as_deref_mut()?;
        if !self.is_ahead {
            let mut envs = self.envs.iter().enumerate();
            self.is_ahead = envs.all(|(place, env)| at_once.load(place, env));
        }
        self.is_ahead.then_some(at_once)
    }

    /// Writes the states into the environments.
    #[inline]
    fn catch_up(&mut self) {
        if let (true, Some(at_once)) = (self.is_ahead, &self.at_once) {
            for (place, env) in self.envs.iter_mut().enumerate() {
                at_once.store(place, env);
            }
            self.is_ahead = false;
        }
    }

    /// Steps the environments `which`.
    #[inline(always)]
    fn step_each(
        &mut self,
        which: impl Iterator<Item = usize>,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        check_rows(self.envs.len(), actions, &obs, &outcomes)?;
        let Outcomes {
            reward,
            terminated,
            truncated,
        } = outcomes;
        let total = self.envs.len();
        let mut calling = Calling {
            env: 0,
            panicked_at: &mut self.panicked_at,
        };
        for env in which {
            calling.env = env;
            let (Some(world), Some(action), Some(row)) =
                (self.envs.get_mut(env), actions.env(env), obs.env_mut(env))
            else {
                return Err(out_of_range(env, total, total));
            };
            let outcome = match world.step(action, row) {
                Ok(outcome) => outcome,
                Err(source) => return Err(VecEnvError { env, source }),
            };
            reward[env] = outcome.reward;
            terminated[env] = outcome.terminated;
            truncated[env] = outcome.truncated;
        }
        calling.end();
        Ok(())
    }
}

/// Checks that each of `total` environments has all rows, so that a loop over them needs no checks.
#[inline(always)]
pub(crate) fn check_rows(
    total: usize,
    actions: Rows<'_>,
    obs: &RowsMut<'_>,
    outcomes: &Outcomes<'_>,
) -> Result<(), VecEnvError> {
    let fit = (actions.envs() == total)
        & (obs.envs() == total)
        & (outcomes.reward.len() == total)
        & (outcomes.terminated.len() == total)
        & (outcomes.truncated.len() == total);
    match fit {
        true => Ok(()),
        false => Err(wrong_rows(total, actions, obs, outcomes)),
    }
}

#[cold]
fn wrong_rows(
    total: usize,
    actions: Rows<'_>,
    obs: &RowsMut<'_>,
    outcomes: &Outcomes<'_>,
) -> VecEnvError {
    let rows = [
        actions.envs(),
        obs.envs(),
        outcomes.reward.len(),
        outcomes.terminated.len(),
        outcomes.truncated.len(),
    ];
    let wrong = rows.into_iter().find(|rows| *rows != total);
    let rows = wrong.expect("It is called where one of them differs.");
    out_of_range(total.min(rows), total, rows)
}

/// The error for a step of only `which` of `envs` environments that step together.
#[cold]
#[must_use]
pub fn not_apart(spec: &EnvSpec, envs: usize, which: &[usize]) -> VecEnvError {
    let error = SpecError::Argument {
        argument: "environments",
        of: spec.id.clone(),
        expected: format!("all {envs}, which step together"),
        got: format!("{which:?}"),
    };
    EnvError::from(error).of(which.first().copied().unwrap_or_default())
}

#[cold]
pub(crate) fn out_of_range(env: usize, total: usize, rows: usize) -> VecEnvError {
    EnvError::OutOfRange {
        env,
        envs: total,
        rows,
    }
    .of(env)
}

impl<V: VecEnv + ?Sized> VecEnv for Box<V> {
    fn spec(&self) -> &EnvSpec {
        (**self).spec()
    }

    fn num_envs(&self) -> usize {
        (**self).num_envs()
    }

    fn reset(&mut self, resets: &[Reset], obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        (**self).reset(resets, obs)
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        (**self).step(actions, obs, outcomes)
    }

    fn step_some(
        &mut self,
        which: &[usize],
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        (**self).step_some(which, actions, obs, outcomes)
    }

    fn step_apart(&self) -> bool {
        (**self).step_apart()
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        (**self).bind(columns)
    }

    fn panicked_at(&self) -> Option<usize> {
        (**self).panicked_at()
    }

    fn gatherings(&mut self) -> Vec<&mut Gathering> {
        (**self).gatherings()
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        (**self).visit_state(state)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use windrow_slab::{Key, RowBlock};

    use super::*;
    use crate::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
    use crate::{CartPole, RewardSum, TimeLimit};

    fn ledgers(n: i64) -> Serial<LedgerEnv> {
        Serial::new((0..n).map(LedgerEnv::new).collect()).unwrap()
    }

    fn blocks(envs: &impl VecEnv, rows: usize) -> (RowBlock, RowBlock) {
        let block = |leaves: &[_]| RowBlock::new(leaves, rows).unwrap();
        (
            block(&envs.spec().action_leaves()),
            block(&envs.spec().observation_leaves()),
        )
    }

    fn step(
        envs: &mut impl VecEnv,
        actions: &RowBlock,
        obs: &mut RowBlock,
        places: usize,
    ) -> Result<Vec<f32>, VecEnvError> {
        let mut reward = vec![0.0; places];
        let (mut terminated, mut truncated) = (vec![false; places], vec![false; places]);
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
        };
        envs.step(actions.rows(), obs.rows_mut(), outcomes)?;
        Ok(reward)
    }

    fn resets<const N: usize>(envs: [usize; N]) -> [Reset; N] {
        envs.map(|env| Reset { env, seed: None })
    }

    #[test]
    fn environments_have_rows_of_their_own() {
        let mut envs = ledgers(3);
        let (actions, mut obs) = blocks(&envs, 3);
        envs.reset(&resets([0, 1, 2]), obs.rows_mut()).unwrap();
        envs.reset(&resets([1]), obs.rows_mut()).unwrap();
        let seen = |obs: &RowBlock| obs.rows().get(Key::<i64>::new(0)).unwrap().to_vec();
        assert_eq!(seen(&obs), [0, 0, 0, 1, 1, 0, 2, 0, 0]);
        let reward = step(&mut envs, &actions, &mut obs, 3).unwrap();
        assert_eq!(seen(&obs), [0, 0, 1, 1, 1, 1, 2, 0, 1]);
        let expected = [[0, 0, 0], [1, 1, 0], [2, 0, 0]].map(|place| LedgerEnv::reward(place, 0));
        assert_eq!(reward, expected);
    }

    #[test]
    fn errors_name_the_environment() {
        let mut envs = ledgers(2);
        let (actions, mut obs) = blocks(&envs, 2);
        envs.reset(&resets([0]), obs.rows_mut()).unwrap();
        let error = step(&mut envs, &actions, &mut obs, 2).unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment 1: step was called before reset"
        );
        let error = envs.reset(&resets([2]), obs.rows_mut()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment 2: environment 2 was addressed, but there are 2 environments and rows for 2"
        );
    }

    #[test]
    fn the_environment_that_panics_is_known() {
        for (call, expected) in [(FailAt::Step(2), 2), (FailAt::Reset(1), 0)] {
            let made = |env| {
                let at = if env == expected as i64 {
                    call
                } else {
                    FailAt::Step(9)
                };
                FailingEnv::new(LedgerEnv::new(env), at, Failure::Panic)
            };
            let envs = Serial::new((0..3).map(made).collect()).unwrap();
            let mut envs = Transformed::new(Box::new(envs), &RewardSum::new()).unwrap();
            let (actions, mut obs) = blocks(&envs, 3);
            let run = AssertUnwindSafe(|| {
                envs.reset(&resets([0, 1, 2]), obs.rows_mut()).unwrap();
                step(&mut envs, &actions, &mut obs, 3).unwrap();
                step(&mut envs, &actions, &mut obs, 3)
            });
            assert!(catch_unwind(run).is_err());
            assert_eq!(envs.panicked_at(), Some(expected), "{call:?}");
        }
    }

    #[test]
    fn too_few_rows_are_an_error() {
        let mut envs = ledgers(2);
        let (actions, mut obs) = blocks(&envs, 1);
        assert_eq!(
            envs.reset(&resets([0, 1]), obs.rows_mut()).unwrap_err().env,
            1
        );
        assert!(step(&mut envs, &actions, &mut obs, 2).is_err());
        let (actions, mut obs) = blocks(&envs, 2);
        envs.reset(&resets([0, 1]), obs.rows_mut()).unwrap();
        assert_eq!(step(&mut envs, &actions, &mut obs, 1).unwrap_err().env, 1);
    }

    #[test]
    fn a_vector_needs_environments_that_are_alike() {
        let error = Serial::<CartPole>::new(Vec::new()).unwrap_err();
        assert!(error.to_string().ends_with("got none"), "{error}");
        let unlike = [10, 20].map(|limit| TimeLimit::new(CartPole::new(), limit).unwrap());
        let error = Serial::new(unlike.into()).unwrap_err().to_string();
        assert!(
            error.contains("environment 0 has") && error.contains("environment 1 has"),
            "{error}"
        );
    }
}
