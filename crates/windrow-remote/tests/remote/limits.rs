//! Limits of messages, weights and connections.

use std::time::Duration;

use windrow_policy::{Policy, PolicyRecipe, ServerConfig};
use windrow_remote::{Address, Limits, Remote, RemoteError, RemoteServer};

use crate::tools::{Seat, briefly, net, patiently};

#[test]
fn messages_that_are_too_large_are_refused_on_both_sides() {
    let small = Limits::new().message(1024).weights(1500);
    let recipe = PolicyRecipe::of(net(1));
    let server = RemoteServer::builder(recipe).limits(small).start().unwrap();
    let act = |remote: Remote, rows| {
        let mut seat = Seat::new(remote.policy().unwrap(), 0, rows)?;
        seat.act(0)
    };
    act(patiently(&server), 8).unwrap();
    // The server says what it takes, so that a client with another limit sends no more.
    for remote in [patiently(&server), patiently(&server).limits(small)] {
        let error = act(remote, 30).unwrap_err().to_string();
        assert!(error.contains("the limit of 1024"), "{error}");
    }
    let error = act(patiently(&server), 65).unwrap_err().to_string();
    assert!(error.contains("observations of 65 environments"), "{error}");
    let weights = net(2).weights();
    let error = patiently(&server)
        .limits(small)
        .weights()
        .unwrap()
        .publish(&weights)
        .unwrap_err();
    assert!(
        matches!(error, RemoteError::Limit { limit: 1500, .. }),
        "{error}"
    );
    let error = patiently(&server)
        .limits(Limits::new().message(1024))
        .weights()
        .unwrap()
        .publish(&weights);
    assert!(error.unwrap_err().to_string().contains("1500"));
    assert_eq!(server.version(), 0);
    for message in [0, 1023, usize::MAX] {
        let limits = Limits::new().message(message);
        let error = patiently(&server).limits(limits).policy().unwrap_err();
        assert!(matches!(error, RemoteError::Setting { .. }), "{error}");
    }
}

#[test]
fn a_client_beyond_the_last_place_waits_for_one() {
    let recipe = PolicyRecipe::of(net(1));
    let batching = ServerConfig::new().max_batch_size(8);
    let server = RemoteServer::builder(recipe)
        .batching(batching)
        .max_connections(1)
        .start()
        .unwrap();
    let first = Seat::new(patiently(&server).policy().unwrap(), 0, 1).unwrap();
    let error = Seat::new(briefly(&server).policy().unwrap(), 0, 1)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("no answer from unix:/"), "{error}");
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            Seat::new(patiently(&server).policy().unwrap(), 0, 1)
                .unwrap()
                .act(0)
        });
        std::thread::sleep(Duration::from_millis(20));
        drop(first);
        second.join().unwrap().unwrap();
    });
}

#[test]
fn choices_out_of_range_are_refused() {
    let builder = || RemoteServer::builder(PolicyRecipe::random());
    assert!(matches!(
        builder().max_connections(0).start(),
        Err(RemoteError::Setting { .. })
    ));
    builder().max_connections(usize::MAX).start().unwrap();
    let batching = ServerConfig::new().max_batch_size(0);
    assert!(matches!(
        builder().batching(batching).start(),
        Err(RemoteError::Policy(_))
    ));
    for zero in [
        Remote::new(Address::unix("policy.sock")).timeout(Duration::ZERO),
        Remote::new(Address::unix("policy.sock")).silence(Duration::MAX),
    ] {
        assert!(matches!(zero.policy(), Err(RemoteError::Setting { .. })));
    }
}
