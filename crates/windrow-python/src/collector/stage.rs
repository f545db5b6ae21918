//! The last stage of each batch in Python: methods of the collector, which call functions of the
//! user.
//!
//! The engine calls [`PyStage`] in the thread that asks for a batch or, after `start`, in the
//! collector's own thread, always without the interpreter's lock. For each batch: `prepare` calls
//! `_prepare`, where hooks run and weights are followed, and enters the context that it returns;
//! the frames are collected; `collected` leaves the context; `finish` makes tensors of the frames
//! and calls `_finish`, which post-processes them; `write` passes frames to the replay buffer, here
//! or through `_write`. An error that ends the collector's own thread goes to `_fail`, which keeps
//! it for the user's next call.
//!
//! The stage must not keep the Python collector alive, which owns the engine and so the stage. It
//! has a weak reference ([`Owner`]). After `start`, the replay buffer keeps the collector alive
//! until the thread ends, so that both are freed together once the program refers to neither. If
//! the buffer cannot keep the collector, the thread does.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyWeakref, PyWeakrefMethods, PyWeakrefReference};
use tensordict::TensorDict;
use windrow::LastStage;
use windrow::NextError;
use windrow::SinkWriter;
use windrow::binding::unpadded;
use windrow::replay::{ReplayBuffer, ReplayError, Sink, SinkError, WriterId};
use windrow_sync::unpoisoned;

use super::collecting;
use crate::gc::GcRoots;
use crate::{batch, error, gil};

/// The replay buffer that a collector writes to, if any.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// There is no buffer: batches are delivered to the user.
    Nowhere,
    /// The engine writes batches as they are, and no Python object is made of them, unless
    /// [`Owner::changes`]. A thread that iterates waits for the limiter up to the timeout.
    Buffer(ReplayBuffer, Duration),
    /// Python writes batches: to a replay buffer of windrow, or to any other object.
    Python(Option<ReplayBuffer>),
}

impl Target {
    /// The sink that the engine attaches the collector to.
    pub(super) fn sink(&self) -> Option<Attachment> {
        match self {
            Self::Nowhere => None,
            Self::Buffer(buffer, _) => Some(Attachment(Some(buffer.clone()))),
            Self::Python(buffer) => Some(Attachment(buffer.clone())),
        }
    }

    /// The replay buffer, if it is one of windrow.
    fn buffer(&self) -> Option<&ReplayBuffer> {
        match self {
            Self::Nowhere => None,
            Self::Buffer(buffer, _) => Some(buffer),
            Self::Python(buffer) => buffer.as_ref(),
        }
    }
}

/// Attaches a collector to a replay buffer of windrow, whose samples then wait for its frames.
/// Other buffers have no such notion: their writer has number 0, and only attaching and detaching
/// go through here. [`PyStage`] writes.
#[derive(Debug)]
pub(super) struct Attachment(Option<ReplayBuffer>);

impl Sink for Attachment {
    fn attach(&self) -> WriterId {
        self.0.as_ref().map_or(WriterId(0), Sink::attach)
    }

    fn attach_again(&self, first: WriterId) -> WriterId {
        let buffer = self.0.as_ref();
        buffer.map_or(WriterId(0), |buffer| buffer.attach_again(first))
    }

    fn extend(&self, writer: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
        self.0.as_ref().map_or(Err(SinkError::Detached), |buffer| {
            Sink::extend(buffer, writer, batch)
        })
    }

    fn detach(&self, writer: WriterId, _: Option<SinkError>) {
        // Python raises errors itself, as exceptions and once: from iteration, or from the next
        // call after `start`.
        if let Some(buffer) = &self.0 {
            buffer.detach(writer, None);
        }
    }
}

/// The Python collector that a stage belongs to.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// Weak: the collector owns the engine, which must not keep it alive.
    weak: Mutex<Option<Py<PyWeakref>>>,
    /// The state of the thread of `start`.
    running: Mutex<Running>,
    /// Whether Python looks at each batch and may change it, so that the engine cannot write it as
    /// it is. Known once there are environments.
    changes: AtomicBool,
}

/// The state of the thread of `start`.
#[derive(Debug, Default)]
struct Running {
    /// Strong: the collector lives until its thread ends, also without other references. `None` if
    /// the buffer keeps it.
    collector: Option<Py<PyAny>>,
    /// Whether the collector was started.
    started: bool,
    /// Set when the thread prepares its first batch.
    thread: Option<ThreadId>,
}

