//! Specs of observations and actions: names, element types, shapes and domains.

mod error;
mod observations;
mod outline;
mod serde_form;

use serde::{Deserialize, Serialize};
use tensordict::{DType, Group, NestedKey, Shape};
use windrow_slab::LeafSpec;

pub use error::SpecError;
pub use outline::SpecOutline;

use crate::{EnvError, Gathers};

/// The domain of one leaf, or a tree of named leaves.
///
/// Text, and whatever else has a size of its own at each step, is
/// `Spec::unbounded(DType::Bytes, [])`: environments write it by
/// [`RowMut::write_string`](windrow_slab::RowMut::write_string).
///
/// Its serialized form is kind and arguments, `{"Discrete": {"n": 2}}`, with bounds bit for bit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum Spec {
    /// Any value of `dtype`.
    Unbounded {
        /// Element type.
        dtype: DType,
        /// Shape of one environment's value.
        shape: Shape,
    },
    /// Real values between `low` and `high`, element by element, both included.
    Bounded {
        /// Element type.
        dtype: DType,
        /// Shape of one environment's value.
        shape: Shape,
        /// Lowest value of each element, row-major; may be `-inf`.
        #[serde(with = "crate::serde_form::floats")]
        low: Vec<f64>,
        /// Highest value of each element, row-major; may be `inf`.
        #[serde(with = "crate::serde_form::floats")]
        high: Vec<f64>,
    },
    /// One of `n` choices as an `int64` scalar in `0..n`.
    Discrete {
        /// Number of choices.
        n: usize,
    },
    /// Zeros and ones of `int8`.
    Binary {
        /// Shape of one environment's value.
        shape: Shape,
    },
    /// Several choices at once as `int64`, element `i` in `0..nvec[i]`.
    MultiDiscrete {
        /// Number of choices of each element.
        nvec: Vec<usize>,
    },
    /// Choices as `int64` vectors that are one at the choice and zero elsewhere, side by side:
    /// choice `i` takes `nvec[i]` elements. A single choice is the usual case.
    OneHot {
        /// Number of choices of each vector.
        nvec: Vec<usize>,
    },
    /// Named specs, in this order. Composites of the same name are one group, with other leaves in
    /// between.
    Composite(Vec<(String, Spec)>),
}

impl Spec {
    /// Any value of `dtype` with `shape`.
    #[must_use]
    pub fn unbounded(dtype: DType, shape: impl AsRef<[usize]>) -> Self {
        Self::Unbounded {
            dtype,
            shape: Shape::from_slice(shape.as_ref()),
        }
    }

    /// `float32` values between `low` and `high`: a vector as long as both.
    ///
    /// # Errors
    /// [`SpecError::Bounds`] when the two differ in length, [`SpecError::Interval`] when a lower
    /// bound lies above its upper one or is NaN.
    pub fn bounded(low: &[f32], high: &[f32]) -> Result<Self, EnvError> {
        if low.len() != high.len() {
            return Err(SpecError::Bounds {
                lower: low.len(),
                upper: high.len(),
            }
            .into());
        }
        for (i, (l, h)) in low.iter().zip(high).enumerate() {
            if l.partial_cmp(h).is_none_or(std::cmp::Ordering::is_gt) {
                return Err(SpecError::Interval {
                    element: i,
                    low: *l,
                    high: *h,
                }
                .into());
            }
        }
        Ok(Self::Bounded {
            dtype: DType::F32,
            shape: Shape::from_slice(&[low.len()]),
            low: low.iter().map(|&x| f64::from(x)).collect(),
            high: high.iter().map(|&x| f64::from(x)).collect(),
        })
    }

    /// One of `n` choices.
    #[must_use]
    pub fn discrete(n: usize) -> Self {
        Self::Discrete { n }
    }

