//! One policy for the environments of many threads, evaluated in batches.

mod batching;
mod config;
mod evaluation;
mod queue;
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
use evaluation::Evaluator;
use queue::{Batch, Request, RequestQueue, ServerAction, WaitGroup, Woken};

pub use config::ServerConfig;
pub use served::Served;
pub use stats::ServerStats;

/// Evaluates one policy for many [clients](Served), whose requests it joins into batches.
///
/// The client whose request completes a batch evaluates the batch in its own thread, so that no
/// other thread has to be woken first. Requests that arrive during an evaluation are handled by a
/// thread of the server. A policy of a [framework](Backend::Framework) is always evaluated in that
/// thread, unless there is a [sole client](ServerConfig::sole_client). [ADR 0021] gives the
/// reasons.
///
/// A batch waits for a client only if that client is about to ask, judging by its last steps, and
/// for a quarter of a forward pass at most. Where steps take longer than that, environments step in
/// two halves, one while the policy acts for the other. So quick and slow environments need no
/// settings of their own. Each batch is evaluated with the newest weights of a [`WeightStore`]. An
/// error of the policy reaches the clients of its batch, and the server goes on; a panic ends the
/// server, and its clients get [`PolicyError::ServerEnded`].
///
/// [ADR 0021]: https://github.com/windrow-rl/windrow/blob/main/docs/adr/0021-served-inference.md
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
///             let input = PolicyIn::new(obs.rows(), &envs, ExplorationType::Random);
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
    state: Arc<ServerState>,
}

