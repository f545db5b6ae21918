//! Every interleaving of an inference server and its clients: run with `cargo xtask models`.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tensordict::DType;
use windrow_env::{EnvSpec, Spec};
use windrow_policy::{
    Binding, EnvRows, ExplorationType, InferenceServer, Policy, PolicyError, PolicyIn,
    PolicyRecipe, Served, ServerConfig, WeightStore, Weights, policy_fn,
};
use windrow_slab::{Key, RowBlock};

/// All interleavings with at most `preemptions` switches away from a thread that could go on.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn env() -> EnvSpec {
    EnvSpec::new(
        "Line",
        Spec::unbounded(DType::F32, []),
        Spec::discrete(1000),
    )
}

/// A server whose actions are the numbers of the environments; the policy fails for 7.
fn server(store: &Arc<WeightStore>) -> InferenceServer {
    let policy = policy_fn(env().action_leaves(), |input, mut out| {
        for (to, &id) in out
            .get_mut::<i64>(Key::new(0))?
            .iter_mut()
            .zip(input.envs.ids())
        {
            if id == 7 {
                return Err(PolicyError::failed("seven"));
            }
            *to = i64::from(id);
        }
        Ok(())
    });
    InferenceServer::start(
        &PolicyRecipe::of(policy),
        Arc::clone(store),
        ServerConfig::new(),
    )
    .unwrap()
}

fn bound(server: &InferenceServer) -> Served {
    let mut client = server.client();
    client.bind(&Binding::new(&env(), 1)).unwrap();
    client
}

/// The action for environment `id`.
fn ask(client: &mut Served, id: u32) -> Result<i64, PolicyError> {
    let obs = RowBlock::new(&env().observation_leaves(), 1).unwrap();
    let mut out = RowBlock::new(&env().action_leaves(), 1).unwrap();
    let input = PolicyIn {
        obs: obs.rows(),
        envs: &EnvRows::new(0, vec![id]),
        exploration: ExplorationType::Random,
    };
    client.act(&input, out.rows_mut())?;
    Ok(out.rows().get::<i64>(Key::new(0))?[0])
}

fn end(server: InferenceServer) {
    server.shutdown();
    assert!(server.join(Duration::MAX));
}

#[test]
fn each_client_gets_its_own_answers_and_the_server_ends() {
    model(2, || {
        let server = server(&Arc::new(WeightStore::new(1)));
        let (mut one, mut two) = (bound(&server), bound(&server));
        let other = thread::spawn(move || assert_eq!(ask(&mut two, 2).unwrap(), 2));
        assert_eq!(ask(&mut one, 1).unwrap(), 1);
        assert_eq!(ask(&mut one, 3).unwrap(), 3);
        other.join().unwrap();
        assert_eq!(server.stats().requests, 3);
        end(server);
    });
}

#[test]
fn an_error_reaches_its_batch_and_no_other() {
    model(2, || {
        let server = server(&Arc::new(WeightStore::new(1)));
        let (mut one, mut two) = (bound(&server), bound(&server));
        let other =
            thread::spawn(move || assert_eq!(ask(&mut two, 7).unwrap_err().to_string(), "seven"));
        match ask(&mut one, 1) {
            Ok(action) => assert_eq!(action, 1),
            Err(error) => assert_eq!(error.to_string(), "seven"),
        }
        other.join().unwrap();
        assert_eq!(ask(&mut one, 1).unwrap(), 1);
        end(server);
    });
}

#[test]
fn whoever_waits_when_the_server_ends_is_told() {
    model(2, || {
        let server = server(&Arc::new(WeightStore::new(1)));
        let (mut one, two) = (bound(&server), bound(&server));
        let asks = thread::spawn(move || match ask(&mut one, 1) {
            Ok(action) => assert_eq!(action, 1),
            Err(error) => assert!(matches!(error, PolicyError::ServerEnded { .. })),
        });
        drop(two);
        end(server);
        asks.join().unwrap();
    });
}

#[test]
fn weights_that_were_published_before_a_request_act_in_it() {
    model(2, || {
        let store = Arc::new(WeightStore::new(1));
        let server = server(&store);
        let mut client = bound(&server);
        let publishes = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.publish(&Weights::new([])))
        };
        ask(&mut client, 1).unwrap();
        let before = client.version().unwrap();
        assert_eq!(publishes.join().unwrap(), 1);
        ask(&mut client, 1).unwrap();
        assert_eq!((client.version(), before <= 1), (Some(1), true));
        end(server);
    });
}
