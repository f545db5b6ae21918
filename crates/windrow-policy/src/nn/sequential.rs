use std::path::Path;

use tensordict::Tensor;

use crate::weights::{Reader, read_file};
use crate::{PolicyError, Weights, WeightsError};

use super::plan::Plan;
use super::{Activation, Graph, Layer, LayerNorm, Linear};

/// Layers one after the other, for inference.
///
/// Layers and parameters are numbered and named as in PyTorch's `nn.Sequential`: `"0.weight"`,
/// `"0.bias"`, `"2.weight"`, …, so that a `state_dict` saved as safetensors loads as it is.
/// Parameters start like PyTorch's (uniform between plus and minus `1 / √inputs`), from
/// [`seed`](Self::seed), 0 unless said otherwise.
///
/// A row's result does not depend on other rows, to the last bit.
///
/// ```
/// use windrow_policy::nn::Sequential;
///
/// let mut net = Sequential::new().linear(4, 64).tanh().linear(64, 2).seed(7);
/// let mut logits = [0.0; 6];
/// net.forward(&[0.1; 12], &mut logits)?; // 3 rows
/// assert_eq!(logits[..2], logits[2..4]);
/// # Ok::<(), windrow_policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Sequential {
    layers: Vec<Layer>,
    seed: u64,
    /// Made at the first evaluation, and again when parameters change.
    plan: Option<Plan>,
}

impl Sequential {
    /// A network without layers, which returns its input.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A network of `layers`, which keep their parameters.
    pub(crate) fn of_layers(layers: impl Iterator<Item = Layer>) -> Self {
        Self {
            layers: layers.collect(),
            ..Self::default()
        }
    }

    /// A linear layer with bias from `inputs` to `outputs` numbers.
    #[must_use]
    pub fn linear(self, inputs: usize, outputs: usize) -> Self {
        self.layer(Layer::Linear(Linear::zeros(inputs, outputs, true)))
    }

    /// A linear layer without bias from `inputs` to `outputs` numbers.
    #[must_use]
    pub fn linear_without_bias(self, inputs: usize, outputs: usize) -> Self {
        self.layer(Layer::Linear(Linear::zeros(inputs, outputs, false)))
    }

    /// Layer normalisation over rows of `features` numbers, with `eps` 1e-5.
    #[must_use]
    pub fn layer_norm(self, features: usize) -> Self {
        self.layer(Layer::LayerNorm(LayerNorm::new(features)))
    }

    /// Layer normalisation over rows of `features` numbers, with `eps` added to the variance.
    #[must_use]
    pub fn layer_norm_with_eps(self, features: usize, eps: f32) -> Self {
        let norm = LayerNorm::new(features);
        self.layer(Layer::LayerNorm(LayerNorm { eps, ..norm }))
    }

    /// [`Activation::Tanh`].
    #[must_use]
    pub fn tanh(self) -> Self {
        self.activation(Activation::Tanh)
    }

    /// [`Activation::ReLU`].
    #[must_use]
    pub fn relu(self) -> Self {
        self.activation(Activation::ReLU)
    }

    /// [`Activation::Sigmoid`].
    #[must_use]
    pub fn sigmoid(self) -> Self {
        self.activation(Activation::Sigmoid)
    }

    /// [`Activation::SiLU`].
    #[must_use]
    pub fn silu(self) -> Self {
        self.activation(Activation::SiLU)
    }

    /// [`Activation::GELU`].
    #[must_use]
    pub fn gelu(self) -> Self {
        self.activation(Activation::GELU)
    }

    /// [`Activation::GELUTanh`].
    #[must_use]
    pub fn gelu_tanh(self) -> Self {
        self.activation(Activation::GELUTanh)
    }

    /// [`Activation::ELU`].
    #[must_use]
    pub fn elu(self, alpha: f32) -> Self {
        self.activation(Activation::ELU { alpha })
    }

    /// Flattens values of any shape; keeps its number among the layers, and changes nothing
    /// otherwise.
    #[must_use]
    pub fn flatten(self) -> Self {
        self.layer(Layer::Flatten)
    }

