//! When the next batch begins and how large it is: pure functions of recorded times, so that tests
//! need no clock (ADR 0021).
//!
//! The rule in short: evaluate what is there, unless a client is expected so soon that waiting for
//! it costs less than leaving it to the next batch.

use std::time::Duration;

use super::ServerConfig;

/// How long waiting requests wait for a quick client that is expected, in forward passes. A client
/// that misses a batch waits for a whole forward pass; the clients that wait for it lose this part
/// of one, whether it comes or not. Quick clients are those whose steps take no longer than this.
const QUICK: f64 = 0.25;

/// The same for slow clients: their next request is harder to predict, and the answered ones could
/// step meanwhile.
const SLOW: f64 = 0.1;

/// The batch that could begin now. Times are since the server's start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) rows: usize,
    /// Most rows that it may have.
    pub(super) most: usize,
    /// When its oldest request was posted; `None` without requests.
    pub(super) oldest: Option<Duration>,
    /// Whether no other request can join it.
    pub(super) full: bool,
}

/// When one client has posted requests so far.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientTiming {
    /// Rows of each request.
    pub(super) rows: usize,
    /// Whether a request of it is unanswered.
    waiting: bool,
    /// Time of the last answer.
    last_answer: Option<Duration>,
    /// Times from an answer to the next request.
    steps: Recent,
    /// Whether a batch has waited for it in vain since its last answer.
    absent: bool,
}

/// Whether the next batch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Evaluate,
    /// Wait until `rows` rows wait in all, or until a time.
    Wait {
        rows: usize,
        until: Option<Duration>,
    },
}

/// How long forward passes take, and when the last one ended.
#[derive(Debug, Clone, Default)]
pub(super) struct ForwardTimes {
    pub(super) ended: Duration,
    pub(super) times: Recent,
}

impl ForwardTimes {
    fn part(&self, part: f64) -> Duration {
        self.times.median().unwrap_or_default().mul_f64(part)
    }

    /// For a batch whose oldest request was posted at `oldest`, or that has no request yet.
    pub(super) fn patience(&self, oldest: Option<Duration>) -> Patience {
        let begun = oldest.map_or(self.ended, |oldest| oldest.max(self.ended));
        Patience {
            quick_step: self.part(QUICK),
            quick: begun + self.part(QUICK),
            slow: begun + self.part(SLOW),
        }
    }
}

/// Until when waiting requests wait for expected ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// The longest step of a quick client.
    quick_step: Duration,
    quick: Duration,
    slow: Duration,
}

/// Most rows of the next batch, whose oldest request was posted at `oldest`.
///
/// If most of the waiting clients are slow and other clients are stepping, a batch has half of all
/// rows at most: then one half of the environments steps while the policy acts for the other.
/// Without this limit batches grow uneven: most environments would wait during a large batch, then
/// compete for the same cores during a small one.
pub(super) fn most_rows<'a>(
    config: &ServerConfig,
    oldest: Option<Duration>,
    forwards: &ForwardTimes,
    clients: impl Iterator<Item = &'a ClientTiming> + Clone,
) -> usize {
    let patience = forwards.patience(oldest);
    let away =
        |client: &ClientTiming| !client.waiting && client.expected_until(&patience).is_none();
    let slow = |client: &&ClientTiming| client.steps.median() > Some(patience.quick_step);
    let waiting = clients.clone().filter(|client| client.waiting);
    if 2 * waiting.clone().filter(slow).count() <= waiting.count() || !clients.clone().any(away) {
        return config.max_batch_size;
    }
    let (mut all, mut largest) = (0, 0);
    for client in clients {
        all += client.rows;
        largest = largest.max(client.rows);
    }
    let least = largest.max(config.min_batch_size);
    all.div_ceil(2).max(least).min(config.max_batch_size)
}

/// Whether the batch `candidate` begins at `now`. `clients` are all clients of the server.
pub(super) fn decide<'a>(
    config: &ServerConfig,
    now: Duration,
    candidate: Candidate,
    forwards: &ForwardTimes,
    clients: impl Iterator<Item = &'a ClientTiming> + Clone,
) -> Decision {
    let wait = |rows: usize, until| Decision::Wait {
        rows: rows.min(candidate.most),
        until,
    };
    let mut longest = Duration::MAX;
    if let Some(oldest) = candidate.oldest {
        longest = oldest.saturating_add(config.timeout);
        if candidate.full || now >= longest || clients.clone().all(|client| client.waiting) {
            return Decision::Evaluate;
        }
        if candidate.rows < config.min_batch_size {
            return wait(config.min_batch_size, Some(longest));
        }
    }
    let patience = forwards.patience(candidate.oldest);
    let mut expected = 0;
    let mut until = Duration::ZERO;
    for client in clients {
        if let Some(latest) = client.expected_until(&patience) {
            expected += client.rows;
            until = until.max(latest).min(longest);
        }
    }
    match candidate.oldest {
        _ if expected > 0 && now < until => wait(candidate.rows + expected, Some(until)),
        Some(_) => Decision::Evaluate,
        None => wait(1, None),
    }
}

