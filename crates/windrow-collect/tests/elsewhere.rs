//! Workers that a launcher starts somewhere else: here, this very test program, over a connection.
#![cfg(all(target_os = "linux", feature = "remote"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod fatal;

use std::error::Error;
use std::io::{PipeWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio, exit};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_collect::{
    CollectorBuilder, CommandLauncher, Evaluator, EvaluatorBuilder, Invitation, Launched, Launcher,
    MultiAsyncCollector, MultiSyncCollector, OnLoss, Placement, ProfileConfig, WorkerMain,
};
use windrow_env::EnvError;
use windrow_env::testing::LedgerEnv;
use windrow_peer::net::{Deadline, Socket, Stream, Wire};
use windrow_policy::nn::Sequential;
use windrow_policy::{Head, NetworkPolicy, Policy};
use windrow_sync::error_chain;

use fatal::Fatal;

/// Not a test: what a worker of the tests below runs. Without an invitation, it is none.
#[test]
fn worker_entry() {
    let Ok(invitation) = Invitation::read() else {
        return;
    };
    let main = WorkerMain::new().answer_calls(|call| [call, b"!"].concat());
    exit(main.work_for(&invitation, |registry| {
        registry.env("Aborts-v0", || Fatal::new(|| std::process::abort()))?;
        registry.env("Fails-v0", || {
            Fatal::new(|| Err(EnvError::failed("out of tea")))
        })?;
        registry.env("Text-v0", || LedgerEnv::from_seed().with_text())?;
        registry.env("Freezes-v0", || {
            Fatal::new(|| {
                loop {
                    std::thread::park();
                }
            })
        })?;
        Ok(())
    }))
}

/// Where workers connect to: an address that no other machine reaches, and one that others may
/// reach, so that the connection is encrypted.
const ADDRESSES: [&str; 2] = ["127.0.0.1:0", "0.0.0.0:0"];

/// This program, run again to be a worker.
fn launcher() -> CommandLauncher {
    let program = std::env::current_exe().unwrap();
    CommandLauncher::new(
        program.to_str().unwrap(),
        ["--exact", "worker_entry", "--nocapture"],
    )
}

fn network() -> NetworkPolicy {
    let network = Sequential::new().linear(4, 16).tanh().linear(16, 2);
    NetworkPolicy::new(network, Head::Categorical)
}

fn choices(builder: CollectorBuilder) -> CollectorBuilder {
    builder
        .num_workers(2)
        .num_envs(3)
        .policy(network())
        .frames_per_batch(60)
        .total_frames(300)
        .track_traj_ids(true)
        .track_policy_version(true)
        .seed(7)
}

/// Batches, with other weights from the third on.
fn batches(builder: CollectorBuilder) -> Vec<TensorDict> {
    let mut collector = choices(builder).build().unwrap();
    let mut weights = collector.policy_weights();
    let mut batches = Vec::new();
    while let Some(batch) = collector.next() {
        batches.push(batch.unwrap().detach());
        if batches.len() == 2 {
            let bias = weights.leaves().map(|(key, _)| key.clone()).last().unwrap();
            let shape = weights.get(&bias).unwrap().shape().to_vec();
            let other = tensordict::Tensor::full(shape, 0.25f32).unwrap();
            weights.set(&bias, other).unwrap();
            collector.update_policy_weights(&weights).unwrap();
        }
    }
    batches
}

#[test]
fn workers_elsewhere_deliver_the_rows_of_workers_in_threads() {
    let here = batches(MultiSyncCollector::builder("CartPole-v1"));
    assert_eq!(here.len(), 5);
    for address in ADDRESSES {
        let launcher = launcher().address(address.parse().unwrap());
        let there = batches(MultiSyncCollector::builder("CartPole-v1").launcher(launcher));
        assert_eq!(here, there, "{address}");
    }
}

#[test]
fn an_evaluator_elsewhere_has_the_results_of_a_thread() {
    let results = |builder: EvaluatorBuilder| {
        let evaluator = builder.policy(network()).num_trajectories(3).seed(3);
        let evaluator = evaluator.build().unwrap();
        let result = evaluator
            .evaluate(Some(&network().weights()), Some(7))
            .unwrap();
        (result.returns, result.lengths, result.step)
    };
    let here = results(Evaluator::builder("CartPole-v1"));
    let there = results(Evaluator::builder("CartPole-v1").launcher(launcher()));
    assert_eq!(here, there);
}

