//! The server's side: who is let in, and what it has done for whom.

mod connection;
mod door;
mod producer;
mod session;

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig as TlsConfig;
use windrow_policy::{
    InferenceServer, PolicyRecipe, Served, ServerConfig, ServerStats, WeightStore, Weights,
};
use windrow_sync::unpoisoned;

use crate::client::random;
use crate::remote::check_open;
use crate::{Address, Limits, RemoteError, Tls, Token};
use door::Door;
use producer::Producers;
use windrow_peer::net::Listener;

/// Most answers of full size that are kept for clients without a connection.
const KEPT: usize = 64;

/// Choices of a [`RemoteServer`].
#[derive(Debug, Clone)]
pub struct RemoteServerBuilder {
    recipe: PolicyRecipe,
    address: Option<Address>,
    token: Option<Token>,
    tls: Option<Tls>,
    batching: ServerConfig,
    limits: Limits,
    reserved: Option<String>,
    connections: usize,
    greeting: Duration,
    memory: Duration,
}

impl RemoteServerBuilder {
    /// Listens at `address`; by default at a Unix socket of its own in the folder for temporary
    /// files, which the same user can connect to.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// Lets in only clients that prove that they know `token`. The server proves it first.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Speaks TLS.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How requests make batches.
    #[must_use]
    pub fn batching(mut self, config: ServerConfig) -> Self {
        self.batching = config;
        self
    }

    /// How large messages and weights may be.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Refuses weights of clients with an entry of this name, by which a program publishes more
    /// than weights with them.
    #[must_use]
    pub fn reserved_weight(mut self, name: impl Into<String>) -> Self {
        self.reserved = Some(name.into());
        self
    }

    /// Most clients with a connection at a time, 256 by default, each with a thread; those beyond
    /// them try again. Connections that have not said who they are have places of their own, as
    /// many, but at least 64; the oldest goes for one that comes.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How long a connection may take to say who it is, 10 s by default.
    #[must_use]
    pub fn greeting(mut self, time: Duration) -> Self {
        self.greeting = time;
        self
    }

    /// How long the server remembers a client that has lost its connection, 5 minutes by default.
    #[must_use]
    pub fn memory(mut self, time: Duration) -> Self {
        self.memory = time;
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    /// [`RemoteError::Open`] where others can reach the address, as any port, and neither a token
    /// nor mutual TLS is given; [`RemoteError::Listen`], [`RemoteError::Tls`],
    /// [`RemoteError::Setting`]; [`RemoteError::Policy`] as [`InferenceServer::start`].
    pub fn start(self) -> Result<RemoteServer, RemoteError> {
        let address = self.address.clone().unwrap_or_else(|| {
            let name = format!("windrow-{:032x}.sock", random());
            Address::unix(std::env::temp_dir().join(name))
        });
        check_open(&address, self.token.as_ref(), self.tls.as_ref())?;
        self.limits.check()?;
        if self.connections == 0 {
            return Err(RemoteError::Setting {
                name: "max_connections",
                expected: "a positive number",
                got: "0".to_owned(),
            });
        }
        let tls = self.tls.as_ref().map(Tls::for_server).transpose()?;
        let store = Arc::new(WeightStore::new(1));
        let inference = InferenceServer::start(&self.recipe, Arc::clone(&store), self.batching)?;
        let failed = |error| RemoteError::Listen {
            address: address.to_string(),
            error,
        };
        let listener = Listener::open(&address).map_err(failed)?;
        let address = listener.address(&address).map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(RemoteError::Thread)?;
        let shared = Arc::new(Shared {
            producers: Producers::new(
                self.memory,
                self.connections.saturating_mul(4),
                KEPT.saturating_mul(self.limits.message),
            ),
            sending: AtomicUsize::new(0),
            inference,
            store,
            tls,
            snapshot: Mutex::new(None),
            instance: random() as u64,
            stopping: AtomicBool::new(false),
            door: Mutex::new(Door::new(self.connections)),
            closed: Condvar::new(),
            counters: Counters::default(),
            choices: self,
        });
        let at = Arc::clone(&shared);
        let accept = std::thread::Builder::new()
            .name("windrow-remote".to_owned())
            .spawn(move || door::accept(&at, &listener, &stopped))
            .map_err(RemoteError::Thread)?;
        Ok(RemoteServer {
            shared,
            address,
            accept: Some((stop, accept)),
        })
    }
}

/// Evaluates one policy for clients in other processes or on other machines, and keeps its weights.
///
/// Requests of all clients make joint batches, as those of an [`InferenceServer`] do. A request
/// that fails fails alone. The first client that can be bound decides what all of them observe and
/// how they act; to decide yourself, bind a [client](Self::client) before you give the address
/// away. Dropping the server ends it.
#[derive(Debug)]
pub struct RemoteServer {
    shared: Arc<Shared>,
    address: Address,
    /// The thread that accepts connections, until the stream is shut down.
    accept: Option<(UnixStream, JoinHandle<()>)>,
}

impl RemoteServer {
    /// A server of the policy that `recipe` makes.
    #[must_use]
    pub fn builder(recipe: PolicyRecipe) -> RemoteServerBuilder {
        RemoteServerBuilder {
            recipe,
            address: None,
            token: None,
            tls: None,
            batching: ServerConfig::new(),
            limits: Limits::default(),
            reserved: None,
            connections: 256,
            greeting: Duration::from_secs(10),
            memory: Duration::from_secs(300),
        }
    }

