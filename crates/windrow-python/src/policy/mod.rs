//! Policies of Python in the engine: modules that torch evaluates, and networks that were read out of them.

mod begun;
mod boxed;
mod columns;
mod interruptible;
mod lowered;
mod network;
mod torch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use windrow::CollectorBuilder;
use windrow::policy::{Policy, RandomPolicy};

pub(crate) use torch::Rows;

use crate::gil;
use crate::keep::{Keeper, Kept};
use boxed::Boxed;
use interruptible::Interruptible;
use lowered::Lowered;
use network::{Description, Network};
use torch::TorchPolicy;

/// Adds what Python calls to compare a network with the module that it was read out of.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(network::evaluate_network, module)?)
}

/// Who acts.
#[derive(Clone)]
pub(crate) enum Actor {
    /// Actions are drawn from the action space.
    Random,
    /// A network that windrow evaluates; what is called where it does not fit.
    Native(Arc<Mutex<Network>>, Option<Makers>),
    /// A Python object that evaluates a module; see `windrow._torch_policy.TorchPolicy`.
    Torch(Makers),
}

/// Makes the Python object that acts for a worker, once for each.
#[derive(Clone)]
pub(crate) struct Makers {
    /// One function for each worker, or one for all.
    makers: Arc<[Kept]>,
    made: Arc<Mutex<HashMap<usize, Kept>>>,
    keeper: Keeper,
}

impl Makers {
    fn new(makers: &[Bound<'_, PyAny>], keeper: &Keeper) -> Self {
        Self {
            makers: makers.iter().map(|maker| keeper.keep(maker)).collect(),
            made: Arc::default(),
            keeper: keeper.clone(),
        }
    }

    /// The object of worker `worker`, which no other worker has.
    fn get(&self, py: Python<'_>, worker: usize) -> PyResult<Kept> {
        if let Some(object) = lock(&self.made).get(&worker) {
            return Ok(object.clone());
        }
        // Called without the lock: it is the user's code.
        let maker = self.makers[worker.min(self.makers.len() - 1)].bind(py);
        let object = self.keeper.keep(&gil::call(maker, (), None)?);
        lock(&self.made).insert(worker, object.clone());
        Ok(object)
    }
}

/// What the policies of a collector are told, and tell.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) rows: Rows,
    /// Whether a module acts, in Python.
    pub(crate) by_torch: Arc<AtomicBool>,
    /// Whether they act in the thread that asks for batches, which handles signals.
    pub(crate) watched: bool,
}

impl Terms {
    /// `batched`: rows have a dimension even if there is one.
    pub(crate) fn new(batched: bool, watched: bool) -> Self {
        Self {
            rows: Rows::new(batched),
            by_torch: Arc::default(),
            watched,
        }
    }
}

impl Actor {
    /// What `windrow._policy` has made of the user's policy: `None`, a description of a network, or a list of functions
    /// that make a worker's object. `keeper` knows these functions, and what they make.
    ///
    /// # Errors
    /// When the description makes no sense.
    pub(crate) fn new(chosen: &Bound<'_, PyAny>, terms: &Terms, keeper: &Keeper) -> PyResult<Self> {
        if chosen.is_none() {
            return Ok(Self::Random);
        }
        if let Ok(makers) = chosen.extract::<Vec<Bound<'_, PyAny>>>() {
            if makers.is_empty() {
                return Err(PyValueError::new_err("expected a policy, got none"));
            }
            terms.by_torch.store(true, Ordering::Relaxed);
            return Ok(Self::Torch(Makers::new(&makers, keeper)));
        }
        let fallback: Option<Vec<Bound<'_, PyAny>>> = chosen.get_item("fallback")?.extract()?;
        let network = Network::new(&chosen.extract::<Description<'_>>()?)?;
        Ok(Self::Native(
            Arc::new(Mutex::new(network)),
            fallback.map(|makers| Makers::new(&makers, keeper)),
        ))
    }

    /// Whether environments are to observe `is_init`, which the policy reads. The one of the first worker speaks for all.
    ///
    /// # Errors
    /// What the function raises that makes the policy.
    pub(crate) fn reads_init(&self, py: Python<'_>) -> PyResult<bool> {
        match self {
            Self::Torch(makers) => makers.get(py, 0)?.getattr(py, "reads_init")?.extract(py),
            // Networks read real numbers alone.
            Self::Random | Self::Native(..) => Ok(false),
        }
    }

    /// Whether Python may be called to act.
    pub(crate) fn may_be_called(&self) -> bool {
        match self {
            Self::Torch(_) => true,
            Self::Native(_, fallback) => fallback.is_some(),
            Self::Random => false,
        }
    }

    /// The policy of worker `worker`.
    pub(crate) fn policy(&self, worker: usize, terms: &Terms) -> Boxed {
        let torch = |makers: &Makers| TorchPolicy::new(makers.clone(), worker, terms.rows.clone());
        match self {
            Self::Random => watched(RandomPolicy::new(), terms),
            Self::Torch(makers) => Boxed(Box::new(torch(makers))),
            Self::Native(network, fallback) => {
                let network = lock(network).clone();
                let module = fallback.as_ref().map(torch);
                watched(
                    Lowered::new(network, module, Arc::clone(&terms.by_torch)),
                    terms,
                )
            }
        }
    }

    /// Lets this policy act.
    pub(crate) fn act_in(self, builder: CollectorBuilder, terms: Terms) -> CollectorBuilder {
        builder.policy_factory(move |worker| self.policy(worker, &terms))
    }
}

fn watched(policy: impl Policy + 'static, terms: &Terms) -> Boxed {
    if terms.watched {
        Boxed(Box::new(Interruptible::new(policy)))
    } else {
        Boxed(Box::new(policy))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
