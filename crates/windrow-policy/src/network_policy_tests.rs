use tensordict::{DType, Tensor};
use windrow_env::{EnvSpec, Spec};
use windrow_slab::{Key, RowBlock};

use crate::nn::Sequential;
use crate::noise::tests::{chi_square, chi_square_limit};
use crate::{
    Binding, EnvRows, ExplorationType, Head, NetworkPolicy, Policy, PolicyError, PolicyIn, Scale,
    Weights, policy_fn,
};

use ExplorationType::{Deterministic, Mean, Mode, Random};

#[path = "network_policy_error_tests.rs"]
mod errors;

fn env(inputs: usize, action: Spec) -> EnvSpec {
    EnvSpec::new("Test-v0", Spec::unbounded(DType::F32, [inputs]), action)
}

fn real(n: usize) -> Spec {
    Spec::unbounded(DType::F32, [n])
}

/// A network whose outputs are `outputs` whatever it reads.
fn constant(outputs: &[f32]) -> Sequential {
    let mut net = Sequential::new().linear(1, outputs.len());
    let mut weights = Weights::new([]);
    let n = outputs.len();
    let set = |weights: &mut Weights, name: &str, values: Vec<f32>, shape: &[usize]| {
        weights
            .set(name, Tensor::from_vec(values, shape).unwrap())
            .unwrap();
    };
    set(&mut weights, "0.weight", vec![0.0; n], &[n, 1]);
    set(&mut weights, "0.bias", outputs.to_vec(), &[n]);
    net.load(&weights).unwrap();
    net
}

/// One bound policy with rows to observe and to write.
struct Stage {
    policy: Box<dyn Policy>,
    obs: RowBlock,
    out: RowBlock,
    rows: usize,
}

impl Stage {
    fn new(mut policy: impl Policy + 'static, env: &EnvSpec, rows: usize) -> Self {
        let spec = policy.bind(&Binding::new(env, rows)).unwrap();
        Self {
            policy: Box::new(policy),
            obs: RowBlock::new(&env.observation_leaves(), rows).unwrap(),
            out: RowBlock::new(&spec.columns, rows).unwrap(),
            rows,
        }
    }

    fn act(&mut self, frame: u64, exploration: ExplorationType) -> Result<(), PolicyError> {
        let mut envs = EnvRows::new(3, (10..10 + self.rows as u32).collect());
        envs.set_frame(frame);
        let input = PolicyIn {
            obs: self.obs.rows(),
            envs: &envs,
            exploration,
        };
        self.policy.act(&input, self.out.rows_mut())
    }

    fn column<T: tensordict::Element>(&self, leaf: usize) -> Vec<T> {
        self.out.rows().get::<T>(Key::new(leaf)).unwrap().to_vec()
    }
}

#[test]
fn categorical_samples_follow_the_logits() {
    let logits = [0.3_f32, -1.0, 1.2, f32::NEG_INFINITY];
    let policy = NetworkPolicy::new(constant(&logits), Head::Categorical)
        .return_log_prob(true)
        .return_params(true);
    let mut stage = Stage::new(policy, &env(1, Spec::discrete(4)), 10);
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let p: Vec<_> = logits.iter().map(|&x| f64::from(x).exp() / total).collect();
    let mut counts = [0; 4];
    for frame in 0..4000 {
        stage.act(frame, Random).unwrap();
        let actions: Vec<i64> = stage.column(0);
        for (&action, log_prob) in actions.iter().zip(stage.column::<f32>(1)) {
            counts[action as usize] += 1;
            assert!((f64::from(log_prob) - p[action as usize].ln()).abs() < 1e-6);
        }
        assert_eq!(stage.column::<f32>(2)[..4], logits);
    }
    assert_eq!(counts[3], 0);
    // Significance 1e-4.
    let got = chi_square(&counts[..3], p[..3].iter().copied());
    assert!(got < chi_square_limit(2.0), "{counts:?}: {got}");
    for exploration in [Mode, Mean, Deterministic] {
        stage.act(0, exploration).unwrap();
        assert_eq!(stage.column::<i64>(0), [2; 10]);
    }
}

