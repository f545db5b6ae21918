//! Which requests are evaluated together: a function of times, without a clock.

use std::time::Duration;

use super::ServerConfig;

/// The part of a forward for which requests that are there wait for one that is due, of a client whose steps take no longer. A client that
/// comes too late for a batch waits for a whole forward; those that wait for it lose this part of one, whether it comes or not.
const QUICK: f64 = 0.25;

/// The same for clients whose steps take longer: how long they take differs more, and others may step meanwhile.
const SLOW: f64 = 0.1;

/// The requests that the next batch would hold. Times are those since the server began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Front {
    pub(super) rows: usize,
    /// How many rows it may have.
    pub(super) most: usize,
    /// When the first of them came; `None` without any.
    pub(super) oldest: Option<Duration>,
    /// Whether no other request can join them.
    pub(super) full: bool,
}

/// What has been seen of one client.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    /// Rows of each of its requests.
    pub(super) rows: usize,
    waiting: bool,
    /// When it was answered last.
    answered: Option<Duration>,
    /// From an answer to the next request.
    steps: Recent,
    /// Whether it was waited for in vain since its last answer.
    given_up: bool,
}

/// What the server does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Evaluate,
    /// Waits for requests of so many rows in all.
    Wait {
        rows: usize,
        until: Option<Duration>,
    },
}

/// How long forwards take, and when the last one ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Forwards {
    pub(super) ended: Duration,
    pub(super) times: Recent,
}

impl Forwards {
    fn part(&self, part: f64) -> Duration {
        self.times.median().unwrap_or_default().mul_f64(part)
    }

    /// For requests of which the oldest came at `oldest`, or that are still to come.
    pub(super) fn patience(&self, oldest: Option<Duration>) -> Patience {
        let begun = oldest.map_or(self.ended, |oldest| oldest.max(self.ended));
        Patience {
            quick_step: self.part(QUICK),
            quick: begun + self.part(QUICK),
            slow: begun + self.part(SLOW),
        }
    }
}

/// Until when requests that are there wait for others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// How long a step of a quick client takes at most.
    quick_step: Duration,
    quick: Duration,
    slow: Duration,
}

/// How many rows the next batch may have, the first of whose requests came at `oldest`.
///
/// Where steps are not over in a moment, and some clients take one while others wait, no batch has more than half of all rows: environments
/// and policy then work at the same time, and neither waits long for the other. Otherwise few would step while most are evaluated, and
/// most would step, on the same cores, while few are evaluated.
pub(super) fn most_rows<'a>(
    config: &ServerConfig,
    oldest: Option<Duration>,
    forwards: &Forwards,
    clients: impl Iterator<Item = &'a Pace> + Clone,
) -> usize {
    let patience = forwards.patience(oldest);
    let away = |client: &Pace| !client.waiting && client.due(&patience).is_none();
    let slow = |client: &&Pace| client.steps.median() > Some(patience.quick_step);
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

/// What to do at `now`. `clients` are all that there are.
pub(super) fn next<'a>(
    config: &ServerConfig,
    now: Duration,
    front: Front,
    forwards: &Forwards,
    clients: impl Iterator<Item = &'a Pace> + Clone,
) -> Next {
    let wait = |rows: usize, until| Next::Wait {
        rows: rows.min(front.most),
        until,
    };
    let mut longest = Duration::MAX;
    if let Some(oldest) = front.oldest {
        longest = oldest.saturating_add(config.timeout);
        if front.full || now >= longest || clients.clone().all(|client| client.waiting) {
            return Next::Evaluate;
        }
        if front.rows < config.min_batch_size {
            return wait(config.min_batch_size, Some(longest));
        }
    }
    let patience = forwards.patience(front.oldest);
    let mut due = 0;
    let mut until = Duration::ZERO;
    for client in clients {
        if let Some(latest) = client.due(&patience) {
            due += client.rows;
            until = until.max(latest).min(longest);
        }
    }
    match front.oldest {
        _ if due > 0 && now < until => wait(front.rows + due, Some(until)),
        Some(_) => Next::Evaluate,
        None => wait(1, None),
    }
}

impl Pace {
    pub(super) fn of(rows: usize) -> Self {
        Self {
            rows,
            ..Self::default()
        }
    }

    /// Until when others wait for its request, if it is expected by then.
    fn due(&self, patience: &Patience) -> Option<Duration> {
        let (answered, step) = self.answered.zip(self.steps.median())?;
        let until = match step <= patience.quick_step {
            true => patience.quick,
            false => patience.slow,
        };
        (answered + step <= until && !self.waiting && !self.given_up).then_some(until)
    }

    /// A request has come.
    pub(super) fn asks(&mut self, now: Duration) {
        if let Some(answered) = self.answered {
            self.steps.add(now.saturating_sub(answered));
        }
        (self.waiting, self.given_up) = (true, false);
    }

    /// Its request was answered.
    pub(super) fn is_answered(&mut self, now: Duration) {
        (self.waiting, self.answered) = (false, Some(now));
    }

    /// Others do not wait for it any longer, if they did.
    pub(super) fn give_up(&mut self, patience: &Patience) {
        self.given_up |= self.due(patience).is_some();
    }
}

