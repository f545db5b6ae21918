//! All orders in which a collector, what it delivered and the wish to stop can come to their end.

use tensordict::TensorDict;
use windrow_collect::{Collector, NextError};

use super::cell::{Cell, Kind};
use super::episodes;

/// A collector without end that has delivered two batches, and copies of those.
fn begun(cell: Cell) -> (Collector, Vec<(TensorDict, TensorDict)>) {
    let mut collector = cell.builder().build().unwrap();
    let batches = collector
        .by_ref()
        .take(2)
        .map(Result::unwrap)
        .map(|batch| (batch.detach(), batch))
        .collect();
    (collector, batches)
}

fn unchanged(batches: &[(TensorDict, TensorDict)]) {
    for (copy, batch) in batches {
        assert_eq!(copy, batch);
    }
}

fn told_once(collector: &mut Collector) {
    assert!(matches!(collector.next(), Some(Err(NextError::ShutDown))));
    assert!(collector.next().is_none());
}

pub(crate) fn check(cell: Cell) {
    drop(cell.builder().build().unwrap());

    let mut collector = cell.builder().build().unwrap();
    collector.shutdown().unwrap();
    told_once(&mut collector);

    let (collector, batches) = begun(cell);
    drop(collector);
    unchanged(&batches);

    let (collector, batches) = begun(cell);
    drop(batches);
    drop(collector);

    let (mut collector, batches) = begun(cell);
    collector.shutdown().unwrap();
    unchanged(&batches);
    told_once(&mut collector);
    collector.shutdown().unwrap();
    drop(collector);
    unchanged(&batches);

    let (mut collector, mut batches) = begun(cell);
    collector.handle().shutdown();
    // What was whole by then is still delivered.
    let told = loop {
        match collector.next().unwrap() {
            Ok(batch) => batches.push((batch.detach(), batch)),
            Err(error) => break error,
        }
    };
    assert!(matches!(told, NextError::ShutDown), "{told}");
    assert!(collector.next().is_none());
    unchanged(&batches);
    if let Kind::Trajectories(format) = cell.kind {
        batches
            .iter()
            .for_each(|(_, batch)| episodes::check_batch(batch, format));
    }
}
