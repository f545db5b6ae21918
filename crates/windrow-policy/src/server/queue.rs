//! The requests of clients and their answers, and the decision who evaluates which batch (ADR
//! 0021).
//!
//! A request has one owner at any time and moves: the client posts it, the queue holds it, a batch
//! takes it to the evaluator, and the answer waits with its client's entry until the client takes
//! it. Whoever takes the [`Evaluator`] out of the queue evaluates; while it is out, no second batch
//! can begin.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_slab::{LeafSpec, RowBlock};

use super::ServerConfig;
use super::batching::{Candidate, ClientTiming, Decision, ForwardTimes, decide, most_rows};
use super::evaluation::Evaluator;
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
    /// When it was posted, since the server's start.
    posted: Duration,
    /// Version of the weights that acted.
    pub(super) version: i64,
    /// The group in which its client will probably wait for the next answer.
    pub(super) group: WaitGroup,
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
            group: WaitGroup::A,
            failure: None,
        })
    }

    /// Copies `input` into the request.
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
    timing: ClientTiming,
    /// While its request is evaluated: the group of that batch.
    evaluated: Option<WaitGroup>,
    answer: Option<Request>,
}

/// One of the two queues in which clients wait for answers.
///
/// Batches use them in turn. Clients of a batch wait in its group and later ones in the other, so
/// that the answers to one batch wake nobody who waits for the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitGroup {
    A,
    B,
}

impl WaitGroup {
    pub(super) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// All that the server and its clients share under one lock, which is held for moments only.
pub(super) struct RequestQueue {
    config: ServerConfig,
    began: Instant,
    /// By number; `None` for a client that has left.
    clients: Vec<Option<Client>>,
    /// Requests that no batch has taken yet, the oldest first.
    waiting: VecDeque<Request>,
    waiting_rows: usize,
    /// As soon as this many rows wait, somebody has to decide about the next batch.
    wanted_rows: usize,
    forwards: ForwardTimes,
    tally: Tally,
    /// Reload weights even if their version is unchanged.
    reload_weights: bool,
    /// The one waiter that has a timer set (a client, or the server's thread: `None`), and its
    /// deadline.
    timer: Option<(Option<usize>, Duration)>,
    /// The group in which clients wait now.
    group: WaitGroup,
    /// The policy and its memory, while no batch is evaluated.
    pub(super) evaluator: Option<Box<Evaluator>>,
    /// Whether clients may evaluate, or only the server's thread.
    by_clients: bool,
    /// Whether there is a policy: false only after it was dropped, or before one is bound.
    pub(super) running: bool,
    ended: Option<Arc<str>>,
}

/// What a client does after it has posted a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WakeHint {
    /// Decides about the next batch itself.
    Look,
    /// Wakes the server's thread, which decides.
    WakeThread,
    /// Waits: somebody else has decided, or will.
    Wait,
}

/// A batch that has begun.
pub(super) struct Batch {
    /// Has the requests, and the right to evaluate.
    pub(super) evaluator: Box<Evaluator>,
    /// Reload weights even if their version is unchanged.
    pub(super) reload_weights: bool,
    /// When it began, since the server's start.
    pub(super) begun: Duration,
    /// The group in which its clients wait.
    pub(super) group: WaitGroup,
}

/// The next step of a client or of the server's thread.
pub(super) enum ServerAction {
    Evaluate(Batch),
    WakeThread,
    /// Wait to be woken, or until a time since the server's start.
    Wait {
        until: Option<Duration>,
    },
}

/// Why a client or the server's thread stops waiting.
#[expect(
    clippy::large_enum_variant,
    reason = "it moves once to each answer, where a box would allocate"
)]
pub(super) enum Woken {
    Answered(Request),
    /// The server has ended, so no answer will come.
    Ended(PolicyError),
    Act(ServerAction),
}

impl RequestQueue {
    pub(super) fn new(config: ServerConfig) -> Self {
        Self {
            config,
            began: Instant::now(),
            clients: Vec::new(),
            waiting: VecDeque::new(),
            waiting_rows: 0,
            wanted_rows: 1,
            forwards: ForwardTimes::default(),
            tally: Tally::default(),
            reload_weights: false,
            timer: None,
            group: WaitGroup::A,
            evaluator: None,
            by_clients: false,
            running: false,
            ended: None,
        }
    }

