//! What starts workers somewhere else: by a command, or by an object of Python's.

use std::error::Error;
use std::io::PipeWriter;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use windrow::remote::Address;
use windrow::{CollectorBuilder, CommandLauncher, Invitation, Launched, Launcher, error_chain};

use crate::batch;
use crate::gil::attach;

/// Adds the class.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyCommandLauncher>()
}

/// Starts each worker by a ``command``, such as
/// ``["ssh", "node{worker}", "python", "-m", "windrow.worker"]``, in which ``{worker}`` stands for
/// the worker's number. It gets the invitation on its standard input. A connection from another
/// machine is encrypted.
///
/// Args: command: the program and its arguments. address: an address of this machine that workers
///     can reach, where the collector waits for them. Port 0 lets the system choose;
///         any other is that of worker 0, and the following ones are those of the others.
///     patience: seconds from the start of a worker until it connects.
#[pyclass(module = "windrow.collectors", name = "CommandLauncher", frozen)]
struct PyCommandLauncher {
    command: Vec<String>,
    inner: CommandLauncher,
}

#[pymethods]
impl PyCommandLauncher {
    #[new]
    #[pyo3(signature = (command, *, address = "127.0.0.1:0", patience = 60.0))]
    fn new(command: Vec<String>, address: &str, patience: f64) -> PyResult<Self> {
        let Some((program, args)) = command.split_first() else {
            return Err(PyValueError::new_err(
                "expected a command with a program, got an empty list",
            ));
        };
        let inner = CommandLauncher::new(program, args)
            .address(self::address(address)?)
            .patience(self::patience(patience)?);
        Ok(Self { command, inner })
    }

    fn __repr__(&self) -> String {
        format!(
            "CommandLauncher({:?}, address={:?})",
            self.command,
            Launcher::address(&self.inner).to_string()
        )
    }
}

/// The builder with the launcher `launcher`. Its workers may send pickled objects only with
/// `allow_pickle`.
///
/// # Errors
/// `TypeError` for an object without the methods of one, `ValueError` for an address or a patience
/// that is none.
pub(crate) fn added_to(
    builder: CollectorBuilder,
    launcher: &Bound<'_, PyAny>,
    allow_pickle: bool,
) -> PyResult<CollectorBuilder> {
    let builder = match allow_pickle {
        true => builder,
        false => builder.refused_values(batch::OBJECT),
    };
    if let Ok(command) = launcher.cast::<PyCommandLauncher>() {
        return Ok(builder.launcher(command.get().inner.clone()));
    }
    Ok(builder.launcher(PyLauncher::new(launcher)?))
}

fn address(text: &str) -> PyResult<Address> {
    text.parse()
        .map_err(|error| PyValueError::new_err(error_chain(&error)))
}

fn patience(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("patience must be seconds, got {seconds}")))
}

/// An object of Python's with a method `start`, which gets an invitation as JSON and returns an
/// object with the methods `ended` and `kill`.
#[derive(Debug)]
pub(crate) struct PyLauncher {
    object: Arc<Py<PyAny>>,
    address: Address,
    patience: Duration,
}

impl PyLauncher {
    /// # Errors
    /// As [`added_to`].
    pub(crate) fn new(launcher: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !launcher.hasattr("start")? {
            let got = launcher.get_type().fully_qualified_name()?;
            return Err(PyTypeError::new_err(format!(
                "expected a CommandLauncher as launcher, or an object with a method start(invitation), got {got}"
            )));
        }
        let of = |name: &str| launcher.getattr_opt(name);
        let address = match of("address")? {
            Some(address) => self::address(address.extract()?)?,
            None => Address::loopback(0),
        };
        let patience = match of("patience")? {
            Some(patience) => self::patience(patience.extract()?)?,
            None => Duration::from_secs(60),
        };
        Ok(Self {
            object: Arc::new(launcher.clone().unbind()),
            address,
            patience,
        })
    }
}

impl Launcher for PyLauncher {
    fn start(
        &self,
        invitation: &Invitation,
        _: PipeWriter,
    ) -> Result<Box<dyn Launched>, Box<dyn Error + Send + Sync>> {
        let started = attach(|py| {
            let start = self.object.bind(py).getattr(intern!(py, "start"))?;
            Ok(start.call1((invitation.to_json(),))?.unbind())
        });
        match started {
            Ok(worker) => Ok(Box::new(PyLaunched(worker))),
            Err(raised) => Err(Box::<PyErr>::new(raised)),
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

struct PyLaunched(Py<PyAny>);

impl Launched for PyLaunched {
    fn ended(&mut self) -> Option<String> {
        let ended = attach(|py| {
            let ended = self.0.bind(py).call_method0(intern!(py, "ended"))?;
            ended.extract::<Option<String>>()
        });
        ended.unwrap_or_else(|raised: PyErr| Some(format!("nobody knows how it is: {raised}")))
    }

    fn kill(&mut self) {
        // Nobody could take the exception, and the connection is closed anyway.
        let _ = attach(|py| self.0.bind(py).call_method0(intern!(py, "kill")).map(drop));
    }
}
