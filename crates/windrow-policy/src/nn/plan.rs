//! A network prepared for evaluation: packed weights, fused steps, scratch memory.

use pulp::{Arch, Simd, WithSimd};

use super::aligned::Aligned;
use super::kernel::{Packed, padded};
use super::{Activation, Layer, LayerNorm};

/// Rows that pass through the whole network before the next ones, so that values between two layers stay in the nearest caches and
/// scratch memory is bounded.
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
    /// The plan of checked layers for this processor, on rows of `inputs` numbers.
    pub(crate) fn new(layers: &[Layer], inputs: usize) -> Self {
        Self::for_arch(layers, inputs, Arch::new())
    }

    fn for_arch(layers: &[Layer], inputs: usize, arch: Arch) -> Self {
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

    /// Evaluates the network on `[rows, inputs]` into `[rows, outputs]`; never allocates.
    pub(crate) fn forward(&mut self, input: &[f32], out: &mut [f32]) {
        let arch = self.arch;
        arch.dispatch(Forward {
            plan: self,
            input,
            out,
        });
    }

    /// At most [`BLOCK`] rows.
    #[inline(always)]
    fn block<S: Simd>(&mut self, simd: S, input: &[f32], out: &mut [f32]) {
        let rows = out.len() / self.outputs.max(1);
        let [from, to] = &mut self.scratch;
        let (mut from, mut to) = (from.as_mut_slice(), to.as_mut_slice());
        let (mut stride, mut untouched) = (self.inputs, true);
        for step in &self.steps {
            if let Step::Linear(packed, activation) = step {
                let source = if untouched { input } else { &*from };
                let target = &mut to[..rows * packed.padded()];
                packed.apply(simd, source, stride, target);
                if let Some(activation) = activation {
                    activation.apply(simd, target);
                }
                stride = packed.padded();
                std::mem::swap(&mut from, &mut to);
            } else {
                if untouched {
                    copy_rows(input, stride, from, padded(stride));
                    stride = padded(stride);
                }
                match step {
                    Step::Norm(norm) => norm.apply(&mut from[..rows * stride], stride),
                    Step::Activation(activation) => {
                        activation.apply(simd, &mut from[..rows * stride]);
                    }
                    Step::Linear(..) => {}
                }
            }
            untouched = false;
        }
        let result = if untouched { input } else { &*from };
        copy_rows(result, stride, out, self.outputs);
    }
}

/// Copies rows from one distance to another, as much of each as both have.
#[inline(always)]
pub(super) fn copy_rows(from: &[f32], from_stride: usize, to: &mut [f32], to_stride: usize) {
    let rows = from.chunks_exact(from_stride.max(1));
    for (to, from) in to.chunks_exact_mut(to_stride.max(1)).zip(rows) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

struct Forward<'a> {
    plan: &'a mut Plan,
    input: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (inputs, outputs) = (self.plan.inputs, self.plan.outputs);
        let blocks = self.input.chunks(BLOCK * inputs.max(1));
        for (input, out) in blocks.zip(self.out.chunks_mut(BLOCK * outputs.max(1))) {
            self.plan.block(simd, input, out);
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
        net.linear(64, 33).gelu_tanh().relu().linear(33, 2).seed(6)
    }

    fn evaluate(arch: Arch, rows: usize) -> Vec<f32> {
        let mut noise = Noise::new(1, 2, 3);
        let input: Vec<f32> = (0..rows * 19).map(|_| noise.normal() as f32).collect();
        let mut out = vec![0.0; rows * 2];
        Plan::for_arch(net().layers(), 19, arch).forward(&input, &mut out);
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
