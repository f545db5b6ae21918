//! The control block: a header, and for each worker its lane, its place and its episodes.

mod lane;
mod words;

use std::sync::Arc;

#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(loom)]
pub use lane::Dies;
pub use lane::{Lane, WorkerLane};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ProcessError;
#[cfg(not(loom))]
use crate::shared::Area;
use crate::shared::{Item, Shared};
use words::{EpisodeWords, LaneWords};

/// What parent and workers agree on before they share a [`ControlBlock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlSpec {
    /// A number that both sides compute from what they must agree on, such as the layout of slabs.
    pub fingerprint: u64,
    /// Workers.
    pub workers: usize,
    /// Environments of each worker.
    pub envs: usize,
}

/// Where a worker is, as it says itself while it runs; the parent reads it when the worker is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// What the worker is doing; the numbers are the caller's.
    pub phase: u32,
    /// Step within the part.
    pub step: u32,
    /// Environment at work.
    pub env: u32,
    /// Grows with each change of the other three.
    pub beat: u32,
}

/// The episode that an environment is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Episode {
    /// Id of its trajectory.
    pub id: u64,
    /// Frame with which it began.
    pub began: u64,
}

/// Memory that a parent shares with its workers: one lane for each of them, their places and their
/// episodes.
#[derive(Debug)]
pub struct ControlBlock {
    #[cfg(not(loom))]
    file: windrow_slab::SharedFile,
    spec: ControlSpec,
    lanes: Arc<Shared<LaneWords>>,
    /// Of all environments of the first worker, then of the second.
    episodes: Arc<Shared<EpisodeWords>>,
}

impl ControlBlock {
    /// A block in memory that only those who get its descriptor can see, and the parent's side of
    /// each lane.
    ///
    /// # Errors
    /// [`ProcessError::NoMemory`] or [`ProcessError::Descriptors`] when the system has too little
    /// of either.
    #[cfg(not(loom))]
    pub fn create<C: Serialize, A: DeserializeOwned>(
        spec: ControlSpec,
    ) -> Result<(Self, Vec<Lane<C, A>>), ProcessError> {
        let bytes = words::bytes(&spec).unwrap_or(usize::MAX);
        let area = Area::create("control block", bytes)?;
        words::write_header(&area, &spec)?;
        let block = Self::over(area, spec)?;
        let lanes = block.lanes();
        Ok((block, lanes))
    }

    /// A block of loom's words.
    ///
    /// # Errors
    /// None.
    #[cfg(loom)]
    pub fn create<C: Serialize, A: DeserializeOwned>(
        spec: ControlSpec,
    ) -> Result<(Self, Vec<Lane<C, A>>), ProcessError> {
        let block = Self {
            spec,
            lanes: Arc::new(Shared::model(spec.workers)),
            episodes: Arc::new(Shared::model(spec.workers * spec.envs)),
        };
        let lanes = block.lanes();
        Ok((block, lanes))
    }

    /// The worker's view of the block behind `fd`.
    ///
    /// # Errors
    /// [`ProcessError::Foreign`] when it is no control block, or one with another `fingerprint`.
    #[cfg(not(loom))]
    pub fn open(fd: OwnedFd, fingerprint: u64) -> Result<Self, ProcessError> {
        let head = Area::open(fd, words::HEADER)?;
        let spec = words::read_header(&head, fingerprint)?;
        let bytes = words::bytes(&spec).unwrap_or(usize::MAX);
        let mapping = head.file.map(0, bytes);
        let mapping = mapping.map_err(crate::refused::refused("map the control block"))?;
        let (file, mapping) = (head.file, Arc::new(mapping));
        Self::over(Area { file, mapping }, spec)
    }

    #[cfg(not(loom))]
    fn over(area: Area, spec: ControlSpec) -> Result<Self, ProcessError> {
        let (lanes, episodes) = words::cut(&area, &spec)?;
        Ok(Self {
            file: area.file,
            spec,
            lanes: Arc::new(lanes),
            episodes: Arc::new(episodes),
        })
    }

    /// The parent's side of each lane.
    fn lanes<C: Serialize, A: DeserializeOwned>(&self) -> Vec<Lane<C, A>> {
        (0..self.spec.workers)
            .filter_map(|worker| {
                let words = self.lanes.item(worker)?;
                Some(Lane::new(worker, words, self.notes(worker).ok()?))
            })
            .collect()
    }

    /// The descriptor to send to a worker.
    #[must_use]
    #[cfg(not(loom))]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What both sides agreed on.
    #[must_use]
    pub fn spec(&self) -> ControlSpec {
        self.spec
    }

    /// The worker's side of its lane; `ring` is called after each answer and wakes the parent.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for a worker that the block does not have.
    pub fn worker_lane<C: DeserializeOwned, A: Serialize>(
        &self,
        worker: usize,
        ring: impl Fn() + Send + 'static,
    ) -> Result<WorkerLane<C, A>, ProcessError> {
        Ok(WorkerLane::new(worker, self.words(worker)?, Box::new(ring)))
    }

