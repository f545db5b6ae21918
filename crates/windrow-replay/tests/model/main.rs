//! Every sampler and writer against a list that is looked through from end to end.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod drive;
mod kinds;
mod list;

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use drive::{Op, Setting, run};
use kinds::{KINDS, Kind};

const CASES: u32 = 52;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1usize..24).prop_map(|steps| Op::Extend { streams: 1, steps }),
        2 => (2usize..4, 1usize..12).prop_map(|(streams, steps)| Op::Extend { streams, steps }),
        2 => Just(Op::Add),
        3 => (0usize..2, 1usize..12).prop_map(|(who, steps)| Op::Collect { who, steps }),
        6 => (1usize..5).prop_map(Op::Sample),
        2 => any::<u64>().prop_map(Op::Update),
        1 => Just(Op::All),
        1 => Just(Op::Reload),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    (10usize..60, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
        |(capacity, with_ids, memory, seed)| Setting {
            capacity,
            with_ids,
            memory,
            seed,
        },
    )
}

fn compare(kind: Kind) -> usize {
    let compared = AtomicUsize::new(0);
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let ops = prop::collection::vec(prop_oneof![60 => op(), 1 => Just(Op::Empty)], 80..160);
    TestRunner::new(config)
        .run(&(setting(), ops), |(setting, ops)| {
            compared.fetch_add(run(kind, &setting, &ops), Ordering::Relaxed);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    compared.into_inner()
}

#[test]
fn every_sampler_and_writer_agrees_with_a_list() {
    let compared: usize = KINDS.iter().map(|&kind| compare(kind)).sum();
    assert!(compared >= 100_000, "{compared}");
    println!("replay model: {compared} operations compared");
}
