use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::scope;

use tensordict::{DType, Tensor, TensorDict};
use windrow_env::{EnvSpec, Spec};
use windrow_slab::{Key, RowBlock, RowsMut};
use windrow_sync::{error_chain, unpoisoned};

use super::*;
use crate::{
    EnvRows, ExplorationType, GraphPolicy, Head, NetworkPolicy, PolicyIn, RandomPolicy,
    nn::{Graph, Sequential, Zip},
    policy_fn,
};

const SECOND: Duration = Duration::from_secs(1);

fn env() -> EnvSpec {
    EnvSpec::new(
        "Line",
        Spec::unbounded(DType::F32, [2]),
        Spec::discrete(1000),
    )
}

fn columns() -> Vec<LeafSpec> {
    env().action_leaves()
}

/// A client with environments from `first` on, by hand.
struct Hand {
    policy: Box<dyn Policy>,
    obs: RowBlock,
    out: RowBlock,
    envs: EnvRows,
    exploration: ExplorationType,
}

impl Hand {
    fn new(mut policy: impl Policy + 'static, first: u32, rows: usize) -> Self {
        let spec = policy.bind(&Binding::new(&env(), rows)).unwrap();
        Self {
            policy: Box::new(policy),
            obs: RowBlock::new(&env().observation_leaves(), rows).unwrap(),
            out: RowBlock::new(&spec.columns, rows).unwrap(),
            envs: EnvRows::new(5, (first..first + rows as u32).collect()),
            exploration: ExplorationType::Random,
        }
    }

    /// Asks once; the actions, and the version behind them.
    fn ask(&mut self) -> Result<(Vec<i64>, Option<i64>), PolicyError> {
        let (ids, frames) = (self.envs.ids(), self.envs.frames());
        let numbers = ids.iter().zip(frames);
        let numbers = numbers.flat_map(|(&id, &frame)| [id as f32, frame as f32 / 7.0]);
        let mut obs = self.obs.rows_mut();
        let to = obs.get_mut::<f32>(Key::new(0))?;
        to.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
        let input = PolicyIn {
            obs: self.obs.rows(),
            envs: &self.envs,
            exploration: self.exploration,
        };
        self.policy.act(&input, self.out.rows_mut())?;
        self.envs.advance();
        let actions = self.out.rows().get::<i64>(Key::new(0))?.to_vec();
        Ok((actions, self.policy.version()))
    }

    fn refused(&mut self) -> String {
        self.ask().unwrap_err().to_string()
    }
}

fn server(policy: &PolicyRecipe, config: ServerConfig) -> InferenceServer {
    InferenceServer::start(policy, Arc::new(WeightStore::new(1)), config).unwrap()
}

/// Batches of exactly `rows` rows, however long they take.
fn exactly(rows: usize) -> ServerConfig {
    let config = ServerConfig::new().max_batch_size(rows);
    config.min_batch_size(rows).timeout(3600 * SECOND)
}

/// A policy of a framework, which has a thread of its own.
struct Framed(Box<dyn Policy>);

impl Policy for Framed {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        Ok(self.0.bind(binding)?.backend(Backend::Framework))
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        let thread = std::thread::current();
        assert_eq!(thread.name(), Some("windrow-server"));
        self.0.act(input, out)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.check(weights)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.load(weights)
    }
}

/// The policy of `recipe`, evaluated by clients and by a thread of the server.
fn both(recipe: PolicyRecipe) -> [PolicyRecipe; 2] {
    let framed = recipe.clone();
    let framed = PolicyRecipe::opaque(move |worker| Framed(framed.build(worker).unwrap()));
    [recipe, framed]
}

/// The action is the environment.
fn ids() -> PolicyRecipe {
    PolicyRecipe::of(policy_fn(columns(), |input, mut out| {
        let actions = out.get_mut::<i64>(Key::new(0))?;
        let ids = input.envs.ids().iter().map(|&id| i64::from(id));
        actions.iter_mut().zip(ids).for_each(|(to, id)| *to = id);
        Ok(())
    }))
}

