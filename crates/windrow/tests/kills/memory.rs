//! A program that may have little memory.

use std::time::Duration;

use windrow::{
    Collector, CollectorBuilder, ErrorKind, Head, MultiSyncCollector, NetworkPolicy, NextError,
    Placement, TensorDict, WorkerError, error_chain, nn::Sequential,
};

use crate::cell::Way;
use crate::env::CRAMPED;
use crate::patience;
use crate::room::Room;

pub(crate) const ROLE: &str = "memory";
/// Files of four mebibytes, or of eight where the shell counts otherwise, and addresses of 256.
pub(crate) const FILES: (&str, &str) = ("memory: files", "ulimit -f 8192;");
pub(crate) const ADDRESSES: (&str, &str) = ("memory: addresses", "ulimit -v 262144;");

const MIB: usize = 1 << 20;
/// Less than the ledger's frames have in memory.
const FRAME: usize = 256;
/// A collector from which nothing comes for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says in a line what it did; panics when a shortage is told badly, or leaves something behind.
pub(crate) fn be(role: &str) {
    let room = Room::now();
    if role == FILES.0 {
        let slabs = refused(ledgers(16 * MIB / FRAME));
        check_back_to(room, "a build without memory for slabs");
        let weights = unpublished();
        check_back_to(room, "weights without memory");
        let batches = too_many_batches();
        println!(
            "{role} of a few MiB at most: no slabs ({slabs}), no weights ({weights}), no batch beside {batches} that were kept"
        );
    } else {
        let slabs = refused(ledgers(288 * MIB / FRAME));
        check_back_to(room, "a build without addresses for slabs");
        println!("{role} of 256 MiB at most: no slabs ({slabs})");
    }
    drop(collect(&mut small().build().unwrap()).unwrap());
    check_back_to(room, "a shortage");
}

/// A worker that may not map its slab ends its collector with an error.
pub(crate) fn cramped() -> Result<String, String> {
    let builder = MultiSyncCollector::builder(CRAMPED)
        .num_workers(2)
        .frames_per_batch(64 * MIB / FRAME)
        .placement(Placement::Processes)
        .interrupt(patience::interrupt());
    let mut collector = builder.build().map_err(|error| error_chain(&error))?;
    let error = match collect(&mut collector) {
        Err(NextError::Worker(error)) => error,
        other => return Err(format!("expected the error of a worker, got {other:?}")),
    };
    let text = WorkerError::to_string(&error);
    match text.contains("mmap") && text.contains("memory") {
        true => Ok(format!("memory: workers of 16 MiB: {text}")),
        false => Err(format!("the error does not say what is missing: {text}")),
    }
}

fn ledgers(frames: usize) -> CollectorBuilder {
    MultiSyncCollector::builder(Way::Kill.id())
        .num_workers(2)
        .frames_per_batch(frames)
        .placement(Placement::Processes)
        .interrupt(patience::interrupt())
}

fn small() -> CollectorBuilder {
    ledgers(60)
}

/// Four million parameters are not published for want of memory, and the collector goes on; what
/// the error says.
fn unpublished() -> String {
    let net = Sequential::new()
        .linear(4, 2048)
        .linear(2048, 2048)
        .linear(2048, 2);
    let builder = MultiSyncCollector::builder("CartPole-v1")
        .policy(NetworkPolicy::new(net, Head::Categorical))
        .num_workers(2)
        .frames_per_batch(6)
        .placement(Placement::Processes)
        .interrupt(patience::interrupt());
    let mut collector = builder.build().unwrap();
    let weights = collector.policy_weights();
    let text = error_chain(&collector.update_policy_weights(&weights).unwrap_err());
    assert!(text.contains("memory") && text.contains("bytes"), "{text}");
    collect(&mut collector).unwrap();
    text
}

/// The build fails for want of memory; what it says.
fn refused(builder: CollectorBuilder) -> String {
    let error = builder.build().map(drop).unwrap_err();
    let text = error_chain(&error);
    assert_eq!(error.kind(), ErrorKind::Memory, "{text}");
    assert!(text.contains("memory") && text.contains("bytes"), "{text}");
    text
}

fn collect(collector: &mut Collector) -> Result<TensorDict, NextError> {
    match patience::next(collector, PATIENCE) {
        None => panic!("no batch, and no error"),
        Some(Err(NextError::WaitInterrupted(_))) => panic!("no batch within {PATIENCE:?}"),
        Some(outcome) => outcome,
    }
}

/// Keeps batches until there is no memory for another, which is there again without them. How many
/// there were.
fn too_many_batches() -> usize {
    let mut collector = ledgers(MIB / FRAME).max_slabs(100).build().unwrap();
    let mut kept = Vec::new();
    let error = loop {
        match collect(&mut collector) {
            Ok(batch) => kept.push(batch),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    let batches = kept.len();
    drop(kept);
    collect(&mut collector).unwrap();
    batches
}

fn check_back_to(room: Room, after: &str) {
    assert_eq!(Room::back_to(room), room, "after {after}");
}
