//! Profilers of Python beside windrow's recorder; see `windrow.collectors._profile.TorchProfiler`.
//!
//! The engine's recorder knows the phases of a worker, not what torch does within them. PyTorch's
//! profiler does, but it records only the thread that began it. So the engine makes one for each
//! worker and calls it in the worker's thread, around each rollout. A worker process makes its own,
//! of what was pickled for it.

use std::error::Error;
use std::path::Path;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use windrow::Profiler;
use windrow::ProfilerRecipe;

use crate::gc::{GcRef, GcRoots};
use crate::gil::{self, attach};

type Failed = Box<dyn Error + Send + Sync>;

/// A Python object with the methods of [`Profiler`].
#[derive(Debug)]
pub(crate) struct PyProfiler {
    object: GcRef,
    roots: GcRoots,
}

impl PyProfiler {
    /// What `make` returns for worker `worker`.
    pub(crate) fn new(
        make: &Bound<'_, PyAny>,
        worker: usize,
        roots: &GcRoots,
    ) -> Result<Self, Failed> {
        let made = gil::call(make, (worker,), None);
        let made = made.map_err(|raised| roots.raised(make.py(), raised))?;
        Ok(Self {
            object: roots.hold(&made),
            roots: roots.clone(),
        })
    }

    /// Calls a method, in the worker's thread. The engine reports what it raises as an error of the
    /// profile.
    fn call(
        &self,
        method: &str,
        arguments: impl for<'py> IntoPyObject<'py, Target = PyTuple> + Send,
    ) -> Result<(), Failed> {
        attach(|py| {
            let called = gil::call_method(self.object.bind(py), method, arguments);
            called.map_err(|raised| self.roots.raised(py, raised))?;
            Ok(())
        })
    }
}

impl Profiler for PyProfiler {
    fn begin(&mut self) -> Result<(), Failed> {
        self.call("begin", ())
    }

    fn step(&mut self) -> Result<(), Failed> {
        self.call("step", ())
    }

    fn end(&mut self, path: &Path) -> Result<(), Failed> {
        self.call("end", (path.to_path_buf(),))
    }
}

/// How profilers are made by calling `make` with the number of a worker; in processes, by what was
/// pickled as `sent`.
pub(crate) fn recipe(
    make: &Bound<'_, PyAny>,
    sent: Option<&[u8]>,
    roots: &GcRoots,
) -> ProfilerRecipe {
    let (make, roots) = (roots.hold(make), roots.clone());
    let recipe = ProfilerRecipe::new(move |worker| {
        attach(|py| PyProfiler::new(make.bind(py), worker, &roots))
    });
    match sent {
        Some(sent) => recipe.written_as(sent),
        None => recipe,
    }
}
