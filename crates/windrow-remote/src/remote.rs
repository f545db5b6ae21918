//! What a client is told of its server.

use std::time::Duration;

use crate::client::Link;
use crate::{Address, Limits, RemoteError, RemotePolicy, RemoteWeights, Tls, Token};

/// Where a server is, and how to talk with it: makes [policies](Self::policy) and [senders of
/// weights](Self::weights).
///
/// ```no_run
/// use windrow_remote::{Remote, Token};
///
/// let remote = Remote::at("unix:/run/user/1000/policy.sock")?;
/// let (policy, mut weights) = (remote.policy()?, remote.weights()?);
/// # let _ = (policy, weights.newest(0)?);
/// # Ok::<(), windrow_remote::RemoteError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Remote {
    pub(crate) address: Address,
    pub(crate) token: Option<Token>,
    pub(crate) tls: Option<Tls>,
    pub(crate) timeout: Duration,
    pub(crate) silence: Duration,
    pub(crate) limits: Limits,
}

impl Remote {
    /// The server at `address`, such as `unix:/run/policy.sock` or `127.0.0.1:7777`.
    ///
    /// # Errors
    /// [`RemoteError::Address`].
    pub fn at(address: &str) -> Result<Self, RemoteError> {
        Ok(Self::new(address.parse()?))
    }

    /// The server at `address`.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            token: None,
            tls: None,
            timeout: Duration::from_secs(30),
            silence: Duration::from_secs(5),
            limits: Limits::default(),
        }
    }

    /// The same with a token, which both sides prove to each other.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// The same with TLS.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The same with calls that take `timeout` at most, attempts and pauses between them included;
    /// 30 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same with a client that connects anew, and asks again, when the server says nothing for
    /// `silence`; 5 s by default.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// The same with other limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// A policy that this server evaluates. It connects when it is bound.
    ///
    /// # Errors
    /// [`RemoteError::Open`] where others can answer, as at any port, and neither token nor mutual
    /// TLS is given; [`RemoteError::Tls`], [`RemoteError::Setting`].
    pub fn policy(&self) -> Result<RemotePolicy, RemoteError> {
        Ok(RemotePolicy::new(Link::new(self)?))
    }

    /// A way for weights to and from this server. It connects with the first call.
    ///
    /// # Errors
    /// As [`policy`](Self::policy).
    pub fn weights(&self) -> Result<RemoteWeights, RemoteError> {
        Ok(RemoteWeights::new(Link::new(self)?))
    }
}

/// Refuses an address that others can reach, which is any port, also one of this machine, unless
/// both sides prove who they are.
pub(crate) fn check_open(
    address: &Address,
    token: Option<&Token>,
    tls: Option<&Tls>,
) -> Result<(), RemoteError> {
    let by = match address {
        Address::Unix(_) => return Ok(()),
        _ if token.is_some() || tls.is_some_and(Tls::is_mutual) => return Ok(()),
        address if address.is_local() => "by all users of this machine",
        _ => "from other machines",
    };
    Err(RemoteError::Open {
        address: address.to_string(),
        by,
    })
}
