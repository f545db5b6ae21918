//! A store from outside: what is written is what is read, in memory and in a file, whatever the
//! order of things.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tensordict::{DType, Tensor, TensorDict};
use windrow_store::{Store, StoreError};

/// Frames of many widths, all of whose elements follow from a number each.
fn frames(numbers: &[i64]) -> TensorDict {
    let n = numbers.len();
    let base = Tensor::from_slice(numbers, [n]).unwrap();
    let wide = |width: usize, dtype: DType| {
        let values: Vec<i64> = numbers
            .iter()
            .flat_map(|number| (0..width as i64).map(move |at| number * 31 + at))
            .collect();
        let tensor = Tensor::from_vec(values, [n, width]).unwrap();
        tensor.cast(dtype).unwrap()
    };
    let bit = |width: usize| {
        let bits = wide(width, DType::I64).to_vec::<i64>().unwrap();
        Tensor::from_vec(bits.iter().map(|bit| bit % 3 == 0).collect(), [n, width]).unwrap()
    };
    let mut dict = TensorDict::new([n]);
    dict.set("action", base).unwrap();
    dict.set("done", bit(1)).unwrap();
    dict.set("mask", bit(5)).unwrap();
    dict.set("observation", wide(4, DType::F32)).unwrap();
    dict.set(("next", "observation"), wide(4, DType::F32))
        .unwrap();
    dict.set(("next", "reward"), wide(1, DType::F64)).unwrap();
    dict.set(("next", "deep", "state"), wide(7, DType::I16))
        .unwrap();
    dict.set("pixels", wide(4100, DType::U8)).unwrap();
    dict.set("nothing", Tensor::zeros(DType::F32, [n, 0]).unwrap())
        .unwrap();
    dict
}

fn store(capacity: usize) -> Store {
    Store::new(Store::leaves(&frames(&[0])).unwrap(), capacity).unwrap()
}

