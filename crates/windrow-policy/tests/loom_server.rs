//! Every interleaving of an inference server and its clients: run with `cargo xtask models`.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tensordict::DType;
use windrow_env::{EnvSpec, Spec};
use windrow_policy::{
    Backend, Binding, EnvRows, ExplorationType, InferenceServer, Policy, PolicyError, PolicyIn,
    PolicyRecipe, PolicySpec, Served, ServerConfig, WeightStore, Weights, policy_fn,
};
use windrow_slab::{Key, RowBlock, RowsMut};

/// All interleavings with at most two switches away from a thread that could go on, where clients
/// evaluate and where a thread does.
fn model(run: fn(Backend)) {
    for backend in [Backend::Native, Backend::Framework] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || run(backend));
    }
}

fn env() -> EnvSpec {
    EnvSpec::new(
        "Line",
        Spec::unbounded(DType::F32, []),
        Spec::discrete(1000),
    )
}

/// A policy of a framework, which has a thread of its own.
struct Framed<P>(P);

impl<P: Policy> Policy for Framed<P> {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        Ok(self.0.bind(binding)?.backend(Backend::Framework))
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.0.act(input, out)
    }

    fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}

/// A server whose actions are the numbers of the environments; the policy fails for 7.
fn server(store: &Arc<WeightStore>, backend: Backend) -> InferenceServer {
    let policy = || policy_fn(env().action_leaves(), act);
    let recipe = match backend {
        Backend::Framework => PolicyRecipe::opaque(move |_| Framed(policy())),
        _ => PolicyRecipe::opaque(move |_| policy()),
    };
    InferenceServer::start(&recipe, Arc::clone(store), ServerConfig::new()).unwrap()
}

fn act(input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
    let actions = out.get_mut::<i64>(Key::new(0))?.iter_mut();
    for (to, &id) in actions.zip(input.envs.ids()) {
        if id == 7 {
            return Err(PolicyError::failed("seven"));
        }
        *to = i64::from(id);
    }
    Ok(())
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
    let envs = EnvRows::new(0, vec![id]);
    let input = PolicyIn::new(obs.rows(), &envs, ExplorationType::Random);
    client.act(&input, out.rows_mut())?;
    Ok(out.rows().get::<i64>(Key::new(0))?[0])
}

fn end(server: InferenceServer) {
    server.shutdown();
    assert!(server.join(Duration::MAX));
}

#[test]
fn each_client_gets_its_own_answers_and_the_server_ends() {
    model(|backend| {
        let server = server(&Arc::new(WeightStore::new(1)), backend);
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
    model(|backend| {
        let server = server(&Arc::new(WeightStore::new(1)), backend);
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
    model(|backend| {
        let server = server(&Arc::new(WeightStore::new(1)), backend);
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
    model(|backend| {
        let store = Arc::new(WeightStore::new(1));
        let server = server(&store, backend);
        let mut client = bound(&server);
        let publishes = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.publish(&Weights::new([])).unwrap())
        };
        ask(&mut client, 1).unwrap();
        let before = client.version().unwrap();
        assert_eq!(publishes.join().unwrap(), 1);
        ask(&mut client, 1).unwrap();
        assert_eq!((client.version(), before <= 1), (Some(1), true));
        end(server);
    });
}