#[test]
fn actions_are_those_that_each_client_would_have_chosen_alone() {
    let net = Sequential::new()
        .linear(2, 16)
        .tanh()
        .linear(16, 1000)
        .seed(3);
    let net = NetworkPolicy::new(net, Head::Categorical).return_log_prob(true);
    let recipes = [PolicyRecipe::of(net), PolicyRecipe::random()]
        .map(both)
        .concat();
    let configs = [
        ServerConfig::new(),
        ServerConfig::new().max_batch_size(5),
        ServerConfig::new()
            .min_batch_size(4)
            .timeout(Duration::from_micros(200)),
        exactly(3),
    ];
    let cells = recipes.iter().enumerate();
    for ((index, recipe), config) in cells.flat_map(|cell| configs.map(|config| (cell, config))) {
        let server = server(recipe, config);
        scope(|scope| {
            for (first, rows) in [(0, 1), (1, 2), (3, 3)] {
                let mut served = Hand::new(server.client(), first, rows);
                let alone = recipes[index / 2 * 2].build(0).unwrap();
                let mut local = Hand::new(alone, first, rows);
                scope.spawn(move || {
                    for step in 0..200 {
                        let random = step % 7 < 5 || config.min_batch_size > 1;
                        let kinds = [ExplorationType::Mode, ExplorationType::Random];
                        served.exploration = kinds[usize::from(random)];
                        local.exploration = served.exploration;
                        let (actions, version) = served.ask().unwrap();
                        assert_eq!((actions, version), (local.ask().unwrap().0, Some(0)));
                        if served.out.rows().leaves() == 2 {
                            let key = Key::<f32>::new(1);
                            let [served, local] = [&served, &local].map(|hand| hand.out.rows());
                            assert_eq!(served.get(key).unwrap(), local.get(key).unwrap());
                        }
                    }
                });
            }
        });
        let stats = server.stats();
        assert_eq!(
            (stats.requests, stats.rows, stats.failed_batches),
            (600, 1200, 0)
        );
        assert_eq!(stats.clients, 0);
        assert!(stats.batch_fill > 0.0 && stats.batch_fill <= 1.0);
    }
}

#[test]
fn a_batch_that_fails_fails_its_own_requests_only() {
    let recipe = PolicyRecipe::of(policy_fn(columns(), |input, _| {
        match input.envs.ids().contains(&7) && input.envs.frames().contains(&0) {
            true => Err(PolicyError::failed("no action for 7")),
            false => Ok(()),
        }
    }));
    for recipe in both(recipe) {
        let one = server(&recipe, ServerConfig::new());
        let (mut seven, mut other) = (Hand::new(one.client(), 7, 1), Hand::new(one.client(), 1, 1));
        other.ask().unwrap();
        assert_eq!(seven.refused(), "no action for 7");
        other.ask().unwrap();
        seven.envs.advance();
        seven.ask().unwrap();
        let stats = one.stats();
        assert_eq!(
            (stats.batches, stats.failed_batches, stats.clients),
            (4, 1, 2)
        );

        // All requests of one batch get the error, and what is behind it.
        let two = server(&recipe, exactly(2));
        let hands = [7, 1].map(|id| Hand::new(two.client(), id, 1));
        scope(|scope| {
            for mut hand in hands {
                scope.spawn(move || {
                    let error = hand.ask().unwrap_err();
                    assert_eq!(error_chain(&error), "no action for 7");
                    hand.envs.advance();
                    hand.ask().unwrap();
                });
            }
        });
        assert_eq!((two.stats().failed_batches, two.stats().requests), (1, 4));
    }
}

#[test]
fn a_panic_of_the_policy_ends_the_server_for_all_its_clients() {
    let panics = policy_fn(columns(), |input, _| {
        assert!(input.envs.ids()[0] != 7, "seven");
        Ok(())
    });
    for recipe in both(PolicyRecipe::of(panics)) {
        let server = server(&recipe, ServerConfig::new());
        let (mut seven, mut other) = (
            Hand::new(server.client(), 7, 1),
            Hand::new(server.client(), 1, 1),
        );
        other.ask().unwrap();
        let ended = "the inference server has ended: its policy panicked: seven";
        for _ in 0..2 {
            assert_eq!(
                (seven.refused(), other.refused()),
                (ended.to_owned(), ended.to_owned())
            );
        }
        let late = server.client().bind(&Binding::new(&env(), 1));
        assert_eq!(late.unwrap_err().to_string(), ended);
        assert_eq!(server.ended().unwrap(), "its policy panicked: seven");
        assert!(server.join(SECOND * 60));
    }
}

