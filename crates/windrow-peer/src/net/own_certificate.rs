//! TLS between two programs, one of which can tell the other a secret, but has no certificate that
//! an authority signed: it makes one for this connection, and the other side accepts no other.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::ClientTls;

/// The name in certificates that are made here.
const NAME: &str = "windrow";

/// A certificate that was made for a connection, and its key.
#[derive(Debug)]
pub struct OwnCertificate {
    pem: String,
    server: Arc<ServerConfig>,
}

impl OwnCertificate {
    /// Makes one.
    ///
    /// # Errors
    /// Where the system gives no random numbers.
    pub fn new() -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
        let made = made.map_err(io::Error::other)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
            .map_err(io::Error::other)?;
        // Nobody connects again with one; and bytes at the socket are always those of a frame.
        server.send_tls13_tickets = 0;
        Ok(Self {
            pem: made.cert.pem(),
            server: Arc::new(server),
        })
    }

    /// The certificate (PEM), which is to be told to the client.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// What the server needs.
    #[must_use]
    pub fn server(&self) -> &Arc<ServerConfig> {
        &self.server
    }

    /// What the client needs that was told `pem`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for anything else than a certificate.
    pub fn client(pem: &str) -> io::Result<ClientTls> {
        fn wrong(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
            io::Error::new(io::ErrorKind::InvalidData, error)
        }
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(wrong)?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate).map_err(wrong)?;
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(NAME).map_err(wrong)?;
        Ok((Arc::new(client), name))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread::spawn;

    use super::*;
    use crate::net::Stream;

    /// What a server with `own` reads of a client that was told `pem`.
    fn sent(own: &OwnCertificate, pem: &str) -> io::Result<Vec<u8>> {
        let (here, there) = UnixStream::pair().unwrap();
        let socket = |end| Arc::new(OwnedFd::from(end).into());
        let mut server = Stream::server(socket(here), Some(own.server())).unwrap();
        let tls = OwnCertificate::client(pem).unwrap();
        let mut client = Stream::client(socket(there), Some(&tls)).unwrap();
        let sending = spawn(move || client.write_all(b"rows"));
        let mut got = vec![0; 4];
        let read = server.read_exact(&mut got);
        drop(server);
        sending.join().unwrap().and(read).map(|()| got)
    }

    #[test]
    fn a_client_accepts_the_certificate_that_it_was_told_and_no_other() {
        let (own, other) = (
            OwnCertificate::new().unwrap(),
            OwnCertificate::new().unwrap(),
        );
        assert_eq!(sent(&own, own.pem()).unwrap(), b"rows");
        assert!(sent(&own, other.pem()).is_err());
        let error = OwnCertificate::client("no certificate").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
