use windrow_env::{EnvSpec, Spec};
use windrow_slab::RowBlock;

use super::*;
use crate::noise::tests::{chi_square, chi_square_limit};
use crate::{Head, NetworkPolicy, nn::Sequential, policy_fn};

const ROWS: usize = 64;

fn env(action: Spec) -> EnvSpec {
    EnvSpec::new("env", Spec::unbounded(DType::F32, [1]), action)
}

fn torque(bound: f64) -> Spec {
    Spec::Bounded {
        dtype: DType::F32,
        shape: tensordict::Shape::from_slice(&[2]),
        low: vec![-bound; 2],
        high: vec![bound, f64::INFINITY],
    }
}

/// Always the action 0, in element type `T`.
fn still<T: Element>(spec: &EnvSpec) -> impl Policy + Clone + use<T> {
    let leaves = spec.action_leaves();
    policy_fn(leaves, |_: &PolicyIn<'_>, mut out: RowsMut<'_>| {
        out.get_mut::<T>(Key::new(0))?.fill(T::default());
        Ok(())
    })
}

struct Run<P> {
    spec: EnvSpec,
    policy: Explore<P>,
    envs: EnvRows,
    obs: RowBlock,
    out: RowBlock,
    exploration: ExplorationType,
}

impl<P: Policy> Run<P> {
    fn new(spec: EnvSpec, mut policy: Explore<P>, ids: impl IntoIterator<Item = u32>) -> Self {
        let envs = EnvRows::new(3, ids.into_iter().collect());
        let rows = envs.len();
        let bound = policy.bind(&Binding::new(&spec, rows)).unwrap();
        Self {
            obs: RowBlock::new(&spec.observation_leaves(), rows).unwrap(),
            out: RowBlock::new(&bound.columns, rows).unwrap(),
            exploration: ExplorationType::Random,
            spec,
            policy,
            envs,
        }
    }

    fn step<T: Element>(&mut self) -> Vec<T> {
        let input = PolicyIn {
            obs: self.obs.rows(),
            envs: &self.envs,
            exploration: self.exploration,
        };
        self.policy.act(&input, self.out.rows_mut()).unwrap();
        self.envs.advance();
        self.out.rows().get::<T>(Key::new(0)).unwrap().to_vec()
    }
}

fn ids() -> std::ops::Range<u32> {
    0..ROWS as u32
}

/// Mean and variance.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|x| (x - mean).powi(2));
    (mean, squares.sum::<f64>() / n)
}

#[test]
fn schedules_reach_their_end_and_stay() {
    let linear = Schedule::linear(1.0, 0.0, 4);
    assert_eq!(
        [0, 1, 4, 5].map(|frame| linear.at(frame)),
        [1.0, 0.75, 0.0, 0.0]
    );
    let exponential = Schedule::exponential(1.0, 1e-4, 4);
    assert!((exponential.at(1) - 0.1).abs() < 1e-12 && exponential.at(9) == 1e-4);
    assert_eq!(Schedule::constant(0.3).at(7), 0.3);
}

#[test]
fn a_share_of_epsilon_has_actions_drawn_uniformly() {
    let spec = env(Spec::discrete(4));
    let policy = Explore::epsilon_greedy(still::<i64>(&spec), Schedule::constant(0.4));
    let mut run = Run::new(spec, policy, ids());
    let mut counts = [0; 4];
    for _ in 0..500 {
        run.step::<i64>()
            .into_iter()
            .for_each(|action| counts[action as usize] += 1);
    }
    let expected = [0.7, 0.1, 0.1, 0.1];
    let got = chi_square(&counts, expected.into_iter());
    assert!(got < chi_square_limit(3.0), "{counts:?}: {got}");
}

#[test]
fn epsilon_follows_the_frames_of_each_environment() {
    let spec = env(Spec::discrete(1000));
    let policy = Explore::epsilon_greedy(still::<i64>(&spec), Schedule::linear(1.0, 0.0, 100));
    let mut run = Run::new(spec, policy, ids());
    let share = |actions: &[i64]| actions.iter().filter(|&&action| action != 0).count();
    assert!(share(&run.step::<i64>()) > ROWS - 4);
    run.envs.set_frame(50);
    let halves: usize = (0..10).map(|_| share(&run.step::<i64>())).sum();
    assert!((230..350).contains(&halves), "{halves} of 640");
    run.envs.set_frame(100);
    assert_eq!(share(&run.step::<i64>()), 0);
}