#[test]
fn several_choices_are_independent() {
    let logits = [0.0, 1.0, 0.5, -0.5, 0.0];
    let policy = NetworkPolicy::new(constant(&logits), Head::Categorical).return_log_prob(true);
    let action = Spec::MultiDiscrete { nvec: vec![2, 3] };
    let mut stage = Stage::new(policy, &env(1, action), 10);
    let softmax = |x: &[f32]| {
        let total: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
        x.iter()
            .map(|&x| f64::from(x).exp() / total)
            .collect::<Vec<_>>()
    };
    let (p, q) = (softmax(&logits[..2]), softmax(&logits[2..]));
    let joint: Vec<_> = p
        .iter()
        .flat_map(|p| q.iter().map(move |q| p * q))
        .collect();
    let mut counts = [0; 6];
    for frame in 0..4000 {
        stage.act(frame, Random).unwrap();
        let actions: Vec<i64> = stage.column(0);
        for (pair, log_prob) in actions.chunks(2).zip(stage.column::<f32>(1)) {
            let cell = (pair[0] * 3 + pair[1]) as usize;
            counts[cell] += 1;
            assert!((f64::from(log_prob) - joint[cell].ln()).abs() < 1e-6);
        }
    }
    let got = chi_square(&counts, joint.iter().copied());
    assert!(got < chi_square_limit(5.0), "{counts:?}: {got}");
}

/// Mean and variance of a column against `expected`, significance 1e-6 each.
fn assert_normal(values: &[f64], mean: f64, deviation: f64) {
    let n = values.len() as f64;
    let got = values.iter().sum::<f64>() / n;
    assert!(
        (got - mean).abs() < 4.9 * deviation / n.sqrt(),
        "mean {got}, expected {mean}"
    );
    let got = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let limit = 4.9 * deviation.powi(2) * (2.0 / n).sqrt();
    assert!((got - deviation.powi(2)).abs() < limit, "variance {got}");
}

#[test]
fn normal_samples_have_the_networks_mean_and_deviation() {
    let outputs = [0.5_f32, -2.0, 0.0, 1.0];
    let scales = [0.0_f32, 1.0].map(|x| crate::ScaleMapping::default().apply(x));
    let policy = NetworkPolicy::new(constant(&outputs), Head::Normal(Scale::softplus()))
        .return_log_prob(true)
        .return_params(true);
    let mut stage = Stage::new(policy, &env(1, real(2)), 10);
    let mut all = [Vec::new(), Vec::new()];
    for frame in 0..4000 {
        stage.act(frame, Random).unwrap();
        let actions: Vec<f32> = stage.column(0);
        for (action, log_prob) in actions.chunks(2).zip(stage.column::<f32>(1)) {
            let mut expected = 0.0;
            for i in 0..2 {
                let z = f64::from(action[i] - outputs[i]) / f64::from(scales[i]);
                expected -=
                    0.5 * z * z + f64::from(scales[i]).ln() + 0.5 * std::f64::consts::TAU.ln();
                all[i].push(f64::from(action[i]));
            }
            assert!((f64::from(log_prob) - expected).abs() < 1e-5);
        }
        assert_eq!(stage.column::<f32>(2)[..2], outputs[..2]);
        assert_eq!(stage.column::<f32>(3)[..2], scales);
    }
    for i in 0..2 {
        assert_normal(&all[i], f64::from(outputs[i]), f64::from(scales[i]));
    }
    stage.act(0, Mode).unwrap();
    assert_eq!(stage.column::<f32>(0)[..2], outputs[..2]);
}

#[test]
fn squashed_samples_lie_within_the_bounds() {
    let outputs = [0.5_f32, 30.0, 0.0, 0.0];
    let head = Head::TanhNormal(Scale::softplus());
    let policy = NetworkPolicy::new(constant(&outputs), head).return_log_prob(true);
    let action = Spec::bounded(&[-2.0, 0.1], &[2.0, 0.7]).unwrap();
    let mut stage = Stage::new(policy, &env(1, action), 10);
    let mut before = Vec::new();
    for frame in 0..4000 {
        stage.act(frame, Random).unwrap();
        let actions: Vec<f32> = stage.column(0);
        assert!(
            actions
                .chunks(2)
                .all(|a| a[0].abs() <= 2.0 && (0.1..=0.7).contains(&a[1]))
        );
        assert!(stage.column::<f32>(1).iter().all(|p| p.is_finite()));
        before.extend(actions.chunks(2).map(|a| (f64::from(a[0]) / 2.0).atanh()));
    }
    assert_normal(&before, 0.5, 1.0);
    stage.act(0, Deterministic).unwrap();
    let mode = stage.column::<f32>(0);
    assert!(
        (mode[0] - 2.0 * 0.5_f32.tanh()).abs() < 1e-6 && mode[1] == 0.7,
        "{mode:?}"
    );
}

