//! Running statistics, of one vector and of several.

use super::Statistics;
use super::vec_driver::VecDriver;
use crate::testing::CountingEnv;
use crate::{
    AnyTransform, Gathering, Gathers, Lockstep, Pendulum, RewardSum, Serial, Transform, VecEnv,
    VecNorm, VecNormV2,
};

fn pendulums(count: usize) -> Serial<Pendulum> {
    Serial::from_fn(count, Pendulum::new).unwrap()
}

/// What `count` pendulums observe, and their rewards, in the reset and in each of `steps` steps
/// with the same actions.
fn played<T: Transform>(
    count: usize,
    steps: usize,
    transform: Option<T>,
) -> Vec<(Vec<f32>, Vec<f32>)> {
    fn play(
        mut envs: VecDriver<impl VecEnv>,
        count: usize,
        steps: usize,
    ) -> Vec<(Vec<f32>, Vec<f32>)> {
        let all: Vec<_> = (0..count).collect();
        envs.reset_seeded(&all, 3).unwrap();
        let mut seen = vec![(envs.seen("observation"), Vec::new())];
        for _ in 0..steps {
            envs.step(1.5f32).unwrap();
            seen.push((envs.seen("observation"), envs.reward.clone()));
        }
        seen
    }
    match transform {
        None => play(VecDriver::new(pendulums(count)), count, steps),
        Some(transform) => {
            let envs = pendulums(count).transformed(transform).unwrap();
            play(VecDriver::new(envs), count, steps)
        }
    }
}

fn plain(count: usize, steps: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    played(count, steps, None::<VecNorm>)
}

fn assert_close(got: &[f32], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        let far = (f64::from(*got) - expected).abs();
        assert!(
            far <= 2e-3 * (1.0 + expected.abs()),
            "{what}: {got} for {expected}"
        );
    }
}

#[test]
fn sums_fade_and_normalise_all_rows_of_a_step() {
    let decay = 0.9f64;
    let (mut sum, mut squares, mut count) = ([0.0; 3], [0.0; 3], 0.0);
    let norm = VecNorm::new(["observation"]).with_decay(decay);
    for (step, ((seen, _), (got, _))) in plain(4, 12)
        .iter()
        .zip(played(4, 12, Some(norm)))
        .enumerate()
    {
        count = count * decay + 4.0;
        let mut expected = Vec::new();
        for i in 0..3 {
            let own = || seen.iter().skip(i).step_by(3).map(|&x| f64::from(x));
            sum[i] = sum[i] * decay + own().sum::<f64>();
            squares[i] = squares[i] * decay + own().map(|x| x * x).sum::<f64>();
        }
        for (i, x) in seen.iter().enumerate() {
            let mean = sum[i % 3] / count;
            let variance = (squares[i % 3] / count - mean * mean).max(1e-4);
            expected.push((f64::from(*x) - mean) / variance.sqrt().max(1e-4));
        }
        assert_close(&got, &expected, &format!("step {step}"));
    }
}

#[test]
fn means_are_corrected_for_steps_that_there_were_not() {
    for (lockstep, decay) in [(Lockstep::Mean, 0.9f64), (Lockstep::Turns, 1.0)] {
        let norm = VecNormV2::new(["observation"])
            .with_decay(decay)
            .with_lockstep(lockstep);
        let (mut mean, mut square, mut count) = ([0.0; 3], [0.0; 3], 0);
        for (step, ((seen, _), (got, _))) in plain(2, 12)
            .iter()
            .zip(played(2, 12, Some(norm)))
            .enumerate()
        {
            let rows: Vec<Vec<f64>> = (seen.chunks(3))
                .map(|row| row.iter().map(|&x| f64::from(x)).collect())
                .collect();
            let groups: Vec<_> = match lockstep {
                Lockstep::Mean => vec![rows],
                _ => rows.into_iter().map(|row| vec![row]).collect(),
            };
            let mut expected = Vec::new();
            for rows in groups {
                let n = rows.len() as f64;
                count += rows.len();
                let weight = match decay {
                    1.0 => n / count as f64,
                    decay => 1.0 - decay.powf(n),
                };
                for i in 0..3 {
                    mean[i] += weight * (rows.iter().map(|row| row[i]).sum::<f64>() / n - mean[i]);
                    square[i] += weight
                        * (rows.iter().map(|row| row[i] * row[i]).sum::<f64>() / n - square[i]);
                }
                let kept = if decay == 1.0 {
                    1.0
                } else {
                    1.0 - decay.powi(count as i32)
                };
                for row in &rows {
                    for i in 0..3 {
                        let variance = (square[i] - mean[i] * mean[i]).max(0.0) / kept;
                        expected.push((row[i] - mean[i] / kept) / variance.sqrt().max(1e-4));
                    }
                }
            }
            if step > 2 {
                assert_close(&got, &expected, &format!("{lockstep:?}, step {step}"));
            }
        }
    }
}

