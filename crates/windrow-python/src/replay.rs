//! A replay buffer, as the classes of `windrow.data` use it.
//!
//! Three rules shape the methods here. The engine's buffer has locks of its own, and a thread that
//! waited for them with the interpreter's lock held could keep a collector from finishing a write:
//! so every call that waits gives the interpreter's lock up. Tensors that a user passes may be
//! changed by other threads of Python as soon as that lock is free: so they are read before, or
//! copied ([`Lent`]). And a wait for frames or for a limiter may last long: so it is cut into
//! slices, between which signals are handled.
//!
//! A child of fork may use its copy of a buffer, such as a worker of a `DataLoader` that samples,
//! unless a lock was held at the fork.

mod parts;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyIndexError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensordict::{Tensor, TensorDict};
use windrow::error_chain;
use windrow::postproc::{self, MultiStep};
use windrow::replay::Waited;
use windrow::replay::{ReplayBuffer, ReplayError, Sink, StoreError, WriterId};

use crate::{batch, error, gil, process};
use parts::{Arguments, Parts};

/// Adds the class and the functions for batches.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(multi_step, module)?)?;
    module.add_function(wrap_pyfunction!(split_trajectories, module)?)?;
    module.add_class::<ReplayBufferCore>()
}

/// A replay buffer. Its methods hold the interpreter's lock only while they make Python objects or
/// read the memory of Python's tensors.
#[pyclass(module = "windrow._windrow", frozen)]
pub(crate) struct ReplayBufferCore {
    /// Shared with the collectors that write to it.
    buffer: ReplayBuffer,
    /// The longest wait of a sample for frames, and of a write for samples.
    timeout: Duration,
    /// The device that batches name.
    device: Option<Py<PyAny>>,
    /// The process that made it.
    process: u32,
    /// Set by [`close`](Self::close), after which no call waits for frames or samples.
    closed: AtomicBool,
}

impl ReplayBufferCore {
    /// The buffer itself, for collectors.
    pub(crate) fn buffer(&self) -> &ReplayBuffer {
        &self.buffer
    }

    /// How long samples wait for frames, and writes for samples.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The buffer, to read or, with `whole`, to write. A child of fork has a copy of its own.
    ///
    /// # Errors
    /// `RuntimeError` in a child of fork when a thread of the parent held a lock of the buffer at
    /// that moment: that thread does not exist in the child, and never releases it.
    fn here(&self, whole: bool) -> PyResult<&ReplayBuffer> {
        if self.process != process::id() && self.buffer.is_stuck(whole, 10 * gil::SLICE) {
            return Err(PyRuntimeError::new_err(format!(
                "a thread of process {} was using this replay buffer when process {} was forked from it: stop collectors before, or \
                 make the buffer in the process that uses it",
                self.process,
                process::id()
            )));
        }
        Ok(&self.buffer)
    }
}

#[pymethods]
impl ReplayBufferCore {
    /// Builds the buffer that `options` describe.
    #[new]
    fn new(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let parts: Parts<'_> = options.extract()?;
        let timeout = Duration::try_from_secs_f64(parts.sample_timeout).map_err(|_| {
            let got = parts.sample_timeout;
            PyValueError::new_err(format!(
                "sample_timeout must be a finite number of seconds, 0 or more, got {got}"
            ))
        })?;
        let device = parts.device.as_ref().map(|device| device.clone_ref(py));
        let builder = parts.builder()?.timeout(timeout);
        let builder = builder.values_of(batch::values_of);
        let buffer = of(py, py.detach(|| builder.build()))?;
        Ok(Self {
            buffer,
            timeout,
            device,
            process: process::id(),
            closed: AtomicBool::new(false),
        })
    }