impl InferenceServer {
    /// A server of the policy that `policy` makes for worker 0. Binding the first client binds the
    /// policy, which fixes what all clients observe and how they act. If a client cannot be bound,
    /// only that client fails: the next one gets a new policy. To choose the environments yourself,
    /// bind a [client](Self::client) of your own first; you may drop it afterwards.
    ///
    /// The server acts as worker 0 of `weights`: weights published for that worker act from the
    /// first batch on.
    ///
    /// # Errors
    /// [`PolicyError::ServerConfig`], and the errors of [`PolicyRecipe::build`].
    pub fn start(
        policy: &PolicyRecipe,
        weights: Arc<WeightStore>,
        config: ServerConfig,
    ) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self {
            state: Arc::new(ServerState {
                binding: Mutex::new(BindingState::Unbound(Some(policy.build(0)?))),
                recipe: policy.clone(),
                reference: Mutex::new(None),
                queue: Mutex::new(RequestQueue::new(config)),
                state_rows: Mutex::new(Vec::new()),
                work: WaitQueue::new(),
                answered: [WaitQueue::new(), WaitQueue::new()],
                weights,
                config,
            }),
        })
    }

    /// A new client. [Bind](Policy::bind) it like any policy; its environments must have the spec
    /// of the first client's.
    #[must_use]
    pub fn client(&self) -> Served {
        Served::new(Arc::clone(&self.state))
    }

    /// Publishes a copy of `weights` and returns its version. The server loads it before its next
    /// batch.
    ///
    /// # Errors
    /// [`PolicyError`] naming a tensor that is missing, unknown or misshapen; the old weights then
    /// stay.
    pub fn update_policy_weights(&self, weights: &Weights) -> Result<i64, PolicyError> {
        let state = &self.state;
        let mut reference = lock(&state.reference);
        match &mut *reference {
            Some(reference) => reference.check(weights)?,
            None => {
                let made = reference.insert(state.recipe.build(0)?);
                if let BindingState::Bound { shared, .. } = &*lock(&state.binding) {
                    made.become_reference(&shared.spec);
                }
                made.check(weights)?;
            }
        }
        state.weights.publish(weights)
    }

    /// Counts and times since the start.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        lock(&self.state.queue).stats()
    }

    /// Why the server has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        lock(&self.state.queue).ended().map(ToString::to_string)
    }

    /// Ends the server: waiting clients get [`PolicyError::ServerEnded`] at once, others with their
    /// next request. The policy is dropped as soon as no batch is being evaluated.
    pub fn shutdown(&self) {
        self.state.end("it was shut down");
    }

    /// Waits up to `timeout` for the policy of a server that was [shut down](Self::shutdown) to be
    /// dropped; returns whether it was.
    #[must_use]
    pub fn join(&self, timeout: Duration) -> bool {
        let state = &self.state;
        let ended = |queue: &mut RequestQueue| (!queue.running).then_some(());
        let timeout = timeout.min(LONGEST_WAIT);
        if state
            .waiters(WaitGroup::A)
            .wait_within(&state.queue, Some(timeout), ended)
            .is_none()
        {
            return false;
        }
        let thread = match &mut *lock(&state.binding) {
            BindingState::Bound { thread, .. } => thread.take(),
            BindingState::Unbound(_) => None,
        };
        thread.is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for InferenceServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What the server, its thread and all clients share.
///
/// Lock order: `binding` before `queue`. No lock is held while the policy acts.
pub(crate) struct ServerState {
    config: ServerConfig,
    recipe: PolicyRecipe,
    weights: Arc<WeightStore>,
    binding: Mutex<BindingState>,
    /// A second policy that only checks whether weights fit; it never acts.
    reference: Mutex<Option<Box<dyn Policy>>>,
    queue: Mutex<RequestQueue>,
    /// The rows in use of the policy's recurrent states, one range for each client.
    state_rows: Mutex<Vec<Range<usize>>>,
    /// The server's thread waits here for requests.
    work: WaitQueue,
    /// Clients wait here for answers, one queue for each [`WaitGroup`].
    answered: [WaitQueue; 2],
}

/// Whether the policy is bound yet.
enum BindingState {
    /// No client is bound. `None` if binding a client failed: that policy is not used again.
    Unbound(Option<Box<dyn Policy>>),
    Bound {
        shared: SharedSpec,
        thread: Option<JoinHandle<()>>,
    },
}

/// What all clients have in common.
#[derive(Clone)]
struct SharedSpec {
    observed: Vec<LeafSpec>,
    actions: Vec<LeafSpec>,
    spec: PolicySpec,
}

/// The longest single wait: durations near the maximum overflow the clock of some systems.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

impl ServerState {
    fn needs_first_rows(&self) -> bool {
        match &mut *lock(&self.binding) {
            // If the policy cannot be made, the client that binds it gets the error.
            BindingState::Unbound(policy) => {
                if policy.is_none() {
                    *policy = self.recipe.build(0).ok();
                }
                policy
                    .as_ref()
                    .is_some_and(|policy| policy.needs_first_rows())
            }
            BindingState::Bound { .. } => false,
        }
    }

    /// The spec that all clients share, checked against the `binding` of one of them. The first
    /// client that can be bound binds the policy and starts the server's thread.
    fn shared_spec(self: &Arc<Self>, binding: &Binding<'_>) -> Result<SharedSpec, PolicyError> {
        let mut state = lock(&self.binding);
        lock(&self.queue).check()?;
        let policy = match &mut *state {
            BindingState::Bound { shared, .. } => {
                return shared.check(binding).map(|()| shared.clone());
            }
            BindingState::Unbound(policy) => policy.take(),
        };
        let policy = policy.map_or_else(|| self.recipe.build(0), Ok)?;
        let (shared, thread) = self.open(policy, binding)?;
        *state = BindingState::Bound {
            shared: shared.clone(),
            thread: Some(thread),
        };
        Ok(shared)
    }

    /// Binds `policy` and starts the thread that evaluates it.
    fn open(
        self: &Arc<Self>,
        mut policy: Box<dyn Policy>,
        binding: &Binding<'_>,
    ) -> Result<(SharedSpec, JoinHandle<()>), PolicyError> {
        // One call has rows of several clients, so dimensions of one client's environments mean
        // nothing to the policy.
        let mut spec = binding.spec.clone();
        spec.dimensions.clear();
        let binding = Binding {
            spec: &spec,
            batched: true,
            worker: 0,
            in_caller: false,
            ..*binding
        };
        let shared = SharedSpec {
            spec: policy.bind(&binding)?,
            observed: binding.spec.observation_leaves(),
            actions: binding.spec.action_leaves(),
        };
        shared.spec.check_actions("served policy", binding.spec)?;
        shared.check_states()?;
        let weights = Arc::clone(&self.weights);
        let evaluator = Evaluator::new(policy, &shared, self.config.max_batch_size, weights)?;
        let mut queue = lock(&self.queue);
        // A shutdown may have come since the caller checked.
        queue.check()?;
        let by_clients = shared.spec.backend == Backend::Native || self.config.sole_client;
        queue.open(Box::new(evaluator), by_clients);
        drop(queue);
        let state = Arc::clone(self);
        let run = move || {
            // Without a request there is no answer: this returns when the server ends.
            let _ = state.wait_and_evaluate(None, None);
            state.retire();
        };
        let thread = Builder::new().name("windrow-server".to_owned()).spawn(run);
        match thread {
            Ok(thread) => Ok((shared, thread)),
            Err(error) => {
                self.retire();
                Err(PolicyError::ServerThread(error))
            }
        }
    }

    fn end(&self, reason: &str) {
        lock(&self.queue).end(reason);
        self.wake_all();
    }

    /// Drops the policy of an ended server. If a batch is being evaluated, the thread that
    /// evaluates it drops the policy instead.
    fn retire(&self) {
        let idle = lock(&self.queue).evaluator.take();
        if let Some(evaluator) = idle {
            self.drop_evaluator(evaluator);
        }
    }

    fn drop_evaluator(&self, evaluator: Box<Evaluator>) {
        evaluator.end();
        lock(&self.queue).running = false;
        self.wake_all();
    }

    /// Reserves the first free range of `rows` rows for the states of a client's environments.
    fn reserve_state_rows(&self, rows: usize) -> Range<usize> {
        let mut taken = lock(&self.state_rows);
        let ends = taken.iter().map(|other| other.end);
        let free = std::iter::once(0).chain(ends).filter(|&first| {
            let apart = |other: &Range<usize>| first + rows <= other.start || other.end <= first;
            taken.iter().all(apart)
        });
        let first = free
            .min()
            .expect("The range behind the last one taken is always free.");
        taken.push(first..first + rows);
        first..first + rows
    }

    fn release_state_rows(&self, rows: &Range<usize>) {
        lock(&self.state_rows).retain(|other| other != rows);
    }

    fn wake_all(&self) {
        self.work.wake_all();
        self.answered.iter().for_each(WaitQueue::wake_all);
    }

    fn waiters(&self, group: WaitGroup) -> &WaitQueue {
        &self.answered[group as usize]
    }

    /// The wait of clients and of the server's thread. A client posts `request` and returns with
    /// its answer; if batches become due meanwhile and clients may evaluate, it evaluates them. The
    /// server's thread (`client` is `None`) has no request: it evaluates batches until the server
    /// ends.
    ///
    /// # Errors
    /// [`PolicyError::ServerEnded`].
    fn wait_and_evaluate(
        &self,
        client: Option<usize>,
        mut request: Option<Request>,
    ) -> Result<Request, PolicyError> {
        let mut group = request
            .as_ref()
            .map_or(WaitGroup::A, |request| request.group);
        let mut deadline: Option<Duration> = None;
        loop {
            let waiters = match client {
                Some(_) => self.waiters(group),
                None => &self.work,
            };
            let timeout = deadline.map(|deadline| {
                let left = deadline.saturating_sub(lock(&self.queue).now());
                left.min(LONGEST_WAIT)
            });
            let woken = waiters.wait_within(&self.queue, timeout, |queue| {
                let woken = queue.advance(client, request.take());
                let before = std::mem::replace(&mut group, queue.group(client));
                match woken {
                    // Keeps waiting: neither the deadline nor the queue to wait in has changed.
                    Woken::Act(ServerAction::Wait { until })
                        if (until, group) == (deadline, before) =>
                    {
                        None
                    }
                    woken => Some(woken),
                }
            });
            deadline = match woken {
                Some(Woken::Answered(request)) => return Ok(request),
                Some(Woken::Ended(error)) => return Err(error),
                Some(Woken::Act(ServerAction::Wait { until })) => until,
                Some(Woken::Act(ServerAction::WakeThread)) => {
                    self.work.wake_all();
                    None
                }
                Some(Woken::Act(ServerAction::Evaluate(batch))) => {
                    self.evaluate(batch, client.is_some());
                    None
                }
                // The deadline has passed: the next round decides anew.
                None => None,
            };
        }
    }

    /// Evaluates `batch`, then returns the answers to its clients and the evaluator to the queue.
    fn evaluate(&self, batch: Batch, by_client: bool) {
        let Batch {
            mut evaluator,
            reload_weights,
            begun,
            group,
        } = batch;
        let served = evaluator.serve(reload_weights);
        let mut queue = lock(&self.queue);
        match served {
            Ok(version) => queue.answer(&mut evaluator.batch, begun, version),
            Err(panic) => queue.end(&format!("its policy panicked: {panic}")),
        }
        if queue.ended().is_some() {
            drop(queue);
            self.drop_evaluator(evaluator);
            return;
        }
        let wake_thread = queue.give_back(evaluator, by_client);
        drop(queue);
        if wake_thread {
            self.work.wake_all();
        }
        self.waiters(group).wake_all();
    }
}

impl SharedSpec {
    /// Checks that the policy finds the states of an environment when its row changes from batch to
    /// batch.
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

    /// Checks that the environments of `binding` have the spec of the first client's.
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

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerState")
            .field("config", &self.config)
            .field("policy", &self.recipe)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
