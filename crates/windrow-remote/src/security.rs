//! Who may connect: tokens and certificates.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{AlertDescription, ClientConfig, Error as TlsError, RootCertStore, ServerConfig};
use windrow_peer::net::Secret;

use crate::RemoteError;
use crate::written::Files;

/// What speaks over TLS here (ALPN): a server of anything else does not answer.
const PROTOCOL: &[u8] = b"windrow";

/// A secret that servers and clients share. It is never printed, and does not travel: each side
/// proves that it knows the token, the server first.
///
/// A token encrypts nothing: across machines, use [`Tls`] too, unless the network is your own.
/// Whoever can connect can try guesses of the token on the server's proof, as fast as their
/// machines allow, so choose a random one.
#[derive(Clone)]
pub struct Token {
    text: Arc<str>,
    /// Derived from the text when it is first needed.
    secret: Arc<OnceLock<Secret>>,
    /// Where it was read.
    path: Option<PathBuf>,
}

impl Token {
    /// Fewest characters of a token.
    pub const LEAST: usize = 16;

    /// The secret `text`, of at least [`LEAST`](Self::LEAST) visible ASCII characters.
    ///
    /// # Errors
    /// [`RemoteError::Token`] for a shorter one, or other characters.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, RemoteError> {
        let text = text.into();
        let odd = text.bytes().any(|byte| !byte.is_ascii_graphic());
        let got = match text.len() {
            _ if odd => "other characters".to_owned(),
            got if got < Self::LEAST => format!("{got}"),
            _ => {
                return Ok(Self {
                    text,
                    secret: Arc::default(),
                    path: None,
                });
            }
        };
        Err(RemoteError::Token {
            least: Self::LEAST,
            got,
        })
    }

    /// The secret that is the content of the file at `path`, without a line's end. Unlike one that
    /// is given as text, worker processes can have it too, which read the file again.
    ///
    /// # Errors
    /// [`RemoteError::File`]; as [`new`](Self::new).
    pub fn read(path: impl AsRef<Path>) -> Result<Self, RemoteError> {
        let pem = Pem::read(path)?;
        let text = String::from_utf8_lossy(&pem.text);
        let token = Self::new(text.trim_end_matches(['\n', '\r']))?;
        Ok(Self {
            path: pem.path,
            ..token
        })
    }

    /// Where it was read.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The secret that both sides prove to know.
    pub(crate) fn secret(&self) -> &Secret {
        self.secret.get_or_init(|| Secret::of_text(&self.text))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Certificates (PEM): one's own, and the authority that signed the other side's.
///
/// TLS 1.3. A server with an authority lets in only clients whose certificate that has signed; a
/// client needs an authority.
#[derive(Clone, Default)]
pub struct Tls {
    identity: Option<(Pem, Pem)>,
    authority: Option<Pem>,
    name: Option<String>,
}

/// What a file has, or would have.
#[derive(Clone)]
struct Pem {
    text: Vec<u8>,
    path: Option<PathBuf>,
}

impl Pem {
    fn new(text: impl Into<Vec<u8>>) -> Self {
        Self {
            text: text.into(),
            path: None,
        }
    }

    fn read(path: impl AsRef<Path>) -> Result<Self, RemoteError> {
        let path = path.as_ref();
        let read = absolute(path).and_then(|path| Ok((std::fs::read(&path)?, path)));
        match read {
            Ok((text, path)) => Ok(Self {
                text,
                path: Some(path),
            }),
            Err(error) => Err(RemoteError::File {
                path: path.to_owned(),
                error,
            }),
        }
    }
}

impl Tls {
    /// No certificate yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a certificate chain of one's own, and its key.
    #[must_use]
    pub fn identity(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((Pem::new(chain), Pem::new(key)));
        self
    }

    /// As [`identity`](Self::identity), of the contents of two files. Worker processes read them
    /// again.
    ///
    /// # Errors
    /// [`RemoteError::File`].
    pub fn identity_files(
        mut self,
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, RemoteError> {
        self.identity = Some((Pem::read(chain)?, Pem::read(key)?));
        Ok(self)
    }

    /// The same with the certificate of the authority that must have signed the other side's.
    #[must_use]
    pub fn authority(mut self, certificate: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(Pem::new(certificate));
        self
    }

    /// As [`authority`](Self::authority), of the content of a file. Worker processes read it again.
    ///
    /// # Errors
    /// [`RemoteError::File`].
    pub fn authority_file(mut self, certificate: impl AsRef<Path>) -> Result<Self, RemoteError> {
        self.authority = Some(Pem::read(certificate)?);
        Ok(self)
    }

    /// The same for a server whose certificate has this name, and not that of its address.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The files that it was read from; `None` where a part of it comes from none.
    pub(crate) fn files(&self) -> Option<Files> {
        let identity = match &self.identity {
            Some((chain, key)) => Some((chain.path.clone()?, key.path.clone()?)),
            None => None,
        };
        let authority = match &self.authority {
            Some(authority) => Some(authority.path.clone()?),
            None => None,
        };
        Some(Files {
            identity,
            authority,
            name: self.name.clone(),
        })
    }

    /// The content of `files`.
    pub(crate) fn of_files(files: Files) -> Result<Self, RemoteError> {
        let mut tls = Self {
            name: files.name,
            ..Self::new()
        };
        if let Some((chain, key)) = files.identity {
            tls = tls.identity_files(chain, key)?;
        }
        match files.authority {
            Some(authority) => tls.authority_file(authority),
            None => Ok(tls),
        }
    }

    /// Whether both sides show certificates.
    pub(crate) fn is_mutual(&self) -> bool {
        self.identity.is_some() && self.authority.is_some()
    }

    pub(crate) fn for_server(&self) -> Result<Arc<ServerConfig>, RemoteError> {
        let provider = provider();
        let verifier = match self.roots()? {
            Some(roots) => {
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                    .build()
                    .map_err(|error| wrong("authority", &error))?
            }
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let (chain, key) = self
            .own()?
            .ok_or_else(|| wrong("identity", &"a server needs a certificate and its key"))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong("version", &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| wrong("identity", &error))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Arc::new(config))
    }

    pub(crate) fn for_client(&self) -> Result<Arc<ClientConfig>, RemoteError> {
        let roots = self.roots()?.ok_or_else(|| {
            wrong(
                "authority",
                &"a client needs the certificate of the server's authority",
            )
        })?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong("version", &error))?
            .with_root_certificates(roots);
        let mut config = match self.own()? {
            Some((chain, key)) => config
                .with_client_auth_cert(chain, key)
                .map_err(|error| wrong("identity", &error))?,
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Arc::new(config))
    }

    /// The name that the certificate of the server at `host` must have.
    pub(crate) fn name(&self, host: &str) -> Result<ServerName<'static>, RemoteError> {
        let name = self.name.as_deref().unwrap_or(host);
        let bare = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        ServerName::try_from(bare).map_err(|error| wrong("server_name", &error))
    }

    fn roots(&self) -> Result<Option<RootCertStore>, RemoteError> {
        let Some(pem) = &self.authority else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("authority", &pem.text)? {
            roots
                .add(certificate)
                .map_err(|error| wrong("authority", &error))?;
        }
        Ok(Some(roots))
    }

    #[allow(clippy::type_complexity)]
    fn own(
        &self,
    ) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, RemoteError> {
        let Some((chain, key)) = &self.identity else {
            return Ok(None);
        };
        let key =
            PrivateKeyDer::from_pem_slice(&key.text).map_err(|error| wrong("identity", &error))?;
        Ok(Some((certificates("identity", &chain.text)?, key)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("mutual", &self.is_mutual())
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The one provider that needs no other compiler than C; no default of the process is set.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(
    what: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, RemoteError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| wrong(what, &error))?;
    match all.is_empty() {
        true => Err(wrong(what, &"expected a certificate in PEM, got none")),
        false => Ok(all),
    }
}

fn wrong(what: &'static str, reason: &impl ToString) -> RemoteError {
    RemoteError::Tls {
        what,
        reason: reason.to_string(),
    }
}

/// Why one of the two sides does not trust the other, if `error` says so: to try again would not
/// help.
pub(crate) fn distrust(error: &io::Error) -> Option<String> {
    use AlertDescription as Alert;
    let tls = error.get_ref()?.downcast_ref::<TlsError>()?;
    let is_final = match tls {
        TlsError::InvalidCertificate(_) => true,
        TlsError::AlertReceived(alert) => matches!(
            alert,
            Alert::AccessDenied
                | Alert::BadCertificate
                | Alert::CertificateExpired
                | Alert::CertificateRequired
                | Alert::CertificateUnknown
                | Alert::DecryptError
                | Alert::UnknownCA
        ),
        _ => false,
    };
    is_final.then(|| tls.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_and_not_printed() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert!(
            Token::new("short")
                .unwrap_err()
                .to_string()
                .ends_with("got 5")
        );
        assert!(Token::new("0123456789abcdef g").is_err());
    }

    #[test]
    fn certificates_that_are_none_are_refused_by_name() {
        let told = |tls: Tls| tls.for_server().unwrap_err().to_string();
        assert!(told(Tls::new()).contains("identity"));
        assert!(told(Tls::new().identity("", "")).contains("identity"));
        assert!(told(Tls::new().authority("no PEM")).contains("authority"));
        let client = Tls::new().for_client().unwrap_err().to_string();
        assert!(client.contains("authority"), "{client}");
    }
}