    /// Ends the waits of other threads for frames, and for a limiter.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Takes a copy of the frames in; returns the rows that they were written to. A write that the
    /// limiter holds back waits for the timeout of the buffer or, with `given_up`, until that
    /// returns true. `collector`: the number of their author.
    #[pyo3(signature = (frames, given_up=None, collector=None))]
    fn extend<'py>(
        &self,
        py: Python<'py>,
        frames: &Bound<'_, PyAny>,
        given_up: Option<&Bound<'_, PyAny>>,
        collector: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.here(true)?;
        let frames = Lent::new(batch::views_of(frames)?);
        let given_up = given_up.map(|given_up| given_up.clone().unbind());
        let limit = match given_up {
            None => self.timeout,
            Some(_) => Duration::MAX,
        };
        let collector = collector.map(WriterId);
        let write = |frames: &TensorDict, patience| match collector {
            Some(collector) => buffer.extend_for(collector, frames, patience),
            None => buffer.extend_within(frames, patience),
        };
        let rows = self.write(py, frames, limit, given_up.as_ref(), write)?;
        let count = rows.len();
        batch::to_torch(py, tensor(rows, count)?)
    }

    /// Takes a copy of one frame in; returns its row, if it was kept.
    fn add(&self, py: Python<'_>, frame: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        let buffer = self.here(true)?;
        let frame = Lent::new(batch::views_of(frame)?);
        let write = |frame: &TensorDict, patience| buffer.add_within(frame, patience);
        self.write(py, frame, self.timeout, None, write)
    }

    /// A batch of frames with the entries that the sampler adds. Where frames are missing, it waits
    /// for collectors that write to the buffer, or returns None at once. A sample without waiting
    /// counts as drawn only once it is [handed out](Self::hand_out).
    #[pyo3(signature = (batch_size=None, waits=true))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        batch_size: Option<usize>,
        waits: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let buffer = self.here(false)?;
        let sampled = self.draw(py, waits, |timeout| {
            if waits {
                return buffer.sample_within(batch_size, timeout);
            }
            let (mut batch, info) = buffer.sample_ahead(batch_size)?;
            batch.update(&info)?;
            Ok(batch)
        })?;
        sampled
            .map(|sampled| batch::named_after(py, &sampled, self.device.as_ref()))
            .transpose()
    }

    /// As [`sample`](Self::sample): the frames as they were written, and separately the entries
    /// that the sampler adds.
    #[pyo3(signature = (batch_size=None, waits=true))]
    fn sample_apart<'py>(
        &self,
        py: Python<'py>,
        batch_size: Option<usize>,
        waits: bool,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let buffer = self.here(false)?;
        let named = |frames: &TensorDict| batch::named_after(py, frames, self.device.as_ref());
        self.draw(py, waits, |timeout| {
            if waits {
                buffer.sample_apart(batch_size, timeout)
            } else {
                buffer.sample_ahead(batch_size)
            }
        })?
        .map(|(sampled, info)| Ok((named(&sampled)?, named(&info)?)))
        .transpose()
    }

    /// Counts a sample that was drawn ahead as drawn, by its rows and the numbers of its frames.
    fn hand_out(&self, py: Python<'_>, rows: Vec<i64>, generations: Vec<i64>) -> PyResult<()> {
        let buffer = self.here(false)?;
        py.detach(move || buffer.hand_out(&rows, &generations));
        Ok(())
    }

    /// Whether the last sample ended a pass over the frames.
    fn ran_out(&self, py: Python<'_>) -> PyResult<bool> {
        let buffer = self.here(false)?;
        Ok(py.detach(|| buffer.ran_out()))
    }

    /// Copies of the frames in `rows`.
    fn get<'py>(&self, py: Python<'py>, rows: Vec<i64>) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.here(false)?;
        let frames = of(py, py.detach(move || buffer.get(&rows)))?;
        batch::named_after(py, &frames, self.device.as_ref())
    }

    /// Replaces the frames in `rows`.
    fn set(&self, py: Python<'_>, rows: Vec<i64>, frames: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = self.here(true)?;
        let frames = Lent::new(batch::views_of(frames)?);
        of(
            py,
            frames.read(py, buffer, move |frames| buffer.set(&rows, frames)),
        )
    }

    /// Replaces the sampler.
    fn set_sampler(&self, py: Python<'_>, sampler: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = self.here(true)?;
        let sampler = sampler.extract::<Arguments<'_>>()?.sampler()?;
        of(py, py.detach(move || buffer.set_sampler(sampler)))
    }

    /// Copies of all frames.
    fn all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.here(false)?;
        let frames = of(py, py.detach(|| buffer.all()))?;
        batch::named_after(py, &frames, self.device.as_ref())
    }

    /// Removes all frames.
    fn empty(&self, py: Python<'_>) -> PyResult<()> {
        let buffer = self.here(true)?;
        py.detach(|| buffer.empty());
        Ok(())
    }

    /// Number of frames.
    fn len(&self, py: Python<'_>) -> PyResult<usize> {
        let buffer = self.here(false)?;
        Ok(py.detach(|| buffer.len()))
    }

    /// Number of rows.
    fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Counts by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let buffer = self.here(false)?;
        let stats = py.detach(|| buffer.stats());
        let out = PyDict::new(py);
        out.set_item("frames", stats.frames)?;
        out.set_item("capacity", stats.capacity)?;
        out.set_item("write_count", stats.write_count)?;
        out.set_item("sampled", stats.sampled)?;
        out.set_item("overwritten", stats.overwritten)?;
        out.set_item("trajectories", stats.trajectories)?;
        out.set_item("complete_trajectories", stats.complete_trajectories)?;
        out.set_item("writers", stats.writers)?;
        Ok(out)
    }

    /// Sets the priorities of rows that still hold the frames `generations` or, without these, the
    /// frames that were drawn last. Returns the number of priorities set.
    #[pyo3(signature = (rows, priorities, generations=None))]
    fn update_priority(
        &self,
        py: Python<'_>,
        rows: Vec<i64>,
        priorities: Vec<f32>,
        generations: Option<Vec<i64>>,
    ) -> PyResult<usize> {
        let buffer = self.here(false)?;
        let capacity = buffer.capacity();
        let is_none = |row: &&i64| usize::try_from(**row).map_or(true, |row| row >= capacity);
        if let Some(row) = rows.iter().find(is_none) {
            return Err(PyIndexError::new_err(format!(
                "expected rows from 0 to {}, got {row}",
                capacity - 1
            )));
        }
        let updated = py.detach(move || match generations {
            Some(generations) => buffer.update_priority_of(&rows, &generations, &priorities),
            None => buffer.update_priority(&rows, &priorities),
        });
        of(py, updated)
    }

    /// The exponent of importance weights, where there are priorities.
    fn beta(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let buffer = self.here(false)?;
        Ok(py.detach(|| buffer.beta()))
    }

    /// Changes the exponent of importance weights.
    fn set_beta(&self, py: Python<'_>, beta: f64) -> PyResult<()> {
        let buffer = self.here(false)?;
        of(py, py.detach(|| buffer.set_beta(beta)))
    }

    /// Changes the exponent of priorities.
    fn set_alpha(&self, py: Python<'_>, alpha: f64) -> PyResult<()> {
        let buffer = self.here(false)?;
        of(py, py.detach(|| buffer.set_alpha(alpha)))
    }

    /// Attaches a writer, for which samples wait; returns its number.
    fn attach(&self) -> PyResult<u64> {
        let buffer = self.here(false)?;
        Ok(buffer.attach().0)
    }

    /// A number for one more collector: trajectories of several collectors may have the same ids,
    /// and this number tells them apart.
    fn collector(&self) -> PyResult<u64> {
        let buffer = self.here(false)?;
        let writer = buffer.attach();
        buffer.detach(writer, None);
        Ok(writer.0)
    }

    /// Detaches a writer.
    fn detach(&self, writer: u64) -> PyResult<()> {
        let buffer = self.here(false)?;
        buffer.detach(WriterId(writer), None);
        Ok(())
    }

    /// The state of the buffer, frames included.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.here(true)?;
        let state = of(py, py.detach(|| buffer.state_dict()))?;
        batch::to_python(py, &state)
    }

    /// Continues from a saved state.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = self.here(true)?;
        let state = Lent::new(batch::views_of(state)?);
        let load = |state: &TensorDict| buffer.load_state_dict(state);
        of(py, state.read(py, buffer, load))
    }

    /// Writes a checkpoint.
    fn save(&self, py: Python<'_>, directory: std::path::PathBuf) -> PyResult<()> {
        let buffer = self.here(true)?;
        of(py, py.detach(move || buffer.save(&directory)))
    }

    /// Reads a checkpoint.
    fn load(&self, py: Python<'_>, directory: std::path::PathBuf) -> PyResult<()> {
        let buffer = self.here(true)?;
        of(py, py.detach(move || buffer.load(&directory)))
    }
}

