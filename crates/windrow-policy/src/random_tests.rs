use tensordict::{DType, Element, Tensor};
use windrow_env::{EnvSpec, Spec};
use windrow_slab::{Key, RowBlock};

use crate::noise::tests::{chi_square, chi_square_limit};
use crate::{
    Binding, EnvRows, ExplorationType, Policy, PolicyError, PolicyIn, RandomPolicy, Weights,
};

fn env(action: Spec) -> EnvSpec {
    EnvSpec::new("Test", Spec::unbounded(DType::F32, [1]), action)
}

/// The actions of leaf `leaf` in `rows` environments at frames `0..steps`,
/// `[steps, rows, elements]`.
fn sample<T: Element>(action: Spec, leaf: usize, rows: usize, steps: u64) -> Vec<T> {
    let env = env(action);
    let mut policy = RandomPolicy::new();
    let spec = policy.bind(&Binding::new(&env, 1)).unwrap();
    assert_eq!(spec.columns, env.action_leaves());
    let obs = RowBlock::new(&env.observation_leaves(), rows).unwrap();
    let mut out = RowBlock::new(&spec.columns, rows).unwrap();
    let mut envs = EnvRows::new(5, (0..rows as u32).collect());
    let mut all = Vec::new();
    for _ in 0..steps {
        let input = PolicyIn {
            obs: obs.rows(),
            envs: &envs,
            exploration: ExplorationType::Random,
        };
        policy.act(&input, out.rows_mut()).unwrap();
        envs.advance();
        all.extend_from_slice(out.rows().get::<T>(Key::new(leaf)).unwrap());
    }
    all
}

/// Significance 1e-4.
fn assert_uniform(counts: &[usize]) {
    let n = counts.len() as f64;
    let got = chi_square(counts, std::iter::repeat(1.0 / n));
    assert!(got < chi_square_limit(n - 1.0), "{counts:?}: {got}");
}

fn count(values: impl Iterator<Item = usize>, n: usize) -> Vec<usize> {
    let mut counts = vec![0; n];
    values.for_each(|value| counts[value] += 1);
    counts
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len() as f64;
    values.sum::<f64>() / n
}

#[test]
fn discrete_actions_are_uniform() {
    for n in [1, 2, 6, 18] {
        let actions: Vec<i64> = sample(Spec::discrete(n), 0, 8, 5000);
        if n > 1 {
            assert_uniform(&count(actions.iter().map(|&a| a as usize), n));
        }
    }
    let huge = 1 << 40;
    let actions: Vec<i64> = sample(Spec::discrete(huge), 0, 20, 500);
    assert_uniform(&count(actions.iter().map(|&a| (a >> 36) as usize), 16));
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    for action in [Spec::discrete(7), Spec::discrete(1 << 40)] {
        let wide: Vec<i64> = sample(action.clone(), 0, 67, 20);
        for rows in 1..67 {
            let narrow: Vec<i64> = sample(action.clone(), 0, rows, 20);
            for (narrow, wide) in narrow.chunks(rows).zip(wide.chunks(67)) {
                assert_eq!(*narrow, wide[..rows], "{rows} rows");
            }
        }
    }
}

#[test]
fn multi_discrete_and_binary_elements_are_uniform_and_independent() {
    let spec = Spec::MultiDiscrete { nvec: vec![3, 4] };
    let actions: Vec<i64> = sample(spec, 0, 8, 5000);
    let pairs = actions
        .chunks(2)
        .map(|pair| (pair[0] * 4 + pair[1]) as usize);
    assert_uniform(&count(pairs, 12));

    let spec = Spec::Binary {
        shape: [4].into_iter().collect(),
    };
    let bits: Vec<i8> = sample(spec, 0, 8, 5000);
    let words = bits
        .chunks(4)
        .map(|bits| bits.iter().fold(0, |word, &bit| word * 2 + bit as usize));
    assert_uniform(&count(words, 16));
}

#[test]
fn bounded_reals_are_uniform_and_within_their_bounds() {
    let spec = Spec::bounded(&[-2.0, 5.0, 1.0], &[2.0, 5.5, 1.0]).unwrap();
    let actions: Vec<f32> = sample(spec, 0, 8, 5000);
    let bin = |x: f32, low: f32, high: f32| (((x - low) / (high - low) * 20.0) as usize).min(19);
    assert!(
        actions
            .chunks(3)
            .all(|a| (-2.0..=2.0).contains(&a[0]) && (5.0..=5.5).contains(&a[1]) && a[2] == 1.0)
    );
    assert_uniform(&count(actions.chunks(3).map(|a| bin(a[0], -2.0, 2.0)), 20));
    assert_uniform(&count(actions.chunks(3).map(|a| bin(a[1], 5.0, 5.5)), 20));

    let all = Spec::bounded(&[-f32::MAX], &[f32::MAX]).unwrap();
    let actions: Vec<f32> = sample(all, 0, 8, 500);
    assert!(actions.iter().all(|x| x.is_finite()));
}

