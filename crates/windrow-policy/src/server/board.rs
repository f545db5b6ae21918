//! Where clients leave their requests and find the answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_slab::{LeafSpec, RowBlock};

use super::ServerConfig;
use super::gather::{Forwards, Front, Next, Pace, most_rows, next};
use super::serve::Server;
use super::stats::Tally;
use crate::{EnvRows, ExplorationType, PolicyError, PolicyIn};

/// Travels from a client to the server and back, so that its rows have one owner at any time.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) client: usize,
    pub(super) obs: RowBlock,
    pub(super) envs: EnvRows,
    pub(super) exploration: ExplorationType,
    /// The actions.
    pub(super) out: RowBlock,
    posted: Duration,
    /// The version that acted.
    pub(super) version: i64,
    /// Where its client will probably wait for the next answer.
    pub(super) side: Side,
    /// Why there are no actions.
    pub(super) failure: Option<PolicyError>,
}

impl Request {
    pub(super) fn new(
        client: usize,
        rows: usize,
        obs: &[LeafSpec],
        columns: &[LeafSpec],
    ) -> Result<Self, PolicyError> {
        Ok(Self {
            client,
            obs: RowBlock::new(obs, rows)?,
            envs: EnvRows::new(0, Vec::new()),
            exploration: ExplorationType::Random,
            out: RowBlock::new(columns, rows)?,
            posted: Duration::ZERO,
            version: 0,
            side: Side::Left,
            failure: None,
        })
    }

    /// Takes a copy of `input`.
    pub(super) fn fill(&mut self, input: &PolicyIn<'_>) -> Result<(), PolicyError> {
        self.obs.rows_mut().copy_from(input.obs)?;
        self.envs.clear();
        self.envs.append(input.envs);
        self.exploration = input.exploration;
        Ok(())
    }

    pub(super) fn rows(&self) -> usize {
        self.envs.len()
    }
}

#[derive(Debug)]
struct Client {
    pace: Pace,
    /// Where its batch was begun, while it is evaluated.
    evaluated: Option<Side>,
    answer: Option<Request>,
}

/// One of the two queues in which clients wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// All that the server and its clients share; small, and locked for moments.
pub(super) struct Board {
    config: ServerConfig,
    began: Instant,
    /// By their numbers; `None` for one that has left.
    clients: Vec<Option<Client>>,
    /// In the order in which they came.
    queue: VecDeque<Request>,
    queued_rows: usize,
    /// With how many rows somebody is to look.
    wanted: usize,
    forwards: Forwards,
    tally: Tally,
    /// Whether weights of the same version may be others now.
    look_again: bool,
    /// Who looks again at a time, a client or the thread of the server, and the time: one of those that wait is enough.
    alarm: Option<(Option<usize>, Duration)>,
    /// On which side clients wait now; batches begin on sides in turn, so that an answer wakes nobody whose request came later.
    side: Side,
    /// The server, while no batch is evaluated.
    pub(super) idle: Option<Box<Server>>,
    /// Whether clients may evaluate, or only the thread of the server.
    movable: bool,
    /// Whether there is a policy that can act, or still does.
    pub(super) running: bool,
    ended: Option<Arc<str>>,
}

/// What the client does next that has posted a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Posted {
    /// Looks whether it is to evaluate.
    Look,
    /// Wakes the thread of the server, which is to look.
    Wake,
    /// Waits: somebody else has looked, or will.
    Wait,
}

/// What there is to do.
pub(super) enum Turn {
    /// The server has a batch, which is to be evaluated. Whether weights of the same version may be others now, and the time.
    Evaluate {
        server: Box<Server>,
        look_again: bool,
        begun: Duration,
        side: Side,
    },
    /// The thread of the server is to be woken.
    Wake,
    /// Nothing before then, unless somebody wakes the one who asks.
    Wait { until: Option<Duration> },
}

impl Board {
    pub(super) fn new(config: ServerConfig) -> Self {
        Self {
            config,
            began: Instant::now(),
            clients: Vec::new(),
            queue: VecDeque::new(),
            queued_rows: 0,
            wanted: 1,
            forwards: Forwards::default(),
            tally: Tally::default(),
            look_again: false,
            alarm: None,
            side: Side::Left,
            idle: None,
            movable: false,
            running: false,
            ended: None,
        }
    }

