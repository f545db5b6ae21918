//! Actions over a connection are those that the policy would choose here.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use windrow_collect::{Collector, CollectorBuilder};
use windrow_env::{EnvSpec, Spec};
use windrow_policy::{Binding, ExplorationType, Policy, PolicyError, PolicyRecipe, ServerConfig};
use windrow_remote::RemoteServer;

use crate::tools::{Seat, by_ids, net, patiently, pole, serve};

#[test]
fn actions_are_those_of_the_policy_here() {
    let server = serve(net(3));
    for rows in [1, 64] {
        let mut here = Seat::new(net(3), 5, rows).unwrap();
        let mut there = Seat::new(patiently(&server).policy().unwrap(), 5, rows).unwrap();
        assert_eq!(there.spec.columns, here.spec.columns);
        for frame in 0..50 {
            assert_eq!(
                there.act(frame).unwrap(),
                here.act(frame).unwrap(),
                "frame {frame}"
            );
        }
        assert_eq!(there.policy.version(), Some(0));
    }
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.refused, stats.repeated), (2, 0, 0));
    assert_eq!(stats.inference.rows, 50 * 65);
    // Those that said goodbye are forgotten, if not at once.
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.stats().inference.clients > 0 {
        assert!(
            Instant::now() < deadline,
            "clients that have gone are still there"
        );
        std::thread::yield_now();
    }
}

#[test]
fn clients_share_batches_also_with_one_in_the_process_of_the_server() {
    const CLIENTS: usize = 4;
    let batching = ServerConfig::new()
        .min_batch_size(2 * CLIENTS)
        .timeout(Duration::from_secs(60));
    let recipe = PolicyRecipe::of(net(3));
    let server = RemoteServer::builder(recipe)
        .batching(batching)
        .start()
        .unwrap();
    let bound = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, bound) = (&server, &bound);
            scope.spawn(move || {
                let policy: Box<dyn Policy> = match client {
                    0 => Box::new(server.client()),
                    _ => Box::new(patiently(server).policy().unwrap()),
                };
                let mut there = Seat::new(policy, 2 * client as u32, 2).unwrap();
                let mut here = Seat::new(net(3), 2 * client as u32, 2).unwrap();
                bound.wait();
                for frame in 0..20 {
                    assert_eq!(there.act(frame).unwrap(), here.act(frame).unwrap());
                }
                // Nobody leaves before all have their answers.
                bound.wait();
            });
        }
    });
    let stats = server.stats().inference;
    assert_eq!((stats.batches, stats.rows), (20, 20 * 2 * CLIENTS as u64));
}

fn collector(
    policy: impl Policy + Clone + 'static,
    edit: impl FnOnce(CollectorBuilder) -> CollectorBuilder,
) -> Collector {
    let builder = Collector::builder("CartPole-v1")
        .policy(policy)
        .num_workers(2)
        .num_envs(3)
        .seed(11);
    edit(builder.frames_per_batch(60).total_frames(600))
        .build()
        .unwrap()
}

#[test]
fn a_collector_over_a_connection_collects_what_one_with_the_policy_does() {
    let server = serve(net(5));
    let here = collector(net(5), |builder| builder);
    let there = collector(patiently(&server).policy().unwrap(), |builder| builder);
    let mut batches = 0;
    for (here, there) in here.zip(there) {
        let (here, there) = (here.unwrap(), there.unwrap());
        assert!(here.same_bits(&there), "batch {batches}");
        batches += 1;
    }
    assert_eq!(batches, 10);
}