impl ClientTiming {
    pub(super) fn of(rows: usize) -> Self {
        Self {
            rows,
            ..Self::default()
        }
    }

    /// Until when others wait for its next request; `None` if it is not expected by then, already
    /// waits, or is marked absent.
    fn expected_until(&self, patience: &Patience) -> Option<Duration> {
        let (answered, step) = self.last_answer.zip(self.steps.median())?;
        let until = match step <= patience.quick_step {
            true => patience.quick,
            false => patience.slow,
        };
        (answered + step <= until && !self.waiting && !self.absent).then_some(until)
    }

    /// Records that it has posted a request.
    pub(super) fn request_posted(&mut self, now: Duration) {
        if let Some(answered) = self.last_answer {
            self.steps.add(now.saturating_sub(answered));
        }
        (self.waiting, self.absent) = (true, false);
    }

    /// Records that its request was answered.
    pub(super) fn answered(&mut self, now: Duration) {
        (self.waiting, self.last_answer) = (false, Some(now));
    }

    /// A batch begins without it: if it was expected, no batch waits for it until its next request.
    pub(super) fn mark_absent(&mut self, patience: &Patience) {
        self.absent |= self.expected_until(patience).is_some();
    }
}

/// The last three of a series of durations.
#[derive(Debug, Clone, Default)]
pub(super) struct Recent {
    times: [Duration; 3],
    count: usize,
}

impl Recent {
    pub(super) fn add(&mut self, time: Duration) {
        self.times[self.count % 3] = time;
        self.count += 1;
    }