    /// One of `n` choices as an `int64` vector `[n]` that is one at the choice and zero elsewhere.
    #[must_use]
    pub fn one_hot(n: usize) -> Self {
        Self::OneHot { nvec: vec![n] }
    }

    /// Named specs.
    #[must_use]
    pub fn composite<N: Into<String>>(entries: impl IntoIterator<Item = (N, Spec)>) -> Self {
        Self::Composite(
            entries
                .into_iter()
                .map(|(name, spec)| (name.into(), spec))
                .collect(),
        )
    }

    /// Element type of a leaf; `None` for a composite.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        match self {
            Self::Unbounded { dtype, .. } | Self::Bounded { dtype, .. } => Some(*dtype),
            Self::Discrete { .. } | Self::MultiDiscrete { .. } | Self::OneHot { .. } => {
                Some(DType::I64)
            }
            Self::Binary { .. } => Some(DType::I8),
            Self::Composite(_) => None,
        }
    }

    /// Shape of one environment's value of a leaf; empty for a scalar and for a composite.
    #[must_use]
    pub fn shape(&self) -> Shape {
        match self {
            Self::Unbounded { shape, .. }
            | Self::Bounded { shape, .. }
            | Self::Binary { shape } => shape.clone(),
            Self::MultiDiscrete { nvec } => Shape::from_slice(&[nvec.len()]),
            Self::OneHot { nvec } => Shape::from_slice(&[nvec.iter().sum()]),
            Self::Discrete { .. } | Self::Composite(_) => Shape::new(),
        }
    }

    /// Number of choices of each choice that a leaf is made of, however they are encoded; `None`
    /// for any other leaf and for a composite.
    #[must_use]
    pub fn choices(&self) -> Option<&[usize]> {
        match self {
            Self::Discrete { n } => Some(std::slice::from_ref(n)),
            Self::MultiDiscrete { nvec } | Self::OneHot { nvec } => Some(nvec),
            _ => None,
        }
    }

    /// The leaves with their full names, depth first, in order; a bare leaf is named `name`.
    #[must_use]
    pub fn leaves(&self, name: &str) -> Vec<(NestedKey, &Spec)> {
        let mut out = Vec::new();
        match self {
            Self::Composite(entries) => {
                for (entry, spec) in entries {
                    spec.collect_leaves(&NestedKey::from(entry.as_str()), &mut out);
                }
            }
            leaf => out.push((NestedKey::from(name), leaf)),
        }
        out
    }

    /// The same as columns.
    #[must_use]
    pub fn leaf_specs(&self, name: &str) -> Vec<LeafSpec> {
        self.leaves(name)
            .into_iter()
            .filter_map(|(key, leaf)| Some(LeafSpec::new(key, leaf.dtype()?, leaf.shape())))
            .collect()
    }

    /// Elements of a value; `None` for a composite, and where they are more than can be counted.
    fn elements(&self) -> Option<usize> {
        let product = |shape: &Shape| shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let sum = |counts: &[usize]| {
            counts
                .iter()
                .try_fold(0usize, |n, &more| n.checked_add(more))
        };
        match self {
            Self::Unbounded { shape, .. }
            | Self::Bounded { shape, .. }
            | Self::Binary { shape } => product(shape),
            Self::Discrete { .. } => Some(1),
            Self::MultiDiscrete { nvec } => sum(nvec).map(|_| nvec.len()),
            Self::OneHot { nvec } => sum(nvec),
            Self::Composite(_) => None,
        }
    }

    fn collect_leaves<'a>(&'a self, prefix: &NestedKey, out: &mut Vec<(NestedKey, &'a Spec)>) {
        match self {
            Self::Composite(entries) => {
                for (entry, spec) in entries {
                    spec.collect_leaves(&prefix.join(&NestedKey::from(entry.as_str())), out);
                }
            }
            leaf => out.push((prefix.clone(), leaf)),
        }
    }
}

