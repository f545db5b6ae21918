//! What every storage does, and what sets them apart.
#![allow(clippy::single_range_in_vec_init)]

use std::fs;

use tensordict::{DType, Shape, Tensor, TensorDict};
use windrow_replay::{
    LazyMemmapStorage, LazyTensorStorage, ListStorage, ReplayBuffer, ReplayError, Storage,
};
use windrow_store::StoreError;

const CAPACITY: usize = 10;

fn frames(numbers: std::ops::Range<i64>) -> TensorDict {
    let n = (numbers.end - numbers.start) as usize;
    let action = Tensor::arange(numbers).unwrap();
    let mut dict = TensorDict::new([n]);
    let reward = action.cast(DType::F32).unwrap().view([n, 1]).unwrap();
    dict.set("action", action).unwrap();
    dict.set(("next", "reward"), reward).unwrap();
    dict
}

fn each(check: impl Fn(&dyn Storage)) {
    check(&LazyTensorStorage::new(CAPACITY));
    check(&LazyMemmapStorage::new(CAPACITY));
    check(&ListStorage::new(CAPACITY));
}

#[test]
fn rows_come_back_as_they_were_written_last() {
    each(|storage| {
        assert_eq!(storage.capacity(), CAPACITY);
        assert!(storage.recovered().is_none());
        storage.write(7, &frames(0..5)).unwrap();
        storage.write(8, &frames(10..11)).unwrap();
        let reader = storage.read();
        assert_eq!(reader.filled(), [0..2, 7..10]);
        let picked = reader.gather(&[1, 8, 7, 1]).unwrap();
        assert_eq!(picked.as_slice::<i64>("action").unwrap(), [4, 10, 0, 4]);
        let keys = [("next", "reward").into()];
        let rewards = reader.gather_keys(&[9], &keys).unwrap();
        assert_eq!(rewards, frames(2..3).select(&keys).unwrap());
        drop(reader);
        storage.clear();
        assert!(storage.read().filled().is_empty());
        storage.write(0, &frames(3..4)).unwrap();
        assert_eq!(storage.read().gather(&[0]).unwrap(), frames(3..4));
    });
}

#[test]
fn rows_that_are_not_there_are_named() {
    each(|storage| {
        let refused = |rows: &[u32]| storage.read().gather(rows).unwrap_err().to_string();
        assert_eq!(refused(&[4]), "row 4 holds no frame");
        storage.write(0, &frames(0..3)).unwrap();
        assert_eq!(refused(&[1, 3]), "row 3 holds no frame");
        assert_eq!(refused(&[11]), "row 11 does not exist: there are 10 rows");
        let error = storage.write(10, &frames(0..1)).unwrap_err();
        assert!(matches!(
            error,
            ReplayError::Store(StoreError::NoSuchRow { row: 10, .. })
        ));
        let error = storage.write(0, &frames(0..11)).unwrap_err();
        assert!(matches!(
            error,
            ReplayError::Store(StoreError::TooMany { frames: 11, .. })
        ));
        let error = storage.write(0, &TensorDict::new([])).unwrap_err();
        assert!(matches!(
            error,
            ReplayError::Store(StoreError::NotFlat { .. })
        ));
        assert_eq!(storage.read().filled(), [0..3]);
    });
}

#[test]
fn the_first_frames_fix_what_frames_look_like() {
    let storages: [&dyn Storage; 2] = [
        &LazyTensorStorage::new(CAPACITY),
        &LazyMemmapStorage::new(CAPACITY),
    ];
    for storage in storages {
        storage.prepare(&frames(0..3)).unwrap();
        assert!(storage.read().filled().is_empty());
        let mut other = frames(0..1);
        other
            .set("action", Tensor::zeros(DType::I32, [1]).unwrap())
            .unwrap();
        let refusals = [storage.prepare(&other), storage.write(0, &other)];
        for refused in refusals {
            assert_eq!(
                refused.unwrap_err().to_string(),
                r#"entry "action": expected int64 [] a frame, got int32 []"#
            );
        }
    }
}

#[test]
fn a_capacity_of_nothing_is_an_error_of_the_first_write() {
    for error in [
        LazyTensorStorage::new(0)
            .write(0, &frames(0..1))
            .unwrap_err(),
        LazyMemmapStorage::new(0)
            .write(0, &frames(0..1))
            .unwrap_err(),
    ] {
        assert!(matches!(
            error,
            ReplayError::Store(StoreError::Capacity { capacity: 0 })
        ));
    }
}

