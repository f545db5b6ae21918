//! The members as the one who steps them sees them: rows to write and to read, commands, answers.
//!
//! A command goes to the members that are *told*; who is *ready* is another question. A lockstep is a command to all, and a wait until
//! all are ready.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use tensordict::{LeafSpec, for_dtype};
use windrow_env::{EnvError, EnvSpec, Outcomes, Reset, VecEnvError, not_apart};
use windrow_peer::{ControlBlock, ControlSpec, Frame, Lane, ProcessError};
use windrow_slab::{Key, Order, Part, Ring, RingSpec, Row, RowMut, Rows, RowsMut, SlabError, Step};
use windrow_sync::Interrupt;

use super::error::MemberError;
use super::messages::{MemberAnswer, MemberCommand, RowsLayout, SEEDED, UNSEEDED};
use super::staff::{Staff, Terms};
use super::watch::Report;
use crate::CollectError;
use crate::process::messages::{Specified, ToWorker};

/// All members.
pub(super) struct Members {
    staff: Staff,
    spec: EnvSpec,
    /// Environments of each.
    envs: usize,
    table: Option<Table>,
}

/// Where the members sit: their rows and their lanes.
struct Table {
    seat: RowsLayout,
    /// Keeps the memory, and has the bell that members ring.
    ring: Arc<Ring>,
    /// A part for each. Its member alone uses it from a command to its answer, this process at any other time.
    parts: Vec<Part>,
    control: ControlBlock,
    lanes: Vec<Lane<MemberCommand, MemberAnswer>>,
}

impl Members {
    pub(super) fn start(terms: &Terms) -> Result<Self, EnvError> {
        let mut staff = Staff::start(terms)?;
        let made = staff.gather(|report| match report {
            Report::Specified(made) => Some(*made),
            _ => None,
        });
        let made = made.map_err(|fault| EnvError::Member(Box::new(fault)))?;
        let (spec, envs) = alike(&made)?;
        let table = None;
        Ok(Self {
            staff,
            spec,
            envs,
            table,
        })
    }

    pub(super) fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    pub(super) fn num_envs(&self) -> usize {
        self.staff.each.len() * self.envs
    }

    pub(super) fn pids(&mut self) -> Vec<Option<u32>> {
        self.staff.hear();
        self.staff.each.iter().map(|member| member.pid).collect()
    }