fn open(path: &Path, capacity: usize) -> Result<Store, StoreError> {
    Store::open(path, Store::leaves(&frames(&[0])).unwrap(), capacity)
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_goes_with_its_store_takes_room_for_what_was_written() {
    use std::os::unix::fs::MetadataExt;

    const CAPACITY: usize = 1_000_000;
    let file = tempfile::tempfile().unwrap();
    let taken = || file.metadata().unwrap().blocks() * 512;
    let leaves = Store::leaves(&frames(&[0])).unwrap();
    let copy = file.try_clone().unwrap();
    let store = Store::in_file(copy, Path::new("scratch"), leaves, CAPACITY).unwrap();
    assert!(store.bytes() > 4_000_000_000);
    let header = taken();
    for first in [0, 5_000, CAPACITY - 2] {
        store.write(first, &frames(&[1, 2, 3])).unwrap();
        let rows = [first, first + 1, first + 2].map(|row| (row % CAPACITY) as u32);
        assert_eq!(store.read().gather(&rows).unwrap(), frames(&[1, 2, 3]));
    }
    // Some pieces for small fields and for pixels each, at the beginning and at the end.
    assert!(
        taken() > header && taken() < header + (200 << 20),
        "{}",
        taken()
    );
    let before = taken();
    store.clear();
    assert_eq!(taken(), before);
    assert!(store.read().filled().is_empty());
    store.write(0, &frames(&[7])).unwrap();
    assert_eq!(store.read().gather(&[0]).unwrap(), frames(&[7]));
    assert_eq!(taken(), before);
}

#[test]
fn rows_go_on_at_the_first_behind_the_last() {
    let store = store(5);
    assert_eq!(store.capacity(), 5);
    store.write(3, &frames(&[10, 11, 12])).unwrap();
    assert_eq!((store.cursor(), store.written()), (1, 3));
    let reader = store.read();
    assert_eq!(reader.filled(), [0..1, 3..5]);
    assert_eq!(
        reader.gather(&[0, 4, 3, 4]).unwrap(),
        frames(&[12, 11, 10, 11])
    );
    assert_eq!(reader.gather(&[]).unwrap(), frames(&[]));
}

#[test]
fn a_store_of_many_megabytes_is_like_a_small_one() {
    let store = store(1500);
    assert!(store.bytes() > 6_000_000);
    let numbers: Vec<i64> = (0..1000).collect();
    store.write(1000, &frames(&numbers)).unwrap();
    let rows: Vec<u32> = (1000..1500).chain(0..500).collect();
    assert_eq!(store.read().gather(&rows).unwrap(), frames(&numbers));
}

/// Such a store copies many rows past the caches, whole cache lines at a time.
#[test]
fn a_store_that_no_cache_holds_is_like_a_small_one() {
    const CAPACITY: usize = 500_000;
    let frames = |numbers: Range<i64>| {
        let mut dict = frames(&numbers.collect::<Vec<_>>());
        dict.remove("pixels").unwrap();
        dict
    };
    let store = Store::new(Store::leaves(&frames(0..1)).unwrap(), CAPACITY).unwrap();
    assert!(store.bytes() > 32 << 20);
    // Rows of 72 bytes begin anywhere in a line; the last write goes on at row 0.
    for (first, n) in [
        (0, 1000),
        (1000, 85),
        (1085, 86),
        (1171, 700),
        (CAPACITY - 350, 1000),
    ] {
        let behind = (first + n) % CAPACITY;
        store.write(behind, &frames(-3..-2)).unwrap();
        store
            .write((first + CAPACITY - 1) % CAPACITY, &frames(-2..-1))
            .unwrap();
        store.write(first, &frames(5..5 + n as i64)).unwrap();
        let rows: Vec<u32> = (first..first + n)
            .map(|row| (row % CAPACITY) as u32)
            .collect();
        let read = store.read();
        assert_eq!(
            read.gather(&rows).unwrap(),
            frames(5..5 + n as i64),
            "{first}"
        );
        let around = [(first + CAPACITY - 1) % CAPACITY, behind].map(|row| row as u32);
        assert_eq!(read.gather(&around[..1]).unwrap(), frames(-2..-1));
        assert_eq!(read.gather(&around[1..]).unwrap(), frames(-3..-2));
    }
    let wide = frames(0..2000);
    let every_other = wide.reshape([1000, 2]).unwrap().select_index(1, 1).unwrap();
    store.write(77, &every_other).unwrap();
    let rows: Vec<u32> = (77..1077).collect();
    assert_eq!(store.read().gather(&rows).unwrap(), every_other);
}

#[test]
fn chosen_entries_come_alone() {
    let store = store(3);
    store.write(0, &frames(&[1, 2, 3])).unwrap();
    let keys = [("next", "reward").into(), "action".into()];
    let picked = store.read().gather_keys(&[2, 0], &keys).unwrap();
    assert_eq!(picked, frames(&[3, 1]).select(&keys).unwrap());
    let error = store.read().gather_keys(&[0], &["acton".into()]);
    assert!(matches!(error, Err(StoreError::Missing { .. })));
}

#[test]
fn sources_may_have_any_strides() {
    let store = store(8);
    let wide = frames(&[0, 1, 2, 3, 4, 5]);
    let every_other = wide.reshape([3, 2]).unwrap().select_index(1, 0).unwrap();
    store.write(6, &every_other).unwrap();
    assert_eq!(store.read().gather(&[6, 7, 0]).unwrap(), frames(&[0, 2, 4]));

    let turned = Tensor::arange(0..12).unwrap().view([2, 3, 2]).unwrap();
    let turned = turned.permute([1, 2, 0]).unwrap().flip(0).unwrap();
    let mut dict = TensorDict::new([3]);
    dict.set("x", &turned).unwrap();
    let store = Store::new(Store::leaves(&dict).unwrap(), 3).unwrap();
    store.write(0, &dict).unwrap();
    let read = store.read().gather(&[0, 1, 2]).unwrap();
    assert_eq!(read.get("x").unwrap(), &turned);
}

#[test]
fn gathered_tensors_belong_to_whoever_asked() {
    let store = store(2);
    store.write(0, &frames(&[1, 2])).unwrap();
    let mut picked = store.read().gather(&[0, 1]).unwrap();
    store.write(0, &frames(&[3, 4])).unwrap();
    assert_eq!(picked, frames(&[1, 2]));
    picked.as_mut_slice::<i64>("action").unwrap()[0] = 9;
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    let store = store(4);
    store.write(0, &frames(&[1])).unwrap();
    let told = |frames: &TensorDict| store.write(0, frames).unwrap_err().to_string();

    assert_eq!(
        told(&frames(&[5]).exclude(&[("next", "reward")])),
        r#"frames lack entry ("next", "reward"), which the first frames had"#
    );
    let mut other = frames(&[5]);
    other
        .set("extra", Tensor::zeros(DType::F32, [1]).unwrap())
        .unwrap();
    assert_eq!(
        told(&other),
        r#"frames have entry "extra", which the first frames did not have"#
    );
    let mut other = frames(&[5]);
    other
        .set("observation", Tensor::zeros(DType::F32, [1, 5]).unwrap())
        .unwrap();
    assert_eq!(
        told(&other),
        r#"entry "observation": expected float32 [4] a frame, got float32 [5]"#
    );
    let moved = frames(&[5]).exclude(&["next"]);
    let mut moved = moved;
    moved
        .set("zext", frames(&[5]).get_dict("next").unwrap().clone())
        .unwrap();
    assert!(told(&moved).contains("lack entry (\"next\""));
    assert_eq!(
        told(&TensorDict::new([1, 1])),
        "expected frames of batch size [n], got [1, 1]"
    );
    assert_eq!(told(&frames(&[0; 5])), "5 frames do not fit into 4 rows");
    let error = store.write(4, &frames(&[5])).unwrap_err();
    assert_eq!(error.to_string(), "row 4 does not exist: there are 4 rows");

    let reader = store.read();
    assert!(matches!(
        reader.gather(&[0, 1]),
        Err(StoreError::NotFilled { row: 1 })
    ));
    assert!(matches!(
        reader.gather(&[4]),
        Err(StoreError::NoSuchRow { row: 4, .. })
    ));
    assert_eq!(reader.gather(&[0]).unwrap(), frames(&[1]));
}

#[test]
fn a_file_is_found_as_it_was_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let store = open(&path, 70).unwrap();
    store.write(68, &frames(&[1, 2, 3])).unwrap();
    assert!(matches!(open(&path, 70), Err(StoreError::InUse { .. })));
    drop(store);

    let store = open(&path, 70).unwrap();
    assert_eq!((store.cursor(), store.written()), (1, 3));
    assert_eq!(store.read().filled(), [0..1, 68..70]);
    assert_eq!(
        store.read().gather(&[68, 69, 0]).unwrap(),
        frames(&[1, 2, 3])
    );
    store.clear();
    drop(store);

    let store = open(&path, 70).unwrap();
    assert!(store.read().filled().is_empty());
    assert_eq!((store.cursor(), store.written()), (0, 3));
    drop(store);

    assert!(matches!(open(&path, 71), Err(StoreError::File { .. })));
    let mut leaves = Store::leaves(&frames(&[0])).unwrap();
    leaves[0].key = "deed".into();
    let error = Store::open(&path, leaves, 70).unwrap_err();
    assert!(
        error.to_string().contains("names, types and shapes"),
        "{error}"
    );
}