#[test]
fn random_actions_are_among_the_legal_ones() {
    let mask = Spec::Binary {
        shape: tensordict::Shape::from_slice(&[3]),
    };
    let observation = Spec::composite([("mask".to_owned(), mask)]);
    let mut spec = EnvSpec::new("env", observation, Spec::discrete(3));
    spec.masks = vec![("action".into(), "mask".into())];
    let policy = Explore::epsilon_greedy(still::<i64>(&spec), Schedule::constant(1.0));
    let mut run = Run::new(spec, policy, ids());
    for row in run
        .obs
        .rows_mut()
        .get_mut::<i8>(Key::new(0))
        .unwrap()
        .chunks_exact_mut(3)
    {
        row.copy_from_slice(&[0, 1, 1]);
    }
    let actions = run.step::<i64>();
    assert!(actions.contains(&1) && actions.contains(&2) && !actions.contains(&0));
}

#[test]
fn gaussian_noise_has_its_deviation_and_actions_keep_their_bounds() {
    let spec = env(torque(1e9));
    let policy = Explore::gaussian(still::<f32>(&spec), Schedule::linear(2.0, 0.5, 1000));
    let mut run = Run::new(spec, policy, ids());
    let at = |run: &mut Run<_>, frame| {
        let mut values = Vec::new();
        for _ in 0..200 {
            run.envs.set_frame(frame);
            run.envs.set_seed(values.len() as u64);
            values.extend(run.step::<f32>().into_iter().map(f64::from));
        }
        moments(&values)
    };
    for (frame, deviation) in [(0, 2.0), (500, 1.25), (1000, 0.5), (5000, 0.5)] {
        let (mean, variance) = at(&mut run, frame);
        // 25600 numbers: four deviations of the mean and of the variance.
        assert!(mean.abs() < 4.0 * deviation / 160.0, "{mean}");
        assert!(
            (variance / (deviation * deviation) - 1.0).abs() < 4.0 * (2.0f64 / 25600.0).sqrt(),
            "{variance}"
        );
    }
    let spec = env(torque(0.5));
    let policy = Explore::gaussian(still::<f32>(&spec), Schedule::constant(3.0));
    let actions = Run::new(spec, policy, ids()).step::<f32>();
    let (bounded, half): (Vec<f32>, Vec<f32>) =
        actions.chunks(2).map(|row| (row[0], row[1])).unzip();
    assert!(
        bounded.iter().all(|x| x.abs() <= 0.5) && bounded.contains(&0.5) && bounded.contains(&-0.5)
    );
    assert!(half.iter().all(|&x| x >= -0.5) && half.iter().any(|&x| x > 0.5));
}

#[test]
fn rounded_actions_keep_their_bounds_and_nan_stays() {
    let bounds = Some(&(-0.1, 0.1));
    for action in [-5.0f32, 5.0] {
        assert!(f64::from(action.plus(0.0, bounds)).abs() <= 0.1);
    }
    assert!(f32::NAN.plus(0.0, bounds).is_nan() && f64::NAN.plus(0.0, bounds).is_nan());
}

#[test]
fn a_process_has_its_variance_and_correlation_and_begins_anew_with_each_episode() {
    let process = OrnsteinUhlenbeck {
        theta: 0.5,
        sigma: 0.4,
        dt: 0.5,
        ..OrnsteinUhlenbeck::default()
    };
    let spec = env(torque(1e9));
    let policy = Explore::ornstein_uhlenbeck(still::<f32>(&spec), process);
    let mut run = Run::new(spec, policy, ids());
    let (keep, step) = (
        1.0 - process.theta * process.dt,
        process.sigma * process.dt.sqrt(),
    );
    let mut last: Vec<f64> = Vec::new();
    let (mut values, mut products) = (Vec::new(), 0.0);
    for frame in 0..600 {
        let now: Vec<f64> = run.step::<f32>().into_iter().map(f64::from).collect();
        if frame > 50 {
            products += now.iter().zip(&last).map(|(a, b)| a * b).sum::<f64>();
            values.extend_from_slice(&now);
        }
        last = now;
    }
    let (mean, variance) = moments(&values);
    let expected = step * step / (1.0 - keep * keep);
    assert!(
        mean.abs() < 0.02 && (variance / expected - 1.0).abs() < 0.05,
        "{mean} {variance} {expected}"
    );
    let correlation = products / values.len() as f64 / variance;
    assert!((correlation - keep).abs() < 0.02, "{correlation}");
    // The first step of an episode comes from 0, and others go on.
    (0..ROWS / 2).for_each(|row| run.envs.begin(row));
    let now: Vec<f64> = run.step::<f32>().into_iter().map(f64::from).collect();
    let anew = moments(&now[..ROWS]).1;
    assert!((anew / (step * step) - 1.0).abs() < 0.6, "{anew}");
    let changes: Vec<f64> = now[ROWS..]
        .iter()
        .zip(&last[ROWS..])
        .map(|(a, b)| a - keep * b)
        .collect();
    assert!((moments(&changes).1 / (step * step) - 1.0).abs() < 0.6);
}

