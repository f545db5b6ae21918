//! A network that learns: its outputs, how a loss changes with its parameters, and a step that
//! makes the loss smaller.
//!
//! Matrices are slices, row after row. Sources: Rumelhart et al., "Learning representations by
//! back-propagating errors", 1986; Kingma and Ba, "Adam: a method for stochastic optimization",
//! 2015.

use anyhow::Result;
use windrow::{Tensor, Weights};

use super::matrix::{Matrix, product, transpose};

/// How slowly the means of gradients and of their squares change, and what keeps steps finite.
const BETAS: [f32; 2] = [0.9, 0.999];
const EPSILON: f32 = 1e-5;

/// Linear layers with a rectifier, `max(x, 0)`, between two of them.
pub(crate) struct Network {
    layers: Vec<Layer>,
    /// Steps of Adam so far.
    steps: i32,
    /// Memory for a transposed matrix.
    transposed: Vec<f32>,
}

struct Layer {
    /// `[outputs, inputs]`.
    weight: Parameters,
    /// `[outputs]`.
    bias: Parameters,
    /// `[rows, outputs]`: what the last forward pass computed, behind the rectifier if there is
    /// one.
    output: Vec<f32>,
    /// How the loss changes with `output`.
    gradient: Vec<f32>,
}

struct Parameters {
    values: Vec<f32>,
    /// How the loss changes with each.
    gradient: Vec<f32>,
    /// Running means of `gradient` and of its square.
    mean: Vec<f32>,
    square: Vec<f32>,
}

impl Network {
    /// Begins with `weights`: `"0.weight"`, `"0.bias"`, `"2.weight"` and so on, since every
    /// rectifier takes a number too.
    pub(crate) fn new(weights: &Weights) -> Result<Self> {
        let layers = (0..weights.len() / 2).map(|i| {
            Ok(Layer {
                weight: Parameters::new(weights.as_slice(format!("{}.weight", 2 * i))?),
                bias: Parameters::new(weights.as_slice(format!("{}.bias", 2 * i))?),
                output: Vec::new(),
                gradient: Vec::new(),
            })
        });
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            steps: 0,
            transposed: Vec::new(),
        })
    }

    /// `input`: `[rows, inputs]`; the result: `[rows, outputs]`.
    pub(crate) fn forward(&mut self, input: &[f32]) -> &[f32] {
        for i in 0..self.layers.len() {
            let (before, from_here) = self.layers.split_at_mut(i);
            let input = before.last().map_or(input, |layer| &layer.output);
            let [layer, after @ ..] = from_here else {
                break;
            };
            layer.forward(input, &mut self.transposed);
            if !after.is_empty() {
                layer.output.iter_mut().for_each(|x| *x = x.max(0.0));
            }
        }
        self.layers.last().map_or(&[], |layer| &layer.output)
    }

    /// Computes how the loss changes with the parameters from how it changes with the outputs for
    /// `input`, `[rows, outputs]`. The last forward pass had the same `input`.
    pub(crate) fn backward(&mut self, input: &[f32], gradient: &[f32]) {
        if let Some(last) = self.layers.last_mut() {
            last.gradient.clear();
            last.gradient.extend_from_slice(gradient);
        }
        for i in (0..self.layers.len()).rev() {
            let (before, from_here) = self.layers.split_at_mut(i);
            let layer = &mut from_here[0];
            layer.backward(before.last().map_or(input, |layer| &layer.output));
            if let Some(before) = before.last_mut() {
                layer.pass_on(&before.output, &mut before.gradient);
            }
        }
    }

    /// Changes all parameters such that the loss becomes smaller, each by about `rate`.
    pub(crate) fn descend(&mut self, rate: f32) {
        self.steps += 1;
        // Means that began with 0 are too small at first.
        let [of_mean, of_square] = BETAS.map(|beta| 1.0 / (1.0 - beta.powi(self.steps)));
        for Layer { weight, bias, .. } in &mut self.layers {
            weight.descend(rate * of_mean, of_square);
            bias.descend(rate * of_mean, of_square);
        }
    }

    /// A copy of the parameters, under the names that they came with.
    pub(crate) fn weights(&self) -> Result<Weights> {
        let mut weights = Weights::new([]);
        for (i, layer) in self.layers.iter().enumerate() {
            let (weight, bias) = (&layer.weight.values, &layer.bias.values);
            let shape = [layer.outputs(), layer.inputs()];
            weights.set(
                format!("{}.weight", 2 * i),
                Tensor::from_slice(weight, shape)?,
            )?;
            weights.set(
                format!("{}.bias", 2 * i),
                Tensor::from_slice(bias, [bias.len()])?,
            )?;
        }
        Ok(weights)
    }
}

impl Layer {
    fn outputs(&self) -> usize {
        self.bias.values.len()
    }

    fn inputs(&self) -> usize {
        self.weight.values.len() / self.outputs()
    }

    /// `output = input weightᵀ + bias`.
    fn forward(&mut self, input: &[f32], transposed: &mut Vec<f32>) {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        transpose(&self.weight.values, inputs, transposed);
        self.output.resize(input.len() / inputs * outputs, 0.0);
        product(
            Matrix::new(input, inputs),
            transposed,
            outputs,
            &mut self.output,
        );
        for row in self.output.chunks_exact_mut(outputs) {
            row.iter_mut()
                .zip(&self.bias.values)
                .for_each(|(x, bias)| *x += bias);
        }
    }

