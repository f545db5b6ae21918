//! One policy for the environments of many threads, evaluated in batches.

mod board;
mod config;
mod gather;
mod serve;
mod served;
mod stats;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use windrow_slab::{LeafSpec, WaitQueue};
use windrow_sync::thread::{Builder, JoinHandle};
use windrow_sync::{Mutex, lock};

use crate::{
    Backend, Binding, Policy, PolicyError, PolicyRecipe, PolicySpec, States, WeightStore, Weights,
};
use board::{Board, Posted, Request, Side, Turn};
use serve::Server;

pub use config::ServerConfig;
pub use served::Served;
pub use stats::ServerStats;

/// Evaluates one policy for many [clients](Served): the requests that have come make one batch.
///
/// The client whose request completes a batch evaluates it, in its thread, so that no other thread has to be woken before. Where requests
/// come while a batch is evaluated, a thread of the server's own goes on with them. A policy of a [framework](Backend::Framework) is
/// always evaluated in that thread, unless there is a [sole client](ServerConfig::sole_client).
///
/// A batch waits for a client only if that is about to ask, by how long its last steps took, and no longer than a quarter of a
/// forward; and where steps take longer than that, environments step in two halves, one while the policy acts for the other. So neither
/// quick nor slow environments need another setting. Each batch is evaluated with the newest weights of a
/// [`WeightStore`]. An error of the policy reaches the clients of its batch, and the server goes on; a panic ends it. Whoever waits
/// for a server that has ended gets [`PolicyError::ServerEnded`].
///
/// ```
/// use std::sync::Arc;
///
/// use windrow_env::{EnvSpec, Spec};
/// use windrow_policy::{
///     Binding, EnvRows, ExplorationType, Head, InferenceServer, NetworkPolicy, Policy, PolicyIn, PolicyRecipe, ServerConfig,
///     WeightStore, nn::Sequential,
/// };
/// use windrow_slab::RowBlock;
///
/// let env = EnvSpec::new("CartPole-v1", Spec::unbounded(tensordict::DType::F32, [4]), Spec::discrete(2));
/// let net = NetworkPolicy::new(Sequential::new().linear(4, 64).tanh().linear(64, 2), Head::Categorical);
/// let weights = net.weights();
/// let store = Arc::new(WeightStore::new(1));
/// let server = InferenceServer::start(&PolicyRecipe::of(net), store, ServerConfig::new())?;
/// std::thread::scope(|scope| {
///     for worker in 0..4 {
///         let (mut client, env) = (server.client(), &env);
///         scope.spawn(move || -> Result<(), windrow_policy::PolicyError> {
///             let spec = client.bind(&Binding::new(env, 1))?;
///             let obs = RowBlock::new(&env.observation_leaves(), 1)?;
///             let mut actions = RowBlock::new(&spec.columns, 1)?;
///             let envs = EnvRows::new(7, vec![worker]);
///             let input = PolicyIn { obs: obs.rows(), envs: &envs, exploration: ExplorationType::Random };
///             client.act(&input, actions.rows_mut())
///         });
///     }
/// });
/// assert_eq!(server.stats().rows, 4);
/// assert_eq!(server.update_policy_weights(&weights)?, 1);
/// # Ok::<(), windrow_policy::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct InferenceServer {
    hub: Arc<Hub>,
}

