//! A discrete simulation of actors that collect for learners on a cluster of Ray. Times are seconds, sizes bytes.
//!
//! An actor fills a batch on a core of its machine. The batch leaves through its machine's network, comes in through the learner's, and the
//! learner's thread takes it. An actor fills one batch ahead of the one that was not taken yet. After an interval, the
//! learner's thread publishes weights before it takes the next batch: one object, that each machine fetches once from a machine that has it, and one call for each actor. Every
//! station serves in the order of arrival. The learner of a single machine uses that machine's cores and no network.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
};

/// What was measured, or is assumed, of machines.
#[derive(Debug, Clone)]
pub(super) struct Costs {
    /// Time of the actor's core for each batch, beside the frames.
    pub(super) actor_call: f64,
    /// Time of the learner's thread for each batch.
    pub(super) learner_call: f64,
    /// Processor time of the learner's process for each batch, with the threads of Ray.
    pub(super) learner_process: f64,
    /// Time of the learner's thread for each actor that is told of new weights.
    pub(super) weights_call: f64,
    /// Bytes a second of a copy into or out of the object store.
    pub(super) copy: f64,
    /// Bytes a second of a machine's network, each way.
    pub(super) network: f64,
}

/// What is run.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) machines: usize,
    pub(super) cores: usize,
    pub(super) actors: usize,
    /// Cores that fill an actor's batch together.
    pub(super) workers: usize,
    pub(super) frames_per_batch: f64,
    pub(super) frame_bytes: f64,
    /// Time of a core for each frame.
    pub(super) frame_time: f64,
    pub(super) weight_bytes: f64,
    pub(super) weights_every: f64,
}

/// The outcome of a simulation.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Frames a second that the learner has taken.
    pub(super) rate: f64,
    /// Frames a second of the actors alone.
    pub(super) ideal: f64,
    /// Shares of the time in which each kind of station was busy.
    pub(super) busy: [(&'static str, f64); 4],
    /// Share of the time that the learner's thread has published weights.
    pub(super) publishing: f64,
    /// Time from the publication of weights until the last actor has them, without queues.
    pub(super) fan_out: f64,
}

/// Batches of each actor that are simulated; the first half is not counted.
const BATCHES: usize = 24;

/// Batches that an actor may fill before the first of them was taken.
const AHEAD: usize = 2;

/// How far the time of a batch is from its mean, at most.
const JITTER: f64 = 0.2;

/// A station that serves one at a time.
#[derive(Debug, Clone, Default)]
struct Station {
    free: f64,
    busy: f64,
}

impl Station {
    /// The time at which something is done that came at `now`.
    fn serve(&mut self, now: f64, time: f64) -> f64 {
        self.free = self.free.max(now) + time;
        self.busy += time;
        self.free
    }
}

/// The first of several stations that is free.
fn serve(stations: &mut [Station], now: f64, time: f64) -> f64 {
    let first = stations
        .iter_mut()
        .min_by(|one, other| one.free.total_cmp(&other.free));
    first.map_or(now, |station| station.serve(now, time))
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Filled(usize),
    Left(usize),
    Arrived(usize),
    Taken(usize),
}

/// An event and its time; the earliest is the greatest.
#[derive(Debug, Clone, Copy)]
struct At(f64, Event);

impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0)
    }
}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for At {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for At {}

#[derive(Debug)]
struct Cluster<'a> {
    costs: &'a Costs,
    job: &'a Job,
    events: BinaryHeap<At>,
    /// The cores of each machine, as many as can fill batches side by side.
    cores: Vec<Vec<Station>>,
    /// The network of each machine, outwards.
    out: Vec<Station>,
    learner_in: Station,
    learner: Station,
    /// Actors whose batches have arrived.
    waiting: VecDeque<usize>,
    is_taking: bool,
    published: f64,
    /// The learner's time for weights.
    publishing: f64,
    /// Batches of each actor that were begun and not taken.
    pending: Vec<usize>,
    /// Whether an actor is filling a batch.
    filling: Vec<bool>,
    random: u64,
}

/// Runs `job`, for one learner.
pub(super) fn simulate(costs: &Costs, job: &Job) -> Outcome {
    let count = job.machines * job.actors;
    let mut cluster = Cluster::new(costs, job);
    (0..count).for_each(|actor| cluster.begin(actor, 0.0));
    let (mut taken, mut half, mut now) = (0, 0.0, 0.0);
    let all = count * BATCHES;
    while taken < all
        && let Some(At(time, event)) = cluster.events.pop()
    {
        now = time;
        taken += usize::from(cluster.happen(now, event));
        if half == 0.0 && taken >= all / 2 {
            half = now;
        }
    }
    let frames = (taken - all / 2) as f64 * job.frames_per_batch;
    Outcome {
        rate: frames / (now - half).max(f64::MIN_POSITIVE),
        ideal: ideal(costs, job),
        busy: cluster.busy(now),
        publishing: cluster.publishing / now,
        fan_out: fan_out(costs, job),
    }
}

