//! Every interleaving of a parent and its workers, on lanes and on exchanges: run with
//! `cargo xtask models`.
//!
//! Threads stand for processes. Messages and weights lie in loom cells, so two owners at once, or a
//! read that is not ordered behind its write, fail the model. A worker that dies is a thread that
//! ends in the middle of an answer.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;
use serde::{Deserialize, Serialize};
use windrow_peer::{
    ControlBlock, ControlSpec, Dies, Exchange, ExchangeReader, Lane, Target, WorkerLane,
};
use windrow_slab::Bell;

/// All interleavings with at most `preemptions` switches away from a thread that could go on.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Message {
    kind: u32,
    words: [u64; 12],
}

fn message(kind: u32) -> Message {
    Message {
        kind,
        words: [u64::from(kind); 12],
    }
}

/// A block of one worker, the parent's side of its lane, and the bell that the worker rings.
struct Parent {
    block: ControlBlock,
    lane: Lane<Message, Message>,
    bell: Arc<Bell>,
}

impl Parent {
    fn new() -> Self {
        let spec = ControlSpec {
            fingerprint: 0,
            workers: 1,
            envs: 1,
        };
        let (block, mut lanes) = ControlBlock::create(spec).unwrap();
        Self {
            block,
            lane: lanes.remove(0),
            bell: Arc::new(Bell::new()),
        }
    }

    fn worker_lane(&self) -> WorkerLane<Message, Message> {
        let bell = Arc::clone(&self.bell);
        self.block.worker_lane(0, move || bell.ring()).unwrap()
    }

    /// Starts a worker that answers each message with the next number until its lane is closed; it
    /// gives the number of its answers.
    fn worker(&self) -> thread::JoinHandle<u32> {
        let mut lane = self.worker_lane();
        thread::spawn(move || {
            let mut answers = 0;
            while let Some(got) = lane.receive() {
                assert_eq!(got, message(got.kind));
                lane.send(&message(got.kind + 1)).unwrap();
                answers += 1;
            }
            answers
        })
    }

    fn answer(&mut self) -> Message {
        loop {
            let rings = self.bell.count();
            if let Some(answer) = self.lane.try_receive() {
                return answer.unwrap();
            }
            self.bell.wait(rings, None);
        }
    }
}

#[test]
fn messages_and_answers_alternate_and_none_is_lost() {
    model(2, || {
        let mut parent = Parent::new();
        let worker = parent.worker();
        for kind in [10, 20] {
            parent.lane.send(&message(kind)).unwrap();
            assert_eq!(parent.answer(), message(kind + 1));
        }
        parent.lane.close();
        assert_eq!(worker.join().unwrap(), 2);
    });
}

#[test]
fn a_message_may_be_there_before_the_worker_is() {
    model(3, || {
        let mut parent = Parent::new();
        parent.lane.send(&message(1)).unwrap();
        let worker = parent.worker();
        assert_eq!(parent.answer(), message(2));
        parent.block.close();
        assert_eq!(worker.join().unwrap(), 1);
    });
}

#[test]
fn a_closed_lane_ends_a_worker_wherever_it_waits() {
    model(3, || {
        let mut parent = Parent::new();
        let worker = parent.worker();
        parent.lane.send(&message(1)).unwrap();
        parent.lane.close();
        let answers = worker.join().unwrap();
        assert_eq!(parent.lane.try_receive().is_some(), answers == 1);
    });
}

#[test]
fn a_death_within_an_answer_leaves_all_of_it_or_nothing() {
    for dies in [Dies::Before, Dies::Written, Dies::Published] {
        model(2, move || {
            let mut parent = Parent::new();
            let mut lane = parent.worker_lane();
            let dead = thread::spawn(move || {
                let got = lane.receive().unwrap();
                lane.die_sending(&message(got.kind + 1), dies).unwrap();
            });
            parent.lane.send(&message(1)).unwrap();
            let early = parent.lane.try_receive();
            dead.join().unwrap();
            let answer = early.or_else(|| parent.lane.try_receive());
            let answer = answer.map(Result::unwrap);
            let expected = (dies == Dies::Published).then(|| message(2));
            assert_eq!(answer, expected);

            parent.lane.reset();
            let successor = parent.worker();
            parent.lane.send(&message(5)).unwrap();
            assert_eq!(parent.answer(), message(6));
            parent.lane.close();
            assert_eq!(successor.join().unwrap(), 1);
        });
    }
}

/// What all threads of the parent have of a worker.
struct Seat {
    lane: Lane<Message, Message>,
    /// Answers that were taken.
    answers: Vec<Message>,
    dead: bool,
}

impl Seat {
    fn hear(&mut self) {
        self.answers
            .extend(self.lane.try_receive().map(Result::unwrap));
    }
}

