//! A worker process: makes environments and policy, and fills parts until there are no more.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use windrow_env::{EnvRecipe, EnvSpec, VecEnv};
use windrow_peer::{ChildEnd, Frame, FrameReader, ProcessError, send};
#[cfg(feature = "remote")]
use windrow_peer::{decode, net::Deadline};
use windrow_policy::PolicyRecipe;
use windrow_slab::SharedFile;

use super::channel::SharedChannel;
#[cfg(feature = "remote")]
use super::elsewhere::channel::StreamChannel;
#[cfg(feature = "remote")]
use super::elsewhere::stream::{Said, StreamEnd};
use super::link::ProcessLink;
use super::messages::{FromWorker, Hello, Ready, Refusal, Specified, ToWorker};
use super::program::Program;
use super::serve_error::ServeError;
use crate::error::{BuildError, ErrorKind, message_to_send, sent};
use crate::worker::Worker;
use crate::worker::factory::{Bound, WorkerFactory};

/// This process, as the worker of the one that has started it.
#[derive(Clone)]
pub(super) struct Child {
    end: End,
    /// What the program adds to being a worker.
    pub(super) program: Program,
}

/// The way to the collector.
#[derive(Clone)]
enum End {
    /// On this machine.
    Here(Arc<ChildEnd>),
    #[cfg(feature = "remote")]
    Elsewhere(Arc<StreamEnd>),
}

impl Child {
    pub(super) fn new(end: ChildEnd, program: Program) -> Self {
        Self {
            end: End::Here(Arc::new(end)),
            program,
        }
    }

    /// A worker of a collector on another machine.
    #[cfg(feature = "remote")]
    pub(super) fn elsewhere(stream: StreamEnd, program: Program) -> Self {
        Self {
            end: End::Elsewhere(Arc::new(stream)),
            program,
        }
    }

    /// Says that nothing more comes, where the collector could not see it.
    #[cfg(feature = "remote")]
    pub(super) fn finish(&self) {
        if let End::Elsewhere(stream) = &self.end {
            // It fails where the collector has gone.
            let _ = stream.finish();
        }
    }

    /// The memory behind a descriptor that came with a message.
    pub(super) fn shared_file(&self, file: OwnedFd) -> Result<SharedFile, ProcessError> {
        match &self.end {
            End::Here(end) => end.shared_file(file),
            #[cfg(feature = "remote")]
            End::Elsewhere(_) => Err(ProcessError::Attached {
                expected: 0,
                got: 1,
            }),
        }
    }

    /// Serves a collector, whose first message this is.
    pub(super) fn serve(&self, hello: Hello) -> Result<(), ServeError> {
        let made = match self.make(hello)? {
            Ok(made) => made,
            Err(error) => return self.refuse_with(&error),
        };
        match self.connect(made)? {
            Ok(worker) => {
                worker.contained(Worker::run);
                Ok(())
            }
            Err(error) => self.refuse_with(&error),
        }
    }

    /// Makes what the collector asks for, up to the point where memory is needed.
    fn make(&self, hello: Hello) -> Result<Result<Made, BuildError>, ServeError> {
        let (ToWorker::Policy(policy), _) = self.next()? else {
            return Err(ServeError::Order);
        };
        let policy = match PolicyRecipe::from_bytes(&policy) {
            Ok(policy) => policy,
            Err(source) => {
                let worker = hello.worker;
                return Ok(Err(BuildError::Policy { worker, source }));
            }
        };
        let worker = hello.worker;
        let env = match EnvRecipe::from_bytes(&hello.env) {
            Ok(env) => env,
            Err(source) => return Ok(Err(BuildError::Env { worker, source })),
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

    /// A worker for what was made, once the collector has memory for it.
    fn connect(&self, made: Made) -> Result<Result<Worker<ProcessLink>, BuildError>, ServeError> {
        let (ToWorker::Ready(ready), files) = self.next()? else {
            return Err(ServeError::Order);
        };
        Ok(self.worker(made, &ready, files))
    }

    fn worker(
        &self,
        made: Made,
        ready: &Ready,
        files: Vec<OwnedFd>,
    ) -> Result<Worker<ProcessLink>, BuildError> {
        let Made {
            maker,
            mut env,
            spec,
            bound: (actor, first),
        } = made;
        let worker = maker.worker;
        env.bind(&ready.columns)
            .map_err(|source| BuildError::Env { worker, source })?;
        let mut cursor = ready.beginning.cursor(&spec, worker, env.num_envs())?;
        if let Some(first) = first {
            cursor.prime(first);
        }
        let link = match &self.end {
            End::Here(end) => {
                let (channel, live) = SharedChannel::open(end, worker, ready, files)?;
                ProcessLink::new(worker, channel, live, self.clone())
            }
            #[cfg(feature = "remote")]
            End::Elsewhere(stream) => {
                let (channel, live) = StreamChannel::open(Arc::clone(stream), ready)?;
                ProcessLink::new(worker, channel, live, self.clone())
            }
        };
        Ok(Worker {
            link,
            env,
            actor,
            cursor,
            maker,
        })
    }

    /// Says what environments it has made.
    pub(super) fn specify(&self, env: &dyn VecEnv) -> Result<(), ServeError> {
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
        match &self.end {
            End::Here(end) => {
                // A whole frame at a time is read from the socket, so no reader holds some of the
                // next one.
                let frame = FrameReader::default().read(end.socket())?;
                let frame = frame.ok_or(ServeError::Ended)?;
                Ok((frame.parse()?, frame.fds))
            }
            #[cfg(feature = "remote")]
            End::Elsewhere(stream) => match stream.receive(Deadline::Never)? {
                (Said::Message, message) => Ok((decode(&message)?, Vec::new())),
                (Said::End, _) => Err(ServeError::Ended),
                _ => Err(ServeError::Order),
            },
        }
    }

    /// Answers a call, which comes next.
    pub(super) fn answer_call(&self) -> Result<(), ServeError> {
        let (ToWorker::Call(call), _) = self.next()? else {
            return Err(ServeError::Order);
        };
        let answer = (self.program.answer_calls)(&call);
        self.send(&FromWorker::Returned(answer))
    }

    pub(super) fn send(&self, message: &FromWorker) -> Result<(), ServeError> {
        let frame = Frame::of(message)?;
        match &self.end {
            End::Here(end) => Ok(send(end.socket(), &frame)?),
            #[cfg(feature = "remote")]
            End::Elsewhere(stream) => stream.send_with(&Said::Message, frame.body),
        }
    }

    fn refuse_with(&self, error: &BuildError) -> Result<(), ServeError> {
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
        self.send(&FromWorker::Refused(refusal))
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
