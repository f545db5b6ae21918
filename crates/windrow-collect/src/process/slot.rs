//! One worker in a process, as its collector sees it: the lane to it, and the part that it fills.

use std::sync::Arc;
use std::time::Duration;

use windrow_peer::Lane;
use windrow_slab::Part;

use super::messages::{Answer, Command, Fill, Specified};
use super::thread_state::Hang;
use crate::shared::Shared;
use crate::shared::commands::Resume;
use crate::shared::link::Progress;

/// One worker, as its collector sees it.
pub(super) struct WorkerSlot {
    pub(super) lane: Lane<Command, Answer>,
    /// The part that the worker fills.
    pub(super) part: Option<Part>,
    pub(super) state: SlotState,
    /// `None` between two processes, and after the last.
    pub(super) process: Option<WorkerProcess>,
    /// How far it had come with its last part.
    pub(super) progress: Progress,
    /// From where a process in the place of one that died goes on.
    pub(super) resume: Option<Resume>,
    /// How often environments and policy were made anew.
    pub(super) restarts: usize,
    /// Set while it is killed for not having moved.
    pub(super) hang: Option<Hang>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Its process makes environments and policy.
    Starting,
    /// It fills parts.
    Working,
    /// It has reported that a part is lost, and waits for a command.
    Waiting,
    /// It gets no more parts: the collector ends.
    Ending,
    /// It gets no more parts: it was lost, and the loss was reported.
    Lost,
}

/// A process that runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerProcess {
    /// 0 elsewhere.
    pub(super) pid: u32,
    /// The thread that calls environments and policy; that of `main` before the worker has said so.
    pub(super) thread: u32,
    /// Whether it answers SIGUSR2 with its stack.
    pub(super) shows_stack: bool,
}

impl WorkerProcess {
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            thread: pid,
            shows_stack: false,
        }
    }

    /// Its process on this machine.
    pub(super) fn own_pid(self) -> Option<u32> {
        (self.pid != 0).then_some(self.pid)
    }

    pub(super) fn specified(self, made: &Specified) -> Self {
        Self {
            thread: made.thread.unwrap_or(self.pid),
            shows_stack: made.shows_stack,
            ..self
        }
    }
}

impl WorkerSlot {
    pub(super) fn new(lane: Lane<Command, Answer>, process: Option<WorkerProcess>) -> Self {
        Self {
            lane,
            part: None,
            state: SlotState::Working,
            process,
            progress: Progress::default(),
            resume: None,
            restarts: 0,
            hang: None,
        }
    }

    /// Takes the worker's answer, if there is one.
    pub(super) fn poll_answer(&mut self, worker: usize, shared: &Shared) {
        match self.lane.try_receive() {
            Some(Ok(Answer::Filled {
                steps,
                progress,
                waited_ns,
            })) => {
                self.progress = progress;
                let waited = Duration::from_nanos(waited_ns);
                shared.reports.waited(worker, waited);
                if let Some(mut part) = self.part.take() {
                    part.shorten(steps);
                    shared.deliver(worker, part, progress);
                }
            }
            Some(Ok(Answer::Lost { progress })) => {
                self.progress = progress;
                shared.reports.advance(progress);
                self.part = None;
                if self.state == SlotState::Working {
                    self.state = SlotState::Waiting;
                }
            }
            // What cannot be read is no answer: the worker counts as hung.
            Some(Ok(Answer::Done) | Err(_)) | None => {}
        }
    }

    /// Whether it works and has nothing to do.
    pub(super) fn is_free(&self) -> bool {
        self.state == SlotState::Working && self.part.is_none() && self.lane.is_free()
    }

    /// Gives the worker, which has none, a part, if there is one.
    pub(super) fn assign(&mut self, worker: usize, shared: &Arc<Shared>) {
        // Where batches that are alive hold all memory, the consumer gets the error when it asks
        // for a batch.
        let Ok(Some(part)) = shared.ring.try_claim(worker) else {
            return;
        };
        let mut assignment = shared.assignment(worker, part);
        if let Some(resume) = self.resume.take()
            && assignment.commands.resume.is_none()
        {
            assignment.commands.resume = Some(resume);
        }
        if let Some(saved) = assignment.commands.resume {
            self.progress.next_frame = saved.frame;
            self.progress.next_traj_id = saved.traj_id;
        }
        self.send(Command::Fill(Fill {
            slot: assignment.part.slot(),
            part: assignment.part.index(),
            seq: assignment.part.seq(),
            share: assignment.share,
            commands: assignment.commands,
        }));
        self.part = Some(assignment.part);
    }

    /// Sends `command` to a worker that then works.
    pub(super) fn send(&mut self, command: Command) {
        self.state = match self.lane.send(&command) {
            Ok(()) => SlotState::Working,
            // It has an answer to give yet, which this side did not expect: it gets nothing more.
            Err(_) => SlotState::Ending,
        };
    }

    /// Lets the worker end, whose loss was reported.
    pub(super) fn end(&mut self) {
        self.state = SlotState::Lost;
        self.lane.close();
    }

    /// Frames and ids that a part of `steps` steps may have used are not used again.
    pub(super) fn skip(&mut self, steps: usize, total_envs: u64) {
        let lost = steps as u64 + 1;
        self.progress.next_frame += lost;
        self.progress.next_traj_id += (lost * total_envs).cast_signed();
    }

    /// Where a process in this worker's place goes on.
    pub(super) fn resumption(&self, seed: u64, total_envs: u64) -> Resume {
        let id = self.progress.next_traj_id.cast_unsigned();
        Resume {
            frame: self.progress.next_frame,
            // Ids tell environments apart: the first one is a multiple of their number.
            traj_id: id.next_multiple_of(total_envs).cast_signed(),
            seed,
        }
    }
}
