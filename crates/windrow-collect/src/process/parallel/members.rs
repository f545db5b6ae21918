//! The members as the one who steps them sees them: rows to write and to read, commands, answers.
//!
//! A command goes to the members that are *selected*; which are *ready* is another question. A
//! lockstep is a command to all, and a wait until all are ready.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use tensordict::LeafSpec;
use windrow_env::{
    EnvError, EnvSpec, Gathering, Outcomes, Reset, StateVisitor, VecEnvError, not_apart,
};
use windrow_peer::{ControlBlock, ControlSpec, Frame, Lane, ProcessError};
use windrow_slab::{Order, Part, Ring, RingSpec, Row, RowMut, Rows, RowsMut, SlabError, Step};
use windrow_sync::Interrupt;

use super::children::{Children, ParallelSpec};
use super::error::MemberError;
use super::messages::{MemberAnswer, MemberCommand, RowsLayout, SEEDED, UNSEEDED};
use super::statistics::MemberStatistics;
use crate::error::BuildError;
use crate::process::messages::{FromWorker, Specified, ToWorker};
use crate::worker::saved::StateAnswer;

/// All members.
pub(super) struct Members {
    children: Children,
    spec: EnvSpec,
    /// Environments of each.
    envs: usize,
    statistics: MemberStatistics,
    rows: Option<SharedRows>,
}

/// Memory that the members share with this process: their rows and their lanes.
struct SharedRows {
    layout: RowsLayout,
    /// Keeps the memory, and has the bell that members ring.
    ring: Arc<Ring>,
    /// A part for each. Its member alone uses it from a command to its answer, this process at any
    /// other time.
    parts: Vec<Part>,
    control: ControlBlock,
    lanes: Vec<Lane<MemberCommand, MemberAnswer>>,
}

impl Members {
    pub(super) fn start(spec: &ParallelSpec) -> Result<Self, EnvError> {
        let mut children = Children::start(spec)?;
        let made = children.specified(0..spec.members.len());
        let made = made.map_err(|fault| EnvError::Member(Box::new(fault)))?;
        let (spec, envs) = alike(&made)?;
        let specs: Vec<_> = made.iter().map(|made| &made.spec).collect();
        Ok(Self {
            statistics: MemberStatistics::of(&specs, envs)?,
            children,
            spec,
            envs,
            rows: None,
        })
    }

    pub(super) fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    pub(super) fn num_envs(&self) -> usize {
        self.children.each.len() * self.envs
    }

    /// Whether each is one environment.
    pub(super) fn are_single(&self) -> bool {
        self.envs == 1
    }

    pub(super) fn pids(&mut self) -> Vec<Option<u32>> {
        self.children.pids()
    }

