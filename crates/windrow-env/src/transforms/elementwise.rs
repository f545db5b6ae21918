//! Transforms that change real numbers of observations and rewards in place, element by element.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Sub};

use tensordict::{DType, Element, NestedKey};
use windrow_slab::{Key, LeafSpec, Rows, RowsMut};

use crate::{
    Attach, BoundTransform, EnvError, Gathering, Observations, Outcomes, Reset, Spec, SpecError,
    StateVisitor, VecEnvError,
};

/// `float32` or `float64`.
pub trait Real:
    Element
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// The nearest number of this type.
    fn of(number: f64) -> Self;

    /// The number, exactly.
    fn double(self) -> f64;

    /// Its square root.
    fn sqrt(self) -> Self;
}

macro_rules! real {
    ($($float:ty),*) => {$(
        impl Real for $float {
            #[inline(always)]
            fn of(number: f64) -> Self {
                number as $float
            }

            #[inline(always)]
            fn double(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                <$float>::sqrt(self)
            }
        }
    )*};
}

real!(f32, f64);

/// Runs code for the type of a `dtype`, `f32` or `f64`.
macro_rules! for_real {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            tensordict::DType::F64 => {
                type $T = f64;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}
pub(super) use for_real;

/// Numbers that a transform reads, and where their results go: to the same leaf or another.
#[derive(Debug, Clone)]
pub(super) struct TransformedColumn {
    /// Leaf that is read; `None` for the reward of the step.
    from: Option<usize>,
    /// Leaf that is written; `None` for the reward of the step.
    to: Option<usize>,
    pub(super) key: NestedKey,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) elements: usize,
    /// Whether it follows a step, so that there is none after a reset.
    is_reward: bool,
    /// Whether the reward of the step is the same in another element type.
    is_mirrored: bool,
}

/// The name of the reward of the step.
pub(super) fn reward() -> NestedKey {
    "reward".into()
}

/// The columns `in_keys`, whose results are observed as `out_keys`, or in their place. `spec` says
/// what the results are.
///
/// # Errors
/// An observation that is missing, or holds no `float32` or `float64`; a name that is taken; lists
/// of names of different lengths.
pub(super) fn columns(
    envs: &mut Attach<'_>,
    in_keys: &[NestedKey],
    out_keys: Option<&[NestedKey]>,
    spec: impl Fn(&LeafSpec) -> Spec,
) -> Result<Vec<TransformedColumn>, EnvError> {
    let pairs = paired(envs, in_keys, out_keys)?.into_iter();
    pairs
        .map(|(key, out)| column(envs, key, out, &spec))
        .collect()
}

/// Each of `in_keys` with the name of its result: that of `out_keys`, or its own.
///
/// # Errors
/// The lists differ in length.
pub(super) fn paired<'a>(
    envs: &Attach<'_>,
    in_keys: &'a [NestedKey],
    out_keys: Option<&'a [NestedKey]>,
) -> Result<Vec<(&'a NestedKey, &'a NestedKey)>, EnvError> {
    let out_keys = out_keys.unwrap_or(in_keys);
    if out_keys.len() == in_keys.len() {
        return Ok(in_keys.iter().zip(out_keys).collect());
    }
    Err(SpecError::Argument {
        argument: "out_keys",
        of: format!("a transform of {}", envs.inner().id),
        expected: format!("as many as in_keys, {}", in_keys.len()),
        got: out_keys.len().to_string(),
    }
    .into())
}

