//! A worker process: makes environments and policy, and fills parts until there are no more.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use windrow_env::{EnvSpec, VecEnv};
use windrow_policy::{PolicyRecipe, Registry};
use windrow_process::{
    ChildEnd, ControlBlock, ExchangeReader, Frame, FrameReader, ProcessError, adopt, send,
};
use windrow_slab::{Layout, RemoteRing};

use super::lane_desk::LaneDesk;
use super::live::LiveProbe;
use super::messages::{Hello, Ready, Refusal, Specified, frame};
use super::weights::WeightReceiver;
use crate::error::{CollectError, ErrorKind, SendErrors, sent};
use crate::worker::Worker;
use crate::worker::making::{Bound, Maker};

/// Whether the program has said what it does as a worker.
static PREPARED: AtomicBool = AtomicBool::new(false);

/// Whether this program can be run again as a worker.
pub(super) fn is_prepared() -> bool {
    PREPARED.load(Ordering::Acquire)
}

/// Lets this program's collectors run workers in processes: call it first in `main`.
///
/// A collector with [`Placement::Processes`](crate::Placement::Processes) runs the program again for each worker. In such a
/// process, this function runs the worker and never returns. Otherwise it [installs](Registry::install) the registry that
/// `register` fills, and returns.
///
/// Code cannot be sent to a process, but a name can: a collector whose workers are processes takes environments and policies of
/// the program's own by the names that `register` gives them. What comes with windrow needs no name of its own.
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
/// [`CollectError::Register`] with the error of `register`, or when a registry was installed before; [`CollectError::Process`]
/// in a worker whose collector is of another build.
pub fn worker_main(
    register: impl FnOnce(&mut Registry) -> Result<(), Box<dyn Error + Send + Sync>>,
) -> Result<(), CollectError> {
    let end = adopt()?;
    let installed = installed(register);
    PREPARED.store(true, Ordering::Release);
    match end {
        None => installed.map_err(CollectError::Register),
        Some(end) => exit(WorkerEntry::new().serve(end, installed)),
    }
}

/// The entry of a worker process that is not the collector's program over again, such as an interpreter that runs a module: a
/// collector starts it by [`worker_program`](crate::CollectorBuilder::worker_program).
#[derive(Debug, Clone, Copy)]
pub struct WorkerEntry {
    pub(super) send_errors: SendErrors,
    pub(super) answer_calls: AnswerCalls,
}

impl WorkerEntry {
    /// An entry that sends of errors what [`worker_main`] does: kind and message.
    #[must_use]
    pub fn new() -> Self {
        Self {
            send_errors: |_| None,
            answer_calls: |_| Vec::new(),
        }
    }

    /// Sends of each error of an environment or a policy what `send` makes of it, too: the collector has it as a [`SentError`]
    /// among the sources of its error.
    #[must_use]
    pub fn send_errors(mut self, send: fn(&(dyn Error + 'static)) -> Option<Vec<u8>>) -> Self {
        self.send_errors = send;
        self
    }

    /// Answers calls of [`Handle::call_worker`](crate::Handle::call_worker) by `answer`, in the worker's thread, between two parts;
    /// otherwise the answer to each is empty. An answer is shorter than 64 MiB.
    #[must_use]
    pub fn answer_calls(mut self, answer: fn(&[u8]) -> Vec<u8>) -> Self {
        self.answer_calls = answer;
        self
    }

    /// Runs the worker, with the names that `register` registers, and returns the exit status of the process; `None` if it was not
    /// started as a worker.
    ///
    /// # Errors
    /// [`CollectError::Process`] when the collector is of another build.
    pub fn run(
        self,
        register: impl FnOnce(&mut Registry) -> Registered,
    ) -> Result<Option<i32>, CollectError> {
        let end = adopt()?;
        Ok(end.map(|end| self.serve(end, installed(register))))
    }

    fn serve(self, end: ChildEnd, installed: Registered) -> i32 {
        let mut child = Child::new(end, self);
        let served = match installed {
            Ok(()) => child.serve(),
            Err(error) => child.refuse(ErrorKind::Argument, &*error),
        };
        // The collector is gone: there is nobody to be told, and nothing to be done.
        i32::from(served.is_err())
    }
}

impl Default for WorkerEntry {
    fn default() -> Self {
        Self::new()
    }
}

/// Turns a call into an answer.
type AnswerCalls = fn(&[u8]) -> Vec<u8>;

/// The result of registering names.
type Registered = Result<(), Box<dyn Error + Send + Sync>>;

fn installed(register: impl FnOnce(&mut Registry) -> Registered) -> Registered {
    let mut registry = Registry::builtin();
    register(&mut registry)?;
    Ok(registry.install()?)
}

/// This process, as its collector's worker.
struct Child {
    end: Arc<ChildEnd>,
    reader: FrameReader,
    entry: WorkerEntry,
}

/// Why a worker ends before it has filled a part.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("the collector sent frame {got} in place of frame {expected}")]
    Order { expected: u8, got: u8 },
    #[error("the collector has ended")]
    Ended,
}

impl Child {
    fn new(end: ChildEnd, entry: WorkerEntry) -> Self {
        Self {
            end: Arc::new(end),
            reader: FrameReader::default(),
            entry,
        }
    }