impl Owner {
    /// Sets the collector, or none: batches are then dropped.
    pub(super) fn set(&self, collector: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let weak = collector.map(PyWeakrefReference::new).transpose()?;
        let weak = weak.map(|weak| weak.cast_into::<PyWeakref>().map(Bound::unbind));
        *self.weak() = weak.transpose()?;
        Ok(())
    }

    /// Has Python look at each batch, also at those that the engine could write.
    pub(super) fn look(&self) {
        self.changes.store(true, Ordering::Relaxed);
    }

    /// Keeps the collector alive until [`release`](Self::release). Called before the thread of
    /// `start` is there, so that the user cannot free the collector before the thread has called
    /// it.
    pub(super) fn keep(&self, py: Python<'_>) -> PyResult<()> {
        let collector = self.get(py)?;
        let kept = gil::call_method(&collector, "_keep", ())?.is_truthy()?;
        let mut running = self.running();
        running.started = true;
        running.collector = (!kept).then(|| collector.unbind());
        Ok(())
    }

    /// Lets go of the collector. This may free it, in its own thread. Freeing calls Python code, so
    /// the interpreter's lock is held, and the lock on `running` is not.
    pub(super) fn release(&self, py: Python<'_>) {
        let kept = self.running().collector.take();
        // A collector that was freed in the meantime needs no release.
        if let Ok(collector) = self.get(py)
            && let Err(raised) = gil::call_method(&collector, "_let_go", ())
        {
            raised.write_unraisable(py, None);
        }
        drop(kept);
    }

    /// Whether the calling thread is the one of `start`.
    pub(super) fn is_running_here(&self) -> bool {
        self.running().thread == Some(thread::current().id())
    }

    /// The collector.
    ///
    /// # Errors
    /// `RuntimeError` when it was freed, or none was set.
    fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let weak = self.weak().as_ref().map(|weak| weak.clone_ref(py));
        let collector = weak.and_then(|weak| weak.bind(py).upgrade());
        collector.ok_or_else(|| PyRuntimeError::new_err("the collector was freed"))
    }

    /// Whether the stage has no collector to call.
    fn is_unset(&self) -> bool {
        self.weak().is_none()
    }

    /// Locked for moments only, in which no Python code runs: so it may be locked with the
    /// interpreter's lock held.
    fn weak(&self) -> MutexGuard<'_, Option<Py<PyWeakref>>> {
        unpoisoned(self.weak.lock())
    }

    /// As [`weak`](Self::weak).
    fn running(&self) -> MutexGuard<'_, Running> {
        unpoisoned(self.running.lock())
    }
}

/// A batch after the last stage.
#[derive(Debug)]
pub(super) enum Delivered {
    /// For the engine to write.
    Frames(TensorDict),
    /// For the user, or for Python to write.
    Object(Py<PyAny>),
    /// The replay buffer has it.
    Written,
}

/// Calls `_prepare`, `_finish`, `_write` and `_fail` of a collector of Python's.
pub(super) struct PyStage {
    /// The collector whose methods are called.
    pub(super) owner: Arc<Owner>,
    /// The place for finished batches.
    pub(super) target: Target,
    /// The device that batches name.
    pub(super) device: Option<Py<PyAny>>,
    /// Frames of all environments come one environment after the other, in one dimension.
    pub(super) flat: bool,
    /// Holds exceptions of the user's functions.
    pub(super) roots: GcRoots,
    /// The context manager that the present frames are collected in, entered and not left yet.
    pub(super) context: Option<Py<PyAny>>,
    /// The user was warned that the collector overwrites frames without any sample.
    pub(super) warned: bool,
}