    /// Where the worker notes its place and its episodes.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for a worker that the block does not have.
    pub fn live_writer(&self, worker: usize) -> Result<LiveWriter, ProcessError> {
        self.notes(worker)
    }

    /// Where the worker was last; parts of two places may be mixed while it runs.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for a worker that the block does not have.
    pub fn place(&self, worker: usize) -> Result<Place, ProcessError> {
        Ok(self.words(worker)?.live.place())
    }

    /// The episode that an environment of the worker was in last.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for a worker or an environment that the block does not have.
    pub fn episode(&self, worker: usize, env: usize) -> Result<Episode, ProcessError> {
        let notes = self.notes(worker)?;
        let words = notes.of(env).ok_or(ProcessError::NoSuch {
            what: "environment",
            index: env,
            count: self.spec.envs,
        })?;
        Ok(words.episode())
    }

    /// Asks all workers to end: their [`receive`](WorkerLane::receive) gives `None` from now on,
    /// also where a message waits. Returns at once. [`Lane::reset`] takes it back for one lane.
    pub fn close(&self) {
        self.lanes.iter().for_each(LaneWords::close);
    }

    fn words(&self, worker: usize) -> Result<Item<LaneWords>, ProcessError> {
        self.lanes.item(worker).ok_or(ProcessError::NoSuch {
            what: "worker",
            index: worker,
            count: self.spec.workers,
        })
    }

    fn notes(&self, worker: usize) -> Result<LiveWriter, ProcessError> {
        Ok(LiveWriter {
            words: self.words(worker)?,
            episodes: Arc::clone(&self.episodes),
            first: worker * self.spec.envs,
            envs: self.spec.envs,
        })
    }
}

/// The worker's notes about itself: plain stores, cheap enough for each step.
#[derive(Debug, Clone)]
pub struct LiveWriter {
    words: Item<LaneWords>,
    episodes: Arc<Shared<EpisodeWords>>,
    /// The worker's first environment among those of all workers.
    first: usize,
    envs: usize,
}

impl LiveWriter {
    /// The worker does something else now.
    pub fn phase(&self, phase: u32) {
        self.words.live.phase(phase);
    }

    /// The worker begins this step of its part.
    pub fn step(&self, step: u32) {
        self.words.live.step(step);
    }

    /// The worker turns to this environment.
    pub fn env(&self, env: u32) {
        self.words.live.env(env);
    }

    /// An environment begins an episode. Ignored for an environment that the block does not have.
    pub fn episode(&self, env: usize, episode: Episode) {
        if let Some(words) = self.of(env) {
            words.set(episode);
        }
    }

    fn of(&self, env: usize) -> Option<&EpisodeWords> {
        (env < self.envs).then(|| &self.episodes[self.first + env])
    }

