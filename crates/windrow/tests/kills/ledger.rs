//! What was delivered, against what every ledger says.

use std::collections::{BTreeMap, HashMap};

use windrow::envs::testing::LedgerEnv;
use windrow::tensordict::Element;
use windrow::{Tensor, TensorDict};

use crate::cell::Mode;
use crate::env::{MAX_LENGTH, PAYLOAD, payload};
use crate::policy;

/// Everything that one collector has delivered.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) rows: u64,
    /// Newest version of weights that has acted.
    pub(crate) newest: i64,
    pub(crate) violations: Vec<String>,
    /// Of each trajectory, by its id, the frame that was delivered last, and whether it was the
    /// end.
    trajectories: HashMap<i64, ([i64; 3], bool)>,
    /// Of each environment, which is another one after each loss, the steps of its episodes that
    /// were delivered: a bit each.
    episodes: HashMap<i64, BTreeMap<i64, u32>>,
}

/// One frame, beyond what its own values have to be.
struct Frame {
    record: [i64; 3],
    traj_id: i64,
    done: bool,
}

impl Ledger {
    /// Books of all that a collector has delivered, batch by batch.
    pub(crate) fn of(batches: &[TensorDict], mode: Mode) -> Self {
        let mut ledger = Self::default();
        batches.iter().for_each(|batch| ledger.enter(batch));
        ledger.close(mode);
        ledger
    }

    /// Enters a batch in the order in which it was delivered.
    fn enter(&mut self, batch: &TensorDict) {
        for frame in self.frames(batch) {
            self.rows += 1;
            let Frame {
                record,
                traj_id,
                done,
            } = frame;
            let [env, episode, t] = record;
            let episodes = self.episodes.entry(env).or_default();
            let steps = episodes.entry(episode).or_default();
            // None of a row that nobody has written.
            let step = u32::try_from(t).ok().and_then(|t| 1_u32.checked_shl(t));
            let step = step.unwrap_or(0);
            let again = *steps & step != 0;
            *steps |= step;
            if again {
                self.accuse(format!("I2: {record:?} was delivered twice"));
            }
            let before = self.trajectories.insert(traj_id, (record, done));
            let follows = match before {
                None => t == 0,
                Some((last, ended)) => !ended && record == [last[0], last[1], last[2] + 1],
            };
            if !follows {
                self.accuse(format!(
                    "I3: {record:?} follows {before:?} in trajectory {traj_id}"
                ));
            }
        }
    }

    /// Closes the books: what an environment has delivered is a whole beginning of what it has to
    /// tell.
    fn close(&mut self, mode: Mode) {
        let environments = std::mem::take(&mut self.episodes);
        for (env, episodes) in environments {
            let last = episodes.len() as i64 - 1;
            for episode in 0..=last {
                let expected = LedgerEnv::length(env, episode, MAX_LENGTH);
                let steps = episodes.get(&episode).copied().unwrap_or(0);
                let got = i64::from(steps.count_ones());
                // The last one may be cut, by a loss or by the end, where no whole trajectories are
                // delivered.
                let cut = episode == last && mode != Mode::Trajectories;
                if got != expected && !(cut && (1..expected).contains(&got)) {
                    self.accuse(format!(
                        "I3: environment {env} delivered {got} of {expected} frames of episode {episode} of {last}"
                    ));
                }
            }
        }
    }

    pub(crate) fn accuse(&mut self, violation: String) {
        self.violations.push(violation);
    }

    /// The frames of a batch in the order of memory; looks at each value of each of them.
    fn frames(&mut self, batch: &TensorDict) -> Vec<Frame> {
        let there = match batch.get(("collector", "mask")) {
            Ok(mask) => mask.to_vec::<bool>().unwrap(),
            Err(_) => vec![true; batch.numel()],
        };
        let columns = Columns::of(batch);
        let present = (0..batch.numel()).filter(|&row| there[row]);
        let frames = present.map(|row| {
            if let Some(wrong) = columns.wrong(row) {
                self.violations.push(format!("I1: {wrong}"));
            }
            let (version, stamp) = (columns.version[row], columns.stamp[row]);
            if version != stamp {
                self.violations.push(format!(
                    "I5: weights {stamp} acted under the name of version {version}"
                ));
            }
            self.newest = self.newest.max(version);
            Frame {
                record: record(&columns.ledger, row),
                traj_id: columns.traj_ids[row],
                done: columns.done[row],
            }
        });
        frames.collect()
    }
}

/// Every value of a batch.
struct Columns {
    ledger: Vec<i64>,
    payload: Vec<u8>,
    next_ledger: Vec<i64>,
    next_payload: Vec<u8>,
    action: Vec<i64>,
    reward: Vec<f32>,
    done: Vec<bool>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    /// The flags of the observations that the steps began with.
    before: Vec<bool>,
    traj_ids: Vec<i64>,
    /// Version of the weights that acted, as the collector says and as the weights themselves do.
    version: Vec<i64>,
    stamp: Vec<i64>,
}

impl Columns {
    fn of(batch: &TensorDict) -> Self {
        fn read<T: Element>(batch: &TensorDict, key: &[&str]) -> Vec<T> {
            batch.get(key).and_then(Tensor::to_vec).unwrap()
        }
        let flag = |key: &[&str]| read::<bool>(batch, key);
        let before = ["done", "terminated", "truncated"].map(|name| flag(&[name]));
        Self {
            ledger: read(batch, &["ledger"]),
            payload: read(batch, &["payload"]),
            next_ledger: read(batch, &["next", "ledger"]),
            next_payload: read(batch, &["next", "payload"]),
            action: read(batch, &["action"]),
            reward: read(batch, &["next", "reward"]),
            done: flag(&["next", "done"]),
            terminated: flag(&["next", "terminated"]),
            truncated: flag(&["next", "truncated"]),
            before: (0..batch.numel())
                .map(|row| before.iter().any(|flags| flags[row]))
                .collect(),
            traj_ids: read(batch, &["collector", "traj_ids"]),
            version: read(batch, &["policy_version"]),
            stamp: read(batch, &[policy::COLUMN]),
        }
    }

    /// What is wrong with a row, all by itself.
    fn wrong(&self, row: usize) -> Option<String> {
        let (now, next) = (record(&self.ledger, row), record(&self.next_ledger, row));
        let [env, episode, t] = now;
        let action = self.action[row];
        let ends = t + 1 == LedgerEnv::length(env, episode, MAX_LENGTH);
        let (terminated, truncated) = LedgerEnv::ending(env, episode);
        let bytes = row * PAYLOAD..(row + 1) * PAYLOAD;
        let checks = [
            ("next observation", next == [env, episode, t + 1]),
            ("payload", self.payload[bytes.clone()] == payload(now)),
            ("next payload", self.next_payload[bytes] == payload(next)),
            ("action", (0..LedgerEnv::ACTIONS as i64).contains(&action)),
            (
                "reward",
                self.reward[row].to_bits() == LedgerEnv::reward(now, action).to_bits(),
            ),
            ("done", self.done[row] == ends),
            ("terminated", self.terminated[row] == (ends && terminated)),
            ("truncated", self.truncated[row] == (ends && truncated)),
            ("flags before", !self.before[row]),
        ];
        let (column, _) = checks.into_iter().find(|(_, right)| !right)?;
        Some(format!("{column} of {now:?}"))
    }
}

fn record(all: &[i64], row: usize) -> [i64; 3] {
    [all[3 * row], all[3 * row + 1], all[3 * row + 2]]
}