    /// Time since the server began.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The number of a new client with `rows` rows.
    pub(super) fn join(&mut self, rows: usize) -> usize {
        let client = Client {
            pace: Pace::of(rows),
            evaluated: None,
            answer: None,
        };
        let free = self.clients.iter().position(Option::is_none);
        let number = free.unwrap_or(self.clients.len());
        match free {
            Some(free) => self.clients[free] = Some(client),
            None => self.clients.push(Some(client)),
        }
        number
    }

    pub(super) fn leave(&mut self, client: usize) {
        self.clients[client] = None;
        self.alarm = None;
    }

    pub(super) fn look_again(&mut self) {
        self.look_again = true;
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`].
    pub(super) fn post(&mut self, mut request: Request) -> Result<Posted, PolicyError> {
        self.check()?;
        request.posted = self.now();
        if let Some(client) = &mut self.clients[request.client] {
            client.pace.asks(request.posted);
        }
        let other = self.queue.back();
        let other = other.is_some_and(|last| last.exploration != request.exploration);
        self.queued_rows += request.rows();
        self.queue.push_back(request);
        // Whoever evaluates looks afterwards.
        let is_time = self.idle.is_some() && (other || self.queued_rows >= self.wanted);
        Ok(match is_time {
            true if self.movable => Posted::Look,
            true => Posted::Wake,
            false => Posted::Wait,
        })
    }

    /// The answer to the request of `client`, if it is there.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`], once it will not come.
    pub(super) fn take(&mut self, client: usize) -> Option<Result<Request, PolicyError>> {
        let answer = self.clients[client].as_mut()?.answer.take();
        answer.map(Ok).or_else(|| self.check().err().map(Err))
    }

    /// Where the answer to a request of `client` will be told.
    pub(super) fn side(&self, client: Option<usize>) -> Side {
        let client = client.and_then(|client| self.clients[client].as_ref());
        client
            .and_then(|client| client.evaluated)
            .unwrap_or(self.side)
    }

    /// Gives the server its next batch, if it is time and nobody else has it. `client` asks, or the thread of the server.
    ///
    /// The client whose request completes a batch evaluates it where it may: it runs, and would have to wait now. Another thread would
    /// have to be woken, and may get a core only when somebody has taken a step to its end.
    pub(super) fn turn(&mut self, client: Option<usize>) -> Turn {
        let may = client.is_none() || self.movable;
        let Some(mut server) = self.idle.take_if(|_| may) else {
            return Turn::Wait { until: None };
        };
        let (count, front) = self.front();
        match self.next(front) {
            Next::Wait { rows, until } => {
                self.wanted = rows;
                self.idle = Some(server);
                Turn::Wait {
                    until: self.alarm_at(client, until),
                }
            }
            Next::Evaluate => {
                if !front.full {
                    let patience = self.forwards.patience(front.oldest);
                    let clients = self.clients.iter_mut().flatten();
                    clients.for_each(|client| client.pace.give_up(&patience));
                }
                self.queued_rows -= front.rows;
                (self.wanted, self.alarm) = (1, None);
                let side = self.side;
                self.side = side.other();
                server.batch.extend(self.queue.drain(..count));
                for request in &server.batch {
                    if let Some(client) = &mut self.clients[request.client] {
                        client.evaluated = Some(side);
                    }
                }
                Turn::Evaluate {
                    side,
                    server,
                    look_again: std::mem::take(&mut self.look_again),
                    begun: self.now(),
                }
            }
        }
    }

    /// When `client`, or the thread of the server, is to look again so that somebody does at `until`, if it is known when; `None` if
    /// another one does.
    ///
    /// Whoever has set an alarm looks when its time has come, and so sets it anew or takes it back here: an alarm that is over and stays
    /// would keep others from setting theirs, and nobody would look again.
    fn alarm_at(&mut self, client: Option<usize>, until: Option<Duration>) -> Option<Duration> {
        let earlier = self.alarm.is_some_and(|(other, earlier)| {
            other != client && until.is_none_or(|until| earlier <= until)
        });
        if earlier {
            return None;
        }
        self.alarm = until.map(|until| (client, until));
        until
    }

    fn next(&self, front: Front) -> Next {
        // Models have no clock: schedules give every batch there.
        if cfg!(any(loom, shuttle)) {
            return match front.rows {
                0 => Next::Wait {
                    rows: 1,
                    until: None,
                },
                _ => Next::Evaluate,
            };
        }
        let clients = self.clients.iter().flatten().map(|client| &client.pace);
        next(&self.config, self.now(), front, &self.forwards, clients)
    }