/// Starts workers as [`launcher`] does, after it has opened connections that stay silent.
#[derive(Debug)]
struct Besieged {
    inner: CommandLauncher,
    silent: Mutex<Vec<TcpStream>>,
}

impl Launcher for Besieged {
    fn start(
        &self,
        invitation: &Invitation,
        stderr: PipeWriter,
    ) -> Result<Box<dyn Launched>, Box<dyn Error + Send + Sync>> {
        let connect = || TcpStream::connect(&invitation.address);
        let silent: Result<Vec<_>, _> = (0..100).map(|_| connect()).collect();
        self.silent.lock().unwrap().extend(silent?);
        self.inner.start(invitation, stderr)
    }
}

#[test]
fn connections_that_say_nothing_keep_no_worker_out() {
    let began = Instant::now();
    let besieged = Besieged {
        inner: launcher(),
        silent: Mutex::default(),
    };
    let builder = choices(MultiSyncCollector::builder("CartPole-v1").launcher(besieged));
    let mut collector = builder.build().unwrap();
    assert_eq!(collector.next().unwrap().unwrap().numel(), 60);
    // Less than the time limit of the greeting of a single silent connection.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_worker_runs_nothing_of_a_collector_that_has_not_proved_who_it_is() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let program = std::env::current_exe().unwrap();
    let mut worker = Command::new(program)
        .args(["--exact", "worker_entry", "--nocapture"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let invitation =
        format!(r#"{{"worker": 0, "address": "{address}", "token": "0123456789abcdef"}}"#);
    writeln!(worker.stdin.take().unwrap(), "{invitation}").unwrap();
    let (socket, _) = listener.accept().unwrap();
    let socket = std::sync::Arc::new(Socket::from(socket));
    let mut wire = Wire::new(Stream::server(socket, None).unwrap(), 4);
    let soon = || Deadline::after(Duration::from_secs(20));
    let wrong = windrow_peer::net::Secret::new(b"another");
    wire.greet_client(Some(&wrong), soon()).unwrap_err();
    let ended = worker.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && said.contains("proof of the token"),
        "{said}"
    );
}

#[test]
fn workers_elsewhere_deliver_text() {
    let mut collector = MultiSyncCollector::builder("Text-v0")
        .launcher(launcher())
        .num_workers(2)
        .num_envs(3)
        .frames_per_batch(60)
        .total_frames(300)
        .seed(7)
        .build()
        .unwrap();
    let mut frames = 0;
    for batch in collector.by_ref() {
        let batch = batch.unwrap();
        for dict in [&batch, batch.get_dict("next").unwrap()] {
            let numbers = dict.get("observation").unwrap().to_vec::<i64>().unwrap();
            let texts = dict.get("text").unwrap();
            for (place, text) in numbers.as_chunks().0.iter().zip(texts.strings()) {
                assert_eq!(text, LedgerEnv::text(*place).as_bytes(), "{place:?}");
                frames += 1;
            }
        }
    }
    assert_eq!(frames, 600);
}

#[test]
fn first_come_batches_come_whole_and_workers_answer_calls() {
    let mut collector = choices(MultiAsyncCollector::builder("CartPole-v1").launcher(launcher()))
        .build()
        .unwrap();
    assert_eq!(
        collector
            .handle()
            .call_worker(1, b"hello".to_vec())
            .unwrap(),
        b"hello!"
    );
    let frames: usize = collector.by_ref().map(|batch| batch.unwrap().numel()).sum();
    assert_eq!(frames, 300);
    assert_eq!(
        collector.handle().call_worker(0, b"bye".to_vec()).unwrap(),
        b"bye!"
    );
}

#[test]
fn a_worker_that_is_lost_is_started_again_or_another_fills_its_share_and_the_loss_is_reported() {
    let rules = [OnLoss::Restart { budget: 3 }, OnLoss::Continue];
    let ways = [
        ("Aborts-v0", "the kettle is empty"),
        ("Fails-v0", "out of tea"),
    ];
    for ((id, word), on_loss) in ways.iter().flat_map(|way| rules.map(|rule| (*way, rule))) {
        let mut collector = MultiSyncCollector::builder("CartPole-v1")
            .worker_envs(["CartPole-v1", id])
            .launcher(launcher())
            .frames_per_batch(40)
            .total_frames(120)
            .on_loss(on_loss)
            .allow_partial_batch(false)
            .build()
            .unwrap();
        let batches = collector.by_ref().map(|batch| batch.unwrap().numel());
        assert!(batches.eq([40; 3]), "{id} {on_loss:?}");
        let losses = collector.take_losses();
        assert!(!losses.is_empty());
        for loss in losses {
            let error = error_chain(&loss);
            assert!(loss.worker() == 1 && error.contains(word), "{id}: {error}");
        }
    }
}

#[test]
fn a_worker_that_freezes_is_killed_and_the_error_says_where_it_was() {
    let mut collector = MultiSyncCollector::builder("CartPole-v1")
        .worker_envs(["CartPole-v1", "Freezes-v0"])
        .launcher(launcher())
        .frames_per_batch(40)
        .step_timeout(Duration::from_millis(700))
        .build()
        .unwrap();
    let error = loop {
        match collector.next().unwrap() {
            Ok(_) => {}
            Err(error) => break error_chain(&error),
        }
    };
    assert!(
        error.contains("in `step`") && !error.contains("action"),
        "{error}"
    );
    assert!(error.contains("the kettle is empty"), "{error}");
}

#[test]
fn what_does_not_come_is_an_error_in_time() {
    let build = |launcher: CommandLauncher| {
        let builder = MultiSyncCollector::builder("CartPole-v1").num_workers(2);
        let built = builder.launcher(launcher).frames_per_batch(40).build();
        error_chain(&built.err().unwrap())
    };
    let error = build(CommandLauncher::new("/no/such/program", ["windrow-worker"]));
    assert!(error.contains("/no/such/program"), "{error}");
    let ends = CommandLauncher::new("sh", ["-c", "echo no bed >&2; exit 3"]);
    let error = build(ends.patience(Duration::MAX));
    assert!(
        error.contains("exit status: 3") && error.contains("no bed"),
        "{error}"
    );
    let began = Instant::now();
    let late = CommandLauncher::new("sleep", ["1000"]).patience(Duration::from_millis(300));
    let error = build(late);
    assert!(error.contains("did not connect"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_profile_is_that_of_processes() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = choices(MultiSyncCollector::builder("CartPole-v1").launcher(launcher()))
        .build()
        .unwrap();
    let config = ProfileConfig::new()
        .workers([0, 1])
        .save_path(folder.path().join("{worker_idx}.json"));
    collector.enable_profile(&config).unwrap();
    assert_eq!(collector.by_ref().filter(|batch| batch.is_ok()).count(), 5);
    assert_eq!(collector.profile_summary().workers.len(), 2);
    assert!(folder.path().join("1.json").exists());
}

#[test]
fn a_program_that_does_not_show_what_was_sent_is_sent_away() {
    // Programs with another token, and without encryption, connect before the worker does.
    let program = std::env::current_exe().unwrap();
    let program = format!("{} --exact worker_entry --nocapture", program.display());
    let token = r#"'s/"token":"..../"token":"0000/'"#;
    let encryption = r#"'s/"certificate":"[^"]*",//'"#;
    let here = batches(MultiSyncCollector::builder("CartPole-v1").placement(Placement::Threads));
    for (address, wrong) in ADDRESSES
        .into_iter()
        .zip([vec![token], vec![token, encryption]])
    {
        let script = format!(
            r#"read -r line
               for wrong in {}; do printf '%s\n' "$line" | sed "$wrong" | {program}; done
               printf '%s\n' "$line" | exec {program}"#,
            wrong.join(" ")
        );
        let launcher = CommandLauncher::new("sh", ["-c", &script]);
        let launcher = launcher.address(address.parse().unwrap());
        let there = batches(MultiSyncCollector::builder("CartPole-v1").launcher(launcher));
        assert_eq!(here, there, "{address}");
    }
}
