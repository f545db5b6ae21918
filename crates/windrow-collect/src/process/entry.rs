//! Where a program becomes a worker: the beginning of `main`.

use std::error::Error;
use std::process::exit;

use windrow_peer::{ChildEnd, adopt};
use windrow_policy::Registry;
#[cfg(feature = "remote")]
use windrow_sync::error_chain;

use super::child::Child;
use super::messages::ToWorker;
use super::parallel::{Parallel, member};
use super::program::{self, Program};
use super::serve_error::ServeError;
#[cfg(feature = "remote")]
use crate::config::launcher::Invitation;
use crate::error::{ErrorKind, IsInterruption, WorkerMainError};
use crate::probe::MakeProfiler;

/// Lets this program's collectors run workers in processes: call it first in `main`.
///
/// A collector with [`Placement::Processes`](crate::Placement::Processes) runs the program again
/// for each worker. In such a process, this function runs the worker and never returns. Otherwise
/// it [installs](Registry::install) the registry that `register` fills, and returns.
///
/// Code cannot be sent to a process, but a name can: a collector whose workers are processes takes
/// environments and policies of the program's own by the names that `register` gives them. What
/// comes with windrow needs no name of its own.
///
/// ```no_run
/// use windrow_collect::{MultiSyncCollector, Placement, worker_main};
/// use windrow_env::{MountainCar, TimeLimit};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     worker_main(|registry| {
///         registry.env("LongMountainCar-v0", || TimeLimit::new(MountainCar::new(), 10_000))?;
///         Ok(())
///     })?;
///     let mut collector = MultiSyncCollector::builder("LongMountainCar-v0")
///         .placement(Placement::Processes)
///         .num_workers(4)
///         .frames_per_batch(4000)
///         .build()?;
///     let batch = collector.next();
///     Ok(())
/// }
/// ```
///
/// # Errors
/// [`WorkerMainError::Register`] with the error of `register`, or when a registry was installed
/// before; [`WorkerMainError::Process`] in a worker whose collector is of another build.
pub fn worker_main(
    register: impl FnOnce(&mut Registry) -> Result<(), Box<dyn Error + Send + Sync>>,
) -> Result<(), WorkerMainError> {
    WorkerMain::new().run(register)
}

/// As [`worker_main`], for a program that can say more of itself.
///
/// ```no_run
/// use windrow_collect::WorkerMain;
///
/// fn main() -> Result<(), windrow_collect::WorkerMainError> {
///     WorkerMain::new()
///         .interruptions(|error| error.to_string().contains("asked to end"))
///         .run(|_registry| Ok(()))
/// }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerMain {
    program: Program,
}

/// The result of registering names.
type Registered = Result<(), Box<dyn Error + Send + Sync>>;

impl WorkerMain {
    /// What [`worker_main`] does.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Which errors of environments and policies are no faults but
    /// [interruptions](crate::CollectorBuilder::interruptions); none by default. A worker in a
    /// process asks this one: errors cross to the collector as text.
    #[doc(hidden)]
    #[must_use]
    pub fn interruptions(mut self, is_one: IsInterruption) -> Self {
        self.program.is_interruption = is_one;
        self
    }

    /// The program answers SIGUSR2 with its stack on the standard error, and goes on. A worker that
    /// is frozen for [`step_timeout`](crate::CollectorBuilder::step_timeout) is then asked for it
    /// before it is killed; the error has what it wrote.
    #[doc(hidden)]
    #[must_use]
    pub fn shows_stack(mut self) -> Self {
        self.program.shows_stack = true;
        self
    }

