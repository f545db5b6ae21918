//! Graphs of operations: the form of lowered policies (ADR 0020).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::weights::Reader;
use crate::{Noise, PolicyError, Weights, WeightsError};

use super::elementwise::{Function, Reduction, Zip};
use super::layer::Values;
use super::plan::Plan;
use super::{Activation, Layer, Sequential, put};

/// A value of a [`Graph`]: one vector for each row, or one for all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Value(pub(crate) usize);

/// Numbers `start`, `start + step`, … of one of the values that [`Op::Take`] reads: `count` of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run(
    /// Index of the value.
    pub u32,
    /// The first number.
    pub u32,
    /// Count of numbers.
    pub u32,
    /// Distance from one number to the next; 0 repeats one.
    pub i32,
);

/// How a [`Value`] comes from others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Op {
    /// An input of the graph, by its index: a vector for each row.
    Input(usize),
    /// A parameter.
    Parameter(usize),
    /// Numbers, as bits, so that serialization loses none.
    Constant(Vec<u32>),
    /// `x Wᵀ + b`, from `x`, `W` and, if there is one, `b`. Neither `W` nor `b` may depend on
    /// inputs. If `x` has a multiple of the numbers that `W` reads, each run of them is mapped.
    Linear {
        /// Numbers that `W`, `[outputs, inputs]`, writes.
        outputs: usize,
        /// Numbers that it reads.
        inputs: usize,
    },
    /// Products of matrices: of each run of `rows * inner` numbers of the first value and the run
    /// of `inner * columns` numbers of the second, row-major.
    MatMul {
        /// Rows of the first matrix.
        rows: usize,
        /// Columns of the first matrix, rows of the second.
        inner: usize,
        /// Columns of the second matrix.
        columns: usize,
    },
    /// An element-wise function of one value.
    Map(Function),
    /// An element-wise function of two values.
    Zip(Zip),
    /// The second value where the first is not 0, otherwise the third.
    Where,
    /// Numbers of the values, one run after the other: slices, transposes, concatenations, copies
    /// for broadcasting.
    Take(Vec<Run>),
    /// Reduces each run of `.1` numbers to one.
    Reduce(Reduction, usize),
    /// The softmax of each run of this length.
    Softmax(usize),
    /// The logarithm of the softmax of each run of this length.
    LogSoftmax(usize),
    /// Layer norm over runs of `run` numbers: `(x − mean) / sqrt(var + eps)`.
    Normalize {
        /// Numbers in a run.
        run: usize,
        /// Added to the variance.
        #[serde(with = "windrow_env::serde_form::float")]
        eps: f32,
    },
    /// Rows of a table, as of an embedding: the first value is the table, cut into rows of this
    /// length, the second has the row numbers. Evaluation fails for a number outside of the table;
    /// NaN gives NaN.
    Lookup(usize),
    /// Elements by index: the first value is cut into runs of this length, the second has the
    /// indices within them, equally many for each run. Evaluation fails for an index outside of the
    /// run; NaN gives NaN.
    Gather(usize),
    /// The value itself. Evaluation fails if a number is outside of these bounds, such as an
    /// observation that breaks its spec.
    Within {
        /// The smallest number.
        #[serde(with = "windrow_env::serde_form::float")]
        low: f32,
        /// The largest number.
        #[serde(with = "windrow_env::serde_form::float")]
        high: f32,
    },
    /// Samples one index for each run of this many weights, with probabilities proportional to
    /// them; the second value holds the uniform draws in `[0, 1)`, one for each run. NaN if the
    /// weights are no distribution.
    Pick(usize),
    /// Random numbers for each row: their distribution, their count, and the branch of the row's
    /// noise that they come from.
    Noise(Draw, usize, usize),
    /// Samples of gamma distributions with the value's numbers as shapes and scale 1, from this
    /// branch of the row's noise. NaN if a shape is not positive.
    Gamma(usize),
}

/// The distribution of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Draw {
    /// Uniform in `[0, 1)`.
    Uniform,
    /// Normal, with mean 0 and deviation 1.
    Normal,
}