#[test]
fn files_of_others_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let bytes = store(3).bytes();
    std::fs::write(&path, vec![7; bytes]).unwrap();
    let error = open(&path, 3).unwrap_err();
    assert!(
        error.to_string().contains("mark of a windrow storage"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), vec![7; bytes]);
    let mut zeros_first = vec![0; 8];
    zeros_first.resize(bytes, 0xFF);
    for foreign in [
        zeros_first,
        vec![0; bytes],
        vec![0; bytes / 2],
        vec![0; 8],
        b"windrow".to_vec(),
    ] {
        std::fs::write(&path, &foreign).unwrap();
        let error = open(&path, 3).unwrap_err();
        assert!(matches!(error, StoreError::File { .. }), "{error}");
        assert!(error.to_string().starts_with(path.to_str().unwrap()));
        assert_eq!(std::fs::read(&path).unwrap(), foreign);
    }
}

#[test]
fn a_file_whose_maker_died_before_it_was_made_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    // All but the identity, which no two files share.
    let read = || {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.drain(96..104);
        bytes
    };
    let whole = {
        drop(open(&path, 3).unwrap());
        read()
    };
    // Nothing but the file; its mark alone; room as well, all or some of it.
    for len in [0, 8, whole.len() + 8, whole.len() / 2] {
        let mut unmade = b"windrow0".to_vec();
        unmade.resize(len, 0);
        std::fs::write(&path, unmade).unwrap();
        let store = open(&path, 3).unwrap();
        assert!(store.read().filled().is_empty());
        drop(store);
        assert_eq!(read(), whole);
    }
}

