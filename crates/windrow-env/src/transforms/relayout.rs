//! Transforms that change the layout of observations: leaves are renamed, reshaped, left out or
//! made from others.

use std::convert::Infallible;
use std::fmt::Debug;

use tensordict::{DType, NestedKey, Shape};
use windrow_slab::{LeafSpec, Row, RowMut};

use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, Spec, SpecError, StateVisitor,
    VecEnvError,
};

/// The leaves of a spec as a list, for a transform to change by name.
#[derive(Debug)]
pub(super) struct ObservationLayout {
    entries: Vec<ObservedLeaf>,
}

/// One leaf as it is seen from outside.
#[derive(Debug)]
struct ObservedLeaf {
    key: NestedKey,
    spec: Spec,
    /// The environments' leaf that this is a copy of, element by element; `None` for one that is
    /// made.
    from: Option<usize>,
}

/// A leaf of the environments that is copied: its place, and the place that it is copied to.
type Copied = (usize, usize);

impl ObservationLayout {
    /// The leaves of `spec`; a bare one is called `bare`.
    pub(super) fn of(spec: &Spec, bare: &str) -> Self {
        let leaves = spec.leaves(bare).into_iter().enumerate();
        let entries = leaves.map(|(i, (key, leaf))| ObservedLeaf {
            key,
            spec: leaf.clone(),
            from: Some(i),
        });
        Self {
            entries: entries.collect(),
        }
    }

    /// Names of the leaves.
    pub(super) fn keys(&self) -> Vec<NestedKey> {
        self.entries.iter().map(|entry| entry.key.clone()).collect()
    }

    /// The spec of leaf `key`.
    pub(super) fn spec(&self, key: &NestedKey) -> Option<&Spec> {
        let found = self.entries.iter().find(|entry| entry.key == *key);
        found.map(|entry| &entry.spec)
    }

    /// Replaces leaf `key`, or adds it behind all others. `from` is the environments' leaf that it
    /// copies, whatever its shape; `None` if the leaf is made.
    pub(super) fn put(&mut self, key: &NestedKey, spec: Spec, from: Option<usize>) {
        let new = ObservedLeaf {
            key: key.clone(),
            spec,
            from,
        };
        match self.entries.iter_mut().find(|entry| entry.key == *key) {
            Some(entry) => *entry = new,
            None => self.entries.push(new),
        }
    }

    /// Renames leaf `old`, if there is one.
    pub(super) fn rename(&mut self, old: &NestedKey, new: &NestedKey) {
        for entry in self.entries.iter_mut().filter(|entry| entry.key == *old) {
            entry.key = new.clone();
        }
    }

    /// Leaves out all leaves that are not `kept`.
    pub(super) fn retain(&mut self, mut kept: impl FnMut(&NestedKey) -> bool) {
        self.entries.retain(|entry| kept(&entry.key));
    }

    /// The leaves as a spec, and those that are copied. `None` instead of the copies if each leaf
    /// of the environments has kept its index, so that environments can write it in place.
    fn into_spec(self, inner: usize) -> (Spec, Option<Vec<Copied>>) {
        let mut tree = Vec::new();
        for entry in &self.entries {
            push(&mut tree, entry.key.components(), &entry.spec);
        }
        let spec = Spec::Composite(tree);
        let places: Vec<_> = spec.leaves("").into_iter().map(|(key, _)| key).collect();
        let copies = self.entries.iter().filter_map(|entry| {
            let to = places.iter().position(|key| *key == entry.key)?;
            Some((entry.from?, to))
        });
        let copies: Vec<Copied> = copies.collect();
        let in_place = copies.len() == inner
            && self.entries.len() == inner
            && copies.iter().all(|&(from, to)| from == to);
        (spec, (!in_place).then_some(copies))
    }

    /// The leaves as a spec, if each of the `inner` ones has kept its index.
    pub(super) fn into_spec_in_place(self, inner: usize) -> Option<Spec> {
        let (spec, copies) = self.into_spec(inner);
        copies.is_none().then_some(spec)
    }

