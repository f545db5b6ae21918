use tensordict::{DType, Tensor, TensorDict};
use windrow_env::{EnvSpec, Spec};

use super::*;
use crate::{Binding, Head, Misfit, NetworkPolicy, Noise, Policy, Scale};

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut noise = Noise::new(seed, 0, 0);
    (0..n).map(|_| noise.normal() as f32).collect()
}

fn activations() -> [Activation; 7] {
    [
        Activation::Tanh,
        Activation::ReLU,
        Activation::Sigmoid,
        Activation::SiLU,
        Activation::GELU,
        Activation::GELUTanh,
        Activation::ELU { alpha: 0.7 },
    ]
}

/// Linear layers as nested loops in `f64`.
fn reference(net: &Sequential, input: &[f32]) -> Vec<f64> {
    let mut x: Vec<f64> = input.iter().map(|&x| f64::from(x)).collect();
    for layer in net.layers() {
        x = match layer {
            Layer::Linear(linear) => {
                let rows = linear.weight().chunks_exact(linear.inputs());
                let dot = |w: &[f32]| {
                    w.iter()
                        .zip(&x)
                        .map(|(&w, x)| f64::from(w) * x)
                        .sum::<f64>()
                };
                let bias = |i: usize| linear.bias().map_or(0.0, |b| f64::from(b[i]));
                rows.enumerate().map(|(i, w)| bias(i) + dot(w)).collect()
            }
            Layer::Activation(Activation::Tanh) => x.into_iter().map(f64::tanh).collect(),
            Layer::LayerNorm(norm) => {
                let n = x.len() as f64;
                let mean = x.iter().sum::<f64>() / n;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                let scale = 1.0 / (variance + f64::from(norm.eps)).sqrt();
                x.into_iter().map(|x| (x - mean) * scale).collect()
            }
            _ => x,
        };
    }
    x
}