    fn serve(&mut self) -> Result<(), ServeError> {
        let made = match self.make()? {
            Ok(made) => made,
            Err(error) => return self.refuse_with(&error),
        };
        match self.seat(made)? {
            Ok(worker) => {
                worker.contained(Worker::run);
                Ok(())
            }
            Err(error) => self.refuse_with(&error),
        }
    }

    /// Makes what the collector asks for, up to the point where memory is needed.
    fn make(&mut self) -> Result<Result<Made, CollectError>, ServeError> {
        let (hello, _) = self.expect::<Hello>(frame::HELLO)?;
        let policy = match PolicyRecipe::from_bytes(&self.policy()?) {
            Ok(policy) => policy,
            Err(error) => return Ok(Err(error.into())),
        };
        let maker = Maker {
            worker: hello.worker,
            config: Arc::new(hello.config),
            env: Arc::new(hello.env),
            policy,
            is_interruption: |_| false,
        };
        let mut env = match maker.guarded_envs() {
            Ok(env) => env,
            Err(error) => return Ok(Err(error)),
        };
        let specified = Specified {
            spec: env.spec().clone(),
            num_envs: env.num_envs(),
        };
        self.send(&Frame::json(frame::SPECIFIED, &specified)?)?;
        let (spec, _) = self.expect::<EnvSpec>(frame::BIND)?;
        let bound = match maker.guarded(|| maker.actor(env.as_mut(), &spec)) {
            Ok(bound) => bound,
            Err(error) => return Ok(Err(error)),
        };
        self.send(&Frame::json(frame::BOUND, bound.0.spec())?)?;
        Ok(Ok(Made {
            maker,
            env,
            spec,
            bound,
        }))
    }

    /// Takes a seat at the collector's lane.
    fn seat(&mut self, made: Made) -> Result<Result<Worker<LaneDesk>, CollectError>, ServeError> {
        let (ready, files) = self.expect::<Ready>(frame::READY)?;
        Ok(self.seat_at(made, ready, files))
    }

    fn seat_at(
        &mut self,
        made: Made,
        ready: Ready,
        files: Vec<OwnedFd>,
    ) -> Result<Worker<LaneDesk>, CollectError> {
        let Made {
            maker,
            mut env,
            spec,
            bound: (actor, first),
        } = made;
        let worker = maker.worker;
        env.bind(&ready.columns)
            .map_err(|source| CollectError::Env { worker, source })?;
        let Ok([ring, control, weights]) = <[OwnedFd; 3]>::try_from(files) else {
            return Err(CollectError::State(
                "a worker needs the files of slabs, lanes and weights".to_owned(),
            ));
        };
        let layout = Layout::new(&ready.record, ready.shares)?;
        let fingerprint = layout.fingerprint();
        let ring = RemoteRing::open(layout, self.end.shared_file(ring)?)?;
        let control = ControlBlock::open(control, fingerprint)?;
        let bell = Arc::clone(&ring);
        let lane = control.worker_lane(worker, move || bell.ring_bell())?;
        let live = LiveProbe::new(control.live_writer(worker)?);
        let weights = WeightReceiver::new(ExchangeReader::open(weights, worker)?, ready.weights);
        let mut cursor = ready.beginning.cursor(&spec, worker, env.num_envs())?;
        if let Some(first) = first {
            cursor.prime(first);
        }
        Ok(Worker {
            desk: LaneDesk::new(
                worker,
                ring,
                live,
                lane,
                weights,
                (Arc::clone(&self.end), self.entry),
            ),
            env,
            actor,
            cursor,
            maker,
        })
    }

    /// The bytes of the policy's recipe.
    fn policy(&mut self) -> Result<Vec<u8>, ServeError> {
        let mut bytes = Vec::new();
        loop {
            let piece = self.receive(frame::POLICY)?.body;
            if piece.is_empty() {
                return Ok(bytes);
            }
            bytes.extend(piece);
        }
    }

    fn expect<T: DeserializeOwned>(&mut self, kind: u8) -> Result<(T, Vec<OwnedFd>), ServeError> {
        let frame = self.receive(kind)?;
        Ok((frame.parse()?, frame.fds))
    }

    fn receive(&mut self, kind: u8) -> Result<Frame, ServeError> {
        let frame = self.reader.read(self.end.socket().as_fd())?;
        let frame = frame.ok_or(ServeError::Ended)?;
        match frame.kind == kind {
            true => Ok(frame),
            false => Err(ServeError::Order {
                expected: kind,
                got: frame.kind,
            }),
        }
    }

    fn send(&self, frame: &Frame) -> Result<(), ProcessError> {
        send(self.end.socket().as_fd(), frame)
    }

    fn refuse_with(&mut self, error: &CollectError) -> Result<(), ServeError> {
        self.refuse(error.kind(), error)
    }

    fn refuse(&mut self, kind: ErrorKind, error: &(dyn Error + 'static)) -> Result<(), ServeError> {
        let refusal = Refusal {
            kind,
            message: error.to_string(),
            sent: sent(error, self.entry.send_errors),
        };
        Ok(self.send(&Frame::json(frame::REFUSAL, &refusal)?)?)
    }
}

/// What a worker process has made before it gets memory to fill.
struct Made {
    maker: Maker,
    env: Box<dyn VecEnv>,
    spec: EnvSpec,
    bound: Bound,
}
