//! Environments of Python that step side by side, each in a process of its own.

use std::error::Error;
use std::sync::Mutex;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use windrow::ParallelHandle;
use windrow::binding::causes;
use windrow::envs::{EnvError, VecEnv, VecEnvError};
use windrow::{Interrupt, MemberError, Parallel, error_chain};
use windrow_sync::unpoisoned;

use super::handle::to_py;
use crate::error::finite_duration;
use crate::factory_lock;
use crate::gc::GcRoots;
use crate::gil;
use crate::worker;

/// The fields of a recipe of processes.
#[derive(FromPyObject)]
struct Processes<'py> {
    members: Bound<'py, PyAny>,
    threads: usize,
    /// In seconds, as `step_timeout`.
    timeout: f64,
    step_timeout: Option<f64>,
    patient: bool,
    outlives: bool,
    first: usize,
    /// By which Python reaches the processes.
    live: Option<Bound<'py, ParallelMembers>>,
}

/// Starts the processes of a `recipe`, and says where they are to its [`ParallelMembers`].
///
/// # Errors
/// `TypeError` naming what cannot be pickled; that of the first member that could not be made.
pub(super) fn start(
    recipe: &Bound<'_, PyAny>,
    roots: &GcRoots,
) -> Result<Box<dyn VecEnv>, EnvError> {
    let py = recipe.py();
    let described = recipe.extract().and_then(|of| described(recipe, of, roots));
    let (parallel, live) =
        described.map_err(|raised: PyErr| EnvError::failed(roots.raised(py, raised)))?;
    // It waits for the processes. Their owner may be asked for anything meanwhile.
    let envs = py.detach(|| factory_lock::lending(|| parallel.start()))?;
    if let Some(live) = live {
        *live.get().lock() = Some(envs.handle());
    }
    Ok(Box::new(envs))
}

/// The processes that a recipe `of` these fields describes.
fn described<'py>(
    recipe: &Bound<'py, PyAny>,
    of: Processes<'py>,
    roots: &GcRoots,
) -> PyResult<(Parallel, Option<Bound<'py, ParallelMembers>>)> {
    let py = recipe.py();
    let sent = gil::ports(py)?.call_method1(intern!(py, "members"), (recipe,))?;
    let members: Vec<(Vec<u8>, u64)> = sent.extract()?;
    let sent = |(pickled, seed)| worker::sent_envs(pickled, false, seed);
    let members = members.into_iter().map(sent);
    let parallel = Parallel::of(members.collect::<PyResult<Vec<_>>>()?);
    let mut parallel = parallel.map_err(|error| PyValueError::new_err(error_chain(&error)))?;
    if of.patient {
        parallel = parallel.patient();
    }
    if let Some(seconds) = of.step_timeout {
        parallel = parallel.step_timeout(finite_duration("step_timeout", seconds)?);
    }
    if of.outlives {
        parallel = parallel.outlives();
    }
    let warm = worker::uses_torch(&py.None().into_bound(py), of.members)?;
    let (owner, signals) = (roots.clone(), gil::interrupt(py)?);
    let reports = signals.clone();
    let parallel = parallel
        .worker_program(worker::program(py, of.threads, warm)?)
        .shutdown_timeout(finite_duration("shutdown_timeout", of.timeout)?)
        .counted_from(of.first)
        .interrupt(
            Interrupt::new(move || match owner.is_abandoned() {
                true => Err("its owner was given up".into()),
                false => signals
                    .check()
                    .map_err(Box::<dyn Error + Send + Sync>::from),
            })
            .reporting_as(&reports),
        );
    Ok((parallel, of.live))
}

/// `error` as an exception: the one that a member has raised, or one that tells of its end. `None`
/// for errors of other kinds.
pub(super) fn of_member(
    py: Python<'_>,
    error: &VecEnvError,
    raised: Option<&PyErr>,
) -> Option<PyErr> {
    let fault = causes(error).find_map(|error| error.downcast_ref::<MemberError>())?;
    match (raised, fault) {
        // The error of a member with several environments already names the environment.
        (Some(raised), _) if names_env(py, raised) => Some(raised.clone_ref(py)),
        (Some(raised), _) => {
            let env = error.env;
            let note = format!("It was raised by environment {env}, in a process of its own.");
            // An exception without notes is as good.
            let _ = raised
                .value(py)
                .call_method1(intern!(py, "add_note"), (note,));
            Some(raised.clone_ref(py))
        }
        (None, MemberError::Failed { .. }) => None,
        (None, _) => Some(PyRuntimeError::new_err(error_chain(error))),
    }
}

/// True where a note of `raised` names an environment.
fn names_env(py: Python<'_>, raised: &PyErr) -> bool {
    let notes = raised.value(py).getattr(intern!(py, "__notes__"));
    let notes: Vec<String> = notes.and_then(|notes| notes.extract()).unwrap_or_default();
    let named = "It was raised by environment";
    notes.iter().any(|note| note.starts_with(named))
}

/// Where the processes are found of a `ParallelEnv` that somebody steps: whoever started them last.
#[pyclass(frozen, module = "windrow._windrow")]
#[derive(Debug, Default)]
pub(crate) struct ParallelMembers {
    handle: Mutex<Option<ParallelHandle>>,
}

#[pymethods]
impl ParallelMembers {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Whether there are processes.
    fn is_open(&self) -> bool {
        self.lock().as_ref().is_some_and(ParallelHandle::is_open)
    }

    /// The numbers of the processes; None for one that has ended.
    fn pids(&self, py: Python<'_>) -> PyResult<Vec<Option<u32>>> {
        self.with(py, |handle| handle.pids())
    }

    /// What member `worker` answers to `request`.
    fn call_worker<'py>(
        &self,
        py: Python<'py>,
        worker: usize,
        request: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let answer = self.with(py, |handle| handle.call(worker, request))?;
        Ok(PyBytes::new(py, &answer))
    }

    /// The members whose processes have ended since the last call, each with the reason.
    fn take_losses(&self, py: Python<'_>) -> PyResult<Vec<(usize, String)>> {
        let losses = self.with(py, |handle| handle.take_losses())?;
        let reason = |error| match error {
            // Without the advice of the error to make new environments: others replace these.
            MemberError::Died { status, words } => format!("its process {status}{words}"),
            other => error_chain(&other),
        };
        let losses = losses.into_iter();
        Ok(losses
            .map(|(member, error)| (member, reason(error)))
            .collect())
    }

    /// Starts another process in place of that of member `worker`, which has ended.
    fn replace(&self, py: Python<'_>, worker: usize) -> PyResult<()> {
        self.with(py, |handle| handle.replace(worker))
    }

    /// Ends the processes, and waits for that.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(handle) = self.lock().take() else {
            return Ok(());
        };
        let closed = gil::wait_for_thread(py, "windrow-close", move || handle.close())?;
        closed.map_err(|error| to_py(py, &error))
    }

    /// A copy in another process reaches no processes of this one.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, ()) {
        (slf.get_type(), ())
    }
}

impl ParallelMembers {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<ParallelHandle>> {
        unpoisoned(self.handle.lock())
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(ParallelHandle) -> Result<R, EnvError> + Send,
    ) -> PyResult<R> {
        let handle = self.lock().clone();
        let done = py.detach(|| match handle {
            Some(handle) => f(handle),
            None => Err(MemberError::Closed.into()),
        });
        done.map_err(|error| to_py(py, &error))
    }
}
