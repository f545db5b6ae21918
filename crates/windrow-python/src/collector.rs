//! The engine's collector, as the classes of `windrow.collectors` use it.
//!
//! The engine collects, pauses and ends in the same way as for Rust. Only the last stage of each
//! batch is Python's ([`stage`]): the engine calls methods of the Python collector, in the thread
//! that asks for a batch, so that they see its state of torch and its warnings, and after `start`
//! in the engine's own thread. One thread at a time uses the engine ([`seat`]); calls wait for it,
//! and for workers, in slices of a tenth of a second, and handle signals between two slices
//! ([`asking`]). An interrupted call loses nothing: the next one goes on. [`ending`] ends a
//! collector in all ways there are.

mod asking;
mod collecting;
mod ending;
pub(crate) mod options;
mod seat;
mod stage;

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict};
use pyo3::{PyTraverseError, PyVisit};
use tensordict::{TensorDict, TensorError};
use windrow::binding::WeightUpdate;
use windrow::policy::Backend;
use windrow::{
    BuildError, Collector, Handle, Placement, ProfileConfig, WorkerProfile, WorkerStats,
    error_chain,
};
use windrow_sync::unpoisoned;

use crate::{batch, env, error, factory_lock, gil, profiler, server};
use options::Options;
use seat::Seat;
use stage::{Delivered, Owner, PyStage};

use crate::batch::Named;
use crate::env::{EnvHandle, Key, Run};
use crate::gc::GcRoots;
use crate::policy::PolicyEnvs;
use crate::process::Own;

/// Adds the class.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PATIENCE", Engine::PATIENCE.as_secs_f64())?;
    module.add("IMPATIENCE", gil::IMPATIENCE.as_secs_f64())?;
    module.add_function(wrap_pyfunction!(collecting::collects, module)?)?;
    module.add_class::<CollectorCore>()
}

/// The engine's collector, whose last stage is Python's.
type Engine = Collector<PyStage>;

/// A collector, behind the classes of `windrow.collectors`. Methods that wait for the engine give
/// up the interpreter's lock meanwhile.
#[pyclass(module = "windrow._windrow", frozen, weakref)]
struct CollectorCore {
    own: Own<Inner>,
    /// The Python objects that the engine holds, for the garbage collector.
    roots: GcRoots,
}

/// The collector in the process that made it.
struct Inner {
    engine: Seat<Engine>,
    handle: Handle,
    owner: Arc<Owner>,
    /// Batches from first to last, if that is known.
    len: Option<usize>,
    /// The tensors that weights come from, and a copy of the values that were published last.
    source: Mutex<Option<(Named, TensorDict)>>,
    /// The message of calls for more batches, after an error.
    failure: Mutex<Option<String>>,
    /// The user was warned of many batches that are kept.
    warned: AtomicBool,
    /// The last call for a batch was interrupted, as by Ctrl-C.
    interrupted: AtomicBool,
    /// A thread that is stuck was left behind: nothing waits for it any more.
    left: AtomicBool,
    /// The device that batches name, `torch.device("cpu")` or none.
    device: Option<Py<PyAny>>,
}

#[pymethods]
impl CollectorCore {
    /// Builds the collector that `options` describe.
    #[new]
    fn new(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options: Options<'_> = options.extract()?;
        let config = options.config()?;
        let threads = config.placement == Some(Placement::Threads);
        let device = options.device();
        let roots = GcRoots::default();
        let stage = PyStage {
            owner: Arc::default(),
            target: options.target(),
            device: options.device(),
            flat: options.flat,
            roots: roots.clone(),
            context: None,
            warned: false,
        };
        let owner = Arc::clone(&stage.owner);
        let (builder, envs) = options.builder(config, &stage.target, &roots)?;
        let builder = builder.interrupt(gil::interrupt(py)?);
        // Environments and policies may be made in other threads, which need both locks where these
        // are Python's.
        let built = py.detach(|| factory_lock::lending(|| builder.build_with(stage)));
        if matches!(built, Err(BuildError::WaitInterrupted(_))) {
            // A thread that still builds makes no further call of the user's functions.
            roots.abandon();
        }
        let engine = of(py, built)?;
        if !engine.handle().deltas().is_empty() {
            owner.look();
        }
        if threads && envs.iter().any(PolicyEnvs::are_python) {
            env::warn_of_turns(py)?;
        }
        let inner = Inner {
            handle: engine.handle(),
            len: engine.len(),
            engine: Seat::new(engine),
            owner,
            source: Mutex::default(),
            failure: Mutex::default(),
            warned: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            left: AtomicBool::new(false),
            device,
        };
        Ok(Self {
            own: Own::new(inner),
            roots,
        })
    }