#[test]
fn environments_apart_have_statistics_of_their_own() {
    let norm = || VecNormV2::new(["observation", "reward"]).with_decay(0.9);
    let apart = played(3, 9, Some(norm().with_lockstep(Lockstep::Apart)));
    let alone = played(1, 9, Some(norm()));
    // The first of the three is the one alone.
    for ((seen, reward), (own, own_reward)) in apart.iter().zip(&alone) {
        assert_eq!((&seen[..3], reward.first()), (&own[..], own_reward.first()));
    }
    let mut envs = VecDriver::new(
        pendulums(3)
            .transformed(norm().with_lockstep(Lockstep::Apart))
            .unwrap(),
    );
    envs.reset_seeded(&[0, 1, 2], 3).unwrap();
    envs.step(1.5f32).unwrap();
    let before = envs.seen::<f32>("observation");
    envs.reset_seeded(&[1], 8).unwrap();
    let after = envs.seen::<f32>("observation");
    assert_eq!((&before[..3], &before[6..]), (&after[..3], &after[6..]));
    assert_ne!(before[3..6], after[3..6]);
}

#[test]
fn rewards_are_normalised_for_what_is_around() {
    let norm = VecNorm::new(["reward"]);
    let envs = pendulums(2).transformed(norm).unwrap();
    let mut envs = VecDriver::new(envs.transformed(RewardSum::new()).unwrap());
    envs.reset_seeded(&[0, 1], 3).unwrap();
    envs.step(2.0f32).unwrap();
    let (a, b) = (envs.reward[0], envs.reward[1]);
    assert!((a + b).abs() < 1e-3 && a != 0.0, "{a} {b}");
    assert_eq!(envs.seen::<f32>("episode_reward"), [a, b]);
}

/// `steps` more steps of `envs`.
fn step(envs: &mut VecDriver<impl VecEnv>, steps: usize) {
    for _ in 0..steps {
        envs.step(0.5f32).unwrap();
    }
}

#[test]
fn shared_statistics_are_those_of_all() {
    let shared = Statistics::new();
    let norm = VecNormV2::new(["observation"]).with_decay(1.0);
    let sharing = norm.clone().sharing(&shared);
    // As another process gets it.
    let written = serde_json::to_string(&AnyTransform::from(sharing.clone())).unwrap();
    let read: AnyTransform = serde_json::from_str(&written).unwrap();
    assert_eq!(read, sharing.clone().into());
    let mut one = VecDriver::new(pendulums(1).transformed(sharing).unwrap());
    let other = read.around(Box::new(pendulums(1))).unwrap();
    let mut other = VecDriver::new(other);
    // Two that take turns are as two in lockstep that do.
    let lockstep = played(2, 5, Some(norm));
    one.reset_seeded(&[0], 3).unwrap();
    other.reset_seeded(&[0], 4).unwrap();
    for (both, _) in &lockstep[1..] {
        one.step(1.5f32).unwrap();
        assert_eq!(one.seen::<f32>("observation"), both[..3]);
        other.step(1.5f32).unwrap();
        assert_eq!(other.seen::<f32>("observation"), both[3..]);
    }
}

#[test]
fn threads_lose_no_step() {
    let shared = Statistics::new();
    let norm = VecNorm::new(["observation"])
        .with_decay(1.0)
        .sharing(&shared);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let norm = norm.clone();
            scope.spawn(move || {
                let mut envs = VecDriver::new(pendulums(2).transformed(norm).unwrap());
                envs.reset_seeded(&[0, 1], seed).unwrap();
                step(&mut envs, 100);
            });
        }
    });
    let mut one_more = VecDriver::new(pendulums(1).transformed(norm).unwrap());
    one_more.reset_seeded(&[0], 9).unwrap();
    let count = shared.read().unwrap().numbers[6];
    assert_eq!(count, f64::from(3 * 2 * 101 + 1));
}

