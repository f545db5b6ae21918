use tensordict::DType;
use windrow_env::{EnvSpec, Spec};
use windrow_slab::RowBlock;

use super::*;
use crate::nn::{Draw, Op, Zip};
use crate::{EnvRows, ExplorationType};

fn env(action: Spec) -> EnvSpec {
    let seen = Spec::composite([
        ("observation".to_owned(), Spec::unbounded(DType::F64, [2])),
        (
            "is_init".to_owned(),
            Spec::Binary {
                shape: tensordict::Shape::from_slice(&[1]),
            },
        ),
    ]);
    EnvSpec::new("env", seen, action)
}

fn act(
    policy: &mut GraphPolicy,
    spec: &EnvSpec,
    envs: &EnvRows,
    seen: &[f64],
) -> Result<RowBlock, PolicyError> {
    let rows = envs.len();
    let columns = policy.bound.as_ref().unwrap().columns.clone();
    let mut obs = RowBlock::new(&spec.observation_leaves(), rows)?;
    let leaves = spec.observation_leaves();
    let index = leaves
        .iter()
        .position(|leaf| leaf.dtype == DType::F64)
        .unwrap();
    obs.rows_mut()
        .get_mut::<f64>(Key::new(index))?
        .copy_from_slice(seen);
    let mut out = RowBlock::new(&columns, rows)?;
    let input = PolicyIn {
        obs: obs.rows(),
        envs,
        exploration: ExplorationType::Random,
    };
    policy.act(&input, out.rows_mut())?;
    Ok(out)
}

/// Adds up its observations, and writes the sums as scores.
fn summing() -> GraphPolicy {
    let mut graph = Graph::new();
    let (x, sum) = (graph.input(2), graph.input(2));
    let next = graph.zip(Zip::Add, x, sum);
    GraphPolicy::new(graph)
        .observes("observation", DType::F32, [2])
        .remembers(next, &[0.5, 0.0])
        .writes("action", DType::F32, [2], next)
        .writes("sum", DType::F32, [2], next)
}

#[test]
fn a_state_goes_on_until_an_episode_begins() {
    let spec = env(Spec::discrete(2));
    let mut policy = summing();
    let bound = policy.bind(&Binding::new(&spec, 2)).unwrap();
    assert_eq!(bound.columns[1], LeafSpec::new("sum", DType::F32, [2]));
    let mut envs = EnvRows::new(0, vec![0, 1]);
    let sum = |out: &RowBlock| out.rows().get::<f32>(Key::new(1)).unwrap().to_vec();
    let out = act(&mut policy, &spec, &envs, &[0.0, 1.0, 0.0, 0.25]).unwrap();
    assert_eq!(sum(&out), [0.5, 1.0, 0.5, 0.25]);
    assert_eq!(out.rows().get::<i64>(Key::new(0)).unwrap(), [1, 0]);
    envs.advance();
    envs.begin(1);
    let out = act(&mut policy, &spec, &envs, &[1.0, 1.0, 1.0, 1.0]).unwrap();
    assert_eq!(sum(&out), [1.5, 2.0, 1.5, 1.0]);
    // Rows that went on without the policy have no state.
    envs.advance();
    envs.advance();
    let out = act(&mut policy, &spec, &envs, &[0.0; 4]).unwrap();
    assert_eq!(sum(&out), [0.5, 0.0, 0.5, 0.0]);
}

#[test]
fn a_state_of_another_width_is_named() {
    let mut graph = Graph::new();
    let (x, _) = (graph.input(2), graph.input(3));
    let policy = GraphPolicy::new(graph)
        .observes("observation", DType::F32, [2])
        .remembers(x, &[0.0; 3]);
    let error = policy.check_widths().unwrap_err().to_string();
    let expected = "layer 0 (Graph): numbers in a state: expected 3, got 2";
    assert_eq!(error, expected);
}