#[test]
#[cfg_attr(miri, ignore = "its allocator ends the process")]
fn more_than_the_memory_there_is_is_an_error() {
    let mut large = TensorDict::new([1]);
    let pixels = Tensor::zeros(DType::U8, [1, 1 << 20]).unwrap();
    large.set("pixels", pixels).unwrap();
    let storage = LazyTensorStorage::new(u32::MAX as usize);
    let error = storage.write(0, &large).unwrap_err();
    assert!(matches!(
        error,
        ReplayError::Store(StoreError::NoMemory {
            capacity: 4_294_967_295,
            ..
        })
    ));
    let said = error.to_string();
    assert!(
        said.contains("4294967295 rows of 1048576 bytes each"),
        "{said}"
    );
    // A list takes as much as is written to it.
    let list = ListStorage::new(u32::MAX as usize);
    list.write(5, &frames(0..2)).unwrap();
    assert_eq!(list.read().filled(), [5..7]);

    let buffer = ReplayBuffer::builder().storage(list).build().unwrap();
    buffer.extend(&frames(0..2)).unwrap();
    let error = buffer.sample(1 << 50).unwrap_err();
    assert!(matches!(
        error,
        ReplayError::NoMemory {
            what: "a sample",
            ..
        }
    ));
}

#[test]
fn a_list_keeps_what_does_not_look_alike_but_does_not_stack_it() {
    let storage = ListStorage::new(3);
    let mut other = TensorDict::new([1]);
    other
        .set("word", Tensor::arange(0..5).unwrap().view([1, 5]).unwrap())
        .unwrap();
    storage.write(0, &frames(0..1)).unwrap();
    storage.write(1, &other).unwrap();
    let reader = storage.read();
    assert_eq!(reader.gather(&[1]).unwrap(), other);
    let error = reader.gather(&[0, 1]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("rows [0, 1] of the list do not make one batch")
    );
}

#[test]
fn a_directory_is_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let at = |capacity| LazyMemmapStorage::new(capacity).at(directory.path().join("a/b"));
    let storage = at(CAPACITY).unwrap();
    storage.write(8, &frames(0..4)).unwrap();
    let error = at(CAPACITY).unwrap_err();
    assert!(matches!(
        error,
        ReplayError::Store(StoreError::InUse { .. })
    ));
    drop(storage);

    let storage = at(CAPACITY).unwrap();
    let recovered = storage.recovered().unwrap();
    assert_eq!(recovered.rows, [0..2, 8..10]);
    assert_eq!((recovered.cursor, recovered.written), (2, 4));
    assert_eq!(storage.read().gather(&[8, 9, 0, 1]).unwrap(), frames(0..4));
    assert!(storage.prepare(&frames(0..1).exclude(&["action"])).is_err());
    drop(storage);

    let error = at(CAPACITY + 1).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("layout.json holds 10 rows, expected 11 rows")
    );
    for (text, expected) in [
        ("{", "expected JSON"),
        ("{}", "expected windrow storage 3"),
        (
            r#"{"format":"windrow storage 3","capacity":10,"leaves":[{"key":["a"],"dtype":"f3","shape":[]}]}"#,
            "expected leaves",
        ),
    ] {
        fs::write(directory.path().join("a/b/layout.json"), text).unwrap();
        let error = at(CAPACITY).unwrap_err().to_string();
        assert!(
            error.contains("layout.json is damaged") && error.contains(expected),
            "{error}"
        );
    }
}

#[test]
fn a_directory_is_one_storage_s_from_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let at = || LazyMemmapStorage::new(CAPACITY).at(directory.path());
    let first = at().unwrap();
    let refused = at().unwrap_err().to_string();
    let expected = format!(
        "{} is in use by another storage",
        directory.path().display()
    );
    assert_eq!(refused, expected);
    first.write(0, &frames(0..3)).unwrap();
    assert_eq!(at().unwrap_err().to_string(), expected);
    drop(first);
    assert_eq!(
        at().unwrap().read().gather(&[0, 1, 2]).unwrap(),
        frames(0..3)
    );
}

#[test]
fn a_directory_that_was_removed_before_the_first_write_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scratch");
    let storage = LazyMemmapStorage::new(CAPACITY).at(&path).unwrap();
    fs::remove_dir_all(&path).unwrap();
    storage.write(0, &frames(0..3)).unwrap();
    assert_eq!(storage.read().gather(&[0, 1, 2]).unwrap(), frames(0..3));
    // And it is locked again.
    assert!(LazyMemmapStorage::new(CAPACITY).at(&path).is_err());
    // Where another was faster, it is the other's.
    let storage = LazyMemmapStorage::new(CAPACITY)
        .at(path.join("inner"))
        .unwrap();
    fs::remove_dir_all(path.join("inner")).unwrap();
    let other = LazyMemmapStorage::new(CAPACITY)
        .at(path.join("inner"))
        .unwrap();
    assert!(storage.write(0, &frames(0..3)).is_err());
    other.write(0, &frames(3..6)).unwrap();
    assert_eq!(other.read().gather(&[0, 1, 2]).unwrap(), frames(3..6));
}