    /// Sends of each error of an environment or a policy what `send` makes of it, beside its
    /// message: the collector has it as a [`SentError`](crate::SentError) among the sources of its
    /// error.
    #[doc(hidden)]
    #[must_use]
    pub fn send_errors(mut self, send: fn(&(dyn Error + 'static)) -> Option<Vec<u8>>) -> Self {
        self.program.send_errors = send;
        self
    }

    /// Answers calls of [`Handle::call_worker`](crate::Handle::call_worker) by `answer`, in the
    /// worker's thread, between two parts; otherwise the answer to each is empty.
    #[doc(hidden)]
    #[must_use]
    pub fn answer_calls(mut self, answer: fn(&[u8]) -> Vec<u8>) -> Self {
        self.program.answer_calls = answer;
        self
    }

    /// Makes the [profiler](crate::Profiler) of a worker, by `make`, of the bytes that
    /// [`ProfilerRecipe::written_as`] was given and the worker's number; without it, such a
    /// profiler is an error.
    ///
    /// [`ProfilerRecipe::written_as`]: crate::ProfilerRecipe::written_as
    #[doc(hidden)]
    #[must_use]
    pub fn profilers(mut self, make: MakeProfiler) -> Self {
        self.program.make_profiler = make;
        self
    }

    /// As [`worker_main`].
    ///
    /// # Errors
    /// Those of [`worker_main`].
    pub fn run(
        self,
        register: impl FnOnce(&mut Registry) -> Registered,
    ) -> Result<(), WorkerMainError> {
        #[cfg(feature = "remote")]
        if super::elsewhere::is_invited() {
            let invitation = Invitation::read().map_err(WorkerMainError::Invitation)?;
            exit(self.work_for(&invitation, register));
        }
        let end = adopt()?;
        let installed = installed(register);
        program::prepared();
        match end {
            None => installed.map_err(WorkerMainError::Register),
            Some(end) => exit(self.serve_at(end, installed)),
        }
    }

    /// As [`run`](Self::run), for a program that does something else than being a worker, such as
    /// an interpreter: where the process was started as a worker, returns its exit status once it
    /// has worked, and otherwise `None`.
    ///
    /// # Errors
    /// [`WorkerMainError::Process`] where the process cannot serve: such as when the collector is
    /// of another build.
    pub fn serve(
        self,
        register: impl FnOnce(&mut Registry) -> Registered,
    ) -> Result<Option<i32>, WorkerMainError> {
        let end = adopt()?;
        Ok(end.map(|end| self.serve_at(end, installed(register))))
    }

    fn serve_at(self, end: ChildEnd, installed: Registered) -> i32 {
        // It fails when the collector is gone.
        i32::from(serve(&Child::new(end, self.program), installed).is_err())
    }

    /// Works for the collector, elsewhere, that has sent `invitation`; the exit status, once there
    /// is no more to do. Ends this process where the collector is lost. [`run`](Self::run) does
    /// this in a program that was started with the one argument `windrow-worker`.
    #[cfg(feature = "remote")]
    pub fn work_for(
        self,
        invitation: &Invitation,
        register: impl FnOnce(&mut Registry) -> Registered,
    ) -> i32 {
        let installed = installed(register);
        let served = super::elsewhere::connect(invitation).and_then(|stream| {
            let child = Child::elsewhere(stream, self.program);
            let served = serve(&child, installed);
            child.finish();
            served
        });
        if let Err(error) = &served {
            eprintln!("windrow-worker: {}", error_chain(error));
        }
        i32::from(served.is_err())
    }
}

/// Serves whoever has started this process: its first message says what it is.
fn serve(child: &Child, installed: Registered) -> Result<(), ServeError> {
    if let Err(error) = installed {
        return child.refuse(ErrorKind::Argument, &*error, false);
    }
    match child.next()?.0 {
        ToWorker::Member(env) => member::serve(child, &env),
        ToWorker::Hello(hello) => child.serve(*hello),
        _ => Err(ServeError::Order),
    }
}

fn installed(register: impl FnOnce(&mut Registry) -> Registered) -> Registered {
    let mut registry = Registry::builtin();
    Parallel::register(&mut registry.envs)?;
    register(&mut registry)?;
    Ok(registry.install()?)
}
