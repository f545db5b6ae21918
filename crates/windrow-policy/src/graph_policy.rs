//! A graph as a policy (ADR 0020).

mod action;

use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};
use windrow_env::{EnvError, EnvSpec, StateVisitor};
use windrow_slab::{Key, LeafSpec, Rows, RowsMut};

use crate::error::names;
use crate::fit::Fit;
use crate::nn::{Graph, Value};
use crate::weights::Reader;
use crate::{
    Binding, EnvRows, KnownRows, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec, States,
    Weights,
};

pub(crate) use action::write_column;

use action::Action;

/// A [`Graph`] whose values are actions and other columns.
///
/// It reads observations of any element type, and states: numbers that it has written at the step
/// before, or their initial values where an episode begins. Integers are exact up to 2^24, others
/// become the nearest `float32`. Random numbers of a graph do not depend on
/// [`PolicyIn::exploration`]: use another graph for another type.
///
/// The value of an action is the action itself, or, where the environment takes choices, a number
/// for each option, of which the largest is the choice.
///
/// ```
/// use tensordict::DType;
/// use windrow_env::{EnvSpec, Spec};
/// use windrow_policy::nn::Graph;
/// use windrow_policy::{Binding, GraphPolicy, Policy};
///
/// let mut graph = Graph::new();
/// let x = graph.input(4);
/// let scores = graph.linear("scores", x, 2);
/// let mut policy = GraphPolicy::new(graph)
///     .observes("observation", DType::F32, [4])
///     .writes("action", DType::F32, [2], scores)
///     .writes("action_value", DType::F32, [2], scores);
/// let env = EnvSpec::new("CartPole-v1", Spec::unbounded(DType::F32, [4]), Spec::discrete(2));
/// assert_eq!(policy.bind(&Binding::new(&env, 1))?.columns.len(), 2);
/// # Ok::<(), windrow_policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphPolicy {
    graph: Graph,
    /// The meaning of each input of the graph.
    inputs: Vec<Read>,
    /// Columns, and their values. The actions come first.
    outputs: Vec<(LeafSpec, Value)>,
    #[serde(skip)]
    bound: Option<Bound>,
}

/// Where an input comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Read {
    /// An observation.
    Observation(LeafSpec),
    /// A state: the value of the step before, or these numbers where an episode begins.
    State {
        next: Value,
        #[serde(with = "windrow_env::serde_form::floats")]
        first: Vec<f64>,
    },
}

impl Read {
    fn is_state(&self) -> bool {
        matches!(self, Self::State { .. })
    }
}

#[derive(Debug, Clone)]
struct Bound {
    /// The environment, to bind a graph that replaces this one.
    env: EnvSpec,
    columns: Vec<LeafSpec>,
    /// The leaf of each input that is an observation, and whether its numbers have to be converted.
    leaves: Vec<Option<(usize, DType)>>,
    /// `[rows, elements]` of each input: a state, or converted observations.
    gathered: Vec<Vec<f32>>,
    actions: Vec<Action>,
    /// `[rows, elements]` of each output, then of each state.
    values: Vec<Vec<f32>>,
    widths: Vec<usize>,
    /// The states by place, `[places, elements]` for each input that is one; empty unless calls
    /// have rows of varying environments.
    kept: Vec<Vec<f32>>,
    known: KnownRows,
}

impl GraphPolicy {
    /// A policy with the inputs and values of `graph`, whose meanings are still to be set.
    #[must_use]
    pub fn new(graph: Graph) -> Self {
        Self {
            graph,
            inputs: Vec::new(),
            outputs: Vec::new(),
            bound: None,
        }
    }

    /// The next input is the observation `key`, `[rows, *shape]`. One of `float32` may be of
    /// `float64` in the environment.
    #[must_use]
    pub fn observes(
        mut self,
        key: impl Into<NestedKey>,
        dtype: DType,
        shape: impl AsRef<[usize]>,
    ) -> Self {
        self.inputs
            .push(Read::Observation(LeafSpec::new(key, dtype, shape.as_ref())));
        self
    }

