use tensordict::{DType, NestedKey};
use windrow_env::{EnvSpec, Spec};
use windrow_slab::{Key, RowBlock};

use super::*;
use crate::nn::{Activation, Sequential};
use crate::{
    Binding, EnvRows, ExplorationType, Head, PolicyIn, Scale, ScaleMapping, Weights, policy_fn,
};

const ROWS: usize = 8;

fn env(action: Spec) -> EnvSpec {
    let observation = Spec::unbounded(DType::F32, [3]);
    EnvSpec::new("Test-v0", observation, action)
}

/// Bit patterns of everything that `policy` writes in two steps, one that samples and one that does
/// not.
fn written(mut policy: Box<dyn Policy>, env: &EnvSpec) -> Vec<Vec<u64>> {
    let columns = policy.bind(&Binding::new(env, ROWS)).unwrap().columns;
    let mut obs = RowBlock::new(&env.observation_leaves(), ROWS).unwrap();
    let mut values = obs.rows_mut();
    for (i, x) in values
        .get_mut::<f32>(Key::new(0))
        .unwrap()
        .iter_mut()
        .enumerate()
    {
        *x = (i as f32 * 0.37).sin();
    }
    let mut out = RowBlock::new(&columns, ROWS).unwrap();
    let mut all = Vec::new();
    for exploration in [ExplorationType::Random, ExplorationType::Deterministic] {
        let envs = EnvRows::new(5, (0..ROWS as u32).collect());
        let input = PolicyIn {
            obs: obs.rows(),
            envs: &envs,
            exploration,
        };
        policy.act(&input, out.rows_mut()).unwrap();
        for (leaf, column) in columns.iter().enumerate() {
            all.push(match column.dtype {
                DType::I64 => {
                    let values = out.rows().get::<i64>(Key::new(leaf)).unwrap();
                    values.iter().map(|x| x.cast_unsigned()).collect()
                }
                _ => {
                    let values = out.rows().get::<f32>(Key::new(leaf)).unwrap();
                    values.iter().map(|x| u64::from(x.to_bits())).collect()
                }
            });
        }
    }
    all
}

fn read_again(recipe: &PolicyRecipe) -> PolicyRecipe {
    PolicyRecipe::from_bytes(&recipe.to_bytes().unwrap()).unwrap()
}

/// Whether what was written acts as `policy` does, in environments with `action`.
fn assert_acts_alike(policy: NetworkPolicy, action: Spec) {
    let (recipe, env) = (PolicyRecipe::of(policy.clone()), env(action));
    let expected = written(Box::new(policy), &env);
    let got = written(read_again(&recipe).build(0).unwrap(), &env);
    assert_eq!(got, expected, "{recipe:?}");
}

/// Every kind of layer, with arguments that are easily lost.
fn every_layer(outputs: usize) -> Sequential {
    let activations = [
        Activation::Tanh,
        Activation::ReLU,
        Activation::Sigmoid,
        Activation::SiLU,
        Activation::GELU,
        Activation::GELUTanh,
        Activation::ELU { alpha: 1.0 / 3.0 },
    ];
    let net = Sequential::new()
        .seed(9)
        .flatten()
        .linear(3, 6)
        .layer_norm_with_eps(6, 1e-3)
        .linear_without_bias(6, 5)
        .layer_norm(5);
    let net = activations.into_iter().fold(net, |net, activation| {
        net.linear(5, 5).activation(activation)
    });
    net.linear(5, outputs)
}

#[test]
fn every_layer_is_written_with_its_arguments() {
    let policy = NetworkPolicy::new(every_layer(4), Head::Categorical);
    assert_acts_alike(
        policy.return_log_prob(true).return_params(true),
        Spec::discrete(4),
    );
}

#[test]
fn every_head_is_written_with_its_arguments() {
    let real = || Spec::unbounded(DType::F32, [2]);
    let bounds = || Spec::bounded(&[-1.0, 0.5], &[2.0, 3.0]).unwrap();
    let named = Scale::Parameter {
        name: "spread".into(),
        initial: -0.7,
    };
    let biased = Scale::Mapped(ScaleMapping::BiasedSoftplus { bias: 0.3 });
    for (head, outputs, action) in [
        (Head::Deterministic, 2, real()),
        (Head::Deterministic, 3, Spec::discrete(3)),
        (Head::Deterministic, 3, Spec::one_hot(3)),
        (Head::Categorical, 3, Spec::one_hot(3)),
        (
            Head::Categorical,
            5,
            Spec::MultiDiscrete { nvec: vec![2, 3] },
        ),
        (Head::Normal(named), 2, real()),
        (Head::Normal(biased), 4, real()),
        (Head::Normal(Scale::Mapped(ScaleMapping::Exp)), 4, real()),
        (Head::TanhNormal(Scale::log_std()), 2, bounds()),
        (Head::TanhNormal(Scale::softplus()), 4, bounds()),
    ] {
        let distribution = head != Head::Deterministic;
        let policy = NetworkPolicy::new(every_layer(outputs), head)
            .return_log_prob(distribution)
            .return_params(distribution);
        assert_acts_alike(policy, action);
    }
}

