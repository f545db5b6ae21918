//! A network of the engine, with the module that it was read out of for where the network does not
//! fit.
//!
//! Whether a network fits is known only when the policy is bound, since it depends on the
//! environments: their observations, their action space and their number. Where it does not, the
//! module acts from the beginning; a worker process, which has nothing of the module, refuses to be
//! bound, and Python builds the collector again with the module. Once a network acts, a publication
//! may say that no graph is the policy any more. Then the module acts from the next step on, for
//! good.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensordict::{NestedKey, TensorDict};
use windrow::envs::{EnvError, EnvSpec, StateVisitor};
use windrow::policy::{Backend, Binding, Policy, PolicyError, PolicyIn, PolicySpec, States};
use windrow::{LeafSpec, RowsMut, Weights, error_chain};

use super::Makers;
use super::network::{BESIDE, Lost, Network};
use super::torch::TorchPolicy;
use crate::gc::{GcRef, GcRoots};
use crate::gil::{self, attach};

/// Who acts where a network does not fit, or no longer does.
#[derive(Clone)]
pub(crate) enum Instead {
    /// Nobody: the user demanded a native policy.
    Nobody,
    /// What these functions make.
    Here(Makers),
    /// In a worker process: what another process sends once it is needed. These roots hold it.
    Sent(GcRoots),
}

/// A network that was read out of a module.
pub(super) struct Lowered {
    network: Network,
    instead: Instead,
    /// The number of the worker.
    worker: usize,
    /// Where the network was bound.
    seat: Option<Seat>,
    /// What no network is any more, with its weights, which acts from the next step on.
    lost: Option<(Lost, Weights)>,
    /// The module, where that acts.
    called: Option<Called>,
}

/// The binding of a network, to bind what acts in its place.
struct Seat {
    env: EnvSpec,
    batched: bool,
    in_caller: bool,
    columns: Vec<LeafSpec>,
    states: States,
}

/// The module that acts.
struct Called {
    policy: TorchPolicy,
    /// Names of the weights that it takes, of those that are published; none where it takes all.
    takes: Option<Vec<NestedKey>>,
    /// Whether it had a network in its place, whose states it does not have.
    is_late: bool,
}

impl Lowered {
    /// `network`, or `instead` for worker `worker` in environments that it does not fit.
    pub(super) fn new(network: Network, instead: Instead, worker: usize) -> Self {
        Self {
            network,
            instead,
            worker,
            seat: None,
            lost: None,
            called: None,
        }
    }

    /// Lets the module act from now on, bound to the environments of `input`.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] where it writes other columns than the network, or cannot be made;
    /// the errors of its methods.
    #[cold]
    fn give_way(
        &self,
        lost: &Lost,
        weights: &Weights,
        input: &PolicyIn<'_>,
    ) -> Result<Called, PolicyError> {
        let Some(seat) = &self.seat else {
            return Err(PolicyError::NotBound {
                policy: "graph policy",
            });
        };
        let makers = match &self.instead {
            Instead::Here(makers) => makers.clone(),
            Instead::Sent(roots) => makers_of(&lost.pickled, roots)?,
            Instead::Nobody => {
                return Err(PolicyError::failed(
                    "the policy was to be native, and no graph is the policy any more",
                ));
            }
        };
        let mut policy = TorchPolicy::new(makers, self.worker);
        // A call of a served policy has rows of several environments.
        let binding = Binding::new(&seat.env, input.obs.envs())
            .batched(seat.batched)
            .worker(self.worker)
            .in_caller(seat.in_caller)
            .first_rows(Some(input.obs));
        let columns = policy.bind(&binding)?.columns;
        if columns != seat.columns {
            return Err(PolicyError::failed(format!(
                "the policy is called in Python by now, and writes other columns than its graph: expected {}, got {}; build a new collector",
                described(&seat.columns),
                described(&columns)
            )));
        }
        let takes = match lost.live {
            true => Vec::new(),
            false => {
                let own = policy.weights();
                let own = own.leaves().map(|(name, _)| name);
                own.chain([NestedKey::from(BESIDE)]).collect()
            }
        };
        let mut called = Called {
            policy,
            takes: Some(takes),
            is_late: true,
        };
        called.load(weights)?;
        Ok(called)
    }

    /// Whether the network has states of environments.
    fn remembers(&self) -> bool {
        self.seat
            .as_ref()
            .is_some_and(|seat| seat.states == States::ByPlace)
    }
}

impl Called {
    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        match &self.takes {
            None => self.policy.load(weights),
            // It is the user's own module, which has them.
            Some(takes) if takes.is_empty() => Ok(()),
            Some(takes) => {
                let mut own = TensorDict::new([]);
                for (name, tensor) in weights.leaves().filter(|(name, _)| takes.contains(name)) {
                    own.set(name, tensor.clone()).map_err(PolicyError::failed)?;
                }
                self.policy.load(&own)
            }
        }
    }
}

