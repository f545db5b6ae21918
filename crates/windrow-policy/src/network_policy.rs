//! A network and a head as a policy.

mod serde_form;

use std::path::Path;

use tensordict::{DType, NestedKey};
use windrow_env::{ChoiceCode, EnvError, StateVisitor, largest};
use windrow_slab::{Key, LeafSpec, RowsMut};

use crate::categorical::{Categorical, Choose};
use crate::fit::{self, Action};
use crate::gaussian::{Draw, Gaussian, check};
use crate::graph_policy::write_column;
use crate::nn::{Sequential, put};
use crate::observe::Observe;
use crate::weights::{Reader, read_file};
use crate::{
    Binding, ExplorationType, Head, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec, Scale,
    Weights, WeightsError,
};

pub(crate) use serde_form::NetworkRepr;

/// A [`Sequential`] network whose outputs a [`Head`] turns into actions.
///
/// Observes the leaf `"observation"`, or those given by [`in_key`](Self::in_key), one after the
/// other. Parameters are named as in PyTorch: the network's layers by their numbers (`"0.weight"`),
/// the head's by its own name (`"log_std"`).
///
/// ```
/// use tensordict::DType;
/// use windrow_env::{EnvSpec, Spec};
/// use windrow_policy::{Binding, Head, NetworkPolicy, Policy, nn::Sequential};
///
/// let env = EnvSpec::new("CartPole-v1", Spec::unbounded(DType::F32, [4]), Spec::discrete(2));
/// let net = Sequential::new().linear(4, 64).tanh().linear(64, 2);
/// let mut policy = NetworkPolicy::new(net, Head::Categorical).return_log_prob(true);
/// let columns = policy.bind(&Binding::new(&env, 1))?.columns;
/// assert_eq!(columns[1].key.last(), "action_log_prob");
/// # Ok::<(), windrow_policy::PolicyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct NetworkPolicy {
    net: Sequential,
    head: Head,
    in_keys: Vec<NestedKey>,
    prefix: String,
    log_prob: bool,
    params: bool,
    /// Empty when the head has no parameter.
    log_std: Vec<f32>,
    bound: Option<Bound>,
}

/// The parts that binding to an environment determines.
#[derive(Debug, Clone)]
struct Bound {
    observe: Observe,
    act: Act,
    /// The network's outputs, `[rows, width]`.
    outputs: Vec<f32>,
    /// Numbers in a row of `outputs`.
    width: usize,
    real: RealRows,
}

/// Memory for real-valued actions before they are written in the element type of their leaf.
#[derive(Debug, Clone, Default)]
struct RealRows {
    actions: Vec<f32>,
    scales: Vec<f32>,
    log_probs: Vec<f32>,
}

/// How outputs become an action: chosen when the policy is bound.
#[derive(Debug, Clone)]
enum Act {
    Sample(Categorical),
    /// The choice with the largest number.
    Largest {
        code: ChoiceCode,
    },
    Copy(DType),
    Normal(Gaussian, DType),
}

impl NetworkPolicy {
    /// The network and what its outputs mean.
    #[must_use]
    pub fn new(net: Sequential, head: Head) -> Self {
        let log_std = match &head {
            Head::Normal(Scale::Parameter { initial, .. })
            | Head::TanhNormal(Scale::Parameter { initial, .. }) => {
                // `bind` reports what is wrong with the network.
                let sound = net.check().is_ok();
                vec![*initial; net.outputs().filter(|_| sound).unwrap_or(0)]
            }
            _ => Vec::new(),
        };
        Self {
            net,
            head,
            in_keys: Vec::new(),
            prefix: String::new(),
            log_prob: false,
            params: false,
            log_std,
            bound: None,
        }
    }

    /// Observes this leaf, behind those of earlier calls.
    #[must_use]
    pub fn in_key(mut self, key: impl Into<NestedKey>) -> Self {
        self.in_keys.push(key.into());
        self
    }