/// Observation and action of an environment, and the longest episode. It can be serialized, and is
/// [checked](Self::check) when it is deserialized.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EnvSpec {
    /// Id in the registry, or a name for messages.
    pub id: String,
    /// Observation; a bare leaf is delivered as `"observation"`.
    pub observation: Spec,
    /// Action; a bare leaf is named `"action"`.
    pub action: Spec,
    /// Steps after which the environment truncates an episode, if it does.
    pub max_episode_steps: Option<usize>,
    /// Observations that are rewards, such as those of single agents: they follow a step, so they
    /// are delivered under `"next"` alone, and policies do not look at them. One called `"reward"`
    /// is the reward of the step in another element type, in which it is delivered.
    pub rewards: Vec<NestedKey>,
    /// Observations that a policy's states begin with: environments leave them as they are, and
    /// policies write what follows.
    pub states: Vec<NestedKey>,
    /// Actions of choices, each with the observation (`bool`, `int8` or `uint8`, an element for
    /// each choice) that marks the legal ones, to which random actions are restricted.
    pub masks: Vec<(NestedKey, NestedKey)>,
    /// Observations that are flags of nested groups, such as single agents. Where the last step of
    /// a batch is marked as truncated, those called `truncated` and `done` (`bool`) are marked
    /// under `"next"` too.
    pub flags: Vec<NestedKey>,
    /// Observations beside the environment's own, such as entries of `info` in Gymnasium: a Python
    /// policy that is called with tensors gets those that it names.
    pub info: Vec<NestedKey>,
    /// Nested observations and actions that share dimensions of their own, such as agents: batches
    /// give these to the dict in which they are.
    pub groups: Vec<Group>,
    /// Dimensions that the environments of one vector are in, where these are several: `[2, 3]` of
    /// six. Batches of Python have them.
    pub dimensions: Vec<usize>,
    /// Observations that batches of Python have under `"next"` as differences from those before,
    /// each with the element type of these, by its name in PyTorch (`"float16"`).
    pub deltas: Vec<(NestedKey, String)>,
    /// Observations of bytes, each with what a policy of Python is given where the environment has
    /// written nothing.
    pub examples: Vec<(NestedKey, Vec<u8>)>,
    /// Running statistics that the environments share with others, from the innermost transform to
    /// the outermost.
    pub statistics: Vec<Gathers>,
    /// Whether a collector that is given no seed leaves the environments' generators as they are,
    /// since others may have seeded them.
    pub keeps_seed: bool,
    /// Whether the environments take any integers as actions, like those of TorchRL: also numbers
    /// outside of the choices of [`action`](Self::action), and other integer types. See
    /// [`takes`](Self::takes).
    pub any_integers: bool,
}

impl EnvSpec {
    /// A spec without a time limit, with no other reward than that of the step, for environments
    /// whose actions are all legal and that a collector seeds.
    #[must_use]
    pub fn new(id: impl Into<String>, observation: Spec, action: Spec) -> Self {
        Self {
            id: id.into(),
            observation,
            action,
            max_episode_steps: None,
            rewards: Vec::new(),
            states: Vec::new(),
            masks: Vec::new(),
            flags: Vec::new(),
            info: Vec::new(),
            groups: Vec::new(),
            dimensions: Vec::new(),
            deltas: Vec::new(),
            examples: Vec::new(),
            statistics: Vec::new(),
            keeps_seed: false,
            any_integers: false,
        }
    }

    /// Columns of one observation, in the order in which an environment writes them.
    #[must_use]
    pub fn observation_leaves(&self) -> Vec<LeafSpec> {
        self.observation.leaf_specs("observation")
    }

    /// Columns of one action, in the order in which an environment reads them.
    #[must_use]
    pub fn action_leaves(&self) -> Vec<LeafSpec> {
        self.action.leaf_specs("action")
    }

