//! Checkpoints: what was saved is what is loaded, and what is damaged is told.
#![allow(clippy::single_range_in_vec_init)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    Checkpoint, CheckpointWriter, LazyMemmapStorage, LazyTensorStorage, ListStorage, ReplayError,
    Storage,
};

const CAPACITY: usize = 12;

fn frames(numbers: std::ops::Range<i64>) -> TensorDict {
    let n = (numbers.end - numbers.start) as usize;
    let action = Tensor::arange(numbers).unwrap();
    let done: Vec<bool> = (0..n).map(|number| number % 3 == 0).collect();
    let mut dict = TensorDict::new([n]);
    dict.set("action", action).unwrap();
    dict.set(("next", "done"), Tensor::from_vec(done, [n, 1]).unwrap())
        .unwrap();
    dict
}

fn save(storage: &dyn Storage, directory: &Path, number: u64) -> Result<(), ReplayError> {
    let mut writer = CheckpointWriter::begin(directory)?;
    writer.section("number", json!(number));
    writer.dict("extra", &frames(0..2))?;
    writer.rows(storage.capacity(), &*storage.read())?;
    writer.finish()
}

fn load(storage: &dyn Storage, directory: &Path) -> Result<u64, ReplayError> {
    let checkpoint = Checkpoint::open(directory)?;
    checkpoint.rows(storage)?;
    Ok(checkpoint.section("number").as_u64().unwrap())
}

fn contents(storage: &dyn Storage) -> (Vec<u32>, TensorDict) {
    let reader = storage.read();
    let rows: Vec<u32> = reader.filled().into_iter().flatten().collect();
    let frames = reader.gather(&rows).unwrap();
    (rows, frames)
}

/// All files of a checkpoint.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn rows_come_back_into_any_storage() {
    let directory = tempfile::tempdir().unwrap();
    let storages: [&dyn Storage; 3] = [
        &LazyTensorStorage::new(CAPACITY),
        &LazyMemmapStorage::new(CAPACITY),
        &ListStorage::new(CAPACITY),
    ];
    for (number, from) in (0..).zip(storages) {
        from.write(9, &frames(0..5)).unwrap();
        from.write(5, &frames(20..22)).unwrap();
        save(from, directory.path(), number).unwrap();
        let into: [&dyn Storage; 3] = [
            &LazyTensorStorage::new(CAPACITY),
            &LazyMemmapStorage::new(CAPACITY),
            &ListStorage::new(CAPACITY),
        ];
        for into in into {
            // What was there before is gone.
            into.write(0, &frames(90..102)).unwrap();
            assert_eq!(load(into, directory.path()).unwrap(), number);
            assert_eq!(contents(into), contents(from));
        }
    }
    // The last one alone is left.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn sections_and_dicts_come_back_and_missing_ones_are_told() {
    let directory = tempfile::tempdir().unwrap();
    save(&LazyTensorStorage::new(CAPACITY), directory.path(), 7).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.section("number"), &json!(7));
    assert_eq!(checkpoint.section("other"), &Value::Null);
    assert!(checkpoint.has_dict("extra") && !checkpoint.has_dict("other"));
    assert_eq!(checkpoint.dict("extra").unwrap(), frames(0..2));
    let error = checkpoint.dict("other").unwrap_err().to_string();
    assert!(error.contains("other.safetensors"), "{error}");
    // Nothing was stored, and nothing is there afterwards.
    let storage = LazyTensorStorage::new(CAPACITY);
    storage.write(0, &frames(0..2)).unwrap();
    checkpoint.rows(&storage).unwrap();
    assert!(storage.read().filled().is_empty());
}

#[test]
fn a_list_of_unlike_frames_is_saved_in_as_many_files_as_it_takes() {
    let directory = tempfile::tempdir().unwrap();
    let storage = ListStorage::new(CAPACITY);
    storage.write(0, &frames(0..3)).unwrap();
    let mut other = TensorDict::new([1]);
    other
        .set("word", Tensor::arange(0..5).unwrap().view([1, 5]).unwrap())
        .unwrap();
    storage.write(3, &other).unwrap();
    storage.write(4, &frames(8..9)).unwrap();
    save(&storage, directory.path(), 0).unwrap();
    let restored = ListStorage::new(CAPACITY);
    load(&restored, directory.path()).unwrap();
    let reader = restored.read();
    assert_eq!(reader.filled(), [0..5]);
    assert_eq!(reader.gather(&[0, 1, 2]).unwrap(), frames(0..3));
    assert_eq!(reader.gather(&[3]).unwrap(), other);
    assert_eq!(reader.gather(&[4]).unwrap(), frames(8..9));
}

