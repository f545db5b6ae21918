//! Running statistics, of one vector and of several.

use super::Statistics;
use super::vec_driver::VecDriver;
use crate::testing::CountingEnv;
use crate::{
    AnyTransform, Lockstep, Pendulum, RewardSum, Serial, Transform, VecEnv, VecNorm, VecNormV2,
};

fn pendulums(count: usize) -> Serial<Pendulum> {
    Serial::from_fn(count, Pendulum::new).unwrap()
}

/// What `count` pendulums observe, and their rewards, in the reset and in each of `steps` steps with the same actions.
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
    let shared = Statistics::new().unwrap();
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
    let shared = Statistics::new().unwrap();
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
    let count = shared.read().unwrap().unwrap().numbers[6];
    assert_eq!(count, f64::from(3 * 2 * 101 + 1));
}

#[test]
fn frozen_statistics_are_used_and_stay() {
    let shared = Statistics::new().unwrap();
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
    shared.set_frozen(true).unwrap();
    let before = shared.read().unwrap();
    step(&mut moving, 3);
    assert_eq!(shared.read().unwrap(), before);
    shared.set_frozen(false).unwrap();
    step(&mut moving, 1);
    assert_ne!(shared.read().unwrap(), before);
}

#[test]
fn statistics_are_read_and_written_without_environments() {
    let (shared, other) = (Statistics::new().unwrap(), Statistics::new().unwrap());
    assert_eq!(shared.read().unwrap(), None);
    let norm = VecNorm::new(["observation"]).sharing(&shared);
    let mut envs = VecDriver::new(pendulums(1).transformed(norm).unwrap());
    envs.reset_seeded(&[0], 1).unwrap();
    step(&mut envs, 5);
    let gathered = shared.read().unwrap().unwrap();
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
    let opened = read.opened().unwrap();
    drop((other, place));
    assert_eq!(opened.read().unwrap().unwrap(), gathered);
    assert_eq!(opened.section(2).read().unwrap(), None);
    let refused = read.read().unwrap_err().to_string();
    assert!(
        refused.starts_with("shared statistics are gone"),
        "{refused}"
    );
}

#[test]
fn statistics_of_something_else_are_refused() {
    let shared = Statistics::new().unwrap();
    let of = |key: &str| VecNorm::new([key]).sharing(&shared);
    let _first = pendulums(1).transformed(of("observation")).unwrap();
    let error = pendulums(1)
        .transformed(of("reward"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("statistics of VecNorm: expected {\"rule\":\"VecNorm\",\"columns\":[[[\"observation\"],\"float32\",[3]]]}, got {"),
        "{error}"
    );
    let json = serde_json::to_string(&shared).unwrap();
    drop(shared);
    let gone: Statistics = serde_json::from_str(&json).unwrap();
    let norm = VecNorm::new(["observation"]).sharing(&gone);
    let error = pendulums(1).transformed(norm).unwrap_err().to_string();
    assert!(error.starts_with("shared statistics "), "{error}");
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