#[test]
fn an_entry_that_is_asked_for_twice_comes_once() {
    let store = store(40);
    let numbers: Vec<i64> = (0..40).collect();
    store.write(0, &frames(&numbers)).unwrap();
    let rows: Vec<u32> = (0..40).collect();
    let keys = ["action", "pixels", "action", "pixels"].map(Into::into);
    let picked = store.read().gather_keys(&rows, &keys).unwrap();
    assert_eq!(picked, frames(&numbers).select(&keys).unwrap());
}

#[test]
#[cfg_attr(miri, ignore = "its allocator ends the process")]
fn rows_that_are_larger_than_memory_are_an_error_of_whoever_writes_them() {
    let mut huge = TensorDict::new([2]);
    let turned = Tensor::arange(0..2).unwrap().unsqueeze(1).unwrap();
    huge.set("x", turned.expand([2, 1 << 54]).unwrap()).unwrap();
    let error = Store::new(Store::leaves(&huge).unwrap(), 2).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::NoMemory { .. } | StoreError::TooLarge { .. }
        ),
        "{error}"
    );
    let mut small = TensorDict::new([2]);
    small.set("x", Tensor::arange(0..2).unwrap()).unwrap();
    let store = Store::new(Store::leaves(&small).unwrap(), 2).unwrap();
    let long = Tensor::scalar(0i64).expand([1 << 54]).unwrap();
    let mut many = TensorDict::new([1 << 54]);
    many.set("x", long).unwrap();
    assert!(matches!(
        store.write(0, &many),
        Err(StoreError::TooMany { .. })
    ));
}

#[test]
fn a_head_that_cannot_be_is_an_error_and_never_counted_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let made = open(&path, 70).unwrap();
    made.write(68, &frames(&[1, 2, 3])).unwrap();
    made.write(5, &frames(&[4])).unwrap();
    drop(made);
    let good = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for at in 0..16 {
        for word in [u64::MAX, u64::MAX - 1, u64::MAX / 2, 1 << 40, 71, 70] {
            let mut bytes = good.clone();
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
            match open(&path, 70) {
                Ok(store) => {
                    let _ = (store.cursor(), store.written(), store.read().filled());
                    store.write(69, &frames(&[5, 6])).unwrap();
                }
                Err(error) => {
                    assert!(matches!(error, StoreError::File { .. }), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 16);
}

#[test]
fn bools_are_bools_whatever_the_file_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let mut dict = TensorDict::new([1]);
    dict.set("one", Tensor::full([1, 1], true).unwrap())
        .unwrap();
    dict.set("two", Tensor::full([1, 2], true).unwrap())
        .unwrap();
    let leaves = Store::leaves(&dict).unwrap();
    let store = Store::open(&path, leaves.clone(), 1).unwrap();
    store.write(0, &dict).unwrap();
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    let records = bytes.len() - 8;
    bytes[records..].fill(0xA5);
    std::fs::write(&path, bytes).unwrap();
    let store = Store::open(&path, leaves, 1).unwrap();
    assert_eq!(store.read().gather(&[0]).unwrap(), dict);
}

#[test]
fn readers_and_writers_in_many_threads_see_whole_frames_only() {
    let rounds = if cfg!(miri) { 20 } else { 400 };
    let store = store(16);
    store
        .write(0, &frames(&(0..16).collect::<Vec<_>>()))
        .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let number = (writer * rounds + round) as i64;
                        let n = 1 + round % 7;
                        let numbers: Vec<i64> = (number..number + n as i64).collect();
                        store.write(round * 5 % 16, &frames(&numbers)).unwrap();
                    }
                })
            })
            .collect();
        let reader = || {
            let mut seen = 0;
            while !done.load(Ordering::Acquire) || seen == 0 {
                let reader = store.read();
                let rows: Vec<u32> = reader.filled().into_iter().flatten().collect();
                let read = reader.gather(&rows).unwrap();
                let numbers = read.as_slice::<i64>("action").unwrap();
                assert_eq!(read, frames(numbers));
                assert_eq!(reader.gather(&rows).unwrap(), read);
                seen += rows.len();
            }
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Release);
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
    });
}

/// What a store is compared with.
#[derive(Debug, Clone)]
struct Model {
    rows: Vec<Option<i64>>,
    cursor: usize,
    written: u64,
}