    /// Where it listens, with the port that the system chose.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A client in this process, which needs no connection.
    #[must_use]
    pub fn client(&self) -> Served {
        self.shared.inference.client()
    }

    /// Publishes new weights and returns their version.
    ///
    /// # Errors
    /// As [`InferenceServer::update_policy_weights`].
    pub fn update_policy_weights(&self, weights: &Weights) -> Result<i64, RemoteError> {
        Ok(self.shared.inference.update_policy_weights(weights)?)
    }

    /// The version of the weights that were published last; 0 are those that the policy came with.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.shared.store.version()
    }

    /// Figures since the start.
    #[must_use]
    pub fn stats(&self) -> RemoteStats {
        let counters = &self.shared.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RemoteStats {
            connections: of(&counters.connections),
            accepted: of(&counters.accepted),
            refused: of(&counters.refused),
            repeated: of(&counters.repeated),
            panicked: of(&counters.panicked),
            inference: self.shared.inference.stats(),
        }
    }

    /// Ends the server: clients are told so. Returns within two seconds, also where the policy
    /// hangs.
    pub fn shutdown(&mut self) {
        const PARTING: Duration = Duration::from_secs(1);
        self.shared.inference.shutdown();
        self.shared.stopping.store(true, Ordering::Release);
        if let Some((stop, accept)) = self.accept.take() {
            let _ = stop.shutdown(Shutdown::Both);
            // A panic there has been printed.
            let _ = accept.join();
        }
        // Those that wait for a request say that the server ends. Those that cannot, since nobody
        // reads, are cut off. Strangers are cut off at once, without a wait.
        for how in [Shutdown::Read, Shutdown::Both] {
            lock(&self.shared.door).shut(how);
            if self.shared.is_left_within(PARTING) {
                return;
            }
        }
    }
}

impl Drop for RemoteServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What a [`RemoteServer`] has done.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RemoteStats {
    /// Connections that were opened.
    pub connections: u64,
    /// Those that said who they are, and were let in.
    pub accepted: u64,
    /// Those that were not.
    pub refused: u64,
    /// Requests that came again, and got the answer that they had got.
    pub repeated: u64,
    /// Number of connections that a panic has ended: a fault of windrow or of the policy.
    pub panicked: u64,
    /// The batches.
    pub inference: ServerStats,
}

/// What all connections share.
struct Shared {
    choices: RemoteServerBuilder,
    tls: Option<Arc<TlsConfig>>,
    inference: InferenceServer,
    store: Arc<WeightStore>,
    producers: Producers,
    /// The newest weights as they travel.
    snapshot: Mutex<Option<(i64, Arc<Vec<u8>>)>>,
    /// A number of this run of the server.
    instance: u64,
    stopping: AtomicBool,
    /// Bytes of weights that clients have begun to send.
    sending: AtomicUsize,
    door: Mutex<Door>,
    closed: Condvar,
    counters: Counters,
}

impl Shared {
    /// Whether all clients have left within `time`.
    fn is_left_within(&self, time: Duration) -> bool {
        let door = lock(&self.door);
        let left = self
            .closed
            .wait_timeout_while(door, time, |door| !door.is_empty());
        unpoisoned(left).0.is_empty()
    }

    /// Changes the bytes that a client has taken of those for weights on their way to `bytes`;
    /// whether there is room for them.
    fn reserve(&self, reserved: &mut usize, bytes: usize) -> bool {
        let most = self.choices.limits.weights.saturating_mul(2);
        let others = |sending: usize| sending - *reserved + bytes;
        let changed = self
            .sending
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sending| {
                (bytes <= *reserved || others(sending) <= most).then(|| others(sending))
            });
        if changed.is_ok() {
            *reserved = bytes;
        }
        changed.is_ok()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("choices", &self.choices)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    repeated: AtomicU64,
    panicked: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}
