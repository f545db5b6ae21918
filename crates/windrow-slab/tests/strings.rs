//! Values of variable size in slabs.
#![cfg(not(any(loom, shuttle)))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use tensordict::{DType, TensorDict};
use windrow_slab::{
    Key, Layout, LeafSpec, Order, Part, PartOrder, RecordSpec, Ring, RingSpec, RowBlock, Shares,
    SlabError,
};

const TEXT: Key<[u8]> = Key::new(1);
const WORDS: Key<[u8]> = Key::new(2);

fn leaves() -> Vec<LeafSpec> {
    vec![
        LeafSpec::new("position", DType::F32, [2]),
        LeafSpec::new("text", DType::Bytes, []),
        LeafSpec::new("words", DType::Bytes, [2]),
    ]
}

fn ring(parts: usize, steps: usize, order: PartOrder, max_slabs: usize) -> Arc<Ring> {
    let record = RecordSpec {
        observation: leaves(),
        ..RecordSpec::default()
    };
    let shares = Shares {
        steps: vec![steps; parts],
        envs: 2,
        batched: true,
        order,
    };
    let spec = RingSpec {
        order: Order::ByWorker,
        workers: parts,
        ahead: 0,
        max_slabs,
        cut_after: None,
        max_age: None,
    };
    Ring::new(Layout::new(&record, shares).unwrap(), spec).unwrap()
}

/// The text of environment `env` of a part that follows its step `step`; of any length.
fn text(seq: u64, part: usize, step: usize, env: usize) -> String {
    let length = (seq as usize * 31 + part * 17 + step * 7 + env) % 50;
    format!("{seq} {part} {step} {env} {}", "x".repeat(length * length))
}

fn fill(part: &mut Part) {
    let (seq, index) = (part.seq(), part.index());
    let mut first = part.first_obs();
    for env in 0..2 {
        let mut row = first.env_mut(env).unwrap();
        row.write_string(TEXT, 0, text(seq, index, 0, env).as_bytes())
            .unwrap();
    }
    let (mut rows, mut step) = (part.rows(), 0);
    while let Some(now) = rows.next_step() {
        step += 1;
        let mut next = now.next_obs;
        for env in 0..2 {
            let expected = text(seq, index, step - 1, env);
            let seen = now.obs.env(env).unwrap().string(TEXT, 0).unwrap();
            assert_eq!(seen, expected.as_bytes());
            let mut row = next.env_mut(env).unwrap();
            row.write_string(TEXT, 0, b"written twice").unwrap();
            row.write_string(TEXT, 0, text(seq, index, step, env).as_bytes())
                .unwrap();
            row.write_string(WORDS, 1, &[env as u8]).unwrap();
        }
        if let Some(mut following) = now.following {
            following.copy_from(next.as_rows()).unwrap();
        }
    }
}

/// Checks a batch `[env, time]` of one part.
fn check(batch: &TensorDict, seq: u64, part: usize) {
    let [envs, steps] = *batch.batch_size() else {
        panic!("expected two dimensions");
    };
    for (env, step) in (0..envs).flat_map(|env| (0..steps).map(move |step| (env, step))) {
        let at = |key: &str| batch.get(key).unwrap().string_at(&[env, step]).unwrap();
        assert_eq!(at("text"), text(seq, part, step, env).as_bytes());
        let next = batch.get(("next", "text")).unwrap();
        let expected = text(seq, part, step + 1, env);
        assert_eq!(next.string_at(&[env, step]).unwrap(), expected.as_bytes());
        let words = batch.get(("next", "words")).unwrap();
        assert_eq!(words.string_at(&[env, step, 0]).unwrap(), b"");
        assert_eq!(words.string_at(&[env, step, 1]).unwrap(), [env as u8]);
    }
}

#[test]
fn a_batch_has_the_values_that_its_parts_wrote_however_often_memory_was_used() {
    for order in [PartOrder::Sequential, PartOrder::Interleaved] {
        let ring = ring(3, 5, order, 2);
        for seq in 0..6 {
            ring.request().unwrap();
            for worker in 0..3 {
                let mut part = ring.claim(worker).unwrap();
                fill(&mut part);
                part.commit();
            }
            let lease = ring.try_next().unwrap();
            for part in 0..3 {
                check(&lease.part(part).unwrap(), seq, part);
            }
            let stacked = lease.stacked().unwrap().unwrap();
            check(&stacked.select_index(0, 2).unwrap(), seq, 2);
        }
        assert_eq!(ring.slabs(), 1);
    }
}