fn column(
    envs: &mut Attach<'_>,
    key: &NestedKey,
    out: &NestedKey,
    spec: impl Fn(&LeafSpec) -> Spec,
) -> Result<TransformedColumn, EnvError> {
    let of_step = *key == reward();
    let (from, leaf) = match envs.observation(key) {
        Err(_) if of_step => (None, LeafSpec::new(reward(), DType::F32, [1])),
        found => found.map(|(from, leaf)| (Some(from), leaf))?,
    };
    if !matches!(leaf.dtype, DType::F32 | DType::F64) {
        let got = leaf.dtype.name();
        return Err(envs.inner().unfit(&leaf.key, "float32 or float64", got));
    }
    let is_reward = of_step || envs.inner().rewards.contains(key);
    let to = if out != key {
        let to = envs.append(out, spec(&leaf))?;
        if is_reward {
            envs.spec.rewards.push(out.clone());
        }
        Some(to)
    } else {
        if let Some(place) = from.and_then(|from| envs.spec.observation.leaf_mut(from)) {
            *place = spec(&leaf);
        }
        from
    };
    Ok(TransformedColumn {
        from,
        to,
        key: key.clone(),
        dtype: leaf.dtype,
        shape: leaf.shape.to_vec(),
        elements: leaf.elements(),
        is_reward,
        is_mirrored: of_step && out == key && from.is_some(),
    })
}

/// An operation on the numbers of columns.
pub trait ElementwiseOp: Debug + Send {
    /// Changes rows of column `column`: those of all environments, or the one of environment `env`,
    /// which begins an episode.
    ///
    /// # Errors
    /// The numbers cannot be changed.
    fn change<T: Real>(
        &mut self,
        column: usize,
        env: usize,
        values: &mut [T],
    ) -> Result<(), EnvError>;

    /// Runs `change`, which changes the columns of a step or a reset.
    fn within<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R
    where
        Self: Sized,
    {
        change(self)
    }

    /// As [`Effect::gathering`].
    fn gathering(&mut self) -> Option<&mut Gathering> {
        None
    }

    /// Saves or loads what changes from step to step: by default nothing does.
    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

/// A bound transform that applies an operation to columns, step by step.
#[derive(Debug)]
pub struct Elementwise<K> {
    columns: Vec<TransformedColumn>,
    /// Leaves of actions, with the names of those that are changed before environments take them.
    actions: Vec<(DType, bool)>,
    kernel: K,
}

impl<K: ElementwiseOp> Elementwise<K> {
    pub(super) fn new(columns: Vec<TransformedColumn>, kernel: K) -> Self {
        Self {
            columns,
            actions: Vec::new(),
            kernel,
        }
    }

    /// Changes the actions `keys`, too, before environments take them.
    ///
    /// # Errors
    /// An action that is missing, or holds no `float32` or `float64`.
    pub(super) fn with_actions(
        mut self,
        envs: &mut Attach<'_>,
        keys: &[NestedKey],
    ) -> Result<Self, EnvError> {
        if keys.is_empty() {
            return Ok(self);
        }
        let leaves = envs.inner().action_leaves();
        for key in keys {
            let found = leaves.iter().find(|leaf| leaf.key == *key);
            let got = found.map_or("no such action", |leaf| leaf.dtype.name());
            if !matches!(found, Some(leaf) if matches!(leaf.dtype, DType::F32 | DType::F64)) {
                return Err(envs
                    .inner()
                    .unfit(key, "an action of float32 or float64", got));
            }
        }
        envs.replace_actions();
        let chosen = leaves
            .iter()
            .map(|leaf| (leaf.dtype, keys.contains(&leaf.key)));
        self.actions = chosen.collect();
        Ok(self)
    }

    fn act_on<T: Element>(
        &self,
        leaf: usize,
        from: Rows<'_>,
        to: &mut RowsMut<'_>,
    ) -> Result<(), EnvError> {
        let key = Key::<T>::new(leaf);
        to.get_mut(key)?.copy_from_slice(from.get(key)?);
        Ok(())
    }

    /// Changes whole columns: after a step, whose `rewards` are given, or where all environments
    /// begin an episode.
    fn all(
        columns: &[TransformedColumn],
        kernel: &mut K,
        rows: &mut RowsMut<'_>,
        rewards: Option<&mut [f32]>,
    ) -> Result<(), EnvError> {
        let (is_step, rewards) = (rewards.is_some(), rewards.unwrap_or_default());
        for (i, column) in columns
            .iter()
            .enumerate()
            .filter(|(_, c)| is_step || !c.is_reward)
        {
            match (column.from, column.to) {
                (None, None) => kernel.change::<f32>(i, 0, rewards)?,
                (None, Some(to)) => {
                    let to = rows.get_mut(Key::<f32>::new(to))?;
                    to.copy_from_slice(rewards);
                    kernel.change(i, 0, to)?;
                }
                (Some(from), to) => for_real!(column.dtype, T => {
                    let to = to.unwrap_or(from);
                    copy_column::<T>(rows, from, to)?;
                    let values = rows.get_mut(Key::<T>::new(to))?;
                    kernel.change(i, 0, values)?;
                    if column.is_mirrored {
                        for (reward, value) in rewards.iter_mut().zip(values) {
                            *reward = value.double() as f32;
                        }
                    }
                }),
            }
        }
        Ok(())
    }