#[test]
fn names_of_observations_and_parameters_are_written() {
    let policy = NetworkPolicy::new(every_layer(2), Head::Categorical)
        .in_key("observation")
        .prefix("actor.");
    let read = read_again(&PolicyRecipe::of(policy.clone()))
        .build(0)
        .unwrap();
    let names = |weights: &Weights| -> Vec<NestedKey> {
        weights.leaves().map(|(key, _)| key.clone()).collect()
    };
    assert_eq!(names(&read.weights()), names(&policy.weights()));
    assert_acts_alike(policy.clone(), Spec::discrete(2));
    let elsewhere = read_again(&PolicyRecipe::network(policy.in_key(("body", "speed"))));
    let fit = elsewhere
        .build(0)
        .unwrap()
        .bind(&Binding::new(&env(Spec::discrete(2)), 1));
    assert!(fit.unwrap_err().to_string().contains("speed"));
}

#[test]
fn the_parameters_are_those_at_the_time() {
    let mut policy = NetworkPolicy::new(every_layer(2), Head::Normal(Scale::log_std()));
    let recipe = PolicyRecipe::of(policy.clone());
    let other = NetworkPolicy::new(every_layer(2).seed(1), Head::Normal(Scale::log_std()));
    policy.load(&other.weights()).unwrap();
    let env = env(Spec::unbounded(DType::F32, [2]));
    let early = written(read_again(&recipe).build(0).unwrap(), &env);
    assert_ne!(early, written(Box::new(policy.clone()), &env));
    let late = written(
        read_again(&PolicyRecipe::of(policy)).build(0).unwrap(),
        &env,
    );
    assert_eq!(late, written(Box::new(other), &env));
}

#[test]
fn random_actions_are_written() {
    let env = env(Spec::discrete(7));
    for recipe in [
        PolicyRecipe::random(),
        PolicyRecipe::of(RandomPolicy::new()),
    ] {
        assert_eq!(
            written(read_again(&recipe).build(0).unwrap(), &env),
            written(Box::new(RandomPolicy::new()), &env)
        );
    }
}

#[test]
fn a_factory_cannot_be_written_and_is_named() {
    let recipe = PolicyRecipe::opaque(|_worker| RandomPolicy::new());
    let error = recipe.to_bytes().unwrap_err().to_string();
    assert!(
        error.starts_with("policies made by ") && error.contains("a_factory_cannot_be_written"),
        "{error}"
    );
}

#[test]
fn a_factory_is_given_the_number_of_the_worker() {
    let recipe = PolicyRecipe::opaque(|worker| {
        NetworkPolicy::new(Sequential::new().linear(3, worker), Head::Deterministic)
    });
    assert_eq!(recipe.build(5).unwrap().weights().leaves().count(), 2);
    let weights = recipe.build(5).unwrap().weights();
    assert_eq!(weights.get("0.bias").unwrap().shape(), [5]);
}

#[test]
fn a_factory_may_be_written_as_another_recipe() {
    let net = NetworkPolicy::new(Sequential::new().linear(3, 2), Head::Categorical);
    let here = net.clone();
    let recipe = PolicyRecipe::opaque(move |_worker| here.clone());
    let recipe = recipe.written_as(PolicyRecipe::random());
    assert_eq!(recipe.build(0).unwrap().weights().len(), 2);
    let read = PolicyRecipe::from_bytes(&recipe.to_bytes().unwrap()).unwrap();
    assert_eq!(read.build(0).unwrap().weights().len(), 0);
    // What can be written down already stays what it is.
    let random = PolicyRecipe::random().written_as(PolicyRecipe::network(net));
    assert_eq!(
        random.to_bytes().unwrap(),
        PolicyRecipe::random().to_bytes().unwrap()
    );
}

#[test]
fn a_policy_of_the_programs_own_is_cloned_and_cannot_be_written() {
    let recipe = PolicyRecipe::of(policy_fn([], |_, _| Ok(())));
    let _one_of_several = (recipe.build(0).unwrap(), recipe.build(1).unwrap());
    let error = recipe.to_bytes().unwrap_err().to_string();
    assert!(error.contains("FnPolicy"), "{error}");
}

#[test]
fn what_cannot_be_read_is_said() {
    let policy = NetworkPolicy::new(every_layer(2), Head::Categorical);
    let bytes = PolicyRecipe::of(policy).to_bytes().unwrap();
    let random = PolicyRecipe::random().to_bytes().unwrap();
    let named = PolicyRecipe::named("mine").to_bytes().unwrap();
    let unknown = [7u64.to_le_bytes().as_slice(), br#""Table""#].concat();
    for (bytes, named) in [
        (
            &[][..],
            "the recipe of policies cannot be read: it is cut short",
        ),
        (&bytes[..60], "it is cut short"),
        (&unknown[..], "unknown variant `Table`"),
        (&[&random[..], &[0]].concat(), "have no parameters"),
        (&[&named[..], &[0]].concat(), "a name has no parameters"),
        (&bytes[..bytes.len() - 4], "safetensors"),
    ] {
        let error = PolicyRecipe::from_bytes(bytes).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn parameters_of_another_network_do_not_fit() {
    let of = |outputs| {
        let net = Sequential::new().linear(3, outputs);
        let policy = NetworkPolicy::new(net, Head::Deterministic);
        PolicyRecipe::of(policy).to_bytes().unwrap()
    };
    let (two, three) = (of(2), of(3));
    let json = split(&two).unwrap().0;
    let mixed = [&two[..8], json, split(&three).unwrap().1].concat();
    let error = PolicyRecipe::from_bytes(&mixed).unwrap_err().to_string();
    assert!(error.starts_with("parameters do not fit: "), "{error}");
}