    /// Requests that go into the next batch, and how many they are.
    fn front(&self) -> (usize, Front) {
        let (mut count, mut rows) = (0, 0);
        let oldest = self.queue.front();
        let posted = oldest.map(|oldest| oldest.posted);
        let clients = self.clients.iter().flatten().map(|client| &client.pace);
        let most = most_rows(&self.config, posted, &self.forwards, clients);
        for request in &self.queue {
            let alike = oldest.is_some_and(|oldest| oldest.exploration == request.exploration);
            if !alike || rows + request.rows() > most {
                break;
            }
            count += 1;
            rows += request.rows();
        }
        let front = Front {
            rows,
            most,
            oldest: posted,
            full: count < self.queue.len() || rows == most,
        };
        (count, front)
    }

    /// Gives the requests of `batch` back to their clients. They were begun at `begun`, and `version` has acted, unless they failed.
    pub(super) fn answer(
        &mut self,
        batch: &mut Vec<Request>,
        begun: Duration,
        version: Option<i64>,
    ) {
        let now = self.now();
        let rows = batch.iter().map(Request::rows).sum();
        self.tally.batch(rows, now.saturating_sub(begun), version);
        self.forwards.times.add(now.saturating_sub(begun));
        self.forwards.ended = now;
        for mut request in batch.drain(..) {
            request.version = version.unwrap_or(request.version);
            request.side = self.side;
            self.tally.request(begun.saturating_sub(request.posted));
            // A client waits for its answer, so it is there.
            if let Some(client) = &mut self.clients[request.client] {
                client.pace.is_answered(now);
                client.evaluated = None;
                client.answer = Some(request);
            }
        }
    }

    /// A server that is to evaluate, in the threads of clients too or only in its own.
    pub(super) fn open(&mut self, server: Box<Server>, movable: bool) {
        self.idle = Some(server);
        self.movable = movable;
        self.running = true;
    }

    /// Gives back the server, after it has answered a batch: whether its thread is to be woken.
    ///
    /// Where a client has evaluated and others have come meanwhile, the thread of the server goes on, which none of the clients would:
    /// those that have an answer step now, and the others wait for somebody to look.
    pub(super) fn give_back(&mut self, server: Box<Server>, by_client: bool) -> bool {
        self.idle = Some(server);
        by_client && !self.queue.is_empty()
    }

    /// Takes no request any more, and gives up those that are there.
    pub(super) fn end(&mut self, reason: &str) {
        self.ended.get_or_insert_with(|| reason.into());
        self.queue.clear();
        self.queued_rows = 0;
    }

    pub(super) fn ended(&self) -> Option<&Arc<str>> {
        self.ended.as_ref()
    }

    /// # Errors
    /// [`PolicyError::ServerEnded`].
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        match &self.ended {
            Some(reason) => Err(PolicyError::ServerEnded {
                reason: Arc::clone(reason),
            }),
            None => Ok(()),
        }
    }

    pub(super) fn stats(&self) -> super::ServerStats {
        let clients = self.clients.iter().flatten().count();
        self.tally.stats(clients, self.config.max_batch_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn one_of_those_that_wait_looks_again_and_the_first_of_their_times_counts() {
        let mut board = Board::new(ServerConfig::new());
        assert_eq!(board.alarm_at(Some(0), Some(5 * MOMENT)), Some(5 * MOMENT));
        assert_eq!(board.alarm_at(Some(1), Some(6 * MOMENT)), None);
        assert_eq!(board.alarm_at(Some(2), None), None);
        assert_eq!(board.alarm_at(Some(1), Some(4 * MOMENT)), Some(4 * MOMENT));
        assert_eq!(board.alarm_at(Some(0), Some(5 * MOMENT)), None);
    }

    #[test]
    fn who_has_looked_in_vain_leaves_the_next_time_to_others() {
        let mut board = Board::new(ServerConfig::new());
        assert_eq!(board.alarm_at(None, Some(5 * MOMENT)), Some(5 * MOMENT));
        // At that time nobody has asked, and nobody is about to.
        assert_eq!(board.alarm_at(None, None), None);
        assert_eq!(board.alarm_at(Some(3), Some(9 * MOMENT)), Some(9 * MOMENT));
    }
}