/// Holds a policy in `act` until it is opened.
#[derive(Default)]
struct Gate(Mutex<(usize, bool)>, Condvar);

impl Gate {
    fn pass(&self) {
        let mut state = unpoisoned(self.0.lock());
        state.0 += 1;
        self.1.notify_all();
        drop(self.1.wait_while(state, |state| !state.1).unwrap());
    }

    fn await_somebody(&self) {
        let state = self.0.lock().unwrap();
        drop(self.1.wait_while(state, |state| state.0 == 0).unwrap());
    }

    fn open(&self) {
        self.0.lock().unwrap().1 = true;
        self.1.notify_all();
    }
}

#[test]
fn a_shutdown_frees_those_that_wait_also_while_the_policy_acts() {
    for clients in [true, false] {
        let gate = Arc::new(Gate::default());
        let held = Arc::clone(&gate);
        let waits = policy_fn(columns(), move |_, _| {
            held.pass();
            Ok(())
        });
        let waits = PolicyRecipe::opaque(move |_| waits.clone());
        let [native, framed] = both(waits);
        let server = server(if clients { &native } else { &framed }, ServerConfig::new());
        let hands = [0, 1].map(|id| Hand::new(server.client(), id, 1));
        let (tells, told) = std::sync::mpsc::channel();
        scope(|scope| {
            for mut hand in hands {
                let tells = tells.clone();
                scope.spawn(move || tells.send(hand.ask().map_err(|error| error.to_string())));
            }
            gate.await_somebody();
            assert!(!server.join(Duration::ZERO));
            server.shutdown();
            // Who evaluates cannot be freed.
            for _ in 0..1 + usize::from(!clients) {
                let refused = told.recv().unwrap().unwrap_err();
                assert_eq!(refused, "the inference server has ended: it was shut down");
            }
            assert!(!server.join(Duration::ZERO));
            gate.open();
            assert!(server.join(SECOND * 60));
        });
    }
}

#[test]
fn the_end_of_a_server_is_seen_by_those_that_come_later() {
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let counts = Arc::new(Counts(Arc::clone(&dropped)));
    let recipe = PolicyRecipe::opaque(move |_| {
        let counts = Arc::clone(&counts);
        policy_fn(columns(), move |_, _| {
            let _ = &counts;
            Ok(())
        })
    });
    let one = server(&recipe, ServerConfig::new());
    let mut hand = Hand::new(one.client(), 0, 1);
    hand.ask().unwrap();
    one.shutdown();
    drop(recipe);
    assert!(one.join(SECOND * 60));
    assert_eq!(
        hand.refused(),
        "the inference server has ended: it was shut down"
    );
    drop((hand, one));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    // One that never had a client has no thread to wait for.
    let unused = server(&ids(), ServerConfig::new());
    let client = unused.client();
    unused.shutdown();
    assert!(unused.join(Duration::ZERO));
    drop(unused);
    let mut client = client;
    assert!(client.bind(&Binding::new(&env(), 1)).is_err());
}

/// Parameters of one number, which is the action; negative ones are refused when they are loaded.
#[derive(Clone, Default)]
struct Number(f32);

fn number(value: f32) -> Weights {
    let mut weights = TensorDict::new([]);
    weights
        .set("number", Tensor::full([1], value).unwrap())
        .unwrap();
    weights
}

impl Policy for Number {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        Ok(PolicySpec::new(binding.spec.action_leaves()))
    }

    fn act(
        &mut self,
        _: &PolicyIn<'_>,
        mut out: windrow_slab::RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        out.get_mut::<i64>(Key::new(0))?.fill(self.0 as i64);
        Ok(())
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        match weights.contains_key("number") {
            true => Ok(()),
            false => Err(PolicyError::failed("there is no number")),
        }
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        let value = weights
            .as_slice::<f32>("number")
            .map_err(PolicyError::failed)?[0];
        if value < 0.0 {
            return Err(PolicyError::failed("negative"));
        }
        self.0 = value;
        Ok(())
    }
}