/// A parameter of a [`Graph`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Parameter {
    name: String,
    shape: Vec<usize>,
    #[serde(skip)]
    values: Values,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) op: Op,
    pub(crate) from: Vec<Value>,
}

/// A network of any form, for inference: values, each computed from those before it.
///
/// Every row is evaluated by itself, and its result does not depend on other rows, to the last bit.
/// Values that depend on parameters alone are computed once, when these are loaded. Linear maps are
/// those of [`Sequential`].
///
/// ```
/// use windrow_policy::nn::{Activation, Graph, Zip};
///
/// let mut net = Graph::new();
/// let (x, goal) = (net.input(4), net.input(2));
/// let joined = net.cat(&[x, goal]);
/// let hidden = net.linear("body", joined, 64);
/// let hidden = net.activation(hidden, Activation::Tanh);
/// let (mean, value) = (net.linear("mean", hidden, 2), net.linear("value", hidden, 1));
/// let mut outputs = [vec![0.0; 6], vec![0.0; 3]];
/// net.forward(&[&[0.1; 12], &[0.2; 6]], &[mean, value], &mut outputs)?; // 3 rows
/// assert_eq!(outputs[0][..2], outputs[0][2..4]);
/// # Ok::<(), windrow_policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// Numbers in a row of each input.
    inputs: Vec<usize>,
    parameters: Vec<Parameter>,
    nodes: Vec<Node>,
    /// The plan for the requested values; made at the first evaluation, and again when parameters
    /// change.
    #[serde(skip)]
    plan: Option<(Vec<Value>, Plan)>,
    /// The random numbers of [`forward`](Self::forward), by row.
    #[serde(skip)]
    noise: Vec<Noise>,
}

impl Graph {
    /// A graph without values.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more input, of `elements` numbers for each row.
    pub fn input(&mut self, elements: usize) -> Value {
        self.inputs.push(elements);
        self.push(Op::Input(self.inputs.len() - 1), &[])
    }

