use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey, Shape, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowMut};

use super::relayout::{FillLeaf, ObservationLayout, Relayout, dimension};
use crate::number::Number;
use crate::{Attach, EnvError, Spec, SpecError, Transform, serde_form};

/// Concatenates several observations into one.
///
/// The result has the element type that all of them fit into, as PyTorch chooses it.
///
/// ```
/// use windrow_env::{CatTensors, Pendulum, RewardSum, Serial, VecEnv};
///
/// let envs = Serial::from_fn(2, Pendulum::v1)?
///     .transformed(RewardSum::new())?
///     .transformed(CatTensors::new(["observation", "episode_reward"]).named("all"))?;
/// let leaves = envs.spec().observation_leaves();
/// assert_eq!((leaves.len(), leaves[0].shape.as_slice()), (1, &[4][..]));
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CatTensors {
    /// The observations; `None` for all that have one dimension.
    #[serde(with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Name of the result.
    #[serde(with = "serde_form::key")]
    pub out_key: NestedKey,
    /// The dimension along which they are concatenated, of one environment's values; negative ones
    /// count from the end.
    pub dim: i64,
    /// Whether the concatenated observations are left out.
    pub del_keys: bool,
    /// Whether observations that lack the dimension get it, with size one.
    pub unsqueeze_if_oor: bool,
    /// Whether the observations are taken in the order of their names.
    pub sort: bool,
}

impl Default for CatTensors {
    fn default() -> Self {
        Self {
            in_keys: None,
            out_key: "observation_vector".into(),
            dim: -1,
            del_keys: true,
            unsqueeze_if_oor: false,
            sort: true,
        }
    }
}

impl CatTensors {
    /// Concatenates the observations `keys`, in the order of their names, as
    /// `"observation_vector"`.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = impl Into<NestedKey>>) -> Self {
        Self {
            in_keys: Some(keys.into_iter().map(Into::into).collect()),
            ..Self::default()
        }
    }

    /// The result is called `key`.
    #[must_use]
    pub fn named(mut self, key: impl Into<NestedKey>) -> Self {
        self.out_key = key.into();
        self
    }

    /// The names of the observations of `envs`, in order.
    fn names(&self, envs: &Attach<'_>) -> Vec<NestedKey> {
        let is_flat = |leaf: &LeafSpec| leaf.shape.len() == 1 && leaf.dtype != DType::Bytes;
        let flat = |leaf: LeafSpec| is_flat(&leaf).then_some(leaf.key);
        let is_named = self.in_keys.clone();
        let mut keys = is_named.unwrap_or_else(|| {
            let leaves = envs.inner().observation_leaves().into_iter();
            leaves.filter_map(flat).collect()
        });
        if self.sort || self.in_keys.is_none() {
            keys.sort_by_cached_key(|key| key.components().join("_-|-_"));
        }
        keys
    }

    /// The shape of a leaf, with the dimension that it is concatenated along.
    fn full_shape(&self, leaf: &LeafSpec) -> Shape {
        let mut shape = leaf.shape.clone();
        let lacks = match self.dim > 0 {
            true => self.dim.unsigned_abs() as usize >= shape.len(),
            false => (-self.dim - 1).unsigned_abs() as usize >= shape.len(),
        };
        if self.unsqueeze_if_oor && lacks {
            let at = if self.dim > 0 { shape.len() } else { 0 };
            shape.insert(at, 1);
        }
        shape
    }
}

