//! Environments that step side by side, each in a process of its own.
//!
//! [`Parallel`] says what to start, [`ParallelEnvs`] are the environments, as one vector.
//! [`Members`](members::Members) is this process's side of them: it sends commands to some, and
//! waits for their answers. [`member`] is the side of their processes.

mod children;
mod error;
pub(super) mod member;
mod members;
pub(super) mod messages;
mod statistics;

use std::sync::{Arc, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use tensordict::LeafSpec;
use windrow_env::{
    EnvError, EnvFactory, EnvRecipe, EnvRegistry, EnvSpec, Gathering, Outcomes, Reset,
    StateVisitor, VecEnv, VecEnvError,
};
use windrow_peer::WorkerProgram;
use windrow_slab::{Rows, RowsMut};
use windrow_sync::{Interrupt, Mutex, lock};

use children::ParallelSpec;
pub use error::MemberError;
use members::Members;

/// Under which a worker process makes environments of this kind.
const NAME: &str = "windrow.parallel";

/// Environments that step side by side, each in a process of its own: how many, which ones, and how
/// they end.
///
/// Collectors take it as they take every factory. Each of its members is one environment by an id,
/// or what else a [recipe](EnvRecipe) can say; a member that is a vector counts as so many
/// environments. All members observe and accept the same.
///
/// They run this program again, so `main` begins with [`worker_main`](crate::worker_main):
///
/// ```no_run
/// use windrow_collect::{MultiSyncCollector, Parallel, worker_main};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     worker_main(|_registry| Ok(()))?;
///     let mut collector = MultiSyncCollector::builder(Parallel::new(4, "CartPole-v1")?)
///         .num_workers(1)
///         .frames_per_batch(400)
///         .build()?;
///     // [environments, time]
///     assert_eq!(collector.next().ok_or("a batch")??.batch_size(), &[4, 100]);
///     Ok(())
/// }
/// ```
///
/// Members that share [`Statistics`](windrow_env::Statistics) gather them together: each normalises
/// by what all have gathered until the step before, and its own row.
///
/// A step costs some tens of microseconds more than the slowest member takes, so this is for
/// environments that take longer than that. [`Serial`](windrow_env::Serial) steps quick ones.
#[derive(Debug, Clone)]
pub struct Parallel {
    spec: ParallelSpec,
}

/// [`Parallel`] as it is written down.
#[derive(Serialize, Deserialize)]
struct ParallelRepr {
    members: Vec<ByteBuf>,
    patience: Duration,
}

impl Parallel {
    /// `num_workers` members, each an environment that `env` describes.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn new(num_workers: usize, env: impl EnvFactory) -> Result<Self, EnvError> {
        let member = written(&env)?;
        drop(env);
        Self::of_written(vec![member; num_workers])
    }

    /// A member for each of `envs`.
    ///
    /// # Errors
    /// [`EnvError::Unwritable`] for code, which cannot be sent to a process; [`EnvError::Empty`]
    /// without members.
    pub fn of<F: EnvFactory>(envs: impl IntoIterator<Item = F>) -> Result<Self, EnvError> {
        let members = envs.into_iter().map(|env| written(&env));
        Self::of_written(members.collect::<Result<_, _>>()?)
    }

    fn of_written(members: Vec<ByteBuf>) -> Result<Self, EnvError> {
        if members.is_empty() {
            return Err(EnvError::Empty);
        }
        Ok(Self {
            spec: ParallelSpec {
                members,
                program: None,
                patience: Duration::from_secs(10),
                is_patient: false,
                step_timeout: None,
                outlives: false,
                first: 0,
                interrupt: Interrupt::never(),
            },
        })
    }

    /// The program that runs as a member; by default this one, whose `main` begins with
    /// [`worker_main`](crate::worker_main).
    #[must_use]
    pub fn worker_program(mut self, program: WorkerProgram) -> Self {
        self.spec.program = Some(program);
        self
    }

    /// How long members may take to end by themselves in [`ParallelHandle::close`]; 10 seconds by
    /// default. Then they are killed. When the environments are dropped, they have half a second at
    /// most.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.spec.patience = timeout;
        self
    }

    /// Gives members that are dropped, and are not in the middle of a step, as long as those that
    /// are closed.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.spec.is_patient = true;
        self
    }

    /// The time that a step or reset may take. A member that takes longer counts as frozen and is
    /// killed, as by [`CollectorBuilder::step_timeout`](crate::CollectorBuilder::step_timeout).
    #[must_use]
    pub fn step_timeout(mut self, timeout: Duration) -> Self {
        self.spec.step_timeout = Some(timeout);
        self
    }

    /// The number of the first member in [reports](Interrupt::reporting), for members that are a
    /// part of more; 0 by default.
    #[must_use]
    pub fn counted_from(mut self, first: usize) -> Self {
        self.spec.first = first;
        self
    }

    /// Goes on without members whose processes have ended, which by default make a step an error.
    /// Their rows are zeros, truncated, and [`ParallelHandle::take_losses`] returns the errors. The
    /// caller replaces each by [`ParallelHandle::replace`] before the next step.
    #[must_use]
    pub fn outlives(mut self) -> Self {
        self.spec.outlives = true;
        self
    }

    /// Checks `interrupt` while a call waits for members; its error ends the call. The members
    /// finish the request even so, and the next call waits until they have.
    #[must_use]
    pub fn interrupt(mut self, interrupt: Interrupt) -> Self {
        self.spec.interrupt = interrupt;
        self
    }

    /// Starts the processes, and waits until each has made its environment.
    ///
    /// # Errors
    /// The error of the first member that could not be made, or that observes or accepts something
    /// else than the first, with its number.
    pub fn start(&self) -> Result<ParallelEnvs, EnvError> {
        let members = Members::start(&self.spec)?;
        let spec = members.spec().clone();
        let statistics = spec.statistics.iter().cloned();
        Ok(ParallelEnvs {
            gatherings: statistics.map(Gathering::elsewhere).collect(),
            spec,
            num_envs: members.num_envs(),
            interrupt: self.spec.interrupt.clone(),
            members: Arc::new(Mutex::new(members)),
        })
    }

    /// Has `registry` make what [`recipe`](EnvFactory::recipe) describes.
    pub(super) fn register(registry: &mut EnvRegistry) -> Result<(), EnvError> {
        registry.register_vec_with(NAME, |written: ParallelRepr, num_envs| {
            Self::of_written(written.members)?
                .shutdown_timeout(written.patience)
                .build(num_envs)
        })
    }
}

