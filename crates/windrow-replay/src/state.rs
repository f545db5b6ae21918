//! The state of a buffer, behind its lock (ADR 0005).

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use tensordict::{NestedKey, TensorDict};

use crate::contents::Contents;
use crate::error::Held;
use crate::generations::Generations;
use crate::limiter::LimiterCounts;
use crate::runs::NewRuns;
use crate::sampler::{Draw, NoDraw, Sampler};
use crate::saved::SavedState;
use crate::{
    Access, LimiterWait, PriorityError, RateLimiter, Reduction, ReplayError, RowOrder, RowSpan,
    RunKeys, SampleRng, Shortage, StateError, Writer,
};

/// Everything but the frames themselves.
#[derive(Debug)]
pub(crate) struct BufferState {
    pub(crate) contents: Contents,
    pub(crate) sampler: Box<dyn Sampler>,
    /// Present if the sampler has priorities.
    pub(crate) generations: Option<Generations>,
    /// The entries of written frames that the sampler needs; another `Arc` with another sampler.
    pub(crate) keys: Arc<Keys>,
    pub(crate) writer: Box<dyn Writer>,
    pub(crate) limiter: Option<RateLimiter>,
    pub(crate) rng: SampleRng,
    /// Frames written since the buffer was empty.
    pub(crate) write_count: u64,
    /// Frames sampled since then.
    pub(crate) sampled: u64,
    /// Whether the last sample ended a pass over the frames.
    pub(crate) ran_out: bool,
    /// Frames overwritten since the last sample, in a ring.
    pub(crate) overwritten: u64,
    /// By row, while a checkpoint is written: whether its frame is still to be copied.
    pub(crate) saving: Option<Vec<bool>>,
    /// Whether a thread is writing frames at this moment.
    pub(crate) writing: bool,
    /// Threads that wait until there is more to sample.
    pub(crate) waiting_readers: usize,
    pub(crate) writers: Writers,
}

/// The parts of a [`BufferState`] that a saved state replaces.
#[derive(Debug)]
pub(crate) struct Restored {
    contents: Contents,
    sampler: Box<dyn Sampler>,
    generations: Option<Generations>,
    writer: Box<dyn Writer>,
    limiter: LimiterCounts,
    rng: SampleRng,
    write_count: u64,
    sampled: u64,
}

/// The rows of a batch.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) draw: Draw,
    /// The numbers of their frames, if the sampler has priorities.
    pub(crate) numbers: Option<Vec<i64>>,
}

/// The entries that are read of frames before they are written.
#[derive(Debug)]
pub(crate) struct Keys {
    /// The keys that separate episodes.
    pub(crate) runs: RunKeys,
    /// Their fingerprint.
    pub(crate) fingerprint: u64,
    /// Whether the sampler needs these.
    pub(crate) needed: bool,
    /// The entry of priorities, and how several values make one.
    pub(crate) priority: Option<(NestedKey, Reduction)>,
}

impl Keys {
    fn of(sampler: &mut dyn Sampler) -> Arc<Self> {
        let priority = sampler.priorities().and_then(|it| it.entry());
        let runs = sampler.run_keys();
        let (needed, runs) = (runs.is_some(), runs.cloned().unwrap_or_default());
        Arc::new(Self {
            needed,
            fingerprint: runs.fingerprint(),
            runs,
            priority,
        })
    }

    /// The priority of each frame, where frames have an entry of priorities.
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
            return Err(PriorityError::Entry {
                key: key.clone(),
                priority: values[at],
                frame: at,
            }
            .into());
        }
        Ok(Some(values.into_iter().map(|value| value as f32).collect()))
    }
}

impl BufferState {
    pub(crate) fn new(
        capacity: usize,
        writer: Box<dyn Writer>,
        mut sampler: Box<dyn Sampler>,
        limiter: Option<RateLimiter>,
        rng: SampleRng,
    ) -> Self {
        let has_priorities = sampler.priorities().is_some();
        Self {
            contents: Contents::new(writer.order(), capacity),
            keys: Keys::of(&mut *sampler),
            generations: has_priorities.then(|| Generations::new(capacity)),
            sampler,
            writer,
            limiter,
            rng,
            write_count: 0,
            sampled: 0,
            ran_out: false,
            overwritten: 0,
            saving: None,
            writing: false,
            waiting_readers: 0,
            writers: Writers::default(),
        }
    }

