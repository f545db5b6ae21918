//! Who has asked for what: each request is done once, and its answer repeated.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use windrow_sync::unpoisoned;

use super::lock;
use super::session::Seat;
use crate::protocol::{Answer, Parting, bare};
use windrow_peer::net::Frame;

/// All producers that the server knows.
pub(super) struct Producers {
    known: Mutex<HashMap<u128, Arc<Producer>>>,
    /// How long one without a connection stays known.
    memory: Duration,
    /// Most of them. There are fewer connections, each with one producer, so that one without a
    /// connection can always go.
    most: usize,
    /// Most bytes of the answers to those without a connection.
    most_bytes: usize,
}

/// A client: its requests, one at a time, numbered from 1 on.
#[derive(Default)]
pub(super) struct Producer {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Default)]
struct State {
    /// The last request that was done.
    last: u64,
    /// Its answer; `None` for one that changes nothing and is done again.
    answer: Option<Arc<Frame>>,
    busy: bool,
    /// Number of the attempt that came last: those before it do not wait any more.
    attempt: u64,
    seat: Option<Seat>,
    connections: usize,
    left: Option<Instant>,
}

impl Producers {
    pub(super) fn new(memory: Duration, most: usize, most_bytes: usize) -> Self {
        Self {
            known: Mutex::default(),
            memory,
            most,
            most_bytes,
        }
    }

    /// The producer `id`, and its last request that was done; `None` for one that says it is known,
    /// and is not.
    pub(super) fn enter(&self, id: u128, says_known: bool) -> Option<(Arc<Producer>, u64)> {
        let mut known = lock(&self.known);
        // Dropped after the lock is: their policies may take long.
        let mut old = self.make_room(&mut known, 0);
        if !known.contains_key(&id) {
            if says_known {
                return None;
            }
            old.extend(self.make_room(&mut known, 1));
        }
        let producer = Arc::clone(known.entry(id).or_default());
        let mut state = lock(&producer.state);
        state.connections += 1;
        state.left = None;
        let last = state.last;
        drop((state, known, old));
        Some((producer, last))
    }

    /// A connection of `producer` has ended.
    pub(super) fn leave(&self, producer: &Producer) {
        producer.leave();
        let mut known = lock(&self.known);
        let old = self.make_room(&mut known, 0);
        drop((known, old));
    }

    /// Forgets those that have been without a connection for too long, and of the others without
    /// one those that left first, until there is room for `more`, and for the answers of all that
    /// stay.
    fn make_room(
        &self,
        known: &mut HashMap<u128, Arc<Producer>>,
        more: usize,
    ) -> Vec<Arc<Producer>> {
        let away = known
            .iter()
            .filter_map(|(id, producer)| Some((producer.away()?, *id)));
        let mut away: Vec<_> = away.collect();
        away.sort_unstable();
        let mut bytes: usize = away.iter().map(|((_, bytes), _)| bytes).sum();
        let mut old = Vec::new();
        for ((left, own), id) in away {
            let fits = known.len() + more <= self.most && bytes <= self.most_bytes;
            if fits && left.elapsed() < self.memory {
                break;
            }
            bytes -= own;
            old.extend(known.remove(&id));
        }
        old
    }

    /// Forgets the producer `id`.
    pub(super) fn remove(&self, id: u128) {
        let removed = lock(&self.known).remove(&id);
        drop(removed);
    }
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Frame(Arc<Frame>),
    /// Weights, which travel in pieces.
    Weights {
        seq: u64,
        version: i64,
        bytes: Arc<Vec<u8>>,
    },
    /// Nobody waits for one.
    Nothing,
}

/// How a request is done.
pub(super) enum Done {
    /// It changes something: its answer is kept.
    Once(Frame),
    /// It only reads.
    Again(Reply),
}

impl Producer {
    /// Since when it has no connection, and the bytes of the answer that is kept for it.
    fn away(&self) -> Option<(Instant, usize)> {
        let state = lock(&self.state);
        Some((
            state.left?,
            state.answer.as_ref().map_or(0, |answer| answer.len()),
        ))
    }