    /// The next input is what the value `next` was at the step before, and `first` where an episode
    /// begins.
    #[must_use]
    pub fn remembers(mut self, next: Value, first: &[f32]) -> Self {
        let first = first.iter().map(|&x| f64::from(x)).collect();
        self.inputs.push(Read::State { next, first });
        self
    }

    /// Writes `value` into column `key`, `[rows, *shape]`. The first columns are the actions of the
    /// environment, in order.
    #[must_use]
    pub fn writes(
        mut self,
        key: impl Into<NestedKey>,
        dtype: DType,
        shape: impl AsRef<[usize]>,
        value: Value,
    ) -> Self {
        self.outputs
            .push((LeafSpec::new(key, dtype, shape.as_ref()), value));
        self
    }

    /// The graph.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The columns that it writes, the actions first, in the graph's own form: an environment may
    /// take choices in another one.
    pub fn outputs(&self) -> impl Iterator<Item = &LeafSpec> {
        self.outputs.iter().map(|(leaf, _)| leaf)
    }

    /// Reads a policy from the JSON that serde has written; its parameters are zero.
    ///
    /// # Errors
    /// [`PolicyError::Unreadable`] for anything else, and the errors of [`Graph::check`].
    pub fn from_json(json: &str) -> Result<Self, PolicyError> {
        let read = serde_json::from_slice::<Self>(json.as_bytes());
        let mut policy = read.map_err(|error| PolicyError::Unreadable {
            reason: error.to_string(),
        })?;
        policy.prepare()?;
        Ok(policy)
    }

    /// Allocates parameters and checks that everything fits, after the policy was read.
    pub(crate) fn prepare(&mut self) -> Result<(), PolicyError> {
        self.graph.allocate()?;
        self.check_widths()
    }

    /// The values to evaluate: outputs, then the next states.
    fn values(&self) -> Vec<Value> {
        let states = self.inputs.iter().filter_map(|input| match input {
            Read::State { next, .. } => Some(*next),
            Read::Observation(_) => None,
        });
        self.outputs
            .iter()
            .map(|(_, value)| *value)
            .chain(states)
            .collect()
    }

    fn check_widths(&self) -> Result<(), PolicyError> {
        self.graph.check()?;
        let misfit = |what, expected, got| PolicyError::Layer {
            layer: 0,
            kind: "Graph",
            what,
            expected,
            got,
        };
        let widths = self.graph.inputs();
        if widths.len() != self.inputs.len() {
            return Err(misfit("inputs", widths.len(), self.inputs.len()));
        }
        for (&width, input) in widths.iter().zip(&self.inputs) {
            let own = match input {
                Read::Observation(leaf) => leaf.elements(),
                Read::State { next, first } => {
                    let got = self.graph.elements(*next)?;
                    if got != first.len() {
                        return Err(misfit("numbers in a state", first.len(), got));
                    }
                    got
                }
            };
            if own != width {
                return Err(misfit("numbers in an input", width, own));
            }
        }
        for (leaf, value) in &self.outputs {
            let width = self.graph.elements(*value)?;
            if width != leaf.elements() {
                return Err(misfit("numbers in an output", width, leaf.elements()));
            }
        }
        Ok(())
    }