    /// Sets the Python collector whose methods are the last stage of each batch; without one,
    /// batches are dropped.
    fn serve(&self, collector: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.here()?.owner.set(collector)
    }

    /// The next batch, or None where it was written. Raises `StopIteration` after the last.
    fn next(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let core = self.here()?;
        // Before a batch is taken, which would be lost where warnings are errors.
        core.warn_of_memory(py)?;
        match core.next(py)? {
            Some(Delivered::Object(batch)) => Ok(batch),
            Some(_) => Ok(py.None()),
            None => Err(PyStopIteration::new_err(())),
        }
    }

    /// Collects and writes in the engine's own thread.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        let core = self.here()?;
        let owner = &core.owner;
        let started = core.with(py, |engine| {
            gil::attach(|py| owner.keep(py))?;
            let started = engine.start();
            if started.is_err() && !engine.is_running() {
                gil::attach(|py| owner.release(py));
            }
            PyResult::Ok(started)
        })?;
        of(py, started?)
    }

    /// Whether the thread of [`start`](Self::start) runs.
    fn is_running(&self) -> bool {
        self.own.here().is_some_and(|core| core.handle.is_running())
    }

    /// Whether the collector is ending, so that a write must not wait any more.
    fn is_ending(&self) -> PyResult<bool> {
        Ok(self.here()?.handle.is_ending())
    }

    /// Raises an error in the collector's own environment or policy, where a call would wait for
    /// itself.
    #[pyo3(name = "check_outside")]
    fn raise_within(&self) -> PyResult<()> {
        let core = self.here()?;
        core.check_outside()
    }

    /// Whether the calling thread runs an environment or the policy of the collector.
    fn is_within(&self) -> bool {
        let core = self.own.here();
        core.is_some_and(|core| core.handle.is_within())
    }

    /// Seconds that the present write has taken so far, if there is one.
    fn write_waits(&self) -> PyResult<Option<f64>> {
        let waits = self.here()?.handle.write_waits();
        Ok(waits.map(|waited| waited.as_secs_f64()))
    }

    /// Zeros in the shape of a batch, after the last stage.
    fn fake_batch(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let core = self.here()?;
        match of(py, core.with(py, Collector::fake_batch)?)? {
            Delivered::Object(batch) => Ok(batch),
            Delivered::Frames(_) | Delivered::Written => Ok(py.None()),
        }
    }

    /// One batch without post-processing, which does not count.
    fn rollout<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.here()?;
        core.delivered(py, &core.rollout(py)?)
    }

    /// Frames without post-processing, which do not count, of the environments that `handle` steps
    /// by hand, in memory of their own: at most `steps` steps of new episodes with these seeds, up
    /// to the end of the first one where that `ends` it. A batch has `room` of them.
    fn rollout_by_hand<'py>(
        &self,
        py: Python<'py>,
        handle: &Bound<'py, EnvHandle>,
        steps: usize,
        ends: bool,
        seeds: Vec<Option<u64>>,
        room: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let core = self.here()?;
        let wrong = |error: TensorError| PyValueError::new_err(error_chain(&error));
        let (mut parts, mut left, mut seeds) = (Vec::new(), steps, Some(seeds));
        core.handle.reset();
        while left > 0 {
            core.handle.start_collection();
            let run = Run::new(core.handle.clone(), left.min(room), ends, seeds.take());
            let (batch, taken, ended) = handle.get().run(run, || core.rollout(py))?;
            let part = batch.narrow(batch.ndim() - 1, 0, taken).map_err(wrong)?;
            parts.push(part.exclude(&["collector"]).detach());
            left = if ended { 0 } else { left - taken };
        }
        let frames = match &*parts {
            [only] => only.clone(),
            _ => TensorDict::cat(&parts, parts[0].ndim() - 1).map_err(wrong)?,
        };
        core.delivered(py, &frames)
    }

    /// Batches from first to last; `None` when endless.
    fn len(&self) -> PyResult<Option<usize>> {
        Ok(self.here()?.len)
    }

    /// Publishes weights, to all workers or to one, and returns their version.
    fn publish(
        &self,
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        worker: Option<usize>,
    ) -> PyResult<i64> {
        let core = self.here()?;
        let update = core.begin_update(py, worker)?;
        if core.handle.policy_backend() == Backend::Native {
            // With the interpreter's lock, as in `follow`.
            return of(py, update.publish(&batch::views_by_name(weights)?));
        }
        let weights = batch::from_python(weights)?;
        of(py, py.detach(|| update.publish(&weights)))
    }

    /// As [`publish`](Self::publish), of weights that were packed.
    fn publish_packed(
        &self,
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        worker: Option<usize>,
    ) -> PyResult<i64> {
        let core = self.here()?;
        let weights = batch::packed::read(&weights.extract()?, false)?;
        let update = core.begin_update(py, worker)?;
        of(py, py.detach(|| update.publish(&weights)))
    }

    /// Names the tensors that [`follow`](Self::follow) looks at. The policy was made with those
    /// that are named first.
    fn set_source(&self, weights: &Bound<'_, PyDict>) -> PyResult<()> {
        let core = self.here()?;
        let mut named = Named::new(weights)?;
        let made_with = named.views(weights.py())?.detach();
        let mut source = core.source(weights.py());
        let published = source.take().map_or(made_with, |(_, published)| published);
        *source = Some((named, published));
        Ok(())
    }

    /// Publishes the tensors of the source to all workers, if they have changed since that was last
    /// done, or if they are to be a version of their own `in_any_case`.
    fn follow(&self, py: Python<'_>, in_any_case: bool) -> PyResult<()> {
        let core = self.here()?;
        let mut source = core.source(py);
        let Some((named, published)) = source.as_mut() else {
            return Ok(());
        };
        let weights = named.views(py)?;
        if in_any_case || !weights.same_bits(published) {
            let update = core.begin_update(py, None)?;
            // With the interpreter's lock, so that no code of Python changes them meanwhile;
            // whoever has the other locks on the way needs nothing of the interpreter where the
            // engine evaluates the policy.
            of(py, update.publish(weights))?;
            *published = core.handle.shared_policy_weights();
        }
        Ok(())
    }

    /// How many environments a worker has, and whether batches have a dimension for them.
    fn envs_of_a_worker(&self) -> PyResult<(usize, bool)> {
        Ok(self.here()?.handle.envs_of_a_worker())
    }

    /// Dimensions that the environments of a worker are in, where they are in several.
    fn dimensions(&self) -> PyResult<Vec<usize>> {
        Ok(self.here()?.handle.dimensions().to_vec())
    }

    /// Observations that batches have as differences under `"next"`, each with the element type of
    /// these.
    fn deltas(&self) -> PyResult<Vec<(Key, String)>> {
        let deltas = self.here()?.handle.deltas().iter().cloned();
        Ok(deltas.map(|(key, dtype)| (Key(key), dtype)).collect())
    }

    /// `"torch"` or `"native"`: what evaluates the policy.
    fn policy_backend(&self) -> PyResult<&'static str> {
        let core = self.here()?;
        Ok(match core.handle.policy_backend() {
            Backend::Native => "native",
            _ => "torch",
        })
    }

    /// A copy of the weights that were published last.
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.here()?;
        let weights = py.detach(|| core.handle.policy_weights());
        batch::weights_to_python(py, &weights)
    }

    /// Seeds everything; the seed of the last environment.
    fn set_seed(&self, py: Python<'_>, seed: u64, static_seed: bool) -> PyResult<u64> {
        let core = self.here()?;
        core.check_outside()?;
        Ok(py.detach(|| core.handle.set_seed(seed, static_seed)))
    }

    /// Begins new episodes with each worker's next part.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let core = self.here()?;
        core.check_outside()?;
        py.detach(|| core.handle.reset());
        Ok(())
    }

    /// The state from which a collector goes on, and the reason why it has no simulators, if it has
    /// none. Environments may be pickled, where `pickle`.
    fn state_dict<'py>(
        &self,
        py: Python<'py>,
        pickle: bool,
    ) -> PyResult<(Bound<'py, PyAny>, Option<String>)> {
        let core = self.here()?;
        core.check_outside()?;
        if core.engine.is_taken_here() {
            // A function that the collector calls, while it collects.
            let state = py.detach(|| core.handle.state_dict());
            let reason = "a function that the collector calls has asked for the state";
            return Ok((
                batch::to_python(py, &of(py, state)?)?,
                Some(reason.to_owned()),
            ));
        }
        let (state, reason) = core.with(py, |collector| {
            let state = collector.state_dict_with(pickle);
            (state, collector.not_held())
        })?;
        Ok((batch::to_python(py, &of(py, state)?)?, reason))
    }

    /// Goes on from a saved state.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let core = self.here()?;
        let state = batch::from_python(state)?;
        let loaded = core.with(py, |collector| collector.load_state_dict(&state))?;
        of(py, loaded)
    }

    /// Lets workers finish their present part and start no other; waits for a write up to
    /// `seconds`.
    fn pause(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let core = self.here()?;
        let patience = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let held = core.with(py, |engine| engine.hold(patience))?;
        of(py, held)
    }

    /// Ends a pause.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.here()?.with(py, Collector::release)
    }

    /// Cuts every part short at its next step, or fills them whole again.
    fn cut(&self, short: bool) -> PyResult<()> {
        let core = self.here()?;
        if short {
            core.handle.stop_collection();
        } else {
            core.handle.start_collection();
        }
        Ok(())
    }

    /// Figures by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.here()?;
        let stats = py.detach(|| core.handle.stats());
        let out = PyDict::new(py);
        out.set_item("frames", stats.frames)?;
        out.set_item("batches", stats.batches)?;
        out.set_item("dropped_frames", stats.dropped_frames)?;
        out.set_item("total_frames", stats.total_frames)?;
        out.set_item("completed", stats.completed)?;
        out.set_item(
            "requested_frames_per_batch",
            stats.requested_frames_per_batch,
        )?;
        out.set_item("workers", stats.workers)?;
        out.set_item("workers_alive", stats.workers_alive)?;
        out.set_item("restarts", stats.restarts)?;
        out.set_item("num_envs", stats.num_envs)?;
        out.set_item("frames_per_second", stats.frames_per_second)?;
        out.set_item("recent_frames_per_second", stats.recent_frames_per_second)?;
        out.set_item("workers_waited", stats.workers_waited.as_secs_f64())?;
        out.set_item("policy_version", stats.policy_version)?;
        out.set_item("policy_lag_min", stats.policy_lag.min)?;
        out.set_item("policy_lag_mean", stats.policy_lag.mean)?;
        out.set_item("policy_lag_max", stats.policy_lag.max)?;
        out.set_item("policy_age", stats.policy_age)?;
        out.set_item("oldest_part", stats.oldest_part)?;
        out.set_item("max_lag_waited", stats.max_lag_waited.as_secs_f64())?;
        out.set_item("seed", stats.seed)?;
        out.set_item("slabs", stats.slabs)?;
        out.set_item("slab_bytes", stats.slab_bytes)?;
        Ok(out)
    }

    /// Figures of each worker by name.
    fn worker_stats<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let core = self.here()?;
        let workers = py.detach(|| core.handle.worker_stats());
        let figures = |worker: &WorkerStats| {
            let out = PyDict::new(py);
            out.set_item("frames", worker.frames)?;
            out.set_item("parts", worker.parts)?;
            out.set_item("restarts", worker.restarts)?;
            out.set_item("alive", worker.alive)?;
            out.set_item("pid", worker.pid)?;
            out.set_item("waited", worker.waited.as_secs_f64())?;
            out.set_item("policy_version", worker.policy_version)?;
            out.set_item("policy_lag", worker.policy_lag)?;
            Ok(out)
        };
        workers.iter().map(figures).collect()
    }

    /// Figures of the server that evaluates the policy, by name; `None` without one.
    fn server_stats<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let core = self.here()?;
        let stats = py.detach(|| core.handle.server_stats());
        stats.map(|stats| server::figures(py, &stats)).transpose()
    }

    /// Records where the time of `workers` goes; `beside` is a function that makes another profiler
    /// of a worker by its number, and the same pickled for workers in processes.
    fn enable_profile(
        &self,
        py: Python<'_>,
        workers: Vec<usize>,
        num_rollouts: usize,
        warmup_rollouts: usize,
        save_path: String,
        beside: Option<(Bound<'_, PyAny>, Option<Vec<u8>>)>,
    ) -> PyResult<()> {
        let core = self.here()?;
        let mut config = ProfileConfig::new()
            .workers(workers)
            .num_rollouts(num_rollouts)
            .warmup_rollouts(warmup_rollouts)
            .save_path(save_path);
        if let Some((make, sent)) = beside {
            config = config.profiler(profiler::recipe(&make, sent.as_deref(), &self.roots));
        }
        let enabled = core.with(py, |collector| collector.enable_profile(&config))?;
        of(py, enabled)
    }

    /// Ends the recording.
    fn disable_profile(&self, py: Python<'_>) -> PyResult<()> {
        let core = self.here()?;
        let disabled = core.with(py, Collector::disable_profile)?;
        of(py, disabled)
    }

    /// Seconds of each phase by its name, for each worker by its number.
    fn profile_summary(&self, py: Python<'_>) -> PyResult<HashMap<usize, HashMap<String, f64>>> {
        let core = self.here()?;
        let summary = core.with(py, |collector| collector.profile_summary())?;
        let seconds = |worker: &WorkerProfile| {
            let phases = worker.phases().iter();
            phases
                .map(|phase| (phase.phase.name().to_owned(), phase.total.as_secs_f64()))
                .collect()
        };
        let workers = summary.workers.iter();
        Ok(workers
            .map(|worker| (worker.worker, seconds(worker)))
            .collect())
    }

    /// What worker `worker`, which is a process, answers to `request`.
    #[cfg(target_os = "linux")]
    fn call_worker<'py>(
        &self,
        py: Python<'py>,
        worker: usize,
        request: Vec<u8>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let core = self.here()?;
        let answer = py.detach(|| core.handle.call_worker(worker, request));
        Ok(PyBytes::new(py, &of(py, answer)?))
    }

    /// Messages of workers that were lost without ending the collector, since this was last asked.
    fn take_losses(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let core = self.here()?;
        let losses = py.detach(|| core.handle.take_losses());
        Ok(losses.iter().map(|loss| error_chain(loss)).collect())
    }

    /// Ends collection and waits for the workers, and up to `seconds` for the thread of
    /// [`start`](Self::start).
    fn shutdown(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        self.here()?.shutdown(py, seconds)
    }

    /// Ends collection without raising errors; whether all threads ended within `seconds`.
    fn leave(&self, py: Python<'_>, seconds: f64) -> bool {
        let patience = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let core = self.own.here();
        core.is_none_or(|core| core.leave(py, patience))
    }

    /// Whether this process made the collector: a child of fork has none of its threads.
    fn belongs_here(&self) -> bool {
        self.own.belongs_here()
    }

    /// Ends collection before the collector is freed.
    fn finalize(&self, py: Python<'_>) {
        if let Some(core) = self.own.here() {
            core.finalize(py);
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.roots.traverse(&visit)
    }
}