    /// Time since the server's start.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Adds a client with `rows` rows; returns its number.
    pub(super) fn join(&mut self, rows: usize) -> usize {
        let client = Client {
            timing: ClientTiming::of(rows),
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
        self.timer = None;
    }

    pub(super) fn reload_weights(&mut self) {
        self.reload_weights = true;
    }

    /// Posts `request`, if there is one, and says what its client, or the server's thread, does
    /// next.
    pub(super) fn advance(&mut self, client: Option<usize>, request: Option<Request>) -> Woken {
        let hint = match request.map(|request| self.post(request)) {
            Some(Ok(hint)) => hint,
            Some(Err(ended)) => return Woken::Ended(ended),
            None => WakeHint::Look,
        };
        if let Some(answer) = client.and_then(|client| self.take_answer(client)) {
            return Woken::Answered(answer);
        }
        if let Err(ended) = self.check() {
            return Woken::Ended(ended);
        }
        Woken::Act(match hint {
            WakeHint::Look => self.next_action(client),
            WakeHint::WakeThread => ServerAction::WakeThread,
            WakeHint::Wait => ServerAction::Wait { until: None },
        })
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`].
    fn post(&mut self, mut request: Request) -> Result<WakeHint, PolicyError> {
        self.check()?;
        request.posted = self.now();
        if let Some(client) = &mut self.clients[request.client] {
            client.timing.request_posted(request.posted);
        }
        // A batch has one exploration type, so a request of another type completes the batch before
        // it.
        let completes = self
            .waiting
            .back()
            .is_some_and(|last| last.exploration != request.exploration);
        self.waiting_rows += request.rows();
        self.waiting.push_back(request);
        // While a batch is evaluated, nobody has to decide: whoever evaluates it does so
        // afterwards.
        let is_due = completes || self.waiting_rows >= self.wanted_rows;
        Ok(if self.evaluator.is_none() || !is_due {
            WakeHint::Wait
        } else if self.by_clients {
            WakeHint::Look
        } else {
            WakeHint::WakeThread
        })
    }

    /// The answer to the request of `client`, once it is there.
    fn take_answer(&mut self, client: usize) -> Option<Request> {
        self.clients[client].as_mut()?.answer.take()
    }

    /// The group in which `client` waits for its answer.
    pub(super) fn group(&self, client: Option<usize>) -> WaitGroup {
        let client = client.and_then(|client| self.clients[client].as_ref());
        client
            .and_then(|client| client.evaluated)
            .unwrap_or(self.group)
    }

    /// Begins the next batch if one is due, the evaluator is idle, and `client` (`None`: the
    /// server's thread) may evaluate.
    ///
    /// Where clients may evaluate, the one whose request completes a batch does: it runs already,
    /// and would only wait. Waking another thread takes longer, and on a busy machine that thread
    /// gets a core only when some environment's step has ended.
    fn next_action(&mut self, client: Option<usize>) -> ServerAction {
        let may_evaluate = client.is_none() || self.by_clients;
        let Some(mut evaluator) = self.evaluator.take_if(|_| may_evaluate) else {
            return ServerAction::Wait { until: None };
        };
        let (count, candidate) = self.candidate();
        match self.decide(candidate) {
            Decision::Wait { rows, until } => {
                self.wanted_rows = rows;
                self.evaluator = Some(evaluator);
                ServerAction::Wait {
                    until: self.set_timer(client, until),
                }
            }
            Decision::Evaluate => {
                if !candidate.full {
                    let patience = self.forwards.patience(candidate.oldest);
                    let clients = self.clients.iter_mut().flatten();
                    clients.for_each(|client| client.timing.mark_absent(&patience));
                }
                self.waiting_rows -= candidate.rows;
                (self.wanted_rows, self.timer) = (1, None);
                let group = self.group;
                self.group = group.other();
                evaluator.batch.extend(self.waiting.drain(..count));
                for request in &evaluator.batch {
                    if let Some(client) = &mut self.clients[request.client] {
                        client.evaluated = Some(group);
                    }
                }
                ServerAction::Evaluate(Batch {
                    group,
                    evaluator,
                    reload_weights: std::mem::take(&mut self.reload_weights),
                    begun: self.now(),
                })
            }
        }
    }

    /// Makes sure that one waiter decides anew at `until`: the deadline for the caller (`client`,
    /// or the server's thread), or `None` if another waiter has an earlier timer.
    ///
    /// The owner of the timer gets here when its time has come, and sets the timer anew or removes
    /// it. A timer that stayed after its deadline would keep all others from setting theirs, and
    /// nobody would decide again.
    fn set_timer(&mut self, client: Option<usize>, until: Option<Duration>) -> Option<Duration> {
        let has_earlier = self.timer.is_some_and(|(other, earlier)| {
            other != client && until.is_none_or(|until| earlier <= until)
        });
        if has_earlier {
            return None;
        }
        self.timer = until.map(|until| (client, until));
        until
    }

    fn decide(&self, candidate: Candidate) -> Decision {
        // Models have no clock: their schedules already produce every possible batch.
        if cfg!(any(loom, shuttle)) {
            return match candidate.rows {
                0 => Decision::Wait {
                    rows: 1,
                    until: None,
                },
                _ => Decision::Evaluate,
            };
        }
        let clients = self.clients.iter().flatten().map(|client| &client.timing);
        decide(&self.config, self.now(), candidate, &self.forwards, clients)
    }

    /// The next batch as it would be now, and how many of the waiting requests it would take.
    fn candidate(&self) -> (usize, Candidate) {
        let (mut count, mut rows) = (0, 0);
        let oldest = self.waiting.front();
        let posted = oldest.map(|oldest| oldest.posted);
        let clients = self.clients.iter().flatten().map(|client| &client.timing);
        let most = most_rows(&self.config, posted, &self.forwards, clients);
        for request in &self.waiting {
            let alike = oldest.is_some_and(|oldest| oldest.exploration == request.exploration);
            if !alike || rows + request.rows() > most {
                break;
            }
            count += 1;
            rows += request.rows();
        }
        let candidate = Candidate {
            rows,
            most,
            oldest: posted,
            full: count < self.waiting.len() || rows == most,
        };
        (count, candidate)
    }

    /// Hands the requests of `batch` back to their clients. `begun` is when the batch began;
    /// `version` is `None` if it failed.
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
            request.group = self.group;
            self.tally.request(begun.saturating_sub(request.posted));
            // A client waits for its answer and is there, unless the server has ended meanwhile and
            // the client has left.
            if let Some(client) = &mut self.clients[request.client] {
                client.timing.answered(now);
                client.evaluated = None;
                client.answer = Some(request);
            }
        }
    }

    /// Starts work with `evaluator`; `by_clients` says whether clients may evaluate, or only the
    /// server's thread.
    pub(super) fn open(&mut self, evaluator: Box<Evaluator>, by_clients: bool) {
        self.evaluator = Some(evaluator);
        self.by_clients = by_clients;
        self.running = true;
    }

    /// Takes the evaluator back after a batch was answered. Returns whether the server's thread has
    /// to be woken.
    ///
    /// It has to if a client has evaluated and other requests wait: the clients that just got their
    /// answers step their environments now, and the others wait for somebody to decide.
    pub(super) fn give_back(&mut self, evaluator: Box<Evaluator>, by_client: bool) -> bool {
        self.evaluator = Some(evaluator);
        by_client && !self.waiting.is_empty()
    }

    /// Refuses requests from now on and drops those that wait.
    pub(super) fn end(&mut self, reason: &str) {
        self.ended.get_or_insert_with(|| reason.into());
        self.waiting.clear();
        self.waiting_rows = 0;
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
    fn one_waiter_has_a_timer_and_the_earliest_deadline_counts() {
        let mut queue = RequestQueue::new(ServerConfig::new());
        assert_eq!(queue.set_timer(Some(0), Some(5 * MOMENT)), Some(5 * MOMENT));
        assert_eq!(queue.set_timer(Some(1), Some(6 * MOMENT)), None);
        assert_eq!(queue.set_timer(Some(2), None), None);
        assert_eq!(queue.set_timer(Some(1), Some(4 * MOMENT)), Some(4 * MOMENT));
        assert_eq!(queue.set_timer(Some(0), Some(5 * MOMENT)), None);
    }

    #[test]
    fn a_waiter_whose_timer_ends_without_work_leaves_the_next_one_to_others() {
        let mut queue = RequestQueue::new(ServerConfig::new());
        assert_eq!(queue.set_timer(None, Some(5 * MOMENT)), Some(5 * MOMENT));
        // At that time no request waits, and none is expected.
        assert_eq!(queue.set_timer(None, None), None);
        assert_eq!(queue.set_timer(Some(3), Some(9 * MOMENT)), Some(9 * MOMENT));
    }
}