#[test]
fn each_answer_comes_with_the_version_of_the_weights_that_acted() {
    for recipe in both(PolicyRecipe::of(Number::default())) {
        let store = Arc::new(WeightStore::new(1));
        store.publish(&number(3.0)).unwrap();
        let server =
            InferenceServer::start(&recipe, Arc::clone(&store), ServerConfig::new()).unwrap();
        let mut hand = Hand::new(server.client(), 0, 1);
        let acted = |hand: &mut Hand| hand.ask().unwrap();
        assert_eq!(acted(&mut hand), (vec![3], Some(1)));
        assert_eq!(server.update_policy_weights(&number(5.0)).unwrap(), 2);
        assert_eq!(acted(&mut hand), (vec![5], Some(2)));
        let other = server.update_policy_weights(&TensorDict::new([]));
        assert_eq!(other.unwrap_err().to_string(), "there is no number");
        assert_eq!(acted(&mut hand), (vec![5], Some(2)));
        // What cannot be loaded fails each batch until there are other weights.
        store.publish(&number(-1.0)).unwrap();
        assert_eq!([hand.refused(), hand.refused()], ["negative"; 2]);
        store.publish(&number(6.0)).unwrap();
        assert_eq!(acted(&mut hand), (vec![6], Some(4)));
        // A restored state may have other weights under the same number.
        store.restore(4, &number(9.0)).unwrap();
        assert_eq!(acted(&mut hand), (vec![6], Some(4)));
        hand.policy.load(&number(0.0)).unwrap();
        assert_eq!(acted(&mut hand), (vec![9], Some(4)));
        assert_eq!(server.stats().policy_version, 4);
    }
}

#[test]
fn a_client_is_answered_though_the_server_has_waited_in_vain_for_another() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let slow = policy_fn(columns(), move |_, mut out| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(SECOND / 25);
        out.get_mut::<i64>(Key::new(0))?.fill(0);
        Ok(())
    });
    let config = ServerConfig::new().max_batch_size(2);
    let server = server(&PolicyRecipe::of(slow), config);
    let mut quick = Hand::new(server.client(), 0, 1);
    let mut late = [1, 2].map(|first| Hand::new(server.client(), first, 1));
    let answers = AtomicUsize::new(0);
    scope(|scope| {
        // It asks again at once, so the server expects it after each answer; then it stays, and
        // asks no more.
        scope.spawn(|| (0..3).for_each(|_| drop(quick.ask().unwrap())));
        // Two ask while that one is evaluated for the last time. The server's own thread goes on
        // with their full batch, and then waits for the quick one in vain. One of the two asks once
        // more.
        for (hand, times) in late.iter_mut().zip([1, 2]) {
            let (calls, answers) = (&calls, &answers);
            scope.spawn(move || {
                while calls.load(Ordering::Relaxed) < 3 {
                    std::thread::yield_now();
                }
                for _ in 0..times {
                    hand.ask().unwrap();
                    answers.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(SECOND / 10);
                }
            });
        }
        let begun = std::time::Instant::now();
        while answers.load(Ordering::Relaxed) < 3 && begun.elapsed() < 60 * SECOND {
            std::thread::sleep(SECOND / 50);
        }
        // Who still waits is told so, and the test fails.
        server.shutdown();
    });
}

#[test]
fn a_client_that_leaves_is_not_waited_for() {
    for recipe in both(ids()) {
        let server = server(&recipe, exactly(2));
        let (stays, mut leaves) = (
            Hand::new(server.client(), 4, 1),
            Hand::new(server.client(), 9, 1),
        );
        let answer = |mut hand: Hand| move || (hand.ask().unwrap().0, hand);
        let asked = std::thread::spawn(answer(stays));
        assert_eq!(leaves.ask().unwrap().0, [9]);
        let (actions, stays) = asked.join().unwrap();
        assert_eq!(actions, [4]);
        // Alone, it would wait for an hour for the second row.
        let asked = std::thread::spawn(answer(stays));
        drop(leaves);
        let (actions, stays) = asked.join().unwrap();
        assert_eq!(actions, [4]);
        assert_eq!(server.stats().clients, 1);
        // Its place is given to another.
        let mut comes = Hand::new(server.client(), 5, 2);
        assert_eq!(comes.ask().unwrap().0, [5, 6]);
        assert_eq!(server.stats().clients, 2);
        drop(stays);
        assert_eq!(server.stats().clients, 1);
    }
}