/// Between a message and its reading, between that and each step of the answer, and between the
/// answer and its taking.
#[test]
fn whoever_waits_hears_of_a_death_and_of_the_answer_before_it_once() {
    let ends = [Dies::Before, Dies::Written, Dies::Published].map(Some);
    for dies in ends.into_iter().chain([None]) {
        model(2, move || {
            let mut parent = Parent::new();
            parent.lane.send(&message(1)).unwrap();
            let mut worker = parent.worker_lane();
            let dead = thread::spawn(move || {
                if let Some(dies) = dies {
                    let got = worker.receive().unwrap();
                    worker.die_sending(&message(got.kind + 1), dies).unwrap();
                }
            });
            let Parent { block, lane, bell } = parent;
            let seat = Arc::new(Mutex::new(Seat {
                lane,
                answers: Vec::new(),
                dead: false,
            }));
            let supervisor = {
                let (seat, bell) = (Arc::clone(&seat), Arc::clone(&bell));
                thread::spawn(move || {
                    dead.join().unwrap();
                    let mut seat = seat.lock().unwrap();
                    seat.hear();
                    seat.lane.reset();
                    seat.dead = true;
                    drop(seat);
                    bell.ring();
                })
            };
            loop {
                let rings = bell.count();
                let mut seat = seat.lock().unwrap();
                seat.hear();
                if seat.dead {
                    break;
                }
                drop(seat);
                bell.wait(rings, None);
            }
            supervisor.join().unwrap();

            let mut seat = seat.lock().unwrap();
            let answered = (dies == Some(Dies::Published)).then(|| message(2));
            assert_eq!(seat.answers, Vec::from_iter(answered));
            assert!(seat.lane.is_free());
            let mut successor: WorkerLane<Message, Message> =
                block.worker_lane(0, move || bell.ring()).unwrap();
            seat.lane.send(&message(5)).unwrap();
            assert_eq!(successor.receive(), Some(message(5)));
        });
    }
}

fn publish(exchange: &Exchange, to: Target, version: i64) {
    let write = |bytes: &mut [u8]| bytes.fill(version as u8);
    exchange.publish(to, version, write).unwrap();
}

/// The version that a reader gets, if it gets one, once all bytes were seen to be of this version.
fn look(reader: &mut ExchangeReader, held: Option<i64>) -> Option<i64> {
    let pinned = reader.newest(held).unwrap()?;
    // The publisher may come while the bytes are held.
    thread::yield_now();
    assert_eq!(pinned.bytes(), [pinned.version() as u8; 2]);
    Some(pinned.version())
}

/// Looks `times` times; what it has then.
fn worker(exchange: &Exchange, id: usize, times: usize) -> thread::JoinHandle<Option<i64>> {
    let mut reader = exchange.reader(id).unwrap();
    thread::spawn(move || {
        let mut held = None;
        for _ in 0..times {
            if let Some(version) = look(&mut reader, held) {
                assert!(held.is_none_or(|held| held < version));
                held = Some(version);
            }
        }
        held
    })
}

#[test]
fn a_reader_sees_whole_versions_that_only_grow() {
    model(3, || {
        let exchange = Exchange::create(1, 2).unwrap();
        publish(&exchange, Target::All, 1);
        let worker = worker(&exchange, 0, 2);
        (2..=4).for_each(|version| publish(&exchange, Target::All, version));
        assert!(worker.join().unwrap().is_some());
        assert_eq!(look(&mut exchange.reader(0).unwrap(), None), Some(4));
    });
}

#[test]
fn two_readers_see_what_was_published_for_them() {
    model(2, || {
        let exchange = Exchange::create(2, 2).unwrap();
        let workers = [worker(&exchange, 0, 1), worker(&exchange, 1, 1)];
        publish(&exchange, Target::All, 1);
        publish(&exchange, Target::Worker(1), 2);
        publish(&exchange, Target::Worker(1), 3);
        let [first, second] = workers.map(|worker| worker.join().unwrap());
        assert!(first.is_none_or(|version| version == 1));
        assert!(second.is_none_or(|version| version <= 3));
        assert_eq!(look(&mut exchange.reader(0).unwrap(), None), Some(1));
        assert_eq!(look(&mut exchange.reader(1).unwrap(), None), Some(3));
    });
}

#[test]
fn two_publishers_take_turns() {
    model(2, || {
        let exchange = Arc::new(Exchange::create(1, 2).unwrap());
        let worker = worker(&exchange, 0, 1);
        let other = {
            let exchange = Arc::clone(&exchange);
            thread::spawn(move || publish(&exchange, Target::All, 1))
        };
        publish(&exchange, Target::All, 2);
        other.join().unwrap();
        worker.join().unwrap();
        assert!(look(&mut exchange.reader(0).unwrap(), None).is_some());
    });
}

#[test]
fn a_dead_reader_keeps_its_buffer_until_it_is_known_to_be_dead() {
    model(3, || {
        let exchange = Exchange::create(1, 2).unwrap();
        publish(&exchange, Target::All, 1);
        let mut reader = exchange.reader(0).unwrap();
        let dead = thread::spawn(move || {
            let pinned = reader.newest(None).unwrap().unwrap();
            assert_eq!(pinned.bytes(), [pinned.version() as u8; 2]);
            std::mem::forget(pinned);
        });
        publish(&exchange, Target::All, 2);
        publish(&exchange, Target::All, 3);
        dead.join().unwrap();
        exchange.unpin_dead(0).unwrap();
        (4..=6).for_each(|version| publish(&exchange, Target::All, version));
        assert_eq!(look(&mut exchange.reader(0).unwrap(), None), Some(6));
    });
}
