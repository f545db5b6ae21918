//! A network that learns.

use anyhow::Result;
use candle_core::{Device, Module, Tensor};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use windrow::{Weights, nn::Sequential};
use windrow_candle::Vars;

/// A network, its parameters, and their optimizer.
pub(crate) struct Network {
    net: windrow_candle::Network,
    vars: Vars,
    adam: AdamW,
}

impl Network {
    /// Begins with the parameters of `net`.
    pub(crate) fn new(net: &Sequential) -> Result<Self> {
        Self::with(net, &net.weights())
    }

    /// Begins with `weights`: the parameters of `net`, and others.
    pub(crate) fn with(net: &Sequential, weights: &Weights) -> Result<Self> {
        let vars = Vars::new(weights, &Device::Cpu)?;
        let options = ParamsAdamW {
            eps: 1e-5,
            weight_decay: 0.0,
            ..ParamsAdamW::default()
        };
        Ok(Self {
            net: windrow_candle::Network::new(net, "", &vars)?,
            adam: AdamW::new(vars.all_vars(), options)?,
            vars,
        })
    }

    /// `input`: `[rows, inputs]`; the result: `[rows, outputs]`.
    pub(crate) fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(self.net.forward(input)?)
    }

    /// A parameter beside those of layers.
    pub(crate) fn parameter(&self, name: &str) -> Result<Tensor> {
        Ok(self.vars.get(name)?.as_tensor().clone())
    }

    /// Takes one step that makes `loss` smaller.
    pub(crate) fn descend(&mut self, loss: &Tensor, learning_rate: f64) -> Result<()> {
        self.adam.set_learning_rate(learning_rate);
        Ok(self.adam.backward_step(loss)?)
    }

    /// Goes the given share of the way to the parameters of `other`, a network of the same layers.
    pub(crate) fn follow(&self, other: &Self, share: f64) -> Result<()> {
        for ((_, own), (_, other)) in self.vars.iter().zip(other.vars.iter()) {
            let between = (own.affine(1.0 - share, 0.0)? + other.affine(share, 0.0)?)?;
            own.set(&between)?;
        }
        Ok(())
    }

    /// A copy of the parameters.
    pub(crate) fn weights(&self) -> Result<Weights> {
        Ok(self.vars.weights()?)
    }
}
