//! Where clients leave their requests and find the answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_slab::{LeafSpec, RowBlock};

use super::ServerConfig;
use super::gather::{Forwards, Front, Next, Pace, next};
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
    answer: Option<Request>,
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
    /// Rows with which the server is to be woken.
    wanted: usize,
    forwards: Forwards,
    tally: Tally,
    /// Whether weights of the same version may be others now.
    look_again: bool,
    /// The server, while no batch is evaluated.
    pub(super) idle: Option<Box<Server>>,
    /// Whether clients evaluate, or else the thread of the server.
    pub(super) by_clients: bool,
    /// Whether there is a policy that can act, or still does.
    pub(super) running: bool,
    ended: Option<Arc<str>>,
}

/// What there is to do.
pub(super) enum Turn {
    /// The server has a batch, which is to be evaluated. Whether weights of the same version may be others now, and the time.
    Evaluate {
        server: Box<Server>,
        look_again: bool,
        begun: Duration,
    },
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
            idle: None,
            by_clients: false,
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
    }

    pub(super) fn look_again(&mut self) {
        self.look_again = true;
    }

    /// Adds a request; whether the thread of the server is to be woken.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`].
    pub(super) fn post(&mut self, mut request: Request) -> Result<bool, PolicyError> {
        self.check()?;
        request.posted = self.now();
        if let Some(client) = &mut self.clients[request.client] {
            client.pace.asks(request.posted);
        }
        let other = self.queue.back();
        let other = other.is_some_and(|last| last.exploration != request.exploration);
        self.queued_rows += request.rows();
        self.queue.push_back(request);
        Ok(!self.by_clients && (other || self.queued_rows >= self.wanted))
    }

    /// The answer to the request of `client`, if it is there.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`], once it will not come.
    pub(super) fn take(&mut self, client: usize) -> Option<Result<Request, PolicyError>> {
        let answer = self.clients[client].as_mut()?.answer.take();
        answer.map(Ok).or_else(|| self.check().err().map(Err))
    }

    /// Gives the server its next batch, if it is time and nobody else has it.
    pub(super) fn turn(&mut self) -> Turn {
        let Some(mut server) = self.idle.take() else {
            return Turn::Wait { until: None };
        };
        let (count, front) = self.front();
        match self.next(front) {
            Next::Wait { rows, until } => {
                self.wanted = rows;
                self.idle = Some(server);
                Turn::Wait { until }
            }
            Next::Evaluate => {
                if !front.full {
                    let until = self.forwards.patience(front.oldest);
                    let clients = self.clients.iter_mut().flatten();
                    clients.for_each(|client| client.pace.give_up(until));
                }
                self.queued_rows -= front.rows;
                server.batch.extend(self.queue.drain(..count));
                Turn::Evaluate {
                    server,
                    look_again: std::mem::take(&mut self.look_again),
                    begun: self.now(),
                }
            }
        }
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
        for request in &self.queue {
            let alike = oldest.is_some_and(|oldest| oldest.exploration == request.exploration);
            if !alike || rows + request.rows() > self.config.max_batch_size {
                break;
            }
            count += 1;
            rows += request.rows();
        }
        let front = Front {
            rows,
            oldest: oldest.map(|oldest| oldest.posted),
            full: count < self.queue.len() || rows == self.config.max_batch_size,
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
            self.tally.request(begun.saturating_sub(request.posted));
            // A client waits for its answer, so it is there.
            if let Some(client) = &mut self.clients[request.client] {
                client.pace.is_answered(now);
                client.answer = Some(request);
            }
        }
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