impl PyStage {
    /// Calls the collector's method `name`. A `StopIteration` of the user's would silently end the
    /// loop over batches, so it becomes another error.
    fn call<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, pyo3::types::PyString>,
        arguments: impl IntoPyObject<'py, Target = PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let collector = self.owner.get(py)?;
        let returned = gil::call(&collector.getattr(name)?, arguments, None);
        let ends = |raised: &PyErr| raised.is_instance_of::<PyStopIteration>(py);
        match returned {
            Err(raised) if ends(&raised) => Err(not_the_end(&collector, raised)),
            returned => returned,
        }
    }

    /// Calls `f` with the interpreter's lock; an exception becomes an error of the engine.
    fn in_python<R>(
        &self,
        f: impl for<'py> FnOnce(Python<'py>) -> PyResult<R>,
    ) -> Result<R, NextError> {
        gil::attach(|py| {
            f(py).map_err(|raised| NextError::Stage(Box::new(self.roots.raised(py, raised))))
        })
    }

    /// The batch in the dimensions that Python gets. Copies that this takes are made without the
    /// interpreter's lock, which a policy that is evaluated meanwhile may need.
    fn shaped(&self, batch: TensorDict) -> Result<TensorDict, NextError> {
        if !self.flat || batch.ndim() == 1 {
            return Ok(batch);
        }
        let mut flat = batch.flatten()?;
        flat.set_names(&[Some("time")])?;
        Ok(flat)
    }

    /// Writes as soon as the limiter allows it. The thread of `start` waits for any time, until the
    /// collector ends; a thread that iterates waits up to `timeout`.
    fn write_frames(
        &self,
        frames: &TensorDict,
        buffer: &ReplayBuffer,
        timeout: Duration,
        writer: &SinkWriter,
    ) -> Result<(), NextError> {
        // In slices, without the interpreter's lock: in between, the end of the collector and
        // signals are noticed.
        let begin = Instant::now();
        let is_patient = self.owner.is_running_here();
        loop {
            let left = match is_patient {
                true => gil::SLICE,
                false => timeout.saturating_sub(begin.elapsed()),
            };
            let written = match writer.id() {
                Some(id) => buffer.write_within(id, frames, left.min(gil::SLICE)),
                None => Err(SinkError::Detached),
            };
            let error = match written {
                Ok(()) => return Ok(()),
                // A shutdown detaches the writer, which ends its wait with an error of no interest.
                Err(_) if writer.is_shut() => return Err(NextError::ShutDown),
                Err(error) => error,
            };
            let Some(refused) = waited_in_vain(&error, begin.elapsed()) else {
                return Err(NextError::Sink(error));
            };
            if writer.is_ending() {
                return Err(NextError::ShutDown);
            }
            // The last attempt was as long as the time that was left.
            if left < gil::SLICE {
                return Err(NextError::Sink(SinkError::failed(refused)));
            }
            self.in_python(|py| py.check_signals())?;
        }
    }

    /// Warns once when a whole buffer was overwritten and nothing sampled meanwhile.
    fn warn_of_haste(&mut self) -> Result<(), NextError> {
        let Some(buffer) = self.target.buffer().filter(|_| !self.warned) else {
            return Ok(());
        };
        let stats = buffer.stats();
        if stats.overwritten < stats.capacity as u64 {
            return Ok(());
        }
        self.warned = true;
        let told = format!(
            "the {} frames of the replay buffer were all overwritten since the last sample: start() does not wait for the \
             learner. Give the buffer a limiter, such as RateLimiter.sample_to_insert_ratio, or collect by iterating",
            stats.capacity
        );
        self.in_python(|py| gil::warn(py, &told))
    }
}

impl LastStage for PyStage {
    type Out = Delivered;

    // After Ctrl-C in a hook or during a write, the next call delivers the same batch.
    const TRIES_AGAIN: bool = true;

    fn prepare(&mut self, _again: bool) -> Result<(), NextError> {
        // The first call after `keep` comes from the thread of `start`.
        let mut running = self.owner.running();
        if running.started && running.thread.is_none() {
            running.thread = Some(thread::current().id());
            collecting::from_now_on();
        }
        // `_prepare` runs user code, which may ask for this lock.
        drop(running);
        if self.owner.is_unset() {
            return Ok(());
        }
        self.context = self.in_python(|py| {
            let context = self.call(py, intern!(py, "_prepare"), ())?;
            if context.is_none() {
                return Ok(None);
            }
            gil::call_method(&context, "__enter__", ())?;
            Ok(Some(context.unbind()))
        })?;
        Ok(())
    }

    fn collected(&mut self) {
        if let Some(context) = self.context.take() {
            gil::attach(|py| {
                let nothing = (py.None(), py.None(), py.None());
                let left = gil::call_method(context.bind(py), "__exit__", nothing);
                // Collecting may have failed already, and that error comes first.
                if let Err(raised) = left {
                    raised.write_unraisable(py, Some(context.bind(py)));
                }
            });
        }
    }