#[test]
fn states_go_with_environments_and_not_with_rows() {
    // Counts the steps of an episode.
    let mut graph = Graph::new();
    let (x, count) = (graph.input(2), graph.input(1));
    let one = graph.constant(&[1.0]);
    let next = graph.zip(Zip::Add, count, one);
    let scores = graph.linear("scores", x, 1000);
    let policy = GraphPolicy::new(graph)
        .observes("observation", DType::F32, [2])
        .remembers(next, &[0.0])
        .writes("action", DType::F32, [1000], scores)
        .writes("count", DType::F32, [1], count)
        .writes(("next", "count"), DType::F32, [1], next);
    for recipe in both(PolicyRecipe::of(policy)) {
        let server = server(&recipe, ServerConfig::new().max_batch_size(8));
        let counts = |hand: &mut Hand| {
            hand.ask().unwrap();
            hand.out.rows().get::<f32>(Key::new(1)).unwrap().to_vec()
        };
        let [mut one, mut two, mut three] =
            [(0, 2), (2, 1), (3, 2)].map(|(first, rows)| Hand::new(server.client(), first, rows));
        assert_eq!(counts(&mut two), [0.0]);
        assert_eq!(counts(&mut one), [0.0; 2]);
        assert_eq!(counts(&mut two), [1.0]);
        assert_eq!(counts(&mut three), [0.0; 2]);
        one.envs.begin(1);
        assert_eq!(counts(&mut one), [1.0, 0.0]);
        assert_eq!(counts(&mut two), [2.0]);
        // Random steps, which the policy has not seen.
        three.envs.advance();
        assert_eq!(counts(&mut three), [0.0; 2]);
        assert_eq!(counts(&mut three), [1.0; 2]);
        // The places of one that has left are those of another, which has no state, although its
        // environments are at those frames.
        let left = std::mem::replace(&mut two, Hand::new(server.client(), 9, 1));
        let envs = left.envs.clone();
        drop(left);
        let mut other = Hand::new(server.client(), 2, 1);
        other.envs = envs;
        assert_eq!(counts(&mut other), [0.0]);
        assert_eq!(counts(&mut other), [1.0]);
        assert_eq!(counts(&mut one), [2.0, 1.0]);
        // All at once, in any order.
        let mut hands = [one, two, three, other];
        for step in 0..20 {
            let told: Vec<_> = scope(|scope| {
                let asked = hands
                    .each_mut()
                    .map(|hand| scope.spawn(move || counts(hand)));
                asked
                    .into_iter()
                    .flat_map(|asked| asked.join().unwrap())
                    .collect()
            });
            let expected = [3.0, 2.0, 0.0, 2.0, 2.0, 2.0];
            assert_eq!(told, expected.map(|count| count + step as f32));
        }
    }
}

/// Binds a client of a server of `recipe`, and returns the error.
fn unbound(recipe: &PolicyRecipe) -> String {
    let server = server(recipe, ServerConfig::new());
    let mut errors = (0..2).map(|_| {
        server
            .client()
            .bind(&Binding::new(&env(), 1))
            .unwrap_err()
            .to_string()
    });
    let first = errors.next().unwrap();
    assert_eq!(errors.next().unwrap(), first);
    assert_eq!(server.ended(), None);
    first
}

#[test]
fn a_first_client_that_cannot_be_bound_fails_alone() {
    // Whoever binds this one a second time, or after a panic, is refused.
    struct Once(Box<dyn Policy>, bool);
    impl Policy for Once {
        fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
            assert!(!std::mem::replace(&mut self.1, true), "bound twice");
            assert_ne!(binding.spec.id, "Odd");
            self.0.bind(binding)
        }

        fn needs_first_rows(&self) -> bool {
            true
        }

        fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
            self.0.act(input, out)
        }

        fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
            self.0.load(weights)
        }
    }
    let recipe = PolicyRecipe::opaque(|_| Once(ids().build(0).unwrap(), false));
    let server = server(&recipe, ServerConfig::new());
    let other = EnvSpec::new(
        "Other",
        Spec::unbounded(DType::F32, [2]),
        Spec::unbounded(DType::F32, [1]),
    );
    for _ in 0..2 {
        let mut wrong = server.client();
        assert!(wrong.needs_first_rows());
        let error = wrong.bind(&Binding::new(&other, 1)).unwrap_err();
        assert!(error.to_string().contains("column 0"), "{error}");
    }
    let mut odd = other;
    odd.id = "Odd".into();
    let mut client = server.client();
    let bind = std::panic::AssertUnwindSafe(|| client.bind(&Binding::new(&odd, 1)).map(drop));
    assert!(std::panic::catch_unwind(bind).is_err());
    assert!(server.client().needs_first_rows());
    let mut right = Hand::new(server.client(), 3, 1);
    assert_eq!(right.ask().unwrap().0, [3]);
    assert!(!server.client().needs_first_rows());
}

