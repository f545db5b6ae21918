//! Observations of another shape: the same elements, or in another order.

use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey, Shape, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowMut};

use super::keys::Keys;
use super::relayout::{FillLeaf, ObservationLayout, Relayout, dimension, rearranged, reshaped};
use crate::{Attach, EnvError, EnvSpec, Transform};

/// Flattens the dimensions `first_dim` to `last_dim` of observations into one. Dimensions are those
/// of one environment's value, counted from the end where they are negative.
///
/// ```
/// use windrow_env::{FlattenObservation, Keys, Pendulum, Serial, UnsqueezeTransform, VecEnv};
///
/// let keys = Keys::of(["observation"]);
/// let envs = Serial::from_fn(2, Pendulum::v1)?
///     .transformed(UnsqueezeTransform::new(0, keys.clone()))?
///     .transformed(FlattenObservation::new(-2, -1, keys))?;
/// assert_eq!(envs.spec().observation.shape().as_slice(), [3]);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlattenObservation {
    /// First of the dimensions.
    pub first_dim: i64,
    /// Last of the dimensions.
    pub last_dim: i64,
    /// Observations that are flattened.
    #[serde(default = "Keys::pixels")]
    pub keys: Keys,
}

impl FlattenObservation {
    /// Flattens the observations `keys`.
    #[must_use]
    pub fn new(first_dim: i64, last_dim: i64, keys: Keys) -> Self {
        Self {
            first_dim,
            last_dim,
            keys,
        }
    }
}

impl Transform for FlattenObservation {
    type Bound = Relayout<Infallible>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        reshape(envs, &self.keys, &Keys::default(), |shape| {
            let ndim = shape.len().max(1);
            let first = dimension(self.first_dim, ndim)?;
            let last = dimension(self.last_dim, ndim).filter(|&last| last >= first)?;
            let flat = shape.get(first..=last).unwrap_or_default().iter().product();
            let before = shape.iter().take(first).copied();
            Some(
                before
                    .chain([flat])
                    .chain(shape.iter().skip(last + 1).copied())
                    .collect(),
            )
        })
    }
}

/// Adds a dimension of size one at `dim` of observations and actions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsqueezeTransform {
    /// Place of the dimension in the new shape of one environment's value; negative ones count from
    /// the end.
    pub dim: i64,
    /// Observations that are changed.
    #[serde(default)]
    pub keys: Keys,
    /// Actions that the policy gives with the dimension, and the environments take without: names
    /// in the environments, and outside.
    #[serde(default)]
    pub keys_inv: Keys,
}

impl UnsqueezeTransform {
    /// Adds a dimension to the observations `keys`.
    #[must_use]
    pub fn new(dim: i64, keys: Keys) -> Self {
        Self {
            dim,
            keys,
            keys_inv: Keys::default(),
        }
    }
}

impl Transform for UnsqueezeTransform {
    type Bound = Relayout<Infallible>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        reshape(envs, &self.keys, &self.keys_inv, |shape| {
            let mut new = shape.clone();
            new.insert(dimension(self.dim, shape.len() + 1)?, 1);
            Some(new)
        })
    }
}

/// Removes dimension `dim` of observations and actions where its size is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqueezeTransform {
    /// The dimension of one environment's value; negative ones count from the end.
    pub dim: i64,
    /// Observations that are changed.
    #[serde(default)]
    pub keys: Keys,
    /// Actions that the policy gives without the dimension, and the environments take with it:
    /// names in the environments, and outside.
    #[serde(default)]
    pub keys_inv: Keys,
}

impl SqueezeTransform {
    /// Removes a dimension of the observations `keys`.
    #[must_use]
    pub fn new(dim: i64, keys: Keys) -> Self {
        Self {
            dim,
            keys,
            keys_inv: Keys::default(),
        }
    }
}

impl Transform for SqueezeTransform {
    type Bound = Relayout<Infallible>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        reshape(envs, &self.keys, &self.keys_inv, |shape| {
            let dim = dimension(self.dim, shape.len().max(1))?;
            let mut new = shape.clone();
            if shape.get(dim) == Some(&1) {
                new.remove(dim);
            }
            Some(new)
        })
    }
}

/// Puts `keys` of observations and `keys_inv` of actions into the shape that `change` gives, with
/// the same elements in the same order.
fn reshape(
    envs: &mut Attach<'_>,
    keys: &Keys,
    keys_inv: &Keys,
    change: impl Fn(&Shape) -> Option<Shape>,
) -> Result<Relayout<Infallible>, EnvError> {
    let changed = |spec: &EnvSpec, key: &NestedKey, shape: &Shape| {
        let expected = "dimensions that it has";
        change(shape).ok_or_else(|| spec.unfit(key, expected, format!("the shape {shape:?}")))
    };
    let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
    for (from, to) in keys.iter() {
        let (i, leaf) = envs.observation(from)?;
        let shape = changed(envs.inner(), from, &leaf.shape)?;
        if let Some(spec) = layout.spec(from).cloned() {
            layout.put(to, reshaped(&spec, shape), Some(i));
        }
    }
    for (from, to) in keys_inv.iter() {
        let spec = action(envs.inner(), from)?;
        let shape = changed(envs.inner(), from, &spec.shape())?;
        rename_action(envs, from, to, |spec| reshaped(spec, shape.clone()))?;
    }
    layout.lay(envs, Vec::new(), |_, _| ())
}