#[test]
fn a_graph_in_the_place_of_another_goes_on_with_its_states() {
    let spec = env(Spec::discrete(2));
    let mut policy = summing();
    policy.bind(&Binding::new(&spec, 2)).unwrap();
    let mut envs = EnvRows::new(0, vec![0, 1]);
    act(&mut policy, &spec, &envs, &[0.0, 1.0, 0.0, 0.25]).unwrap();
    // The state comes first, and observations count twice.
    let mut graph = Graph::new();
    let (sum, x) = (graph.input(2), graph.input(2));
    let twice = graph.zip(Zip::Add, x, x);
    let next = graph.zip(Zip::Add, twice, sum);
    let changed = |next| {
        GraphPolicy::new(graph.clone())
            .remembers(next, &[0.5, 0.0])
            .observes("observation", DType::F32, [2])
            .writes("action", DType::F32, [2], next)
    };
    policy
        .replace(changed(next).writes("sum", DType::F32, [2], next))
        .unwrap();
    envs.advance();
    envs.begin(1);
    let out = act(&mut policy, &spec, &envs, &[1.0; 4]).unwrap();
    let sums = |out: &RowBlock| out.rows().get::<f32>(Key::new(1)).unwrap().to_vec();
    assert_eq!(sums(&out), [2.5, 3.0, 2.5, 2.0]);
    // One that writes something else is refused, and the present one goes on.
    let other = changed(next).writes("mean", DType::F32, [2], next);
    let error = policy.replace(other).unwrap_err().to_string();
    assert!(error.contains("expected a graph that writes"), "{error}");
    let mut stateless = Graph::new();
    let x = stateless.input(2);
    let stateless = GraphPolicy::new(stateless)
        .observes("observation", DType::F32, [2])
        .writes("action", DType::F32, [2], x)
        .writes("sum", DType::F32, [2], x);
    let error = policy.replace(stateless).unwrap_err().to_string();
    assert!(error.contains("has states of []"), "{error}");
    envs.advance();
    let out = act(&mut policy, &spec, &envs, &[0.0; 4]).unwrap();
    assert_eq!(sums(&out), [2.5, 3.0, 2.5, 2.0]);
}

#[test]
fn a_written_policy_does_what_it_did() {
    let mut graph = Graph::new();
    let x = graph.input(2);
    let scores = graph.linear("scores", x, 3);
    let noise = graph.push(Op::Noise(Draw::Normal, 3, 1), &[]);
    let mask = graph.constant(&[0.0, f32::NEG_INFINITY, 0.0]);
    let noisy = graph.zip(Zip::Add, scores, noise);
    let masked = graph.zip(Zip::Add, noisy, mask);
    let policy = GraphPolicy::new(graph).observes("observation", DType::F32, [2]);
    let mut policy = policy
        .writes("action", DType::F32, [3], masked)
        .remembers(scores, &[0.0; 3]);
    assert!(
        policy
            .bind(&Binding::new(&env(Spec::discrete(3)), 4))
            .is_err(),
        "an input too many"
    );
    policy.inputs.pop();
    let mut weights = policy.weights();
    crate::nn::put(&mut weights, "scores.bias", &[0.1, 9.0, 0.2], &[3]);
    policy.load(&weights).unwrap();
    // A score of minus infinity is no number.
    let spec = env(Spec::discrete(3));
    policy.bind(&Binding::new(&spec, 4)).unwrap();
    let envs = EnvRows::new(3, vec![4, 5, 6, 7]);
    let error = act(&mut policy, &spec, &envs, &[0.0; 8])
        .unwrap_err()
        .to_string();
    assert!(error.contains("output of the network is -inf"), "{error}");
    policy.outputs[0].1 = noisy;
    let bytes = policy.recipe().unwrap().to_bytes().unwrap();
    let mut read = PolicyRecipe::from_bytes(&bytes).unwrap().build(0).unwrap();
    assert_eq!(read.weights(), policy.weights());
    read.bind(&Binding::new(&spec, 4)).unwrap();
    policy.bind(&Binding::new(&spec, 4)).unwrap();
    let expected = act(&mut policy, &spec, &envs, &[0.5; 8]).unwrap();
    let mut obs = RowBlock::new(&spec.observation_leaves(), 4).unwrap();
    let leaves = spec.observation_leaves();
    let index = leaves
        .iter()
        .position(|leaf| leaf.dtype == DType::F64)
        .unwrap();
    obs.rows_mut()
        .get_mut::<f64>(Key::new(index))
        .unwrap()
        .fill(0.5);
    let mut out = RowBlock::new(&spec.action_leaves(), 4).unwrap();
    let input = PolicyIn {
        obs: obs.rows(),
        envs: &envs,
        exploration: ExplorationType::Random,
    };
    read.act(&input, out.rows_mut()).unwrap();
    let actions = |out: &RowBlock| out.rows().get::<i64>(Key::new(0)).unwrap().to_vec();
    assert_eq!(actions(&out), actions(&expected));
}

