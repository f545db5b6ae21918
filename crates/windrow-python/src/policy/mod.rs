//! Policies of Python in the engine: modules that torch evaluates, and networks that were read out
//! of them.
//!
//! Python chooses (`windrow.policies.choose`) and passes one of three things, which
//! [`PolicyRecipe`] reads. Each worker then gets its own policy from the recipe: random actions, a
//! [`Lowered`] network that the engine evaluates without Python, or a [`TorchPolicy`], which takes
//! the interpreter's lock for each step of all its environments. One more policy is a reference,
//! which checks weights before they are published. [`PolicyEnvs`] adds to environments what a
//! policy reads.

mod columns;
mod envs;
mod interruptible;
mod lowered;
mod network;
mod reads;
mod torch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
#[cfg(unix)]
use pyo3::types::PyDict;
use windrow::policy::{Policy, RandomPolicy};
#[cfg(unix)]
use windrow::remote::RemotePolicy;
use windrow_sync::lock;

pub(crate) use envs::PolicyEnvs;
#[cfg(unix)]
pub(crate) use network::BESIDE;
#[cfg(target_os = "linux")]
pub(crate) use torch::seed_torch;

use crate::gc::{GcRef, GcRoots};
use crate::gil;
use interruptible::Interruptible;
use lowered::{Instead, Lowered};
use network::{Description, Network};
use torch::TorchPolicy;

/// Adds what Python compares a policy with: the network that was read out of it, and what that
/// read.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<reads::Readings>()?;
    module.add_function(wrap_pyfunction!(columns::other_encoding, module)?)?;
    module.add_function(wrap_pyfunction!(network::evaluate_graph, module)?)
}

/// How a worker's policy is made.
#[derive(Clone)]
pub(crate) enum PolicyRecipe {
    /// Actions are drawn from the action space.
    Random,
    /// A network that windrow evaluates, and what acts where it does not fit.
    Native(Arc<Mutex<Network>>, Instead),
    /// A Python object that evaluates a module; see `windrow.policies.torch_policy.TorchPolicy`.
    Torch(Makers),
    /// A policy that a server evaluates.
    #[cfg(unix)]
    Remote(Arc<Mutex<RemotePolicy>>),
}

/// Makes the Python object that acts for a worker, once for each.
#[derive(Clone)]
pub(crate) struct Makers {
    /// One function for each worker, or one for all.
    makers: Arc<[GcRef]>,
    /// The objects that were made, by worker. The reference policy shares the object of worker 0.
    made: Arc<Mutex<HashMap<usize, GcRef>>>,
    roots: GcRoots,
}

impl Makers {
    /// Holds the functions `makers` in `roots`, and later the objects that they make.
    fn new(makers: &[Bound<'_, PyAny>], roots: &GcRoots) -> Self {
        Self {
            makers: makers.iter().map(|maker| roots.hold(maker)).collect(),
            made: Arc::default(),
            roots: roots.clone(),
        }
    }

    /// The object of worker `worker`, which no other worker has.
    fn get(&self, py: Python<'_>, worker: usize) -> PyResult<GcRef> {
        if let Some(object) = lock(&self.made).get(&worker) {
            return Ok(object.clone());
        }
        // Called without this lock: it is the user's code, which may take any time and give the
        // interpreter's lock up.
        let object = gil::call(self.maker(worker).bind(py), (), None)?;
        let object = self.roots.hold(&object);
        lock(&self.made).insert(worker, object.clone());
        Ok(object)
    }

    /// The function that makes the object of worker `worker`.
    fn maker(&self, worker: usize) -> &GcRef {
        &self.makers[worker.min(self.makers.len() - 1)]
    }
}

impl PolicyRecipe {
    /// The recipe of a policy as `windrow.policies.choose.Choice.core` holds it: `None`, a
    /// description of a network or of a server, or a list of functions that make the object for a
    /// worker. `roots` knows these functions and the objects.
    ///
    /// # Errors
    /// `ValueError` for an empty list, an unknown layer or head, or weights that do not fit.
    pub(crate) fn new(chosen: &Bound<'_, PyAny>, roots: &GcRoots) -> PyResult<Self> {
        if chosen.is_none() {
            return Ok(Self::Random);
        }
        if let Ok(makers) = chosen.extract::<Vec<Bound<'_, PyAny>>>() {
            if makers.is_empty() {
                return Err(PyValueError::new_err("expected a policy, got none"));
            }
            return Ok(Self::Torch(Makers::new(&makers, roots)));
        }
        #[cfg(unix)]
        if let Ok(remote) = chosen.get_item("remote") {
            let policy = crate::remote::policy(remote.cast::<PyDict>()?)?;
            return Ok(Self::Remote(Arc::new(Mutex::new(policy))));
        }
        let fallback: Option<Vec<Bound<'_, PyAny>>> = chosen.get_item("fallback")?.extract()?;
        let network = Network::new(&chosen.extract::<Description<'_>>()?, chosen.extract()?)?;
        let instead = match fallback {
            None => Instead::Nobody,
            Some(makers) if makers.is_empty() => Instead::Sent(roots.clone()),
            Some(makers) => Instead::Here(Makers::new(&makers, roots)),
        };
        Ok(Self::Native(Arc::new(Mutex::new(network)), instead))
    }

    /// Whether the policy reads `is_init`, which environments then have to observe. The first
    /// worker's policy answers for all.
    ///
    /// # Errors
    /// The exception of the function that makes the policy.
    pub(crate) fn reads_init(&self, py: Python<'_>) -> PyResult<bool> {
        match self {
            Self::Torch(makers) => makers.get(py, 0)?.getattr(py, "reads_init")?.extract(py),
            Self::Native(network, _) => Ok(lock(network).reads_init),
            _ => Ok(false),
        }
    }

    /// The policy of worker `worker`.
    pub(crate) fn policy(&self, worker: usize) -> Box<dyn Policy> {
        match self {
            Self::Random => Box::new(Interruptible::new(RandomPolicy::new())),
            Self::Torch(makers) => Box::new(TorchPolicy::new(makers.clone(), worker)),
            // Each clone has a connection of its own.
            #[cfg(unix)]
            Self::Remote(policy) => Box::new(Interruptible::new(lock(policy).clone())),
            Self::Native(network, instead) => {
                // Each worker has weights of its own, which it replaces between two parts without a
                // lock.
                let network = lock(network).clone();
                let lowered = Lowered::new(network, instead.clone(), worker);
                Box::new(Interruptible::new(lowered))
            }
        }
    }
}
