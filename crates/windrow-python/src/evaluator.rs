//! Evaluations during training: the engine of `windrow.collectors.Evaluator`.
//!
//! Whole episodes run in a thread of the evaluator, which attaches to the interpreter where an
//! environment, a policy or a function of the user's needs it. So every wait here first lets the
//! interpreter go, and looks for signals meanwhile.
//!
//! `evaluate` and `shutdown` of the engine wait as long as a step takes, so they run in threads of
//! their own ([`gil::wait_for_thread`]) while the calling thread handles signals. The engine is
//! shared with these threads (`Arc`): after Ctrl-C, one of them may outlive the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(target_os = "linux")]
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
#[cfg(target_os = "linux")]
use pyo3::types::PyBytes;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};
use tensordict::TensorDict;
use windrow::{
    BusyPolicy, EvaluateError, Evaluation, Evaluator, EvaluatorBuilder, OnLoss, Stuck, error_chain,
};
#[cfg(target_os = "linux")]
use windrow::{NextError, Placement, PolicyRecipe as Recipe};

use crate::collector::options::exploration_type;
use crate::gc::{GcRef, GcRoots, Raised};
use crate::gil::attach;
use crate::policy::{PolicyEnvs, PolicyRecipe};
use crate::process::Own;
use crate::{batch, error, gil};
#[cfg(target_os = "linux")]
use crate::{launcher::PyLauncher, worker};

/// Adds the class.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    #[cfg(target_os = "linux")]
    module.add_class::<EvaluatorProcess>()?;
    module.add_class::<EvaluatorCore>()
}

/// The options that `windrow.collectors.Evaluator` passes, by the names of its arguments, and what
/// it made of others.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options<'py> {
    env: Bound<'py, PyAny>,
    /// See [`PolicyRecipe::new`].
    policy: Bound<'py, PyAny>,
    /// Episodes of an evaluation.
    num_trajectories: usize,
    /// Steps after which an episode is cut short.
    max_steps: Option<usize>,
    seed: Option<u64>,
    exploration_type: String,
    busy_policy: String,
    log_prefix: String,
    /// Called with the frames of all episodes; returns more figures by name.
    metrics_fn: Option<Bound<'py, PyAny>>,
    /// Called with the step of an evaluation, to write what was recorded during it.
    write_recordings: Option<Bound<'py, PyAny>>,
    /// Called with each result, in the evaluator's thread.
    on_result: Option<Bound<'py, PyAny>>,
    /// In seconds.
    shutdown_timeout: f64,
    /// Whether the first evaluation makes environment and policy, not the constructor.
    lazy: bool,
    /// What a process gets, if the worker is to be in one.
    sent: Option<Sent>,
    /// What asks that process.
    #[cfg(target_os = "linux")]
    process: Option<Bound<'py, EvaluatorProcess>>,
    /// Starts that process somewhere else.
    #[cfg(target_os = "linux")]
    launcher: Option<Bound<'py, PyAny>>,
    /// Seconds after which that process is taken for frozen.
    step_timeout: Option<f64>,
    /// How often environments are replaced; `None` if the first loss is an error.
    restarts: Option<usize>,
}

/// Environment and policy for a process, as `windrow._ports` pickles them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Sent {
    env: Vec<u8>,
    policy: Vec<u8>,
    /// What torch begins with there.
    seed: u64,
    /// Whether the process imports torch.
    warm: bool,
}

/// Evaluates a copy of a policy in a thread of its own.
#[pyclass(module = "windrow._windrow", frozen)]
struct EvaluatorCore {
    /// The engine's evaluator, in the process that made it.
    own: Own<Arc<Evaluator>>,
    /// Whether the last wait was interrupted, as by Ctrl-C: the end of the evaluator is then not
    /// held up.
    interrupted: AtomicBool,
    /// The Python objects that the engine holds, for the garbage collector.
    roots: GcRoots,
}

/// Asks the process of an evaluator's environments. `on_result` has it: it does not keep the
/// evaluator, which has `on_result`.
#[cfg(target_os = "linux")]
#[pyclass(module = "windrow._windrow", frozen)]
struct EvaluatorProcess(OnceLock<Weak<Evaluator>>);

#[cfg(target_os = "linux")]
#[pymethods]
impl EvaluatorProcess {
    #[new]
    fn new() -> Self {
        Self(OnceLock::new())
    }

