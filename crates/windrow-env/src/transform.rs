//! Transforms: values that describe a change, and their form when bound to given environments (ADR
//! 0010).

use std::fmt::Debug;

use tensordict::{DType, NestedKey};
use windrow_slab::{LeafSpec, Rows, RowsMut};

use crate::state::short_name;
use crate::{
    EnvError, EnvSpec, Gathering, Outcomes, Reset, Spec, SpecError, StateVisitor, VecEnv,
    VecEnvError,
};

/// A change of what environments observe, accept or earn, described by its arguments alone.
///
/// A transform is a value: it can be copied, compared and serialized, and belongs to no
/// environments. [`Transformed`](crate::Transformed) puts it around environments; then
/// [`attach`](Self::attach) checks the arguments against their spec, once, and returns the
/// [`BoundTransform`] that every step passes through.
///
/// ```
/// use windrow_env::{
///     Attach, BoundTransform, CartPole, EnvError, Observations, Outcomes, Reset, Serial, Transform, VecEnv, VecEnvError,
/// };
///
/// /// Rewards of the opposite sign.
/// #[derive(Debug, Clone, Copy)]
/// struct Costs;
///
/// impl Transform for Costs {
///     type Bound = Self;
///
///     fn attach(&self, _: &mut Attach<'_>) -> Result<Self, EnvError> {
///         Ok(Costs)
///     }
/// }
///
/// impl BoundTransform for Costs {
///     fn reset(&mut self, _: &[Reset], _: Observations<'_>) -> Result<(), VecEnvError> {
///         Ok(())
///     }
///
///     fn step(&mut self, _: Observations<'_>, outcomes: Outcomes<'_>) -> Result<(), VecEnvError> {
///         outcomes.reward.iter_mut().for_each(|reward| *reward = -*reward);
///         Ok(())
///     }
/// }
///
/// let envs = Serial::from_fn(2, CartPole::v1)?.transformed(Costs)?;
/// assert_eq!(envs.num_envs(), 2);
/// # Ok::<(), EnvError>(())
/// ```
///
/// # State
///
/// State that changes from step to step, such as counts, lives in the bound transform, one for each
/// vector of environments. State that workers share or a run saves, such as running statistics,
/// belongs to the transform: in a field that is a shared handle, which each bound transform clones.
pub trait Transform: Debug {
    /// The transform bound to some environments.
    type Bound: BoundTransform;

    /// Changes the spec of `envs` to the one seen from outside, and binds the transform. Checks
    /// arguments, and looks up names, element types and lengths, so that no step has to.
    ///
    /// # Errors
    /// An argument that does not fit the environments.
    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError>;
}

/// A transform bound to environments: a few calls at every step, which neither allocate nor look
/// anything up.
pub trait BoundTransform: Debug + Send {
    /// Writes the environments' actions for `actions`, which the policy chose. Only called after
    /// [`Attach::replace_actions`]; other columns of the policy are passed on in any case.
    ///
    /// # Errors
    /// [`EnvError::Action`] for the first action that the environments do not have.
    fn act(&mut self, _actions: Rows<'_>, _inner: RowsMut<'_>) -> Result<(), VecEnvError> {
        Err(EnvError::Unfilled { rows: "actions" }.of(0))
    }

    /// Changes the first observations of the environments that were just reset; rows of others stay
    /// as they are.
    ///
    /// # Errors
    /// The first environment whose observation cannot be transformed, and the reason.
    fn reset(&mut self, resets: &[Reset], obs: Observations<'_>) -> Result<(), VecEnvError>;

    /// Changes observations, rewards and flags after a step of all environments.
    ///
    /// # Errors
    /// As [`reset`](Self::reset).
    fn step(&mut self, obs: Observations<'_>, outcomes: Outcomes<'_>) -> Result<(), VecEnvError>;

    /// Resets the environments inside, before [`reset`](Self::reset). A transform that takes steps
    /// before the first observation is seen overrides this.
    ///
    /// # Errors
    /// Errors of the environments.
    #[inline(always)]
    fn reset_envs<V: VecEnv>(
        &mut self,
        envs: &mut V,
        resets: &[Reset],
        obs: RowsMut<'_>,
    ) -> Result<(), VecEnvError> {
        envs.reset(resets, obs)
    }

    /// Steps the environments inside, before [`step`](Self::step): once, or as often as one action
    /// lasts.
    ///
    /// # Errors
    /// Errors of the environments.
    #[inline(always)]
    fn step_envs<V: VecEnv>(
        &mut self,
        envs: &mut V,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        envs.step(actions, obs, outcomes)
    }

    /// Receives the columns that the environments inside find in `actions`, as [`VecEnv::bind`]
    /// does. Only a transform that chooses actions by itself needs them.
    ///
    /// # Errors
    /// No memory for rows of these columns.
    fn bind(&mut self, _columns: &[LeafSpec]) -> Result<(), EnvError> {
        Ok(())
    }

    /// Saves or loads what changes from step to step, see
    /// [`Env::visit_state`](crate::Env::visit_state). A transform without such a state returns
    /// `Ok(())`.
    ///
    /// # Errors
    /// [`EnvError::NotHeld`] where the state cannot be saved, which is the default;
    /// [`EnvError::State`] for a state that does not fit.
    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let _ = state;
        Err(EnvError::not_held(short_name::<Self>()))
    }