    /// Replaces this policy by `next`, which continues with its states: for a change of the
    /// computation itself, not of parameters.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] where `next` writes other columns or has other states, and the
    /// errors of [`bind`](Policy::bind). Then nothing has changed.
    pub fn replace(&mut self, mut next: Self) -> Result<(), PolicyError> {
        if let Some(bound) = &self.bound {
            next.bind(&Binding::new(&bound.env, 1))?;
        }
        if let (Some(old), Some(new)) = (&mut self.bound, &mut next.bound) {
            let widths = |policy: &[Read]| -> Vec<usize> {
                let states = policy.iter().filter_map(|input| match input {
                    Read::State { first, .. } => Some(first.len()),
                    Read::Observation(_) => None,
                });
                states.collect()
            };
            if new.columns != old.columns || widths(&self.inputs) != widths(&next.inputs) {
                return Err(PolicyError::failed(format!(
                    "expected a graph that writes {} and has states of {:?} numbers, got one that writes {} and has states of {:?}",
                    names(old.columns.iter().map(|leaf| &leaf.key)),
                    widths(&self.inputs),
                    names(new.columns.iter().map(|leaf| &leaf.key)),
                    widths(&next.inputs),
                )));
            }
            let states = |inputs: &[Read]| -> Vec<usize> {
                (0..inputs.len())
                    .filter(|&index| inputs[index].is_state())
                    .collect()
            };
            for (from, to) in states(&self.inputs).into_iter().zip(states(&next.inputs)) {
                new.gathered[to] = std::mem::take(&mut old.gathered[from]);
                new.kept[to] = std::mem::take(&mut old.kept[from]);
            }
            new.known = std::mem::take(&mut old.known);
        }
        *self = next;
        Ok(())
    }

    /// Evaluates the policy on `inputs`, `[rows, elements]` each: the outputs, then the next
    /// states. Draws are those of environments `0..rows` with seed 0.
    ///
    /// # Errors
    /// As [`Graph::forward`].
    pub fn evaluate(
        &mut self,
        inputs: &[&[f32]],
        rows: usize,
    ) -> Result<Vec<Vec<f32>>, PolicyError> {
        self.check_widths()?;
        let values = self.values();
        self.graph.prepare(&values)?;
        let widths = values.iter().map(|value| self.graph.elements(*value));
        let widths = widths.collect::<Result<Vec<_>, _>>()?;
        let mut outputs: Vec<_> = widths.iter().map(|width| vec![0.0; rows * width]).collect();
        let envs = EnvRows::new(0, (0..rows as u32).collect());
        if let Some(plan) = self.graph.plan() {
            plan.forward(inputs, envs.all_noise(), &mut outputs)?;
        }
        Ok(outputs)
    }
}

impl Policy for GraphPolicy {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let env = binding.spec;
        let fit = Fit {
            policy: "graph policy",
            env,
        };
        self.check_widths()?;
        let specs = env.observation_leaves();
        let mut leaves = Vec::new();
        for input in &self.inputs {
            leaves.push(match input {
                Read::State { .. } => None,
                Read::Observation(own) => Some(observed(&fit, &specs, own)?),
            });
        }
        let actions = env.action.leaves("action");
        let mut leaf_specs = env.action_leaves();
        if self.outputs.len() < actions.len() {
            return Err(fit.error(
                "action leaves",
                &actions.len().to_string(),
                &self.outputs.len().to_string(),
            ));
        }
        let mut found = Vec::new();
        let outputs = leaf_specs.iter_mut().zip(&self.outputs);
        for ((_, spec), (leaf, (own, _))) in actions.iter().zip(outputs) {
            *leaf = env.column_for(leaf, own.dtype);
            found.push(Action::new(&fit, spec, leaf, own)?);
        }
        let extra = self.outputs[found.len()..]
            .iter()
            .map(|(leaf, _)| leaf.clone());
        let columns: Vec<_> = leaf_specs.into_iter().chain(extra).collect();
        let values = self.values();
        self.graph.prepare(&values)?;
        let widths = values.iter().map(|value| self.graph.elements(*value));
        self.bound = Some(Bound {
            env: env.clone(),
            columns: columns.clone(),
            leaves,
            gathered: vec![Vec::new(); self.inputs.len()],
            actions: found,
            values: vec![Vec::new(); values.len()],
            widths: widths.collect::<Result<_, _>>()?,
            kept: vec![Vec::new(); self.inputs.len()],
            known: KnownRows::default(),
        });
        let has_state = self.inputs.iter().any(Read::is_state);
        Ok(PolicySpec::new(columns).states(match has_state {
            true => States::ByPlace,
            false => States::ByRow,
        }))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        let Some(bound) = &mut self.bound else {
            return Err(PolicyError::NotBound {
                policy: "graph policy",
            });
        };
        let rows = out.envs();
        input.check_rows(rows)?;
        bound.read(&self.inputs, self.graph.inputs(), input)?;
        for (values, width) in bound.values.iter_mut().zip(&bound.widths) {
            values.resize(rows * width, 0.0);
        }
        if self.graph.plan().is_none() {
            // Parameters have changed.
            let values = self.values();
            self.graph.prepare(&values)?;
        }
        let plan = self.graph.plan();
        let bound_and_plan = self.bound.as_mut().zip(plan);
        let (bound, plan) = bound_and_plan.expect("The policy is bound, and its graph prepared.");
        bound.evaluate(plan, input)?;
        bound.write(&self.outputs, input, &mut out)?;
        bound.keep(&self.inputs, input.envs);
        Ok(())
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        let mut reader = Reader::checking(weights, "");
        self.graph.read(&mut reader);
        Ok(reader.finish()?)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        Ok(self.graph.load(weights)?)
    }

    fn weights(&self) -> Weights {
        self.graph.weights()
    }

    fn recipe(&self) -> Option<PolicyRecipe> {
        let mut unbound = self.clone();
        unbound.bound = None;
        Some(PolicyRecipe::graph(unbound))
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let states: Vec<bool> = self.inputs.iter().map(Read::is_state).collect();
        match &mut self.bound {
            Some(bound) if states.contains(&true) => bound.visit_state(&states, state),
            _ => Ok(()),
        }
    }
}