#[test]
fn frozen_statistics_are_used_and_stay() {
    let shared = Statistics::new();
    let norm = VecNorm::new(["observation"]).sharing(&shared);
    let frozen = VecNorm {
        frozen: true,
        ..norm.clone()
    };
    let mut frozen = VecDriver::new(pendulums(1).transformed(frozen).unwrap());
    assert_eq!(
        frozen.reset_seeded(&[0], 3).unwrap_err().to_string(),
        "environment 0: frozen of VecNorm: expected statistics to normalise with: load some, or gather some first, got none"
    );
    let mut moving = VecDriver::new(pendulums(1).transformed(norm).unwrap());
    moving.reset_seeded(&[0], 1).unwrap();
    step(&mut moving, 30);
    let mut seen = Vec::new();
    for _ in 0..2 {
        frozen.reset_seeded(&[0], 3).unwrap();
        seen.push(frozen.seen::<f32>("observation"));
    }
    assert_eq!(seen[0], seen[1]);
    shared.set_frozen(true);
    let before = shared.read();
    step(&mut moving, 3);
    assert_eq!(shared.read(), before);
    shared.set_frozen(false);
    step(&mut moving, 1);
    assert_ne!(shared.read(), before);
}

#[test]
fn statistics_are_read_and_written_without_environments() {
    let (shared, other) = (Statistics::new(), Statistics::new());
    assert_eq!(shared.read(), None);
    let norm = VecNorm::new(["observation"]).sharing(&shared);
    let mut envs = VecDriver::new(pendulums(1).transformed(norm).unwrap());
    envs.reset_seeded(&[0], 1).unwrap();
    step(&mut envs, 5);
    let gathered = shared.read().unwrap();
    let column = (
        vec!["observation".to_owned()],
        "float32".to_owned(),
        vec![3],
    );
    assert_eq!(
        (&*gathered.rule, &*gathered.columns),
        ("VecNorm", &[column][..])
    );
    let place = other.section(3);
    place.write(&gathered).unwrap();
    let written = serde_json::to_string(&place).unwrap();
    let read: Statistics = serde_json::from_str(&written).unwrap();
    // The place of this process, for as long as somebody has it.
    other.section(3).set_frozen(true);
    assert!(read.is_frozen() && read == place);
    drop((other, place));
    assert_eq!(read.section(2).read(), None);
    drop(read);
    // A copy, as another process makes it.
    let copied: Statistics = serde_json::from_str(&written).unwrap();
    assert_eq!(copied.read().unwrap(), gathered);
    assert!(!copied.is_frozen());
}

/// Six pendulums that normalise by `norm`, in vectors of `each`, which gather apart where that is
/// said.
struct Six {
    each: usize,
    workers: Vec<VecDriver<Box<dyn VecEnv>>>,
    notes: Vec<Vec<f64>>,
    /// What the environments observe, and their rewards, step by step.
    seen: Vec<f32>,
}

