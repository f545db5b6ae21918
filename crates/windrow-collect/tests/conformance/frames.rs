//! Frames as a ledger tells them, read from a batch of any shape, and what must hold of them.
#![allow(dead_code, reason = "each test target uses some of it")]

use std::collections::{BTreeMap, HashMap, HashSet};

use tensordict::{Element, TensorDict};
use windrow_env::testing::LedgerEnv;

/// Longest episode of the ledgers in these tests.
pub(crate) const MAX_LENGTH: i64 = 6;

/// One frame as it was delivered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    /// Environment, episode and step.
    pub(crate) obs: [i64; 3],
    pub(crate) next_obs: [i64; 3],
    pub(crate) action: i64,
    pub(crate) reward: f32,
    pub(crate) done: bool,
    pub(crate) terminated: bool,
    pub(crate) truncated: bool,
    pub(crate) traj_id: i64,
    /// `policy_version`; 0 where it is not tracked.
    pub(crate) version: i64,
    /// What the policy says of its weights; 0 where it says nothing.
    pub(crate) weight: f32,
}

impl Frame {
    pub(crate) fn env(&self) -> i64 {
        self.obs[0]
    }
}

fn values<T: Element>(batch: &TensorDict, key: &[&str]) -> Vec<T> {
    batch.get(key).unwrap().to_vec().unwrap()
}

fn or_zeros<T: Element + Default>(batch: &TensorDict, key: &str) -> Vec<T> {
    match batch.get(key) {
        Ok(tensor) => tensor.to_vec().unwrap(),
        Err(_) => vec![T::default(); batch.numel()],
    }
}

/// Where there is a frame, row-major.
pub(crate) fn mask(batch: &TensorDict) -> Vec<bool> {
    match batch.get(("collector", "mask")) {
        Ok(mask) => {
            assert_eq!(mask.shape(), batch.batch_size());
            mask.to_vec().unwrap()
        }
        Err(_) => vec![true; batch.numel()],
    }
}

/// The frames of a batch, row-major, so that those of an environment are in the order of time.
pub(crate) fn frames(batch: &TensorDict) -> Vec<Frame> {
    let (now, next) = (
        values::<i64>(batch, &["observation"]),
        values::<i64>(batch, &["next", "observation"]),
    );
    let (action, ids) = (
        values::<i64>(batch, &["action"]),
        values::<i64>(batch, &["collector", "traj_ids"]),
    );
    let reward = values::<f32>(batch, &["next", "reward"]);
    let flag = |name| values::<bool>(batch, &["next", name]);
    let (done, terminated, truncated) = (flag("done"), flag("terminated"), flag("truncated"));
    let (version, weight) = (
        or_zeros::<i64>(batch, "policy_version"),
        or_zeros::<f32>(batch, "weight"),
    );
    for name in ["done", "terminated", "truncated"] {
        assert!(values::<bool>(batch, &[name]).iter().all(|flag| !flag));
    }
    let record = |all: &[i64], i: usize| [all[3 * i], all[3 * i + 1], all[3 * i + 2]];
    let there = mask(batch);
    if batch.contains_key("text") {
        for (key, records) in [(&["text"][..], &now), (&["next", "text"], &next)] {
            for (i, text) in batch.get(key).unwrap().strings().enumerate() {
                let expected = match there[i] {
                    true => LedgerEnv::text(record(records, i)),
                    false => String::new(),
                };
                assert_eq!(String::from_utf8_lossy(text), expected);
            }
        }
    }
    (0..batch.numel())
        .filter(|&i| there[i])
        .map(|i| Frame {
            obs: record(&now, i),
            next_obs: record(&next, i),
            action: action[i],
            reward: reward[i],
            done: done[i],
            terminated: terminated[i],
            truncated: truncated[i],
            traj_id: ids[i],
            version: version[i],
            weight: weight[i],
        })
        .collect()
}

/// Frames of each environment, in the order in which they came.
pub(crate) fn by_env(frames: impl IntoIterator<Item = Frame>) -> BTreeMap<i64, Vec<Frame>> {
    let mut envs: BTreeMap<i64, Vec<Frame>> = BTreeMap::new();
    for frame in frames {
        envs.entry(frame.env()).or_default().push(frame);
    }
    envs
}