    fn finish(&mut self, batch: TensorDict, _: u64) -> Result<Delivered, NextError> {
        if self.owner.is_unset() {
            return Ok(Delivered::Frames(batch));
        }
        let batch = match self.target {
            // A buffer has no use for padding.
            Target::Buffer(..) => unpadded(batch)?,
            _ => batch,
        };
        // The engine's buffer takes the frames as they lie in the slab. Columns of single agents
        // are joined first, so that the frames are those of a batch that a user writes.
        if let Target::Buffer(..) = self.target
            && !self.owner.changes.load(Ordering::Relaxed)
            && batch.get_dict(batch::MEMBERS).is_err()
        {
            return Ok(Delivered::Frames(batch));
        }
        let batch = self.shaped(batch)?;
        self.in_python(|py| {
            let batch = batch::named_after(py, &batch, self.device.as_ref())?;
            let finished = self.call(py, intern!(py, "_finish"), (batch,))?;
            // An interruption from now on would lose the batch; one before keeps it for the next
            // call.
            py.check_signals()?;
            Ok(Delivered::Object(finished.unbind()))
        })
    }

    fn preview(&mut self, zeros: TensorDict, _: u64) -> Result<Delivered, NextError> {
        let zeros = self.shaped(zeros)?;
        self.in_python(|py| {
            let zeros = batch::named_after(py, &zeros, self.device.as_ref())?;
            let processed = self.call(py, intern!(py, "_processed"), (zeros,))?;
            Ok(Delivered::Object(processed.unbind()))
        })
    }

    fn write(&mut self, batch: Delivered, writer: &SinkWriter) -> Result<Delivered, NextError> {
        let is_patient = self.owner.is_running_here();
        match (&self.target, batch) {
            (Target::Buffer(buffer, timeout), Delivered::Frames(frames)) => {
                self.write_frames(&frames, buffer, *timeout, writer)?;
            }
            (target @ (Target::Python(_) | Target::Buffer(..)), Delivered::Object(object)) => {
                let number = target.buffer().and(writer.first()).map(|first| first.0);
                self.in_python(|py| {
                    let arguments = (object, number, is_patient);
                    let written = self.call(py, intern!(py, "_write"), arguments);
                    // The buffer raises a plain `RuntimeError` once `is_ending` is true; a subclass
                    // of it is another error.
                    let given_up = |raised: &PyErr| {
                        is_patient && raised.get_type(py).is(py.get_type::<PyRuntimeError>())
                    };
                    match written {
                        // The write would have had to wait, and the collector is ending.
                        Err(raised) if writer.is_ending() && given_up(&raised) => Ok(false),
                        written => written.map(|_| true),
                    }
                })?
                .then_some(())
                .ok_or(NextError::ShutDown)?;
            }
            _ => {}
        }
        if is_patient {
            self.warn_of_haste()?;
        }
        Ok(Delivered::Written)
    }

    fn join(&mut self, _: Vec<Delivered>) -> Result<Delivered, NextError> {
        // Iterating over a collector with a buffer yields None, however many writes there were.
        Ok(Delivered::Written)
    }

    fn fail(&mut self, failure: NextError) -> Option<NextError> {
        // An interpreter that has ended takes no error any more.
        Python::try_attach(|py| {
            // The program refers neither to a collector that was freed nor to its buffer, so
            // nothing is left that could raise its error.
            if self.owner.get(py).is_err() {
                return;
            }
            let error = error::to_py(py, &failure).into_value(py);
            if let Err(raised) = self.call(py, intern!(py, "_fail"), (error,)) {
                raised.write_unraisable(py, None);
            }
        });
        None
    }

    fn leave(&mut self) {
        // Where the interpreter has ended, the collector is left to it.
        let owner = Arc::clone(&self.owner);
        Python::try_attach(|py| owner.release(py));
    }
}

/// The error of a write that the limiter held back for too long, with the time of all attempts;
/// `None` for any other error.
fn waited_in_vain(error: &SinkError, waited: Duration) -> Option<ReplayError> {
    let SinkError::Failed(error) = error else {
        return None;
    };
    match (&**error as &(dyn Error + 'static)).downcast_ref()? {
        ReplayError::NotTaken { frames, why, .. } => Some(ReplayError::NotTaken {
            frames: *frames,
            why: why.clone(),
            waited,
        }),
        _ => None,
    }
}

/// A `RuntimeError` in place of a `StopIteration` that a function of the user raised, which would
/// look like the end of the batches.
fn not_the_end(collector: &Bound<'_, PyAny>, raised: PyErr) -> PyErr {
    let py = collector.py();
    let name = collector.get_type().name();
    let name = name.map_or_else(|_| "the collector".to_owned(), |name| name.to_string());
    let error =
        PyRuntimeError::new_err(format!("a function passed to {name} raised StopIteration"));
    let context = error.value(py).setattr("__context__", raised.value(py));
    error.set_cause(py, Some(raised));
    context.err().unwrap_or(error)
}