#[test]
fn one_changed_byte_or_a_missing_end_is_found_and_its_file_named() {
    let directory = tempfile::tempdir().unwrap();
    let storage = LazyTensorStorage::new(CAPACITY);
    storage.write(0, &frames(0..9)).unwrap();
    save(&storage, directory.path(), 3).unwrap();
    let files = files(directory.path());
    assert_eq!(files.len(), 3);
    for file in files {
        let bytes = fs::read(&file).unwrap();
        let mut damages: Vec<Vec<u8>> = (0..bytes.len())
            .map(|at| {
                let mut changed = bytes.clone();
                changed[at] ^= 0x10;
                changed
            })
            .collect();
        damages.push(bytes[..bytes.len() - 1].to_vec());
        damages.push(Vec::new());
        for damaged in damages {
            fs::write(&file, damaged).unwrap();
            let error = Checkpoint::open(directory.path()).unwrap_err();
            assert!(
                matches!(&error, ReplayError::Damaged { path, .. } if *path == file),
                "{error}"
            );
        }
        fs::remove_file(&file).unwrap();
        let error = Checkpoint::open(directory.path()).unwrap_err();
        assert!(
            matches!(&error, ReplayError::Io { path, .. } if *path == file),
            "{error}"
        );
        fs::write(&file, bytes).unwrap();
    }
    assert_eq!(
        load(&LazyTensorStorage::new(CAPACITY), directory.path()).unwrap(),
        3
    );
}