impl Six {
    fn new(each: usize, norm: &AnyTransform, apart: bool) -> Self {
        let vector = |_| VecDriver::new(norm.around(Box::new(pendulums(each))).unwrap());
        let mut workers: Vec<_> = (0..6 / each).map(vector).collect();
        if apart {
            let gatherings = workers
                .iter_mut()
                .flat_map(|worker| worker.envs.gatherings());
            gatherings.for_each(|gathering| gathering.gather_apart(6));
        }
        Self {
            each,
            workers,
            notes: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn gatherings(
        &mut self,
    ) -> impl DoubleEndedIterator<Item = &mut Gathering> + ExactSizeIterator {
        let workers = self.workers.iter_mut();
        workers.map(|worker| worker.envs.gatherings().remove(0))
    }

    fn take_up(&mut self) {
        self.notes = (self.gatherings())
            .map(|gathering| {
                let mut sent = vec![f64::NAN; gathering.gathers().numbers()];
                gathering.gathers().send(&mut sent);
                gathering.take_up(&sent).unwrap();
                sent
            })
            .collect();
    }

    /// A reset and six steps.
    fn play(&mut self, part: u64) {
        let all: Vec<_> = (0..self.each).collect();
        for t in 0..7 {
            for (number, worker) in self.workers.iter_mut().enumerate() {
                match t {
                    0 => worker.reset_seeded(&all, 10 * part + (number * self.each) as u64),
                    _ => worker.step(0.5f32 * part as f32),
                }
                .unwrap();
                self.seen.extend(worker.seen::<f32>("observation"));
            }
            self.seen
                .extend(self.workers.iter().flat_map(|worker| &worker.reward));
        }
    }

    fn hand_in(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        // Whoever is done first hands in first.
        for (gathering, notes) in self.gatherings().zip(&mut notes).rev() {
            gathering.hand_in(notes);
        }
        let gathers: Vec<_> = (self.gatherings())
            .map(|gathering| gathering.gathers().clone())
            .collect();
        let notes = notes.iter().map(|notes| &notes[..]);
        Gathers::merge(gathers.iter().zip(notes));
    }

    /// What they observe in three parts and the numbers in the end, where they gather apart.
    fn merged(each: usize, norm: fn(&Statistics) -> AnyTransform) -> (Vec<f32>, Vec<f64>) {
        let shared = Statistics::new();
        let mut six = Self::new(each, &norm(&shared), true);
        for part in 0..3 {
            six.take_up();
            six.play(part);
            six.hand_in();
        }
        (six.seen, shared.read().unwrap().numbers)
    }
}

const NORMS: [fn(&Statistics) -> AnyTransform; 4] = [
    |shared| {
        VecNorm::new(["observation", "reward"])
            .sharing(shared)
            .into()
    },
    |shared| {
        VecNorm::new(["observation"])
            .with_decay(0.9)
            .sharing(shared)
            .into()
    },
    |shared| {
        let norm = VecNormV2::new(["observation", "reward"]).with_decay(0.99);
        norm.with_lockstep(Lockstep::Mean).sharing(shared).into()
    },
    |shared| {
        let norm = VecNormV2::new(["observation"]).with_decay(1.0);
        norm.with_lockstep(Lockstep::Mean).sharing(shared).into()
    },
];

#[test]
fn what_environments_gather_apart_does_not_depend_on_how_they_are_shared_out() {
    let bits = |(seen, numbers): (Vec<f32>, Vec<f64>)| {
        let seen = seen.into_iter().map(f64::from);
        seen.chain(numbers).map(f64::to_bits).collect::<Vec<_>>()
    };
    for norm in NORMS {
        let alone = bits(Six::merged(1, norm));
        for each in [2, 3, 6] {
            assert_eq!(bits(Six::merged(each, norm)), alone, "{each}");
        }
    }
}

#[test]
fn merged_statistics_are_those_of_environments_in_lockstep() {
    for norm in NORMS {
        let (seen, merged) = Six::merged(2, norm);
        assert!(seen.iter().all(|x| x.is_finite()));
        let shared = Statistics::new();
        let mut lockstep = Six::new(6, &norm(&shared), false);
        (0..3).for_each(|part| lockstep.play(part));
        let direct = shared.read().unwrap().numbers;
        for (merged, direct) in merged.iter().zip(&direct) {
            let far = (merged - direct).abs();
            assert!(far <= 1e-4 * (1.0 + direct.abs()), "{merged} for {direct}");
        }
    }
}

#[test]
fn environments_apart_normalise_by_what_was_merged_and_what_they_gathered_since() {
    let norm = |shared: &Statistics| {
        VecNorm::new(["observation"])
            .with_decay(1.0)
            .sharing(shared)
            .into()
    };
    let shared = Statistics::new();
    let mut six = Six::new(3, &norm(&shared), true);
    let mut plain = pendulum_rows(7);
    plain.extend(pendulum_rows(7));
    six.take_up();
    six.play(0);
    six.hand_in();
    let before = shared.read().unwrap().numbers;
    six.seen.clear();
    six.take_up();
    six.play(0);
    // The last row of environment 0: 42 rows were merged, and it has gathered seven since.
    let own: Vec<_> = plain[..7].iter().map(|row| f64::from(row[0])).collect();
    let count = before[6] + 7.0;
    let mean = (before[0] + own.iter().sum::<f64>()) / count;
    let square = (before[3] + own.iter().map(|x| x * x).sum::<f64>()) / count;
    let expected = (own[6] - mean) / (square - mean * mean).max(1e-4).sqrt();
    let last = six.seen.len() - 6 * 3 - 6;
    assert_close(&six.seen[last..=last], &[expected], "environment 0");
}

/// What the first pendulum of part 0 observes.
fn pendulum_rows(steps: usize) -> Vec<Vec<f32>> {
    let mut envs = VecDriver::new(pendulums(1));
    envs.reset_seeded(&[0], 0).unwrap();
    let mut rows = vec![envs.seen("observation")];
    for _ in 1..steps {
        envs.step(0.0f32).unwrap();
        rows.push(envs.seen("observation"));
    }
    rows
}

#[test]
fn what_was_gathered_before_numbers_were_written_or_frozen_is_left_out() {
    let shared = Statistics::new();
    let mut six = Six::new(2, &NORMS[0](&shared), true);
    let mut round = |change: &dyn Fn(&mut Six)| {
        let before = shared.read().unwrap();
        six.take_up();
        six.play(0);
        change(&mut six);
        six.hand_in();
        shared.read().unwrap() != before
    };
    assert!(round(&|_| ()));
    assert!(!round(&|_| shared.write(&shared.read().unwrap()).unwrap()));
    assert!(!round(&|_| shared.set_frozen(true)));
    // Environments that got frozen numbers gather nothing.
    assert!(!round(&|_| shared.set_frozen(false)));
    assert!(!round(&|six| six.gatherings().for_each(Gathering::forget)));
    assert!(round(&|_| ()));
}

#[test]
fn environments_that_only_read_take_what_others_have_gathered_and_hand_in_nothing() {
    for apart in [true, false] {
        let shared = Statistics::new();
        let norm = VecNorm::new(["observation"]).sharing(&shared);
        let mut training = Six::new(6, &norm.clone().into(), false);
        training.play(0);
        let frozen = VecNorm {
            frozen: true,
            ..norm
        };
        let mut reading = Six::new(6, &frozen.into(), apart);
        let gathers = reading.gatherings().next().unwrap().gathers().clone();
        if !apart {
            let copy = shared.copied();
            (reading.gatherings()).for_each(|gathering| gathering.go_on_with(&copy));
        }
        let mut seen = Vec::new();
        for _ in 0..3 {
            let mut notes = vec![0.0; gathers.numbers()];
            gathers.send(&mut notes);
            reading
                .gatherings()
                .next()
                .unwrap()
                .take_up(&notes)
                .unwrap();
            reading.seen.clear();
            reading.play(0);
            seen.push(reading.seen.clone());
            training.play(1);
            let before = shared.read();
            reading.gatherings().next().unwrap().hand_in(&mut notes);
            gathers.replace(&notes);
            Gathers::merge([(&gathers, &notes[..])]);
            assert_eq!(shared.read(), before);
        }
        assert!(seen[0] != seen[1] && seen[1] != seen[2]);
    }
}

#[test]
fn the_only_worker_goes_on_with_a_copy_and_hands_in_its_numbers() {
    let (shared, here) = (Statistics::new(), Statistics::new());
    let mut away = Six::new(6, &NORMS[2](&shared), false);
    let mut direct = Six::new(6, &NORMS[2](&here), false);
    let copy = shared.copied();
    away.gatherings()
        .for_each(|gathering| gathering.go_on_with(&copy));
    let gathers = away.gatherings().next().unwrap().gathers().clone();
    let gathers = Gathers {
        statistics: shared.clone(),
        ..gathers
    };
    for part in 0..3 {
        let mut notes = vec![0.0; gathers.numbers()];
        gathers.send(&mut notes);
        away.gatherings().next().unwrap().take_up(&notes).unwrap();
        away.play(part);
        direct.play(part);
        away.gatherings().next().unwrap().hand_in(&mut notes);
        if part == 1 {
            // Written meanwhile: the worker takes that with its next part.
            let now = shared.read().unwrap();
            shared.write(&now).unwrap();
            here.write(&now).unwrap();
        }
        gathers.replace(&notes);
        assert_eq!(shared.read(), here.read());
    }
    assert_eq!(away.seen, direct.seen);
    let mut notes = vec![0.0; gathers.numbers()];
    gathers.send(&mut notes);
    notes[0] += 1.0;
    let error = away
        .gatherings()
        .next()
        .unwrap()
        .take_up(&notes)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("expected running statistics of the environments"),
        "{error}"
    );
}

/// Environments of a worker that goes on with a copy.
struct Away {
    envs: Six,
    copy: Statistics,
    /// What the collector knows.
    gathers: Gathers,
}

impl Away {
    fn new(norm: &AnyTransform, shared: &Statistics) -> Self {
        let mut envs = Six::new(6, norm, false);
        let gathers = envs.gatherings().next().unwrap().gathers().clone();
        let copy = shared.copied();
        envs.gatherings()
            .for_each(|gathering| gathering.go_on_with(&copy));
        Self {
            envs,
            copy,
            gathers,
        }
    }