/// The last three times of something.
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

    /// One that is long, such as a wait at the end of a part, does not change it.
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

    /// A client of two rows that was answered at `answered` and takes `step` from there to its next request.
    fn client(answered: u64, step: u64) -> Pace {
        let mut pace = Pace::of(2);
        pace.is_answered(at(answered - step));
        pace.asks(at(answered));
        pace.is_answered(at(answered));
        pace
    }

    fn waiting() -> Pace {
        let mut pace = Pace::of(2);
        pace.asks(at(0));
        pace
    }

    /// A server whose last forward took 2 ms and ended at 100 ms.
    fn forwards() -> Forwards {
        let mut forwards = Forwards {
            ended: at(100_000),
            ..Forwards::default()
        };
        forwards.times.add(at(2_000));
        forwards
    }

    fn front(rows: usize, oldest: u64) -> Front {
        Front {
            rows,
            most: CONFIG.max_batch_size,
            oldest: Some(at(oldest)),
            full: false,
        }
    }

    const NONE: Front = Front {
        rows: 0,
        most: CONFIG.max_batch_size,
        oldest: None,
        full: false,
    };

    fn decide(config: &ServerConfig, now: u64, front: Front, clients: &[Pace]) -> Next {
        next(config, at(now), front, &forwards(), clients.iter())
    }

    fn wait(rows: usize, until: u64) -> Next {
        Next::Wait {
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
        assert_eq!(decide(&CONFIG, 100_001, NONE, &quick), wait(6, 100_500));
        let clients = [waiting(), quick[1].clone(), quick[2].clone()];
        let one = front(2, 100_020);
        assert_eq!(decide(&CONFIG, 100_020, one, &clients), wait(6, 100_520));
        let all = [waiting(), waiting(), waiting()];
        let three = front(6, 100_020);
        assert_eq!(decide(&CONFIG, 100_040, three, &all), Next::Evaluate);
    }

    #[test]
    fn slow_clients_are_not_waited_for() {
        let clients = [waiting(), client(100_000, 5_000)];
        assert_eq!(
            decide(&CONFIG, 100_001, front(2, 99_000), &clients),
            Next::Evaluate
        );
        // But one that is nearly there is.
        let clients = [waiting(), client(96_000, 4_150)];
        let two = front(2, 99_000);
        assert_eq!(decide(&CONFIG, 100_001, two, &clients), wait(4, 100_200));
        assert_eq!(decide(&CONFIG, 100_200, two, &clients), Next::Evaluate);
        // For less long than for a quick one.
        let clients = [waiting(), client(96_000, 4_250)];
        assert_eq!(decide(&CONFIG, 100_001, two, &clients), Next::Evaluate);
    }

    #[test]
    fn environments_whose_steps_take_long_step_in_halves() {
        let most = |clients: &[Pace]| {
            let oldest = Some(at(99_000));
            most_rows(&CONFIG, oldest, &forwards(), clients.iter())
        };
        // One of two rows that took `step` from its last answer to its request.
        let asks = |step| {
            let mut pace = client(90_000, step);
            pace.asks(at(90_000 + step));
            pace
        };
        let away = client(100_000, 3_000);
        assert_eq!(
            most(&[asks(3_000), asks(3_000), asks(3_000), away.clone()]),
            4
        );
        assert_eq!(most(&[asks(3_000), asks(3_000), away.clone()]), 3);
        // Whoever is there is evaluated together where nobody steps, or is back in a moment.
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
    fn who_is_waited_for_in_vain_is_given_up_until_the_next_request() {
        let mut late = client(100_000, 100);
        let two = front(2, 100_400);
        late.give_up(&forwards().patience(two.oldest));
        let decide = |late: &Pace| decide(&CONFIG, 100_400, two, &[waiting(), late.clone()]);
        assert_eq!(decide(&late), Next::Evaluate);
        late.asks(at(100_450));
        late.is_answered(at(100_460));
        assert_eq!(decide(&late), wait(4, 100_900));
        // Who is not due is not given up.
        let mut slow = client(100_000, 5_000);
        slow.give_up(&forwards().patience(two.oldest));
        let later = forwards().patience(Some(at(106_000)));
        assert_eq!(slow.due(&later), Some(at(106_200)));
    }

    #[test]
    fn nobody_due_and_nobody_waiting_is_a_wait_without_end_for_one_request() {
        let none = Next::Wait {
            rows: 1,
            until: None,
        };
        for clients in [&[][..], &[Pace::of(2)], &[client(100_000, 5_000)]] {
            assert_eq!(decide(&CONFIG, 100_001, NONE, clients), none);
        }
        let overdue = [client(99_000, 100)];
        assert_eq!(decide(&CONFIG, 100_500, NONE, &overdue), none);
    }

    #[test]
    fn too_few_rows_wait_for_more_but_not_for_longer_than_the_time_out() {
        let config = CONFIG.min_batch_size(4);
        let clients = [waiting(), client(100_000, 50_000)];
        let two = front(2, 99_000);
        assert_eq!(decide(&config, 100_001, two, &clients), wait(4, 109_000));
        assert_eq!(decide(&config, 109_000, two, &clients), Next::Evaluate);
        // Nobody else could come.
        assert_eq!(decide(&config, 100_001, two, &[waiting()]), Next::Evaluate);
    }

    #[test]
    fn the_time_out_bounds_every_wait_and_a_full_batch_waits_for_none() {
        let quick = [waiting(), client(100_000, 30)];
        let short = CONFIG.timeout(at(50));
        let two = front(2, 100_000);
        assert_eq!(decide(&short, 100_010, two, &quick), wait(4, 100_050));
        assert_eq!(decide(&short, 100_050, two, &quick), Next::Evaluate);
        let full = Front { full: true, ..two };
        assert_eq!(decide(&CONFIG, 100_010, full, &quick), Next::Evaluate);
        // No wait is for more rows than a batch can have.
        let many = vec![client(100_000, 100); 9];
        assert_eq!(decide(&CONFIG, 100_001, NONE, &many), wait(8, 100_500));
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
