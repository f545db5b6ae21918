//! Remote policies in worker processes.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use windrow_collect::{
    ArgumentError, AsyncBatchedCollector, BuildError, Collector, CollectorBuilder,
    MultiSyncCollector, Placement, WorkerMain, WorkerProgram,
};
use windrow_policy::{
    Head, NetworkPolicy, Policy, PolicyError, PolicyRecipe, Registry, nn::Sequential,
};
use windrow_remote::{Remote, RemoteError, RemoteServer, Tls, Token};

const SECRET: &str = "only-those-who-know-this-may-ask";

/// Not a test: what a worker process of the tests below runs.
#[test]
fn worker_entry() {
    let served = WorkerMain::new().serve(windrow_remote::register);
    if let Some(status) = served.unwrap() {
        std::process::exit(status);
    }
}

fn net() -> NetworkPolicy {
    let layers = Sequential::new().linear(4, 16).tanh().linear(16, 2).seed(3);
    NetworkPolicy::new(layers, Head::Categorical)
}

fn server(folder: &Path) -> (RemoteServer, Remote) {
    let path = folder.join("token");
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    let server = RemoteServer::builder(PolicyRecipe::of(net()))
        .token(Token::new(SECRET).unwrap())
        .start()
        .unwrap();
    let remote = Remote::new(server.address().clone()).token(Token::read(path).unwrap());
    (server, remote)
}

fn built(
    builder: CollectorBuilder,
    policy: impl Policy + Clone + 'static,
) -> Result<Collector, BuildError> {
    let mut program = WorkerProgram::current();
    program.args = ["--exact", "worker_entry", "--nocapture"]
        .map(Into::into)
        .to_vec();
    let builder = builder
        .policy(policy)
        .num_workers(2)
        .worker_program(program);
    builder
        .frames_per_batch(40)
        .total_frames(120)
        .seed(5)
        .build()
}

#[test]
fn workers_in_processes_ask_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (server, remote) = server(folder.path());
    let processes = || MultiSyncCollector::builder("CartPole-v1").placement(Placement::Processes);
    let there = built(processes(), remote.policy().unwrap()).unwrap();
    let here = built(MultiSyncCollector::builder("CartPole-v1"), net()).unwrap();
    let mut batches = 0;
    for (here, there) in here.zip(there) {
        assert!(here.unwrap().same_bits(&there.unwrap()), "batch {batches}");
        batches += 1;
    }
    assert_eq!(batches, 3);
    assert!(server.stats().inference.rows >= 120);

    // A secret that is in no file stays here.
    let told = Remote::new(server.address().clone()).token(Token::new(SECRET).unwrap());
    let error = built(processes(), told.policy().unwrap()).unwrap_err();
    assert!(
        matches!(&error, BuildError::Policy { source: PolicyError::Unwritable { factory }, .. } if factory.ends_with("RemotePolicy")),
        "{error}"
    );
}

#[test]
fn what_is_written_down_has_paths_and_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, remote) = server(folder.path());
    let recipe = PolicyRecipe::of(remote.policy().unwrap());
    assert!(recipe.is_served_elsewhere());
    let bytes = recipe.to_bytes().unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let path = folder.path().join("token");
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(!text.contains(SECRET) && !format!("{recipe:?}").contains(SECRET));

    let mut registry = Registry::builtin();
    windrow_remote::register(&mut registry).unwrap();
    assert!(windrow_remote::register(&mut registry).is_err());
    let read = PolicyRecipe::from_bytes(&bytes).unwrap();
    let made = |read: &PolicyRecipe| read.build_from(&registry.policies, 0).map(drop);
    made(&read).unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = made(&read).unwrap_err().to_string();
    assert!(
        error.starts_with("failed to read") && error.contains("token"),
        "{error}"
    );

    let missing = folder.path().join("none.pem");
    for read in [
        Token::read(&missing).map(drop),
        Tls::new().authority_file(&missing).map(drop),
        Tls::new().identity_files(&missing, &missing).map(drop),
    ] {
        assert!(matches!(read, Err(RemoteError::File { .. })));
    }
    std::fs::write(&path, "short").unwrap();
    assert!(matches!(Token::read(&path), Err(RemoteError::Token { .. })));
    // Certificates by their files, or the policy stays in this process.
    let file = folder.path().join("authority.pem");
    let key = KeyPair::generate().unwrap();
    let pem = CertificateParams::new(Vec::new()).unwrap();
    let pem = pem.self_signed(&key).unwrap().pem();
    std::fs::write(&file, &pem).unwrap();
    let local = Remote::at("unix:policy.sock").unwrap();
    for (tls, is_written) in [
        (Tls::new().authority_file(&file).unwrap(), true),
        (Tls::new().authority(pem), false),
    ] {
        let policy = local.clone().tls(tls.server_name("policy.test")).policy();
        let recipe = PolicyRecipe::of(policy.unwrap());
        assert_eq!(recipe.to_bytes().is_ok(), is_written);
    }
}

#[test]
fn a_collector_that_serves_its_policy_lets_workers_ask_the_server_there() {
    let folder = tempfile::tempdir().unwrap();
    let (server, remote) = server(folder.path());
    let builder = || AsyncBatchedCollector::builder("CartPole-v1").num_envs(2);
    let mut collector = built(builder(), remote.policy().unwrap()).unwrap();
    assert_eq!(collector.by_ref().map(Result::unwrap).count(), 3);
    assert!(collector.server_stats().is_none());
    let stats = server.stats().inference;
    assert!(stats.rows >= 120 && stats.requests >= 60);
    let error = built(builder().max_batch_size(8), remote.policy().unwrap()).unwrap_err();
    assert!(
        matches!(
            error,
            BuildError::Argument(ArgumentError::Needs {
                name: "max_batch_size",
                ..
            })
        ),
        "{error}"
    );
}