/// The index of the environment's leaf for `own`, and its element type.
fn observed(
    fit: &Fit<'_>,
    specs: &[LeafSpec],
    own: &LeafSpec,
) -> Result<(usize, DType), PolicyError> {
    let Some(index) = specs.iter().position(|spec| spec.key == own.key) else {
        let all = names(specs.iter().map(|spec| &spec.key));
        return Err(fit.error("observation leaves", &format!("{:?}", own.key), &all));
    };
    let spec = &specs[index];
    let same = spec.dtype == own.dtype || (spec.dtype == DType::F64 && own.dtype == DType::F32);
    if !same || spec.shape != own.shape {
        let show = |leaf: &LeafSpec| format!("{} {:?}", leaf.dtype, leaf.shape);
        return Err(fit.error(
            &format!("observation leaf {:?}", own.key),
            &show(own),
            &show(spec),
        ));
    }
    Ok((index, spec.dtype))
}

impl Bound {
    /// Gathers inputs that have to be copied: observations of other types than `float32`, and
    /// states.
    fn read(
        &mut self,
        inputs: &[Read],
        widths: &[usize],
        input: &PolicyIn<'_>,
    ) -> Result<(), PolicyError> {
        let rows = input.envs.len();
        let begins = match inputs.iter().any(Read::is_state) {
            true => self.known.begins(input.envs),
            false => &[],
        };
        for (index, (to, own)) in self.gathered.iter_mut().zip(inputs).enumerate() {
            match (self.leaves[index], own) {
                (Some((_, DType::F32)), _) => {}
                (Some((leaf, dtype)), _) => {
                    to.resize(rows * widths[index], 0.0);
                    convert(input.obs, leaf, dtype, to)?;
                }
                (None, Read::State { first, .. }) => {
                    to.resize(rows * widths[index], 0.0);
                    let kept = &self.kept[index];
                    let rows = to.chunks_exact_mut(first.len().max(1)).enumerate();
                    for (row, to) in rows {
                        if begins[row] {
                            to.iter_mut()
                                .zip(first)
                                .for_each(|(to, &from)| *to = from as f32);
                        } else if !kept.is_empty() {
                            to.copy_from_slice(
                                &kept[input.envs.place(row) * to.len()..][..to.len()],
                            );
                        }
                    }
                }
                (None, Read::Observation(_)) => {}
            }
        }
        Ok(())
    }