#[test]
fn noise_does_not_depend_on_how_environments_are_spread() {
    let make = |spec: &EnvSpec| Explore::gaussian(still::<f32>(spec), Schedule::constant(1.0));
    let process = |spec: &EnvSpec| {
        Explore::ornstein_uhlenbeck(still::<f32>(spec), OrnsteinUhlenbeck::default())
    };
    fn check<P: Policy>(make: impl Fn(&EnvSpec) -> Explore<P>) {
        let run = |ids: Vec<u32>| {
            let spec = env(torque(1e9));
            let mut run = Run::new(spec.clone(), make(&spec), ids);
            (0..5).map(|_| run.step::<f32>()).collect::<Vec<_>>()
        };
        let (all, last) = (run(vec![0, 1, 2]), run(vec![2]));
        assert!(
            all.iter()
                .zip(&last)
                .all(|(all, last)| all[4..] == last[..])
        );
    }
    check(make);
    check(process);
}

#[test]
fn nothing_is_changed_where_nothing_is_explored() {
    let spec = env(torque(1.0));
    let policy = Explore::gaussian(still::<f32>(&spec), Schedule::constant(1.0));
    let mut run = Run::new(spec, policy, ids());
    for exploration in [
        ExplorationType::Mode,
        ExplorationType::Mean,
        ExplorationType::Deterministic,
    ] {
        run.exploration = exploration;
        assert!(run.step::<f32>().iter().all(|&x| x == 0.0));
    }
    assert!(run.spec.id == "env");
}

#[test]
fn numbers_and_actions_that_do_not_fit_are_errors() {
    let (coin, pull) = (env(Spec::discrete(2)), env(torque(1.0)));
    let bound = |spec: &EnvSpec, how| {
        let mut policy = Explore::by(RandomPolicy::new(), how);
        policy
            .bind(&Binding::new(spec, 1))
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let told = |result: Result<(), String>, part: &str| {
        let error = result.unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    told(
        bound(&coin, Exploration::Greedy(Schedule::constant(1.5))),
        "epsilon: expected numbers from 0 to 1, got Schedule",
    );
    told(
        bound(&pull, Exploration::Gaussian(Schedule::constant(f64::NAN))),
        "deviation: expected finite numbers of at least 0, got Schedule",
    );
    told(
        bound(
            &pull,
            Exploration::Gaussian(Schedule::exponential(1.0, 0.0, 5)),
        ),
        "at least 0, both positive as factors need, got Schedule",
    );
    let process = OrnsteinUhlenbeck {
        dt: 0.0,
        ..OrnsteinUhlenbeck::default()
    };
    told(bound(&pull, Exploration::Process(process)), "dt above 0");
    told(
        bound(&coin, Exploration::Gaussian(Schedule::constant(1.0))),
        "exploration noise",
    );
    assert!(bound(&pull, Exploration::Greedy(Schedule::constant(0.5))).is_ok());
}

#[test]
fn a_recipe_makes_the_same_policy_elsewhere() {
    let spec = env(torque(1.0));
    let net = Sequential::new().linear(1, 2).seed(1);
    let policy = NetworkPolicy::new(net, Head::Deterministic);
    let noisy = Explore::ornstein_uhlenbeck(
        Explore::gaussian(policy, Schedule::exponential(1.0, 0.1, 9)),
        OrnsteinUhlenbeck::default(),
    );
    let recipe = PolicyRecipe::from_bytes(&noisy.recipe().unwrap().to_bytes().unwrap()).unwrap();
    let mut made = recipe.build(0).unwrap();
    let envs = EnvRows::new(1, vec![0, 1]);
    let act = |policy: &mut dyn Policy| {
        let bound = policy.bind(&Binding::new(&spec, 2)).unwrap();
        let obs = RowBlock::new(&spec.observation_leaves(), 2).unwrap();
        let mut out = RowBlock::new(&bound.columns, 2).unwrap();
        let input = PolicyIn {
            obs: obs.rows(),
            envs: &envs,
            exploration: ExplorationType::Random,
        };
        policy.act(&input, out.rows_mut()).unwrap();
        out.rows().get::<f32>(Key::new(0)).unwrap().to_vec()
    };
    assert!(made.weights().same_bits(&noisy.weights()) && !noisy.weights().is_empty());
    assert_eq!(act(&mut made), act(&mut noisy.clone()));
    let code = policy_fn([], |_: &PolicyIn<'_>, _: RowsMut<'_>| Ok(()));
    let code = Explore::gaussian(code, Schedule::constant(1.0));
    assert!(code.recipe().is_none());
}