#[test]
fn a_file_of_others_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rows.bin");
    fs::write(&file, "precious").unwrap();
    let storage = LazyMemmapStorage::new(CAPACITY)
        .at(directory.path())
        .unwrap();
    let refused = storage.write(0, &frames(0..3)).unwrap_err();
    assert!(matches!(&refused, ReplayError::Misfit { path, .. } if *path == file));
    assert_eq!(fs::read_to_string(file).unwrap(), "precious");
}

#[test]
fn a_storage_refuses_a_damaged_file_of_runs() {
    let directory = tempfile::tempdir().unwrap();
    let at = || LazyMemmapStorage::new(CAPACITY).at(directory.path());
    at().unwrap().write(0, &frames(0..3)).unwrap();
    fs::write(directory.path().join("runs.bin"), "12345").unwrap();
    let error = at().unwrap_err().to_string();
    let expected =
        "runs.bin is damaged: expected the trajectories of 10 rows, got 5 bytes of others";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn a_storage_refuses_the_file_of_runs_of_another() {
    let of_two = [2, 3].map(|count| {
        let directory = tempfile::tempdir().unwrap();
        let storage = LazyMemmapStorage::new(CAPACITY);
        let storage = storage.at(directory.path()).unwrap();
        storage.write(0, &frames(0..count)).unwrap();
        directory
    });
    let [one, other] = of_two.each_ref().map(|it| it.path().join("runs.bin"));
    std::fs::copy(other, one).unwrap();
    let opened = LazyMemmapStorage::new(CAPACITY).at(of_two[0].path());
    let error = opened.unwrap_err().to_string();
    assert!(
        error.ends_with("runs.bin holds the trajectories of another storage, expected those of rows.bin beside it: restore both files from one copy"),
        "{error}"
    );
}

#[test]
fn nested_dicts_keep_dimensions_of_their_own() {
    let grouped = || {
        let mut frames = frames(0..4);
        let observation = Tensor::zeros(DType::F32, [4, 2, 3]).unwrap();
        frames.set(("agents", "observation"), observation).unwrap();
        frames
            .set_groups(&[("agents".into(), Shape::from_slice(&[2]))])
            .unwrap();
        frames
    };
    let directory = tempfile::tempdir().unwrap();
    let mapped = || LazyMemmapStorage::new(CAPACITY).at(directory.path());
    let storages: [Box<dyn Storage>; 3] = [
        Box::new(ListStorage::new(CAPACITY)),
        Box::new(LazyTensorStorage::new(CAPACITY)),
        Box::new(mapped().unwrap()),
    ];
    for storage in storages {
        storage.write(0, &grouped()).unwrap();
        let read = storage.read();
        assert_eq!(read.gather(&[0, 1, 2, 3]).unwrap(), grouped());
        let keys = [("next", "reward").into()];
        assert!(read.gather_keys(&[0], &keys).unwrap().groups().is_empty());
    }
    let again = mapped().unwrap();
    assert_eq!(again.read().gather(&[0, 1, 2, 3]).unwrap(), grouped());
}

#[test]
fn a_maker_that_died_early_leaves_nothing_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let at = || LazyMemmapStorage::new(CAPACITY).at(directory.path());
    drop(at().unwrap());
    let storage = at().unwrap();
    storage.prepare(&frames(0..1)).unwrap();
    assert!(storage.recovered().is_none());
    drop(storage);
    // The layout is there, and the rows not yet.
    for capacity in [CAPACITY, CAPACITY - 1] {
        fs::remove_file(directory.path().join("rows.bin")).unwrap();
        fs::write(
            directory.path().join("rows.tmp"),
            "of one that died earlier",
        )
        .unwrap();
        let storage = LazyMemmapStorage::new(capacity).at(directory.path());
        let storage = storage.unwrap();
        assert!(storage.recovered().is_none());
        storage.write(0, &frames(0..2)).unwrap();
        assert_eq!(storage.read().filled(), [0..2]);
        drop(storage);
        let again = LazyMemmapStorage::new(capacity).at(directory.path());
        assert_eq!(again.unwrap().recovered().unwrap().written, 2);
        assert!(!directory.path().join("rows.tmp").exists());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_first_write_without_room_on_the_disk_leaves_the_directory_to_others() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let at = |capacity| {
        LazyMemmapStorage::new(capacity)
            .at(directory.path())
            .unwrap()
    };
    let mut large = TensorDict::new([1]);
    let pixels = Tensor::zeros(DType::U8, [1, 1 << 20]).unwrap();
    large.set("pixels", pixels).unwrap();
    let error = at(u32::MAX as usize).write(0, &large).unwrap_err();
    assert!(error.to_string().contains("make room"), "{error}");
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
    let left = left.into_iter().map(|file| file.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["lock"]);
    let small = at(CAPACITY);
    small.write(0, &frames(0..3)).unwrap();
    drop(small);
    assert_eq!(
        at(CAPACITY).read().gather(&[0, 1, 2]).unwrap(),
        frames(0..3)
    );
}
