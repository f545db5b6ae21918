//! What a buffer knows of its rows, behind its lock.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use tensordict::{NestedKey, TensorDict};

use crate::error::Held;
use crate::index::{Open, Runs};
use crate::live::{Live, RowSpan};
use crate::marks::{Marks, RunKeys};
use crate::sampler::{Draw, Frames, NoDraw, Sampler};
use crate::{RateLimiter, Reduction, ReplayError, SampleRng, Writer};

/// Everything but the frames themselves.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) live: Live,
    /// There for a ring.
    pub(crate) runs: Option<Runs>,
    pub(crate) sampler: Box<dyn Sampler>,
    /// What the sampler wants to know of frames that are written; another `Arc` with another sampler.
    pub(crate) keys: Arc<Keys>,
    pub(crate) writer: Writer,
    pub(crate) limiter: Option<RateLimiter>,
    pub(crate) rng: SampleRng,
    /// Row that the next frame goes to, in a ring.
    pub(crate) cursor: usize,
    /// Frames written since the buffer was empty.
    pub(crate) write_count: u64,
    /// Frames sampled since then.
    pub(crate) sampled: u64,
    /// Frames overwritten since the last sample, in a ring.
    pub(crate) overwritten: u64,
    /// While a checkpoint is written, of every row whether its frame is still to be copied into it.
    pub(crate) saving: Option<Vec<bool>>,
    /// Whether somebody is writing frames at this moment.
    pub(crate) writing: bool,
    pub(crate) writers: Writers,
}

/// What is read of frames before they are written.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Which keys tell episodes apart.
    pub(crate) runs: RunKeys,
    /// Whether the sampler needs to know.
    pub(crate) needed: bool,
    /// Where priorities are, and how several values make one.
    pub(crate) priority: Option<(NestedKey, Reduction)>,
}

impl Keys {
    fn of(sampler: &dyn Sampler) -> Arc<Self> {
        let runs = sampler.run_keys();
        let priority = sampler.priority_key();
        Arc::new(Self {
            needed: runs.is_some(),
            runs: runs.cloned().unwrap_or_default(),
            priority: priority.map(|(key, reduction)| (key.clone(), reduction)),
        })
    }

    /// The priority that each frame brings, if there are any.
    ///
    /// # Errors
    /// [`ReplayError::Priorities`] for one that is negative or not finite.
    pub(crate) fn priorities(&self, frames: &TensorDict) -> Result<Option<Vec<f32>>, ReplayError> {
        let Some((key, reduction)) = &self.priority else {
            return Ok(None);
        };
        if !frames.contains_key(key) {
            return Ok(None);
        }
        let values = reduction.of_each(frames, key)?;
        let wrong = |value: &f64| !((*value as f32).is_finite() && *value >= 0.0);
        if let Some(at) = values.iter().position(wrong) {
            return Err(ReplayError::Priorities(format!(
                "expected finite numbers of at least 0 as entry {key}, got {} for frame {at}",
                values[at]
            )));
        }
        Ok(Some(values.into_iter().map(|value| value as f32).collect()))
    }
}

impl State {
    pub(crate) fn new(
        capacity: usize,
        writer: Writer,
        sampler: Box<dyn Sampler>,
        limiter: Option<RateLimiter>,
        rng: SampleRng,
    ) -> Self {
        let (live, runs) = match writer {
            Writer::RoundRobin => (Live::ring(0, 0, capacity), Some(Runs::new(capacity))),
            Writer::MaxReward(_) => (Live::list(capacity), None),
        };
        Self {
            live,
            runs,
            keys: Keys::of(&*sampler),
            sampler,
            writer,
            limiter,
            rng,
            cursor: 0,
            write_count: 0,
            sampled: 0,
            overwritten: 0,
            saving: None,
            writing: false,
            writers: Writers::default(),
        }
    }