impl CollectorCore {
    fn here(&self) -> PyResult<&Inner> {
        self.own.get("collector")
    }
}

impl Inner {
    /// One batch without post-processing, which does not count.
    fn rollout(&self, py: Python<'_>) -> PyResult<TensorDict> {
        let batch = self.with(py, |engine| {
            let _collecting = collecting::Collecting::begin();
            engine.rollout()
        })?;
        of(py, batch)
    }

    /// Waits until weights may be published to all workers or to one, without the interpreter's
    /// lock: parts that it waits for may need it.
    fn begin_update(&self, py: Python<'_>, worker: Option<usize>) -> PyResult<WeightUpdate<'_>> {
        of(py, py.detach(|| self.handle.begin_update(worker)))
    }

    /// The source of weights. A thread that waits for it gives up the interpreter's lock: the
    /// thread that has the source may wait for that lock, since a look at its tensors may give it
    /// up.
    fn source(&self, py: Python<'_>) -> MutexGuard<'_, Option<(Named, TensorDict)>> {
        let source = self.source.lock_py_attached(py);
        unpoisoned(source)
    }

    /// A batch as Python gets it: a `TensorDict` over the same memory.
    fn delivered<'py>(&self, py: Python<'py>, batch: &TensorDict) -> PyResult<Bound<'py, PyAny>> {
        batch::named_after(py, batch, self.device.as_ref())
    }
}

/// The result of the engine, or its error as an exception.
fn of<T, E: Error + 'static>(py: Python<'_>, result: Result<T, E>) -> PyResult<T> {
    result.map_err(|error| error::to_py(py, &error))
}