    /// What the process answers to `request`. `worker` is 0: there is one.
    fn call_worker<'py>(
        &self,
        py: Python<'py>,
        worker: usize,
        request: Vec<u8>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if worker != 0 {
            let told = format!("there is no worker {worker}: an evaluator has one process");
            return Err(PyValueError::new_err(told));
        }
        // Whoever lets go of an evaluator shuts it down first, which ends its thread and this call:
        // the last reference is not here.
        let evaluator = self.0.get().and_then(Weak::upgrade);
        let answer = py.detach(|| match &evaluator {
            Some(evaluator) => evaluator.call_worker(request),
            None => Err(NextError::ShutDown.into()),
        });
        let answer = answer.map_err(|error| error::to_py(py, &error))?;
        Ok(PyBytes::new(py, &answer))
    }
}

/// A result or the error of an evaluation; `None` before there is one.
type Answer = Option<Result<Evaluation, EvaluateError>>;

#[pymethods]
impl EvaluatorCore {
    /// Builds the evaluator that `options` describe.
    #[new]
    fn new(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options: Options<'_> = options.extract()?;
        let roots = GcRoots::default();
        let policy = PolicyRecipe::new(&options.policy, &roots)?;
        let mut builder = match &options.sent {
            Some(sent) => in_process(&options, policy, sent, &roots)?,
            None => {
                let env = PolicyEnvs::before_policy(&options.env, &policy, &roots)?;
                Evaluator::builder(env).policy_factory(move |worker| policy.policy(worker))
            }
        };
        builder = builder
            .num_trajectories(options.num_trajectories)
            .exploration_type(exploration_type(&options.exploration_type)?)
            .busy_policy(busy_policy(&options.busy_policy)?)
            .log_prefix(options.log_prefix)
            .reporting_as(&gil::interrupt(py)?)
            .shutdown_timeout(duration("shutdown_timeout", options.shutdown_timeout)?);
        if options.lazy {
            builder = builder.lazily();
        }
        if let Some(steps) = options.max_steps {
            builder = builder.max_steps(steps);
        }
        if let Some(seconds) = options.step_timeout {
            builder = builder.step_timeout(duration("step_timeout", seconds)?);
        }
        if let Some(budget) = options.restarts {
            builder = builder.on_loss(OnLoss::Restart { budget });
        }
        if let Some(seed) = options.seed {
            builder = builder.seed(seed);
        }
        if let Some(metrics) = &options.metrics_fn {
            let metrics = roots.hold(metrics);
            let roots = roots.clone();
            builder = builder.metrics(move |batch| measure(&metrics, batch, &roots));
        }
        if let Some(write) = &options.write_recordings {
            let write = roots.hold(write);
            let roots = roots.clone();
            builder = builder.write_recordings(move |step| {
                attach(|py| {
                    let written = gil::call(write.bind(py), (step,), None);
                    written.map_or_else(|raised| Err(roots.raised(py, raised)), |_| Ok(()))
                })
            });
        }
        if let Some(on_result) = &options.on_result {
            let on_result = roots.hold(on_result);
            builder = builder.on_result(move |result| tell(&on_result, result));
        }
        let built = gil::wait_for_thread(py, "windrow-build", move || builder.build());
        if built.is_err() {
            // A build that was interrupted may go on in its thread, and outlive this object.
            roots.abandon();
        }
        let evaluator = built?.map_err(|error| error::to_py(py, &error))?;
        let evaluator = Arc::new(evaluator);
        #[cfg(target_os = "linux")]
        if let Some(process) = &options.process {
            let _ = process.get().0.set(Arc::downgrade(&evaluator));
        }
        Ok(Self {
            own: Own::new(evaluator),
            interrupted: AtomicBool::new(false),
            roots,
        })
    }