    /// Finds anew which frames follow each other, where frames are in order: `marks` are those of all of them, which stay apart
    /// where they were written apart.
    pub(crate) fn mark(&mut self, marks: &Marks) {
        if let Some(runs) = &mut self.runs {
            let breaks = runs.all_breaks();
            // Any number will do that leads to the same rows.
            let first = self.live.row(0) as u64;
            runs.renew(first, marks, &breaks);
        }
    }

    /// How the last run may go on, where frames are in order.
    pub(crate) fn open(&self) -> Option<Open> {
        self.runs.as_ref().map(Runs::open)
    }

    /// Lets the last run go on so, unless it has ended.
    pub(crate) fn reopen(&mut self, open: Open) {
        if let Some(runs) = &mut self.runs {
            runs.reopen(open);
        }
    }

    /// As of [`Runs::breaks`]; none where frames are not in order.
    pub(crate) fn breaks(&self, marks: &Marks, skipped: usize) -> Vec<usize> {
        let runs = self.runs.as_ref();
        runs.map_or_else(Vec::new, |runs| runs.breaks(marks, skipped))
    }

    /// Takes another sampler, which has begun, and tells it of the rows that are live.
    pub(crate) fn replace_sampler(&mut self, sampler: Box<dyn Sampler>) {
        self.sampler = sampler;
        self.keys = Keys::of(&*self.sampler);
        match self.live {
            Live::Ring(rows) => self.announce(rows),
            Live::List { .. } => {
                for row in self.live.sorted() {
                    self.announce(RowSpan::new(row as usize, 1, self.live.capacity()));
                }
            }
        }
    }

