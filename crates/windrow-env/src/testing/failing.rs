use tensordict::{DType, Element, for_dtype};
use windrow_slab::{Key, Row, RowMut};

use crate::number::Number;
use crate::{Env, EnvError, EnvSpec, Outcome, StateVisitor};

/// The call in which a [`FailingEnv`] fails, counted from 1 over its whole life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailAt {
    /// The n-th reset.
    Reset(u64),
    /// The n-th step, over all episodes.
    Step(u64),
}

/// How a [`FailingEnv`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// It returns [`EnvError::Failed`].
    Error,
    /// It panics.
    Panic,
    /// It writes one element too many into its first observation leaf.
    WrongLength,
    /// It writes its first observation leaf as another element type.
    WrongDType,
    /// It leaves the observation as it was and says nothing.
    Unwritten,
    /// It writes NaN into its first observation leaf, which must hold floats, and reports no error.
    Nan,
}

/// An environment around another one that fails in one call.
///
/// ```
/// use windrow_env::testing::{CountingEnv, FailAt, FailingEnv, Failure};
///
/// let env = FailingEnv::new(CountingEnv::default(), FailAt::Step(3), Failure::Panic);
/// # let _ = env;
/// ```
#[derive(Debug, Clone)]
pub struct FailingEnv<E> {
    env: E,
    at: FailAt,
    failure: Failure,
    resets: u64,
    steps: u64,
}

impl<E: Env> FailingEnv<E> {
    /// `env`, failing in the call `at` in the manner of `failure`.
    #[must_use]
    pub fn new(env: E, at: FailAt, failure: Failure) -> Self {
        Self {
            env,
            at,
            failure,
            resets: 0,
            steps: 0,
        }
    }

    /// Makes the call `now` of the inner environment by `inner`, unless it is the one to fail in.
    fn call(
        &mut self,
        now: FailAt,
        mut obs: RowMut<'_>,
        inner: impl FnOnce(&mut E, RowMut<'_>) -> Result<Outcome, EnvError>,
    ) -> Result<Outcome, EnvError> {
        if now != self.at {
            return inner(&mut self.env, obs);
        }
        if self.failure == Failure::Unwritten {
            return Ok(Outcome::default());
        }
        let outcome = inner(&mut self.env, obs.reborrow())?;
        self.fail(now, &mut obs)?;
        Ok(outcome)
    }

    fn fail(&self, now: FailAt, obs: &mut RowMut<'_>) -> Result<(), EnvError> {
        let leaf = self.spec().observation_leaves().into_iter().next();
        let dtype = leaf.map_or(DType::F32, |leaf| leaf.dtype);
        match self.failure {
            Failure::Error => Err(EnvError::failed(format!("made to fail in {now:?}"))),
            Failure::Panic => burst(now),
            Failure::WrongLength if dtype == DType::Bytes => {
                Ok(obs.write_string(Key::new(0), usize::MAX, b"")?)
            }
            Failure::WrongLength => for_dtype!(dtype, T => write_too_long::<T>(obs)),
            Failure::WrongDType if dtype == DType::I8 => Ok(obs.write(Key::new(0), &[0u8])?),
            Failure::WrongDType => Ok(obs.write(Key::new(0), &[0i8])?),
            Failure::Unwritten => Ok(()),
            Failure::Nan if dtype.is_float() => for_dtype!(dtype, T => write_nan::<T>(obs)),
            Failure::Nan => Err(EnvError::failed(format!(
                "the first observation holds {dtype}, which has no NaN to fail with"
            ))),
        }
    }
}

#[expect(clippy::panic, reason = "panicking is what it was made for")]
fn burst(now: FailAt) -> ! {
    panic!("made to panic in {now:?}")
}

fn write_too_long<T: Element>(obs: &mut RowMut<'_>) -> Result<(), EnvError> {
    let elements = obs.get_mut(Key::<T>::new(0))?.len();
    Ok(obs.write(Key::new(0), &vec![T::default(); elements + 1])?)
}

fn write_nan<T: Number>(obs: &mut RowMut<'_>) -> Result<(), EnvError> {
    obs.get_mut(Key::<T>::new(0))?.fill(T::nearest(f64::NAN));
    Ok(())
}

impl<E: Env> Env for FailingEnv<E> {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.resets += 1;
        self.call(FailAt::Reset(self.resets), obs, |env, obs| {
            env.reset(seed, obs).map(|()| Outcome::default())
        })?;
        Ok(())
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.steps += 1;
        self.call(FailAt::Step(self.steps), obs, |env, obs| {
            env.step(action, obs)
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.env.visit_state(state)?;
        state.value(&mut self.resets)?;
        state.value(&mut self.steps)
    }
}

#[cfg(test)]
mod tests {
    use windrow_sync::error_chain;

    use super::*;
    use crate::driver::Driver;
    use crate::testing::{CountingEnv, LedgerEnv};

    fn failing(at: FailAt, failure: Failure) -> Driver<FailingEnv<CountingEnv>> {
        Driver::new(FailingEnv::new(CountingEnv::new(9, 0), at, failure))
    }

    #[test]
    fn fails_in_the_call_named_and_in_no_other() {
        let mut env = failing(FailAt::Step(2), Failure::Error);
        env.reset(None);
        env.step(1i8).unwrap();
        assert_eq!(
            env.step(1i8).unwrap_err().to_string(),
            "made to fail in Step(2)"
        );
        env.step(1i8).unwrap();
        let mut env = failing(FailAt::Reset(2), Failure::Error);
        env.reset(None);
        assert_eq!(
            env.try_reset(None).unwrap_err().to_string(),
            "made to fail in Reset(2)"
        );
        env.reset(None);
    }

    #[test]
    #[should_panic(expected = "made to panic in Reset(1)")]
    fn panics() {
        failing(FailAt::Reset(1), Failure::Panic).reset(None);
    }

    #[test]
    fn breaks_its_spec() {
        let mut env = failing(FailAt::Reset(1), Failure::WrongLength);
        assert_eq!(
            error_chain(&env.try_reset(None).unwrap_err()),
            "environment broke its spec: leaf 0 holds 1 elements a row, got 2"
        );
        let mut env = failing(FailAt::Reset(1), Failure::WrongDType);
        assert_eq!(
            error_chain(&env.try_reset(None).unwrap_err()),
            "environment broke its spec: leaf 0 holds int32, but was accessed as int8"
        );
        let mut env = failing(FailAt::Reset(1), Failure::Nan);
        assert!(env.try_reset(None).is_err());
    }

    #[test]
    fn misbehaves_silently() {
        let mut env = failing(FailAt::Step(1), Failure::Unwritten);
        env.reset(None);
        env.step(1i8).unwrap();
        assert_eq!(env.observation::<i32>(), [0]);
        let ledger = LedgerEnv::new(0).with_f64();
        let mut env = Driver::new(FailingEnv::new(ledger, FailAt::Reset(1), Failure::Nan));
        env.reset(None);
        assert!(env.observation::<f64>().iter().all(|x| x.is_nan()));
    }
}