    fn evaluate(
        &mut self,
        plan: &mut crate::nn::Plan,
        input: &PolicyIn<'_>,
    ) -> Result<(), PolicyError> {
        // A few references, on the stack.
        let mut given: [&[f32]; 8] = [&[]; 8];
        let count = self.gathered.len();
        let mut many = Vec::new();
        let given = match given.get_mut(..count) {
            Some(given) => given,
            None => {
                many.resize(count, &[][..]);
                &mut many[..]
            }
        };
        for (index, given) in given.iter_mut().enumerate() {
            *given = match self.leaves[index] {
                Some((leaf, DType::F32)) => input.obs.get(Key::new(leaf))?,
                _ => &self.gathered[index],
            };
        }
        plan.forward(given, input.envs.all_noise(), &mut self.values)
    }

    fn write(
        &self,
        outputs: &[(LeafSpec, Value)],
        input: &PolicyIn<'_>,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        for (index, action) in self.actions.iter().enumerate() {
            action.write(index, &self.values[index], input, out)?;
        }
        for (index, (leaf, _)) in outputs.iter().enumerate().skip(self.actions.len()) {
            write_column(leaf.dtype, index, &self.values[index], out)?;
        }
        Ok(())
    }

    /// Saves or loads the inputs that are states.
    fn visit_state(
        &mut self,
        states: &[bool],
        state: &mut StateVisitor<'_>,
    ) -> Result<(), EnvError> {
        self.known.visit_state(state)?;
        for index in (0..states.len()).filter(|&index| states[index]) {
            for numbers in [&mut self.gathered[index], &mut self.kept[index]] {
                let mut loaded = numbers.clone();
                state.value(&mut loaded)?;
                let expected = self.known.len() * self.widths[index];
                if !loaded.is_empty() && loaded.len() < expected {
                    return Err(EnvError::State {
                        expected: format!("{expected} numbers of a policy's state"),
                        got: loaded.len().to_string(),
                    });
                }
                *numbers = loaded;
            }
        }
        Ok(())
    }

    /// Stores the outputs that are the states of the next step.
    fn keep(&mut self, inputs: &[Read], envs: &EnvRows) {
        let states = (0..inputs.len()).filter(|&index| inputs[index].is_state());
        let first = self.values.len() - states.clone().count();
        for (index, next) in states.zip(first..) {
            if envs.has_places() {
                place(&self.values[next], envs, &mut self.kept[index]);
            } else {
                std::mem::swap(&mut self.gathered[index], &mut self.values[next]);
            }
        }
        if first < self.values.len() {
            self.known.keep(envs);
        }
    }
}

/// Copies rows to their places.
fn place(values: &[f32], envs: &EnvRows, kept: &mut Vec<f32>) {
    let width = values.len() / envs.len().max(1);
    for (row, from) in values.chunks_exact(width.max(1)).enumerate() {
        let first = envs.place(row) * width;
        if kept.len() < first + width {
            kept.resize(first + width, 0.0);
        }
        kept[first..first + width].copy_from_slice(from);
    }
}

/// Numbers of any element type as the nearest `float32`.
fn convert(obs: Rows<'_>, leaf: usize, dtype: DType, to: &mut [f32]) -> Result<(), PolicyError> {
    macro_rules! cast {
        ($type:ty) => {
            for (to, &from) in to.iter_mut().zip(obs.get::<$type>(Key::new(leaf))?) {
                *to = from as f32;
            }
        };
    }
    match dtype {
        DType::Bool => {
            for (to, &from) in to.iter_mut().zip(obs.get::<bool>(Key::new(leaf))?) {
                *to = f32::from(from);
            }
        }
        // As the rows say, bytes are no numbers.
        DType::U8 | DType::Bytes => cast!(u8),
        DType::I8 => cast!(i8),
        DType::I16 => cast!(i16),
        DType::I32 => cast!(i32),
        DType::I64 => cast!(i64),
        DType::F32 => cast!(f32),
        DType::F64 => cast!(f64),
    }
    Ok(())
}

#[cfg(test)]
#[path = "graph_policy_tests.rs"]
mod tests;