#[test]
fn agrees_with_nested_loops_at_all_sizes() {
    for size in [
        1, 2, 3, 7, 15, 16, 17, 31, 33, 48, 50, 64, 65, 79, 100, 130, 200, 300,
    ] {
        let mut net = Sequential::new().linear(size, size + 1).tanh();
        // Of a few features all may be nearly equal; dividing by their deviation then magnifies
        // rounding.
        if size > 30 {
            net = net.layer_norm(size + 1);
        }
        let mut net = net.linear_without_bias(size + 1, 5).seed(size as u64);
        for rows in [1, 2, 3, 5, 66] {
            let input = numbers(1, rows * size);
            let mut out = vec![0.0; rows * 5];
            net.forward(&input, &mut out).unwrap();
            for (x, y) in input.chunks(size).zip(out.chunks(5)) {
                for (y, exact) in y.iter().zip(reference(&net, x)) {
                    assert!(
                        (f64::from(*y) - exact).abs() < 5e-6,
                        "size {size}: {y} {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_however_many_are_evaluated() {
    let mut nets = vec![
        (
            4,
            Sequential::new()
                .linear(4, 64)
                .tanh()
                .linear(64, 64)
                .tanh()
                .linear(64, 2),
        ),
        (
            17,
            Sequential::new()
                .linear(17, 256)
                .tanh()
                .linear(256, 256)
                .tanh()
                .linear(256, 6),
        ),
        (
            3,
            Sequential::new()
                .tanh()
                .linear(3, 100)
                .layer_norm(100)
                .linear(100, 33),
        ),
        (
            5,
            Sequential::new()
                .layer_norm(5)
                .flatten()
                .linear_without_bias(5, 23),
        ),
        (
            2,
            Sequential::new()
                .linear(2, 1)
                .linear(1, 130)
                .linear(130, 80),
        ),
    ];
    nets.extend(activations().map(|a| {
        (
            9,
            Sequential::new()
                .linear(9, 40)
                .activation(a)
                .linear(40, 19)
                .activation(a),
        )
    }));
    for (inputs, net) in nets {
        let mut net = net.seed(3);
        let outputs = net.outputs().unwrap();
        let input = numbers(2, 200 * inputs);
        let mut alone = vec![0.0; 200 * outputs];
        for (x, y) in input.chunks(inputs).zip(alone.chunks_mut(outputs)) {
            net.forward(x, y).unwrap();
        }
        for rows in (1..=70).chain([127, 128, 129, 200]) {
            let mut together = vec![f32::NAN; rows * outputs];
            net.forward(&input[..rows * inputs], &mut together).unwrap();
            let same = together
                .iter()
                .zip(&alone)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{rows} rows of {:?}", net.layers().len());
        }
    }
}

#[test]
fn parameters_start_uniform_within_pytorchs_bounds() {
    let net = Sequential::new()
        .linear(100, 200)
        .tanh()
        .linear(200, 3)
        .seed(5);
    for (inputs, number) in [(100, 0), (200, 2)] {
        let Layer::Linear(linear) = &net.layers()[number] else {
            panic!("not linear");
        };
        let bound = 1.0 / f32::sqrt(inputs as f32);
        let all: Vec<_> = linear
            .weight()
            .iter()
            .chain(linear.bias().unwrap())
            .collect();
        assert!(all.iter().all(|x| x.abs() <= bound));
        let n = all.len() as f32;
        let mean = all.iter().copied().sum::<f32>() / n / bound;
        let square = all.iter().map(|x| *x * *x).sum::<f32>() / n / bound / bound;
        // Significance 1e-6: deviations √(1/3n) and √(4/45n).
        assert!(mean.abs() < 4.9 / (3.0 * n).sqrt(), "{mean}");
        assert!(
            (square - 1.0 / 3.0).abs() < 4.9 * (4.0 / 45.0 / n).sqrt(),
            "{square}"
        );
    }
    let again = Sequential::new()
        .seed(5)
        .linear(100, 200)
        .tanh()
        .linear(200, 3);
    assert_eq!(net.layers(), again.layers());
    assert_ne!(net.layers(), net.clone().seed(6).layers());
}

#[test]
fn weights_come_back_under_pytorchs_names() {
    let net = Sequential::new()
        .linear(3, 4)
        .tanh()
        .layer_norm(4)
        .linear_without_bias(4, 2)
        .seed(1);
    let weights = net.weights();
    let names: Vec<_> = weights
        .leaves()
        .map(|(key, tensor)| (key.last().to_owned(), tensor.shape().to_vec()))
        .collect();
    let expected = [
        ("0.bias", vec![4]),
        ("0.weight", vec![4, 3]),
        ("2.bias", vec![4]),
        ("2.weight", vec![4]),
        ("3.weight", vec![2, 4]),
    ];
    assert_eq!(
        names,
        expected.map(|(name, shape)| (name.to_owned(), shape))
    );
    let other = Sequential::new()
        .linear(3, 4)
        .tanh()
        .layer_norm(4)
        .linear_without_bias(4, 2);
    let mut other = other.seed(2);
    other.load(&weights).unwrap();
    assert_eq!(other.layers(), net.layers());
}

#[test]
fn a_failed_load_names_everything_and_changes_nothing() {
    let mut net = Sequential::new().linear(2, 3).tanh().linear(3, 1).seed(1);
    let mut before = [0.0];
    net.forward(&[0.3, 0.4], &mut before).unwrap();
    let layers = net.layers().to_vec();

    let mut weights = TensorDict::new([]);
    weights
        .set(
            "0.weight",
            Tensor::from_vec(vec![9.0_f32; 6], [3, 2]).unwrap(),
        )
        .unwrap();
    weights
        .set("0.bias", Tensor::from_vec(vec![9.0_f32; 2], [2]).unwrap())
        .unwrap();
    weights
        .set(
            "2.weight",
            Tensor::from_vec(vec![9_i64; 3], [1, 3]).unwrap(),
        )
        .unwrap();
    weights
        .set(
            "4.weight",
            Tensor::from_vec(vec![9.0_f32; 3], [1, 3]).unwrap(),
        )
        .unwrap();
    let error = net.load(&weights).unwrap_err();
    assert_eq!(
        error.to_string(),
        "parameters do not fit: \"0.bias\": expected shape [3], got [2]; \
         \"2.weight\": expected dtype float32, got int64; \
         \"2.bias\" is missing, expected shape [1]; \
         \"4.weight\" is unexpected, got shape [1, 3]"
    );
    let WeightsError::Misfits {
        misfits,
        path: None,
    } = error
    else {
        panic!("another error");
    };
    assert!(matches!(&misfits[0], Misfit::Shape { name, .. } if name == "0.bias"));
    assert_eq!(net.layers(), layers);
    let mut after = [0.0];
    net.forward(&[0.3, 0.4], &mut after).unwrap();
    assert_eq!(before, after);
}

#[test]
fn loads_from_inside_a_larger_state_dict() {
    let actor = Sequential::new().linear(2, 3).relu().linear(3, 1).seed(4);
    let mut all = actor.weights_prefixed("actor.");
    all.set(
        "critic.0.weight",
        Tensor::from_vec(vec![1.0_f32], [1, 1]).unwrap(),
    )
    .unwrap();
    let mut net = Sequential::new().linear(2, 3).relu().linear(3, 1);
    net.load_prefixed("actor.", &all).unwrap();
    assert_eq!(net.layers(), actor.layers());
    let inferred = Sequential::from_weights_prefixed("actor.", &all, Activation::ReLU).unwrap();
    assert_eq!(inferred.layers(), actor.layers());

    // Nested names count as dotted ones.
    let mut nested = TensorDict::new([]);
    nested.set("actor", actor.weights()).unwrap();
    net = net.seed(9);
    net.load_prefixed("actor.", &nested).unwrap();
    assert_eq!(net.layers(), actor.layers());
    assert!(net.load(&all).is_err());
}

#[test]
fn sizes_are_inferred_from_weights() {
    let net = Sequential::new()
        .linear(5, 8)
        .silu()
        .layer_norm(8)
        .linear(8, 8);
    let net = net.silu().linear_without_bias(8, 2).seed(3);
    let inferred = Sequential::from_weights(&net.weights(), Activation::SiLU).unwrap();
    assert_eq!(inferred.layers(), net.layers());

    let mut gap = TensorDict::new([]);
    gap.set("0.weight", Tensor::from_vec(vec![1.0_f32], [1, 1]).unwrap())
        .unwrap();
    gap.set("3.weight", Tensor::from_vec(vec![1.0_f32], [1, 1]).unwrap())
        .unwrap();
    let error = Sequential::from_weights(&gap, Activation::Tanh)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "parameters do not fit: \"3.weight\" is unexpected, got shape [1, 1]"
    );

    let mut odd = TensorDict::new([]);
    odd.set("log_std", Tensor::from_vec(vec![1.0_f32], [1]).unwrap())
        .unwrap();
    odd.set(
        "0.weight",
        Tensor::from_vec(vec![1.0_f32], [1, 1, 1]).unwrap(),
    )
    .unwrap();
    let error = Sequential::from_weights(&odd, Activation::Tanh)
        .unwrap_err()
        .to_string();
    assert!(error.contains("\"log_std\" is unexpected"), "{error}");
}

#[test]
fn files_load_whole_or_not_at_all_and_errors_name_them() {
    let folder = tempfile::tempdir().unwrap();
    let net = Sequential::new().linear(3, 16).tanh().linear(16, 2).seed(8);
    let path = folder.path().join("policy.safetensors");
    net.weights().save(&path).unwrap();
    let mut other = Sequential::new().linear(3, 16).tanh().linear(16, 2);
    other.load_file(&path).unwrap();
    assert_eq!(other.layers(), net.layers());

    let bytes = std::fs::read(&path).unwrap();
    let cut = folder.path().join("cut.safetensors");
    for len in [0, 7, 8, 9, 50, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&cut, &bytes[..len]).unwrap();
        let error = other.load_file(&cut).unwrap_err();
        assert!(matches!(error, WeightsError::Tensor(_)), "{error}");
        assert!(error.to_string().contains("cut.safetensors"), "{error}");
        assert_eq!(other.layers(), net.layers());
    }
    let missing = folder.path().join("none.safetensors");
    let error = other.load_file(&missing).unwrap_err().to_string();
    assert!(error.contains("none.safetensors"), "{error}");

    let mut wider = Sequential::new().linear(4, 16).tanh().linear(16, 2);
    let error = wider.load_file(&path).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    assert!(
        error.ends_with("\"0.weight\": expected shape [16, 4], got [16, 3]"),
        "{error}"
    );
}

#[test]
fn layers_that_cannot_follow_each_other_are_an_error() {
    let mut net = Sequential::new().linear(4, 64).tanh().linear(32, 2);
    let error = net
        .forward(&[0.0; 4], &mut [0.0; 2])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "layer 2 (Linear): numbers in a row: expected 32, got 64"
    );
    let empty = Sequential::new()
        .linear(0, 3)
        .check()
        .unwrap_err()
        .to_string();
    assert_eq!(
        empty,
        "layer 0 (Linear): inputs of at least: expected 1, got 0"
    );
    assert!(Sequential::new().linear(3, 0).check().is_err());
    assert!(
        Sequential::new()
            .linear(3, 4)
            .layer_norm(5)
            .check()
            .is_err()
    );
}

#[test]
fn layers_that_no_memory_holds_are_an_error() {
    let new = Sequential::new;
    let vast = [
        (new().linear(usize::MAX, 2), (usize::MAX, 2)),
        (
            new().linear_without_bias(1 << 40, 1 << 30),
            (1 << 40, 1 << 30),
        ),
        (new().linear(1, usize::MAX / 2), (1, usize::MAX / 2)),
        (new().layer_norm(usize::MAX), (usize::MAX, usize::MAX)),
    ];
    for (net, (inputs, outputs)) in vast {
        let mut net = new().flatten().layer(net.layers()[0].clone()).seed(3);
        let error = net.forward(&[], &mut []).unwrap_err().to_string();
        let told = format!("no memory for parameters from {inputs} to {outputs} numbers");
        assert!(
            error.starts_with("layer 1 (") && error.ends_with(&told),
            "{error}"
        );
        let env = EnvSpec::new("x", Spec::unbounded(DType::F32, [1]), Spec::discrete(2));
        let mut policy = NetworkPolicy::new(net, Head::Normal(Scale::log_std()));
        assert!(policy.bind(&Binding::new(&env, 1)).is_err());
    }
}

#[test]
fn wrong_lengths_are_an_error_and_write_nothing() {
    let mut net = Sequential::new().linear(3, 2);
    let mut out = [7.0; 4];
    let error = net.forward(&[0.0; 3], &mut out).unwrap_err().to_string();
    assert_eq!(error, "input of the network: expected 2 rows, got 1");
    assert!(net.forward(&[0.0; 7], &mut out).is_err());
    assert!(net.forward(&[0.0; 6], &mut out[..3]).is_err());
    assert_eq!(out, [7.0; 4]);
    net.forward(&[], &mut []).unwrap();
}

#[test]
fn nan_spreads_to_its_own_row_only() {
    for activation in activations() {
        let mut net = Sequential::new()
            .linear(2, 20)
            .activation(activation)
            .linear(20, 3)
            .seed(1);
        let mut out = [0.0; 9];
        net.forward(&[0.1, 0.2, f32::NAN, 0.3, 0.4, 0.5], &mut out)
            .unwrap();
        let nan: Vec<_> = out
            .chunks(3)
            .map(|row| row.iter().all(|x| x.is_nan()))
            .collect();
        let finite = out.iter().filter(|x| x.is_finite()).count();
        assert_eq!(
            (nan, finite),
            (vec![false, true, false], 6),
            "{activation:?}"
        );
    }
}

#[test]
fn weights_of_float64_are_rounded_and_those_beyond_float32_are_refused_by_name() {
    let mut net = Sequential::new().linear(1, 1);
    let load = |net: &mut Sequential, weight: f64| {
        let mut weights = TensorDict::new([]);
        let weight = Tensor::from_vec(vec![weight], [1, 1]).unwrap();
        weights.set("0.weight", weight).unwrap();
        let bias = Tensor::from_vec(vec![0.5_f32], [1]).unwrap();
        weights.set("0.bias", bias).unwrap();
        net.load(&weights)
    };
    load(&mut net, 0.1).unwrap();
    let read = |net: &Sequential| net.weights().as_slice::<f32>("0.weight").unwrap()[0];
    assert_eq!(read(&net), 0.1_f32);
    assert_eq!(
        load(&mut net, 1e39).unwrap_err().to_string(),
        "parameters do not fit: \"0.weight\": expected numbers within the range of float32, got 1e39"
    );
    assert_eq!(read(&net), 0.1_f32);
    load(&mut net, f64::INFINITY).unwrap();
}