    /// Adds a parameter, all zero until it is loaded. If memory cannot hold it,
    /// [`check`](Self::check) returns an error, and so does each evaluation of the graph.
    pub fn parameter(&mut self, name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Value {
        let shape = shape.into();
        self.parameters.push(Parameter {
            name: name.into(),
            values: zeros(&shape).unwrap_or_default().into(),
            shape,
        });
        self.push(Op::Parameter(self.parameters.len() - 1), &[])
    }

    /// Numbers that are the same in each row.
    pub fn constant(&mut self, values: &[f32]) -> Value {
        let bits = values.iter().map(|value| value.to_bits()).collect();
        self.push(Op::Constant(bits), &[])
    }

    /// `x Wᵀ + b`, with parameters `name.weight`, `[outputs, inputs]`, and `name.bias`,
    /// `[outputs]`.
    pub fn linear(&mut self, name: &str, x: Value, outputs: usize) -> Value {
        let inputs = self.elements(x).unwrap_or(0);
        let weight = self.parameter(format!("{name}.weight"), [outputs, inputs]);
        let bias = self.parameter(format!("{name}.bias"), [outputs]);
        self.push(Op::Linear { outputs, inputs }, &[x, weight, bias])
    }

    /// An activation.
    pub fn activation(&mut self, x: Value, activation: Activation) -> Value {
        self.map(x, Function::Activation(activation))
    }

    /// An element-wise function.
    pub fn map(&mut self, x: Value, function: Function) -> Value {
        self.push(Op::Map(function), &[x])
    }

    /// An element-wise function of two values with as many numbers.
    pub fn zip(&mut self, zip: Zip, a: Value, b: Value) -> Value {
        self.push(Op::Zip(zip), &[a, b])
    }

    /// Values side by side.
    pub fn cat(&mut self, values: &[Value]) -> Value {
        let width = |value: &Value| self.elements(*value).unwrap_or(0) as u32;
        let runs = (0..).zip(values.iter().map(width));
        let runs = runs.map(|(from, count)| Run(from, 0, count, 1)).collect();
        self.push(Op::Take(runs), values)
    }

    /// Numbers `start..start + count` of a value.
    pub fn slice(&mut self, x: Value, start: usize, count: usize) -> Value {
        self.push(Op::Take(vec![Run(0, start as u32, count as u32, 1)]), &[x])
    }

    /// Any other value; operands that do not fit are an error of [`check`](Self::check).
    pub fn push(&mut self, op: Op, from: &[Value]) -> Value {
        let from = from.to_vec();
        self.nodes.push(Node { op, from });
        self.plan = None;
        Value(self.nodes.len() - 1)
    }

    /// A graph that is a chain of the layers of `net`, with their parameters; also returns its
    /// output.
    #[must_use]
    pub fn of(net: &Sequential) -> (Self, Value) {
        let mut graph = Self::new();
        let mut x = graph.input(net.inputs().unwrap_or(1));
        for (number, layer) in net.layers().iter().enumerate() {
            let own = layer.parameters();
            let parameters: Vec<_> = own
                .iter()
                .map(|(name, values, shape)| {
                    graph.parameters.push(Parameter {
                        name: format!("{number}.{name}"),
                        values: Arc::clone(values),
                        shape: shape.clone(),
                    });
                    graph.push(Op::Parameter(graph.parameters.len() - 1), &[])
                })
                .collect();
            x = match layer {
                Layer::Linear(linear) => {
                    let (outputs, inputs) = (linear.outputs(), linear.inputs());
                    graph.push(
                        Op::Linear { outputs, inputs },
                        &[&[x], &parameters[..]].concat(),
                    )
                }
                Layer::Activation(activation) => graph.activation(x, *activation),
                Layer::LayerNorm(norm) => {
                    let (run, eps) = (norm.features(), norm.eps);
                    let normal = graph.push(Op::Normalize { run, eps }, &[x]);
                    let scaled = graph.zip(Zip::Mul, normal, parameters[0]);
                    graph.zip(Zip::Add, scaled, parameters[1])
                }
                Layer::Flatten => x,
            };
        }
        (graph, x)
    }

    /// Numbers in a row of each input.
    #[must_use]
    pub fn inputs(&self) -> &[usize] {
        &self.inputs
    }

    /// Numbers in a row of a value.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn elements(&self, value: Value) -> Result<usize, PolicyError> {
        let widths = self.widths()?;
        let (asked, all) = (value.0, widths.len());
        widths
            .get(asked)
            .copied()
            .ok_or_else(|| misfit(asked, "values", all, asked))
    }