    /// An element-wise function.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        self.layer(Layer::Activation(activation))
    }

    pub(crate) fn layer(mut self, mut layer: Layer) -> Self {
        layer.init(self.seed, self.layers.len());
        self.layers.push(layer);
        self.plan = None;
        self
    }

    /// Draws all parameters anew from `seed`; those of layers added later too.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        for (number, layer) in self.layers.iter_mut().enumerate() {
            layer.init(seed, number);
        }
        Self {
            seed,
            plan: None,
            ..self
        }
    }

    /// The layers, in order.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Numbers in a row of the input; `None` when no layer fixes it.
    #[must_use]
    pub fn inputs(&self) -> Option<usize> {
        self.layers.iter().find_map(Layer::inputs)
    }

    /// Numbers in a row of the output; `None` when no layer fixes it.
    #[must_use]
    pub fn outputs(&self) -> Option<usize> {
        self.layers.iter().rev().find_map(Layer::outputs)
    }

    /// Checks that the sizes of adjacent layers agree, and that there was memory for all
    /// parameters.
    ///
    /// # Errors
    /// [`PolicyError::Layer`] naming the first layer that does not; [`PolicyError::LayerMemory`]
    /// naming the first without.
    pub fn check(&self) -> Result<(), PolicyError> {
        let mut width = None;
        for (number, layer) in self.layers.iter().enumerate() {
            let fail = |what, expected, got| PolicyError::Layer {
                layer: number,
                kind: layer.name(),
                what,
                expected,
                got,
            };
            match (layer.inputs(), width) {
                (Some(0), _) => return Err(fail("inputs of at least", 1, 0)),
                (Some(expected), Some(got)) if expected != got => {
                    return Err(fail("numbers in a row", expected, got));
                }
                _ => {}
            }
            if layer.outputs() == Some(0) {
                return Err(fail("outputs of at least", 1, 0));
            }
            if !layer.is_whole() {
                return Err(PolicyError::LayerMemory {
                    layer: number,
                    kind: layer.name(),
                    inputs: layer.inputs().unwrap_or(0),
                    outputs: layer.outputs().unwrap_or(0),
                });
            }
            width = layer.outputs().or(width);
        }
        Ok(())
    }

    /// Evaluates the network: `input` is `[rows, inputs]`, `out` `[rows, outputs]`, both row-major.
    ///
    /// Allocates at its first call and at the first after parameters have changed, otherwise never.
    ///
    /// # Errors
    /// [`PolicyError::Layer`] when the layers do not fit each other, [`PolicyError::Rows`] when
    /// `input` or `out` is not a whole number of rows or the two differ in it; nothing is written
    /// then.
    pub fn forward(&mut self, input: &[f32], out: &mut [f32]) -> Result<(), PolicyError> {
        let plan = self.prepare()?;
        let (inputs, outputs) = plan.ends();
        let rows = match out.len() == outputs {
            true => 1,
            false => out.len() / outputs,
        };
        if out.len() != rows * outputs || input.len() != rows * inputs {
            return Err(PolicyError::Rows {
                what: "input of the network",
                expected: rows,
                got: input.len() / inputs,
            });
        }
        plan.run(rows, &[input], &[], &mut [out])
    }

    /// Packs the parameters, unless that has been done.
    #[inline(always)]
    pub(crate) fn prepare(&mut self) -> Result<&mut Plan, PolicyError> {
        if self.plan.is_none() {
            self.check()?;
            let (graph, output) = Graph::of(self);
            self.plan = Some(graph.planned(&[output])?);
        }
        Ok(self
            .plan
            .as_mut()
            .expect("The lines above have made the plan."))
    }

    /// Takes over the parameters in `weights`, all or (on error) none.
    ///
    /// # Errors
    /// [`WeightsError::Misfits`] naming every tensor that is missing, unexpected, or of another
    /// shape or element type.
    pub fn load(&mut self, weights: &Weights) -> Result<(), WeightsError> {
        self.load_prefixed("", weights)
    }

    /// As [`load`](Self::load), from the tensors whose names start with `prefix`: `"actor."` for
    /// `"actor.0.weight"`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_prefixed(&mut self, prefix: &str, weights: &Weights) -> Result<(), WeightsError> {
        let mut reader = Reader::new(weights, prefix);
        let parameters = self.read(&mut reader);
        reader.finish()?;
        self.set(parameters);
        Ok(())
    }

    /// As [`load`](Self::load), from a safetensors file.
    ///
    /// # Errors
    /// As [`load`](Self::load), with the path; [`WeightsError::Tensor`] when the file cannot be
    /// read.
    pub fn load_file(&mut self, path: impl AsRef<Path>) -> Result<(), WeightsError> {
        self.load_file_prefixed("", path)
    }

    /// As [`load_prefixed`](Self::load_prefixed), from a safetensors file.
    ///
    /// # Errors
    /// As [`load_file`](Self::load_file).
    pub fn load_file_prefixed(
        &mut self,
        prefix: &str,
        path: impl AsRef<Path>,
    ) -> Result<(), WeightsError> {
        let path = path.as_ref();
        self.load_prefixed(prefix, &read_file(path)?)
            .map_err(|error| error.in_file(path))
    }

    /// A copy of all parameters, by name.
    #[must_use]
    pub fn weights(&self) -> Weights {
        self.weights_prefixed("")
    }

    /// As [`weights`](Self::weights), with `prefix` before every name.
    #[must_use]
    pub fn weights_prefixed(&self, prefix: &str) -> Weights {
        let mut weights = Weights::new([]);
        for (number, layer) in self.layers.iter().enumerate() {
            for (name, values, shape) in layer.parameters() {
                let name = format!("{prefix}{number}.{name}");
                put(&mut weights, &name, values, &shape);
            }
        }
        weights
    }

    /// Reads all parameters without changing any.
    pub(crate) fn read(&self, reader: &mut Reader<'_>) -> Vec<Vec<f32>> {
        let mut read = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            for (name, _, shape) in layer.parameters() {
                read.push(reader.take(&format!("{number}.{name}"), &shape));
            }
        }
        read
    }

    /// Takes over the parameters that [`read`](Self::read) returned.
    pub(crate) fn set(&mut self, parameters: Vec<Vec<f32>>) {
        let mut parameters = parameters.into_iter();
        for layer in &mut self.layers {
            layer.set_parameters(&mut parameters);
        }
        self.plan = None;
    }
}

/// Adds a copy of one parameter.
pub(crate) fn put(weights: &mut Weights, name: &str, values: &[f32], shape: &[usize]) {
    // Neither can fail: the shape is that of the values, and no name occurs twice.
    if let Ok(tensor) = Tensor::from_slice(values, shape) {
        let _ = weights.set(name, tensor);
    }
}

#[cfg(test)]
#[path = "sequential_tests.rs"]
mod tests;
