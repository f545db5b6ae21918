//! Environments with a transform around them: the only place that forwards calls (ADR 0010).

use windrow_slab::{LeafSpec, RowBlock, Rows, RowsMut};

use crate::state::short_name;
use crate::transform::{Attach, BoundTransform, Observations, Transform};
use crate::{EnvError, EnvSpec, Gathering, Outcomes, Reset, StateVisitor, VecEnv, VecEnvError};

/// Environments with a [`Transform`] around them.
///
/// Everything that the transform does not change is forwarded to the environments. Several
/// transforms nest; only those that replace observations or actions copy rows.
///
/// ```
/// use windrow_env::{CartPole, RewardSum, Serial, StepCounter, VecEnv};
///
/// let envs = Serial::from_fn(8, CartPole::v1)?
///     .transformed(StepCounter::new().with_max_steps(200))?
///     .transformed(RewardSum::new())?;
/// assert_eq!(envs.spec().max_episode_steps, Some(200));
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
pub struct Transformed<V, T: Transform> {
    envs: V,
    spec: EnvSpec,
    effect: T::Bound,
    /// The environments' own rows, if there are any. Boxed, since most transforms have none.
    own: Option<Box<Own>>,
}

/// Rows of the environments' own.
#[derive(Debug)]
struct Own {
    /// Rows that the environments write, where these are not the ones seen from outside.
    observations: Option<RowBlock>,
    actions: Option<Actions>,
}

/// Actions as the environments take them.
#[derive(Debug)]
struct Actions {
    rows: RowBlock,
    /// The policy's columns other than actions, which follow the actions: in these rows from leaf
    /// `first` on, in the policy's from `first_outside` on.
    extras: Vec<LeafSpec>,
    first: usize,
    first_outside: usize,
}

impl<V: VecEnv, T: Transform> Transformed<V, T> {
    /// `envs` with `transform` around them.
    ///
    /// # Errors
    /// The error of [`Transform::attach`]; [`EnvError::Row`] when there is no memory for the
    /// environments' own rows.
    pub fn new(envs: V, transform: &T) -> Result<Self, EnvError> {
        let mut attach = Attach::new(&envs);
        let effect = transform.attach(&mut attach)?;
        let (spec, own) = attached(attach)?;
        Ok(Self {
            own,
            envs,
            spec,
            effect,
        })
    }

    /// The environments without the transform.
    pub fn into_inner(self) -> V {
        self.envs
    }
}

/// What an attached transform makes of the spec, and the environments' own rows: the same code for
/// all transforms.
fn attached(attach: Attach<'_>) -> Result<(EnvSpec, Option<Box<Own>>), EnvError> {
    let (inner, num_envs) = (attach.inner(), attach.num_envs());
    let (own_observations, own_actions) = (attach.own_observations, attach.own_actions);
    let spec = attach.spec;
    if !own_observations {
        check_places(inner, &spec)?;
    }
    let observations = match own_observations {
        true => Some(RowBlock::new(&inner.observation_leaves(), num_envs)?),
        false => None,
    };
    let actions = match own_actions {
        true => Some(Actions::new(inner, &spec, num_envs)?),
        false => None,
    };
    let own = Own {
        observations,
        actions,
    };
    let own = (own_observations || own_actions).then(|| Box::new(own));
    Ok((spec, own))
}

/// Whether environments with the leaves `inner` can write into the first leaves of `outside`.
fn check_places(inner: &EnvSpec, outside: &EnvSpec) -> Result<(), EnvError> {
    let (written, seen) = (inner.observation_leaves(), outside.observation_leaves());
    for (i, leaf) in written.iter().enumerate() {
        let place = seen.get(i);
        let fits =
            |place: &&LeafSpec| (place.dtype, place.elements()) == (leaf.dtype, leaf.elements());
        if place.filter(fits).is_none() {
            let (elements, dtype) = (leaf.elements(), leaf.dtype);
            let expected = format!("{elements} elements of {dtype} in place {i}");
            let got = place.map_or_else(
                || "no such place".to_owned(),
                |place| format!("{} of {}", place.elements(), place.dtype),
            );
            return Err(outside.unfit(&leaf.key, expected, got));
        }
    }
    Ok(())
}

