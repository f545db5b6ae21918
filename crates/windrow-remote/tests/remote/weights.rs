//! Weights to and from a server.

use windrow_policy::Policy;
use windrow_remote::{Limits, RemoteError, RemoteServer};

use crate::tools::{Seat, net, patiently, serve};

#[test]
fn what_was_published_acts_and_can_be_fetched() {
    let server = serve(net(1));
    let mut seat = Seat::new(patiently(&server).policy().unwrap(), 0, 8).unwrap();
    let mut here = Seat::new(net(1), 0, 8).unwrap();
    let mut weights = patiently(&server).weights().unwrap();
    assert!(
        weights.newest(0).unwrap().is_none(),
        "nothing was published"
    );
    for version in 1..=3i64 {
        let newer = net(10 + version as u64).weights();
        assert_eq!(weights.publish(&newer).unwrap(), version);
        here.policy.load(&newer).unwrap();
        assert_eq!(
            seat.act(version as usize).unwrap(),
            here.act(version as usize).unwrap()
        );
        assert_eq!(seat.policy.version(), Some(version));
        let newest = patiently(&server)
            .weights()
            .unwrap()
            .newest(version - 1)
            .unwrap()
            .unwrap();
        assert_eq!(newest.version, version);
        assert!(newest.weights.same_bits(&newer));
        assert!(weights.newest(version).unwrap().is_none());
    }
    assert_eq!(server.update_policy_weights(&net(20).weights()).unwrap(), 4);
    assert_eq!(
        (
            server.version(),
            weights.newest(3).unwrap().unwrap().version
        ),
        (4, 4)
    );
}

#[test]
fn weights_larger_than_a_message_travel_in_pieces() {
    let limits = Limits::new().message(1024);
    let recipe = windrow_policy::PolicyRecipe::of(net(1));
    let server = RemoteServer::builder(recipe)
        .limits(limits)
        .start()
        .unwrap();
    let mut weights = patiently(&server).limits(limits).weights().unwrap();
    let newer = net(2).weights();
    assert!(newer.to_bytes().unwrap().len() > 1700);
    assert_eq!(weights.publish(&newer).unwrap(), 1);
    assert!(
        weights
            .newest(0)
            .unwrap()
            .unwrap()
            .weights
            .same_bits(&newer)
    );
}

#[test]
fn weights_that_do_not_fit_are_refused_by_name_and_change_nothing() {
    let server = serve(net(1));
    let mut seat = Seat::new(patiently(&server).policy().unwrap(), 0, 8).unwrap();
    let mut weights = patiently(&server).weights().unwrap();
    let good = net(2).weights();
    let mut wrong = good.clone();
    wrong.remove("0.bias").unwrap();
    let error = weights.publish(&wrong).unwrap_err();
    assert!(
        matches!(error, RemoteError::Failed { .. }) && error.to_string().contains("0.bias"),
        "{error}"
    );
    seat.act(0).unwrap();
    assert_eq!(seat.policy.version(), Some(0));
    assert_eq!(weights.publish(&good).unwrap(), 1);
}

#[test]
fn a_reserved_entry_comes_from_the_server_alone() {
    let recipe = windrow_policy::PolicyRecipe::of(net(1));
    let server = RemoteServer::builder(recipe).reserved_weight("0.weight");
    let server = server.start().unwrap();
    let newer = net(2).weights();
    let refused = patiently(&server).weights().unwrap().publish(&newer);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.ends_with("the weights have an entry \"0.weight\", which clients may not send"),
        "{refused}"
    );
    assert_eq!(server.version(), 0);
    assert_eq!(server.update_policy_weights(&newer).unwrap(), 1);
}