    /// Whether request `seq` was done.
    pub(super) fn has_done(&self, seq: u64) -> bool {
        seq <= lock(&self.state).last
    }

    fn leave(&self) {
        let mut state = lock(&self.state);
        state.connections -= 1;
        if state.connections == 0 {
            state.left = Some(Instant::now());
        }
    }

    /// The answer to request `seq`, which `work` does unless it was done. Whether it was.
    ///
    /// # Errors
    /// When the request is not the next; when one before it is still at work after `patience`, or
    /// has been asked for anew elsewhere.
    pub(super) fn once(
        &self,
        seq: u64,
        patience: Duration,
        work: impl FnOnce(&mut Option<Seat>) -> Done,
    ) -> Result<(Reply, bool), Parting> {
        let mut state = lock(&self.state);
        state.attempt += 1;
        let (mine, deadline) = (state.attempt, Instant::now() + patience);
        self.free.notify_all();
        while state.busy {
            let left = deadline.checked_duration_since(Instant::now());
            let Some(left) = left.filter(|_| state.attempt == mine) else {
                return Err(Parting::Again(
                    "an earlier request of this client is still at work".to_owned(),
                ));
            };
            let waited = self.free.wait_timeout(state, left);
            state = unpoisoned(waited).0;
        }
        match &state.answer {
            _ if seq == state.last + 1 => {}
            Some(answer) if seq == state.last => {
                return Ok((Reply::Frame(Arc::clone(answer)), true));
            }
            None if seq == state.last => {}
            // A copy that was late: nobody waits for it.
            _ if seq < state.last => return Ok((Reply::Nothing, true)),
            _ => {
                let expected = state.last + 1;
                return Err(Parting::Misused(format!(
                    "expected request {expected} of this client, got {seq}"
                )));
            }
        }
        state.busy = true;
        let mut seat = state.seat.take();
        drop(state);
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut seat)));
        let (answer, reply) = match done {
            Ok(Done::Once(frame)) => {
                let answer = Arc::new(frame);
                (Some(Arc::clone(&answer)), Ok(Reply::Frame(answer)))
            }
            Ok(Done::Again(reply)) => (None, Ok(reply)),
            Err(panic) => {
                // The seat may be half changed, and is not used again.
                seat = None;
                let reason = "the server panicked while it did this request";
                let answer = bare(seq, &Answer::Failed(reason.to_owned()));
                (Some(Arc::new(answer)), Err(panic))
            }
        };
        let mut state = lock(&self.state);
        (state.busy, state.seat, state.last) = (false, seat, seq);
        state.answer = answer;
        drop(state);
        self.free.notify_all();
        match reply {
            Ok(reply) => Ok((reply, false)),
            // The panic ends the connection. On its next one, the client gets the answer above.
            Err(panic) => resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn answer(seq: u64) -> Done {
        let version = seq.cast_signed();
        Done::Once(bare(seq, &Answer::Acted { version }))
    }

    fn said(reply: &Reply) -> Answer {
        match reply {
            Reply::Frame(frame) => frame.parse().unwrap(),
            other => panic!("expected a frame, got {other:?}"),
        }
    }

    #[test]
    fn a_request_that_comes_again_is_answered_and_not_done() {
        let producer = Producer::default();
        assert!(!producer.once(1, SOON, |_| answer(1)).unwrap().1);
        let (reply, was_done) = producer.once(1, SOON, |_| unreachable!()).unwrap();
        assert!(was_done && said(&reply) == Answer::Acted { version: 1 });
        assert!(!producer.once(2, SOON, |_| answer(2)).unwrap().1);
        let (late, _) = producer.once(1, SOON, |_| unreachable!()).unwrap();
        assert!(matches!(late, Reply::Nothing));
        let gap = producer.once(4, SOON, |_| unreachable!()).unwrap_err();
        let expected = "expected request 3 of this client, got 4".to_owned();
        assert_eq!(gap, Parting::Misused(expected));
        // One that only reads is done again, and counts.
        for _ in 0..2 {
            let read = Done::Again(Reply::Nothing);
            assert!(!producer.once(3, SOON, |_| read).unwrap().1);
        }
        assert!(!producer.once(4, SOON, |_| answer(4)).unwrap().1);
    }

    #[test]
    fn a_panic_goes_on_and_is_the_answer_to_the_same_request() {
        let producer = Producer::default();
        let once = || producer.once(1, SOON, |_| panic!("oh"));
        catch_unwind(AssertUnwindSafe(once)).unwrap_err();
        let (reply, was_done) = once().unwrap();
        assert!(was_done);
        match said(&reply) {
            Answer::Failed(reason) => assert!(reason.contains("panicked"), "{reason}"),
            other => panic!("expected a failure, got {other:?}"),
        }
        assert!(!producer.once(2, SOON, |_| answer(2)).unwrap().1);
    }

    #[test]
    fn the_newest_attempt_waits_for_one_at_work_and_those_before_it_give_up() {
        let producer = Producer::default();
        let (begun, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                producer.once(1, SOON, |_| {
                    begun.wait();
                    end.wait();
                    answer(1)
                })
            });
            begun.wait();
            let second = scope.spawn(|| producer.once(1, SOON, |_| unreachable!()));
            while lock(&producer.state).attempt < 2 {
                std::thread::yield_now();
            }
            let third = scope.spawn(|| producer.once(1, SOON, |_| unreachable!()));
            assert!(second.join().unwrap().is_err());
            end.wait();
            assert!(third.join().unwrap().unwrap().1);
            assert!(!first.join().unwrap().unwrap().1);
        });
    }

    #[test]
    fn who_was_silent_for_long_is_forgotten() {
        let producers = Producers::new(Duration::ZERO, 2, 1000);
        assert!(producers.enter(1, true).is_none());
        let (first, _) = producers.enter(1, false).unwrap();
        first.once(1, SOON, |_| answer(1)).unwrap();
        let (again, last) = producers.enter(1, true).unwrap();
        assert_eq!(last, 1);
        producers.leave(&first);
        assert!(producers.enter(1, true).is_some());
        (0..2).for_each(|_| producers.leave(&again));
        assert!(producers.enter(1, true).is_none());
        assert!(producers.enter(3, false).is_some());
        producers.remove(3);
        assert!(producers.enter(3, true).is_none());
    }

    #[test]
    fn who_left_first_is_forgotten_for_those_who_come() {
        let producers = Producers::new(SOON, 3, 1000);
        let enter = |id| producers.enter(id, false).unwrap().0;
        let stays = enter(0);
        for id in 1..=1000 {
            producers.leave(&enter(id));
        }
        let known = |id| producers.enter(id, true).map(|(known, _)| known);
        assert!(known(998).is_none());
        // Whoever comes back needs no room.
        for id in [999, 1000] {
            let back = known(id).unwrap();
            producers.leave(&back);
        }
        producers.leave(&stays);
        assert!(known(0).is_some());
    }

    #[test]
    fn answers_to_those_who_have_gone_have_a_limit_in_total() {
        let producers = Producers::new(SOON, 1000, 10_000);
        let acted = Answer::Acted { version: 0 };
        let large = || Done::Once(Frame::of(1, &acted, vec![0; 4000]));
        let clients = (0..5).map(|id| producers.enter(id, false).unwrap().0);
        let clients: Vec<_> = clients.collect();
        for client in &clients {
            client.once(1, SOON, |_| large()).unwrap();
        }
        // Those that are there keep theirs.
        for client in &clients[..4] {
            producers.leave(client);
        }
        let known: Vec<_> = (0..5)
            .map(|id| producers.enter(id, true).is_some())
            .collect();
        assert_eq!(known, [false, false, true, true, true]);
    }
}
