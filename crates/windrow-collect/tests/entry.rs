//! Worker processes of a program with an entry of its own, which answers calls and sends errors in
//! a form of its own.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use windrow_collect::{
    BuildError, Collector, ControlError, Evaluator, Interrupt, MultiAsyncCollector,
    MultiSyncCollector, NextError, Placement, WorkerMain, WorkerProgram,
};
use windrow_env::testing::CountingEnv;
use windrow_env::{EnvError, EnvRecipe, TimeLimit};
use windrow_policy::{RandomPolicy, Registry};

/// Not a test: what a worker process of the tests below runs.
#[test]
fn worker_entry() {
    let entry = WorkerMain::new()
        .send_errors(|error| Some(format!("sent: {}", innermost(error)).into_bytes()))
        .answer_calls(|call| match call {
            b"end" => std::process::exit(5),
            b"process" => std::process::id().to_string().into_bytes(),
            call => call.iter().rev().copied().collect(),
        });
    let register = |registry: &mut Registry| {
        registry.env_with("Limited", |steps: Vec<usize>| {
            TimeLimit::new(CountingEnv::default(), steps[0])
        })?;
        registry.env("Never", || -> Result<CountingEnv, _> {
            Err(EnvError::failed(std::io::Error::other("no road")))
        })?;
        Ok(())
    };
    if let Some(status) = entry.serve(register).unwrap() {
        std::process::exit(status);
    }
}

fn innermost<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

fn program() -> WorkerProgram {
    let mut program = WorkerProgram::current();
    program.args = ["--exact", "worker_entry", "--nocapture"]
        .map(Into::into)
        .to_vec();
    program
}

fn limited() -> EnvRecipe {
    EnvRecipe::of("Limited").with_arguments(&[3]).unwrap()
}

fn ask(collector: &Collector, worker: usize, call: &[u8]) -> Result<Vec<u8>, ControlError> {
    collector.handle().call_worker(worker, call.to_vec())
}

#[test]
fn arguments_of_environments_reach_the_processes() {
    let builder = MultiSyncCollector::builder(limited());
    let builder = builder.placement(Placement::Processes).num_workers(2);
    let builder = builder.worker_program(program()).frames_per_batch(12);
    let mut collector = builder.build().unwrap();
    let batch = collector.next().unwrap().unwrap();
    let ends = batch.as_slice::<bool>(("next", "truncated")).unwrap();
    assert_eq!(ends, [false, false, true].repeat(4));
}

#[test]
fn workers_answer_between_two_parts() {
    for (builder, ahead) in [
        (MultiSyncCollector::builder(limited()), false),
        (MultiAsyncCollector::builder(limited()), true),
    ] {
        let builder = builder.placement(Placement::Processes).num_workers(2);
        let builder = builder.worker_program(program()).frames_per_batch(12);
        let mut collector = builder.build().unwrap();
        // Before the first part.
        assert_eq!(ask(&collector, 1, b"abc").unwrap(), b"cba");
        for batch in 0..5 {
            collector.next().unwrap().unwrap();
            let processes = [0, 1].map(|worker| ask(&collector, worker, b"process").unwrap());
            let expected = collector
                .worker_stats()
                .iter()
                .map(|worker| worker.pid.unwrap().to_string().into_bytes())
                .collect::<Vec<_>>();
            assert_eq!(processes[..], expected, "batch {batch}, ahead {ahead}");
        }
        let paused = collector.pause().unwrap();
        drop(paused);
        assert_eq!(ask(&collector, 0, b"").unwrap(), b"");
        collector.shutdown().unwrap();
        assert!(matches!(
            ask(&collector, 0, b"x"),
            Err(ControlError::Next(NextError::ShutDown))
        ));
    }
}

#[test]
fn calls_and_answers_may_be_long() {
    const LEN: usize = 64 << 20;
    let builder = MultiSyncCollector::builder(limited());
    let builder = builder.placement(Placement::Processes).num_workers(1);
    let builder = builder.worker_program(program()).frames_per_batch(12);
    let mut collector = builder.build().unwrap();
    let mut call = vec![0; LEN + 1];
    call[0] = 1;
    let answer = ask(&collector, 0, &call).unwrap();
    assert_eq!((answer.len(), answer[LEN]), (LEN + 1, 1));
    collector.next().unwrap().unwrap();
}

