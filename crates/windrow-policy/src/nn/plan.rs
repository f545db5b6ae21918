//! A network prepared for evaluation: packed weights, fused steps, scratch memory.

use pulp::{Arch, Simd, WithSimd};

use super::aligned::Aligned;
use super::kernel::{Packed, padded};
use super::{Activation, Function, Layer, LayerNorm};

/// Rows that pass through the whole network before the next ones, so that values between two layers
/// stay in the nearest caches and scratch memory is bounded.
pub(super) const BLOCK: usize = 64;

#[derive(Debug, Clone)]
enum Step {
    /// A linear layer with the function after it.
    Linear(Packed, Option<Activation>),
    Activation(Activation),
    Norm(LayerNorm),
}

/// The steps and the memory of [`forward`](Plan::forward).
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    steps: Vec<Step>,
    inputs: usize,
    outputs: usize,
    /// `[BLOCK, widest layer]` each: what a layer reads and what it writes.
    scratch: [Aligned; 2],
    arch: Arch,
}

impl Plan {
    /// The plan of checked layers for this processor. Where no layer says how many numbers a row
    /// has, each number is a row.
    pub(crate) fn new(layers: &[Layer]) -> Self {
        Self::for_arch(layers, Arch::new())
    }

    fn for_arch(layers: &[Layer], arch: Arch) -> Self {
        let inputs = layers.iter().find_map(Layer::inputs).unwrap_or(1);
        let lanes = arch.dispatch(Lanes);
        let mut steps = Vec::new();
        let (mut outputs, mut widest) = (inputs, inputs);
        for layer in layers {
            match (layer, steps.last_mut()) {
                (Layer::Activation(next), Some(Step::Linear(_, after @ None))) => {
                    *after = Some(*next);
                }
                (Layer::Activation(next), _) => steps.push(Step::Activation(*next)),
                (Layer::LayerNorm(norm), _) => steps.push(Step::Norm(norm.clone())),
                (Layer::Flatten, _) => {}
                (Layer::Linear(linear), _) => {
                    let mut packed = Packed::zeros(linear.inputs, linear.outputs, lanes);
                    packed.pack(&linear.weight, &linear.bias);
                    steps.push(Step::Linear(packed, None));
                    outputs = linear.outputs;
                    widest = widest.max(outputs);
                }
            }
        }
        let scratch = Aligned::zeros(BLOCK * padded(widest));
        Self {
            steps,
            inputs,
            outputs,
            scratch: [scratch.clone(), scratch],
            arch,
        }
    }

    /// Evaluates the network on `input`, `rows` rows of as many numbers as it has inputs, into
    /// `[rows, outputs]`; never allocates.
    pub(crate) fn forward(&mut self, rows: usize, mut input: &[f32], mut out: &mut [f32]) {
        let mut left = rows;
        while left > 0 {
            let rows = left.min(BLOCK);
            let (block, rest) = input.split_at(rows * self.inputs);
            let (written, others) = out.split_at_mut(rows * self.outputs);
            self.block(rows, block, written);
            (input, out) = (rest, others);
            left -= rows;
        }
    }

    /// Numbers in a row of the input and of the output.
    #[inline(always)]
    pub(crate) fn widths(&self) -> (usize, usize) {
        (self.inputs, self.outputs)
    }

    /// At most [`BLOCK`] rows.
    fn block(&mut self, rows: usize, input: &[f32], out: &mut [f32]) {
        let [from, to] = &mut self.scratch;
        let (mut from, mut to) = (from.as_mut_slice(), to.as_mut_slice());
        let (mut stride, mut untouched) = (self.inputs, true);
        for step in &self.steps {
            if let Step::Linear(packed, activation) = step {
                self.arch.dispatch(&mut Apply {
                    linear: Some((packed, if untouched { input } else { &*from }, stride)),
                    function: activation.map(Function::Activation),
                    rows,
                    values: &mut to[..rows * packed.padded()],
                });
                stride = packed.padded();
                std::mem::swap(&mut from, &mut to);
            } else {
                if untouched {
                    let padded = padded(stride);
                    copy_rows(rows, input, stride, from, padded);
                    stride = padded;
                }
                let values = &mut from[..rows * stride];
                match step {
                    Step::Norm(norm) => norm.apply(values, stride),
                    Step::Activation(activation) => self.arch.dispatch(&mut Apply {
                        linear: None,
                        function: Some(Function::Activation(*activation)),
                        rows,
                        values,
                    }),
                    Step::Linear(..) => {}
                }
            }
            untouched = false;
        }
        let result = if untouched { input } else { &*from };
        copy_rows(rows, result, stride, out, self.outputs);
    }
}

/// Copies `rows` rows from one distance to another, as much of each as both have.
#[inline(always)]
pub(super) fn copy_rows(
    rows: usize,
    from: &[f32],
    from_stride: usize,
    to: &mut [f32],
    to_stride: usize,
) {
    let width = from_stride.min(to_stride);
    for row in 0..rows {
        let from = &from[row * from_stride..][..width];
        let to = &mut to[row * to_stride..][..width];
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// A linear layer and a function after it, either of which may be missing. Compiled apart from the
/// loop over steps: inside of it, the compiler would prepare for all functions at once, which takes
/// longer than a row of a small network.
///
/// Dispatched by reference: moved, it would be read in wider pieces than it was just written in,
/// which makes a processor wait.
pub(super) struct Apply<'a> {
    /// The layer, and its inputs with the distance of their rows.
    pub(super) linear: Option<(&'a Packed, &'a [f32], usize)>,
    pub(super) function: Option<Function>,
    pub(super) rows: usize,
    /// `[rows, padded outputs]`.
    pub(super) values: &'a mut [f32],
}

impl WithSimd for &mut Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if let Some((packed, input, stride)) = self.linear {
            packed.apply(simd, self.rows, input, stride, self.values);
        }
        if let Some(function) = self.function {
            function.apply(simd, self.values);
        }
    }
}

/// Asks for the vector length, in `f32` elements.
pub(super) struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use pulp::x86::V3;

    use super::*;
    use crate::Noise;
    use crate::nn::Sequential;

    /// Every kind of layer, with panels of all widths.
    fn net() -> Sequential {
        let net = Sequential::new().linear(19, 300).tanh().layer_norm(300);
        let net = net.linear(300, 130).silu().linear(130, 49).gelu();
        let net = net.linear(49, 80).elu(1.0).linear(80, 64).sigmoid();
        let net = net.linear(64, 33).gelu_tanh().relu().linear(33, 48);
        net.linear(48, 2).seed(6)
    }

    fn evaluate(arch: Arch, rows: usize) -> Vec<f32> {
        let mut noise = Noise::new(1, 2, 3);
        let input: Vec<f32> = (0..rows * 19).map(|_| noise.normal() as f32).collect();
        let mut out = vec![0.0; rows * 2];
        Plan::for_arch(net().layers(), arch).forward(rows, &input, &mut out);
        out
    }

    #[test]
    fn all_instruction_sets_agree() {
        let scalar = evaluate(Arch::Scalar, 131);
        let best = evaluate(Arch::new(), 131);
        // Without fused multiply-add every product is rounded.
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
        assert!(scalar.iter().zip(&best).all(close));
        // With it, all operations have the same order, so every bit is the same.
        if let Some(v3) = V3::try_new() {
            assert_eq!(evaluate(Arch::V3(v3), 131), best);
        }
        for rows in 1..12 {
            assert_eq!(evaluate(Arch::Scalar, rows), scalar[..rows * 2]);
        }
    }
}