impl ReplayBufferCore {
    /// Calls `draw` with short timeouts until the buffer's timeout is over, and handles signals in
    /// between. One that does not wait has no result where frames are missing.
    fn draw<T: Send>(
        &self,
        py: Python<'_>,
        waits: bool,
        draw: impl Fn(Duration) -> Result<T, ReplayError> + Sync,
    ) -> PyResult<Option<T>> {
        if !waits {
            return match py.detach(|| draw(Duration::ZERO)) {
                Err(ReplayError::NotEnough { .. }) => Ok(None),
                drawn => of(py, drawn.map(Some)),
            };
        }
        let begin = Instant::now();
        let drawn = gil::wait(py, |patience| {
            let left = self.timeout.saturating_sub(begin.elapsed());
            // Only a sample that has waited in vain is tried again; other errors are final.
            if self.closed.load(Ordering::Relaxed) {
                return Some(None);
            }
            match waited_in_vain(draw(patience.min(left)), begin.elapsed()) {
                Err(ReplayError::NotEnough {
                    waited: Waited::For { .. },
                    ..
                }) if left > patience => None,
                drawn => Some(Some(drawn)),
            }
        })?;
        of(py, drawn.ok_or_else(was_closed)?.map(Some))
    }

    /// Calls `write` at once and then, while the limiter holds it back, with short timeouts: for
    /// `limit` in all, or until it is given up.
    fn write<T: Send>(
        &self,
        py: Python<'_>,
        frames: Lent,
        limit: Duration,
        given_up: Option<&Py<PyAny>>,
        write: impl Fn(&TensorDict, Duration) -> Result<T, ReplayError> + Sync,
    ) -> PyResult<T> {
        gil::pass(py);
        let begin = Instant::now();
        // Most writes wait for nothing: they read the user's memory directly, and copy it once,
        // into the buffer.
        let at_once = frames.read_at_once(&self.buffer, |frames| write(frames, Duration::ZERO));
        match at_once {
            None => {}
            Some(Err(ReplayError::NotTaken { .. })) if !limit.is_zero() => {}
            Some(written) => return of(py, written),
        }
        // From here on the interpreter's lock is given up, so the write goes on with the values at
        // the time of the call.
        let frames = frames.copy();
        let written = gil::wait(py, |patience| {
            let left = limit.saturating_sub(begin.elapsed());
            match write(&frames, patience.min(left)) {
                Err(ReplayError::NotTaken { .. }) if left > patience => {
                    let closed = self.closed.load(Ordering::Relaxed);
                    let given_up = || given_up.and_then(end_of_patience);
                    closed.then(was_closed).or_else(given_up).map(Err)
                }
                written => Some(Ok(waited_in_vain(written, begin.elapsed()))),
            }
        })?;
        of(py, written?)
    }
}

