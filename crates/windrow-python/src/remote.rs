//! A server that evaluates a policy for other processes and machines, and what its clients need:
//! `windrow.modules.RemoteServer` and `RemotePolicy`. The engine does all of it; what Python
//! evaluates is a policy of the server as of any collector.
//!
//! Three objects stand here. `RemoteServerCore` owns a server, with its threads and its policy, and
//! ends both before the interpreter goes. `RemoteWeightsCore` is a connection by which a learner
//! pushes weights, or fetches those that act. A `RemotePolicy` has no object of its own in Rust:
//! Python describes it by options, and each worker makes its client of them, so it can be sent to
//! other processes.
//!
//! `windrow-remote` decides who may connect; its README has the table.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::{
    PyConnectionError, PyConnectionRefusedError, PyOSError, PyRuntimeError, PyTimeoutError,
    PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};
use serde::Deserialize;
use windrow::remote::{
    Limits, Remote, RemoteError, RemotePolicy, RemoteServer, RemoteWeights, Tls, Token,
};
use windrow::{PolicyRecipe as Recipe, ServerConfig, TensorDict, error_chain};
use windrow_sync::{lock, unpoisoned};

use crate::gc::GcRoots;
use crate::policy::{BESIDE, PolicyRecipe};
use crate::process::Own;
use crate::{batch, error, gil, plain, server};

/// Adds the classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RemoteServerCore>()?;
    module.add_class::<RemoteWeightsCore>()
}

/// What `windrow.modules._remote` has checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Of a client always; a server without one has a socket of its own.
    address: Option<String>,
    token: Option<String>,
    /// Certificates and a key, in PEM.
    certificate: Option<String>,
    key: Option<String>,
    authority: Option<String>,
    server_name: Option<String>,
    /// Whether pickled objects may cross.
    allow_pickle: bool,
    max_message_bytes: usize,
    max_weights_bytes: usize,
    /// Seconds: of a call of a client, or for which the server gathers observations.
    timeout: f64,
    max_batch_size: Option<usize>,
}

impl Options {
    /// The secret that client and server share, if there is one.
    fn token(&self) -> Result<Option<Token>, RemoteError> {
        self.token.as_deref().map(Token::new).transpose()
    }

    /// Certificates, if any part of them was given; a certificate has its key. What else is missing
    /// is told by the engine, which knows whether a server or a client is to be made.
    fn tls(&self) -> Option<Tls> {
        let mut tls = Tls::new();
        if let (Some(chain), Some(key)) = (&self.certificate, &self.key) {
            tls = tls.identity(chain.as_str(), key.as_str());
        }
        if let Some(authority) = &self.authority {
            tls = tls.authority(authority.as_str());
        }
        if let Some(name) = &self.server_name {
            tls = tls.server_name(name.as_str());
        }
        let given = [
            &self.certificate,
            &self.key,
            &self.authority,
            &self.server_name,
        ];
        given.iter().any(|part| part.is_some()).then_some(tls)
    }

    /// The longest messages that are read: a length is checked before memory is taken for it.
    /// Pickled objects are refused unless the user allows them, since reading one can run any code.
    fn limits(&self) -> Limits {
        let limits = Limits::new()
            .message(self.max_message_bytes)
            .weights(self.max_weights_bytes);
        match self.allow_pickle {
            true => limits,
            false => limits.refused_values(batch::OBJECT),
        }
    }

    fn timeout(&self) -> PyResult<Duration> {
        error::finite_duration("timeout", self.timeout)
    }

    /// The server, as a client sees it.
    fn remote(&self) -> Result<Remote, RemoteError> {
        let mut remote =
            Remote::at(self.address.as_deref().unwrap_or_default())?.limits(self.limits());
        if let Some(token) = self.token()? {
            remote = remote.token(token);
        }
        if let Some(tls) = self.tls() {
            remote = remote.tls(tls);
        }
        Ok(remote)
    }
}

