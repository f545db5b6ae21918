//! A worker process: makes environments and policy, and fills parts until there are no more.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use windrow_env::{EnvRecipe, EnvSpec, VecEnv};
use windrow_peer::{
    ChildEnd, ControlBlock, ExchangeReader, Frame, FrameReader, ProcessError, send,
};
use windrow_policy::PolicyRecipe;
use windrow_slab::{Layout, RemoteRing};

use super::link::ProcessLink;
use super::live::LiveProbe;
use super::messages::{FromWorker, Hello, Ready, Refusal, Specified, ToWorker};
use super::program::Program;
use super::weights::WeightReceiver;
use crate::error::{CollectError, ErrorKind, message_to_send, sent};
use crate::worker::Worker;
use crate::worker::factory::{Bound, WorkerFactory};

/// This process, as the worker of the one that has started it.
#[derive(Clone)]
pub(super) struct Child {
    end: Arc<ChildEnd>,
    /// What the program adds to being a worker.
    pub(super) program: Program,
}

/// Why a worker ends before it has filled a part.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("the collector sent another message than the one that is due")]
    Order,
    #[error("the collector has ended")]
    Ended,
}

impl Child {
    pub(super) fn new(end: ChildEnd, program: Program) -> Self {
        Self {
            end: Arc::new(end),
            program,
        }
    }

    pub(super) fn end(&self) -> &ChildEnd {
        &self.end
    }

    /// Serves a collector, whose first message this is.
    pub(super) fn serve(&self, hello: Hello) -> Result<(), ServeError> {
        let made = match self.make(hello)? {
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
    fn make(&self, hello: Hello) -> Result<Result<Made, CollectError>, ServeError> {
        let (ToWorker::Policy(policy), _) = self.next()? else {
            return Err(ServeError::Order);
        };
        let policy = match PolicyRecipe::from_bytes(&policy) {
            Ok(policy) => policy,
            Err(error) => return Ok(Err(error.into())),
        };
        let worker = hello.worker;
        let env = match EnvRecipe::from_bytes(&hello.env) {
            Ok(env) => env,
            Err(source) => return Ok(Err(CollectError::Env { worker, source })),
        };
        let maker = WorkerFactory {
            service: None,
            worker,
            config: Arc::new(hello.config),
            env: Arc::new(env),
            policy,
            is_interruption: self.program.is_interruption,
        };
        let mut env = match maker.guarded_envs() {
            Ok(env) => env,
            Err(error) => return Ok(Err(error)),
        };
        self.specify(env.as_ref())?;
        let (ToWorker::Bind(spec), _) = self.next()? else {
            return Err(ServeError::Order);
        };
        let bound = match maker.guarded(|| maker.actor(env.as_mut(), &spec)) {
            Ok(bound) => bound,
            Err(error) => return Ok(Err(error)),
        };
        self.send(&FromWorker::Bound(Box::new(bound.0.spec().clone())))?;
        Ok(Ok(Made {
            maker,
            env,
            spec: *spec,
            bound,
        }))
    }

    /// Takes a seat at the collector's lane.
    fn seat(&self, made: Made) -> Result<Result<Worker<ProcessLink>, CollectError>, ServeError> {
        let (ToWorker::Ready(ready), files) = self.next()? else {
            return Err(ServeError::Order);
        };
        Ok(self.seat_at(made, *ready, files))
    }

    fn seat_at(
        &self,
        made: Made,
        ready: Ready,
        files: Vec<OwnedFd>,
    ) -> Result<Worker<ProcessLink>, CollectError> {
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
            link: ProcessLink::new(worker, ring, live, lane, weights, self.clone()),
            env,
            actor,
            cursor,
            maker,
        })
    }

    /// Says what environments it has made.
    pub(super) fn specify(&self, env: &dyn VecEnv) -> Result<(), ProcessError> {
        let specified = Specified {
            spec: env.spec().clone(),
            num_envs: env.num_envs(),
            thread: own_thread(),
            shows_stack: self.program.shows_stack,
        };
        self.send(&FromWorker::Specified(Box::new(specified)))
    }

    /// The next message, and the descriptors that came with it.
    pub(super) fn next(&self) -> Result<(ToWorker, Vec<OwnedFd>), ServeError> {
        // A whole frame at a time is read from the socket, so no reader holds some of the next one.
        let frame = FrameReader::default().read(self.end.socket())?;
        let frame = frame.ok_or(ServeError::Ended)?;
        Ok((frame.parse()?, frame.fds))
    }

    /// Answers a call, which comes next.
    pub(super) fn answer_call(&self) -> Result<(), ServeError> {
        let (ToWorker::Call(call), _) = self.next()? else {
            return Err(ServeError::Order);
        };
        let answer = (self.program.answer_calls)(&call);
        Ok(self.send(&FromWorker::Returned(answer))?)
    }

    pub(super) fn send(&self, message: &FromWorker) -> Result<(), ProcessError> {
        send(self.end.socket(), &Frame::of(message)?)
    }

    fn refuse_with(&self, error: &CollectError) -> Result<(), ServeError> {
        self.refuse(error.kind(), error, (self.program.is_interruption)(error))
    }

    pub(super) fn refuse(
        &self,
        kind: ErrorKind,
        error: &(dyn Error + 'static),
        interrupted: bool,
    ) -> Result<(), ServeError> {
        let refusal = Refusal {
            kind,
            message: message_to_send(error),
            interrupted,
            sent: sent(error, self.program.send_errors),
        };
        Ok(self.send(&FromWorker::Refused(refusal))?)
    }
}

/// The number of this thread.
fn own_thread() -> Option<u32> {
    let path = std::fs::read_link("/proc/thread-self").ok()?;
    path.file_name()?.to_str()?.parse().ok()
}

/// What a worker process has made before it gets memory to fill.
struct Made {
    maker: WorkerFactory,
    env: Box<dyn VecEnv>,
    spec: EnvSpec,
    bound: Bound,
}