#[test]
fn a_policy_with_a_state_is_refused_by_its_name() {
    let mut columns = columns();
    columns.push(LeafSpec::new("hidden", DType::F32, [3]));
    columns.push(LeafSpec::new(("next", "hidden"), DType::F32, [3]));
    let error = unbound(&PolicyRecipe::of(policy_fn(columns, |_, _| Ok(()))));
    let expected =
        "a policy that keeps a state for each row cannot be served: it writes \"hidden\"";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_with_what_was_expected() {
    let columns = [LeafSpec::new("action", DType::F32, [])];
    let error = unbound(&PolicyRecipe::of(policy_fn(columns, |_, _| Ok(()))));
    assert!(
        error.contains("column 0: expected \"action\" int64"),
        "{error}"
    );

    let server = server(&ids(), ServerConfig::new().max_batch_size(2));
    let bound = |spec: &EnvSpec, rows| server.client().bind(&Binding::new(spec, rows));
    bound(&env(), 2).unwrap();
    let error = bound(&env(), 3).unwrap_err().to_string();
    assert_eq!(
        error,
        "max_batch_size of an inference server must be at least 3, the environments of a client, got 2"
    );
    let other = EnvSpec::new("Other", Spec::unbounded(DType::F32, [3]), Spec::discrete(2));
    let error = bound(&other, 1).unwrap_err().to_string();
    assert!(
        error.contains("does not fit Other: observations"),
        "{error}"
    );
    let error = server.client().act(
        &PolicyIn {
            obs: RowBlock::new(&[], 0).unwrap().rows(),
            envs: &EnvRows::new(0, Vec::new()),
            exploration: ExplorationType::Random,
        },
        RowBlock::new(&[], 0).unwrap().rows_mut(),
    );
    assert!(matches!(error, Err(PolicyError::NotBound { .. })));
    // Another number of rows than it was bound for is an error, and changes nothing.
    let mut hand = Hand::new(server.client(), 0, 1);
    let wrong = std::mem::replace(&mut hand.envs, EnvRows::new(0, vec![0, 1]));
    assert!(matches!(hand.ask(), Err(PolicyError::Rows { .. })));
    hand.envs = wrong;
    let other = RowBlock::new(&env().action_leaves(), 1).unwrap();
    let wrong = std::mem::replace(&mut hand.obs, other);
    let input = PolicyIn {
        obs: hand.obs.rows(),
        envs: &hand.envs,
        exploration: ExplorationType::Random,
    };
    let refused = hand.policy.act(&input, hand.out.rows_mut());
    assert!(matches!(refused, Err(PolicyError::Row(_))));
    hand.obs = wrong;
    hand.ask().unwrap();
}

#[test]
fn choices_out_of_range_are_refused() {
    let start = |config| {
        let store = Arc::new(WeightStore::new(1));
        let started = InferenceServer::start(&PolicyRecipe::of(RandomPolicy::new()), store, config);
        started.unwrap_err().to_string()
    };
    let config = ServerConfig::new().max_batch_size(4);
    assert_eq!(
        start(config.max_batch_size(0)),
        "max_batch_size of an inference server must be a positive number, got 0"
    );
    for got in [0, 5] {
        let expected = format!(
            "min_batch_size of an inference server must be within 1 to max_batch_size=4, got {got}"
        );
        assert_eq!(start(config.min_batch_size(got)), expected);
    }
    // No time-out is too long.
    let server = server(&ids(), config.timeout(Duration::MAX).min_batch_size(2));
    let hands = [0, 1].map(|id| Hand::new(server.client(), id, 1));
    scope(|scope| {
        for mut hand in hands {
            scope.spawn(move || (0..20).for_each(|_| drop(hand.ask().unwrap())));
        }
    });
}