    /// Whether a policy may write `column` for `leaf`, which is one of the
    /// [`action_leaves`](Self::action_leaves): the same, or where environments take [any
    /// integers](Self::any_integers), one of another integer type.
    #[must_use]
    pub fn takes(&self, leaf: &LeafSpec, column: &LeafSpec) -> bool {
        let are_integers = !leaf.dtype.is_float() && !column.dtype.is_float();
        let are_alike = (&leaf.key, &leaf.shape) == (&column.key, &column.shape);
        leaf == column || self.any_integers && are_integers && are_alike
    }

    /// The column in which a policy writes `leaf`, one of the
    /// [`action_leaves`](Self::action_leaves), whose values it has as `dtype`: of this type, where
    /// the leaf's own cannot hold all of its integers and environments take
    /// [any](Self::any_integers). Choices have one type.
    #[must_use]
    pub fn column_for(&self, leaf: &LeafSpec, dtype: DType) -> LeafSpec {
        let column = LeafSpec::new(leaf.key.clone(), dtype, &leaf.shape);
        let specs = self.action.leaves("action");
        let is_choice =
            |(key, spec): &(NestedKey, &Spec)| *key == leaf.key && spec.choices().is_some();
        let fits = leaf.dtype.holds_integers_of(dtype) || specs.iter().any(is_choice);
        match !fits && self.takes(leaf, &column) {
            true => column,
            false => leaf.clone(),
        }
    }

    /// Checks that the parts of each leaf's spec agree with each other, and that the names of
    /// rewards, states, flags, masks and groups exist.
    ///
    /// # Errors
    /// [`SpecError::NoObservation`] for the first name that no observation has;
    /// [`SpecError::Leaf`] for the first leaf with more elements than can be counted, or with
    /// another number of bounds than elements; for bytes that have bounds, for actions, rewards and
    /// masks of bytes, and for masks and groups whose names nothing has.
    pub fn check(&self) -> Result<(), EnvError> {
        for (key, leaf) in self.action.leaves("action") {
            if leaf.dtype() == Some(DType::Bytes) {
                return Err(self.unfit(&key, "an action of numbers", DType::Bytes.name()));
            }
        }
        let masks = self.masks.iter().map(|(_, mask)| mask);
        let read: Vec<&NestedKey> = self.rewards.iter().chain(masks).collect();
        for (key, leaf) in self.observation.leaves("observation") {
            if leaf.dtype() == Some(DType::Bytes) && read.contains(&&key) {
                let expected = "a reward or mask of numbers";
                return Err(self.unfit(&key, expected, DType::Bytes.name()));
            }
        }
        let leaves = self.observation.leaves("observation").into_iter();
        for (key, leaf) in leaves.chain(self.action.leaves("action")) {
            let Some(elements) = leaf.elements() else {
                let expected = "as many elements as can be counted";
                return Err(self.unfit(&key, expected, format!("{leaf:?}")));
            };
            if let Spec::Bounded {
                dtype: DType::Bytes,
                ..
            } = leaf
            {
                return Err(self.unfit(&key, "numbers between bounds", DType::Bytes.name()));
            }
            if let Spec::Bounded { low, high, .. } = leaf
                && (low.len(), high.len()) != (elements, elements)
            {
                let expected =
                    format!("a lower and an upper bound for each of {elements} elements");
                let got = format!("{} lower and {} upper ones", low.len(), high.len());
                return Err(self.unfit(&key, expected, got));
            }
        }
        // Last: leaves can be listed once their elements can be counted.
        self.check_names()
    }