#[test]
fn a_checkpoint_that_is_not_finished_leaves_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    let storage = LazyTensorStorage::new(CAPACITY);
    storage.write(0, &frames(0..4)).unwrap();
    save(&storage, directory.path(), 1).unwrap();

    let mut writer = CheckpointWriter::begin(directory.path()).unwrap();
    writer.rows(CAPACITY, &*storage.read()).unwrap();
    drop(writer);
    assert_eq!(
        load(&LazyTensorStorage::new(CAPACITY), directory.path()).unwrap(),
        1
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);

    // A process that dies has no time to tidy up; the next checkpoint does it.
    let left = directory.path().join("windrow-00000007");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("rows-0.safetensors"), "half of them").unwrap();
    assert_eq!(
        load(&LazyTensorStorage::new(CAPACITY), directory.path()).unwrap(),
        1
    );
    save(&storage, directory.path(), 2).unwrap();
    assert_eq!(
        load(&LazyTensorStorage::new(CAPACITY), directory.path()).unwrap(),
        2
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn a_checkpoint_that_another_is_begun_beside_is_finished() {
    let directory = tempfile::tempdir().unwrap();
    let storage = LazyTensorStorage::new(CAPACITY);
    storage.write(0, &frames(0..4)).unwrap();
    save(&storage, directory.path(), 1).unwrap();
    let mut slow = CheckpointWriter::begin(directory.path()).unwrap();
    slow.rows(CAPACITY, &*storage.read()).unwrap();
    slow.section("number", json!(2));
    save(&storage, directory.path(), 3).unwrap();
    slow.finish().unwrap();
    let restored = LazyTensorStorage::new(CAPACITY);
    assert_eq!(load(&restored, directory.path()).unwrap(), 2);
    assert_eq!(contents(&restored), contents(&storage));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn what_others_have_put_into_the_directory_stays() {
    let directory = tempfile::tempdir().unwrap();
    let folders = [
        "00000000",
        "00000042",
        "20251122",
        "windrow-00000003",
        "windrow-notes",
    ];
    for folder in folders {
        fs::create_dir(directory.path().join(folder)).unwrap();
        fs::write(directory.path().join(folder).join("results.csv"), "1").unwrap();
    }
    fs::write(directory.path().join("00000042/rows-0.safetensors"), "2").unwrap();
    fs::write(directory.path().join("notes.txt"), "3").unwrap();
    let before = files(directory.path());
    let storage = LazyTensorStorage::new(CAPACITY);
    for number in 0..6 {
        storage.write(0, &frames(0..4)).unwrap();
        save(&storage, directory.path(), number).unwrap();
        // One that its process did not finish.
        drop(CheckpointWriter::begin(directory.path()).unwrap());
    }
    let after = files(directory.path());
    assert!(before.iter().all(|file| after.contains(file)), "{after:?}");
    // The manifest and the two files of the last checkpoint.
    assert_eq!(after.len(), before.len() + 3);
}

/// The text of a manifest with this body.
fn manifest(body: &Value) -> String {
    let body = body.to_string();
    let crc32 = crc32fast::hash(body.as_bytes());
    format!("{{\"crc32\":\"{crc32:08x}\",\n\"manifest\":{body}}}\n")
}

#[test]
fn a_checkpoint_whose_manifest_names_no_folder_is_loaded_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manifest.json");
    let storage = LazyTensorStorage::new(CAPACITY);
    storage.write(0, &frames(0..4)).unwrap();
    save(&storage, directory.path(), 1).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let mut body = serde_json::from_str::<Value>(&text).unwrap()["manifest"].take();
    let mut write = |folder: Option<&str>| {
        let body = body.as_object_mut().unwrap();
        match folder {
            Some(folder) => body.insert("folder".to_owned(), json!(folder)),
            None => body.remove("folder"),
        };
        fs::write(&path, manifest(&json!(body))).unwrap();
    };
    // No name leads out of the directory.
    for folder in ["", "..", "a/b", "/tmp"] {
        write(Some(folder));
        let error = Checkpoint::open(directory.path()).unwrap_err();
        assert!(matches!(error, ReplayError::Damaged { .. }), "{error}");
    }
    write(None);
    let [new, old] = ["windrow-00000000", "00000000"].map(|name| directory.path().join(name));
    fs::rename(&new, &old).unwrap();
    let restored = LazyTensorStorage::new(CAPACITY);
    assert_eq!(load(&restored, directory.path()).unwrap(), 1);
    assert_eq!(contents(&restored), contents(&storage));
    fs::write(old.join("notes.safetensors"), "3").unwrap();
    save(&storage, directory.path(), 2).unwrap();
    // But for what the manifest did not name.
    assert_eq!(files(&old), [old.join("notes.safetensors")]);
    assert_eq!(load(&restored, directory.path()).unwrap(), 2);
}

#[test]
fn a_manifest_of_something_else_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manifest.json");
    fs::write(&path, "{\"name\":\"my site\"}").unwrap();
    let error = save(&LazyTensorStorage::new(CAPACITY), directory.path(), 1).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("manifest.json holds text that does not begin like one, expected the manifest of a checkpoint"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"name\":\"my site\"}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    // One of ours that is damaged has nothing to lose.
    fs::write(&path, "{\"crc32\":\"0").unwrap();
    save(&LazyTensorStorage::new(CAPACITY), directory.path(), 1).unwrap();
    assert_eq!(
        load(&LazyTensorStorage::new(CAPACITY), directory.path()).unwrap(),
        1
    );
}

#[test]
fn a_storage_of_another_kind_is_refused_and_keeps_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let storage = LazyTensorStorage::new(CAPACITY);
    storage.write(0, &frames(0..4)).unwrap();
    save(&storage, directory.path(), 1).unwrap();

    let error = load(&LazyTensorStorage::new(5), directory.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("manifest.json holds 12 rows, expected 5 rows")
    );
    let other = LazyTensorStorage::new(CAPACITY);
    let kept = frames(0..4).exclude(&["action"]);
    other.write(0, &kept).unwrap();
    let error = load(&other, directory.path()).unwrap_err();
    assert!(matches!(error, ReplayError::Store(_)), "{error}");
    assert_eq!(contents(&other).1, kept);
    let error = Checkpoint::open(directory.path().join("nowhere")).unwrap_err();
    assert!(error.to_string().starts_with("failed to read"), "{error}");
}