/// Tensors of Python, as views of memory that any Python thread may write. They are read, or
/// copied, with the interpreter's lock held, so that the buffer takes in the values at the time of
/// the call.
struct Lent(TensorDict);

impl Lent {
    /// Views that were made since the interpreter's lock was last taken.
    fn new(views: TensorDict) -> Self {
        Self(views)
    }

    /// The result of `read` on the views; none while other threads use the buffer. Waiting for them
    /// with the interpreter's lock held could take as long as a checkpoint.
    fn read_at_once<T>(
        &self,
        buffer: &ReplayBuffer,
        read: impl FnOnce(&TensorDict) -> T,
    ) -> Option<T> {
        (!buffer.is_stuck(true, Duration::ZERO)).then(|| read(&self.0))
    }

    /// The result of `read` on the views at once, or on a copy as soon as the buffer is free.
    fn read<T: Send>(
        self,
        py: Python<'_>,
        buffer: &ReplayBuffer,
        read: impl Fn(&TensorDict) -> T + Sync,
    ) -> T {
        self.read_at_once(buffer, &read).unwrap_or_else(|| {
            let copy = self.copy();
            py.detach(|| read(&copy))
        })
    }

    /// A copy of the values, made with the interpreter's lock held.
    fn copy(self) -> TensorDict {
        self.0.detach()
    }
}