/// The policy of a server that `windrow.modules.RemotePolicy` describes.
///
/// # Errors
/// `ValueError` for options that cannot be used.
pub(crate) fn policy(options: &Bound<'_, PyDict>) -> PyResult<RemotePolicy> {
    let read: Options = plain::read(options)?;
    let timeout = read.timeout()?;
    let policy = read
        .remote()
        .and_then(|remote| remote.timeout(timeout).policy());
    policy.map_err(|error| to_py(options.py(), &error))
}

/// A server of a policy, with a thread for each connection.
#[pyclass(module = "windrow._windrow", frozen)]
struct RemoteServerCore {
    /// None once it has ended.
    own: Own<Mutex<Option<RemoteServer>>>,
    address: String,
    roots: GcRoots,
}

#[pymethods]
impl RemoteServerCore {
    /// A server of `policy`, see [`PolicyRecipe::new`].
    #[new]
    fn new(options: &Bound<'_, PyDict>, policy: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = options.py();
        let read: Options = plain::read(options)?;
        let roots = GcRoots::default();
        let policy = PolicyRecipe::new(policy, &roots)?;
        let mut batching = ServerConfig::new().timeout(read.timeout()?);
        if let Some(most) = read.max_batch_size {
            batching = batching.max_batch_size(most);
        }
        let start = || {
            let recipe = Recipe::opaque(move |worker| policy.policy(worker));
            let mut builder = RemoteServer::builder(recipe)
                .limits(read.limits())
                // It is read as code.
                .reserved_weight(BESIDE)
                .batching(batching);
            if let Some(address) = &read.address {
                builder = builder.address(address.parse()?);
            }
            if let Some(token) = read.token()? {
                builder = builder.token(token);
            }
            if let Some(tls) = read.tls() {
                builder = builder.tls(tls);
            }
            builder.start()
        };
        let server = py.detach(start).map_err(|error| to_py(py, &error))?;
        Ok(Self {
            address: server.address().to_string(),
            own: Own::new(Mutex::new(Some(server))),
            roots,
        })
    }

    /// Where it listens.
    fn address(&self) -> &str {
        &self.address
    }

    /// Publishes weights; their version.
    fn publish(&self, py: Python<'_>, weights: &Bound<'_, PyAny>) -> PyResult<i64> {
        let weights = batch::from_python(weights)?;
        self.with(py, move |server| server.update_policy_weights(&weights))?
            .map_err(|error| to_py(py, &error))
    }

    /// Figures by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, version) = self.with(py, |server| (server.stats(), server.version()))?;
        let out = server::figures(py, &stats.inference)?;
        out.set_item("connections", stats.connections)?;
        out.set_item("accepted", stats.accepted)?;
        out.set_item("refused", stats.refused)?;
        out.set_item("repeated", stats.repeated)?;
        out.set_item("panicked", stats.panicked)?;
        out.set_item("policy_version", version)?;
        Ok(out)
    }

    /// Ends it, within some seconds. Clients are told so. Another thread waits, since the policy
    /// that acts now may need the interpreter's lock.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.own.get("server")?;
        let server = self.take();
        gil::wait_for_thread(py, "windrow-shutdown", move || drop(server))
    }

    /// As [`shutdown`](Self::shutdown), without errors and signals.
    fn leave(&self, py: Python<'_>) {
        let server = self.take();
        py.detach(|| drop(server));
    }

    /// Ends it before its owner is freed.
    fn finalize(&self, py: Python<'_>) {
        self.leave(py);
    }

    /// Whether this process made it: a child of fork has none of its threads.
    fn belongs_here(&self) -> bool {
        self.own.belongs_here()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.roots.traverse(&visit)
    }
}

impl RemoteServerCore {
    /// The server, for good: whoever has taken it ends it. `None` after that, and in a process
    /// forked from the one that made it.
    fn take(&self) -> Option<RemoteServer> {
        let server = self.own.here()?;
        unpoisoned(server.lock()).take()
    }