    /// Checks the names of rewards, states, flags, masks and groups, since nothing else would
    /// notice a misspelt one.
    fn check_names(&self) -> Result<(), EnvError> {
        let masks = self.masks.iter().map(|(_, mask)| mask);
        let lists = [&self.rewards, &self.states, &self.flags];
        for key in lists.into_iter().flatten().chain(masks) {
            self.find_observation(key)?;
        }
        let actions = self.action_leaves();
        let leaves = self.observation_leaves();
        let all = || leaves.iter().chain(&actions).map(|leaf| &leaf.key);
        for (action, _) in &self.masks {
            if !actions.iter().any(|leaf| leaf.key == *action) {
                let names: Vec<_> = actions.iter().map(|leaf| leaf.key.to_string()).collect();
                let expected = format!("a mask for one of the actions ({})", names.join(", "));
                return Err(self.unfit(action, expected, "none of them"));
            }
        }
        for (group, _) in &self.groups {
            if !all().any(|key| group.overlaps(key)) {
                let names: Vec<_> = all().map(ToString::to_string).collect();
                let expected = format!("a group of some entries ({})", names.join(", "));
                return Err(self.unfit(group, expected, "none of them"));
            }
        }
        Ok(())
    }

    /// Becomes the spec of these environments and of `other` together. Names, bounds of
    /// observations, time limits and dimensions may differ; limits and dimensions that do are left
    /// out.
    ///
    /// # Errors
    /// [`SpecError::Unlike`] if observations or actions differ for a policy.
    ///
    /// ```
    /// use windrow_env::{CartPole, Env, Pendulum, TimeLimit};
    ///
    /// let mut spec = CartPole::v1().spec().clone();
    /// spec.join(TimeLimit::new(CartPole::v1(), 20)?.spec())?;
    /// assert_eq!(spec.max_episode_steps, None);
    /// assert!(spec.join(Pendulum::v1().spec()).is_err());
    /// # Ok::<(), windrow_env::EnvError>(())
    /// ```
    pub fn join(&mut self, other: &Self) -> Result<(), EnvError> {
        let (own, its) = (self.observation_leaves(), other.observation_leaves());
        if let Some(i) = (0..own.len().max(its.len())).find(|&i| own.get(i) != its.get(i)) {
            let show = |leaf: Option<&LeafSpec>| {
                leaf.map_or_else(|| "no such entry".to_owned(), LeafSpec::to_string)
            };
            return Err(self.unlike("observation", other, show(own.get(i)), show(its.get(i))));
        }
        self.alike("action", other, |spec| spec.action.clone())?;
        self.alike("rewards", other, |spec| spec.rewards.clone())?;
        self.alike("states", other, |spec| spec.states.clone())?;
        self.alike("masks", other, |spec| spec.masks.clone())?;
        self.alike("flags", other, |spec| spec.flags.clone())?;
        self.alike("info", other, |spec| spec.info.clone())?;
        self.alike("groups", other, |spec| spec.groups.clone())?;
        self.alike("deltas", other, |spec| spec.deltas.clone())?;
        if self.max_episode_steps != other.max_episode_steps {
            self.max_episode_steps = None;
        }
        if self.dimensions != other.dimensions {
            self.dimensions.clear();
        }
        self.keeps_seed &= other.keeps_seed;
        self.any_integers &= other.any_integers;
        Ok(())
    }

    /// Checks that `part` is the same in `other`.
    fn alike<P: PartialEq + std::fmt::Debug>(
        &self,
        name: &'static str,
        other: &Self,
        part: impl Fn(&Self) -> P,
    ) -> Result<(), EnvError> {
        let (expected, got) = (part(self), part(other));
        if expected == got {
            return Ok(());
        }
        Err(self.unlike(name, other, format!("{expected:?}"), format!("{got:?}")))
    }