#[test]
fn environments_that_do_not_fit_are_refused() {
    let mut policy = summing();
    let error = policy
        .bind(&Binding::new(&env(Spec::discrete(3)), 1))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("action: expected \"action\" int64 []"),
        "{error}"
    );
    let other = EnvSpec::new(
        "env",
        Spec::unbounded(DType::F32, [2, 1]),
        Spec::discrete(2),
    );
    let error = policy
        .bind(&Binding::new(&other, 1))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("observation leaf \"observation\": expected float32 [2]"),
        "{error}"
    );
    let read = GraphPolicy::from_json(
        r#"{"graph": {"inputs": [1], "parameters": [], "nodes": []}, "inputs": [], "outputs": []}"#,
    );
    assert!(
        read.unwrap_err()
            .to_string()
            .contains("inputs: expected 1, got 0")
    );
    assert!(
        GraphPolicy::from_json("{}")
            .unwrap_err()
            .to_string()
            .contains("missing field")
    );
}

#[test]
fn choices_are_among_their_options() {
    let spec = env(Spec::one_hot(3));
    for (values, fits) in [
        ([0.0, 1.0, 0.0], true),
        ([0.0, 1.0, 1.0], true),
        ([0.0, 1.0, 2.0], false),
        ([0.0, 0.0, 0.0], false),
    ] {
        let mut graph = Graph::new();
        let x = graph.input(2);
        let choice = graph.constant(&values);
        let policy = GraphPolicy::new(graph).observes("observation", DType::F32, [2]);
        let mut policy =
            policy
                .writes("action", DType::I64, [3], choice)
                .writes("x", DType::F64, [2], x);
        policy.bind(&Binding::new(&spec, 1)).unwrap();
        let out = act(&mut policy, &spec, &EnvRows::new(0, vec![0]), &[1.0, 2.0]);
        assert_eq!(out.is_ok(), fits, "{values:?}");
        if let Ok(out) = out {
            assert_eq!(out.rows().get::<i64>(Key::new(0)).unwrap(), [0, 1, 0]);
            assert_eq!(out.rows().get::<f64>(Key::new(1)).unwrap(), [1.0, 2.0]);
        }
    }
}

/// Writes `number` as an action of `dtype`.
fn constant(number: f32, dtype: DType) -> GraphPolicy {
    let mut graph = Graph::new();
    graph.input(2);
    let action = graph.constant(&[number]);
    GraphPolicy::new(graph)
        .observes("observation", DType::F32, [2])
        .writes("action", dtype, [1], action)
}

#[test]
fn integers_that_an_action_cannot_hold_are_errors() {
    let spec = env(Spec::unbounded(DType::I8, [1]));
    let acted = |number| {
        let mut policy = constant(number, DType::I64);
        policy.bind(&Binding::new(&spec, 1)).unwrap();
        act(&mut policy, &spec, &EnvRows::new(0, vec![0]), &[1.0, 2.0])
    };
    let out = acted(-128.0).unwrap();
    assert_eq!(out.rows().get::<i8>(Key::new(0)).unwrap(), [-128]);
    let error = acted(160.0).unwrap_err().to_string();
    assert!(
        error.contains("expected values that int8 can hold, got 160"),
        "{error}"
    );
}

#[test]
fn actions_of_any_integers_are_passed_on() {
    let acted = |action, any_integers, number| {
        let mut spec = env(action);
        spec.any_integers = any_integers;
        let mut policy = constant(number, DType::I64);
        let bound = policy.bind(&Binding::new(&spec, 1)).unwrap();
        let out = act(&mut policy, &spec, &EnvRows::new(0, vec![0]), &[1.0, 2.0])?;
        assert_eq!(bound.columns[0].dtype, DType::I64);
        Ok::<_, PolicyError>(out.rows().get::<i64>(Key::new(0))?.to_vec())
    };
    let bits = Spec::Binary {
        shape: tensordict::Shape::from_slice(&[1]),
    };
    assert_eq!(acted(bits, true, 160.0).unwrap(), [160]);
    assert_eq!(acted(Spec::discrete(4), true, 7.0).unwrap(), [7]);
    assert!(acted(Spec::discrete(4), false, 7.0).is_err());
}