    /// Binds them to the `columns` that the policy writes.
    pub(super) fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        let bound = self
            .settle()
            .and_then(|()| self.attach(columns.to_vec(), true));
        bound.map_err(|fault| EnvError::Member(Box::new(fault)))
    }

    pub(super) fn reset(
        &mut self,
        resets: &[Reset],
        mut obs: RowsMut<'_>,
        gatherings: &mut [Gathering],
    ) -> Result<(), VecEnvError> {
        self.prepare()?;
        let (envs, rows) = (self.num_envs(), obs.envs());
        if let Some(&Reset { env, .. }) = resets.iter().find(|reset| reset.env >= envs) {
            return Err(EnvError::OutOfRange { env, envs, rows }.of(env));
        }
        for member in 0..self.children.each.len() {
            let own = self.own(member);
            let selected = resets.iter().any(|reset| own.contains(&reset.env));
            self.children.each[member].selected = selected;
            if selected {
                self.clear_values(member);
                let own = resets.iter().filter(|reset| own.contains(&reset.env));
                self.mark(member, own)?;
            }
        }
        self.ask_gathering(MemberCommand::Reset, gatherings)?;
        resets
            .iter()
            .try_for_each(|reset| self.copy_observation(reset.env, &mut obs))
    }

    /// Steps `which` environments, those of whole members, or all.
    pub(super) fn step(
        &mut self,
        which: Option<&[usize]>,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: &mut Outcomes<'_>,
        gatherings: &mut [Gathering],
    ) -> Result<(), VecEnvError> {
        self.prepare()?;
        let mut stepped = Vec::with_capacity(self.num_envs());
        for member in 0..self.children.each.len() {
            let own = self.own(member);
            let first = own.start;
            let steps = which.is_none_or(|which| which.contains(&first));
            self.children.each[member].selected = steps;
            if !steps {
                continue;
            }
            stepped.extend(own);
            self.clear_values(member);
            self.row(member, |layout, mut step| {
                (0..step.reward.len()).try_for_each(|row| {
                    copy(
                        &layout.columns,
                        actions.env(first + row),
                        step.policy.env_mut(row),
                    )
                })
            })?;
        }
        if let Some(which) = which.filter(|which| *which != stepped) {
            return Err(not_apart(&self.spec, self.num_envs(), which));
        }
        self.ask_gathering(MemberCommand::Step, gatherings)?;
        for &first in stepped.iter().step_by(self.envs) {
            let member = first / self.envs;
            let own = self.own(member);
            self.row(member, |_, step| {
                outcomes.reward[own.clone()].copy_from_slice(step.reward);
                outcomes.terminated[own.clone()].copy_from_slice(step.terminated);
                outcomes.truncated[own].copy_from_slice(step.truncated);
                Ok(())
            })?;
        }
        stepped
            .into_iter()
            .try_for_each(|env| self.copy_observation(env, &mut obs))
    }

    /// Has `member` answer `request`.
    pub(super) fn call(&mut self, member: usize, request: &[u8]) -> Result<Vec<u8>, VecEnvError> {
        let call = ToWorker::Call(request.to_vec());
        self.answer(member, MemberCommand::Call, Some(&call))
    }

    /// Saves or loads the states of all members.
    pub(super) fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let members = self.children.each.len();
        state.section(format!("{members} members of a Parallel"))?;
        let failed = |error: VecEnvError| EnvError::Member(Box::new(error));
        for member in 0..members {
            let mut bytes = Vec::new();
            if !state.is_loading() {
                let pickle = state.may_pickle();
                let saved = self.answer(member, MemberCommand::Save { pickle }, None);
                bytes = match StateAnswer::from_bytes(&saved.map_err(failed)?) {
                    StateAnswer::Saved(bytes) => bytes,
                    other => return Err(other.into_error()),
                };
            }
            state.value(&mut bytes)?;
            if state.is_loading() {
                let load = ToWorker::State(bytes);
                let loaded = self.answer(member, MemberCommand::Load, Some(&load));
                match StateAnswer::from_bytes(&loaded.map_err(failed)?) {
                    StateAnswer::Loaded => {}
                    other => return Err(other.into_error()),
                }
            }
        }
        Ok(())
    }

    /// The answer of `member` to `command`, to which `message` belongs.
    fn answer(
        &mut self,
        member: usize,
        command: MemberCommand,
        message: Option<&ToWorker>,
    ) -> Result<Vec<u8>, VecEnvError> {
        self.prepare()?;
        let members = self.children.each.len();
        if member >= members {
            let error = ProcessError::NoSuch {
                what: "member",
                index: member,
                count: members,
            };
            return Err(EnvError::failed(error).of(member));
        }
        self.check_alive(member)?;
        if let Some(message) = message {
            let message = Frame::of(message).map_err(EnvError::failed);
            message
                .and_then(|message| self.children.send(member, message))
                .map_err(|error| error.of(member))?;
        }
        for (index, other) in self.children.each.iter_mut().enumerate() {
            other.selected = index == member;
        }
        let Self {
            rows, statistics, ..
        } = self;
        rows.iter_mut()
            .for_each(|rows| statistics.show(member, &mut rows.parts));
        self.ask(command)?;
        self.check_alive(member)?;
        let Self {
            rows, statistics, ..
        } = self;
        if command == MemberCommand::Call {
            rows.iter_mut()
                .for_each(|rows| statistics.keep(member, &mut rows.parts));
        }
        Ok(self.children.each[member]
            .returned
            .take()
            .unwrap_or_default())
    }

    /// Checks that the process of `member` has not ended, so that it can answer.
    fn check_alive(&mut self, member: usize) -> Result<(), VecEnvError> {
        let first = self.own(member).start;
        let called = &mut self.children.each[member];
        let fault = called.is_dead().then(|| called.take_fault()).flatten();
        fault.map_or(Ok(()), |fault| Err(fault.source.of(first)))
    }

    /// Ends the processes, and waits for their ends: for longer where that `is_asked` for.
    pub(super) fn end(&mut self, is_asked: bool) {
        let rows = self.rows.take();
        let close = || rows.iter().for_each(|rows| rows.control.close());
        self.children.end(is_asked, close);
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Commands and answers.
impl Members {
    /// As [`ask`](Self::ask), for a command with which members gather running statistics.
    fn ask_gathering(
        &mut self,
        command: MemberCommand,
        gatherings: &mut [Gathering],
    ) -> Result<(), VecEnvError> {
        let selected: Vec<_> = (self.children.each.iter())
            .map(|member| member.selected)
            .collect();
        if let Some(rows) = &mut self.rows {
            self.statistics.lend(&selected, &mut rows.parts, gatherings);
        }
        self.ask(command)?;
        self.clear_lost()?;
        let each = self.children.each.iter();
        let answered: Vec<_> = each
            .map(|member| member.selected && !member.is_dead())
            .collect();
        if let Some(rows) = &mut self.rows {
            self.statistics
                .take_back(&answered, &mut rows.parts, gatherings);
        }
        Ok(())
    }

    /// Clears the rows of members whose processes have ended, which may be half written.
    fn clear_lost(&mut self) -> Result<(), VecEnvError> {
        for member in 0..self.children.each.len() {
            if !self.children.each[member].is_dead() {
                continue;
            }
            self.clear_values(member);
            self.row(member, |layout, mut step| {
                step.reward.fill(0.0);
                step.terminated.fill(false);
                step.truncated.fill(true);
                (0..layout.observation.len()).try_for_each(|leaf| step.next_obs.zero(leaf))
            })?;
        }
        Ok(())
    }

    /// The members whose processes have ended since the last call, each with its error.
    pub(super) fn take_losses(&mut self) -> Vec<(usize, MemberError)> {
        let each = self.children.each.iter_mut().enumerate();
        each.filter_map(|(index, member)| Some((index, member.take_loss()?)))
            .collect()
    }

    /// Starts another process in place of that of `member`, which has ended, and waits until it has
    /// made its environments. If that fails, the member is dead, and all further calls say so.
    pub(super) fn replace(&mut self, member: usize) -> Result<(), VecEnvError> {
        let replaced = self.start_again(member);
        if let Err(error) = &replaced {
            self.children.each[member].give_up(error);
        }
        replaced
    }

    fn start_again(&mut self, member: usize) -> Result<(), VecEnvError> {
        let first = self.own(member).start;
        let shifted = |fault: VecEnvError| fault.source.of(first);
        self.children
            .spawn(member)
            .map_err(|error| error.of(first))?;
        let made = self.children.specified(member..member + 1);
        for made in made.map_err(shifted)? {
            let joined = self.spec.clone().join(&made.spec);
            joined.map_err(|error| error.of(first))?;
        }
        if let Some(rows) = &mut self.rows {
            rows.lanes[member].reset();
            let frame = rows.frame(member);
            let sent = frame.and_then(|frame| self.children.send(member, frame));
            sent.map_err(|error| error.of(first))?;
            self.attached(member..member + 1).map_err(shifted)?;
        }
        Ok(())
    }

    /// Has the members that are selected execute `command`, and waits for them.
    fn ask(&mut self, command: MemberCommand) -> Result<(), VecEnvError> {
        for member in 0..self.children.each.len() {
            let called = &self.children.each[member];
            if called.selected && !called.is_dead() {
                let first = self.own(member).start;
                self.send(member, command)
                    .map_err(|error| error.of(first))?;
            }
        }
        self.wait()?;
        let mut fault = None;
        let outlives = self.children.spec.outlives;
        for (index, member) in self.children.each.iter_mut().enumerate() {
            let first = index * self.envs;
            if outlives && member.is_dead() {
                // Reported by `take_losses`.
                continue;
            }
            let own = member.take_fault();
            // The first is reported; the others of this step are of no use any more.
            fault = fault.or(own.map(|fault| fault.source.of(first + fault.env)));
        }
        fault.map_or(Ok(()), Err)
    }

    /// Sends a command to `member`, which is ready and whose rows are written.
    fn send(&mut self, member: usize, command: MemberCommand) -> Result<(), EnvError> {
        let rows = self.rows.as_mut().ok_or(MemberError::Closed)?;
        rows.lanes[member]
            .send(&command)
            .map_err(EnvError::failed)?;
        self.children.each[member].begin(command);
        Ok(())
    }

    /// Takes the answers and reports that are there. Whether all members are ready.
    fn poll(&mut self) -> bool {
        if let Some(rows) = &mut self.rows {
            for (member, lane) in self.children.each.iter_mut().zip(&mut rows.lanes) {
                match lane.try_receive() {
                    Some(Ok(answer)) => member.answered = Some(answer),
                    Some(Err(error)) => member.break_off(error),
                    None => {}
                }
            }
        }
        self.children.poll();
        self.children.each.iter().all(|member| member.is_ready())
    }

    /// Waits until all members are ready.
    fn wait(&mut self) -> Result<(), VecEnvError> {
        let ring = self.rows.as_ref().map(|rows| Arc::clone(&rows.ring));
        let Some(bell) = ring.as_ref().and_then(|ring| ring.bell()) else {
            return Ok(());
        };
        let mut asked: Option<Instant> = None;
        loop {
            let seen = bell.count();
            if self.poll() {
                self.children
                    .each
                    .iter_mut()
                    .for_each(|member| member.doing = None);
                return Ok(());
            }
            self.children.kill_hung();
            let reported = self.children.report_silent(self.envs);
            reported.map_err(|error| EnvError::failed(error).of(0))?;
            if asked.get_or_insert_with(Instant::now).elapsed() >= Interrupt::SLICE {
                let checked = self.children.spec.interrupt.check();
                checked.map_err(|error| EnvError::failed(error).of(0))?;
                asked = None;
            }
            bell.wait(seen, Some(self.children.pause()));
        }
    }

    /// Waits for what a call has left to be done that was given up. All members are alive then.
    fn settle(&mut self) -> Result<(), VecEnvError> {
        let checked = self.children.check();
        let envs = self.envs;
        let shifted = |fault: VecEnvError| {
            let first = fault.env * envs;
            fault.source.of(first)
        };
        checked.map_err(shifted)?;
        self.wait()?;
        self.children.check().map_err(shifted)
    }

    /// Before a command: the members are ready, and have rows.
    fn prepare(&mut self) -> Result<(), VecEnvError> {
        self.settle()?;
        match self.rows {
            Some(_) => Ok(()),
            None => self.attach(self.spec.action_leaves(), false),
        }
    }

    /// Attaches all members to new rows.
    fn attach(&mut self, columns: Vec<LeafSpec>, bind: bool) -> Result<(), VecEnvError> {
        let shape = (self.children.each.len(), self.envs);
        let rows = SharedRows::new(RowsLayout {
            notes: self.statistics.notes(),
            ..RowsLayout::new(&self.spec, columns, bind, shape)
        });
        let rows = rows.map_err(|error| error.of(0))?;
        if self.rows.is_some() {
            let members = self.children.each.iter_mut();
            members.for_each(|member| member.selected = true);
            self.ask(MemberCommand::Move)?;
        }
        for member in 0..self.children.each.len() {
            let sent = rows
                .frame(member)
                .and_then(|frame| self.children.send(member, frame));
            sent.map_err(|error| error.of(member * self.envs))?;
        }
        let ring = Arc::clone(&rows.ring);
        self.children
            .ring(move || ring.bell().into_iter().for_each(|bell| bell.ring()));
        self.rows = Some(rows);
        let envs = self.envs;
        let attached = self.attached(0..self.children.each.len());
        attached.map_err(|fault| {
            let first = fault.env * envs;
            fault.source.of(first)
        })
    }

    /// Waits until each of `members` has its rows.
    fn attached(&mut self, members: Range<usize>) -> Result<(), VecEnvError> {
        let attached = self.children.gather(members, |message| match message {
            FromWorker::Attached => Ok(()),
            other => Err(other),
        });
        attached.map(drop)
    }
}

/// Rows.
impl Members {
    /// The environments of `member` among all.
    fn own(&self, member: usize) -> Range<usize> {
        member * self.envs..(member + 1) * self.envs
    }

    /// Makes room for the values of variable size of a command to `member`, which is ready. What
    /// the last command wrote was copied.
    fn clear_values(&mut self, member: usize) {
        if let Some(rows) = &mut self.rows {
            rows.parts[member].clear_values();
        }
    }

    /// Calls `f` with the rows of `member`, which is ready.
    fn row<R>(
        &mut self,
        member: usize,
        f: impl FnOnce(&RowsLayout, Step<'_>) -> Result<R, SlabError>,
    ) -> Result<R, VecEnvError> {
        let first = self.own(member).start;
        let error = |error: EnvError| error.of(first);
        let closed = || error(MemberError::Closed.into());
        let shared = self.rows.as_mut().ok_or_else(closed)?;
        let mut rows = shared.parts[member].rows();
        let step = rows.next_step().ok_or_else(closed)?;
        f(&shared.layout, step).map_err(|broken| error(broken.into()))
    }

    /// Marks the environments of `member` that `resets` names.
    fn mark<'a>(
        &mut self,
        member: usize,
        resets: impl Iterator<Item = &'a Reset>,
    ) -> Result<(), VecEnvError> {
        let first = self.own(member).start;
        self.row(member, |layout, mut step| {
            let (mark, seed) = layout.reset();
            step.policy.zero(mark.leaf())?;
            for reset in resets {
                let env = reset.env - first;
                let kind = reset.seed.map_or(UNSEEDED, |_| SEEDED);
                step.policy.get_mut(mark)?[env] = kind;
                step.policy.get_mut(seed)?[env] = reset.seed.unwrap_or_default().cast_signed();
            }
            Ok(())
        })
    }

    /// Copies what environment `env` has observed.
    fn copy_observation(&mut self, env: usize, obs: &mut RowsMut<'_>) -> Result<(), VecEnvError> {
        let (member, row) = (env / self.envs, env % self.envs);
        self.row(member, |layout, step| {
            copy(
                &layout.observation,
                step.next_obs.as_rows().env(row),
                obs.env_mut(env),
            )
        })
    }
}

impl SharedRows {
    fn new(rows: RowsLayout) -> Result<Self, EnvError> {
        let layout = rows.layout()?;
        let (fingerprint, workers) = (layout.fingerprint(), rows.workers);
        let spec = RingSpec {
            order: Order::ByWorker,
            workers,
            ahead: 0,
            max_slabs: 1,
            cut_after: None,
            max_age: None,
        };
        let ring = Ring::shared(layout, spec)?;
        ring.request()?;
        let parts = (0..workers).map(|worker| ring.try_claim(worker));
        let parts = parts.collect::<Result<Option<Vec<_>>, _>>()?;
        let control = ControlSpec {
            fingerprint,
            workers,
            envs: rows.envs,
        };
        let (control, lanes) = ControlBlock::create(control).map_err(EnvError::failed)?;
        Ok(Self {
            layout: rows,
            ring,
            parts: parts.ok_or(MemberError::Closed)?,
            control,
            lanes,
        })
    }

    /// Where the rows of member `worker` are.
    fn frame(&self, worker: usize) -> Result<Frame, EnvError> {
        let frame = || -> Result<Frame, ProcessError> {
            let layout = RowsLayout {
                worker,
                ..self.layout.clone()
            };
            let mut frame = Frame::of(&ToWorker::Rows(Box::new(layout)))?;
            let rows = self.ring.file().map(|file| frame.attach(file.as_fd()));
            rows.transpose()?;
            frame.attach(self.control.as_fd())?;
            Ok(frame)
        };
        frame().map_err(EnvError::failed)
    }
}

/// What all members are, and how many environments each has.
fn alike(made: &[Specified]) -> Result<(EnvSpec, usize), EnvError> {
    let [first, others @ ..] = made else {
        return Err(EnvError::Empty);
    };
    let mut spec = first.spec.clone();
    // Those of one member.
    spec.dimensions.clear();
    let statistics = made.iter().flat_map(|made| &made.spec.statistics);
    spec.statistics = statistics.cloned().collect();
    for (other, worker) in others.iter().zip(1..) {
        if other.num_envs != first.num_envs {
            return Err(EnvError::failed(BuildError::UnequalEnvs {
                worker,
                expected: first.num_envs,
                got: other.num_envs,
            }));
        }
        let unlike =
            |error: EnvError| EnvError::Member(Box::new(error.of(worker * first.num_envs)));
        spec.join(&other.spec).map_err(unlike)?;
    }
    Ok((spec, first.num_envs))
}

/// Copies a row leaf by leaf.
fn copy(
    leaves: &[LeafSpec],
    from: Option<Row<'_>>,
    to: Option<RowMut<'_>>,
) -> Result<(), SlabError> {
    // The number of rows was checked before.
    let (Some(from), Some(mut to)) = (from, to) else {
        return Ok(());
    };
    for leaf in 0..leaves.len() {
        to.copy_leaf(leaf, from, leaf)?;
    }
    Ok(())
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Members")
            .field("each", &self.children.each)
            .finish_non_exhaustive()
    }
}
