//! The actor's distribution over actions, once more in candle so that a loss reaches its
//! parameters.
//!
//! It is the one of [`windrow::Head::TanhNormal`] with [`windrow::policy::Scale::softplus`].

use std::f64::consts::{LN_2, TAU};

use anyhow::Result;
use candle_core::{Device, Tensor};
use rand::{Rng, RngExt};
use rand_distr::StandardNormal;

use crate::common::network::Network;

/// Largest torque in either direction.
const BOUND: f64 = 2.0;
/// Smallest deviation.
const FLOOR: f64 = 0.01;

/// Actions that an actor chose, `[rows, 1]`, with the logarithm of their density, `[rows, 1]`.
pub(super) struct Sample {
    pub(super) action: Tensor,
    pub(super) log_prob: Tensor,
}

/// Draws an action for each `observation`, `[rows, 3]`, in such a way that both results can be
/// differentiated.
pub(super) fn sample(actor: &Network, observation: &Tensor, rng: &mut impl Rng) -> Result<Sample> {
    let outputs = actor.forward(observation)?;
    let mean = outputs.narrow(1, 0, 1)?;
    let shift = (1.0 - FLOOR).exp_m1().ln();
    let deviation = (softplus(&(outputs.narrow(1, 1, 1)? + shift)?)? + FLOOR)?;

    let rows = observation.dim(0)?;
    let noise: Vec<f32> = rng.sample_iter(StandardNormal).take(rows).collect();
    let noise = Tensor::from_vec(noise, (rows, 1), &Device::Cpu)?;
    let x = (mean + (&deviation * &noise)?)?;
    let density = (noise.sqr()?.affine(-0.5, -0.5 * TAU.ln())? - deviation.log()?)?;
    // Logarithm of the derivative of tanh, in a form that does not cancel.
    let slope = ((&x + softplus(&(&x * -2.0)?)?)? * -2.0)?;
    let log_prob = (density - (slope + (2.0 * LN_2 + BOUND.ln()))?)?;
    Ok(Sample {
        action: (x.tanh()? * BOUND)?,
        log_prob,
    })
}

/// `ln(1 + exp(x))`, without overflow.
fn softplus(x: &Tensor) -> Result<Tensor> {
    let tail = (x.abs()?.neg()?.exp()? + 1.0)?.log()?;
    Ok((x.relu()? + tail)?)
}
