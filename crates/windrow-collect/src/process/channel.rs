//! How a worker of a process reaches its collector.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use windrow_peer::{ChildEnd, ControlBlock, ExchangeReader, ProcessError, WorkerLane};
use windrow_policy::Published;
use windrow_slab::{Layout, Part, RemoteRing, SlabError};

use super::live::LiveProbe;
use super::messages::{Answer, Command, Fill, Ready};
use super::weights::{ReceiveError, WeightReceiver};
use crate::error::BuildError;

/// The way from a worker to its collector: commands, memory for parts, and weights.
pub(super) trait Channel: Send {
    /// The next command; `None` once there are none.
    fn receive(&mut self) -> Option<Command>;

    /// The part that `fill` names.
    fn part(&mut self, fill: &Fill) -> Result<Part, SlabError>;

    /// The newest weights, unless they have the version `held`.
    fn newest_weights(&mut self, held: Option<i64>) -> Result<Option<Published>, ReceiveError>;

    /// Answers the last command, by a part where one was filled; `follow` messages come at once.
    /// Whether the collector can be reached.
    fn answer(&mut self, answer: Answer, part: Option<Part>, follow: usize) -> bool;
}

/// By memory that collector and worker share.
pub(super) struct SharedChannel {
    ring: Arc<RemoteRing>,
    lane: WorkerLane<Command, Answer>,
    weights: WeightReceiver,
}

impl SharedChannel {
    /// The channel of worker `worker`, in these files, and where it notes what it does.
    pub(super) fn open(
        end: &ChildEnd,
        worker: usize,
        ready: &Ready,
        files: Vec<OwnedFd>,
    ) -> Result<(Self, LiveProbe), BuildError> {
        let files = <[OwnedFd; 3]>::try_from(files);
        let [ring, control, weights] = files.map_err(|files| ProcessError::Attached {
            expected: 3,
            got: files.len(),
        })?;
        let layout = Layout::new(&ready.record, ready.shares.clone())?;
        let fingerprint = layout.fingerprint();
        let ring = RemoteRing::open(layout, end.shared_file(ring)?)?;
        let control = ControlBlock::open(control, fingerprint)?;
        let bell = Arc::clone(&ring);
        let reader = ExchangeReader::open(weights, worker)?;
        let channel = Self {
            lane: control.worker_lane(worker, move || bell.ring_bell())?,
            ring,
            weights: WeightReceiver::new(reader, ready.weights.clone()),
        };
        Ok((channel, LiveProbe::new(control.live_writer(worker)?)))
    }
}

impl Channel for SharedChannel {
    fn receive(&mut self) -> Option<Command> {
        self.lane.receive()
    }

    fn part(&mut self, fill: &Fill) -> Result<Part, SlabError> {
        self.ring.part(fill.slot, fill.part, fill.seq)
    }

    fn newest_weights(&mut self, held: Option<i64>) -> Result<Option<Published>, ReceiveError> {
        self.weights.newest(held)
    }

    fn answer(&mut self, answer: Answer, part: Option<Part>, _: usize) -> bool {
        if let Some(part) = part {
            part.commit();
        }
        self.lane.send(&answer).is_ok()
    }
}