    /// Makes these the observations of `envs`. Each of `made` fills the leaf of the name beside it,
    /// whose index `put` stores in it; the others are copied.
    ///
    /// # Errors
    /// [`SpecError::NameTaken`] where two leaves, or a leaf and something else in a frame, have the
    /// same name; [`SpecError::Argument`] where none is left.
    pub(super) fn lay<M: FillLeaf>(
        self,
        envs: &mut Attach<'_>,
        made: Vec<(M, &NestedKey)>,
        put: impl Fn(&mut M, usize),
    ) -> Result<Relayout<M>, EnvError> {
        let inner = envs.inner().observation_leaves();
        for (i, entry) in self.entries.iter().enumerate() {
            let mut before = self.entries[..i].iter();
            if before.any(|other| other.key.overlaps(&entry.key)) {
                return Err(envs.inner().name_taken(&entry.key));
            }
            if inner.iter().all(|leaf| leaf.key != entry.key) {
                envs.inner().check_free(&entry.key)?;
            }
        }
        if self.entries.is_empty() {
            return Err(SpecError::Argument {
                argument: "observations",
                of: envs.inner().id.clone(),
                expected: "one at least to be left".to_owned(),
                got: "none".to_owned(),
            }
            .into());
        }
        let was_bare = !matches!(envs.spec.observation, Spec::Composite(_));
        let (spec, copies) = self.into_spec(inner.len());
        envs.spec.observation = match spec {
            Spec::Composite(mut tree)
                if was_bare && matches!(&*tree, [(name, _)] if name == "observation") =>
            {
                tree.remove(0).1
            }
            spec => spec,
        };
        keep_lists(envs);
        if copies.is_some() {
            envs.replace_observations();
        }
        let mut makes = Vec::with_capacity(made.len());
        for (mut make, key) in made {
            put(&mut make, envs.spec.find_observation(key)?.0);
            makes.push(make);
        }
        Ok(Relayout { copies, makes })
    }
}

/// Adds `leaf` under its names.
fn push<N: AsRef<str>>(entries: &mut Vec<(String, Spec)>, names: &[N], leaf: &Spec) {
    let [name, below @ ..] = names else {
        unreachable!("A key has one name at least.");
    };
    let name = name.as_ref();
    if below.is_empty() {
        return entries.push((name.to_owned(), leaf.clone()));
    }
    let at = entries.iter().position(|(entry, _)| entry == name);
    let at = at.unwrap_or_else(|| {
        entries.push((name.to_owned(), Spec::Composite(Vec::new())));
        entries.len() - 1
    });
    if let Spec::Composite(inner) = &mut entries[at].1 {
        push(inner, below, leaf);
    }
}

/// Removes entries that are no longer observed from the other parts of the spec.
fn keep_lists(envs: &mut Attach<'_>) {
    let spec = &mut envs.spec;
    let leaves = spec.observation_leaves();
    let is_there = |key: &NestedKey| leaves.iter().any(|leaf| leaf.key == *key);
    spec.rewards.retain(is_there);
    spec.states.retain(is_there);
    spec.flags.retain(is_there);
    spec.info.retain(is_there);
    spec.masks.retain(|(_, mask)| is_there(mask));
    spec.examples.retain(|(key, _)| is_there(key));
    let all: Vec<LeafSpec> = leaves.into_iter().chain(spec.action_leaves()).collect();
    spec.groups.retain(|(group, dims)| {
        let mut below = all.iter().filter(|leaf| group.overlaps(&leaf.key));
        let has_dims = |leaf: &LeafSpec| leaf.shape.starts_with(dims);
        below.clone().next().is_some() && below.all(has_dims)
    });
}

/// Makes one leaf from the environments' rows.
pub trait FillLeaf: Debug + Send {
    /// After a reset of environment `env`.
    fn first(&mut self, env: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        self.next(env, from, to)
    }