#[test]
fn a_batch_that_is_kept_keeps_its_values() {
    let ring = ring(1, 3, PartOrder::Sequential, 3);
    let batch = || {
        ring.request().unwrap();
        let mut part = ring.claim(0).unwrap();
        let seq = part.seq();
        fill(&mut part);
        part.commit();
        (seq, ring.try_next().unwrap().part(0).unwrap())
    };
    let (seq, kept) = batch();
    let copy = batch().1.detach();
    for _ in 0..4 {
        batch();
    }
    check(&kept, seq, 0);
    check(&copy, 1, 0);
}

#[test]
fn a_part_that_is_claimed_again_has_no_value_of_the_one_before() {
    let ring = ring(1, 2, PartOrder::Sequential, 1);
    ring.request().unwrap();
    let mut part = ring.claim(0).unwrap();
    fill(&mut part);
    // A worker that fails drops its part.
    drop(part);
    let part = ring.claim(0).unwrap();
    for row in [part.obs(0).unwrap(), part.obs(1).unwrap()] {
        assert!(
            row.strings(TEXT)
                .unwrap()
                .iter()
                .all(|text| text.is_empty())
        );
    }
    part.commit();
    let batch = ring.try_next().unwrap().part(0).unwrap();
    assert!(
        batch
            .get(("next", "text"))
            .unwrap()
            .strings()
            .all(<[u8]>::is_empty)
    );
}

#[test]
fn values_are_copied_from_block_to_block_with_their_bytes() {
    let mut from = RowBlock::new(&leaves(), 2).unwrap();
    let mut rows = from.rows_mut();
    for env in 0..2 {
        let value = [env as u8 + 1; 9];
        rows.env_mut(env)
            .unwrap()
            .write_string(TEXT, 0, &value)
            .unwrap();
    }
    let mut to = RowBlock::new(&leaves(), 3).unwrap();
    to.rows_mut().copy_envs(1, from.rows(), 0..2).unwrap();
    let mut same = RowBlock::new(&leaves(), 2).unwrap();
    same.rows_mut().copy_from(from.rows()).unwrap();
    let first = from.rows().env(0).unwrap();
    let mut rows = to.rows_mut();
    rows.env_mut(0).unwrap().copy_leaf(1, first, 1).unwrap();
    assert!(rows.env_mut(0).unwrap().copy_leaf(2, first, 1).is_err());
    assert!(rows.copy_leaf(0, from.rows(), 1).is_err());
    same.rows_mut().copy_leaf(1, from.rows(), 1).unwrap();
    drop(from);
    let expected = [[1u8; 9], [1; 9], [2; 9]];
    assert_eq!(to.rows().strings(TEXT).unwrap(), expected);
    assert_eq!(same.rows().strings(TEXT).unwrap(), expected[1..]);
}

#[test]
fn a_row_that_is_written_for_ever_takes_no_more_memory_and_loses_nothing() {
    let mut block = RowBlock::new(&leaves(), 2).unwrap();
    block
        .rows_mut()
        .env_mut(1)
        .unwrap()
        .write_string(WORDS, 0, b"stays")
        .unwrap();
    block.limit(1).unwrap();
    for i in 0..200u8 {
        let value = vec![i; 10_000];
        let mut rows = block.rows_mut();
        rows.env_mut(0)
            .unwrap()
            .write_string(TEXT, 0, &value)
            .unwrap();
        assert_eq!(block.rows().strings(TEXT).unwrap(), [value]);
    }
    block.limit(2).unwrap();
    assert_eq!(
        block.rows().strings(WORDS).unwrap(),
        [&b""[..], b"", b"stays", b""]
    );
    let shown = format!("{block:?}");
    let reserved = shown.split("reserved: ").nth(1).unwrap();
    let reserved: u64 = reserved
        .split(' ')
        .next()
        .unwrap()
        .trim_end_matches(',')
        .parse()
        .unwrap();
    assert!(reserved < 1 << 19, "{reserved}");
}

#[test]
fn wrong_keys_and_places_are_errors() {
    let mut block = RowBlock::new(&leaves(), 1).unwrap();
    let mut rows = block.rows_mut();
    let mut row = rows.env_mut(0).unwrap();
    let error = row.write_string(Key::new(0), 0, b"a").unwrap_err();
    assert_eq!(
        error.to_string(),
        "leaf 0 holds float32, but was accessed as bytes"
    );
    let error = row.write_string(TEXT, 1, b"a").unwrap_err();
    assert!(matches!(
        error,
        SlabError::Length {
            expected: 1,
            got: 2,
            ..
        }
    ));
    assert!(matches!(
        row.as_row().string(Key::new(3), 0),
        Err(SlabError::NoSuchLeaf { .. })
    ));
    assert!(matches!(
        row.as_row().get(Key::<f32>::new(1)),
        Err(SlabError::DType { .. })
    ));
}