#[test]
fn a_worker_that_ends_does_not_leave_its_caller_waiting() {
    let builder = MultiSyncCollector::builder(limited());
    let builder = builder.placement(Placement::Processes).num_workers(2);
    let builder = builder.worker_program(program()).frames_per_batch(12);
    let mut collector = builder.build().unwrap();
    collector.next().unwrap().unwrap();
    let error = ask(&collector, 1, b"end").unwrap_err();
    assert!(
        matches!(error, ControlError::NoAnswer { worker: 1 }),
        "{error}"
    );
    let error = collector.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("exit status 5"), "{error}");
    // No such worker, and no process at all.
    let builder = Collector::builder(CountingEnv::default);
    let here = builder.frames_per_batch(4).build().unwrap();
    let error = ask(&here, 0, b"x").unwrap_err().to_string();
    assert!(error.contains("placement processes"), "{error}");
}

/// Whether no thread of a process runs, since a signal has stopped it.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(Result::unwrap).all(|thread| {
        std::fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
    })
}

#[test]
fn a_call_can_be_interrupted() {
    let builder = MultiSyncCollector::builder(limited());
    let builder = builder.placement(Placement::Processes).num_workers(1);
    let builder = builder.worker_program(program()).frames_per_batch(12);
    let interrupted = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&interrupted);
    let interrupt = Interrupt::when(move || seen.load(Ordering::Relaxed));
    let collector = builder.interrupt(interrupt).build().unwrap();
    let pid = collector.worker_stats()[0].pid.unwrap();
    let signal = |name: &str| {
        let status = std::process::Command::new("kill")
            .args([name, &pid.to_string()])
            .status();
        assert!(status.unwrap().success());
    };
    signal("-STOP");
    // The signal goes to one thread of the process, which then stops the others, such as the one
    // that answers calls.
    while !is_stopped(pid) {
        std::thread::yield_now();
    }
    interrupted.store(true, Ordering::Relaxed);
    let ended = ask(&collector, 0, b"ab");
    assert!(matches!(ended, Err(ControlError::WaitInterrupted(_))));
    interrupted.store(false, Ordering::Relaxed);
    signal("-CONT");
    // The answer that nobody waits for is not taken for this one.
    assert_eq!(ask(&collector, 0, b"cd").unwrap(), b"dc");
}

#[test]
fn errors_have_what_was_sent_of_them() {
    let builder = MultiSyncCollector::builder("Never");
    let builder = builder.placement(Placement::Processes).num_workers(2);
    let builder = builder.worker_program(program()).frames_per_batch(12);
    let error = builder.build().err().unwrap();
    let BuildError::Remote {
        sent: Some(sent), ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(sent.bytes(), b"sent: no road");
    assert!(error.to_string().ends_with("no road"), "{error}");
}

#[test]
fn the_process_of_an_evaluator_answers_after_each_result() {
    let (tell, told) = std::sync::mpsc::channel();
    let evaluator = Arc::new(OnceLock::<Weak<Evaluator>>::new());
    let of_result = Arc::clone(&evaluator);
    let builder = Evaluator::builder(limited()).policy(RandomPolicy::new());
    let builder = builder.placement(Placement::Processes);
    let built = builder
        .worker_program(program())
        .num_trajectories(1)
        .on_result(move |result| {
            let evaluator = of_result.get().and_then(Weak::upgrade).unwrap();
            let step = result.step.to_string().into_bytes();
            tell.send([
                evaluator.call_worker(step),
                evaluator.call_worker(b"process".to_vec()),
            ])
            .unwrap();
        })
        .build();
    let built = Arc::new(built.unwrap());
    evaluator.set(Arc::downgrade(&built)).unwrap();
    let processes = [12, 34].map(|step| {
        built.evaluate(None, Some(step)).unwrap();
        let [answer, process] = told.recv().unwrap().map(Result::unwrap);
        assert_eq!(answer, step.to_string().bytes().rev().collect::<Vec<_>>());
        String::from_utf8(process).unwrap()
    });
    assert_eq!(processes[0], processes[1]);
    assert_ne!(processes[0], std::process::id().to_string());
    built.shutdown().unwrap();
    let late = built.call_worker(b"late".to_vec());
    assert!(
        matches!(late, Err(ControlError::Next(NextError::ShutDown))),
        "{late:?}"
    );
}
