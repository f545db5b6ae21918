//! Every interleaving of readers and writers on one store: run with `cargo xtask models`.
//!
//! Beside each row lies a loom cell that is written with the row and read with it, so a row that is
//! read while it is written, or a read that is not ordered behind its write, fails the model.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use loom::thread;
use tensordict::{Tensor, TensorDict};
use windrow_store::{Store, StoreError, StoreRead};

/// Frames whose two fields are the same number.
fn frames(values: &[i64]) -> TensorDict {
    let mut dict = TensorDict::new([values.len()]);
    for key in ["a", "b"] {
        dict.set(key, Tensor::from_slice(values, [values.len()]).unwrap())
            .unwrap();
    }
    dict
}

/// One frame with a value of variable size.
fn text() -> TensorDict {
    let mut dict = TensorDict::new([1]);
    dict.set("text", Tensor::from_strings(&["text"], [1]).unwrap())
        .unwrap();
    dict
}

/// A store of two rows that hold 1 and 2.
fn store() -> Arc<Store> {
    let frames = frames(&[1, 2]);
    let store = Store::new(Store::leaves(&frames).unwrap(), 2).unwrap();
    store.write(0, &frames).unwrap();
    Arc::new(store)
}

/// The value of a row, when the reader may see it; both of its fields agree.
fn value(reader: &StoreRead<'_>, row: u32) -> Option<i64> {
    match reader.gather(&[row]) {
        Ok(frame) => {
            let value = frame.as_slice::<i64>("a").unwrap()[0];
            assert_eq!(frame.as_slice::<i64>("b").unwrap(), [value]);
            Some(value)
        }
        Err(StoreError::NotFilled { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

fn writer(store: &Arc<Store>, first: usize, values: &'static [i64]) -> thread::JoinHandle<()> {
    let store = Arc::clone(store);
    thread::spawn(move || store.write(first, &frames(values)).unwrap())
}

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

#[test]
fn what_a_reader_could_read_at_first_stays_until_it_is_gone() {
    model(3, || {
        let store = store();
        let writer = writer(&store, 0, &[3]);
        let reader = store.read();
        for row in [0, 1] {
            let first = value(&reader, row);
            assert_eq!(value(&reader, row), first);
            assert!(row == 0 || first == Some(2));
            assert!(matches!(first, None | Some(1..=3)));
        }
        drop(reader);
        writer.join().unwrap();
        assert_eq!(value(&store.read(), 0), Some(3));
    });
}

#[test]
fn a_write_is_seen_whole_or_not_at_all() {
    model(3, || {
        let store = store();
        let writer = writer(&store, 1, &[7, 8]);
        let reader = store.read();
        let seen = (value(&reader, 1), value(&reader, 0));
        let whole = [(Some(2), Some(1)), (None, None), (Some(7), Some(8))];
        assert!(whole.contains(&seen), "{seen:?}");
        assert_eq!(reader.filled().is_empty(), seen == (None, None));
        drop(reader);
        writer.join().unwrap();
    });
}

#[test]
fn writers_take_turns_beside_a_reader() {
    model(2, || {
        let store = store();
        let writers = [writer(&store, 0, &[3]), writer(&store, 0, &[4, 5])];
        let reader = store.read();
        let seen = value(&reader, 0);
        assert!(matches!(seen, None | Some(1 | 3 | 4)));
        drop(reader);
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        let reader = store.read();
        assert!(matches!(value(&reader, 0), Some(3 | 4)));
        assert_eq!(value(&reader, 1), Some(5));
        assert_eq!(store.written(), 5);
    });
}

#[test]
fn a_writer_does_not_wait_for_readers_that_come_after_it() {
    model(3, || {
        let store = store();
        let before = store.read();
        let writer = writer(&store, 0, &[3]);
        let after = store.read();
        if value(&after, 0).is_none() {
            // The write has begun, so the second reader came later: the first alone holds it up.
            assert_eq!(value(&before, 0), Some(1));
            drop(before);
            writer.join().unwrap();
            assert_eq!(value(&after, 0), None);
        } else {
            drop((before, after));
            writer.join().unwrap();
        }
        assert_eq!(value(&store.read(), 0), Some(3));
    });
}

#[test]
fn readers_come_and_go_through_several_writes() {
    model(2, || {
        let store = store();
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                for number in 3..5 {
                    store.write(0, &frames(&[number])).unwrap();
                }
                store.clear();
            })
        };
        let mut last = 0;
        for _ in 0..2 {
            if let Some(seen) = value(&store.read(), 0) {
                assert!(seen >= last);
                last = seen;
            }
        }
        writer.join().unwrap();
        assert_eq!(value(&store.read(), 0), None);
    });
}

#[test]
fn a_row_that_is_written_while_others_are_dropped_has_its_value() {
    model(3, || {
        let store = Arc::new(Store::new(Store::leaves(&text()).unwrap(), 2).unwrap());
        store.write(0, &text()).unwrap();
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.write(1, &text()).unwrap())
        };
        store.clear();
        writer.join().unwrap();
        let reader = store.read();
        if !reader.filled().is_empty() {
            let frame = reader.gather(&[1]).unwrap();
            let value = frame.get("text").unwrap();
            assert_eq!(value.string_at(&[0]).unwrap(), b"text");
        }
    });
}
