//! Tokens and certificates.

use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use windrow_policy::{Policy, PolicyRecipe};
use windrow_remote::{Address, Remote, RemoteError, RemoteServer, RemoteServerBuilder, Tls, Token};

use crate::tools::{Seat, net};

const SECRET: &str = "correct";

fn token(text: &str) -> Token {
    Token::new(format!("{text}-0123456789abcdef")).unwrap()
}

fn builder() -> RemoteServerBuilder {
    RemoteServer::builder(PolicyRecipe::of(net(1)))
}

#[test]
fn an_address_that_others_reach_needs_a_secret_on_both_sides() {
    let open: Address = "0.0.0.0:0".parse().unwrap();
    let half = Tls::new().identity("chain", "key");
    for server in [
        builder().address(open.clone()),
        builder().address(open.clone()).tls(half.clone()),
    ] {
        assert!(matches!(server.start(), Err(RemoteError::Open { .. })));
    }
    let remote = Remote::at("policy.example.com:7777").unwrap();
    for remote in [remote.clone(), remote.clone().tls(half)] {
        assert!(matches!(remote.policy(), Err(RemoteError::Open { .. })));
        assert!(matches!(remote.weights(), Err(RemoteError::Open { .. })));
    }
    assert!(remote.token(token(SECRET)).policy().is_ok());
    let here = Address::loopback(0);
    let errors = [
        builder().address(here.clone()).start().unwrap_err(),
        Remote::new(here).policy().unwrap_err(),
    ];
    for error in errors {
        let error = error.to_string();
        let expected = "127.0.0.1:0 can be reached by all users of this machine: give a token";
        assert!(error.starts_with(expected), "{error}");
    }
    let server = builder()
        .address(open)
        .token(token(SECRET))
        .start()
        .unwrap();
    let Address::Tcp { port, .. } = server.address() else {
        panic!("expected a port");
    };
    let remote = Remote::new(Address::loopback(*port)).token(token(SECRET));
    Seat::new(remote.policy().unwrap(), 0, 1)
        .unwrap()
        .act(0)
        .unwrap();
}

#[test]
fn only_the_token_lets_in() {
    let server = builder().token(token(SECRET)).start().unwrap();
    let remote = Remote::new(server.address().clone());
    let began = Instant::now();
    for remote in [
        remote.clone(),
        remote.clone().token(token("another")),
        remote.clone().token(token("correcu")),
    ] {
        let error = remote
            .weights()
            .unwrap()
            .publish(&net(2).weights())
            .unwrap_err();
        assert!(matches!(error, RemoteError::Refused { .. }), "{error}");
        assert!(!error.to_string().contains("0123456789"), "{error}");
        assert!(error.to_string().contains("token"), "{error}");
        let error = Seat::new(remote.policy().unwrap(), 0, 1)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("refused") && error.contains("token"),
            "{error}"
        );
    }
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "they do not try again"
    );
    assert_eq!((server.version(), server.stats().accepted), (0, 0));
    let mut weights = remote.token(token(SECRET)).weights().unwrap();
    assert_eq!(weights.publish(&net(2).weights()).unwrap(), 1);
}

#[test]
fn a_client_does_not_talk_to_a_server_without_its_token() {
    let server = builder().start().unwrap();
    let remote = Remote::new(server.address().clone()).token(token(SECRET));
    let error = remote.weights().unwrap().newest(0).unwrap_err();
    assert!(matches!(error, RemoteError::Refused { .. }), "{error}");
    assert_eq!(server.stats().accepted, 0);
}

/// An authority, and certificates that it signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn sign(&self, name: &str) -> Tls {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Tls::new().identity(certificate.pem(), key.serialize_pem())
    }
}

#[test]
fn mutual_tls_lets_in_whom_the_authority_signed() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let open: Address = "0.0.0.0:0".parse().unwrap();
    let tls = ours.sign("policy.test").authority(ours.pem());
    let server = builder().address(open).tls(tls).start().unwrap();
    let Address::Tcp { port, .. } = server.address() else {
        panic!("expected a port");
    };
    let remote = Remote::new(Address::loopback(*port));
    let client = ours
        .sign("client.test")
        .authority(ours.pem())
        .server_name("policy.test");
    let mut there = Seat::new(remote.clone().tls(client.clone()).policy().unwrap(), 0, 64).unwrap();
    let mut here = Seat::new(net(1), 0, 64).unwrap();
    for frame in 0..5 {
        assert_eq!(there.act(frame).unwrap(), here.act(frame).unwrap());
    }
    let mut weights = remote.clone().tls(client.clone()).weights().unwrap();
    assert_eq!(weights.publish(&net(2).weights()).unwrap(), 1);

    let began = Instant::now();
    let unknown = [
        (
            "no certificate",
            Tls::new().authority(ours.pem()).server_name("policy.test"),
        ),
        (
            "one of another authority",
            theirs
                .sign("client.test")
                .authority(ours.pem())
                .server_name("policy.test"),
        ),
        (
            "no trust in the server",
            ours.sign("client.test")
                .authority(theirs.pem())
                .server_name("policy.test"),
        ),
        ("another name", client.server_name("other.test")),
    ];
    for (what, tls) in unknown {
        let error = remote
            .clone()
            .token(token(SECRET))
            .tls(tls)
            .weights()
            .unwrap()
            .newest(0)
            .unwrap_err();
        assert!(
            matches!(error, RemoteError::Refused { .. }),
            "{what}: {error}"
        );
    }
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "they do not try again"
    );
    // One that speaks no TLS cannot tell a server that does from one that is broken.
    let plain = remote
        .token(token(SECRET))
        .timeout(Duration::from_millis(200))
        .weights()
        .unwrap()
        .newest(0);
    assert!(plain.is_err());
    assert_eq!(server.stats().accepted, 2);
}