    /// Replaces the sampler by one that has begun, and announces the rows that hold frames to it.
    pub(crate) fn replace_sampler(&mut self, mut sampler: Box<dyn Sampler>) {
        self.contents.announce(&mut *sampler);
        self.keys = Keys::of(&mut *sampler);
        self.sampler = sampler;
        self.ran_out = false;
        if self.sampler.priorities().is_none() {
            self.generations = None;
        } else if self.generations.is_none() {
            self.generations = Some(Generations::new(self.contents.rows.capacity()));
            self.renumber();
        }
    }

    /// Gives all frames new numbers.
    pub(crate) fn renumber(&mut self) {
        if let Some(generations) = &mut self.generations {
            let spans = self.contents.rows.spans();
            spans.into_iter().for_each(|rows| generations.written(rows));
        }
    }

    /// Sets the priorities of frames that were just written to `rows`, if the sampler has any.
    pub(crate) fn prioritize(
        &mut self,
        rows: &[i64],
        priorities: &[f32],
    ) -> Result<(), ReplayError> {
        if self.generations.is_some() {
            let frames = self.contents.frames();
            self.sampler.update_priority(rows, priorities, &frames)?;
        }
        Ok(())
    }

    /// Sets the priorities of rows that still hold their frames: those of `numbers` or, without
    /// these, the frames that were drawn last. Returns the number of priorities set.
    pub(crate) fn update_priority(
        &mut self,
        rows: &[i64],
        numbers: Option<&[i64]>,
        priorities: &[f32],
    ) -> Result<usize, ReplayError> {
        let Some(generations) = &self.generations else {
            return Err(ReplayError::NoPriorities);
        };
        let counts = [Some(priorities.len()), numbers.map(<[i64]>::len)];
        if let Some(got) = counts.into_iter().flatten().find(|&got| got != rows.len()) {
            let rows = rows.len();
            return Err(PriorityError::Count { rows, got }.into());
        }
        let wrong = |&(_, priority): &(usize, &f32)| !(priority.is_finite() && *priority >= 0.0);
        if let Some((at, &priority)) = priorities.iter().enumerate().find(wrong) {
            let row = rows[at];
            return Err(PriorityError::Value { priority, row, at }.into());
        }
        let rows = generations.rows_still_held(rows, numbers);
        let frames = self.contents.frames();
        self.sampler.update_priority(&rows, priorities, &frames)
    }

    /// Notes that frames that were drawn ahead are passed to a caller.
    pub(crate) fn hand_out(&mut self, rows: &[i64], numbers: &[i64]) {
        if let Some(generations) = &mut self.generations {
            let row = |&row: &i64| usize::try_from(row).unwrap_or(usize::MAX);
            generations.hand_out(rows.iter().map(row), numbers);
        }
    }

    pub(crate) fn held(&self) -> Held {
        Held {
            frames: self.contents.rows.len(),
            trajectories: (self.contents.runs.as_ref()).map(|runs| (runs.len(), runs.ended())),
        }
    }

    /// Drops rows, so that no sample reads them while they are overwritten.
    pub(crate) fn evict(&mut self, rows: RowSpan) {
        if !rows.is_empty() {
            self.contents.evict(rows);
            self.sampler.evicted(rows, &self.contents.frames());
        }
    }

    /// Makes rows that were written visible to samples. `new` are the runs of a ring's frames,
    /// `skipped` the frames before them that were overwritten at once.
    pub(crate) fn admit(&mut self, rows: RowSpan, new: Option<&NewRuns>, skipped: usize) {
        if !rows.is_empty() {
            self.contents.admit(rows, new, skipped);
            if let Some(generations) = &mut self.generations {
                generations.written(rows);
            }
            self.sampler.written(rows, &self.contents.frames());
        }
    }

    /// Counts frames that were offered and written.
    pub(crate) fn count(&mut self, frames: usize) {
        self.write_count += frames as u64;
        if let Some(limiter) = &mut self.limiter {
            limiter.inserted(frames);
        }
    }

    /// Drops all rows.
    pub(crate) fn clear(&mut self) {
        self.contents.clear();
        self.writer.cleared();
        self.sampler.cleared();
        if let Some(limiter) = &mut self.limiter {
            limiter.set_counts(LimiterCounts::default());
        }
        (self.write_count, self.sampled) = (0, 0);
        self.overwritten = 0;
    }