    /// The median, which one long duration does not change, such as the wait at the end of a part;
    /// `None` without any.
    fn median(&self) -> Option<Duration> {
        let known = self.count.min(3);
        let mut sorted = self.times;
        let sorted = &mut sorted[..known];
        sorted.sort_unstable();
        sorted.get(known.checked_sub(1)? / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    const CONFIG: ServerConfig = ServerConfig {
        max_batch_size: 8,
        min_batch_size: 1,
        timeout: at(10_000),
        sole_client: false,
    };

    /// A client of two rows that was answered at `answered` and takes `step` from there to its next
    /// request.
    fn client(answered: u64, step: u64) -> ClientTiming {
        let mut timing = ClientTiming::of(2);
        timing.answered(at(answered - step));
        timing.request_posted(at(answered));
        timing.answered(at(answered));
        timing
    }

    fn waiting() -> ClientTiming {
        let mut timing = ClientTiming::of(2);
        timing.request_posted(at(0));
        timing
    }

    /// A server whose last forward took 2 ms and ended at 100 ms.
    fn forwards() -> ForwardTimes {
        let mut forwards = ForwardTimes {
            ended: at(100_000),
            ..ForwardTimes::default()
        };
        forwards.times.add(at(2_000));
        forwards
    }

    fn front(rows: usize, oldest: u64) -> Candidate {
        Candidate {
            rows,
            most: CONFIG.max_batch_size,
            oldest: Some(at(oldest)),
            full: false,
        }
    }

    const NONE: Candidate = Candidate {
        rows: 0,
        most: CONFIG.max_batch_size,
        oldest: None,
        full: false,
    };

    fn decision(
        config: &ServerConfig,
        now: u64,
        front: Candidate,
        clients: &[ClientTiming],
    ) -> Decision {
        decide(config, at(now), front, &forwards(), clients.iter())
    }

    fn wait(rows: usize, until: u64) -> Decision {
        Decision::Wait {
            rows,
            until: Some(at(until)),
        }
    }

    #[test]
    fn quick_clients_are_waited_for_and_wake_the_server_once() {
        let quick = [
            client(100_000, 20),
            client(100_000, 30),
            client(100_000, 40),
        ];
        assert_eq!(decision(&CONFIG, 100_001, NONE, &quick), wait(6, 100_500));
        let clients = [waiting(), quick[1].clone(), quick[2].clone()];
        let one = front(2, 100_020);
        assert_eq!(decision(&CONFIG, 100_020, one, &clients), wait(6, 100_520));
        let all = [waiting(), waiting(), waiting()];
        let three = front(6, 100_020);
        assert_eq!(decision(&CONFIG, 100_040, three, &all), Decision::Evaluate);
    }

    #[test]
    fn slow_clients_are_not_waited_for() {
        let clients = [waiting(), client(100_000, 5_000)];
        assert_eq!(
            decision(&CONFIG, 100_001, front(2, 99_000), &clients),
            Decision::Evaluate
        );
        // Except one that is expected at once.
        let clients = [waiting(), client(96_000, 4_150)];
        let two = front(2, 99_000);
        assert_eq!(decision(&CONFIG, 100_001, two, &clients), wait(4, 100_200));
        assert_eq!(
            decision(&CONFIG, 100_200, two, &clients),
            Decision::Evaluate
        );
        // The wait is shorter than for a quick one.
        let clients = [waiting(), client(96_000, 4_250)];
        assert_eq!(
            decision(&CONFIG, 100_001, two, &clients),
            Decision::Evaluate
        );
    }

    #[test]
    fn environments_whose_steps_take_long_step_in_halves() {
        let most = |clients: &[ClientTiming]| {
            let oldest = Some(at(99_000));
            most_rows(&CONFIG, oldest, &forwards(), clients.iter())
        };
        // One of two rows that took `step` from its last answer to its request.
        let asks = |step| {
            let mut timing = client(90_000, step);
            timing.request_posted(at(90_000 + step));
            timing
        };
        let away = client(100_000, 3_000);
        assert_eq!(
            most(&[asks(3_000), asks(3_000), asks(3_000), away.clone()]),
            4
        );
        assert_eq!(most(&[asks(3_000), asks(3_000), away.clone()]), 3);
        // All that wait are evaluated together if no client is stepping, or one is expected at
        // once.
        assert_eq!(most(&[asks(3_000), asks(3_000), asks(3_000)]), 8);
        let soon = client(97_000, 3_100);
        assert_eq!(most(&[asks(3_000), asks(3_000), soon]), 8);
        // Quick ones do not wait for a slow one.
        assert_eq!(most(&[asks(100), asks(100), asks(100), away.clone()]), 8);
        // A batch has room for the largest client, and for as many rows as it is to have at least.
        let mut large = asks(3_000);
        large.rows = 6;
        assert_eq!(most(&[large, away.clone()]), 6);
        let config = CONFIG.min_batch_size(7);
        let clients = [asks(3_000), asks(3_000), away];
        let oldest = Some(at(99_000));
        assert_eq!(most_rows(&config, oldest, &forwards(), clients.iter()), 7);
    }

    #[test]
    fn a_client_that_a_batch_has_waited_for_in_vain_is_absent_until_its_next_request() {
        let mut late = client(100_000, 100);
        let two = front(2, 100_400);
        late.mark_absent(&forwards().patience(two.oldest));
        let decide_with =
            |late: &ClientTiming| decision(&CONFIG, 100_400, two, &[waiting(), late.clone()]);
        assert_eq!(decide_with(&late), Decision::Evaluate);
        late.request_posted(at(100_450));
        late.answered(at(100_460));
        assert_eq!(decide_with(&late), wait(4, 100_900));
        // A client that is not expected yet is not marked absent.
        let mut slow = client(100_000, 5_000);
        slow.mark_absent(&forwards().patience(two.oldest));
        let later = forwards().patience(Some(at(106_000)));
        assert_eq!(slow.expected_until(&later), Some(at(106_200)));
    }

    #[test]
    fn without_waiting_or_expected_requests_the_wait_for_one_has_no_end() {
        let none = Decision::Wait {
            rows: 1,
            until: None,
        };
        for clients in [&[][..], &[ClientTiming::of(2)], &[client(100_000, 5_000)]] {
            assert_eq!(decision(&CONFIG, 100_001, NONE, clients), none);
        }
        let overdue = [client(99_000, 100)];
        assert_eq!(decision(&CONFIG, 100_500, NONE, &overdue), none);
    }

    #[test]
    fn too_few_rows_wait_for_more_but_not_for_longer_than_the_time_out() {
        let config = CONFIG.min_batch_size(4);
        let clients = [waiting(), client(100_000, 50_000)];
        let two = front(2, 99_000);
        assert_eq!(decision(&config, 100_001, two, &clients), wait(4, 109_000));
        assert_eq!(
            decision(&config, 109_000, two, &clients),
            Decision::Evaluate
        );
        // Nobody else could come.
        assert_eq!(
            decision(&config, 100_001, two, &[waiting()]),
            Decision::Evaluate
        );
    }

    #[test]
    fn the_time_out_bounds_every_wait_and_a_full_batch_does_not_wait() {
        let quick = [waiting(), client(100_000, 30)];
        let short = CONFIG.timeout(at(50));
        let two = front(2, 100_000);
        assert_eq!(decision(&short, 100_010, two, &quick), wait(4, 100_050));
        assert_eq!(decision(&short, 100_050, two, &quick), Decision::Evaluate);
        let full = Candidate { full: true, ..two };
        assert_eq!(decision(&CONFIG, 100_010, full, &quick), Decision::Evaluate);
        // No wait is for more rows than a batch can have.
        let many = vec![client(100_000, 100); 9];
        assert_eq!(decision(&CONFIG, 100_001, NONE, &many), wait(8, 100_500));
    }

    #[test]
    fn one_long_time_among_three_does_not_count() {
        let mut recent = Recent::default();
        assert_eq!(recent.median(), None);
        for (time, median) in [(5, 5), (7, 5), (900, 7), (6, 7), (6, 6), (6, 6)] {
            recent.add(at(time));
            assert_eq!(recent.median(), Some(at(median)));
        }
    }
}