    /// The running statistics that it gathers and shares with others, which are the last in
    /// [`EnvSpec::statistics`].
    fn gathering(&mut self) -> Option<&mut Gathering> {
        None
    }
}

/// The observations that a [`BoundTransform`] changes.
#[derive(Debug)]
pub struct Observations<'a> {
    inner: Option<Rows<'a>>,
    /// Rows as seen from outside. The environments have written theirs into the first of the
    /// leaves, unless they have rows of their own.
    pub rows: RowsMut<'a>,
}

impl<'a> Observations<'a> {
    pub(crate) fn new(inner: Option<Rows<'a>>, rows: RowsMut<'a>) -> Self {
        Self { inner, rows }
    }

    /// The environments' own rows, and the rows seen from outside.
    ///
    /// # Errors
    /// [`EnvError::Unfilled`] where the transform did not ask for such rows by
    /// [`Attach::replace_observations`].
    #[inline(always)]
    pub fn apart(self) -> Result<(Rows<'a>, RowsMut<'a>), VecEnvError> {
        match self.inner {
            Some(inner) => Ok((inner, self.rows)),
            None => Err(EnvError::Unfilled {
                rows: "observations",
            }
            .of(0)),
        }
    }
}

/// The environments to which a transform is being attached.
#[derive(Debug)]
pub struct Attach<'a> {
    inner: &'a EnvSpec,
    num_envs: usize,
    step_apart: bool,
    /// The spec as seen from outside: at first that of the environments, for the transform to
    /// change.
    pub spec: EnvSpec,
    pub(crate) own_observations: bool,
    pub(crate) own_actions: bool,
}

impl<'a> Attach<'a> {
    pub(crate) fn new(envs: &'a impl VecEnv) -> Self {
        let inner = envs.spec();
        Self {
            inner,
            num_envs: envs.num_envs(),
            step_apart: envs.step_apart(),
            spec: inner.clone(),
            own_observations: false,
            own_actions: false,
        }
    }

    /// Spec of the environments inside.
    #[must_use]
    pub fn inner(&self) -> &'a EnvSpec {
        self.inner
    }

    /// Number of environments.
    #[must_use]
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Checks that each environment can be stepped without the others, for `transform`, which does
    /// so.
    ///
    /// # Errors
    /// [`SpecError::Argument`].
    pub fn apart(&self, transform: &str) -> Result<(), EnvError> {
        match self.step_apart {
            true => Ok(()),
            false => self.one_environment(transform),
        }
    }

    /// Checks that there is one environment only, for `transform`, which steps it by itself: others
    /// would take the same steps.
    ///
    /// # Errors
    /// [`SpecError::Argument`].
    pub fn one_environment(&self, transform: &str) -> Result<(), EnvError> {
        match self.num_envs {
            1 => Ok(()),
            several => Err(SpecError::Argument {
                argument: "environments",
                of: transform.to_owned(),
                expected: "one, which it steps by itself: put it around each of them".to_owned(),
                got: several.to_string(),
            }
            .into()),
        }
    }

    /// Adds the observation `leaf` behind all others, and returns its place among them. A bare
    /// observation becomes the named one it is delivered as.
    ///
    /// # Errors
    /// [`SpecError::NameTaken`](crate::SpecError::NameTaken).
    pub fn append(&mut self, key: &NestedKey, leaf: Spec) -> Result<usize, EnvError> {
        self.spec.append_observation(key, leaf)
    }

    /// Place and description of the environments' observation `key`, whose numbers the transform
    /// reads.
    ///
    /// # Errors
    /// [`SpecError::NoObservation`](crate::SpecError::NoObservation), and
    /// [`SpecError::Leaf`](crate::SpecError::Leaf) for one of bytes: transforms that only name or
    /// move it [find](EnvSpec::find_observation) it in the spec.
    pub fn observation(&self, key: &NestedKey) -> Result<(usize, LeafSpec), EnvError> {
        let (place, leaf) = self.inner.find_observation(key)?;
        match leaf.dtype {
            DType::Bytes => Err(self.inner.unfit(key, "numbers", DType::Bytes.name())),
            _ => Ok((place, leaf)),
        }
    }

    /// Gives the environments rows of their own for observations, so that the transform can write
    /// others of any layout from them: for element types, sizes or an order that change. Without it
    /// the environments write into the first leaves of the rows seen from outside, which costs no
    /// copy.
    pub fn replace_observations(&mut self) {
        self.own_observations = true;
    }

    /// Gives the environments rows of their own for actions, which [`BoundTransform::act`] writes.
    pub fn replace_actions(&mut self) {
        self.own_actions = true;
        self.spec.any_integers = false;
    }
}
