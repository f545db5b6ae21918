//! Remote policies in worker processes: where their server is, written down, and where their
//! secrets are, but not these themselves.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windrow_policy::{PolicyError, PolicyRecipe, Registry};

use crate::{Address, Remote, RemoteError, Tls, Token};

/// The name by which worker processes make remote policies.
const NAME: &str = "windrow-remote";

/// A [`Remote`], with the paths of its secrets.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    address: String,
    token: Option<PathBuf>,
    tls: Option<Files>,
    timeout: Duration,
    silence: Duration,
    message: usize,
    weights: usize,
    refused_values: Option<u8>,
}

/// Files of [`Tls`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Files {
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    pub(crate) authority: Option<PathBuf>,
    pub(crate) name: Option<String>,
}

/// Lets worker processes make [remote policies](crate::RemotePolicy): give it to
/// `windrow::worker_main`, or call it among others there.
///
/// A process is told the address and the paths of token and certificates, which it reads again; so
/// these have to come [from files](Token::read).
///
/// # Errors
/// When it was called before.
pub fn register(registry: &mut Registry) -> Result<(), Box<dyn Error + Send + Sync>> {
    registry.policy_with(NAME, |written: Written, _worker| {
        Ok::<_, PolicyError>(written.remote()?.policy()?)
    })?;
    Ok(())
}

/// What worker processes make policies of `remote` by; `None` where a secret is in no file, or a
/// path is not Unicode.
pub(crate) fn recipe(remote: &Remote) -> Option<PolicyRecipe> {
    let token = match &remote.token {
        Some(token) => Some(token.path()?.to_owned()),
        None => None,
    };
    let tls = match &remote.tls {
        Some(tls) => Some(tls.files()?),
        None => None,
    };
    let address = remote.address.to_string();
    if address.parse::<Address>().ok().as_ref() != Some(&remote.address) {
        return None;
    }
    let written = Written {
        address,
        token,
        tls,
        timeout: remote.timeout,
        silence: remote.silence,
        message: remote.limits.message,
        weights: remote.limits.weights,
        refused_values: remote.limits.refused_values,
    };
    PolicyRecipe::named_with(NAME, &written).ok()
}

impl Written {
    fn remote(self) -> Result<Remote, RemoteError> {
        let mut remote = Remote::at(&self.address)?
            .timeout(self.timeout)
            .silence(self.silence);
        remote.limits.message = self.message;
        remote.limits.weights = self.weights;
        remote.limits.refused_values = self.refused_values;
        remote.token = self.token.map(Token::read).transpose()?;
        remote.tls = self.tls.map(Tls::of_files).transpose()?;
        Ok(remote)
    }
}