    /// Evaluates and waits for the result.
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        weights: Option<&Bound<'py, PyAny>>,
        step: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.surface(py)?;
        let weights = weights.map(batch::from_python).transpose()?;
        let evaluator = Arc::clone(self.here()?);
        let result = gil::wait_for_thread(py, "windrow-evaluate", move || {
            evaluator.evaluate(weights.as_ref(), Some(step))
        });
        report(py, self.noted(result)?)
    }

    /// Asks for an evaluation without waiting; returns whether it will take place.
    fn trigger(
        &self,
        py: Python<'_>,
        weights: Option<&Bound<'_, PyAny>>,
        step: u64,
    ) -> PyResult<bool> {
        self.surface(py)?;
        let weights = weights.map(batch::from_python).transpose()?;
        let evaluator = self.here()?;
        py.detach(|| evaluator.trigger_eval(weights.as_ref(), Some(step)))
            .map_err(|error| error::to_py(py, &error))
    }

    /// Waits for the oldest unread result, for so many seconds or as long as it takes; `None` at
    /// once if no evaluation is pending.
    fn wait<'py>(
        &self,
        py: Python<'py>,
        seconds: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let timeout = seconds
            .map(|seconds| duration("timeout", seconds))
            .transpose()?;
        let evaluator = self.here()?;
        let begun = Instant::now();
        let answer: PyResult<Answer> = gil::wait(py, |patience| {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let now = left.map_or(patience, |left| left.min(patience));
            let asked = Instant::now();
            let answer = evaluator.poll(now);
            let is_over = left.is_some_and(|left| left <= patience);
            // The engine waits for all of `now`, unless nothing is pending: then it returns at
            // once, and so does this call.
            let is_idle = asked.elapsed() < now;
            (answer.is_some() || is_over || is_idle).then_some(answer)
        });
        let answer = self.noted(answer)?;
        answer.map(|result| report(py, result)).transpose()
    }

    /// Errors of environments that were replaced, since the last call.
    fn take_losses(&self) -> PyResult<Vec<String>> {
        let losses = self.here()?.take_losses();
        Ok(losses.iter().map(|error| error_chain(error)).collect())
    }

    /// Whether evaluations are running or waiting.
    fn pending(&self) -> PyResult<bool> {
        Ok(self.here()?.pending())
    }

    /// Ends the running evaluation and drops waiting ones, within so many seconds; without a
    /// number, within `shutdown_timeout`.
    #[pyo3(signature = (seconds=None))]
    fn shutdown(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let timeout = seconds
            .map(|seconds| duration("timeout", seconds))
            .transpose()?;
        self.ended(py, timeout)?
            .map_err(|error| error::to_py(py, &error))?;
        match self.belongs_here() {
            true => self.surface(py),
            false => Ok(()),
        }
    }

    /// As [`shutdown`](Self::shutdown), where no error can be raised: errors of unread evaluations
    /// go to `sys.unraisablehook`. Returns whether the evaluator ended in time; a stuck thread ends
    /// when its step returns.
    #[pyo3(signature = (seconds=None))]
    fn end(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        let timeout = seconds
            .map(|seconds| duration("timeout", seconds))
            .transpose()?;
        let ended = self.ended(py, timeout)?.is_ok();
        self.show_errors(py);
        Ok(ended)
    }

    /// Whether the evaluator was made in this process: a child of fork has none of its threads.
    fn belongs_here(&self) -> bool {
        self.own.belongs_here()
    }

    /// Ends the evaluator before it is freed: as [`end`](Self::end), but signals do not stop it.
    fn finalize(&self, py: Python<'_>) {
        // The evaluator's thread may need the interpreter's lock to end, so this gives it up. A
        // stuck thread ends when its step returns.
        if let Some(evaluator) = self.own.here() {
            // `KeyboardInterrupt` may be leaving the function that owned this evaluator.
            let _ = py.detach(|| match self.interrupted.load(Ordering::Relaxed) {
                true => evaluator.shutdown_within(gil::IMPATIENCE),
                false => evaluator.shutdown(),
            });
            self.show_errors(py);
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.roots.traverse(&visit)
    }
}

impl EvaluatorCore {
    /// The evaluator.
    ///
    /// # Errors
    /// `RuntimeError` in a child of fork.
    fn here(&self) -> PyResult<&Arc<Evaluator>> {
        self.own.get("evaluator")
    }

    /// Notes whether a wait was interrupted, and passes its result on.
    fn noted<T>(&self, waited: PyResult<T>) -> PyResult<T> {
        self.interrupted.store(waited.is_err(), Ordering::Relaxed);
        waited
    }