    /// Checks that the operands of all operations fit.
    ///
    /// # Errors
    /// [`PolicyError::Operands`] or [`PolicyError::Layer`] naming the first value that does not
    /// fit; [`PolicyError::LayerMemory`] naming the first parameter without memory.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.widths().map(drop)
    }

    /// Numbers in a row of each value.
    pub(super) fn widths(&self) -> Result<Vec<usize>, PolicyError> {
        let mut widths: Vec<usize> = Vec::with_capacity(self.nodes.len());
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(later) = node.from.iter().find(|from| from.0 >= number) {
                return Err(misfit(number, "values before it", number, later.0));
            }
            let from: Vec<usize> = node.from.iter().map(|from| widths[from.0]).collect();
            let missing =
                |what, index: usize, got| misfit(number, what, index.saturating_add(1), got);
            let width = match &node.op {
                Op::Input(index) => {
                    let width = self.inputs.get(*index).copied();
                    width.ok_or_else(|| missing("inputs", *index, self.inputs.len()))
                }
                Op::Parameter(index) => {
                    let parameter = self.parameters.get(*index);
                    let missing = || missing("parameters", *index, self.parameters.len());
                    parameter
                        .ok_or_else(missing)
                        .and_then(|parameter| parameter.width(number))
                }
                op => op.width(&from).ok_or_else(|| PolicyError::Operands {
                    layer: number,
                    op: op.described(),
                    got: from.clone(),
                }),
            };
            widths.push(width?);
        }
        Ok(widths)
    }

    /// Whether each value depends on inputs or draws, and not on parameters alone.
    pub(crate) fn varying(&self) -> Vec<bool> {
        let mut varying: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let own = matches!(node.op, Op::Input(_) | Op::Noise(..) | Op::Gamma(_));
            varying.push(
                own || node
                    .from
                    .iter()
                    .any(|from| varying.get(from.0) == Some(&true)),
            );
        }
        varying
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The numbers of a parameter.
    pub(crate) fn values(&self, parameter: usize) -> &[f32] {
        let parameter = self.parameters.get(parameter);
        let parameter = parameter.expect("A graph is checked before its parameters are read.");
        &parameter.values
    }

    /// Evaluates `values`: each input is `[rows, elements]`, row-major, and so is each output.
    /// Random numbers are those of environment 0 with seed 0, one frame for each row.
    ///
    /// Allocates only at the first call for these values, for a larger number of rows, or after
    /// parameters have changed.
    ///
    /// # Errors
    /// As [`check`](Self::check); [`PolicyError::Rows`] when inputs or outputs are not as many rows
    /// as the first output.
    pub fn forward(
        &mut self,
        inputs: &[&[f32]],
        values: &[Value],
        outputs: &mut [Vec<f32>],
    ) -> Result<(), PolicyError> {
        self.prepare(values)?;
        let (_, plan) = self
            .plan
            .as_mut()
            .expect("The line above has made the plan.");
        let rows = outputs.first().map_or(0, |output| plan.rows(output.len()));
        let drawn = self.noise.len()..rows;
        self.noise
            .extend(drawn.map(|row| Noise::new(0, 0, row as u64)));
        plan.forward(inputs, &self.noise[..rows], outputs)
    }

    /// Makes the plan for `values`, unless it is there already: computes values that depend on
    /// parameters alone, and packs weights.
    pub(crate) fn prepare(&mut self, values: &[Value]) -> Result<(), PolicyError> {
        if self.plan.as_ref().is_none_or(|(of, _)| of != values) {
            self.plan = Some((values.to_vec(), self.planned(values)?));
        }
        Ok(())
    }

    /// A plan for `values`.
    pub(super) fn planned(&self, values: &[Value]) -> Result<Plan, PolicyError> {
        Plan::new(self, &self.widths()?, values)
    }

    /// The plan that [`prepare`](Self::prepare) has made.
    pub(crate) fn plan(&mut self) -> Option<&mut Plan> {
        self.plan.as_mut().map(|(_, plan)| plan)
    }

    /// Takes over the parameters in `weights`, all or (on error) none.
    ///
    /// # Errors
    /// [`WeightsError::Misfits`] naming every tensor that is missing, unexpected, or of another
    /// shape or element type.
    pub fn load(&mut self, weights: &Weights) -> Result<(), WeightsError> {
        let mut reader = Reader::new(weights, "");
        let read = self.read(&mut reader);
        reader.finish()?;
        for (parameter, values) in self.parameters.iter_mut().zip(read) {
            parameter.values = values.into();
        }
        self.plan = None;
        Ok(())
    }

    /// Reads all parameters without changing any.
    pub(crate) fn read(&self, reader: &mut Reader<'_>) -> Vec<Vec<f32>> {
        let parameters = self.parameters.iter();
        parameters
            .map(|parameter| reader.take(&parameter.name, &parameter.shape))
            .collect()
    }

    /// A copy of all parameters, by name.
    #[must_use]
    pub fn weights(&self) -> Weights {
        let mut weights = Weights::new([]);
        for parameter in &self.parameters {
            put(
                &mut weights,
                &parameter.name,
                &parameter.values,
                &parameter.shape,
            );
        }
        weights
    }

    /// Allocates parameters after deserialization, which leaves them out.
    pub(crate) fn allocate(&mut self) -> Result<(), PolicyError> {
        for (number, parameter) in self.parameters.iter_mut().enumerate() {
            let values = zeros(&parameter.shape);
            let values = values.ok_or_else(|| too_large(number, &parameter.shape))?;
            parameter.values = values.into();
        }
        Ok(())
    }
}

