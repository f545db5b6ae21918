//! The 4-64-64-2 tanh network as one would write it by hand: loops over rows, weights input by
//! input so that the compiler can use vectors, a rational tanh instead of the library's. Each bench
//! uses its share of it.
#![allow(dead_code)]

use windrow::{Weights, nn::Sequential};

const HIDDEN: usize = 64;

/// The network that both sides evaluate.
pub fn network() -> Sequential {
    Sequential::new()
        .linear(4, HIDDEN)
        .tanh()
        .linear(HIDDEN, HIDDEN)
        .tanh()
        .linear(HIDDEN, 2)
        .seed(11)
}

/// Its weights, `[input][output]` a layer.
pub struct PlainNet {
    first: Layer<4, HIDDEN>,
    second: Layer<HIDDEN, HIDDEN>,
    last: Layer<HIDDEN, 2>,
}

struct Layer<const IN: usize, const OUT: usize> {
    weight: Box<[[f32; OUT]; IN]>,
    bias: [f32; OUT],
}

impl<const IN: usize, const OUT: usize> Layer<IN, OUT> {
    fn new(weights: &Weights, name: &str) -> Self {
        let values = |part: &str| weights.as_slice::<f32>(&*format!("{name}.{part}")).unwrap();
        let (weight, bias) = (values("weight"), values("bias"));
        Self {
            weight: Box::new(std::array::from_fn(|i| {
                std::array::from_fn(|o| weight[o * IN + i])
            })),
            bias: bias.try_into().unwrap(),
        }
    }

    #[inline(always)]
    fn forward(&self, input: &[f32; IN]) -> [f32; OUT] {
        let mut out = self.bias;
        for (x, weights) in input.iter().zip(self.weight.iter()) {
            for (out, weight) in out.iter_mut().zip(weights) {
                *out += x * weight;
            }
        }
        out
    }
}

impl PlainNet {
    pub fn new(weights: &Weights) -> Self {
        Self {
            first: Layer::new(weights, "0"),
            second: Layer::new(weights, "2"),
            last: Layer::new(weights, "4"),
        }
    }

    #[inline(always)]
    pub fn logits(&self, observation: &[f32; 4]) -> [f32; 2] {
        let hidden = self.first.forward(observation).map(tanh);
        let hidden = self.second.forward(&hidden).map(tanh);
        self.last.forward(&hidden)
    }
}

/// A quotient of polynomials, within 4e-7 of tanh.
///
/// Source: the approximation that Eigen and XLA publish.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    const P: [f32; 7] = [
        -2.760_768_5e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297e-8,
        1.485_722_4e-5,
        6.372_619e-4,
        4.893_524_6e-3,
    ];
    const Q: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
    let x = x.clamp(-7.9, 7.9);
    let square = x * x;
    let horner = |c: &[f32]| c.iter().fold(0.0, |sum, c| sum * square + c);
    x * horner(&P) / horner(&Q)
}