/// Significance 1e-6: means of exponential and normal deviates, deviation `1 / √n`.
#[test]
fn reals_without_a_bound_are_exponential_or_normal() {
    let inf = f32::INFINITY;
    let spec = Spec::bounded(&[1.0, -inf, -inf], &[inf, 1.0, inf]).unwrap();
    let actions: Vec<f32> = sample(spec, 0, 8, 5000);
    let limit = 4.9 / (40_000_f64).sqrt();
    for (element, expected) in [2.0, 0.0, 0.0].into_iter().enumerate() {
        let values: Vec<_> = actions.chunks(3).map(|a| f64::from(a[element])).collect();
        let got = mean(values.iter().copied());
        assert!((got - expected).abs() < limit, "element {element}: {got}");
    }
    assert!(actions.chunks(3).all(|a| a[0] >= 1.0 && a[1] <= 1.0));
    let spec = Spec::unbounded(DType::F64, [2]);
    let squares: Vec<_> = sample::<f64>(spec, 0, 8, 5000)
        .iter()
        .map(|x| x * x)
        .collect();
    assert!((mean(squares.iter().copied()) - 1.0).abs() < 4.9 * (2.0 / 80_000_f64).sqrt());
}

#[test]
fn integers_reach_both_bounds() {
    let bounded = |dtype, low: f64, high: f64| Spec::Bounded {
        dtype,
        shape: [1].into_iter().collect(),
        low: vec![low],
        high: vec![high],
    };
    let small: Vec<i16> = sample(bounded(DType::I16, -3.0, 2.0), 0, 8, 5000);
    assert_uniform(&count(small.iter().map(|&x| (x + 3) as usize), 6));
    let bytes: Vec<u8> = sample(Spec::unbounded(DType::U8, [3]), 0, 8, 5000);
    assert_uniform(&count(bytes.iter().map(|&x| x as usize), 256));
    let flags: Vec<bool> = sample(Spec::unbounded(DType::Bool, []), 0, 8, 5000);
    assert_uniform(&count(flags.iter().map(|&x| usize::from(x)), 2));
    let free: Vec<i64> = sample(Spec::unbounded(DType::I64, []), 0, 8, 5000);
    let got = mean(free.iter().map(|&x| x as f64));
    assert!(
        (got + 0.5).abs() < 4.9 * 1.1 / 200.0,
        "mean of a normal deviate rounded down: {got}"
    );
}

#[test]
fn leaves_of_a_composite_are_independent() {
    let spec = Spec::composite([("a", Spec::discrete(4)), ("b", Spec::discrete(4))]);
    let a: Vec<i64> = sample(spec.clone(), 0, 8, 5000);
    let b: Vec<i64> = sample(spec, 1, 8, 5000);
    assert_uniform(&count(
        a.iter().zip(&b).map(|(a, b)| (a * 4 + b) as usize),
        16,
    ));
}

#[test]
fn misuse_is_an_error() {
    let env = env(Spec::discrete(0));
    let error = RandomPolicy::new()
        .bind(&Binding::new(&env, 1))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("Test") && error.contains("action leaf \"action\""),
        "{error}"
    );

    let obs = RowBlock::new(&[], 1).unwrap();
    let mut out = RowBlock::new(&[], 1).unwrap();
    let input = PolicyIn {
        obs: obs.rows(),
        envs: &EnvRows::new(0, vec![0]),
        exploration: ExplorationType::Random,
    };
    let mut policy = RandomPolicy::new();
    assert!(matches!(
        policy.act(&input, out.rows_mut()),
        Err(PolicyError::NotBound { .. })
    ));

    let mut weights = Weights::new([]);
    policy.load(&weights).unwrap();
    weights
        .set("0.weight", Tensor::from_vec(vec![1.0_f32], [1]).unwrap())
        .unwrap();
    let error = policy.load(&weights).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"parameters do not fit: "0.weight" is unexpected, got shape [1]"#
    );
    assert!(policy.weights().is_empty());
}