    /// Gives rows their priorities, where the sampler has any.
    pub(crate) fn prioritize(
        &mut self,
        rows: &[i64],
        priorities: &[f32],
    ) -> Result<(), ReplayError> {
        let frames = Frames::new(&self.live, self.runs.as_ref());
        match self.sampler.update_priority(rows, priorities, &frames) {
            Ok(_) | Err(ReplayError::NoPriorities) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn held(&self) -> Held {
        Held {
            frames: self.live.len(),
            trajectories: self.runs.as_ref().map(|runs| (runs.len(), runs.ended())),
        }
    }

    /// Gives up rows, so that nobody reads them while they are overwritten.
    pub(crate) fn evict(&mut self, rows: RowSpan) {
        if rows.is_empty() {
            return;
        }
        self.live.remove(rows);
        if let Some(runs) = &mut self.runs {
            runs.evict(rows.len());
        }
        let frames = Frames::new(&self.live, self.runs.as_ref());
        self.sampler.evicted(rows, &frames);
    }

    /// Lets rows be read that were written. `marks` are those of a ring's frames, `skipped` the frames before them that were
    /// overwritten at once.
    pub(crate) fn admit(&mut self, rows: RowSpan, marks: Option<&Marks>, skipped: usize) {
        if rows.is_empty() {
            return;
        }
        self.live.add(rows);
        if let (Some(runs), Some(marks)) = (&mut self.runs, marks) {
            runs.skip(skipped);
            runs.push(marks);
        }
        self.announce(rows);
    }

    /// Tells the sampler of rows that are live already.
    pub(crate) fn announce(&mut self, rows: RowSpan) {
        if !rows.is_empty() {
            let frames = Frames::new(&self.live, self.runs.as_ref());
            self.sampler.written(rows, &frames);
        }
    }

    pub(crate) fn load_sampler(&mut self, saved: &TensorDict) -> Result<(), ReplayError> {
        let frames = Frames::new(&self.live, self.runs.as_ref());
        self.sampler.load_state_dict(saved, &frames)
    }

    /// Counts frames that were offered and taken in.
    pub(crate) fn count(&mut self, frames: usize) {
        self.write_count += frames as u64;
        if let Some(limiter) = &mut self.limiter {
            limiter.inserted(frames);
        }
    }

    /// Gives up all rows.
    pub(crate) fn clear(&mut self) {
        self.live = match &mut self.writer {
            Writer::RoundRobin => Live::ring(0, 0, self.live.capacity()),
            Writer::MaxReward(writer) => {
                writer.clear();
                Live::list(self.live.capacity())
            }
        };
        if let Some(runs) = &mut self.runs {
            runs.clear();
        }
        self.sampler.cleared();
        if let Some(limiter) = &mut self.limiter {
            limiter.set_counts([0, 0]);
        }
        (self.cursor, self.write_count, self.sampled) = (0, 0, 0);
        self.overwritten = 0;
    }

    /// Chooses rows for a batch.
    pub(crate) fn draw(&mut self, batch_size: usize) -> Result<Draw, NoDraw> {
        let limiter = self.limiter.as_ref();
        if let Some(why) = limiter.and_then(|it| it.blocks_sample(batch_size, self.live.len())) {
            return Err(
                match limiter.and_then(|it| it.forbids("sampled", batch_size)) {
                    Some(error) => NoDraw::Error(error),
                    None => NoDraw::Shortage(why),
                },
            );
        }
        let frames = Frames::new(&self.live, self.runs.as_ref());
        let draw = self.sampler.draw(batch_size, &frames, &mut self.rng)?;
        self.sampled += draw.rows.len() as u64;
        self.overwritten = 0;
        if let Some(limiter) = &mut self.limiter {
            limiter.sampled(batch_size);
        }
        Ok(draw)
    }

    /// The oldest rows, which are given up where `frames` frames are to be written.
    pub(crate) fn oldest_for(&self, frames: usize) -> RowSpan {
        let capacity = self.live.capacity();
        let room = capacity - self.live.len();
        let first = if self.live.is_empty() {
            0
        } else {
            self.live.row(0)
        };
        RowSpan::new(first, frames.min(capacity).saturating_sub(room), capacity)
    }

    /// Whether writing so many frames would overwrite some that a checkpoint has not copied yet.
    pub(crate) fn waits_for_checkpoint(&self, frames: usize) -> bool {
        let Some(saving) = &self.saving else {
            return false;
        };
        let oldest = self.oldest_for(frames);
        match self.live {
            Live::Ring(_) => oldest.rows().any(|row| saving[row]),
            // Any of them.
            Live::List { .. } => !oldest.is_empty(),
        }
    }

    /// Why frames may not be written now.
    pub(crate) fn blocks_insert(&self, frames: usize) -> Result<Option<String>, ReplayError> {
        let Some(limiter) = &self.limiter else {
            return Ok(None);
        };
        let blocked = limiter.blocks_insert(frames, self.live.len());
        match limiter.forbids("written", frames) {
            Some(error) if blocked.is_some() => Err(error),
            _ => Ok(blocked),
        }
    }
}

/// Collectors that write to the buffer.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// The number that each was first attached by, which stands for its trajectories.
    attached: BTreeMap<u64, u64>,
    next: u64,
    failure: Option<Arc<dyn Error + Send + Sync>>,
    /// Whether somebody was told of the failure.
    told: bool,
}

impl Writers {
    /// `first`: what this was given when the same collector was first attached.
    pub(crate) fn attach(&mut self, first: Option<u64>) -> u64 {
        let id = self.next;
        self.next += 1;
        let first = first.filter(|&first| first < id);
        self.attached.insert(id, first.unwrap_or(id));
        id
    }

    /// The number that this writer was first attached by, if it is attached.
    pub(crate) fn first(&self, id: u64) -> Option<u64> {
        self.attached.get(&id).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.attached.len()
    }

    pub(crate) fn detach(&mut self, id: u64, failure: Option<Arc<dyn Error + Send + Sync>>) {
        if self.attached.remove(&id).is_some() && failure.is_some() {
            (self.failure, self.told) = (failure, false);
        }
    }

    /// The failure of a writer, if nobody was told of it yet.
    pub(crate) fn news(&mut self) -> Option<ReplayError> {
        if self.told {
            return None;
        }
        self.told = true;
        self.failure()
    }

    /// The last failure of a writer.
    pub(crate) fn failure(&self) -> Option<ReplayError> {
        self.failure.clone().map(ReplayError::Writer)
    }
}