    /// The parts of this state that `saved` replaces; copies of sampler and writer load theirs.
    ///
    /// # Errors
    /// [`ReplayError::State`] if the saved state is of another writer; errors of sampler and
    /// writer.
    pub(crate) fn restored(&self, saved: SavedState) -> Result<Restored, ReplayError> {
        let is_ring = self.contents.rows.order() == RowOrder::Ring;
        if is_ring != saved.runs.is_some() {
            return Err(StateError::Writer.into());
        }
        let (mut sampler, mut writer) = (self.sampler.clone(), self.writer.clone_box());
        sampler.cleared();
        writer.cleared();
        writer.load_state_dict(&saved.writer, &saved.rows)?;
        let contents = self.contents.restored(&saved);
        contents.announce(&mut *sampler);
        sampler.load_state_dict(&saved.sampler, &contents.frames())?;
        Ok(Restored {
            contents,
            sampler,
            generations: saved.generations,
            writer,
            limiter: saved.limiter,
            rng: saved.rng,
            write_count: saved.write_count,
            sampled: saved.sampled,
        })
    }

    /// Replaces the parts by those of a saved state.
    pub(crate) fn apply(&mut self, restored: Restored) {
        self.contents = restored.contents;
        match (&mut self.generations, restored.generations) {
            (Some(mine), Some(saved)) => *mine = saved.after(mine),
            _ => self.renumber(),
        }
        self.sampler = restored.sampler;
        self.writer = restored.writer;
        if let Some(limiter) = &mut self.limiter {
            limiter.set_counts(restored.limiter);
        }
        self.rng = restored.rng;
        (self.write_count, self.sampled) = (restored.write_count, restored.sampled);
    }

    /// Chooses rows for a batch. Frames that are drawn `ahead` do not count as drawn until they are
    /// [handed out](Self::hand_out).
    pub(crate) fn draw(&mut self, batch_size: usize, ahead: bool) -> Result<Drawn, NoDraw> {
        if let Some(limiter) = &self.limiter
            && let Some(wait) = limiter.blocks_sample(batch_size, self.contents.rows.len())
        {
            return Err(match limiter.forbids(Access::Sample, batch_size) {
                Some(error) => error.into(),
                None => Shortage::Limiter(wait).into(),
            });
        }
        let frames = self.contents.frames();
        let draw = self.sampler.draw(batch_size, &frames, &mut self.rng)?;
        draw.check(self.sampler.most_rows(batch_size), &frames)?;
        let numbers = self.generations.as_mut().map(|generations| {
            let numbers = generations.of(&draw.rows);
            if !ahead {
                generations.hand_out(draw.rows.iter().map(|&row| row as usize), &numbers);
            }
            numbers
        });
        self.ran_out = draw.ends_pass;
        for &row in &draw.spent {
            self.evict(RowSpan::new(row as usize, 1, self.contents.rows.capacity()));
        }
        self.sampled += draw.rows.len() as u64;
        self.overwritten = 0;
        if let Some(limiter) = &mut self.limiter {
            limiter.sampled(batch_size);
        }
        Ok(Drawn { draw, numbers })
    }

    /// Whether writing `frames` frames would overwrite some that a checkpoint has not copied yet.
    pub(crate) fn waits_for_checkpoint(&self, frames: usize) -> bool {
        let Some(saving) = &self.saving else {
            return false;
        };
        let oldest = self.contents.rows.oldest_for(frames);
        match self.contents.rows.order() {
            RowOrder::Ring => oldest.rows().any(|row| saving[row]),
            // Any of them may be overwritten, and rows whose frames were sampled for the last time,
            // which may not be copied yet.
            RowOrder::Any => {
                let is_gone = |row: usize| !self.contents.rows.contains(row);
                let mut uncopied = (0..saving.len()).filter(|&row| saving[row]);
                !oldest.is_empty() || uncopied.any(is_gone)
            }
        }
    }

    /// The reason why an insertion of `frames` frames must wait, if it must.
    pub(crate) fn blocks_insert(&self, frames: usize) -> Result<Option<LimiterWait>, ReplayError> {
        let Some(limiter) = &self.limiter else {
            return Ok(None);
        };
        let blocked = limiter.blocks_insert(frames, self.contents.rows.len());
        match limiter.forbids(Access::Insert, frames) {
            Some(error) if blocked.is_some() => Err(error),
            _ => Ok(blocked),
        }
    }
}

/// Collectors that write to the buffer.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// By writer: the number of its first attachment, which identifies its trajectories.
    attached: BTreeMap<u64, u64>,
    next: u64,
    failure: Option<Arc<dyn Error + Send + Sync>>,
    /// Whether the failure was reported.
    told: bool,
}

impl Writers {
    /// `first`: the number of the first attachment of the same collector.
    pub(crate) fn attach(&mut self, first: Option<u64>) -> u64 {
        let id = self.next;
        self.next += 1;
        let first = first.filter(|&first| first < id);
        self.attached.insert(id, first.unwrap_or(id));
        id
    }

    /// The number of this writer's first attachment, if it is attached.
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

    /// The failure of a writer, unless it was reported before.
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