impl Parameter {
    /// Its number of elements, as the value `number` of a graph.
    fn width(&self, number: usize) -> Result<usize, PolicyError> {
        match elements(&self.shape) == Some(self.values.len()) {
            true => Ok(self.values.len()),
            false => Err(too_large(number, &self.shape)),
        }
    }
}

/// The number of elements of a parameter of this shape; `None` if it overflows.
fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |a, &b| a.checked_mul(b))
}

/// The initial values of a parameter; `None` if there is no memory for them.
fn zeros(shape: &[usize]) -> Option<Vec<f32>> {
    super::layer::filled(0.0, elements(shape)?)
}

fn too_large(layer: usize, shape: &[usize]) -> PolicyError {
    PolicyError::LayerMemory {
        layer,
        kind: "Graph",
        inputs: shape.last().copied().unwrap_or(0),
        outputs: shape.first().copied().unwrap_or(0),
    }
}

fn misfit(layer: usize, what: &'static str, expected: usize, got: usize) -> PolicyError {
    PolicyError::Layer {
        layer,
        kind: "Graph",
        what,
        expected,
        got,
    }
}

impl Op {
    /// Its name and its own numbers, unless they may be many.
    fn described(&self) -> String {
        match self {
            Self::Constant(_) => "Constant".to_owned(),
            Self::Take(_) => "Take".to_owned(),
            other => format!("{other:?}"),
        }
    }

    /// The width of the operation's result, for operands of the widths `from`; `None` if they do
    /// not fit.
    fn width(&self, from: &[usize]) -> Option<usize> {
        let whole = |width: usize, run: usize| {
            (run > 0 && width > 0 && width.is_multiple_of(run)).then_some(width)
        };
        match (self, from) {
            (Self::Constant(bits), []) => Some(bits.len()),
            (Self::Noise(_, elements, _), []) => Some(*elements),
            (Self::Linear { outputs, inputs }, [x, weight, bias @ ..]) => {
                let fits = inputs.checked_mul(*outputs) == Some(*weight) && *outputs > 0;
                let biased = matches!(bias, []) || bias == [*outputs];
                whole(*x, *inputs)
                    .filter(|_| fits && biased)
                    .map(|x| x / inputs * outputs)
            }
            (
                Self::MatMul {
                    rows,
                    inner,
                    columns,
                },
                [a, b],
            ) => {
                let size = |rows: &usize, columns: &usize| rows.checked_mul(*columns);
                let (a, b) = (
                    whole(*a, size(rows, inner)?)? / size(rows, inner)?,
                    whole(*b, size(inner, columns)?)? / size(inner, columns)?,
                );
                size(rows, columns).filter(|_| a == b)?.checked_mul(a)
            }
            (Self::Map(_) | Self::Within { .. } | Self::Gamma(_), [x]) => Some(*x),
            (Self::Zip(_), [a, b]) => (a == b).then_some(*a),
            (Self::Where, [test, a, b]) => (test == a && a == b).then_some(*a),
            (Self::Take(runs), _) => runs.iter().try_fold(0, |sum, run| {
                let last = i64::from(run.1) + i64::from(run.3) * (i64::from(run.2) - 1);
                let width = from.get(run.0 as usize).copied().unwrap_or(0) as i64;
                let fits = run.2 > 0 && i64::from(run.1) < width && (0..width).contains(&last);
                fits.then_some(sum + run.2 as usize)
            }),
            (Self::Reduce(_, run), [x]) => whole(*x, *run).map(|x| x / run),
            (Self::Softmax(run) | Self::LogSoftmax(run) | Self::Normalize { run, .. }, [x]) => {
                whole(*x, *run)
            }
            (Self::Lookup(run), [table, index]) => whole(*table, *run).map(|_| index * run),
            (Self::Gather(run), [x, index]) => {
                let runs = whole(*x, *run)? / run;
                index.is_multiple_of(runs).then_some(*index)
            }
            (Self::Pick(run), [weights, uniform]) => whole(*weights, *run)
                .map(|x| x / run)
                .filter(|runs| runs == uniform),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