#[test]
fn deviations_may_be_a_parameter() {
    let head = Head::Normal(Scale::log_std());
    let mut policy = NetworkPolicy::new(constant(&[1.0, 2.0]), head).prefix("actor.");
    let weights = policy.weights();
    assert_eq!(weights.get("actor.log_std").unwrap().shape(), [2]);

    let mut other = weights.clone();
    other
        .set(
            "actor.log_std",
            Tensor::from_vec(vec![-1.0_f32, 0.5], [2]).unwrap(),
        )
        .unwrap();
    other
        .set("critic", Tensor::from_vec(vec![0.0_f32], [1]).unwrap())
        .unwrap();
    policy.load(&other).unwrap();
    assert_eq!(
        policy
            .weights()
            .get("actor.log_std")
            .unwrap()
            .to_vec::<f32>()
            .unwrap(),
        [-1.0, 0.5]
    );

    other
        .set(
            "actor.log_std",
            Tensor::from_vec(vec![9.0_f32], [1]).unwrap(),
        )
        .unwrap();
    let error = policy.load(&other).unwrap_err().to_string();
    assert_eq!(
        error,
        "parameters do not fit: \"actor.log_std\": expected shape [2], got [1]"
    );
    assert_eq!(
        policy
            .weights()
            .get("actor.log_std")
            .unwrap()
            .to_vec::<f32>()
            .unwrap(),
        [-1.0, 0.5]
    );

    let mut stage = Stage::new(policy, &env(1, real(2)), 10);
    let mut second = Vec::new();
    for frame in 0..4000 {
        stage.act(frame, Random).unwrap();
        second.extend(stage.column::<f32>(0).chunks(2).map(|a| f64::from(a[1])));
    }
    assert_normal(&second, 2.0, 0.5_f64.exp());
}

#[test]
fn deterministic_outputs_are_the_action() {
    let policy = NetworkPolicy::new(constant(&[0.25, -3.0]), Head::Deterministic);
    let mut stage = Stage::new(policy, &env(1, Spec::unbounded(DType::F64, [2])), 2);
    stage.act(0, Random).unwrap();
    assert_eq!(stage.column::<f64>(0), [0.25, -3.0, 0.25, -3.0]);

    let policy = NetworkPolicy::new(constant(&[0.25, 0.75, 0.5]), Head::Deterministic);
    let mut stage = Stage::new(policy, &env(1, Spec::discrete(3)), 2);
    stage.act(0, Random).unwrap();
    assert_eq!(stage.column::<i64>(0), [1, 1]);
}

#[test]
fn actions_do_not_depend_on_the_number_of_rows() {
    let net = || Sequential::new().linear(3, 32).tanh().linear(32, 4).seed(2);
    let heads = [
        (Head::Categorical, Spec::discrete(4)),
        (Head::Normal(Scale::softplus()), real(2)),
        (
            Head::TanhNormal(Scale::softplus()),
            Spec::bounded(&[-1.0; 2], &[1.0; 2]).unwrap(),
        ),
    ];
    for (head, action) in heads {
        let env = env(3, action);
        let run = |rows: usize| {
            let policy = NetworkPolicy::new(net(), head.clone()).return_log_prob(true);
            let mut stage = Stage::new(policy, &env, rows);
            let mut noise = crate::Noise::new(1, 1, 1);
            for x in stage.obs.rows_mut().get_mut::<f32>(Key::new(0)).unwrap() {
                *x = noise.f32();
            }
            stage.act(7, Random).unwrap();
            let actions: Vec<f64> = match head {
                Head::Categorical => stage.column::<i64>(0).iter().map(|&a| a as f64).collect(),
                _ => stage
                    .column::<f32>(0)
                    .iter()
                    .map(|&a| f64::from(a))
                    .collect(),
            };
            (actions, stage.column::<f32>(1))
        };
        let (actions, log_probs) = run(70);
        for rows in 1..70 {
            let (a, p) = run(rows);
            assert_eq!(a, actions[..a.len()], "{rows} rows of {head:?}");
            assert_eq!(p, log_probs[..rows], "{rows} rows of {head:?}");
        }
    }
}

