//! One policy for the environments of many threads, evaluated in batches.

mod board;
mod config;
mod gather;
mod serve;
mod served;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use windrow_slab::{LeafSpec, WaitQueue};

use crate::sync::{Builder, JoinHandle, Mutex, lock};
use crate::{
    Backend, Binding, Policy, PolicyError, PolicyRecipe, PolicySpec, WeightStore, Weights,
};
use board::{Board, Request, Turn};
use serve::Server;

pub use config::ServerConfig;
pub use served::Served;
pub use stats::ServerStats;

/// Evaluates one policy for many [clients](Served): the requests that have come make one batch.
///
/// The client whose request completes a batch evaluates it, in its thread, so that no other thread has to be woken before. A policy of a
/// [framework](Backend::Framework) is evaluated in a thread of the server's own, always the same.
///
/// A batch waits for a client only if that is about to ask, by how long its last steps took, and no longer than a quarter of a
/// forward; so neither quick nor slow environments need another setting. Each batch is evaluated with the newest weights of a
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
    /// A server of the policy that `policy` makes for worker 0. The first client that is bound binds the policy.
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
                stage: Mutex::new(Stage::Unbound(policy.build(0)?)),
                recipe: policy.clone(),
                reference: Mutex::new(None),
                board: Mutex::new(Board::new(config)),
                work: WaitQueue::new(),
                answered: WaitQueue::new(),
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
        let version = hub.weights.publish(weights);
        hub.weights.take_failure().map_or(Ok(version), Err)
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
            .answered
            .wait_within(&hub.board, Some(timeout), ended)
            .is_none()
        {
            return false;
        }
        let thread = match &mut *lock(&hub.stage) {
            Stage::Bound { thread, .. } => thread.take(),
            Stage::Unbound(_) | Stage::Closed => None,
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
    /// The thread of the server waits here for requests.
    work: WaitQueue,
    /// All clients wait here.
    answered: WaitQueue,
}

/// How far a server is.
enum Stage {
    Unbound(Box<dyn Policy>),
    Bound {
        joint: Joint,
        thread: Option<JoinHandle<()>>,
    },
    /// The policy could not be bound, or no thread be started.
    Closed,
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
        match &*lock(&self.stage) {
            Stage::Unbound(policy) => policy.needs_first_rows(),
            Stage::Bound { .. } | Stage::Closed => false,
        }
    }

    /// What all clients have in common, of whom `binding` is one. The first of them binds the policy.
    fn joint(self: &Arc<Self>, binding: &Binding<'_>) -> Result<Joint, PolicyError> {
        let mut stage = lock(&self.stage);
        lock(&self.board).check()?;
        if let Stage::Bound { joint, .. } = &*stage {
            return joint.check(binding).map(|()| joint.clone());
        }
        // Whatever happens to it from here on, it is bound once.
        let opened = match std::mem::replace(&mut *stage, Stage::Closed) {
            Stage::Unbound(policy) => self.open(policy, binding),
            Stage::Bound { .. } | Stage::Closed => Err(PolicyError::ServerEnded {
                reason: "its policy could not be bound".into(),
            }),
        };
        match opened {
            Ok((joint, thread)) => {
                *stage = Stage::Bound {
                    joint: joint.clone(),
                    thread,
                };
                Ok(joint)
            }
            Err(error) => {
                self.end(&error.to_string());
                Err(error)
            }
        }
    }

    fn open(
        self: &Arc<Self>,
        mut policy: Box<dyn Policy>,
        binding: &Binding<'_>,
    ) -> Result<(Joint, Option<JoinHandle<()>>), PolicyError> {
        let binding = Binding {
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
        let columns = &joint.spec.columns;
        joint.spec.check_actions("served policy", binding.spec)?;
        let state = columns.iter().find(|state| {
            let next = tensordict::NestedKey::from("next").join(&state.key);
            columns.iter().any(|column| column.key == next)
        });
        if let Some(state) = state {
            let key = state.key.clone();
            return Err(PolicyError::ServedState { key });
        }
        let weights = Arc::clone(&self.weights);
        let server = Server::new(policy, &joint, self.config.max_batch_size, weights)?;
        let by_clients = joint.spec.backend == Backend::Native;
        let mut board = lock(&self.board);
        // It may have been shut down meanwhile.
        board.check()?;
        board.idle = Some(Box::new(server));
        (board.by_clients, board.running) = (by_clients, true);
        drop(board);
        if by_clients {
            return Ok((joint, None));
        }
        let hub = Arc::clone(self);
        let run = move || {
            // It waits for no answer of its own: until the end.
            let _ = hub.attend(None);
            hub.retire();
        };
        let thread = Builder::new().name("windrow-server".to_owned()).spawn(run);
        match thread {
            Ok(thread) => Ok((joint, Some(thread))),
            Err(error) => {
                self.retire();
                Err(PolicyError::ServerThread(error))
            }
        }
    }

    fn end(&self, reason: &str) {
        let mut board = lock(&self.board);
        board.end(reason);
        let by_clients = board.by_clients;
        drop(board);
        if by_clients {
            self.retire();
        }
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
        self.answered.wake_all();
    }

    fn wake_all(&self) {
        self.work.wake_all();
        self.answered.wake_all();
    }

    /// The request with its answer.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`].
    fn ask(&self, request: Request) -> Result<Request, PolicyError> {
        let client = request.client;
        let wake = lock(&self.board).post(request)?;
        if wake {
            self.work.wake_all();
        }
        self.attend(Some(client))
    }

    /// Waits for the answer to the request of `client`, and evaluates batches that are due meanwhile, where clients do that. The thread
    /// of the server is no client, and evaluates all that there is until the end.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`].
    fn attend(&self, client: Option<usize>) -> Result<Request, PolicyError> {
        let queue = match client {
            Some(_) => &self.answered,
            None => &self.work,
        };
        let mut known = None;
        loop {
            let timeout = known
                .map(|until: Duration| until.saturating_sub(lock(&self.board).now()).min(LONG));
            let next = queue.wait_within(&self.board, timeout, |board| {
                let over = match client {
                    Some(client) => board.take(client),
                    None => board.check().err().map(Err),
                };
                if let Some(over) = over {
                    return Some(Err(over));
                }
                if client.is_some() && !board.by_clients {
                    return None;
                }
                match board.turn() {
                    Turn::Wait { until } if until == known => None,
                    turn => Some(Ok(turn)),
                }
            });
            known = match next {
                Some(Err(over)) => return over,
                Some(Ok(Turn::Wait { until })) => until,
                Some(Ok(Turn::Evaluate {
                    server,
                    look_again,
                    begun,
                })) => {
                    self.evaluate(server, look_again, begun);
                    None
                }
                None => None,
            };
        }
    }

    /// Has `server` evaluate its batch, and gives answers and server back.
    fn evaluate(&self, mut server: Box<Server>, look_again: bool, begun: Duration) {
        let served = server.serve(look_again);
        let mut board = lock(&self.board);
        match served {
            Ok(version) => board.answer(&mut server.batch, begun, version),
            Err(panic) => board.end(&format!("its policy panicked: {panic}")),
        }
        if board.ended().is_some() {
            drop(board);
            self.drop_server(server);
            self.work.wake_all();
        } else {
            board.idle = Some(server);
            drop(board);
            self.answered.wake_all();
        }
    }
}

impl Joint {
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