    /// Shuts the evaluator down; `Ok` in a child of fork, which has nothing to end.
    fn ended(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Result<(), Stuck>> {
        let Some(evaluator) = self.own.here().map(Arc::clone) else {
            return Ok(Ok(()));
        };
        gil::wait_for_thread(py, "windrow-shutdown", move || match timeout {
            Some(timeout) => evaluator.shutdown_within(timeout),
            None => evaluator.shutdown(),
        })
    }

    /// Raises the error of the oldest unread evaluation that failed.
    fn surface(&self, py: Python<'_>) -> PyResult<()> {
        let error = self.here()?.take_error();
        error.map_or(Ok(()), |error| Err(error::to_py(py, &error)))
    }

    /// Sends errors of unread evaluations to `sys.unraisablehook`.
    fn show_errors(&self, py: Python<'_>) {
        while let Some(error) = self.own.here().and_then(|it| it.take_error()) {
            error::to_py(py, &error).write_unraisable(py, None);
        }
    }
}

impl Drop for EvaluatorCore {
    fn drop(&mut self) {
        let _ = Python::try_attach(|py| {
            // Python drops objects while an error is being raised: it must survive the calls below.
            let raised = PyErr::take(py);
            self.finalize(py);
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

/// A builder whose worker is in a process, for which `sent` was pickled; `policy` checks weights
/// here.
///
/// # Errors
/// `TypeError` if the environment is none; the exception of a function that makes the policy;
/// `RuntimeError` where nobody knows the path of the interpreter.
#[cfg(target_os = "linux")]
fn in_process(
    options: &Options<'_>,
    policy: PolicyRecipe,
    sent: &Sent,
    roots: &GcRoots,
) -> PyResult<EvaluatorBuilder> {
    let env_here = PolicyEnvs::new(&options.env, None, &policy, roots)?;
    let envs = env_here.written_as(|init| worker::sent_envs(sent.env.clone(), init, sent.seed))?;
    let recipe = Recipe::opaque(move |worker| policy.policy(worker));
    let builder = Evaluator::builder(envs)
        .policy_recipe(recipe.written_as(worker::sent_policy(&sent.policy)?));
    Ok(match &options.launcher {
        Some(launcher) => builder.launcher(PyLauncher::new(launcher)?),
        None => builder
            .placement(Placement::Processes)
            .worker_program(worker::program(options.env.py(), 1, sent.warm)?),
    })
}

/// There are no worker processes.
#[cfg(not(target_os = "linux"))]
fn in_process(
    _: &Options<'_>,
    _: PolicyRecipe,
    _: &Sent,
    _: &GcRoots,
) -> PyResult<EvaluatorBuilder> {
    Err(PyValueError::new_err(
        "worker processes need Linux: choose backend=\"thread\"",
    ))
}

/// A duration of so many seconds, which the argument `name` gave.
///
/// # Errors
/// `ValueError` when it is negative or not a number.
fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    if seconds >= 0.0 {
        // Infinity, and other times that do not fit, mean no limit.
        return Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    }
    Err(PyValueError::new_err(format!(
        "{name} must be a number of seconds, 0 or more, got {seconds}"
    )))
}

/// The busy policy of this name.
///
/// # Errors
/// `ValueError` naming the policies.
fn busy_policy(name: &str) -> PyResult<BusyPolicy> {
    Ok(match name {
        "skip" => BusyPolicy::Skip,
        "queue" => BusyPolicy::Queue,
        "error" => BusyPolicy::Error,
        _ => {
            return Err(PyValueError::new_err(format!(
                "busy_policy must be \"skip\", \"error\" or \"queue\", got {name:?}"
            )));
        }
    })
}

/// Calls the user's function for more figures, with the frames of all episodes.
fn measure(
    metrics: &GcRef,
    trajectories: &TensorDict,
    roots: &GcRoots,
) -> Result<Vec<(String, f64)>, Raised> {
    attach(|py| {
        let measure = || {
            let trajectories = batch::to_python(py, &trajectories.detach())?;
            let figures = gil::call(metrics.bind(py), (trajectories,), None)?;
            let figures = figures.cast::<PyDict>()?.iter();
            figures
                .map(|(name, value)| Ok((name.extract()?, value.extract()?)))
                .collect::<PyResult<_>>()
        };
        measure().map_err(|raised| roots.raised(py, raised))
    })
}

/// Calls the user's function with a result; its error goes to `sys.unraisablehook`, since no caller
/// waits for it.
fn tell(on_result: &GcRef, result: &Evaluation) {
    attach(|py| {
        let told =
            to_dict(py, result).and_then(|result| gil::call(on_result.bind(py), (result,), None));
        if let Err(error) = told {
            error.write_unraisable(py, Some(on_result.bind(py)));
        }
    });
}

/// A result as a dictionary, or the error of the evaluation as an exception.
fn report<'py>(
    py: Python<'py>,
    result: Result<Evaluation, EvaluateError>,
) -> PyResult<Bound<'py, PyDict>> {
    match result {
        Ok(result) => to_dict(py, &result),
        Err(error) => Err(error::to_py(py, &error)),
    }
}

/// Figures by name; counts are integers.
fn to_dict<'py>(py: Python<'py>, result: &Evaluation) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (name, value) in result.to_map() {
        let is_count = ["/num_episodes", "/step", "/policy_version"]
            .iter()
            .any(|count| name.ends_with(count));
        if is_count {
            out.set_item(name, value as i64)?;
        } else {
            out.set_item(name, value)?;
        }
    }
    Ok(out)
}
