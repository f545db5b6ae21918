//! The server of `windrow.modules.InferenceServer`: the engine gathers requests, Python evaluates
//! them.
//!
//! To the engine, a request is a number: what is asked, and the answer, are objects of Python's
//! that wait under it. So the rule by which requests are gathered, their failures and figures are
//! those of collectors, whatever entries the requests have.
//!
//! A collector's server would not do here: its clients observe the same leaves, of shapes that are
//! fixed when they are bound. A user sends `TensorDict`s to an `InferenceServer`, or anything that
//! `collate_fn` makes a batch of. They stay in Python, where `evaluate` finds them by their
//! numbers, while the clients wait without the interpreter's lock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use pyo3::{PyTraverseError, PyVisit};
use tensordict::DType;
use windrow::policy::EnvRows;
use windrow::policy::Served;
use windrow::policy::{
    Backend, Binding, InferenceServer, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec,
    ServerConfig, ServerStats, WeightStore, Weights,
};
use windrow::{EnvSpec, ExplorationType, Key, RowBlock, RowsMut, Spec, error_chain};
use windrow_sync::unpoisoned;

use crate::gc::{GcRef, GcRoots};
use crate::process::Own;
use crate::{error, gil};

/// Adds the classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ServerCore>()?;
    module.add_class::<ClientCore>()
}

/// Figures of a server by their names; times in milliseconds.
pub(crate) fn figures<'py>(py: Python<'py>, stats: &ServerStats) -> PyResult<Bound<'py, PyDict>> {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let out = PyDict::new(py);
    out.set_item("clients", stats.clients)?;
    out.set_item("requests", stats.requests)?;
    out.set_item("batches", stats.batches)?;
    out.set_item("rows", stats.rows)?;
    out.set_item("failed_batches", stats.failed_batches)?;
    out.set_item("p50_queue_ms", milliseconds(stats.queue_p50))?;
    out.set_item("p95_queue_ms", milliseconds(stats.queue_p95))?;
    out.set_item("p50_forward_ms", milliseconds(stats.forward_p50))?;
    out.set_item("p95_forward_ms", milliseconds(stats.forward_p95))?;
    out.set_item("policy_version", stats.policy_version)?;
    Ok(out)
}

/// A server whose requests Python evaluates.
#[pyclass(module = "windrow._windrow", frozen)]
struct ServerCore {
    own: Own<Mutex<Option<Arc<InferenceServer>>>>,
    roots: GcRoots,
}

#[pymethods]
impl ServerCore {
    /// A server that calls `evaluate` with the numbers of the requests of each batch.
    #[new]
    fn new(
        evaluate: &Bound<'_, PyAny>,
        max_batch_size: usize,
        min_batch_size: usize,
        timeout: f64,
    ) -> PyResult<Self> {
        let config = ServerConfig::new()
            .max_batch_size(max_batch_size)
            .min_batch_size(min_batch_size)
            .timeout(error::finite_duration("timeout", timeout)?);
        let roots = GcRoots::default();
        let evaluate = Evaluate {
            function: roots.hold(evaluate),
            roots: roots.clone(),
        };
        let recipe = PolicyRecipe::opaque(move |_| evaluate.clone());
        let server = InferenceServer::start(&recipe, Arc::new(WeightStore::new(1)), config)
            .map_err(|error| PyValueError::new_err(error_chain(&error)))?;
        Ok(Self {
            own: Own::new(Mutex::new(Some(Arc::new(server)))),
            roots,
        })
    }

    /// Somebody who asks.
    fn client(&self, py: Python<'_>) -> PyResult<ClientCore> {
        let server = self.server()?;
        let client = py.detach(|| Client::new(server.client()));
        let client = client.map_err(|error| to_py(py, &error))?;
        Ok(ClientCore {
            own: Own::new(Arc::new(Mutex::new(client))),
        })
    }

    /// Figures by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let server = self.server()?;
        figures(py, &py.detach(|| server.stats()))
    }

    /// Why it has ended; `None` while it runs.
    fn ended(&self) -> PyResult<Option<String>> {
        Ok(self.server()?.ended())
    }

    /// Ends it. Requests that wait, and later ones, get an error at once. Whether its thread ended
    /// within `seconds`: a forward that is under way cannot be interrupted, and its thread needs
    /// the interpreter's lock to return from it.
    fn shutdown(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let server = self.server()?;
        server.shutdown();
        let patience = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1 << 32));
        gil::wait_for_thread(py, "windrow-shutdown", move || server.join(patience))
    }

    /// As [`shutdown`](Self::shutdown), without errors and signals.
    fn leave(&self, py: Python<'_>, seconds: f64) -> bool {
        let Ok(server) = self.server() else {
            return true;
        };
        let patience = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        py.detach(|| {
            server.shutdown();
            server.join(patience)
        })
    }

    /// Ends it before its owner is freed.
    fn finalize(&self, py: Python<'_>) {
        self.leave(py, gil::IMPATIENCE.as_secs_f64());
    }

    /// Whether this process made it: a child of fork has none of its threads.
    fn belongs_here(&self) -> bool {
        self.own.belongs_here()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.roots.traverse(&visit)
    }
}