    /// Has them told of the `columns` that the policy writes.
    pub(super) fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        let bound = self
            .settle()
            .and_then(|()| self.sit(columns.to_vec(), true));
        bound.map_err(|fault| EnvError::Member(Box::new(fault)))
    }

    pub(super) fn reset(
        &mut self,
        resets: &[Reset],
        mut obs: RowsMut<'_>,
    ) -> Result<(), VecEnvError> {
        self.prepare()?;
        let (envs, rows) = (self.num_envs(), obs.envs());
        if let Some(&Reset { env, .. }) = resets.iter().find(|reset| reset.env >= envs) {
            return Err(EnvError::OutOfRange { env, envs, rows }.of(env));
        }
        for member in 0..self.staff.each.len() {
            let own = self.own(member);
            let told = resets.iter().any(|reset| own.contains(&reset.env));
            self.staff.each[member].told = told;
            if told {
                let own = resets.iter().filter(|reset| own.contains(&reset.env));
                self.mark(member, own)?;
            }
        }
        self.ask(MemberCommand::Reset)?;
        resets
            .iter()
            .try_for_each(|reset| self.seen(reset.env, &mut obs))
    }

    /// Steps `which` environments, those of whole members, or all.
    pub(super) fn step(
        &mut self,
        which: Option<&[usize]>,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: &mut Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.prepare()?;
        let mut told = Vec::with_capacity(self.num_envs());
        for member in 0..self.staff.each.len() {
            let own = self.own(member);
            let first = own.start;
            let steps = which.is_none_or(|which| which.contains(&first));
            self.staff.each[member].told = steps;
            if !steps {
                continue;
            }
            told.extend(own);
            self.row(member, |seat, mut step| {
                (0..step.reward.len()).try_for_each(|row| {
                    copy(
                        &seat.columns,
                        actions.env(first + row),
                        step.policy.env_mut(row),
                    )
                })
            })?;
        }
        if let Some(which) = which.filter(|which| *which != told) {
            return Err(not_apart(&self.spec, self.num_envs(), which));
        }
        self.ask(MemberCommand::Step)?;
        for &first in told.iter().step_by(self.envs) {
            let member = first / self.envs;
            let own = self.own(member);
            self.row(member, |_, step| {
                outcomes.reward[own.clone()].copy_from_slice(step.reward);
                outcomes.terminated[own.clone()].copy_from_slice(step.terminated);
                outcomes.truncated[own].copy_from_slice(step.truncated);
                Ok(())
            })?;
        }
        told.into_iter()
            .try_for_each(|env| self.seen(env, &mut obs))
    }

    /// Has `member` answer `request`.
    pub(super) fn call(&mut self, member: usize, request: &[u8]) -> Result<Vec<u8>, VecEnvError> {
        self.prepare()?;
        let members = self.staff.each.len();
        if member >= members {
            let error = CollectError::NoSuchWorker {
                worker: member,
                workers: members,
            };
            return Err(EnvError::failed(error).of(member));
        }
        let call = Frame::of(&ToWorker::Call(request.to_vec())).map_err(EnvError::failed);
        call.and_then(|call| self.staff.send(member, call))
            .map_err(|error| error.of(member))?;
        for (index, other) in self.staff.each.iter_mut().enumerate() {
            other.told = index == member;
        }
        self.ask(MemberCommand::Call)?;
        Ok(self.staff.each[member].returned.take().unwrap_or_default())
    }

    /// Ends the processes, and waits for their ends: for longer where that `is_asked` for.
    pub(super) fn end(&mut self, is_asked: bool) {
        let table = self.table.take();
        let lanes = || table.iter().for_each(|table| table.control.close());
        self.staff.end(is_asked, lanes);
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Commands and answers.
impl Members {
    /// Has those who are told do what `command` says, and waits for them.
    fn ask(&mut self, command: MemberCommand) -> Result<(), VecEnvError> {
        for member in 0..self.staff.each.len() {
            if self.staff.each[member].told {
                let first = self.own(member).start;
                self.send(member, command)
                    .map_err(|error| error.of(first))?;
            }
        }
        self.wait()?;
        let mut fault = None;
        for (index, member) in self.staff.each.iter_mut().enumerate() {
            let first = index * self.envs;
            let own = member.take_fault();
            // The first is told; the others of this step are of no use any more.
            fault = fault.or(own.map(|fault| fault.source.of(first + fault.env)));
        }
        fault.map_or(Ok(()), Err)
    }

    /// Sends a command to `member`, which is ready and whose rows are written.
    fn send(&mut self, member: usize, command: MemberCommand) -> Result<(), EnvError> {
        let table = self.table.as_mut().ok_or(MemberError::Closed)?;
        table.lanes[member]
            .send(&command)
            .map_err(EnvError::failed)?;
        let member = &mut self.staff.each[member];
        (member.doing, member.answered, member.returned) = (Some(command), None, None);
        Ok(())
    }

    /// Takes the answers and reports that are there. Whether all members are ready.
    fn hear(&mut self) -> bool {
        if let Some(table) = &mut self.table {
            for (member, lane) in self.staff.each.iter_mut().zip(&mut table.lanes) {
                match lane.try_receive() {
                    Some(Ok(answer)) => member.answered = Some(answer),
                    Some(Err(error)) => member.fail_with(EnvError::failed(error)),
                    None => {}
                }
            }
        }
        self.staff.hear();
        self.staff.each.iter().all(|member| member.is_ready())
    }

    /// Waits until all members are ready.
    fn wait(&mut self) -> Result<(), VecEnvError> {
        let ring = self.table.as_ref().map(|table| Arc::clone(&table.ring));
        let Some(bell) = ring.as_ref().and_then(|ring| ring.bell()) else {
            return Ok(());
        };
        let mut asked: Option<Instant> = None;
        loop {
            let seen = bell.count();
            if self.hear() {
                self.staff
                    .each
                    .iter_mut()
                    .for_each(|member| member.doing = None);
                return Ok(());
            }
            if asked.get_or_insert_with(Instant::now).elapsed() >= Interrupt::SLICE {
                let checked = self.staff.interrupt.check();
                checked.map_err(|error| EnvError::failed(error).of(0))?;
                asked = None;
            }
            bell.wait(seen, Some(Interrupt::SLICE));
        }
    }

    /// Waits for what a call has left to be done that was given up. All members are alive then.
    fn settle(&mut self) -> Result<(), VecEnvError> {
        let checked = self.staff.check();
        let envs = self.envs;
        let shifted = |fault: VecEnvError| {
            let first = fault.env * envs;
            fault.source.of(first)
        };
        checked.map_err(shifted)?;
        self.wait()?;
        self.staff.check().map_err(shifted)
    }

    /// Before a command: the members are ready, and have a seat.
    fn prepare(&mut self) -> Result<(), VecEnvError> {
        self.settle()?;
        match self.table {
            Some(_) => Ok(()),
            None => self.sit(self.spec.action_leaves(), false),
        }
    }

    /// Gives all members a seat at a new table.
    fn sit(&mut self, columns: Vec<LeafSpec>, bind: bool) -> Result<(), VecEnvError> {
        let shape = (self.staff.each.len(), self.envs);
        let table = Table::new(RowsLayout::new(&self.spec, columns, bind, shape));
        let table = table.map_err(|error| error.of(0))?;
        if self.table.is_some() {
            self.staff
                .each
                .iter_mut()
                .for_each(|member| member.told = true);
            self.ask(MemberCommand::Move)?;
        }
        for member in 0..self.staff.each.len() {
            let sent = table
                .frame(member)
                .and_then(|frame| self.staff.send(member, frame));
            sent.map_err(|error| error.of(member * self.envs))?;
        }
        self.staff.door.hang(&table.ring);
        self.table = Some(table);
        let seated = |report| matches!(report, Report::Attached).then_some(());
        let envs = self.envs;
        let seated = self.staff.gather(seated);
        seated.map(|_| ()).map_err(|fault| {
            let first = fault.env * envs;
            fault.source.of(first)
        })
    }
}

/// Rows.
impl Members {
    /// The environments of `member` among all.
    fn own(&self, member: usize) -> Range<usize> {
        member * self.envs..(member + 1) * self.envs
    }

    /// Calls `f` with the rows of `member`, which is ready.
    fn row<R>(
        &mut self,
        member: usize,
        f: impl FnOnce(&RowsLayout, Step<'_>) -> Result<R, SlabError>,
    ) -> Result<R, VecEnvError> {
        let first = self.own(member).start;
        let error = |error: EnvError| error.of(first);
        let table = self
            .table
            .as_mut()
            .ok_or_else(|| error(MemberError::Closed.into()))?;
        let mut rows = table.parts[member].rows();
        let step = rows
            .next_step()
            .ok_or_else(|| error(MemberError::Closed.into()))?;
        f(&table.seat, step).map_err(|broken| error(broken.into()))
    }

    /// Marks the environments of `member` that `resets` names.
    fn mark<'a>(
        &mut self,
        member: usize,
        resets: impl Iterator<Item = &'a Reset>,
    ) -> Result<(), VecEnvError> {
        let first = self.own(member).start;
        self.row(member, |seat, mut step| {
            let (mark, seed) = seat.reset();
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
    fn seen(&mut self, env: usize, obs: &mut RowsMut<'_>) -> Result<(), VecEnvError> {
        let (member, row) = (env / self.envs, env % self.envs);
        self.row(member, |seat, step| {
            copy(
                &seat.observation,
                step.next_obs.as_rows().env(row),
                obs.env_mut(env),
            )
        })
    }
}

impl Table {
    fn new(seat: RowsLayout) -> Result<Self, EnvError> {
        let layout = seat.layout()?;
        let (fingerprint, workers) = (layout.fingerprint(), seat.workers);
        let spec = RingSpec {
            order: Order::ByWorker,
            workers,
            ahead: 0,
            max_slabs: 1,
            cut_after: None,
        };
        let ring = Ring::shared(layout, spec)?;
        ring.request()?;
        let parts = (0..workers).map(|worker| ring.try_claim(worker));
        let parts = parts.collect::<Result<Option<Vec<_>>, _>>()?;
        let control = ControlSpec {
            fingerprint,
            workers,
            envs: seat.envs,
        };
        let (control, lanes) = ControlBlock::create(control).map_err(EnvError::failed)?;
        Ok(Self {
            seat,
            ring,
            parts: parts.ok_or(MemberError::Closed)?,
            control,
            lanes,
        })
    }

    /// Tells member `worker` where its seat is.
    fn frame(&self, worker: usize) -> Result<Frame, EnvError> {
        let frame = || -> Result<Frame, ProcessError> {
            let seat = RowsLayout {
                worker,
                ..self.seat.clone()
            };
            let mut frame = Frame::of(&ToWorker::Rows(Box::new(seat)))?;
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
    for (other, worker) in others.iter().zip(1..) {
        if other.num_envs != first.num_envs {
            return Err(EnvError::failed(CollectError::UnequalEnvs {
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
    for (leaf, spec) in leaves.iter().enumerate() {
        for_dtype!(spec.dtype, T => to.write(Key::<T>::new(leaf), from.get(Key::<T>::new(leaf))?)?);
    }
    Ok(())
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Members")
            .field("each", &self.staff.each)
            .finish_non_exhaustive()
    }
}