/// The recipe of `env` as it is sent to a member.
fn written(env: &impl EnvFactory) -> Result<ByteBuf, EnvError> {
    let unwritable = EnvError::Unwritable {
        factory: "a function or closure",
    };
    Ok(ByteBuf::from(env.recipe().ok_or(unwritable)?.to_bytes()?))
}

impl EnvFactory for Parallel {
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        match num_envs {
            0 => Err(EnvError::Empty),
            1 => Ok(Box::new(self.start()?)),
            asked => Err(EnvError::AlreadyVector {
                envs: self.spec.members.len(),
                asked,
            }),
        }
    }

    /// `None` with a [program](Self::worker_program) of its own.
    fn recipe(&self) -> Option<EnvRecipe> {
        let written = ParallelRepr {
            members: self.spec.members.clone(),
            patience: self.spec.patience,
        };
        let recipe = EnvRecipe::of(NAME).with_packed(&written).ok()?;
        self.spec.program.is_none().then_some(recipe)
    }
}

/// Environments in processes, as one vector. Made by [`Parallel::start`]. Their processes end when
/// this is dropped.
#[derive(Debug)]
pub struct ParallelEnvs {
    spec: EnvSpec,
    num_envs: usize,
    /// The running statistics of each member, one member behind the other.
    gatherings: Vec<Gathering>,
    interrupt: Interrupt,
    members: Arc<Mutex<Members>>,
}

impl ParallelEnvs {
    /// Reaches the processes beside the one who steps them.
    #[must_use]
    pub fn handle(&self) -> ParallelHandle {
        ParallelHandle {
            members: Arc::downgrade(&self.members),
            interrupt: self.interrupt.clone(),
        }
    }

    /// Whether there is a row for each environment.
    fn check(&self, rows: &[usize]) -> Result<(), VecEnvError> {
        let envs = self.num_envs;
        match rows.iter().find(|&&rows| rows != envs) {
            None => Ok(()),
            Some(&rows) => {
                let env = envs.min(rows);
                Err(EnvError::OutOfRange { env, envs, rows }.of(env))
            }
        }
    }
}