    /// What `f` makes of the server, without the interpreter's lock: its policy may wait for that.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&RemoteServer) -> T + Send,
    ) -> PyResult<T> {
        let server = self.own.get("server")?;
        let found = py.detach(|| {
            let server = unpoisoned(server.lock());
            server.as_ref().map(f)
        });
        found.ok_or_else(|| PyRuntimeError::new_err("the server was shut down"))
    }
}

impl Drop for RemoteServerCore {
    fn drop(&mut self) {
        // Its threads may need the interpreter's lock to end.
        let server = self.take();
        Python::try_attach(|py| py.detach(|| drop(server)));
    }
}

/// A way for weights to and from a server.
#[pyclass(module = "windrow._windrow", frozen)]
struct RemoteWeightsCore {
    own: Own<Arc<Mutex<RemoteWeights>>>,
}

#[pymethods]
impl RemoteWeightsCore {
    /// It connects with the first call.
    #[new]
    fn new(options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let read: Options = plain::read(options)?;
        let timeout = read.timeout()?;
        let weights = read
            .remote()
            .and_then(|remote| remote.timeout(timeout).weights());
        let weights = weights.map_err(|error| to_py(options.py(), &error))?;
        Ok(Self {
            own: Own::new(Arc::new(Mutex::new(weights))),
        })
    }

    /// Pushes weights; their version.
    fn push(&self, py: Python<'_>, weights: &Bound<'_, PyAny>) -> PyResult<i64> {
        let weights = batch::from_python(weights)?;
        self.call(py, move |remote| remote.publish(&weights))
    }

    /// The newest weights and their version, unless it is `version`.
    fn pull<'py>(
        &self,
        py: Python<'py>,
        version: Option<i64>,
    ) -> PyResult<Option<(i64, Bound<'py, PyAny>)>> {
        let newest = self.call(py, move |remote| remote.newest(version.unwrap_or(-1)))?;
        let Some(newest) = newest else {
            return Ok(None);
        };
        // Weights only: a collector would read the state beside them as code.
        let mut weights = TensorDict::new([]);
        for (name, tensor) in newest.weights.leaves() {
            if !matches!(name.components(), [name] if **name == *BESIDE) {
                let set = weights.set(name, tensor.clone());
                set.map_err(|error| PyValueError::new_err(error_chain(&error)))?;
            }
        }
        Ok(Some((
            newest.version,
            batch::weights_to_python(py, &weights)?,
        )))
    }
}

impl RemoteWeightsCore {
    /// What `f` returns, in another thread: this one sees signals meanwhile.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut RemoteWeights) -> Result<T, RemoteError> + Send + 'static,
    ) -> PyResult<T> {
        let remote = Arc::clone(self.own.get("client")?);
        let called = gil::wait_for_thread(py, "windrow-weights", move || f(&mut lock(&remote)))?;
        called.map_err(|error| to_py(py, &error))
    }
}

/// `error` as the exception that fits it best.
fn to_py(py: Python<'_>, error: &RemoteError) -> PyErr {
    let told = error_chain(error);
    match error {
        RemoteError::Policy(inner) => {
            error::raised_in(py, inner).unwrap_or_else(|| PyValueError::new_err(told))
        }
        RemoteError::Refused { .. } => PyConnectionRefusedError::new_err(told),
        RemoteError::Forgotten { .. } | RemoteError::Ended { .. } => {
            PyConnectionError::new_err(told)
        }
        RemoteError::Timeout { .. } => PyTimeoutError::new_err(told),
        RemoteError::Listen { .. } => PyOSError::new_err(told),
        RemoteError::Failed { .. } | RemoteError::Thread(_) => PyRuntimeError::new_err(told),
        // What is left are arguments that cannot be used.
        _ => PyValueError::new_err(told),
    }
}