    fn unlike(&self, part: &'static str, other: &Self, expected: String, got: String) -> EnvError {
        SpecError::Unlike {
            part,
            env: self.id.clone(),
            expected,
            other: other.id.clone(),
            got,
        }
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested() -> EnvSpec {
        let observation = Spec::composite([
            ("image", Spec::unbounded(DType::U8, [2, 3])),
            (
                "body",
                Spec::composite([("speed", Spec::unbounded(DType::F32, []))]),
            ),
        ]);
        let action = Spec::MultiDiscrete { nvec: vec![2, 3] };
        EnvSpec::new("Nested", observation, action)
    }

    #[test]
    fn columns_of_other_integers_are_taken_where_any_integers_are() {
        let leaf = |dtype| LeafSpec::new("action", dtype, [2]);
        let (own, wide) = (leaf(DType::I8), leaf(DType::I64));
        let mut spec = EnvSpec::new(
            "Binary",
            Spec::unbounded(DType::F32, [1]),
            Spec::Binary {
                shape: Shape::from_slice(&[2]),
            },
        );
        assert!(spec.takes(&own, &own) && !spec.takes(&own, &wide));
        spec.any_integers = true;
        assert!(spec.takes(&own, &wide) && !spec.takes(&own, &leaf(DType::F32)));
        assert!(!spec.takes(&own, &LeafSpec::new("action", DType::I64, [1])));
        let one_type = EnvSpec {
            any_integers: false,
            ..spec.clone()
        };
        let column = |spec: &EnvSpec, dtype| spec.column_for(&own, dtype).dtype;
        assert_eq!(column(&spec, DType::I64), DType::I64);
        assert_eq!(column(&spec, DType::U8), DType::U8);
        assert_eq!(column(&spec, DType::Bool), DType::I8);
        assert_eq!(column(&spec, DType::F32), DType::I8);
        assert_eq!(column(&one_type, DType::I64), DType::I8);
        spec.join(&one_type).unwrap();
        assert!(!spec.takes(&own, &wide));
        let mut choices = EnvSpec::new("Choices", spec.observation, Spec::discrete(2));
        choices.any_integers = true;
        let leaf = &choices.action_leaves()[0];
        assert_eq!(choices.column_for(leaf, DType::I32), *leaf);
    }

    #[test]
    fn leaves_come_in_order_with_full_names() {
        let spec = nested();
        let expected = [
            LeafSpec::new("image", DType::U8, [2, 3]),
            LeafSpec::new(("body", "speed"), DType::F32, []),
        ];
        assert_eq!(spec.observation_leaves(), expected);
        assert_eq!(
            spec.action_leaves(),
            [LeafSpec::new("action", DType::I64, [2])]
        );
    }

    #[test]
    fn keys_are_looked_up_by_name_and_type() {
        let spec = nested();
        let key = spec.observation_key::<f32>(("body", "speed")).unwrap();
        assert_eq!(key.leaf(), 1);
        let error = spec
            .observation_key::<f32>("image")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "\"image\" of Nested: expected float32, got uint8");
        let error = spec
            .observation_key::<f32>("sound")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("Nested has no observation \"sound\"; it has \"image\", "),
            "{error}"
        );
    }

    #[test]
    fn dimensions_that_differ_are_left_out() {
        let (mut spec, mut other) = (nested(), nested());
        spec.dimensions = vec![2, 3];
        spec.join(&spec.clone()).unwrap();
        assert_eq!(spec.dimensions, [2, 3]);
        other.dimensions = vec![3, 2];
        spec.join(&other).unwrap();
        assert!(spec.dimensions.is_empty());
    }

    #[test]
    fn what_does_not_go_together_is_refused_wherever_it_stands() {
        let bounded = |low: usize, high: usize| Spec::Bounded {
            dtype: DType::F32,
            shape: Shape::from_slice(&[2, 2]),
            low: vec![0.0; low],
            high: vec![1.0; high],
        };
        let vast = [usize::MAX, 2];
        let refused = [
            bounded(2, 4),
            bounded(4, 2),
            bounded(5, 5),
            Spec::unbounded(DType::U8, vast),
            Spec::Binary {
                shape: Shape::from_slice(&vast),
            },
            Spec::OneHot { nvec: vast.into() },
            Spec::MultiDiscrete { nvec: vast.into() },
        ];
        let sound = || bounded(4, 4);
        EnvSpec::new("x", sound(), sound()).check().unwrap();
        let text = Spec::unbounded(DType::Bytes, []);
        EnvSpec::new("x", text.clone(), sound()).check().unwrap();
        let error = EnvSpec::new("x", sound(), text).check().unwrap_err();
        assert_eq!(
            error.to_string(),
            r#""action" of x: expected an action of numbers, got bytes"#
        );
        let mut rewarding = EnvSpec::new("x", Spec::unbounded(DType::Bytes, []), sound());
        rewarding.rewards.push("observation".into());
        assert!(rewarding.check().is_err());
        let bounded_text = Spec::Bounded {
            dtype: DType::Bytes,
            shape: Shape::new(),
            low: vec![0.0],
            high: vec![1.0],
        };
        let bounded_text = EnvSpec::new("x", bounded_text, sound());
        assert!(bounded_text.check().is_err());
        for spec in refused {
            let nested = Spec::composite([("a", sound()), ("b", spec.clone())]);
            assert!(EnvSpec::new("x", spec.clone(), sound()).check().is_err());
            assert!(EnvSpec::new("x", sound(), spec).check().is_err());
            let error = EnvSpec::new("x", nested, sound()).check().unwrap_err();
            assert!(error.to_string().starts_with(r#""b" of x: "#), "{error}");
        }
        assert_eq!(
            EnvSpec::new("x", sound(), bounded(2, 4))
                .check()
                .unwrap_err()
                .to_string(),
            r#""action" of x: expected a lower and an upper bound for each of 4 elements, got 2 lower and 4 upper ones"#
        );
    }

    #[test]
    fn a_name_that_no_leaf_has_is_an_error() {
        let told = |change: fn(&mut EnvSpec)| {
            let cost = Spec::unbounded(DType::F32, [1]);
            let observed = Spec::composite([("at", cost.clone()), ("cost", cost)]);
            let mut spec = EnvSpec::new("Walk", observed, Spec::discrete(2));
            change(&mut spec);
            spec.check().map_err(|error| error.to_string())
        };
        let right: fn(&mut EnvSpec) = |spec| {
            spec.rewards.push("cost".into());
            spec.masks.push(("action".into(), "at".into()));
            spec.groups.push(("at".into(), Shape::new()));
        };
        assert_eq!(told(right), Ok(()));
        let wrong: [fn(&mut EnvSpec); 4] = [
            |spec| spec.rewards.push("csot".into()),
            |spec| spec.states.push("csot".into()),
            |spec| spec.flags.push("csot".into()),
            |spec| spec.masks.push(("action".into(), "csot".into())),
        ];
        for change in wrong {
            let expected = "Walk has no observation \"csot\"; it has \"at\", \"cost\"";
            assert_eq!(told(change).unwrap_err(), expected);
        }
        assert_eq!(
            told(|spec| spec.masks.push(("act".into(), "at".into()))).unwrap_err(),
            "\"act\" of Walk: expected a mask for one of the actions (action), got none of them"
        );
        assert_eq!(
            told(|spec| spec.groups.push(("agents".into(), Shape::new()))).unwrap_err(),
            "\"agents\" of Walk: expected a group of some entries (at, cost, action), got none of them"
        );
    }

    #[test]
    fn bounds_have_to_be_intervals() {
        let message = |low: &[f32], high: &[f32]| Spec::bounded(low, high).unwrap_err().to_string();
        assert_eq!(
            message(&[0.0], &[1.0, 2.0]),
            "bounds of different lengths: 1 lower and 2 upper ones"
        );
        assert_eq!(
            message(&[0.0, 2.0], &[0.0, 1.0]),
            "bounds of element 1 are not an interval: [2, 1]"
        );
        assert!(Spec::bounded(&[f32::NAN], &[0.0]).is_err());
        assert_eq!(
            Spec::bounded(&[0.0], &[1.0]).unwrap().dtype(),
            Some(DType::F32)
        );
    }
}