    /// After a step of environment `env`.
    fn next(&mut self, env: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError>;

    /// Saves or loads what changes from step to step: by default nothing does.
    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

/// For transforms that only copy.
impl FillLeaf for Infallible {
    fn next(&mut self, _: usize, _: Row<'_>, _: &mut RowMut<'_>) -> Result<(), EnvError> {
        match *self {}
    }
}

/// Copies some leaves to other places and makes others.
#[derive(Debug)]
pub struct Relayout<M> {
    /// `None` where the environments write into the rows that are seen.
    copies: Option<Vec<Copied>>,
    makes: Vec<M>,
}

impl Relayout<Infallible> {
    /// Changes no row: for transforms that change the spec alone.
    pub(super) fn nothing() -> Self {
        Self {
            copies: None,
            makes: Vec::new(),
        }
    }
}

impl<M: FillLeaf> Relayout<M> {
    fn fill(
        &mut self,
        env: usize,
        (from, mut to): (Row<'_>, RowMut<'_>),
        is_first: bool,
    ) -> Result<(), EnvError> {
        for &(leaf, place) in self.copies.iter().flatten() {
            to.copy_leaf(place, from, leaf)?;
        }
        for make in &mut self.makes {
            match is_first {
                true => make.first(env, from, &mut to)?,
                false => make.next(env, from, &mut to)?,
            }
        }
        Ok(())
    }

    fn fill_all(
        &mut self,
        envs: impl Iterator<Item = usize>,
        obs: Observations<'_>,
        is_first: bool,
    ) -> Result<(), VecEnvError> {
        if self.copies.is_none() {
            return Ok(());
        }
        let (from, mut to) = obs.apart()?;
        for env in envs {
            // An environment that does not exist was reported by the inner ones.
            if let (Some(from), Some(to)) = (from.env(env), to.env_mut(env)) {
                self.fill(env, (from, to), is_first)
                    .map_err(|error| error.of(env))?;
            }
        }
        Ok(())
    }
}

impl<M: FillLeaf> BoundTransform for Relayout<M> {
    fn reset(&mut self, resets: &[Reset], obs: Observations<'_>) -> Result<(), VecEnvError> {
        self.fill_all(resets.iter().map(|reset| reset.env), obs, true)
    }

    fn step(&mut self, obs: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        self.fill_all(0..obs.rows.envs(), obs, false)
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let mut makes = self.makes.iter_mut();
        makes.try_for_each(|make| make.visit_state(state))
    }
}

/// The dimension that `dim` of `ndim` names, counted from the end where it is negative.
pub(super) fn dimension(dim: i64, ndim: usize) -> Option<usize> {
    let dim = match dim {
        dim if dim < 0 => i64::try_from(ndim).ok()?.checked_add(dim)?,
        dim => dim,
    };
    usize::try_from(dim).ok().filter(|&dim| dim < ndim)
}

/// `spec` in another `shape` with the same elements. Choices become integers of the same range.
pub(super) fn reshaped(spec: &Spec, shape: Shape) -> Spec {
    if spec.shape() == shape {
        return spec.clone();
    }
    let elements = shape.iter().product();
    rearranged(spec, shape, 0..elements)
}

/// The spec of leaves in which each element is the one of `spec` that `sources` names.
pub(super) fn rearranged(spec: &Spec, shape: Shape, sources: impl Iterator<Item = usize>) -> Spec {
    let dtype = spec.dtype().expect("A leaf has an element type.");
    if matches!(spec, Spec::Unbounded { .. }) {
        return Spec::Unbounded { dtype, shape };
    }
    let ranges = sources.map(|i| {
        spec.range_of(i)
            .unwrap_or((f64::NEG_INFINITY, f64::INFINITY))
    });
    let (low, high) = ranges.unzip();
    Spec::Bounded {
        dtype,
        shape,
        low,
        high,
    }
}

/// `spec` with each bound `x` as `map(x)`, in another type and shape. Bounds that differ from
/// element to element are left out.
pub(super) fn mapped(spec: &Spec, dtype: DType, shape: Shape, map: impl Fn(f64) -> f64) -> Spec {
    let Spec::Bounded { low, high, .. } = spec else {
        return Spec::Unbounded { dtype, shape };
    };
    let alike = |bounds: &[f64]| bounds.iter().all(|bound| *bound == bounds[0]);
    let elements = shape.iter().product();
    match (low.first(), high.first()) {
        (Some(&least), Some(&most)) if alike(low) && alike(high) => Spec::Bounded {
            dtype,
            shape,
            low: vec![map(least); elements],
            high: vec![map(most); elements],
        },
        _ => Spec::Unbounded { dtype, shape },
    }
}