/// The error of a write that must not wait any longer, if `given_up` returns true.
fn end_of_patience(given_up: &Py<PyAny>) -> Option<PyErr> {
    match gil::attach(|py| gil::call(given_up.bind(py), (), None)?.is_truthy()) {
        Ok(false) => None,
        Ok(true) => Some(PyRuntimeError::new_err(
            "the write was given up while it waited for samples to be drawn",
        )),
        Err(raised) => Some(raised),
    }
}

/// The error of a wait that ended because the buffer was closed.
fn was_closed() -> PyErr {
    PyRuntimeError::new_err("the replay buffer was closed; build a new one")
}

/// Puts the time of all attempts into the error, in the place of that of the last.
fn waited_in_vain<T>(
    attempted: Result<T, ReplayError>,
    in_all: Duration,
) -> Result<T, ReplayError> {
    attempted.map_err(|mut failed| {
        if let ReplayError::NotEnough {
            waited: Waited::For { time: waited, .. },
            ..
        }
        | ReplayError::NotTaken { waited, .. } = &mut failed
        {
            *waited = in_all;
        }
        failed
    })
}

/// A copy of the batch with rewards over several steps.
#[pyfunction]
fn multi_step<'py>(
    py: Python<'py>,
    batch: &Bound<'_, PyAny>,
    gamma: f32,
    n_steps: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let multi_step = MultiStep::new(gamma, n_steps).map_err(|error| error::to_py(py, &error))?;
    let mut batch = batch::views_of(batch)?;
    // With the interpreter's lock held, as below: other Python threads may write the memory of the
    // batch.
    multi_step
        .apply(&mut batch)
        .map_err(|error| PyValueError::new_err(error_chain(&error)))?;
    batch::to_python(py, &batch)
}

/// A row for every piece of a trajectory in the batch.
#[pyfunction]
fn split_trajectories<'py>(
    py: Python<'py>,
    batch: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let batch = batch::views_of(batch)?;
    let split = postproc::split_trajectories(&batch)
        .map_err(|error| PyValueError::new_err(error_chain(&error)))?;
    batch::to_python(py, &split)
}

/// Rows as a tensor `[count]` of `int64`.
fn tensor(rows: Vec<i64>, count: usize) -> PyResult<Tensor> {
    Tensor::from_vec(rows, [count]).map_err(|error| PyRuntimeError::new_err(error_chain(&error)))
}

/// The result, or its error as the exception that fits it best.
fn of<T>(py: Python<'_>, result: Result<T, ReplayError>) -> PyResult<T> {
    result.map_err(|failed| {
        if let Some(raised) = error::raised_in(py, &failed) {
            return raised;
        }
        let message = error_chain(&failed);
        if error::is_for_want_of_memory(&failed) {
            return PyMemoryError::new_err(message);
        }
        match failed {
            ReplayError::Argument { .. }
            | ReplayError::EndsElsewhere { .. }
            | ReplayError::Priorities(_)
            | ReplayError::Tensor(_)
            | ReplayError::State(_) => PyValueError::new_err(message),
            ReplayError::NoFrame { .. } => PyIndexError::new_err(message),
            ReplayError::Io { .. } | ReplayError::Store(StoreError::Io { .. }) => {
                PyOSError::new_err(message)
            }
            ReplayError::Store(_) => PyValueError::new_err(message),
            _ => PyRuntimeError::new_err(message),
        }
    })
}
