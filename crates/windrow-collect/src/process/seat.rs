//! One worker in a process, as its collector sees it: the lane to it, and the part that it fills.

use std::sync::Arc;
use std::time::Duration;

use windrow_peer::Lane;
use windrow_slab::Part;

use super::frozen::Frozen;
use super::messages::{Answer, Command, Fill};
use crate::shared::Shared;
use crate::shared::desk::Progress;
use crate::shared::orders::Resume;

/// One worker, as its collector sees it.
pub(super) struct Seat {
    pub(super) lane: Lane<Command, Answer>,
    /// The part that the worker fills.
    pub(super) part: Option<Part>,
    pub(super) stage: Stage,
    /// How far it had come with its last part.
    pub(super) progress: Progress,
    /// From where a process in the place of one that died goes on.
    pub(super) resume: Option<Resume>,
    /// How often environments and policy were made anew.
    pub(super) restarts: usize,
    /// Set while it is killed for not having moved.
    pub(super) frozen: Option<Frozen>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its process makes environments and policy.
    Starting,
    /// It fills parts.
    Working,
    /// It has reported that a part is lost, and waits to hear how to go on.
    Waiting,
    /// It gets no more parts: the collector ends.
    Ending,
    /// It gets no more parts: it was lost, and the loss was told.
    Lost,
}

impl Seat {
    pub(super) fn new(lane: Lane<Command, Answer>) -> Self {
        Self {
            lane,
            part: None,
            stage: Stage::Working,
            progress: Progress::default(),
            resume: None,
            restarts: 0,
            frozen: None,
        }
    }

    /// Takes the worker's answer, if there is one.
    pub(super) fn hear(&mut self, worker: usize, shared: &Shared) {
        match self.lane.try_receive() {
            Some(Ok(Answer::Filled {
                steps,
                progress,
                waited_ns,
            })) => {
                self.progress = progress;
                shared
                    .reports
                    .waited(worker, Duration::from_nanos(waited_ns));
                if let Some(mut part) = self.part.take() {
                    part.shorten(steps);
                    shared.deliver(worker, part, progress);
                }
            }
            Some(Ok(Answer::Lost { progress })) => {
                self.progress = progress;
                shared.reports.advance(progress);
                self.part = None;
                if self.stage == Stage::Working {
                    self.stage = Stage::Waiting;
                }
            }
            // What cannot be read is no answer: the worker counts as frozen.
            Some(Ok(Answer::Done) | Err(_)) | None => {}
        }
    }

    /// Whether it works and has nothing to do.
    pub(super) fn is_free(&self) -> bool {
        self.stage == Stage::Working && self.part.is_none() && self.lane.is_free()
    }

    /// Gives the worker, which has none, a part, if there is one.
    pub(super) fn employ(&mut self, worker: usize, shared: &Arc<Shared>) {
        // Where batches that are alive hold all memory, the consumer is told when it asks for a batch.
        let Ok(Some(part)) = shared.ring.try_claim(worker) else {
            return;
        };
        let mut job = shared.job(worker, part);
        if let Some(resume) = self.resume.take()
            && job.orders.resume.is_none()
        {
            job.orders.resume = Some(resume);
        }
        if let Some(saved) = job.orders.resume {
            self.progress.next_frame = saved.frame;
            self.progress.next_traj_id = saved.traj_id;
        }
        let fill = Fill {
            slot: job.part.slot(),
            part: job.part.index(),
            seq: job.part.seq(),
            share: job.share,
            orders: job.orders,
        };
        self.stage = self.send(Command::Fill(fill), Stage::Working);
        self.part = Some(job.part);
    }

    /// Sends `command`; the stage that follows.
    pub(super) fn send(&mut self, command: Command, then: Stage) -> Stage {
        match self.lane.send(&command) {
            Ok(()) => then,
            // It has an answer to give yet, which this side did not expect: it is asked for nothing more.
            Err(_) => Stage::Ending,
        }
    }

    /// Lets the worker end, whose loss was told.
    pub(super) fn end(&mut self) {
        self.stage = Stage::Lost;
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
