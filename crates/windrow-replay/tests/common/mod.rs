//! Frames that say which they are: stream, episode, step.
#![allow(dead_code)]

use tensordict::{Tensor, TensorDict};

/// Which frame it is: stream, episode of that stream, step of that episode.
pub(crate) type Stamp = [i64; 3];

/// Where one source of frames stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) stamp: Stamp,
}

impl Stream {
    pub(crate) fn new(stream: i64) -> Self {
        Self {
            stamp: [stream, 0, 0],
        }
    }

    /// The next frame.
    pub(crate) fn step(&mut self) -> Stamp {
        let stamp = self.stamp;
        self.stamp = match is_last(stamp) {
            true => [stamp[0], stamp[1] + 1, 0],
            false => [stamp[0], stamp[1], stamp[2] + 1],
        };
        stamp
    }
}

/// Steps of an episode: 1 to 12.
pub(crate) fn length([stream, episode, _]: Stamp) -> i64 {
    1 + (stream * 7 + episode * 5 + episode * episode * 3) % 12
}

/// Whether the episode ends with this frame.
pub(crate) fn is_last(stamp: Stamp) -> bool {
    stamp[2] + 1 == length(stamp)
}

/// Streams from this one on have the same ids as stream 0.
pub(crate) const ALIKE: i64 = 100;

/// The id of its trajectory.
pub(crate) fn id_of([stream, episode, _]: Stamp) -> i64 {
    match stream {
        ALIKE.. => episode,
        _ => stream * 1_000_000 + episode,
    }
}

/// Numbers that only this frame has.
pub(crate) fn payload([stream, episode, t]: Stamp) -> [i64; 4] {
    let x = stream * 1_000_003 + episode * 10_007 + t;
    [x, x ^ 0x5555, x.wrapping_mul(31), !x]
}

/// A text that only this frame has: of any length, now and then none.
pub(crate) fn text([stream, episode, t]: Stamp) -> String {
    let times = (stream + 3 * episode + 5 * t) % 9;
    format!("{stream} {episode} {t}; ").repeat(times as usize)
}

/// Frames `[rows, steps]`, flat when there is one row; with trajectory ids or without.
pub(crate) fn batch(rows: &[Vec<Stamp>], with_ids: bool) -> TensorDict {
    let stamps: Vec<Stamp> = rows.concat();
    let size: Vec<usize> = match rows {
        [row] => vec![row.len()],
        _ => vec![rows.len(), rows[0].len()],
    };
    let shaped = |last: &[usize]| [&size[..], last].concat();
    let mut batch = TensorDict::new(&size);
    let mut set = |key: &[&str], tensor: Tensor| {
        batch.set(key, tensor).unwrap();
    };
    let flat: Vec<i64> = stamps.concat();
    set(&["stamp"], Tensor::from_vec(flat, shaped(&[3])).unwrap());
    let numbers: Vec<i64> = stamps.iter().flat_map(|&stamp| payload(stamp)).collect();
    set(
        &["next", "payload"],
        Tensor::from_vec(numbers, shaped(&[4])).unwrap(),
    );
    let texts: Vec<String> = stamps.iter().map(|&stamp| text(stamp)).collect();
    set(
        &["next", "text"],
        Tensor::from_strings(&texts, shaped(&[])).unwrap(),
    );
    let done: Vec<bool> = stamps.iter().map(|&stamp| is_last(stamp)).collect();
    set(
        &["next", "done"],
        Tensor::from_vec(done, shaped(&[1])).unwrap(),
    );
    let first: Vec<bool> = stamps.iter().map(|stamp| stamp[2] == 0).collect();
    set(&["is_init"], Tensor::from_vec(first, shaped(&[1])).unwrap());
    if with_ids {
        let ids: Vec<i64> = stamps.iter().map(|&stamp| id_of(stamp)).collect();
        set(
            &["collector", "traj_ids"],
            Tensor::from_vec(ids, shaped(&[])).unwrap(),
        );
    }
    batch
}

/// Which frames `batch` consists of; each must be whole.
pub(crate) fn stamps(batch: &TensorDict) -> Vec<Stamp> {
    let stamps = batch.get("stamp").unwrap().to_vec::<i64>().unwrap();
    let payloads = batch.get(("next", "payload")).unwrap();
    let payloads = payloads.to_vec::<i64>().unwrap();
    let stamps: Vec<Stamp> = stamps.as_chunks().0.to_vec();
    for (&stamp, found) in stamps.iter().zip(payloads.as_chunks::<4>().0) {
        assert_eq!(*found, payload(stamp), "a torn frame: {stamp:?}");
    }
    let texts = batch.get(("next", "text")).unwrap();
    for (&stamp, found) in stamps.iter().zip(texts.strings()) {
        assert_eq!(found, text(stamp).as_bytes(), "a torn frame: {stamp:?}");
    }
    stamps
}

/// The entry `index`.
pub(crate) fn index(batch: &TensorDict) -> Vec<i64> {
    batch.get("index").unwrap().to_vec().unwrap()
}

/// One flag a frame.
pub(crate) fn flags(batch: &TensorDict, key: &[&str]) -> Vec<bool> {
    batch.get(key).unwrap().to_vec().unwrap()
}