impl ServerCore {
    fn server(&self) -> PyResult<Arc<InferenceServer>> {
        let server = self.own.get("server")?;
        let server = unpoisoned(server.lock());
        let gone = || PyRuntimeError::new_err("the server has ended");
        server.as_ref().cloned().ok_or_else(gone)
    }
}

impl Drop for ServerCore {
    fn drop(&mut self) {
        // Its thread may need the interpreter's lock to end.
        let server = self.own.here().and_then(|server| {
            let mut server = unpoisoned(server.lock());
            server.take()
        });
        Python::try_attach(|py| py.detach(|| drop(server)));
    }
}

/// Somebody who asks a server, one request at a time: a thread each has one. The mutex serves those
/// that share one against advice; it is waited for without the interpreter's lock, which the
/// evaluation needs.
#[pyclass(module = "windrow._windrow", frozen)]
struct ClientCore {
    own: Own<Arc<Mutex<Client>>>,
}

#[pymethods]
impl ClientCore {
    /// Waits until request `number` was evaluated. The `main` thread, which alone handles signals,
    /// waits for another one.
    ///
    /// # Errors
    /// What the evaluation has raised; `RuntimeError` when the server has ended.
    fn ask(&self, py: Python<'_>, number: i64, main: bool) -> PyResult<()> {
        let client = Arc::clone(self.own.get("client")?);
        let ask = move || {
            let mut client = unpoisoned(client.lock());
            client.ask(number)
        };
        let asked = match main {
            true => gil::wait_for_thread(py, "windrow-client", ask)?,
            false => py.detach(ask),
        };
        asked.map_err(|error| to_py(py, &error))
    }

    fn belongs_here(&self) -> bool {
        self.own.belongs_here()
    }
}

/// What Python raised, or the engine's own error.
fn to_py(py: Python<'_>, error: &PolicyError) -> PyErr {
    error::raised_in(py, error).unwrap_or_else(|| PyRuntimeError::new_err(error_chain(error)))
}

/// The engine's client, and the memory of its requests.
struct Client {
    served: Served,
    asked: RowBlock,
    answered: RowBlock,
    envs: EnvRows,
}

impl Client {
    /// Binds the engine's client to an environment without any meaning: one observation, the
    /// number, and one action, which nobody reads.
    fn new(mut served: Served) -> Result<Self, PolicyError> {
        // A request is an environment that observes its number.
        let spec = EnvSpec::new(
            "Requests",
            Spec::unbounded(DType::I64, []),
            Spec::discrete(1),
        );
        let columns = served.bind(&Binding::new(&spec, 1))?.columns;
        Ok(Self {
            served,
            asked: RowBlock::new(&spec.observation_leaves(), 1)?,
            answered: RowBlock::new(&columns, 1)?,
            envs: EnvRows::new(0, vec![0]),
        })
    }

    fn ask(&mut self, number: i64) -> Result<(), PolicyError> {
        let numbers = Key::<i64>::new(0);
        self.asked.rows_mut().get_mut(numbers)?.fill(number);
        let input = PolicyIn::new(self.asked.rows(), &self.envs, ExplorationType::Random);
        self.served.act(&input, self.answered.rows_mut())
    }
}

/// Has Python evaluate the requests of a batch.
#[derive(Clone)]
struct Evaluate {
    function: GcRef,
    /// Holds exceptions that it raises.
    roots: GcRoots,
}

impl Policy for Evaluate {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        // In a thread of its own, always the same: what torch compiles may keep state of its
        // thread.
        let spec = PolicySpec::new(binding.spec.action_leaves());
        Ok(spec.backend(Backend::Framework))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        let numbers = input.obs.get::<i64>(Key::new(0))?;
        out.get_mut::<i64>(Key::new(0))?.fill(0);
        gil::attach(|py| {
            let called = PyList::new(py, numbers)
                .and_then(|numbers| gil::call(self.function.bind(py), (numbers,), None));
            match called {
                Ok(_) => Ok(()),
                Err(raised) => Err(PolicyError::failed(self.roots.raised(py, raised))),
            }
        })
    }

    /// Nothing to do: the function has its module, whose weights Python changes between two
    /// batches.
    fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}
