use candle_core::{DType, Device, Tensor};
use windrow::nn::Sequential;
use windrow::{Head, NetworkPolicy, Policy, TensorDict, Weights, policy::Scale};

use crate::{CandleError, Vars};

const CPU: Device = Device::Cpu;

fn weights() -> Weights {
    let net = Sequential::new().linear(3, 2).tanh().linear(2, 1).seed(1);
    net.weights()
}

#[test]
fn weights_come_back_as_they_were() {
    let head = Head::Normal(Scale::log_std());
    let net = Sequential::new()
        .linear(3, 4)
        .layer_norm(4)
        .linear_without_bias(4, 2);
    let policy = NetworkPolicy::new(net, head).prefix("actor.");
    let vars = Vars::new(&policy.weights(), &CPU).unwrap();
    assert!(vars.get("actor.log_std").unwrap().is_variable());
    assert_eq!(vars.all_vars().len(), 6);
    assert!(vars.weights().unwrap().same_bits(&policy.weights()));
    policy.check(&vars.weights().unwrap()).unwrap();
}

#[test]
fn nested_names_are_joined_by_dots() {
    let mut nested = Weights::new([]);
    nested.set("actor", weights()).unwrap();
    let vars = Vars::new(&nested, &CPU).unwrap();
    let names: Vec<_> = vars.iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "actor.0.bias",
            "actor.0.weight",
            "actor.2.bias",
            "actor.2.weight"
        ]
    );
    vars.load(&nested).unwrap();
}

#[test]
fn published_weights_do_not_change_while_variables_learn() {
    let vars = Vars::new(&weights(), &CPU).unwrap();
    let published = vars.weights().unwrap();
    for var in vars.all_vars() {
        var.set(&var.affine(2.0, 1.0).unwrap()).unwrap();
    }
    assert!(published.same_bits(&weights()));
    assert!(!vars.weights().unwrap().same_bits(&published));
    vars.load(&published).unwrap();
    assert!(vars.weights().unwrap().same_bits(&published));
}

#[test]
fn half_precision_is_published_in_single() {
    let half = Tensor::new(&[0.5f32, -2.0], &CPU).unwrap();
    let half = candle_core::Var::from_tensor(&half.to_dtype(DType::BF16).unwrap()).unwrap();
    let vars: Vars = [("0.bias".to_owned(), half)].into_iter().collect();
    let published = vars.weights().unwrap();
    assert_eq!(published.as_slice::<f32>("0.bias").unwrap(), [0.5, -2.0]);
    vars.load(&published).unwrap();
    assert_eq!(vars.get("0.bias").unwrap().dtype(), DType::BF16);
}

#[test]
fn weights_that_do_not_fit_change_nothing() {
    let vars = Vars::new(&weights(), &CPU).unwrap();
    let mut other = Sequential::new().linear(3, 2).linear(2, 1).weights();
    other.set("2.weight", TensorDict::new([])).unwrap();
    other
        .set("2.bias", windrow::Tensor::scalar(1.0f32))
        .unwrap();
    let error = vars.load(&other).unwrap_err();
    assert!(matches!(error, CandleError::Policy(_)));
    let expected = r#"parameters do not fit: "2.bias": expected shape [1], got []; "2.weight" is missing, expected shape [1, 2]; "1.bias" is unexpected, got shape [1]; "1.weight" is unexpected, got shape [1, 2]"#;
    assert_eq!(error.to_string(), expected);
    assert!(vars.weights().unwrap().same_bits(&weights()));
}

#[test]
fn an_unknown_name_is_an_error_that_lists_the_others() {
    let vars = Vars::new(&weights(), &CPU).unwrap();
    let error = vars.get("1.weight").unwrap_err().to_string();
    assert!(
        error.contains(r#"no entry "1.weight""#) && error.contains("0.weight"),
        "{error}"
    );
}
