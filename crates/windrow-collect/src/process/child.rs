//! A worker process: makes environments and policy, and fills parts until there are no more.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use windrow_env::{EnvSpec, VecEnv};
use windrow_peer::{
    ChildEnd, ControlBlock, ExchangeReader, Frame, FrameReader, ProcessError, send,
};
use windrow_policy::PolicyRecipe;
use windrow_slab::{Layout, RemoteRing};

use super::lane_desk::LaneDesk;
use super::live::LiveProbe;
use super::messages::{Hello, Ready, Refusal, Specified, frame};
use super::program::Program;
use super::weights::WeightReceiver;
use crate::error::{CollectError, ErrorKind, message_to_send, sent};
use crate::worker::Worker;
use crate::worker::making::{Bound, Maker};

/// This process, as its collector's worker.
pub(super) struct Child {
    end: Arc<ChildEnd>,
    reader: FrameReader,
    /// What the program adds to being a worker.
    pub(super) program: Program,
}

/// Why a worker ends before it has filled a part.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("the collector sent frame {got} in place of frame {expected}")]
    Order { expected: u8, got: u8 },
    #[error("the collector has ended")]
    Ended,
}

impl Child {
    pub(super) fn new(end: ChildEnd, program: Program) -> Self {
        Self {
            end: Arc::new(end),
            reader: FrameReader::default(),
            program,
        }
    }

    pub(super) fn end(&self) -> &ChildEnd {
        &self.end
    }

    /// Serves a collector, whose first frame this is.
    pub(super) fn serve(&mut self, first: &Frame) -> Result<(), ServeError> {
        let hello = match first.kind {
            frame::HELLO => first.parse()?,
            got => {
                let expected = frame::HELLO;
                return Err(ServeError::Order { expected, got });
            }
        };
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
    fn make(&mut self, hello: Hello) -> Result<Result<Made, CollectError>, ServeError> {
        let policy = match PolicyRecipe::from_bytes(&self.gathered(frame::POLICY)?) {
            Ok(policy) => policy,
            Err(error) => return Ok(Err(error.into())),
        };
        let maker = Maker {
            service: None,
            worker: hello.worker,
            config: Arc::new(hello.config),
            env: Arc::new(hello.env),
            policy,
            is_interruption: self.program.is_interruption,
        };
        let mut env = match maker.guarded_envs() {
            Ok(env) => env,
            Err(error) => return Ok(Err(error)),
        };
        self.specify(env.as_ref())?;
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
                (Arc::clone(&self.end), self.program),
            ),
            env,
            actor,
            cursor,
            maker,
        })
    }

    /// What comes in pieces of `kind`.
    pub(super) fn gathered(&mut self, kind: u8) -> Result<Vec<u8>, ServeError> {
        Frame::gathered(|| self.receive(kind))
    }

    /// Says what environments it has made.
    pub(super) fn specify(&self, env: &dyn VecEnv) -> Result<(), ProcessError> {
        let specified = Specified {
            spec: env.spec().clone(),
            num_envs: env.num_envs(),
            thread: own_thread(),
            shows_stack: self.program.shows_stack,
        };
        self.send(&Frame::json(frame::SPECIFIED, &specified)?)
    }

    pub(super) fn expect<T: DeserializeOwned>(
        &mut self,
        kind: u8,
    ) -> Result<(T, Vec<OwnedFd>), ServeError> {
        let frame = self.receive(kind)?;
        Ok((frame.parse()?, frame.fds))
    }

    /// What comes first, of whatever kind, with all its pieces.
    pub(super) fn first(&mut self) -> Result<Frame, ServeError> {
        let first = self.next()?;
        let kind = first.kind;
        let mut first = Some(first);
        let body = Frame::gathered(|| first.take().map_or_else(|| self.receive(kind), Ok))?;
        let fds = Vec::new();
        Ok(Frame { kind, body, fds })
    }

    fn next(&mut self) -> Result<Frame, ServeError> {
        let frame = self.reader.read(self.end.socket().as_fd())?;
        frame.ok_or(ServeError::Ended)
    }

    pub(super) fn receive(&mut self, kind: u8) -> Result<Frame, ServeError> {
        let frame = self.next()?;
        match frame.kind == kind {
            true => Ok(frame),
            false => Err(ServeError::Order {
                expected: kind,
                got: frame.kind,
            }),
        }
    }

    pub(super) fn send(&self, frame: &Frame) -> Result<(), ProcessError> {
        send(self.end.socket().as_fd(), frame)
    }

    fn refuse_with(&mut self, error: &CollectError) -> Result<(), ServeError> {
        self.refuse(error.kind(), error, (self.program.is_interruption)(error))
    }

    pub(super) fn refuse(
        &mut self,
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
        Ok(self.send(&Frame::json(frame::REFUSAL, &refusal)?)?)
    }
}

/// The number of this thread.
fn own_thread() -> Option<u32> {
    let path = std::fs::read_link("/proc/thread-self").ok()?;
    path.file_name()?.to_str()?.parse().ok()
}

/// What a worker process has made before it gets memory to fill.
struct Made {
    maker: Maker,
    env: Box<dyn VecEnv>,
    spec: EnvSpec,
    bound: Bound,
}
