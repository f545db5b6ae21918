//! Sources of environments: constructors, closures, ids and recipes.

use crate::{Env, EnvError, EnvRecipe, Serial, Transform, Transformed, VecEnv, make_vec};

/// Makes environments, as many as one worker steps in lockstep.
///
/// Implemented for functions and closures that return something [`IntoVecEnv`], for ids of the
/// [installed](crate::EnvRegistry::installed) registry, and for an [`EnvRecipe`]:
///
/// ```
/// use windrow_env::{CartPole, EnvFactory, Serial};
///
/// assert_eq!(CartPole::v1.build(4)?.num_envs(), 4);
/// assert_eq!("CartPole-v1".build(4)?.num_envs(), 4);
/// let pair = || Serial::from_fn(2, CartPole::v1);
/// assert_eq!(pair.build(1)?.num_envs(), 2);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
pub trait EnvFactory {
    /// `num_envs` environments as one.
    ///
    /// # Errors
    /// The error of a constructor; [`EnvError::Empty`] when `num_envs` is 0,
    /// [`EnvError::AlreadyVector`] when the factory makes vectors of environments itself and
    /// `num_envs` is not 1.
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError>;

    /// The factory as a value that can be serialized; `None` for code, such as closures.
    fn recipe(&self) -> Option<EnvRecipe> {
        None
    }
}

impl<F, R> EnvFactory for F
where
    F: Fn() -> R,
    R: IntoVecEnv,
{
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        R::join(many(num_envs, self)?)
    }
}

impl EnvFactory for &str {
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        make_vec(self, num_envs)
    }

    fn recipe(&self) -> Option<EnvRecipe> {
        Some(EnvRecipe::of(*self))
    }
}

impl EnvFactory for String {
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        make_vec(self, num_envs)
    }

    fn recipe(&self) -> Option<EnvRecipe> {
        Some(EnvRecipe::of(self))
    }
}

/// Return types of closures that are an [`EnvFactory`]: an environment, a vector of them, or a
/// `Result` of either.
///
/// For your own [`VecEnv`], implement this trait by a call of [`sole`].
pub trait IntoVecEnv: Sized {
    /// Several of them as one vector of environments.
    ///
    /// # Errors
    /// The error of a copy that is a `Result`; [`EnvError::Empty`] without copies,
    /// [`EnvError::AlreadyVector`] for several copies of a vector.
    fn join(copies: Vec<Self>) -> Result<Box<dyn VecEnv>, EnvError>;
}

impl<E: Env + 'static> IntoVecEnv for E {
    fn join(copies: Vec<Self>) -> Result<Box<dyn VecEnv>, EnvError> {
        Ok(Box::new(Serial::new(copies)?))
    }
}

impl<E: Env + 'static> IntoVecEnv for Serial<E> {
    fn join(copies: Vec<Self>) -> Result<Box<dyn VecEnv>, EnvError> {
        Ok(Box::new(sole(copies)?))
    }
}

impl<V: VecEnv + 'static, T: Transform + 'static> IntoVecEnv for Transformed<V, T> {
    fn join(copies: Vec<Self>) -> Result<Box<dyn VecEnv>, EnvError> {
        Ok(Box::new(sole(copies)?))
    }
}

impl IntoVecEnv for Box<dyn VecEnv> {
    fn join(copies: Vec<Self>) -> Result<Box<dyn VecEnv>, EnvError> {
        sole(copies)
    }
}

impl<T: IntoVecEnv> IntoVecEnv for Result<T, EnvError> {
    fn join(copies: Vec<Self>) -> Result<Box<dyn VecEnv>, EnvError> {
        T::join(copies.into_iter().collect::<Result<_, _>>()?)
    }
}

/// The results of `num_envs` calls of `make`.
///
/// # Errors
/// [`EnvError::NoMemory`].
pub(crate) fn many<T>(num_envs: usize, make: impl FnMut() -> T) -> Result<Vec<T>, EnvError> {
    let mut made = Vec::new();
    made.try_reserve_exact(num_envs)
        .map_err(|_| EnvError::NoMemory { num_envs })?;
    made.extend(std::iter::repeat_with(make).take(num_envs));
    Ok(made)
}

/// The only copy of a vector of environments.
///
/// # Errors
/// [`EnvError::Empty`] or [`EnvError::AlreadyVector`] when there is not exactly one;
/// [`EnvError::Empty`] for a vector of no environments.
pub fn sole<V: VecEnv>(copies: Vec<V>) -> Result<V, EnvError> {
    let asked = copies.len();
    let mut copies = copies.into_iter();
    match (copies.next(), copies.next()) {
        (Some(only), None) if only.num_envs() > 0 => Ok(only),
        (None, _) | (Some(_), None) => Err(EnvError::Empty),
        (Some(first), Some(_)) => Err(EnvError::AlreadyVector {
            envs: first.num_envs(),
            asked,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CartPole, FiniteCheck, InitTracker, RewardSum, StepCounter, TimeLimit, make};

    fn build(factory: &impl EnvFactory, num_envs: usize) -> Result<usize, String> {
        let envs = factory.build(num_envs).map_err(|error| error.to_string())?;
        assert_eq!(envs.spec().id, "CartPole-v1");
        Ok(envs.num_envs())
    }

    #[test]
    fn environments_are_multiplied() {
        assert_eq!(build(&CartPole::v1, 3), Ok(3));
        assert_eq!(build(&"CartPole-v1", 3), Ok(3));
        assert_eq!(build(&String::from("CartPole-v1"), 3), Ok(3));
        assert_eq!(build(&|| TimeLimit::new(CartPole::new(), 9), 3), Ok(3));
        assert_eq!(build(&|| make("CartPole-v1"), 3), Ok(3));
    }

    #[test]
    fn vectors_stand_for_themselves() {
        let pair = || Serial::from_fn(2, CartPole::v1);
        let counted = || pair()?.transformed(StepCounter::new());
        let named = || make_vec("CartPole-v1", 2);
        assert_eq!(
            [build(&pair, 1), build(&counted, 1), build(&named, 1)],
            [Ok(2), Ok(2), Ok(2)]
        );
        let summed = || pair()?.transformed(RewardSum::new());
        let tracked = || summed()?.transformed(InitTracker::new());
        let checked = || tracked()?.transformed(FiniteCheck {});
        assert_eq!(
            [build(&summed, 1), build(&tracked, 1), build(&checked, 1)],
            [Ok(2), Ok(2), Ok(2)]
        );
        let refused = "already a vector of 2 environments, asked for 3 of them; leave num_envs out";
        for got in [build(&pair, 3), build(&counted, 3), build(&named, 3)] {
            assert_eq!(got, Err(refused.to_owned()));
        }
    }

    #[test]
    fn errors_of_the_factory_come_through() {
        let got = build(&|| TimeLimit::new(CartPole::new(), 0), 2);
        assert!(
            got.unwrap_err()
                .starts_with("max_episode_steps of CartPole-v1")
        );
        assert!(
            build(&"Tetris", 2)
                .unwrap_err()
                .starts_with("no environment is called")
        );
        let many = "no memory for 18446744073709551615 environments";
        assert_eq!(build(&CartPole::v1, usize::MAX), Err(many.to_owned()));
        assert_eq!(build(&"CartPole-v1", usize::MAX), Err(many.to_owned()));
        let none = "a vector of environments needs at least one, got none";
        assert_eq!(build(&CartPole::v1, 0), Err(none.to_owned()));
        assert_eq!(
            build(&|| make_vec("CartPole-v1", 2), 0),
            Err(none.to_owned())
        );
    }
}