impl InferenceServer {
    /// A server of the policy that `policy` makes for worker 0. The first client that is bound binds the policy, and so fixes what all
    /// clients observe and how they act. A client that cannot be bound fails alone: the next one gets a policy that is made anew. To choose
    /// yourself, bind a [client](Self::client) of your own first; it need not stay.
    ///
    /// Worker 0 of `weights` is the server's: what was published there acts from the first batch on.
    ///
    /// # Errors
    /// [`PolicyError::ServerConfig`]; as [`PolicyRecipe::build`].
    pub fn start(
        policy: &PolicyRecipe,
        weights: Arc<WeightStore>,
        config: ServerConfig,
    ) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self {
            hub: Arc::new(Hub {
                stage: Mutex::new(Stage::Unbound(Some(policy.build(0)?))),
                recipe: policy.clone(),
                reference: Mutex::new(None),
                board: Mutex::new(Board::new(config)),
                places: Mutex::new(Vec::new()),
                work: WaitQueue::new(),
                answered: [WaitQueue::new(), WaitQueue::new()],
                weights,
                config,
            }),
        })
    }

    /// A new client, which is to be [bound](Policy::bind) as any policy. Its environments observe and act as those of the first one do.
    #[must_use]
    pub fn client(&self) -> Served {
        Served::new(Arc::clone(&self.hub))
    }

    /// Publishes new weights and returns their version. The server takes them up with its next batch. The tensors are copied.
    ///
    /// # Errors
    /// [`PolicyError`] naming a tensor that is missing, unknown or misshapen; the old weights then stay.
    pub fn update_policy_weights(&self, weights: &Weights) -> Result<i64, PolicyError> {
        let hub = &self.hub;
        let mut reference = lock(&hub.reference);
        match &mut *reference {
            Some(reference) => reference.check(weights)?,
            None => {
                let made = reference.insert(hub.recipe.build(0)?);
                if let Stage::Bound { joint, .. } = &*lock(&hub.stage) {
                    made.become_reference(&joint.spec);
                }
                made.check(weights)?;
            }
        }
        hub.weights.publish(weights)
    }

    /// Figures since the start.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        lock(&self.hub.board).stats()
    }

    /// Why the server has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        lock(&self.hub.board).ended().map(ToString::to_string)
    }

    /// Ends the server: clients that wait get [`PolicyError::ServerEnded`] at once, others with their next request. The policy is
    /// dropped as soon as it does not act any more.
    pub fn shutdown(&self) {
        self.hub.end("it was shut down");
    }

    /// Waits at most `timeout` until the policy of a server that was [shut down](Self::shutdown) is dropped; whether it is.
    #[must_use]
    pub fn join(&self, timeout: Duration) -> bool {
        let hub = &self.hub;
        let ended = |board: &mut Board| (!board.running).then_some(());
        let timeout = timeout.min(LONG);
        if hub
            .side(Side::Left)
            .wait_within(&hub.board, Some(timeout), ended)
            .is_none()
        {
            return false;
        }
        let thread = match &mut *lock(&hub.stage) {
            Stage::Bound { thread, .. } => thread.take(),
            Stage::Unbound(_) => None,
        };
        thread.is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for InferenceServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What all clients share.
pub(crate) struct Hub {
    config: ServerConfig,
    recipe: PolicyRecipe,
    weights: Arc<WeightStore>,
    stage: Mutex<Stage>,
    /// Tells whether weights fit; never acts.
    reference: Mutex<Option<Box<dyn Policy>>>,
    board: Mutex<Board>,
    /// Where the policy keeps states of clients.
    places: Mutex<Vec<Range<usize>>>,
    /// The thread of the server waits here for requests.
    work: WaitQueue,
    /// Clients wait here, those of a batch on the side on which it was begun.
    answered: [WaitQueue; 2],
}

/// How far a server is.
enum Stage {
    /// No client is bound yet. `None` after one that could not be: its policy is not used again.
    Unbound(Option<Box<dyn Policy>>),
    Bound {
        joint: Joint,
        thread: Option<JoinHandle<()>>,
    },
}

/// What all clients have in common.
#[derive(Clone)]
struct Joint {
    observed: Vec<LeafSpec>,
    actions: Vec<LeafSpec>,
    spec: PolicySpec,
}

/// The longest wait that is asked of the system.
const LONG: Duration = Duration::from_secs(3600);

impl Hub {
    fn needs_first_rows(&self) -> bool {
        match &mut *lock(&self.stage) {
            // Where it cannot be made, the client that binds it gets the error.
            Stage::Unbound(policy) => {
                if policy.is_none() {
                    *policy = self.recipe.build(0).ok();
                }
                policy
                    .as_ref()
                    .is_some_and(|policy| policy.needs_first_rows())
            }
            Stage::Bound { .. } => false,
        }
    }

    /// Properties that all clients share; `binding` is one client's. The first client that can be bound binds the policy.
    fn joint(self: &Arc<Self>, binding: &Binding<'_>) -> Result<Joint, PolicyError> {
        let mut stage = lock(&self.stage);
        lock(&self.board).check()?;
        let policy = match &mut *stage {
            Stage::Bound { joint, .. } => return joint.check(binding).map(|()| joint.clone()),
            Stage::Unbound(policy) => policy.take(),
        };
        let policy = policy.map_or_else(|| self.recipe.build(0), Ok)?;
        let (joint, thread) = self.open(policy, binding)?;
        *stage = Stage::Bound {
            joint: joint.clone(),
            thread: Some(thread),
        };
        Ok(joint)
    }

    fn open(
        self: &Arc<Self>,
        mut policy: Box<dyn Policy>,
        binding: &Binding<'_>,
    ) -> Result<(Joint, JoinHandle<()>), PolicyError> {
        // Rows of a call belong to any environments.
        let mut spec = binding.spec.clone();
        spec.dimensions.clear();
        let binding = Binding {
            spec: &spec,
            batched: true,
            worker: 0,
            in_caller: false,
            ..*binding
        };
        let joint = Joint {
            spec: policy.bind(&binding)?,
            observed: binding.spec.observation_leaves(),
            actions: binding.spec.action_leaves(),
        };
        joint.spec.check_actions("served policy", binding.spec)?;
        joint.check_states()?;
        let weights = Arc::clone(&self.weights);
        let server = Server::new(policy, &joint, self.config.max_batch_size, weights)?;
        let mut board = lock(&self.board);
        // It may have been shut down meanwhile.
        board.check()?;
        let movable = joint.spec.backend == Backend::Native || self.config.sole_client;
        board.open(Box::new(server), movable);
        drop(board);
        let hub = Arc::clone(self);
        let run = move || {
            // It waits for no answer of its own: until the end.
            let _ = hub.attend(None, None);
            hub.retire();
        };
        let thread = Builder::new().name("windrow-server".to_owned()).spawn(run);
        match thread {
            Ok(thread) => Ok((joint, thread)),
            Err(error) => {
                self.retire();
                Err(PolicyError::ServerThread(error))
            }
        }
    }

    fn end(&self, reason: &str) {
        lock(&self.board).end(reason);
        self.wake_all();
    }

    /// Drops the policy of a server that has ended, unless it still acts.
    fn retire(&self) {
        let idle = lock(&self.board).idle.take();
        if let Some(server) = idle {
            self.drop_server(server);
        }
    }

    fn drop_server(&self, server: Box<Server>) {
        server.end();
        lock(&self.board).running = false;
        self.wake_all();
    }

    /// Places for the states of `rows` environments, the first that are free.
    fn take_places(&self, rows: usize) -> Range<usize> {
        let mut taken = lock(&self.places);
        let ends = taken.iter().map(|other| other.end);
        let free = std::iter::once(0).chain(ends).filter(|&first| {
            let apart = |other: &Range<usize>| first + rows <= other.start || other.end <= first;
            taken.iter().all(apart)
        });
        let first = free.min().unwrap_or_default();
        taken.push(first..first + rows);
        first..first + rows
    }

    fn free_places(&self, places: &Range<usize>) {
        lock(&self.places).retain(|other| other != places);
    }

    fn wake_all(&self) {
        self.work.wake_all();
        self.answered.iter().for_each(WaitQueue::wake_all);
    }

    fn side(&self, side: Side) -> &WaitQueue {
        &self.answered[side as usize]
    }

    /// Posts `request` of `client`, waits for its answer, and evaluates batches that are due meanwhile, where clients do that. The thread
    /// of the server is no client, and evaluates all that is left to it until the end.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`].
    fn attend(
        &self,
        client: Option<usize>,
        mut request: Option<Request>,
    ) -> Result<Request, PolicyError> {
        let mut side = request.as_ref().map_or(Side::Left, |request| request.side);
        let mut known = None;
        loop {
            let queue = match client {
                Some(_) => self.side(side),
                None => &self.work,
            };
            let timeout = known
                .map(|until: Duration| until.saturating_sub(lock(&self.board).now()).min(LONG));
            let next = queue.wait_within(&self.board, timeout, |board| {
                let posted = match request.take().map(|request| board.post(request)) {
                    Some(Ok(posted)) => posted,
                    Some(Err(ended)) => return Some(Err(Err(ended))),
                    None => Posted::Look,
                };
                let over = match client {
                    Some(client) => board.take(client),
                    None => board.check().err().map(Err),
                };
                if let Some(over) = over {
                    return Some(Err(over));
                }
                let turn = match posted {
                    Posted::Look => board.turn(client),
                    Posted::Wake => Turn::Wake,
                    Posted::Wait => Turn::Wait { until: None },
                };
                let before = std::mem::replace(&mut side, board.side(client));
                match turn {
                    Turn::Wait { until } if (until, side) == (known, before) => None,
                    turn => Some(Ok(turn)),
                }
            });
            known = match next {
                Some(Err(over)) => return over,
                Some(Ok(Turn::Wait { until })) => until,
                Some(Ok(Turn::Wake)) => {
                    self.work.wake_all();
                    None
                }
                Some(Ok(Turn::Evaluate {
                    server,
                    look_again,
                    begun,
                    side,
                })) => {
                    let by_client = client.is_some();
                    self.evaluate(server, look_again, (begun, side), by_client);
                    None
                }
                None => None,
            };
        }
    }

    /// Has `server` evaluate a batch that was begun at a time and on a side, and gives answers and server back.
    fn evaluate(
        &self,
        mut server: Box<Server>,
        look_again: bool,
        (begun, side): (Duration, Side),
        by_client: bool,
    ) {
        let served = server.serve(look_again);
        let mut board = lock(&self.board);
        match served {
            Ok(version) => board.answer(&mut server.batch, begun, version),
            Err(panic) => board.end(&format!("its policy panicked: {panic}")),
        }
        if board.ended().is_some() {
            drop(board);
            self.drop_server(server);
            return;
        }
        let wake = board.give_back(server, by_client);
        drop(board);
        if wake {
            self.work.wake_all();
        }
        self.side(side).wake_all();
    }
}

impl Joint {
    /// Whether the policy knows environments again in other rows.
    fn check_states(&self) -> Result<(), PolicyError> {
        let columns = &self.spec.columns;
        let state = columns.iter().find(|state| {
            let next = tensordict::NestedKey::from("next").join(&state.key);
            columns.iter().any(|column| column.key == next)
        });
        match state.filter(|_| self.spec.states == States::ByRow) {
            Some(state) => Err(PolicyError::ServedState {
                key: state.key.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Whether the environments of `binding` are such as those of the first client.
    fn check(&self, binding: &Binding<'_>) -> Result<(), PolicyError> {
        let env = binding.spec;
        let sides = [
            ("observations", &self.observed, env.observation_leaves()),
            ("actions", &self.actions, env.action_leaves()),
        ];
        for (what, expected, got) in sides {
            if *expected != got {
                return Err(PolicyError::Fit {
                    policy: "the policy that other clients share".to_owned(),
                    env: env.id.clone(),
                    what: what.to_owned(),
                    expected: format!("{expected:?}"),
                    got: format!("{got:?}"),
                });
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("config", &self.config)
            .field("policy", &self.recipe)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