    fn sent(&mut self) -> Vec<f64> {
        let mut notes = vec![0.0; self.gathers.numbers()];
        self.gathers.send(&mut notes);
        notes
    }

    /// Fills a part that was sent with `notes`.
    fn play(&mut self, part: u64, notes: &mut [f64]) {
        let take_up = |gathering: &mut Gathering| gathering.take_up(notes).unwrap();
        self.envs.gatherings().for_each(take_up);
        self.envs.play(part);
        self.envs
            .gatherings()
            .for_each(|gathering| gathering.hand_in(notes));
    }
}

#[test]
fn workers_that_each_go_on_with_a_copy_both_contribute() {
    let apart = |shared: &Statistics| -> AnyTransform {
        let norm = VecNormV2::new(["observation"]).with_decay(0.99);
        norm.with_lockstep(Lockstep::Apart).sharing(shared).into()
    };
    for norm in NORMS.into_iter().chain([apart as fn(&Statistics) -> _]) {
        let (shared, here) = (Statistics::new(), Statistics::new());
        let mut both = [0, 1].map(|_| Away::new(&norm(&shared), &shared));
        let mut direct = Six::new(6, &norm(&here), false);
        for part in 0..3 {
            // The first one is two parts ahead when the second hands in.
            let [first, second] = &mut both;
            let mut notes = [first.sent(), first.sent()];
            let mut others = second.sent();
            first.play(part, &mut notes[0]);
            first.play(part + 10, &mut notes[1]);
            second.play(part + 20, &mut others);
            first.gathers.replace(&notes[0]);
            second.gathers.replace(&others);
            first.gathers.replace(&notes[1]);
            for part in [part, part + 20, part + 10] {
                direct.play(part);
            }
        }
        let (numbers, direct) = (shared.read().unwrap(), here.read().unwrap());
        for (got, direct) in numbers.numbers.iter().zip(&direct.numbers) {
            let far = (got - direct).abs();
            assert!(far <= 1e-4 * (1.0 + direct.abs()), "{got} for {direct}");
        }
        for away in &mut both {
            let notes = away.sent();
            let mut gatherings = away.envs.gatherings();
            gatherings.next().unwrap().take_up(&notes).unwrap();
            drop(gatherings);
            assert_eq!(away.copy.read(), shared.read());
        }
    }
}

#[test]
fn what_a_call_of_a_member_changes_reaches_its_owner_and_nothing_else_does() {
    let here = Statistics::new();
    let mut member = Six::new(6, &NORMS[1](&here), true);
    let gathering = member.gatherings().next().unwrap();
    // Another place, as in another process.
    let there = Statistics::new();
    there.write(&here.read().unwrap()).unwrap();
    let owner = Gathers {
        statistics: there.clone(),
        ..gathering.gathers().clone()
    };
    let mut notes = vec![0.0; owner.lent_numbers()];
    let mut call = |change: &dyn Fn()| {
        owner.send(&mut notes);
        gathering.show(&notes);
        change();
        gathering.tell(&mut notes);
        owner.keep(&notes);
        assert_eq!(
            (there.read(), there.is_frozen()),
            (here.read(), here.is_frozen())
        );
        owner.send(&mut notes);
        notes[1]
    };
    let mut other = here.read().unwrap();
    other.numbers.fill(2.0);
    let before = call(&|| ());
    assert_eq!(call(&|| here.set_frozen(true)), before);
    // What was gathered before then does not count.
    assert_eq!(call(&|| here.write(&other).unwrap()), before + 1.0);
    assert_eq!(there.read().unwrap(), other);
}

#[test]
fn statistics_of_something_else_are_refused() {
    let shared = Statistics::new();
    let of = |key: &str| VecNorm::new([key]).sharing(&shared);
    let _first = pendulums(1).transformed(of("observation")).unwrap();
    let error = pendulums(1)
        .transformed(of("reward"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("statistics of VecNorm: expected VecNorm of [\"observation\"] float32 [3], got VecNorm of [\"reward\"] float32 [1]"),
        "{error}"
    );
}

#[test]
fn arguments_that_do_not_fit_are_errors() {
    for decay in [0.0, -1.0, 1.5, f64::NAN] {
        let norm = VecNorm::new(["observation"]).with_decay(decay);
        let error = pendulums(1).transformed(norm).unwrap_err().to_string();
        assert!(
            error.starts_with("decay of VecNorm of Pendulum-v1: expected"),
            "{error}"
        );
    }
    let whole = Serial::from_fn(1, CountingEnv::default).unwrap();
    let error = whole
        .transformed(VecNorm::new(["observation"]))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("expected float32 or float64, got int32")
    );
}