impl Policy for Lowered {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        match (self.network.bind(binding), &self.instead) {
            (Ok(bound), _) => {
                self.seat = Some(Seat {
                    env: binding.spec.clone(),
                    batched: binding.batched,
                    in_caller: binding.in_caller,
                    columns: bound.columns.clone(),
                    states: bound.states,
                });
                Ok(bound)
            }
            (Err(error), Instead::Here(makers)) => {
                let mut policy = TorchPolicy::new(makers.clone(), self.worker);
                let bound = policy.bind(binding)?;
                tell_why(makers.maker(self.worker), &error)?;
                self.called = Some(Called {
                    policy,
                    takes: None,
                    is_late: false,
                });
                Ok(bound)
            }
            (Err(error), Instead::Sent(roots)) => Err(refused(&error, roots)),
            (Err(error), Instead::Nobody) => Err(error),
        }
    }

    // Asked before `bind`, so where a module may have to act, this asks for the rows that it would
    // be called with.
    fn needs_first_rows(&self) -> bool {
        matches!(self.instead, Instead::Here(_))
    }

    // The reference takes the same side as the policies that were bound, so that it checks the
    // weights that they load. A module that acts since no graph is the policy any more takes the
    // same weights as the network.
    fn become_reference(&mut self, bound: &PolicySpec) {
        if let (Backend::Framework, Instead::Here(makers)) = (bound.backend, &self.instead) {
            self.called = Some(Called {
                policy: TorchPolicy::new(makers.clone(), self.worker),
                takes: None,
                is_late: false,
            });
        }
    }

    #[inline]
    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        if let Some((lost, weights)) = &self.lost {
            self.called = Some(self.give_way(lost, weights, input)?);
            self.lost = None;
        }
        match &mut self.called {
            None => self.network.act(input, out),
            Some(called) => called.policy.act(input, out),
        }
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        if let Some(called) = &mut self.called {
            return called.load(weights);
        }
        let lost = self.network.load(weights)?;
        self.lost = lost.map(|lost| (lost, weights.detach()));
        Ok(())
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        match &self.called {
            None => self.network.check(weights),
            Some(called) => called.policy.check(weights),
        }
    }

    fn weights(&self) -> Weights {
        match &self.called {
            None => self.network.weights(),
            Some(called) => called.policy.weights(),
        }
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let would_lose = !state.is_loading() && self.remembers();
        match &mut self.called {
            Some(called) if !called.is_late => called.policy.visit_state(state),
            // A collector that goes on from the state begins with the network, which must not have
            // states of rows that it has not seen since.
            Some(_) if would_lose => Err(EnvError::NotHeld(
                "the policy remembers something of each environment, and Python calls it by now in \
                 place of Rust"
                    .to_owned(),
            )),
            // A module that acts in the place of the network begins anew: frames do not go on.
            _ => self.network.visit_state(state),
        }
    }
}

/// Makers of the policy that `pickled` holds, in a process that has nothing else of it.
fn makers_of(pickled: &[u8], roots: &GcRoots) -> Result<Makers, PolicyError> {
    attach(|py| {
        let read = || {
            let pickled = PyBytes::new(py, pickled);
            let makers = gil::call_method(&gil::ports(py)?, "read_policy", (pickled,))?;
            Ok(Makers::new(
                &makers.extract::<Vec<Bound<'_, PyAny>>>()?,
                roots,
            ))
        };
        read().map_err(|raised: PyErr| PolicyError::failed(roots.raised(py, raised)))
    })
}

/// Says to the function that makes the module why that acts in the place of the network: `error`.
fn tell_why(maker: &GcRef, error: &PolicyError) -> Result<(), PolicyError> {
    attach(|py| gil::call_method(maker.bind(py), "unfit", (error_chain(error),)).map(drop))
        .map_err(|raised: PyErr| PolicyError::failed(raised))
}

/// The exception by which Python knows that a worker process cannot evaluate the network.
fn refused(error: &PolicyError, roots: &GcRoots) -> PolicyError {
    attach(|py| {
        let made = gil::ports(py)
            .and_then(|ports| gil::call_method(&ports, "GraphRefused", (error_chain(error),)));
        let raised = made.map_or_else(|error| error, PyErr::from_value);
        PolicyError::failed(roots.raised(py, raised))
    })
}

fn described(columns: &[LeafSpec]) -> String {
    let columns: Vec<_> = columns.iter().map(LeafSpec::to_string).collect();
    columns.join(", ")
}