    /// How the loss changes with weight and bias: `gradientᵀ input`, and the sum of the rows of
    /// `gradient`.
    fn backward(&mut self, input: &[f32]) {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        let by_column = Matrix::new(&self.gradient, outputs).transposed();
        product(by_column, input, inputs, &mut self.weight.gradient);
        self.bias.gradient.fill(0.0);
        for row in self.gradient.chunks_exact(outputs) {
            self.bias
                .gradient
                .iter_mut()
                .zip(row)
                .for_each(|(sum, x)| *sum += x);
        }
    }

    /// How the loss changes with the outputs of the layer before, in front of its rectifier:
    /// `gradient weight`, or nothing where the output is 0.
    fn pass_on(&self, output: &[f32], gradient: &mut Vec<f32>) {
        gradient.resize(output.len(), 0.0);
        let own = Matrix::new(&self.gradient, self.outputs());
        product(own, &self.weight.values, self.inputs(), gradient);
        for (gradient, output) in gradient.iter_mut().zip(output) {
            *gradient = if *output > 0.0 { *gradient } else { 0.0 };
        }
    }
}

impl Parameters {
    fn new(values: &[f32]) -> Self {
        let zeros = || vec![0.0; values.len()];
        Self {
            values: values.to_vec(),
            gradient: zeros(),
            mean: zeros(),
            square: zeros(),
        }
    }

    /// One step of Adam.
    fn descend(&mut self, rate: f32, of_square: f32) {
        let means = self.mean.iter_mut().zip(&mut self.square);
        let parameters = self.values.iter_mut().zip(&self.gradient);
        for ((value, gradient), (mean, square)) in parameters.zip(means) {
            *mean += (1.0 - BETAS[0]) * (gradient - *mean);
            *square += (1.0 - BETAS[1]) * (gradient * gradient - *square);
            *value -= rate * *mean / ((of_square * *square).sqrt() + EPSILON);
        }
    }
}

#[cfg(test)]
mod tests {
    use windrow::nn::Sequential;

    use super::{Layer, Network, Parameters};

    const ROWS: usize = 7;

    /// With this seed no rectifier is near its kink, where differences mean nothing.
    fn sequential() -> Sequential {
        let hidden = Sequential::new().linear(3, 9).relu().linear(9, 6).relu();
        hidden.linear(6, 2).seed(11)
    }

    fn input() -> Vec<f32> {
        (0..ROWS * 3).map(|i| (i as f32 * 0.7).sin()).collect()
    }

    /// Weights of the first layer, its biases, weights of the second one and so on.
    fn parameters(network: &mut Network, i: usize) -> &mut Parameters {
        let Layer { weight, bias, .. } = &mut network.layers[i / 2];
        match i % 2 {
            0 => weight,
            _ => bias,
        }
    }

    /// Half the sum of squared outputs: it changes with each output by as much as that output is.
    fn loss(network: &mut Network) -> f32 {
        network.forward(&input()).iter().map(|x| x * x / 2.0).sum()
    }

    #[test]
    fn outputs_are_those_of_the_policy_that_collects() {
        let mut policy = sequential();
        let mut expected = [0.0; ROWS * 2];
        policy.forward(&input(), &mut expected).unwrap();
        let mut network = Network::new(&policy.weights()).unwrap();
        for (x, y) in network.forward(&input()).iter().zip(expected) {
            assert!((x - y).abs() < 1e-6, "{x} {y}");
        }
        let same = network.weights().unwrap();
        for (name, tensor) in policy.weights().leaves() {
            assert!(same.get(name).unwrap().same_bits(tensor));
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        const STEP: f32 = 1e-3;
        let mut network = Network::new(&sequential().weights()).unwrap();
        let outputs = network.forward(&input()).to_vec();
        network.backward(&input(), &outputs);
        for i in 0..6 {
            let mut largest = 0.0_f32;
            for at in 0..parameters(&mut network, i).values.len() {
                let value = parameters(&mut network, i).values[at];
                let mut loss_at = |value: f32| {
                    parameters(&mut network, i).values[at] = value;
                    loss(&mut network)
                };
                let difference = (loss_at(value + STEP) - loss_at(value - STEP)) / (2.0 * STEP);
                loss_at(value);
                let gradient = parameters(&mut network, i).gradient[at];
                let error = (gradient - difference).abs();
                assert!(error < 1e-4, "{i} {at}: {gradient} instead of {difference}");
                largest = largest.max(gradient.abs());
            }
            assert!(largest > 0.01, "{i}: {largest}");
        }
    }

    #[test]
    fn steps_lead_to_a_small_loss() {
        let mut network = Network::new(&sequential().weights()).unwrap();
        let first = loss(&mut network);
        for _ in 0..200 {
            let outputs = network.forward(&input()).to_vec();
            network.backward(&input(), &outputs);
            network.descend(1e-2);
        }
        let last = loss(&mut network);
        assert!(last < first / 100.0, "from {first} to {last}");
    }
}