impl Actions {
    fn new(inner: &EnvSpec, outside: &EnvSpec, num_envs: usize) -> Result<Self, EnvError> {
        let leaves = inner.action_leaves();
        Ok(Self {
            rows: RowBlock::new(&leaves, num_envs)?,
            extras: Vec::new(),
            first: leaves.len(),
            first_outside: outside.action_leaves().len(),
        })
    }

    /// Makes room for the `columns` of the policy that are not actions. Returns the columns that
    /// the environments see.
    fn bind(
        &mut self,
        inner: &EnvSpec,
        columns: &[LeafSpec],
        num_envs: usize,
    ) -> Result<Vec<LeafSpec>, EnvError> {
        self.extras = columns
            .get(self.first_outside..)
            .unwrap_or_default()
            .to_vec();
        let mut told = inner.action_leaves();
        told.extend_from_slice(&self.extras);
        self.rows = RowBlock::new(&told, num_envs)?;
        Ok(told)
    }

    fn copy_extras(&mut self, from: Rows<'_>) -> Result<(), EnvError> {
        let mut to = self.rows.rows_mut();
        for i in 0..self.extras.len() {
            let (theirs, ours) = (self.first_outside + i, self.first + i);
            to.copy_leaf(ours, from, theirs)?;
        }
        Ok(())
    }
}

impl<V: VecEnv, T: Transform> VecEnv for Transformed<V, T> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        match self.own.as_mut().and_then(|own| own.actions.as_mut()) {
            None => {
                self.effect.bind(columns)?;
                self.envs.bind(columns)
            }
            Some(actions) => {
                let told = actions.bind(self.envs.spec(), columns, self.envs.num_envs())?;
                self.effect.bind(&told)?;
                self.envs.bind(&told)
            }
        }
    }

    fn panicked_at(&self) -> Option<usize> {
        self.envs.panicked_at()
    }

    fn gatherings(&mut self) -> Vec<&mut Gathering> {
        let mut gatherings = self.envs.gatherings();
        gatherings.extend(self.effect.gathering());
        gatherings
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.envs.visit_state(state)?;
        state.section(short_name::<T>())?;
        self.effect.visit_state(state)
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        let observations = self.own.as_mut().and_then(|own| own.observations.as_mut());
        let (envs, effect) = (&mut self.envs, &mut self.effect);
        let inner = match observations {
            None => {
                effect.reset_envs(envs, resets, obs.reborrow())?;
                None
            }
            Some(own) => {
                effect.reset_envs(envs, resets, own.rows_mut())?;
                Some(own.rows())
            }
        };
        self.effect.reset(resets, Observations::new(inner, obs))
    }

    #[inline(always)]
    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        if let Some(own) = &mut self.own {
            return own.step(&mut self.envs, &mut self.effect, actions, obs, outcomes);
        }
        self.effect
            .step_envs(&mut self.envs, actions, obs.reborrow(), outcomes.reborrow())?;
        self.effect.step(Observations::new(None, obs), outcomes)
    }
}

impl Own {
    /// A step of environments that read or write these rows.
    fn step(
        &mut self,
        envs: &mut impl VecEnv,
        effect: &mut impl BoundTransform,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        let actions = match &mut self.actions {
            None => actions,
            Some(own) => {
                own.copy_extras(actions).map_err(|error| error.of(0))?;
                effect.act(actions, own.rows.rows_mut())?;
                own.rows.rows()
            }
        };
        let inner = match &mut self.observations {
            None => {
                effect.step_envs(envs, actions, obs.reborrow(), outcomes.reborrow())?;
                None
            }
            Some(own) => {
                effect.step_envs(envs, actions, own.rows_mut(), outcomes.reborrow())?;
                Some(own.rows())
            }
        };
        effect.step(Observations::new(inner, obs), outcomes)
    }
}

impl<V: std::fmt::Debug, T: Transform> std::fmt::Debug for Transformed<V, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transformed")
            .field("envs", &self.envs)
            .field("spec", &self.spec)
            .field("effect", &self.effect)
            .finish_non_exhaustive()
    }
}
