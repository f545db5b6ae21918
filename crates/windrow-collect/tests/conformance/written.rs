//! A collector that writes, from its start to its end, while weights change.

use std::sync::Arc;

use tensordict::TensorDict;

use super::cell::{Cell, STEPS, WHOLE};
use super::episodes;
use super::frames::{Frame, MAX_LENGTH, frames};
use super::recorder::Recorder;
use super::run::check_all;
use super::stamp::weights;

/// Runs in the background to the end, and by iterating, and checks what was written; `whole`:
/// episodes only.
pub(crate) fn check(cell: Cell, whole: bool) {
    let sink = Recorder::new();
    let mut collector = cell.writing(&sink);
    collector.start().unwrap();
    for version in 1..=5 {
        let published = collector.update_policy_weights(&weights(version as f32));
        assert_eq!(published.unwrap(), version);
    }
    sink.await_detached();
    collector.shutdown().unwrap();
    let stats = collector.stats();
    assert_eq!(stats.batches as usize, WHOLE + 1);
    check_written(cell, whole, &sink.batches(), stats.dropped_frames as usize);

    let sink = Recorder::new();
    let mut collector = cell.writing(&sink);
    let delivered: Vec<TensorDict> = collector.by_ref().map(|b| b.unwrap().detach()).collect();
    assert_eq!(delivered.len(), WHOLE + 1);
    let written: Vec<TensorDict> = delivered.into_iter().filter(|b| b.numel() > 0).collect();
    assert_eq!(sink.batches(), written);
    let dropped = collector.stats().dropped_frames as usize;
    check_written(cell, whole, &written, dropped);
}

fn check_written(cell: Cell, whole: bool, batches: &[TensorDict], dropped: usize) {
    assert!(
        batches
            .iter()
            .all(|batch| !batch.contains_key(("collector", "mask")))
    );
    let all: Vec<Frame> = batches.iter().flat_map(frames).collect();
    assert!(all.iter().all(|frame| frame.weight == frame.version as f32));
    assert_eq!(all.len() + dropped, cell.total_frames());
    if !whole {
        let most = STEPS * cell.envs_per_worker();
        assert!(batches.iter().all(|batch| batch.numel() <= most));
        return check_all(cell, &all);
    }
    assert!(batches.iter().all(|batch| batch.ndim() == 1));
    let episodes: Vec<Vec<Frame>> = all
        .split_inclusive(|frame| frame.done)
        .map(<[Frame]>::to_vec)
        .collect();
    episodes::check_whole(&episodes);
    // What is left over is unfinished.
    let envs = cell.workers * cell.envs_per_worker();
    assert!(dropped <= envs * MAX_LENGTH as usize);
}

impl Cell {
    /// A collector that comes to an end by itself, and writes to `sink`.
    fn writing(self, sink: &Arc<Recorder>) -> windrow_collect::Collector {
        self.builder()
            .total_frames(self.total_frames() as u64)
            .allow_partial_batch(true)
            .replay_buffer(Arc::clone(sink))
            .build()
            .unwrap()
    }
}
