//! What a network policy refuses, and what it says then.

use super::*;

#[test]
fn what_does_not_fit_is_refused_by_bind() {
    let refused = |net: Sequential, head: Head, action: Spec| {
        NetworkPolicy::new(net, head)
            .bind(&Binding::new(&env(4, action), 1))
            .unwrap_err()
            .to_string()
    };
    let net = |outputs| Sequential::new().linear(4, outputs);
    assert_eq!(
        refused(
            Sequential::new().linear(3, 2),
            Head::Categorical,
            Spec::discrete(2)
        ),
        "network policy (Linear) does not fit Test-v0: numbers in an observation: \
         expected 3 by the network, got 4 from the environment"
    );
    assert_eq!(
        refused(net(3), Head::Categorical, Spec::discrete(2)),
        "network policy (Linear) does not fit Test-v0: outputs: \
         expected 3 by the network, got 2 from the environment"
    );
    let error = refused(net(2), Head::Categorical, real(2));
    assert!(
        error.contains("head Categorical: expected discrete choices, got unbounded float32 [2]"),
        "{error}"
    );
    let error = refused(net(2), Head::Normal(Scale::softplus()), Spec::discrete(2));
    assert!(
        error.contains("expected real numbers, got one of 2 choices"),
        "{error}"
    );
    let error = refused(net(2), Head::Normal(Scale::softplus()), real(2));
    assert!(
        error.contains("expected 2 by the network, got 4"),
        "{error}"
    );
    let error = refused(net(4), Head::TanhNormal(Scale::softplus()), real(2));
    assert!(
        error.contains("expected real numbers between bounds"),
        "{error}"
    );
    let half = Spec::bounded(&[0.0, 0.0], &[1.0, f32::INFINITY]).unwrap();
    let error = refused(net(4), Head::TanhNormal(Scale::softplus()), half);
    assert!(
        error.contains("element 1") && error.contains("[0, inf]"),
        "{error}"
    );
    let two = Spec::composite([("a", Spec::discrete(2)), ("b", Spec::discrete(2))]);
    let error = refused(net(2), Head::Categorical, two);
    assert!(
        error.contains("action leaves: expected 1, got 2"),
        "{error}"
    );
    let error = refused(net(3).linear(4, 2), Head::Categorical, Spec::discrete(2));
    assert!(error.contains("layer 1 (Linear)"), "{error}");
    let mut policy = NetworkPolicy::new(net(2), Head::Deterministic).return_log_prob(true);
    let error = policy
        .bind(&Binding::new(&env(4, Spec::discrete(2)), 1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("extra columns"), "{error}");
}

#[test]
fn numbers_that_are_none_are_an_error_with_environment_and_frame() {
    let cases = [
        (
            Head::Categorical,
            Spec::discrete(2),
            vec![f32::NAN, 0.0],
            "logit is NaN",
        ),
        (
            Head::Categorical,
            Spec::discrete(2),
            vec![f32::INFINITY, 0.0],
            "logit is inf",
        ),
        (
            Head::Categorical,
            Spec::discrete(2),
            vec![f32::NEG_INFINITY; 2],
            "logit is -inf",
        ),
        (
            Head::Deterministic,
            Spec::discrete(2),
            vec![0.0, f32::NAN],
            "output of the network is NaN",
        ),
        (
            Head::Deterministic,
            real(2),
            vec![0.0, f32::NAN],
            "output of the network is NaN",
        ),
        (
            Head::Normal(Scale::softplus()),
            real(1),
            vec![f32::NAN, 0.0],
            "mean is NaN",
        ),
        (
            Head::Normal(Scale::softplus()),
            real(1),
            vec![0.0, f32::NAN],
            "deviation is NaN",
        ),
    ];
    for (head, action, outputs, expected) in cases {
        let mut stage = Stage::new(
            NetworkPolicy::new(constant(&outputs), head),
            &env(1, action),
            2,
        );
        for exploration in [Random, Mode] {
            let error = stage.act(5, exploration).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("environment 10, frame 5: {expected}")
            );
        }
    }
    // Only the row that is concerned is named.
    let policy = NetworkPolicy::new(Sequential::new().linear(1, 2), Head::Categorical);
    let mut stage = Stage::new(policy, &env(1, Spec::discrete(2)), 3);
    stage.obs.rows_mut().get_mut::<f32>(Key::new(0)).unwrap()[2] = f32::NAN;
    let error = stage.act(5, Mode).unwrap_err().to_string();
    assert_eq!(error, "environment 12, frame 5: logit is NaN");
}

#[test]
fn acting_before_binding_is_an_error() {
    let mut policy = NetworkPolicy::new(Sequential::new().linear(1, 2), Head::Categorical);
    let obs = RowBlock::new(&[], 0).unwrap();
    let mut out = RowBlock::new(&[], 0).unwrap();
    let input = PolicyIn {
        obs: obs.rows(),
        envs: &EnvRows::new(0, Vec::new()),
        exploration: Random,
    };
    let error = policy.act(&input, out.rows_mut()).unwrap_err().to_string();
    assert_eq!(
        error,
        "network policy was asked to act before it was bound to an environment"
    );
}
