use candle_core::{DType, Device, Module, Tensor, Var};
use windrow::nn::{Activation, Sequential};

use crate::activation::activate;
use crate::{Network, Vars};

const CPU: Device = Device::Cpu;

fn activations() -> Vec<Activation> {
    use Activation::*;
    vec![
        Tanh,
        ReLU,
        Sigmoid,
        SiLU,
        GELU,
        GELUTanh,
        ELU { alpha: 0.7 },
        LeakyReLU { slope: 0.1 },
        CELU { alpha: 1.5 },
        SELU,
        Softplus {
            beta: 0.5,
            threshold: 2.0,
        },
        Mish,
        Hardtanh {
            low: -0.5,
            high: 2.0,
        },
        Hardsigmoid,
        Hardswish,
        Softsign,
        LogSigmoid,
        Tanhshrink,
        Softshrink { lambda: 0.3 },
        Hardshrink { lambda: 0.3 },
        Threshold {
            threshold: 0.4,
            value: -3.0,
        },
    ]
}

/// `len` numbers between -2 and 2 without a pattern.
fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| 2.0 * (i as f32 * 1.7).sin()).collect()
}

/// Both outputs for `rows` rows: windrow's, and candle's.
fn outputs(mut net: Sequential, rows: usize) -> (Vec<f32>, Vec<f32>) {
    let (inputs, width) = (net.inputs().unwrap(), net.outputs().unwrap());
    let input = numbers(rows * inputs);
    let vars = Vars::new(&net.weights(), &CPU).unwrap();
    let network = Network::new(&net, "", &vars).unwrap();
    let mut expected = vec![0.0; rows * width];
    net.forward(&input, &mut expected).unwrap();
    let input = Tensor::from_vec(input, (rows, inputs), &CPU).unwrap();
    let got = network.forward(&input).unwrap();
    assert_eq!(got.dims(), [rows, width]);
    (expected, got.flatten_all().unwrap().to_vec1().unwrap())
}

/// The bound that the README states, relative to 1 or to a larger number.
const BOUND: f32 = 1e-6;

fn assert_close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        let error = (got - expected).abs() / expected.abs().max(1.0);
        assert!(
            error <= BOUND,
            "{what}: expected {expected}, got {got}, error {error:e}"
        );
    }
}

#[test]
fn networks_have_the_outputs_of_windrow() {
    let nets = [
        (
            "tanh",
            Sequential::new()
                .linear(4, 64)
                .tanh()
                .linear(64, 64)
                .tanh()
                .linear(64, 2),
        ),
        (
            "relu",
            Sequential::new()
                .linear(17, 256)
                .relu()
                .linear(256, 256)
                .relu()
                .linear(256, 6),
        ),
        (
            "norm",
            Sequential::new()
                .layer_norm(5)
                .linear(5, 33)
                .layer_norm_with_eps(33, 0.1)
                .silu(),
        ),
        (
            "no bias",
            Sequential::new()
                .flatten()
                .linear_without_bias(3, 7)
                .elu(1.0)
                .linear(7, 1),
        ),
    ];
    for (name, net) in nets {
        for rows in [0, 1, 5, 64] {
            let (expected, got) = outputs(net.clone().seed(3), rows);
            assert_close(name, &got, &expected);
        }
    }
}

#[test]
fn activations_have_the_outputs_of_windrow() {
    for activation in activations() {
        let name = format!("{activation:?}");
        let net = Sequential::new()
            .linear(4, 16)
            .activation(activation)
            .seed(5);
        let (expected, got) = outputs(net, 32);
        assert_close(&name, &got, &expected);
    }
}

#[test]
fn activations_are_differentiated_as_they_are() {
    let at: Vec<f64> = numbers(40)
        .into_iter()
        .map(|x| f64::from(2.0 * x) + 1e-3)
        .collect();
    for activation in activations() {
        let value = |shift: f64| {
            let moved: Vec<f64> = at.iter().map(|x| x + shift).collect();
            let moved = Tensor::new(moved, &CPU).unwrap();
            activate(activation, &moved)
                .unwrap()
                .to_vec1::<f64>()
                .unwrap()
        };
        let x = Var::new(at.as_slice(), &CPU).unwrap();
        let sum = activate(activation, &x).unwrap().sum_all().unwrap();
        let gradients = sum.backward().unwrap();
        let gradients = gradients.get(&x).unwrap().to_vec1::<f64>().unwrap();
        let step = 1e-5;
        let ends = value(step).into_iter().zip(value(-step));
        for (i, (after, before)) in ends.enumerate() {
            let (slope, got) = ((after - before) / (2.0 * step), gradients[i]);
            assert!(
                (slope - got).abs() < 1e-4,
                "{activation:?} at {}: {slope}, {got}",
                at[i]
            );
        }
    }
}