impl Transform for CatTensors {
    type Bound = Relayout<Concatenated>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let keys = self.names(envs);
        let mut found = Vec::with_capacity(keys.len());
        for key in &keys {
            found.push(envs.observation(key)?);
        }
        let Some((_, first)) = found.first() else {
            return Err(SpecError::Argument {
                argument: "in_keys",
                of: envs.inner().id.clone(),
                expected: "observations of one dimension".to_owned(),
                got: "none".to_owned(),
            }
            .into());
        };
        let mut shape = self.full_shape(first);
        let unfit = |leaf: &LeafSpec, expected: String| {
            let got = format!("{} of shape {:?}", leaf.dtype, leaf.shape);
            envs.inner().unfit(&leaf.key, expected, got)
        };
        let Some(dim) = dimension(self.dim, shape.len()) else {
            return Err(unfit(first, format!("a dimension {}", self.dim)));
        };
        let (mut dtype, mut total) = (first.dtype, 0);
        for (_, leaf) in &found {
            let mut alike = self.full_shape(leaf);
            let own = alike.get(dim).copied().unwrap_or_default();
            shape[dim] = own;
            if alike != shape {
                let like = &first.key;
                return Err(unfit(
                    leaf,
                    format!("the shape of {like:?} but in dimension {dim}"),
                ));
            }
            alike[dim] = own;
            total += own;
            dtype = common(dtype, leaf.dtype)
                .ok_or_else(|| unfit(leaf, format!("a type that fits together with {dtype}")))?;
        }
        shape[dim] = total;
        let inner: usize = shape[dim + 1..].iter().product();
        let parts = found.iter().map(|(from, leaf)| {
            let chunk = self.full_shape(leaf)[dim] * inner;
            (leaf.dtype, *from, chunk)
        });
        let parts: Vec<_> = parts.collect();
        let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
        if self.del_keys {
            layout.retain(|key| *key == self.out_key || !keys.contains(key));
        }
        layout.put(&self.out_key, Spec::Unbounded { dtype, shape }, None);
        let largest = found.iter().map(|(_, leaf)| leaf.elements()).max();
        let made = Concatenated {
            dtype,
            parts,
            row: total * inner,
            to: 0,
            doubles: Vec::with_capacity(largest.expect("There is a first observation.")),
        };
        layout.lay(envs, vec![(made, &self.out_key)], |made, to| made.to = to)
    }
}

/// The element type that values of both fit into, as PyTorch promotes them; `None` where some do
/// not.
fn common(a: DType, b: DType) -> Option<DType> {
    let is_wide = |dtype| dtype == DType::I64;
    Some(match (a, b) {
        (a, b) if a == b => a,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        (DType::F32, _) | (_, DType::F32) => DType::F32,
        (DType::Bool, other) | (other, DType::Bool) => other,
        (DType::U8, DType::I8) | (DType::I8, DType::U8) => DType::I16,
        // Numbers pass through float64 where types differ, which holds no whole number beyond 2^53.
        (a, b) if is_wide(a) || is_wide(b) => return None,
        (a, b) if a.size() > b.size() => a,
        (_, b) => b,
    })
}

/// One leaf made of several.
#[derive(Debug)]
pub struct Concatenated {
    dtype: DType,
    /// Type and place of each leaf, and how many of its elements lie side by side.
    parts: Vec<(DType, usize, usize)>,
    /// Elements of all that lie side by side.
    row: usize,
    to: usize,
    /// Scratch for values of other types.
    doubles: Vec<f64>,
}

impl FillLeaf for Concatenated {
    fn next(&mut self, _: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        for_dtype!(self.dtype, T => self.concatenate::<T>(from, to.get_mut(Key::new(self.to))?))
    }
}

impl Concatenated {
    fn concatenate<T: Number>(&mut self, from: Row<'_>, to: &mut [T]) -> Result<(), EnvError> {
        let mut start = 0;
        for &(dtype, leaf, chunk) in &self.parts {
            let rows = to.chunks_exact_mut(self.row.max(1));
            let end = start + chunk;
            let places = rows.map(move |row| &mut row[start..end]);
            start = end;
            if dtype == T::DTYPE {
                let values = from.get(Key::<T>::new(leaf))?;
                for (place, values) in places.zip(values.chunks_exact(chunk.max(1))) {
                    place.copy_from_slice(values);
                }
                continue;
            }
            // Through doubles, so that code is generated for each type and not for each pair of
            // types.
            self.doubles.clear();
            for_dtype!(dtype, F => {
                let values = from.get(Key::<F>::new(leaf))?.iter();
                self.doubles.extend(values.map(|value| value.number()));
            });
            for (place, &value) in places.flatten().zip(&self.doubles) {
                *place = T::nearest(value);
            }
        }
        Ok(())
    }
}
