//! Workers in processes: this very test program, run again.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use tensordict::TensorDict;
use windrow_collect::{
    CollectorBuilder, MultiSyncCollector, Placement, WorkerProgram, worker_main,
};
use windrow_env::CartPole;

/// Not a test: what a worker process of the tests below runs.
#[test]
fn worker_entry() {
    worker_main(|registry| {
        registry.env("Own-v0", CartPole::v1)?;
        Ok(())
    })
    .unwrap();
}

/// This program, run again to be a worker.
fn program() -> WorkerProgram {
    let mut program = WorkerProgram::current();
    program.args = ["--exact", "worker_entry", "--nocapture"]
        .map(Into::into)
        .to_vec();
    program
}

fn all(builder: CollectorBuilder) -> Vec<TensorDict> {
    let mut collector = builder.build().unwrap();
    let batches = collector.by_ref().map(|batch| batch.unwrap().detach());
    let batches = batches.collect();
    collector.shutdown().unwrap();
    batches
}

fn sync() -> CollectorBuilder {
    MultiSyncCollector::builder("CartPole-v1")
        .num_workers(2)
        .frames_per_batch(64)
        .total_frames(640)
        .seed(3)
}

#[test]
fn batches_are_those_of_workers_in_this_process() {
    let expected = all(sync().placement(Placement::Inline));
    let got = all(sync()
        .placement(Placement::Processes)
        .worker_program(program()));
    assert_eq!(expected.len(), 10);
    for (got, expected) in got.iter().zip(&expected) {
        for (key, tensor) in expected.leaves() {
            assert!(got.get(&key).unwrap().same_bits(tensor), "{key}");
        }
    }
}