#[test]
fn weights_of_a_collector_go_to_the_server_and_versions_come_back() {
    let server = serve(net(5));
    let updater = patiently(&server).weights().unwrap();
    let policy = patiently(&server).policy().unwrap();
    let mut there = collector(policy.clone(), |builder| builder.weight_updater(updater));
    let mut here = collector(net(5), |builder| builder);
    let newer = net(6).weights();
    for version in 1..=3 {
        assert_eq!(there.update_policy_weights(&newer).unwrap(), version);
        here.update_policy_weights(&newer).unwrap();
        let (here, there) = (
            here.next().unwrap().unwrap(),
            there.next().unwrap().unwrap(),
        );
        assert!(here.same_bits(&there));
    }
    assert!(
        there
            .worker_stats()
            .iter()
            .all(|worker| worker.policy_version == 3)
    );
    let error = policy.clone().load(&newer).unwrap_err().to_string();
    assert!(error.contains("weight_updater"), "{error}");
}

#[test]
fn environments_of_another_shape_are_refused_by_name() {
    let server = serve(net(3));
    let mut first = Seat::new(patiently(&server).policy().unwrap(), 0, 2).unwrap();
    let other = EnvSpec::new(
        "Rope",
        Spec::unbounded(tensordict::DType::F32, [6]),
        Spec::discrete(2),
    );
    let mut policy = patiently(&server).policy().unwrap();
    let error = policy
        .bind(&Binding::new(&other, 2))
        .unwrap_err()
        .to_string();
    for part in ["Rope", "observations", "[4]", "[6]"] {
        assert!(error.contains(part), "{error}");
    }
    let many = Seat::new(patiently(&server).policy().unwrap(), 0, 65)
        .err()
        .unwrap()
        .to_string();
    assert!(
        many.contains("max_batch_size") && many.contains("65"),
        "{many}"
    );
    first.act(0).unwrap();
    assert_eq!(server.stats().inference.clients, 1);
}

#[test]
fn a_request_that_fails_fails_alone() {
    let policy = by_ids(|ids, out| match ids {
        [13] => Err(PolicyError::failed("thirteen brings bad luck")),
        ids => {
            out.iter_mut()
                .zip(ids)
                .for_each(|(out, id)| *out = i64::from(*id));
            Ok(())
        }
    });
    let server = serve(policy);
    let seat = |id| Seat::new(patiently(&server).policy().unwrap(), id, 1).unwrap();
    let (mut good, mut bad) = (seat(4), seat(13));
    for frame in 0..3 {
        assert_eq!(good.act(frame).unwrap(), [4]);
        let error = bad.act(frame).unwrap_err().to_string();
        assert!(
            error.contains("bad luck") && error.contains(".sock"),
            "{error}"
        );
    }
    assert_eq!(server.stats().accepted, 2);
}

#[test]
fn a_policy_that_panics_ends_and_its_clients_are_told() {
    let server = serve(by_ids(|_, _| panic!("out of cheese")));
    let mut seat = Seat::new(patiently(&server).policy().unwrap(), 0, 1).unwrap();
    for frame in 0..2 {
        let error = seat.act(frame).unwrap_err().to_string();
        assert!(error.contains("out of cheese"), "{error}");
    }
}

#[test]
fn calls_out_of_place_are_errors() {
    let server = serve(net(3));
    let mut seat = Seat::new(patiently(&server).policy().unwrap(), 0, 2).unwrap();
    let mut unbound = seat.policy.clone();
    let env = pole();
    let obs = windrow_slab::RowBlock::new(&env.observation_leaves(), 3).unwrap();
    let mut out = windrow_slab::RowBlock::new(&env.action_leaves(), 3).unwrap();
    let envs = windrow_policy::EnvRows::new(0, vec![0, 1, 2]);
    let input = windrow_policy::PolicyIn::new(obs.rows(), &envs, ExplorationType::Mode);
    let error = unbound.act(&input, out.rows_mut()).unwrap_err();
    assert!(matches!(error, PolicyError::NotBound { .. }), "{error}");
    let error = seat.policy.act(&input, out.rows_mut()).unwrap_err();
    assert!(
        matches!(
            error,
            PolicyError::Rows {
                expected: 2,
                got: 3,
                ..
            }
        ),
        "{error}"
    );
    seat.act(0).unwrap();
}