#[test]
fn gradients_of_large_numbers_and_zeros_are_numbers() {
    let at = [-1e4f32, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4];
    for activation in activations() {
        let x = Var::new(&at, &CPU).unwrap();
        let sum = activate(activation, &x).unwrap().sum_all().unwrap();
        let gradients = sum.backward().unwrap();
        let gradients = gradients.get(&x).unwrap().to_vec1::<f32>().unwrap();
        let sound = gradients.iter().all(|gradient| gradient.abs() < 2.0);
        assert!(sound, "{activation:?}: {gradients:?}");
    }
}

#[test]
fn every_parameter_learns() {
    let net = Sequential::new()
        .linear(3, 4)
        .layer_norm(4)
        .tanh()
        .linear(4, 2)
        .seed(2);
    let vars = Vars::new(&net.weights(), &CPU).unwrap();
    let network = Network::new(&net, "", &vars).unwrap();
    let input = Tensor::new(numbers(15), &CPU)
        .unwrap()
        .reshape((5, 3))
        .unwrap();
    let loss = network
        .forward(&input)
        .unwrap()
        .sqr()
        .unwrap()
        .sum_all()
        .unwrap();
    let gradients = loss.backward().unwrap();
    for (name, var) in vars.iter() {
        let gradient = gradients
            .get(var)
            .unwrap_or_else(|| panic!("{name} has no gradient"));
        let size = gradient
            .abs()
            .unwrap()
            .sum_all()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap();
        assert!(size > 0.0 && size.is_finite(), "{name}: {size}");
    }
    // What shares the variables has their new values.
    let bias = vars.get("3.bias").unwrap();
    let before = network.forward(&input).unwrap();
    bias.set(&(bias.as_tensor() + 1.0).unwrap()).unwrap();
    let moved = (network.forward(&input).unwrap() - before).unwrap();
    assert_close(
        "moved",
        &moved.flatten_all().unwrap().to_vec1().unwrap(),
        &[1.0; 10],
    );
}

#[test]
fn rows_may_have_several_dimensions() {
    let net = Sequential::new().linear(3, 2).seed(4);
    let network = Network::new(&net, "", &Vars::new(&net.weights(), &CPU).unwrap()).unwrap();
    let input = Tensor::new(numbers(24), &CPU).unwrap();
    let flat = network.forward(&input.reshape((8, 3)).unwrap()).unwrap();
    for rows in [&[2, 4][..], &[2, 2, 2], &[8, 1]] {
        let input = input.reshape([rows, &[3]].concat()).unwrap();
        let got = network.forward(&input).unwrap();
        assert_eq!(got.dims(), [rows, &[2]].concat());
        let (got, flat) = (got.flatten_all().unwrap(), flat.flatten_all().unwrap());
        assert_eq!(
            got.to_vec1::<f32>().unwrap(),
            flat.to_vec1::<f32>().unwrap()
        );
    }
    let row = network.forward(&input.narrow(0, 0, 3).unwrap()).unwrap();
    assert_eq!(row.dims(), [2]);
    let error = network
        .forward(&input.reshape((6, 4)).unwrap())
        .unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("input of the network: expected shape [.., 3], got [6, 4]"),
        "{error}"
    );
    assert!(
        network
            .forward(&Tensor::zeros((), DType::F32, &CPU).unwrap())
            .is_err()
    );
}

#[test]
fn variables_that_do_not_fit_are_named() {
    let net = Sequential::new().linear(3, 2).tanh().linear(2, 1);
    let other = Sequential::new().linear(3, 4).tanh();
    let vars = Vars::new(&other.weights_prefixed("actor."), &CPU).unwrap();
    let error = Network::new(&net, "actor.", &vars).unwrap_err();
    let expected = r#"parameters do not fit: "actor.0.bias": expected shape [2], got [4]; "actor.0.weight": expected shape [2, 3], got [4, 3]; "actor.2.bias" is missing, expected shape [1]; "actor.2.weight" is missing, expected shape [1, 2]"#;
    assert_eq!(error.to_string(), expected);
    let net = Sequential::new().linear(3, 2).linear(3, 1);
    let error = Network::new(&net, "", &Vars::default()).unwrap_err();
    assert!(error.to_string().starts_with("layer 1 (Linear)"), "{error}");
}