/// The action `key` of environments.
fn action<'a>(spec: &'a EnvSpec, key: &NestedKey) -> Result<&'a crate::Spec, EnvError> {
    let leaves = spec.action.leaves("action");
    let names: Vec<_> = leaves.iter().map(|(key, _)| format!("{key:?}")).collect();
    match leaves.into_iter().find(|(name, _)| name == key) {
        Some((_, leaf)) => Ok(leaf),
        None => Err(spec.unfit(
            key,
            "an action",
            format!("the actions {}", names.join(", ")),
        )),
    }
}

/// Gives the action `from` another name, and the spec that `change` makes of its own.
pub(super) fn rename_action(
    envs: &mut Attach<'_>,
    from: &NestedKey,
    to: &NestedKey,
    change: impl Fn(&crate::Spec) -> crate::Spec,
) -> Result<(), EnvError> {
    action(envs.inner(), from)?;
    let was_bare = !matches!(envs.spec.action, crate::Spec::Composite(_));
    if was_bare && from == to {
        envs.spec.action = change(&envs.spec.action);
        return Ok(());
    }
    let inner = envs.spec.action_leaves().len();
    let mut layout = ObservationLayout::of(&envs.spec.action, "action");
    let leaf = layout.spec(from).map(&change);
    if let Some(leaf) = leaf {
        let place = layout.keys().iter().position(|key| key == from);
        layout.put(from, leaf, place);
        layout.rename(from, to);
    }
    if layout.keys().iter().filter(|key| key.overlaps(to)).count() > 1 {
        return Err(envs.inner().name_taken(to));
    }
    let Some(spec) = layout.into_spec_in_place(inner) else {
        return Err(envs.inner().unfit(
            from,
            "a new name that leaves the order of actions as it is",
            format!("{to:?}"),
        ));
    };
    envs.spec.action = spec;
    for (action, _) in &mut envs.spec.masks {
        if action == from {
            *action = to.clone();
        }
    }
    Ok(())
}

/// Permutes the last dimensions of observations.
///
/// ```
/// use windrow_env::{Keys, PermuteTransform};
///
/// // Height, width, channels become channels, height, width.
/// let permute = PermuteTransform::new([-1, -3, -2], Keys::of(["pixels"]));
/// # let _ = permute;
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermuteTransform {
    /// The dimensions in their new order: each of `-n..0` once.
    pub dims: Vec<i64>,
    /// Observations that are changed.
    #[serde(default)]
    pub keys: Keys,
}

impl PermuteTransform {
    /// Permutes dimensions of the observations `keys`.
    #[must_use]
    pub fn new(dims: impl Into<Vec<i64>>, keys: Keys) -> Self {
        Self {
            dims: dims.into(),
            keys,
        }
    }
}

impl Transform for PermuteTransform {
    type Bound = Relayout<Permuted>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
        let mut made = Vec::new();
        for (key, to) in self.keys.iter() {
            let (from, leaf) = envs.observation(key)?;
            let mut permuted = Permuted::new(from, &leaf, &self.dims).ok_or_else(|| {
                let expected = format!("dimensions that can be ordered as {:?}", self.dims);
                envs.inner()
                    .unfit(key, expected, format!("the shape {:?}", leaf.shape))
            })?;
            if let Some(spec) = layout.spec(key).cloned() {
                let mut sources = Vec::with_capacity(leaf.elements());
                permuted.each(|i| sources.push(i));
                let shape = std::mem::take(&mut permuted.shape);
                layout.put(
                    to,
                    rearranged(&spec, shape.clone(), sources.into_iter()),
                    None,
                );
                permuted.shape = shape;
            }
            made.push((permuted, to));
        }
        layout.lay(envs, made, |permuted, to| permuted.to = to)
    }
}

/// Copies the elements of a leaf in another order.
#[derive(Debug)]
pub struct Permuted {
    dtype: DType,
    from: usize,
    to: usize,
    /// The new shape.
    shape: Shape,
    /// Elements of the old leaf from one to the next along each new dimension.
    strides: Shape,
}

impl Permuted {
    fn new(from: usize, leaf: &LeafSpec, dims: &[i64]) -> Option<Self> {
        let ndim = leaf.shape.len();
        let lead = ndim.checked_sub(dims.len())?;
        let mut order: Vec<usize> = (0..lead).collect();
        for &dim in dims.iter() {
            order.push(dimension(dim, ndim).filter(|_| dim < 0)?);
        }
        let mut seen = order.clone();
        seen.sort_unstable();
        seen.dedup();
        let stride = |dim: usize| leaf.shape[dim + 1..].iter().product::<usize>();
        (seen.len() == ndim).then(|| Self {
            dtype: leaf.dtype,
            from,
            to: 0,
            shape: order.iter().map(|&dim| leaf.shape[dim]).collect(),
            strides: order.iter().map(|&dim| stride(dim)).collect(),
        })
    }

    /// Calls `visit` with the old place of each new element.
    #[inline(always)]
    fn each(&self, mut visit: impl FnMut(usize)) {
        let (Some(&len), Some(&stride)) = (self.shape.last(), self.strides.last()) else {
            return visit(0);
        };
        let outer = self.shape.len() - 1;
        for row in 0..self.shape[..outer].iter().product() {
            let (mut rest, mut start) = (row, 0);
            for dim in (0..outer).rev() {
                start += rest % self.shape[dim] * self.strides[dim];
                rest /= self.shape[dim];
            }
            (0..len).for_each(|i| visit(start + i * stride));
        }
    }
}

impl FillLeaf for Permuted {
    fn next(&mut self, _: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        for_dtype!(self.dtype, T => {
            let from = from.get(Key::<T>::new(self.from))?;
            let mut to = to.get_mut(Key::<T>::new(self.to))?.iter_mut();
            self.each(|i| {
                if let Some(to) = to.next() {
                    *to = from[i];
                }
            });
        });
        Ok(())
    }
}