    /// Names of parameters start with this: `"actor."` for a network inside a larger module. Others
    /// are left alone.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            ..self
        }
    }

    /// Also writes `action_log_prob`, `float32 []`.
    #[must_use]
    pub fn return_log_prob(self, log_prob: bool) -> Self {
        Self { log_prob, ..self }
    }

    /// Also writes the distribution: `logits`, or `loc` and `scale`, `float32`.
    #[must_use]
    pub fn return_params(self, params: bool) -> Self {
        Self { params, ..self }
    }

    /// The network.
    #[must_use]
    pub fn network(&self) -> &Sequential {
        &self.net
    }

    /// As [`load`](Policy::load), from a safetensors file.
    ///
    /// # Errors
    /// As [`load`](Policy::load), with the path.
    pub fn load_file(&mut self, path: impl AsRef<Path>) -> Result<(), WeightsError> {
        let path = path.as_ref();
        self.load_weights(&read_file(path)?)
            .map_err(|error| error.in_file(path))
    }

    fn load_weights(&mut self, weights: &Weights) -> Result<(), WeightsError> {
        let mut reader = Reader::new(weights, &self.prefix);
        let network = self.net.read(&mut reader);
        let log_std = self
            .log_std_name()
            .map(|name| reader.take(name, &[self.log_std.len()]));
        reader.finish()?;
        self.net.set(network);
        self.log_std = log_std.unwrap_or_default();
        Ok(())
    }

    fn log_std_name(&self) -> Option<&str> {
        match &self.head {
            Head::Normal(Scale::Parameter { name, .. })
            | Head::TanhNormal(Scale::Parameter { name, .. }) => Some(name),
            _ => None,
        }
    }

    /// The extra columns for these actions.
    fn extra_columns(&self, act: &Act, width: usize) -> Vec<LeafSpec> {
        let mut extra = Vec::new();
        let column = |name, shape: &[usize]| LeafSpec::new(name, DType::F32, shape);
        if self.log_prob {
            extra.push(column("action_log_prob", &[]));
        }
        if self.params {
            match act {
                Act::Sample(_) => extra.push(column("logits", &[width])),
                Act::Normal(normal, _) => {
                    extra.push(column("loc", &[normal.actions]));
                    extra.push(column("scale", &[normal.actions]));
                }
                Act::Largest { .. } | Act::Copy(_) => {}
            }
        }
        extra
    }

    fn name(&self) -> String {
        let layers: Vec<_> = self.net.layers().iter().map(|layer| layer.name()).collect();
        format!("network policy ({})", layers.join(", "))
    }
}