/// Frames a second of cores that do nothing else.
fn ideal(costs: &Costs, job: &Job) -> f64 {
    let slots = (job.cores / job.workers).max(1).min(job.actors);
    let batch = fill_time(costs, job);
    (job.machines * slots) as f64 * job.frames_per_batch / batch
}

/// Time of an actor for a batch.
fn fill_time(costs: &Costs, job: &Job) -> f64 {
    let bytes = job.frames_per_batch * job.frame_bytes;
    job.frames_per_batch * job.frame_time / job.workers as f64
        + costs.actor_call
        + bytes / costs.copy
}

/// A copy, rounds in which each machine that has the object serves one that has not, and calls.
fn fan_out(costs: &Costs, job: &Job) -> f64 {
    let copies = 2.0 * job.weight_bytes / costs.copy;
    let rounds = (job.machines as f64).log2().ceil();
    let network = rounds * job.weight_bytes / costs.network;
    copies + network + (job.machines * job.actors) as f64 * costs.weights_call
}

impl<'a> Cluster<'a> {
    fn new(costs: &'a Costs, job: &'a Job) -> Self {
        let count = job.machines * job.actors;
        let slots = (job.cores / job.workers).max(1);
        Self {
            costs,
            job,
            events: BinaryHeap::new(),
            cores: vec![vec![Station::default(); slots]; job.machines],
            out: vec![Station::default(); job.machines],
            learner_in: Station::default(),
            learner: Station::default(),
            waiting: VecDeque::new(),
            is_taking: false,
            published: 0.0,
            publishing: 0.0,
            pending: vec![0; count],
            filling: vec![false; count],
            random: 1,
        }
    }

    /// Begins a batch, if the actor may.
    fn begin(&mut self, actor: usize, now: f64) {
        if self.filling[actor] || self.pending[actor] == AHEAD {
            return;
        }
        self.filling[actor] = true;
        self.pending[actor] += 1;
        let time = fill_time(self.costs, self.job) * self.jitter();
        let machine = actor / self.job.actors;
        let done = serve(&mut self.cores[machine], now, time);
        self.events.push(At(done, Event::Filled(actor)));
    }

    /// Whether a batch was taken.
    fn happen(&mut self, now: f64, event: Event) -> bool {
        let bytes = self.job.frames_per_batch * self.job.frame_bytes;
        let is_remote = self.job.machines > 1;
        let travel = if is_remote {
            bytes / self.costs.network
        } else {
            0.0
        };
        match event {
            Event::Filled(actor) => {
                self.filling[actor] = false;
                self.begin(actor, now);
                let done = self.out[actor / self.job.actors].serve(now, travel);
                self.events.push(At(done, Event::Left(actor)));
            }
            Event::Left(actor) => {
                let done = self.learner_in.serve(now, travel);
                self.events.push(At(done, Event::Arrived(actor)));
            }
            Event::Arrived(actor) => {
                self.waiting.push_back(actor);
                if !self.is_taking {
                    self.take(now, bytes);
                }
            }
            Event::Taken(actor) => {
                self.pending[actor] -= 1;
                self.begin(actor, now);
                self.take(now, bytes);
                return true;
            }
        }
        false
    }

    /// Lets the learner's thread take the next batch. On the only machine, it takes a core's time from actors.
    fn take(&mut self, now: f64, bytes: f64) {
        let next = self.waiting.pop_front();
        self.is_taking = next.is_some();
        let Some(actor) = next else { return };
        let mut time = self.costs.learner_call + bytes / self.costs.copy;
        if now - self.published >= self.job.weights_every {
            self.published = now;
            let weights = self.pending.len() as f64 * self.costs.weights_call
                + self.job.weight_bytes / self.costs.copy;
            self.publishing += weights;
            time += weights;
        }
        let done = self.learner.serve(now, time);
        if self.job.machines == 1 {
            // One of the cores that fill a batch together.
            let cores = time - self.costs.learner_call + self.costs.learner_process;
            let share = cores / self.job.workers as f64;
            serve(&mut self.cores[0], now, share);
        }
        self.events.push(At(done, Event::Taken(actor)));
    }

    fn busy(&self, now: f64) -> [(&'static str, f64); 4] {
        let all: f64 = self.cores.iter().flatten().map(|core| core.busy).sum();
        let count = self.cores.iter().map(Vec::len).sum::<usize>();
        let out = self
            .out
            .iter()
            .map(|station| station.busy)
            .fold(0.0, f64::max);
        [
            ("cores of actors", all / count as f64 / now),
            ("network of an actor's machine", out / now),
            ("network of the learner", self.learner_in.busy / now),
            ("thread of the learner", self.learner.busy / now),
        ]
        .map(|(name, share)| (name, share.min(1.0)))
    }

    /// Around 1.
    fn jitter(&mut self) -> f64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let share = (self.random >> 40) as f64 / (1_u64 << 24) as f64;
        1.0 + JITTER * (2.0 * share - 1.0)
    }
}
