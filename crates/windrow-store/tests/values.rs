//! Values of variable size in stores.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use tensordict::{DType, Tensor, TensorDict};
use windrow_store::{Store, StoreError};

const ROWS: usize = 50;

/// The text of frame `number`: nothing, some bytes, rarely many.
fn text(number: i64) -> String {
    let times = match number % 40 {
        39 => 30_000,
        few => few % 7,
    };
    format!("{number}; ").repeat(times as usize)
}

fn frames(numbers: std::ops::Range<i64>) -> TensorDict {
    let n = (numbers.end - numbers.start) as usize;
    let mut dict = TensorDict::new([n]);
    let texts: Vec<String> = numbers.clone().map(text).collect();
    let pairs: Vec<String> = texts
        .iter()
        .flat_map(|text| [text.clone(), "x".into()])
        .collect();
    dict.set("text", Tensor::from_strings(&texts, [n]).unwrap())
        .unwrap();
    dict.set(
        ("next", "pair"),
        Tensor::from_strings(&pairs, [n, 2]).unwrap(),
    )
    .unwrap();
    dict.set("number", Tensor::arange(numbers).unwrap())
        .unwrap();
    dict
}

/// Whether each row that is filled has a frame as it was written. Returns their numbers.
fn check(store: &Store) -> Vec<i64> {
    let reader = store.read();
    let rows: Vec<u32> = reader.filled().into_iter().flatten().collect();
    let got = reader.gather(&rows).unwrap();
    let numbers = got.get("number").unwrap().to_vec::<i64>().unwrap();
    for (row, &number) in numbers.iter().enumerate() {
        let expected = text(number);
        let (own, pair) = (got.get("text").unwrap(), got.get(("next", "pair")).unwrap());
        assert_eq!(own.string_at(&[row]).unwrap(), expected.as_bytes());
        assert_eq!(pair.string_at(&[row, 0]).unwrap(), expected.as_bytes());
        assert_eq!(pair.string_at(&[row, 1]).unwrap(), b"x");
    }
    numbers
}

fn leaves() -> Vec<tensordict::LeafSpec> {
    Store::leaves(&frames(0..1)).unwrap()
}

fn open(path: &Path) -> Store {
    Store::open(path, leaves(), ROWS).unwrap()
}

/// Writes frames until all rows were overwritten many times.
fn fill(store: &Store, from: i64) -> i64 {
    let mut next = from;
    for len in (1..20).cycle().take(200) {
        store
            .write(store.cursor(), &frames(next..next + len))
            .unwrap();
        next += len;
        let numbers = check(store);
        assert!(numbers.contains(&(next - 1)));
    }
    next
}

#[test]
fn rows_keep_the_values_that_were_written_last() {
    let store = Store::new(leaves(), ROWS).unwrap();
    let end = fill(&store, 0);
    let mut numbers = check(&store);
    numbers.sort_unstable();
    assert_eq!(numbers, (end - ROWS as i64..end).collect::<Vec<_>>());
    // Views of any strides are written as they are seen.
    let pairs = frames(end..end + 20).reshape([10, 2]).unwrap();
    let every_other = pairs.select_index(1, 0).unwrap();
    store.write(0, &every_other).unwrap();
    assert_eq!(check(&store)[..3], [end, end + 2, end + 4]);
    store.clear();
    assert!(check(&store).is_empty());
    fill(&store, 7);
}

#[test]
fn a_reader_sees_its_values_while_others_are_written() {
    let store = Store::new(leaves(), ROWS).unwrap();
    store.write(0, &frames(0..40)).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..30 {
                store
                    .write(0, &frames(round * 40..round * 40 + 40))
                    .unwrap();
            }
        });
        while !writer.is_finished() {
            check(&store);
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_file_has_its_values_when_it_is_opened_again_and_does_not_grow_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let mut next = 0;
    let mut sizes = Vec::new();
    for _ in 0..4 {
        let store = open(&path);
        let before = check(&store);
        next = fill(&store, next);
        let after = check(&store);
        assert_ne!(before, after);
        drop(store);
        let store = open(&path);
        assert_eq!(check(&store), after);
        sizes.push(path.metadata().unwrap().len());
    }
    assert!(sizes[3] <= sizes[0] + (4 << 20), "{sizes:?}");
    let store = open(&path);
    store.clear();
    assert!(path.metadata().unwrap().len() < sizes[0]);
    fill(&store, 0);
}

#[test]
fn a_file_without_a_name_grows_with_its_values() {
    let file = tempfile::tempfile().unwrap();
    let store = Store::in_file(file, Path::new("nameless"), leaves(), ROWS).unwrap();
    fill(&store, 0);
}

#[test]
fn a_file_with_a_cell_beyond_its_end_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let store = open(&path);
    store.write(0, &frames(1..2)).unwrap();
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    // The first entry by name is the pair, whose first value is in the first block, and the text is
    // in the third.
    let len = text(1).len() as u32;
    let cell = [&32u64.to_ne_bytes()[..], &len.to_ne_bytes(), &[0; 4]].concat();
    let at = bytes.windows(16).position(|window| window == cell).unwrap();
    for broken in [u64::MAX, 1 << 40, 0] {
        bytes[at..at + 8].copy_from_slice(&broken.to_ne_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let error = Store::open(&path, leaves(), ROWS).unwrap_err();
        assert!(matches!(error, StoreError::File { .. }), "{error}");
    }
}

#[test]
fn numbers_are_no_text() {
    let store = Store::new(leaves(), 3).unwrap();
    let mut other = frames(0..2);
    other
        .set("text", Tensor::zeros(DType::I64, [2]).unwrap())
        .unwrap();
    assert!(matches!(
        store.write(0, &other),
        Err(StoreError::Entry { .. })
    ));
}