impl VecEnv for ParallelEnvs {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        lock(&self.members).bind(columns)
    }

    fn reset(&mut self, resets: &[Reset], obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.check(&[obs.envs()])?;
        lock(&self.members).reset(resets, obs, &mut self.gatherings)
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.step_those(None, actions, obs, &mut outcomes)
    }

    fn step_some(
        &mut self,
        which: &[usize],
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.step_those(Some(which), actions, obs, &mut outcomes)
    }

    fn step_apart(&self) -> bool {
        lock(&self.members).are_single()
    }

    fn gatherings(&mut self) -> Vec<&mut Gathering> {
        self.gatherings.iter_mut().collect()
    }

    /// Saves or loads the states of the members, and the running statistics of all.
    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        lock(&self.members).visit_state(state)?;
        let mut gatherings = self.gatherings.iter_mut();
        gatherings.try_for_each(|gathering| gathering.visit_state(state))
    }
}

impl ParallelEnvs {
    fn step_those(
        &mut self,
        which: Option<&[usize]>,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: &mut Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.check(&[
            actions.envs(),
            obs.envs(),
            outcomes.reward.len(),
            outcomes.terminated.len(),
            outcomes.truncated.len(),
        ])?;
        lock(&self.members).step(which, actions, obs, outcomes, &mut self.gatherings)
    }
}

/// A way to the processes of [`ParallelEnvs`] for others than the one who steps them. It does not
/// keep them alive.
#[derive(Debug, Clone)]
pub struct ParallelHandle {
    members: Weak<Mutex<Members>>,
    interrupt: Interrupt,
}

impl ParallelHandle {
    /// Whether there are processes to be reached.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.members.strong_count() > 0
    }

    /// Has member `member` answer `request`, between two steps, by what
    /// [`answer_calls`](crate::WorkerMain::answer_calls) was given.
    ///
    /// # Errors
    /// [`MemberError::Closed`], [`MemberError::Died`], and the error of an
    /// [interrupt](Parallel::interrupt).
    pub fn call(&self, member: usize, request: &[u8]) -> Result<Vec<u8>, EnvError> {
        self.with(|members| {
            let answer = members.call(member, request);
            answer.map_err(|fault| EnvError::Member(Box::new(fault)))
        })
    }

    /// The processes, in the order of the members; `None` for one that has ended.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn pids(&self) -> Result<Vec<Option<u32>>, EnvError> {
        self.with(|members| Ok(members.pids()))
    }

    /// The members whose processes have ended since the last call, each with its error; for
    /// environments that [outlive](Parallel::outlives) their members.
    ///
    /// # Errors
    /// [`MemberError::Closed`], and the error of an [interrupt](Parallel::interrupt).
    pub fn take_losses(&self) -> Result<Vec<(usize, MemberError)>, EnvError> {
        self.with(|members| Ok(members.take_losses()))
    }

    /// Starts another process in place of that of `member`, which has ended, and waits until the
    /// new process has made its environments. These begin with a reset.
    ///
    /// # Errors
    /// As [`Parallel::start`]; [`MemberError::Closed`].
    pub fn replace(&self, member: usize) -> Result<(), EnvError> {
        self.with(|members| {
            let replaced = members.replace(member);
            replaced.map_err(|fault| EnvError::Member(Box::new(fault)))
        })
    }

    /// Ends the processes: each closes its environment, and is killed when it has not ended within
    /// [`shutdown_timeout`](Parallel::shutdown_timeout). Waits until none is left. Every later call
    /// is [`MemberError::Closed`].
    ///
    /// # Errors
    /// The error of an [interrupt](Parallel::interrupt) while another thread steps them.
    pub fn close(&self) -> Result<(), EnvError> {
        match self.is_open() {
            true => self.with(|members| {
                members.end(true);
                Ok(())
            }),
            false => Ok(()),
        }
    }

    /// Calls `f` once nobody steps the members.
    fn with<R>(&self, f: impl FnOnce(&mut Members) -> Result<R, EnvError>) -> Result<R, EnvError> {
        let members = self.members.upgrade().ok_or(MemberError::Closed)?;
        let mut asked = Instant::now();
        loop {
            match members.try_lock() {
                Ok(mut members) => return f(&mut members),
                Err(std::sync::TryLockError::Poisoned(members)) => {
                    return f(&mut members.into_inner());
                }
                Err(std::sync::TryLockError::WouldBlock) => sleep(Duration::from_micros(200)),
            }
            if asked.elapsed() > Interrupt::SLICE {
                self.interrupt.check().map_err(EnvError::failed)?;
                asked = Instant::now();
            }
        }
    }
}