    /// As if no worker had written.
    fn clear(&self) {
        self.words.live.clear();
        (0..self.envs).for_each(|env| self.episode(env, Episode::default()));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    const SPEC: ControlSpec = ControlSpec {
        fingerprint: 0xfeed,
        workers: 3,
        envs: 2,
    };

    #[derive(Debug, Clone, Copy, PartialEq, Serialize, serde::Deserialize)]
    struct Message {
        kind: u32,
        words: [u64; 12],
    }

    type Lanes = Vec<Lane<Message, Message>>;

    fn message(kind: u32, first: u64) -> Message {
        let words = std::array::from_fn(|at| first + at as u64);
        Message { kind, words }
    }

    /// The block, as a process sees it that got the descriptor.
    fn again(block: &ControlBlock) -> ControlBlock {
        let fd = block.as_fd().try_clone_to_owned().unwrap();
        ControlBlock::open(fd, SPEC.fingerprint).unwrap()
    }

    #[test]
    fn messages_and_answers_cross_two_mappings_of_one_block() {
        let (block, mut lanes): (_, Lanes) = ControlBlock::create(SPEC).unwrap();
        let there = again(&block);
        assert_eq!(there.spec(), SPEC);
        let rung = Arc::new(AtomicU32::new(0));
        let ring = Arc::clone(&rung);
        let mut lane: WorkerLane<Message, Message> = there
            .worker_lane(1, move || _ = ring.fetch_add(1, Ordering::Relaxed))
            .unwrap();
        let worker = thread::spawn(move || {
            while let Some(mut message) = lane.receive() {
                message.words.reverse();
                lane.send(&message).unwrap();
            }
        });
        for round in 0..1000 {
            assert!(lanes[1].is_free());
            lanes[1]
                .send(&message(round, u64::from(round) << 40))
                .unwrap();
            let answer = loop {
                match lanes[1].try_receive() {
                    Some(answer) => break answer.unwrap(),
                    None => thread::yield_now(),
                }
            };
            let mut expected = message(round, u64::from(round) << 40);
            expected.words.reverse();
            assert_eq!(answer, expected);
            assert!(lanes[1].try_receive().is_none(), "an answer comes once");
        }
        block.close();
        worker.join().unwrap();
        assert_eq!(rung.load(Ordering::Relaxed), 1000);
        assert!(lanes[0].try_receive().is_none() && lanes[2].try_receive().is_none());
    }

    #[test]
    fn a_second_message_waits_for_the_answer_and_an_answer_for_a_message() {
        let (block, mut lanes): (_, Lanes) = ControlBlock::create(SPEC).unwrap();
        let mut worker: WorkerLane<Message, Message> = block.worker_lane(0, || ()).unwrap();
        assert!(matches!(
            worker.send(&message(1, 0)),
            Err(ProcessError::NotAsked { worker: 0 })
        ));
        lanes[0].send(&message(1, 0)).unwrap();
        let second = lanes[0].send(&message(2, 0));
        assert!(matches!(
            second,
            Err(ProcessError::Unanswered { worker: 0, sent: 1 })
        ));
        assert_eq!(
            worker.receive(),
            Some(message(1, 0)),
            "the first is still there"
        );
        worker.send(&message(3, 0)).unwrap();
        assert!(worker.send(&message(3, 0)).is_err(), "one answer each");
        assert!(
            lanes[0].send(&message(2, 0)).is_err(),
            "the answer was not taken"
        );
        assert_eq!(lanes[0].try_receive().unwrap().unwrap(), message(3, 0));
        lanes[0].send(&message(2, 0)).unwrap();
    }

    #[test]
    fn a_successor_gets_neither_old_messages_nor_old_places() {
        let (block, mut lanes): (_, Lanes) = ControlBlock::create(SPEC).unwrap();
        let notes = block.live_writer(2).unwrap();
        notes.phase(4);
        notes.step(17);
        notes.env(1);
        notes.episode(1, Episode { id: 9, began: 90 });
        notes.episode(2, Episode { id: 8, began: 80 });
        lanes[2].send(&message(1, 0)).unwrap();
        let mut dead: WorkerLane<Message, Message> = block.worker_lane(2, || ()).unwrap();
        assert_eq!(dead.receive(), Some(message(1, 0)));
        let place = Place {
            phase: 4,
            step: 17,
            env: 1,
            beat: 3,
        };
        assert_eq!(block.place(2).unwrap(), place);
        assert_eq!(block.episode(2, 1).unwrap(), Episode { id: 9, began: 90 });
        assert_eq!(block.episode(1, 0).unwrap(), Episode::default());
        lanes[2].close();
        let closed: WorkerLane<Message, Message> = block.worker_lane(2, || ()).unwrap();
        assert!(closed.is_closed());
        lanes[2].reset();
        assert_eq!(block.place(2).unwrap(), Place::default());
        assert_eq!(block.episode(2, 1).unwrap(), Episode::default());
        assert!(lanes[2].is_free());
        // The next message may be there before the successor is.
        lanes[2].send(&message(5, 0)).unwrap();
        let mut successor = again(&block).worker_lane(2, || ()).unwrap();
        assert_eq!(successor.receive(), Some(message(5, 0)));
        successor.send(&message(6, 0)).unwrap();
        assert_eq!(lanes[2].try_receive().unwrap().unwrap(), message(6, 0));
    }

    #[test]
    fn what_does_not_exist_or_is_something_else_is_named() {
        let (block, _): (_, Lanes) = ControlBlock::create(SPEC).unwrap();
        let error = block.place(3).unwrap_err().to_string();
        assert_eq!(error, "worker 3 does not exist: there are 3");
        let error = block.episode(2, 2).unwrap_err().to_string();
        assert_eq!(error, "environment 2 does not exist: there are 2");
        let open = |fingerprint| {
            ControlBlock::open(block.as_fd().try_clone_to_owned().unwrap(), fingerprint)
        };
        let error = open(0xbeef).unwrap_err().to_string();
        assert!(
            error.contains("expected fingerprint 0xbeef, got 0xfeed"),
            "{error}"
        );
        let exchange = crate::Exchange::create(1, 8).unwrap();
        let fd = exchange.as_fd().try_clone_to_owned().unwrap();
        let error = ControlBlock::open(fd, 0xfeed).unwrap_err().to_string();
        assert!(error.contains("expected magic"), "{error}");
    }

    #[test]
    fn a_block_beyond_all_memory_is_refused() {
        let spec = ControlSpec {
            envs: usize::MAX / 4,
            ..SPEC
        };
        let error = ControlBlock::create::<(), ()>(spec).unwrap_err();
        assert!(matches!(error, ProcessError::NoMemory { .. }), "{error}");
    }
}