#[derive(Debug, Clone)]
enum Step {
    Write { first: usize, n: usize },
    Gather(Vec<usize>),
    Clear,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..200, 0usize..200).prop_map(|(first, n)| Step::Write { first, n }),
        4 => prop::collection::vec(0usize..200, 0..20).prop_map(Step::Gather),
        1 => Just(Step::Clear),
        1 => Just(Step::Reopen),
    ]
}

fn runs(model: &Model) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for (row, _) in (0u32..)
        .zip(&model.rows)
        .filter(|(_, value)| value.is_some())
    {
        match runs.last_mut() {
            Some(last) if last.end == row => last.end += 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

fn compare(store: &Store, model: &Model) {
    let reader = store.read();
    assert_eq!(reader.filled(), runs(model));
    assert_eq!(
        (store.cursor(), store.written()),
        (model.cursor, model.written)
    );
    let rows: Vec<u32> = runs(model).into_iter().flatten().collect();
    let values: Vec<i64> = model.rows.iter().flatten().copied().collect();
    assert_eq!(reader.gather(&rows).unwrap(), frames(&values));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_an_error_or_a_store_and_never_a_panic(
        capacity in 1usize..140,
        words in prop::collection::vec((0usize..18, prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()]), 0..3),
        bytes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        kept in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows");
        let store = open(&path, capacity).unwrap();
        let numbers: Vec<i64> = (0..capacity as i64).collect();
        store.write(capacity / 2, &frames(&numbers)).unwrap();
        store.write(0, &frames(&numbers[..capacity / 3])).unwrap();
        drop(store);
        let mut file = std::fs::read(&path).unwrap();
        for (at, word) in words {
            file[at * 8..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        for (at, byte) in bytes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(kept) = kept {
            file.truncate(kept.index(file.len()));
        }
        std::fs::write(&path, &file).unwrap();
        let Ok(store) = open(&path, capacity) else {
            return Ok(());
        };
        prop_assert!(store.cursor() < capacity);
        let reader = store.read();
        let rows: Vec<u32> = reader.filled().into_iter().flatten().collect();
        let read = reader.gather(&rows).unwrap();
        prop_assert!(read.get("mask").unwrap().as_bytes().unwrap().iter().all(|&byte| byte <= 1));
        drop(reader);
        let written = store.written();
        store.write(store.cursor(), &frames(&numbers)).unwrap();
        prop_assert_eq!(store.written(), written + capacity as u64);
        let all: Vec<u32> = (0..capacity as u32).collect();
        prop_assert!(store.read().gather(&all).is_ok());
    }

    #[test]
    fn a_store_is_a_list(capacity in 1usize..140, steps in prop::collection::vec(step(), 1..20), mapped in any::<bool>()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows");
        let make = || if mapped { open(&path, capacity).unwrap() } else { store(capacity) };
        let mut store = make();
        let mut model = Model { rows: vec![None; capacity], cursor: 0, written: 0 };
        let mut number = 0;
        for step in steps {
            match step {
                Step::Write { first, n } => {
                    let (first, n) = (first % capacity, n % (capacity + 1));
                    let numbers: Vec<i64> = (number..number + n as i64).collect();
                    store.write(first, &frames(&numbers)).unwrap();
                    for (place, value) in numbers.into_iter().enumerate() {
                        model.rows[(first + place) % capacity] = Some(value);
                    }
                    if n > 0 {
                        model.cursor = (first + n) % capacity;
                    }
                    model.written += n as u64;
                    number += n as i64;
                }
                Step::Gather(rows) => {
                    let rows: Vec<u32> = rows.into_iter().map(|row| (row % capacity) as u32).collect();
                    let values: Option<Vec<i64>> = rows.iter().map(|&row| model.rows[row as usize]).collect();
                    match (store.read().gather(&rows), values) {
                        (Ok(read), Some(values)) => prop_assert_eq!(read, frames(&values)),
                        (Err(StoreError::NotFilled { row }), None) => prop_assert!(model.rows[row as usize].is_none()),
                        (read, values) => prop_assert!(false, "{:?} {:?}", read, values),
                    }
                }
                Step::Clear => {
                    store.clear();
                    model.rows.fill(None);
                    model.cursor = 0;
                }
                Step::Reopen if mapped => {
                    drop(store);
                    store = make();
                }
                Step::Reopen => {}
            }
        }
        compare(&store, &model);
    }
}