/// Whether a frame tells the truth about itself.
pub(crate) fn check_frame(frame: &Frame, max_length: i64) {
    let [env, episode, t] = frame.obs;
    assert_eq!(frame.next_obs, [env, episode, t + 1], "{frame:?}");
    assert_eq!(frame.reward, LedgerEnv::reward(frame.obs, frame.action));
    let ends = t + 1 == LedgerEnv::length(env, episode, max_length);
    let (terminated, truncated) = LedgerEnv::ending(env, episode);
    assert_eq!(frame.terminated, ends && terminated, "{frame:?}");
    assert_eq!(frame.truncated, ends && truncated, "{frame:?}");
    assert_eq!(frame.done, ends, "{frame:?}");
}

/// Whether the frames of one environment follow each other without a gap, from its first episode's
/// first step on.
pub(crate) fn check_contiguous(frames: &[Frame], max_length: i64) {
    let (mut episode, mut t) = (0, 0);
    let mut ids = HashSet::new();
    let mut current = None;
    for frame in frames {
        check_frame(frame, max_length);
        assert_eq!(frame.obs[1..], [episode, t], "{frame:?}");
        if t == 0 {
            assert!(ids.insert(frame.traj_id), "an id twice: {frame:?}");
            current = Some(frame.traj_id);
        }
        assert_eq!(Some(frame.traj_id), current, "{frame:?}");
        (episode, t) = match frame.done {
            true => (episode + 1, 0),
            false => (episode, t + 1),
        };
    }
}

/// All frames of `batches`. The batches at the places `rollouts` are rollouts, after which episodes
/// go on under new ids; the frames that this returns keep the old ids.
pub(crate) fn with_old_ids(batches: &[TensorDict], rollouts: &[usize]) -> Vec<Frame> {
    let (mut all, mut ids) = (Vec::new(), HashSet::new());
    let (mut old, mut last) = (HashMap::new(), HashMap::<i64, (usize, Frame)>::new());
    for (place, batch) in batches.iter().enumerate() {
        for mut frame in frames(batch) {
            let before = last.get(&frame.env()).filter(|(_, frame)| !frame.done);
            if let Some((from, before)) = before {
                let is_apart = *from < place && rollouts.contains(from);
                assert_eq!(frame.traj_id != before.traj_id, is_apart, "{frame:?}");
                if is_apart {
                    assert!(!ids.contains(&frame.traj_id), "an id twice: {frame:?}");
                    let before = before.traj_id;
                    old.insert(frame.traj_id, old.get(&before).copied().unwrap_or(before));
                }
            }
            last.insert(frame.env(), (place, frame.clone()));
            ids.insert(frame.traj_id);
            frame.traj_id = old.get(&frame.traj_id).copied().unwrap_or(frame.traj_id);
            all.push(frame);
        }
    }
    all
}

/// Whether the frames of one environment are whole episodes with gaps between them only: after a
/// reset or a loss an episode stops where it was, and another begins with its first step under a
/// new trajectory id.
pub(crate) fn check_pieces(frames: &[Frame], max_length: i64) -> usize {
    let mut ids = HashSet::new();
    let mut before: Option<&Frame> = None;
    let mut cuts = 0;
    for frame in frames {
        check_frame(frame, max_length);
        match before {
            Some(last) if !last.done && frame.traj_id == last.traj_id => {
                assert_eq!(frame.obs, last.next_obs, "{frame:?} after {last:?}");
            }
            _ => {
                assert_eq!(frame.obs[2], 0, "{frame:?} after {before:?}");
                assert!(ids.insert(frame.traj_id), "an id twice: {frame:?}");
                cuts += usize::from(before.is_some_and(|last| !last.done));
            }
        }
        before = Some(frame);
    }
    cuts
}

/// Whether no two environments share a trajectory id, and every id belongs to one episode.
pub(crate) fn check_ids(frames: &[Frame]) {
    let mut owners: HashMap<i64, (i64, i64)> = HashMap::new();
    for frame in frames {
        let owner = (frame.env(), frame.obs[1]);
        assert_eq!(
            *owners.entry(frame.traj_id).or_insert(owner),
            owner,
            "{frame:?}"
        );
    }
}
