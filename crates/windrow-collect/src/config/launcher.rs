//! Starting workers somewhere else.

use std::error::Error;
use std::fmt::Debug;
use std::io::{self, BufRead, PipeWriter, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windrow_peer::net::Address;

/// Starts workers somewhere else: on another machine, in a container, in a cluster. Each connects
/// to its collector, and is from then on a worker as one in a process of this machine: its losses
/// count, and another one is started in its place.
///
/// Rows come over the connection, so a batch costs what they cost on the way; weights go the other
/// way when there are newer ones. A connection from another machine is encrypted, see
/// [`Invitation`].
pub trait Launcher: Debug + Send + Sync {
    /// Starts a worker, which is to answer `invitation`; what it writes to `stderr` is passed on,
    /// and stands in the error if it is lost. Called in a thread of its own, which may wait.
    ///
    /// # Errors
    /// Whatever kept it from being started.
    fn start(
        &self,
        invitation: &Invitation,
        stderr: PipeWriter,
    ) -> Result<Box<dyn Launched>, Box<dyn Error + Send + Sync>>;

    /// Where the collector waits for a worker: a port of this machine that others cannot reach, by
    /// default. A port other than 0 is that of worker 0, and the following ones are those of the
    /// others.
    fn address(&self) -> Address {
        Address::loopback(0)
    }

    /// How long a worker may take from its start until it connects.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// A worker that was started somewhere else.
pub trait Launched: Send {
    /// How it ended, in words, if it is known to have ended.
    fn ended(&mut self) -> Option<String>;

    /// Ends it, if it has not ended.
    fn kill(&mut self);
}

/// What a worker needs to know to connect to its collector. Whoever has the token can be the
/// worker, or its collector, whose code it runs: treat it as a secret. It does not travel over the
/// connection: both sides prove that they know it, the collector first.
///
/// Where the collector waits at an address that other machines can reach, the connection is
/// encrypted (TLS 1.3), and the invitation has the certificate by which the worker knows its
/// collector: one that was made for this connection.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Invitation {
    /// Its number, from 0.
    pub worker: usize,
    /// Where the collector waits, as `host:port`.
    pub address: String,
    /// The secret that both sides know.
    pub token: String,
    /// What the collector shows (PEM); `None` where the connection stays on this machine, and is
    /// not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

impl Invitation {
    /// Reads one line from the standard input, as [`CommandLauncher`] writes it.
    ///
    /// # Errors
    /// [`InvalidData`](io::ErrorKind::InvalidData) for something else, and those of the system.
    pub fn read() -> io::Result<Self> {
        let mut line = String::new();
        stdin().lock().read_line(&mut line)?;
        Self::from_json(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The invitation that [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// That of serde_json for something else.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text.as_bytes())
    }

    /// Writes it as a line of JSON, without its end.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

impl Debug for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Invitation")
            .field("worker", &self.worker)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Starts each worker by a command, such as `ssh host program windrow-worker`.
///
/// The command gets the [`Invitation`] as one line of JSON on its standard input, where
/// [`worker_main`](crate::worker_main) reads it when the program was started with the one argument
/// `windrow-worker`. In its arguments, `{worker}` stands for the worker's number.
///
/// ```no_run
/// use windrow_collect::{CommandLauncher, MultiSyncCollector};
///
/// let launcher = CommandLauncher::new("ssh", ["node{worker}", "/opt/robots", "windrow-worker"])
///     .address("10.0.0.1:0".parse()?);
/// let mut collector = MultiSyncCollector::builder("CartPole-v1")
///     .num_workers(4)
///     .launcher(launcher)
///     .frames_per_batch(4000)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CommandLauncher {
    program: String,
    args: Vec<String>,
    address: Address,
    patience: Duration,
}

impl CommandLauncher {
    /// Runs `program` with `args`.
    pub fn new<A: Into<String>>(
        program: impl Into<String>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            address: Address::loopback(0),
            patience: Duration::from_secs(60),
        }
    }

    /// Waits for workers at `address`, an address of this machine that they can reach; by default,
    /// a port that other machines cannot. A port other than 0 is that of worker 0, and the
    /// following ones are those of the others.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.address = address;
        self
    }

    /// Waits for `patience` until a worker connects, a minute by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

impl Launcher for CommandLauncher {
    fn start(
        &self,
        invitation: &Invitation,
        stderr: PipeWriter,
    ) -> Result<Box<dyn Launched>, Box<dyn Error + Send + Sync>> {
        let number = invitation.worker.to_string();
        let args = self.args.iter();
        let mut child = Command::new(&self.program)
            .args(args.map(|arg| arg.replace("{worker}", &number)))
            .stdin(Stdio::piped())
            .stderr(stderr)
            // Killed with all that it starts; and no Ctrl-C of the terminal reaches it before the
            // collector ends it.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("failed to start `{}`: {error}", self.program))?;
        let line = invitation.to_json() + "\n";
        if let Some(stdin) = &mut child.stdin {
            // A command that ends before it has read the line shows how it ended.
            let _ = stdin.write_all(line.as_bytes());
        }
        Ok(Box::new(RunningCommand { child }))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

/// A command that runs. Its standard input stays open as long.
struct RunningCommand {
    child: Child,
}

impl Launched for RunningCommand {
    fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(status) => status.map(|status| format!("its command ended with {status}")),
            Err(_) => Some("its command ended".to_owned()),
        }
    }

    fn kill(&mut self) {
        windrow_peer::kill_group(&self.child);
        // It cannot fail for a child that nobody else waits for.
        let _ = self.child.wait();
    }
}