    /// Changes the rows of some environments.
    fn some(
        columns: &[TransformedColumn],
        kernel: &mut K,
        rows: &mut RowsMut<'_>,
        resets: &[Reset],
    ) -> Result<(), VecEnvError> {
        for (i, column) in columns.iter().enumerate().filter(|(_, c)| !c.is_reward) {
            let (Some(from), Some(to)) = (column.from, column.to) else {
                continue;
            };
            for &Reset { env, .. } in resets {
                // An environment that does not exist was reported by the inner ones.
                let Some(mut row) = rows.env_mut(env) else {
                    continue;
                };
                let changed = for_real!(column.dtype, T => (|| {
                    for at in 0..if from == to { 0 } else { column.elements } {
                        let value = row.as_row().get(Key::<T>::new(from))?[at];
                        row.get_mut(Key::<T>::new(to))?[at] = value;
                    }
                    kernel.change(i, env, row.get_mut(Key::<T>::new(to))?)
                })());
                changed.map_err(|error: EnvError| error.of(env))?;
            }
        }
        Ok(())
    }
}

/// Copies the numbers of one leaf to another.
pub(super) fn copy_column<T: Element + Default>(
    rows: &mut RowsMut<'_>,
    from: usize,
    to: usize,
) -> Result<(), EnvError> {
    if from == to {
        return Ok(());
    }
    // Rows lend one leaf at a time.
    let mut lent = [T::default(); 64];
    let total = rows.as_rows().get(Key::<T>::new(from))?.len();
    for begin in (0..total).step_by(lent.len()) {
        let some = begin..total.min(begin + lent.len());
        let lent = &mut lent[..some.len()];
        lent.copy_from_slice(&rows.as_rows().get(Key::<T>::new(from))?[some.clone()]);
        rows.get_mut(Key::<T>::new(to))?[some].copy_from_slice(lent);
    }
    Ok(())
}

impl<K: ElementwiseOp> BoundTransform for Elementwise<K> {
    fn act(&mut self, actions: Rows<'_>, mut inner: RowsMut<'_>) -> Result<(), VecEnvError> {
        for (i, &(dtype, is_changed)) in self.actions.iter().enumerate() {
            let copied =
                tensordict::for_dtype!(dtype, T => self.act_on::<T>(i, actions, &mut inner));
            copied.map_err(|error| error.of(0))?;
            if is_changed {
                let changed = for_real!(dtype, T => inner
                    .get_mut(Key::<T>::new(i))
                    .map_err(EnvError::from)
                    .and_then(|values| self.kernel.change(0, 0, values)));
                changed.map_err(|error| error.of(0))?;
            }
        }
        Ok(())
    }

    fn reset(&mut self, resets: &[Reset], mut obs: Observations<'_>) -> Result<(), VecEnvError> {
        let (columns, rows) = (&self.columns, &mut obs.rows);
        self.kernel
            .within(|kernel| match resets.len() == rows.envs() {
                true => Self::all(columns, kernel, rows, None).map_err(|error| error.of(0)),
                false => Self::some(columns, kernel, rows, resets),
            })
    }

    #[inline]
    fn step(
        &mut self,
        mut obs: Observations<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        let (columns, rows) = (&self.columns, &mut obs.rows);
        let change = |kernel: &mut K| Self::all(columns, kernel, rows, Some(outcomes.reward));
        self.kernel.within(change).map_err(|error| error.of(0))
    }

    fn gathering(&mut self) -> Option<&mut Gathering> {
        self.kernel.gathering()
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.kernel.visit_state(state)
    }
}