#[test]
fn inputs_of_different_lengths_are_an_error() {
    let mut policy = RandomPolicy::new();
    let env = env(Spec::discrete(2));
    let spec = policy.bind(&Binding::new(&env, 1)).unwrap();
    let obs = RowBlock::new(&env.observation_leaves(), 2).unwrap();
    let mut out = RowBlock::new(&spec.columns, 2).unwrap();
    let input = PolicyIn {
        obs: obs.rows(),
        envs: &EnvRows::new(0, vec![0]),
        exploration: ExplorationType::Random,
    };
    let error = policy.act(&input, out.rows_mut()).unwrap_err().to_string();
    assert_eq!(error, "envs: expected 2 rows, got 1");
}

#[test]
fn one_hot_choices_are_those_drawn_as_indices() {
    let indices: Vec<i64> = sample(Spec::discrete(5), 0, 20, 100);
    let vectors: Vec<i64> = sample(Spec::one_hot(5), 0, 20, 100);
    let ones = |vector: &[i64]| vector.iter().position(|&x| x == 1).unwrap() as i64;
    assert!(vectors.iter().all(|&x| x == 0 || x == 1));
    assert_eq!(vectors.iter().sum::<i64>(), 20 * 100);
    assert_eq!(vectors.chunks(5).map(ones).collect::<Vec<_>>(), indices);

    let nvec = vec![3, 4];
    let indices: Vec<i64> = sample(Spec::MultiDiscrete { nvec: nvec.clone() }, 0, 8, 100);
    let vectors: Vec<i64> = sample(Spec::OneHot { nvec }, 0, 8, 100);
    let decoded: Vec<i64> = vectors
        .chunks(7)
        .flat_map(|row| [ones(&row[..3]), ones(&row[3..])])
        .collect();
    assert_eq!(decoded, indices);
}

#[test]
fn masked_choices_are_uniform_over_the_legal_ones() {
    for (action, elements) in [
        (Spec::OneHot { nvec: vec![3, 4] }, 7),
        (Spec::MultiDiscrete { nvec: vec![3, 4] }, 2),
    ] {
        let observation = Spec::composite([("mask", Spec::unbounded(DType::Bool, [7]))]);
        let mut env = EnvSpec::new("Masked", observation, action);
        env.masks.push(("action".into(), "mask".into()));
        let mut policy = RandomPolicy::new();
        let spec = policy.bind(&Binding::new(&env, 1)).unwrap();
        let mut obs = RowBlock::new(&env.observation_leaves(), 2).unwrap();
        let masks = [true, false, true, false, true, false, true].repeat(2);
        let mask = Key::<bool>::new(0);
        obs.rows_mut()
            .get_mut(mask)
            .unwrap()
            .copy_from_slice(&masks);
        let mut out = RowBlock::new(&spec.columns, 2).unwrap();
        let mut envs = EnvRows::new(5, vec![0, 1]);
        let mut counts = [vec![0; 3], vec![0; 4]];
        for _ in 0..4000 {
            let input = PolicyIn {
                obs: obs.rows(),
                envs: &envs,
                exploration: ExplorationType::Random,
            };
            policy.act(&input, out.rows_mut()).unwrap();
            envs.advance();
            for row in out.rows().get::<i64>(Key::new(0)).unwrap().chunks(elements) {
                let chosen: Vec<_> = match elements {
                    2 => row.iter().map(|&index| index as usize).collect(),
                    _ => [&row[..3], &row[3..]]
                        .map(|part| part.iter().position(|&one| one == 1).unwrap())
                        .into(),
                };
                assert!(elements == 2 || row.iter().sum::<i64>() == 2);
                counts[0][chosen[0]] += 1;
                counts[1][chosen[1]] += 1;
            }
        }
        assert_eq!((counts[0][1], counts[1][0], counts[1][2]), (0, 0, 0));
        assert_uniform(&[counts[0][0], counts[0][2]]);
        assert_uniform(&[counts[1][1], counts[1][3]]);

        obs.rows_mut().get_mut(mask).unwrap()[..3].fill(false);
        let input = PolicyIn {
            obs: obs.rows(),
            envs: &envs,
            exploration: ExplorationType::Random,
        };
        let error = policy.act(&input, out.rows_mut()).unwrap_err().to_string();
        assert!(error.contains("no action is legal"), "{error}");
    }
}

#[test]
fn a_mask_has_an_element_for_each_choice() {
    let observation = Spec::composite([("mask", Spec::unbounded(DType::Bool, [3]))]);
    let mut env = EnvSpec::new("Masked", observation, Spec::discrete(4));
    env.masks.push(("action".into(), "mask".into()));
    let error = RandomPolicy::new()
        .bind(&Binding::new(&env, 1))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("uint8 [4]") && error.contains("bool [3]"),
        "{error}"
    );
}