#[test]
fn observation_leaves_are_read_by_name_and_side_by_side() {
    let observation = Spec::composite([
        ("position", Spec::unbounded(DType::F64, [2])),
        ("image", Spec::unbounded(DType::U8, [2])),
        ("velocity", Spec::unbounded(DType::F32, [1])),
    ]);
    let env = EnvSpec::new("Test-v0", observation, real(3));
    // The identity, so that the action shows what was read.
    let mut weights = Weights::new([]);
    let identity = vec![1.0_f32, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    weights
        .set("0.weight", Tensor::from_vec(identity, [3, 3]).unwrap())
        .unwrap();
    let mut net = Sequential::new().linear_without_bias(3, 3);
    net.load(&weights).unwrap();
    let policy = NetworkPolicy::new(net, Head::Deterministic);
    let unnamed = policy
        .clone()
        .bind(&Binding::new(&env, 1))
        .unwrap_err()
        .to_string();
    assert!(
        unnamed.ends_with(r#"expected "observation", got "position", "image", "velocity""#),
        "{unnamed}"
    );
    let image = policy
        .clone()
        .in_key("image")
        .bind(&Binding::new(&env, 1))
        .unwrap_err()
        .to_string();
    assert!(
        image.contains("expected float32 or float64, got uint8"),
        "{image}"
    );

    let mut stage = Stage::new(policy.in_key("velocity").in_key("position"), &env, 2);
    let mut rows = stage.obs.rows_mut();
    rows.get_mut(Key::new(0))
        .unwrap()
        .copy_from_slice(&[1.0_f64, 2.0, 3.0, 4.0]);
    rows.get_mut(Key::new(2))
        .unwrap()
        .copy_from_slice(&[5.0_f32, 6.0]);
    stage.act(0, Random).unwrap();
    assert_eq!(stage.column::<f32>(0), [5.0, 1.0, 2.0, 6.0, 3.0, 4.0]);
}

#[test]
fn a_function_is_a_policy() {
    use windrow_slab::LeafSpec;
    let columns = [
        LeafSpec::new("action", DType::I64, []),
        LeafSpec::new("value", DType::F32, []),
    ];
    let policy = policy_fn(columns, |input, mut out| {
        let ids = input.envs.ids().iter().map(|&id| i64::from(id) % 2);
        for (action, id) in out.get_mut::<i64>(Key::new(0))?.iter_mut().zip(ids) {
            *action = id;
        }
        out.get_mut::<f32>(Key::new(1))?.fill(0.5);
        Ok(())
    });
    let mut stage = Stage::new(policy, &env(1, Spec::discrete(2)), 3);
    stage.act(0, Random).unwrap();
    assert_eq!(stage.column::<i64>(0), [0, 1, 0]);
    assert_eq!(stage.column::<f32>(1), [0.5; 3]);

    let wrong = |columns: &[LeafSpec]| {
        let mut policy = policy_fn(columns.iter().cloned(), |_, _| Ok(()));
        policy
            .bind(&Binding::new(&env(1, Spec::discrete(2)), 1))
            .unwrap_err()
            .to_string()
    };
    let error = wrong(&[LeafSpec::new("action", DType::F32, [])]);
    assert!(
        error.ends_with(r#"column 0: expected "action" int64 [], got "action" float32 []"#),
        "{error}"
    );
    assert!(wrong(&[]).ends_with("got no such column"));
    let failing = policy_fn([LeafSpec::new("action", DType::I64, [])], |_, _| {
        Err(PolicyError::failed("out of ideas"))
    });
    let mut stage = Stage::new(failing, &env(1, Spec::discrete(2)), 1);
    assert_eq!(
        stage.act(0, Random).unwrap_err().to_string(),
        "out of ideas"
    );
}

#[test]
fn one_hot_choices_are_those_written_as_indices() {
    let logits = [0.0, 1.0, 0.5, -0.5, 0.0];
    let ones = |vector: &[i64]| {
        assert_eq!(vector.iter().sum::<i64>(), 1);
        vector.iter().position(|&x| x == 1).unwrap() as i64
    };
    let act = |action: Spec, head: Head, exploration| {
        let policy = NetworkPolicy::new(constant(&logits), head);
        let mut stage = Stage::new(policy, &env(1, action), 10);
        stage.act(4, exploration).unwrap();
        stage.column::<i64>(0)
    };
    for exploration in [Random, Mode] {
        let indices = act(Spec::discrete(5), Head::Categorical, exploration);
        let vectors = act(Spec::one_hot(5), Head::Categorical, exploration);
        assert_eq!(vectors.chunks(5).map(ones).collect::<Vec<_>>(), indices);

        let nvec = vec![2, 3];
        let several = Spec::MultiDiscrete { nvec: nvec.clone() };
        let indices = act(several, Head::Categorical, exploration);
        let vectors = act(Spec::OneHot { nvec }, Head::Categorical, exploration);
        let decoded = vectors
            .chunks(5)
            .flat_map(|row| [ones(&row[..2]), ones(&row[2..])]);
        assert_eq!(decoded.collect::<Vec<_>>(), indices);
    }
    let largest = act(Spec::one_hot(5), Head::Deterministic, Random);
    assert_eq!(largest, [0, 1, 0, 0, 0].repeat(10));
}
