//! Where a server is.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server listens: a Unix socket, which only the same user can connect to, or a host and a
/// port.
///
/// ```
/// use windrow_peer::net::Address;
///
/// let socket: Address = "unix:/run/user/1000/policy.sock".parse()?;
/// assert!(socket.is_local());
/// let port: Address = "127.0.0.1:7777".parse()?;
/// assert_eq!((port.is_local(), port.to_string().as_str()), (true, "127.0.0.1:7777"));
/// assert!("policy".parse::<Address>().is_err());
/// # Ok::<(), windrow_peer::net::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// The path of a socket.
    Unix(PathBuf),
    /// Host or IP address, and port.
    Tcp {
        /// Name or IP address.
        host: String,
        /// The port; 0 for a server lets the system choose.
        port: u16,
    },
}

impl Address {
    /// The socket at `path`.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::Unix(path.into())
    }

    /// A port of this machine that other machines cannot reach; 0 lets the system choose.
    #[must_use]
    pub fn loopback(port: u16) -> Self {
        Self::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        }
    }

    /// Whether other machines cannot reach it. A name other than `localhost` counts as reachable,
    /// whatever it stands for today.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                host == "localhost"
                    || bare
                        .parse()
                        .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
            }
        }
    }

    /// The addresses that a host stands for; for `localhost`, those of the loopback.
    pub(super) fn resolve(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let all = format!("{host}:{port}").to_socket_addrs()?;
        Ok(all
            .filter(|found| host != "localhost" || found.ip().is_loopback())
            .collect())
    }
}

/// A text that is no [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected an address such as unix:/run/policy.sock or 127.0.0.1:7777, got {given:?}: {reason}"
)]
#[non_exhaustive]
pub struct AddressError {
    /// The text.
    pub given: String,
    /// What is wrong with it.
    pub reason: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(given: &str) -> Result<Self, AddressError> {
        let wrong = |reason: &str| AddressError {
            given: given.to_owned(),
            reason: reason.to_owned(),
        };
        if let Some(path) = given.strip_prefix("unix:") {
            return match path {
                "" => Err(wrong("the path is missing")),
                path => Ok(Self::unix(path)),
            };
        }
        let (host, port) = given
            .rsplit_once(':')
            .ok_or_else(|| wrong("there is no port"))?;
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(wrong("an IPv6 address stands in brackets"));
        }
        Ok(Self::Tcp {
            host: host.to_owned(),
            port: port
                .parse()
                .map_err(|_| wrong("the port is no number up to 65535"))?,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_and_loopback_are_local() {
        for (text, local) in [
            ("unix:relative.sock", true),
            ("127.0.0.1:0", true),
            ("127.9.9.9:80", true),
            ("[::1]:80", true),
            ("localhost:80", true),
            ("0.0.0.0:80", false),
            ("[::]:80", false),
            ("10.0.0.1:80", false),
            ("localhost.example.com:80", false),
            ("policy:80", false),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.is_local(), local, "{text}");
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "unix:",
            ":80",
            "host",
            "host:port",
            "host:65536",
            "::1:80",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