impl Policy for NetworkPolicy {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let env = binding.spec;
        self.net.prepare()?;
        let name = self.name();
        let fit = fit::Fit { policy: &name, env };
        let observe = Observe::new(&fit, &self.in_keys)?;
        fit.equal(
            "numbers in an observation",
            self.net.inputs(),
            observe.elements(),
        )?;
        let width = self.net.outputs().unwrap_or(observe.elements());
        let act = match fit.action(&self.head, width)? {
            Action::Choices { counts, code } => match self.head {
                Head::Categorical => Act::Sample(Categorical::new(counts, code)),
                _ => Act::Largest { code },
            },
            Action::Copy(dtype) => Act::Copy(dtype),
            Action::Normal(normal, dtype) => Act::Normal(normal, dtype),
        };
        if matches!(act, Act::Largest { .. } | Act::Copy(_)) && (self.log_prob || self.params) {
            return Err(fit.error(
                "extra columns",
                "none, since the head has no distribution",
                "some",
            ));
        }
        let mut columns = env.action_leaves();
        columns.extend(self.extra_columns(&act, width));
        self.bound = Some(Bound {
            observe,
            act,
            outputs: Vec::new(),
            width,
            real: RealRows::default(),
        });
        Ok(PolicySpec::new(columns))
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        let Some(bound) = &mut self.bound else {
            return Err(PolicyError::NotBound {
                policy: "network policy",
            });
        };
        let rows = out.envs();
        input.check_rows(rows)?;
        fit_len(&mut bound.outputs, rows * bound.width);
        let observation = bound.observe.read(input.obs)?;
        self.net.forward(observation, &mut bound.outputs)?;
        let extras = Extras {
            log_prob: self.log_prob.then_some(Key::new(1)),
            params: self.params.then_some(1 + usize::from(self.log_prob)),
        };
        bound.write(input, &self.log_std, extras, out)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        let mut reader = Reader::checking(weights, &self.prefix);
        self.net.read(&mut reader);
        if let Some(name) = self.log_std_name() {
            reader.take(name, &[self.log_std.len()]);
        }
        Ok(reader.finish()?)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        Ok(self.load_weights(weights)?)
    }

    fn weights(&self) -> Weights {
        let mut weights = self.net.weights_prefixed(&self.prefix);
        if let Some(name) = self.log_std_name() {
            let name = format!("{}{name}", self.prefix);
            put(&mut weights, &name, &self.log_std, &[self.log_std.len()]);
        }
        weights
    }

    fn recipe(&self) -> Option<PolicyRecipe> {
        let mut unbound = self.clone();
        unbound.bound = None;
        Some(PolicyRecipe::network(unbound))
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

/// Where the extra columns go.
#[derive(Clone, Copy)]
struct Extras {
    log_prob: Option<Key<f32>>,
    /// Leaf of the first of the distribution's parameters.
    params: Option<usize>,
}

/// The only action leaf that heads write.
const ACTION: usize = 0;

impl Bound {
    fn write(
        &mut self,
        input: &PolicyIn<'_>,
        log_std: &[f32],
        extras: Extras,
        mut out: RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        let rows = out.envs();
        let sample = input.exploration == ExplorationType::Random;
        match &mut self.act {
            Act::Sample(categorical) => {
                fit_len(&mut self.real.log_probs, rows);
                categorical.act(Choose {
                    input,
                    logits: &self.outputs,
                    sample,
                    actions: out.get_mut(Key::new(ACTION))?,
                    log_probs: extras.log_prob.map(|_| self.real.log_probs.as_mut_slice()),
                })?;
                if let Some(leaf) = extras.params {
                    out.get_mut(Key::new(leaf))?.copy_from_slice(&self.outputs);
                }
            }
            Act::Largest { code } => {
                let actions = out.get_mut::<i64>(Key::new(ACTION))?;
                actions.fill(0);
                let actions = actions.chunks_exact_mut(code.elements(&[self.width]));
                let rows = self.outputs.chunks_exact(self.width).zip(actions);
                for (row, (outputs, action)) in rows.enumerate() {
                    check(input, row, "output of the network", outputs)?;
                    code.write(action, 0, 0, largest(outputs));
                }
            }
            Act::Copy(dtype) => {
                for (row, outputs) in self.outputs.chunks_exact(self.width).enumerate() {
                    check(input, row, "output of the network", outputs)?;
                }
                write_column(*dtype, ACTION, &self.outputs, &mut out)?;
            }
            Act::Normal(normal, dtype) => {
                self.real.fit(rows, normal.actions);
                let (outputs, real) = (&self.outputs, &mut self.real);
                normal.act(Draw {
                    input,
                    outputs,
                    log_std,
                    sample,
                    actions: &mut real.actions,
                    scales: &mut real.scales,
                    log_probs: extras.log_prob.map(|_| real.log_probs.as_mut_slice()),
                })?;
                write_column(*dtype, ACTION, &real.actions, &mut out)?;
                if let Some(leaf) = extras.params {
                    let means = outputs.chunks_exact(self.width);
                    let loc = out.get_mut::<f32>(Key::new(leaf))?;
                    for (loc, means) in loc.chunks_exact_mut(normal.actions).zip(means) {
                        loc.copy_from_slice(&means[..normal.actions]);
                    }
                    out.get_mut(Key::new(leaf + 1))?
                        .copy_from_slice(&real.scales);
                }
            }
        }
        if let Some(key) = extras.log_prob {
            out.get_mut(key)?.copy_from_slice(&self.real.log_probs);
        }
        Ok(())
    }
}

impl RealRows {
    fn fit(&mut self, rows: usize, actions: usize) {
        fit_len(&mut self.actions, rows * actions);
        fit_len(&mut self.scales, rows * actions);
        fit_len(&mut self.log_probs, rows);
    }
}

/// Resizes `values` to `len`; allocates only if it was never that long.
fn fit_len(values: &mut Vec<f32>, len: usize) {
    if values.len() != len {
        values.resize(len, 0.0);
    }
}

#[cfg(test)]
#[path = "network_policy_tests.rs"]
mod tests;
