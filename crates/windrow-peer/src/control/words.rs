//! How a control block lies in memory: a header, the lanes of all workers, the episodes of all
//! environments.

use windrow_slab::Bell;
use windrow_sync::mapped::{AtomicU32, AtomicU64, Ordering};

use super::{Episode, Place};
use crate::codec::LANE_BYTES;
use crate::shared::Words;

/// Words of a message in memory.
const WORDS: usize = LANE_BYTES / 8;

/// A message in memory. Its writer is alone with it by the protocol of the lane; a process that
/// breaks the protocol makes a message of mixed words, not undefined behaviour.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Payload {
    /// Bytes of the message.
    len: AtomicU32,
    words: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
impl Payload {
    /// Stores the first `len` bytes of `place`, in whole words.
    pub(super) fn store(&self, place: &[u8; LANE_BYTES], len: usize) {
        self.len.store(len as u32, Ordering::Relaxed);
        let (words, _) = place.as_chunks();
        for (word, bytes) in self.words.iter().zip(words).take(len.div_ceil(8)) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// What `read` makes of the message.
    pub(super) fn load<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        let len = (self.len.load(Ordering::Relaxed) as usize).min(LANE_BYTES);
        let mut place = [0; LANE_BYTES];
        let (words, _) = place.as_chunks_mut();
        for (bytes, word) in words.iter_mut().zip(&self.words).take(len.div_ceil(8)) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        read(&place[..len])
    }
}

/// A message that loom sees as one value with one owner.
#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Payload(loom::cell::UnsafeCell<[u8; LANE_BYTES]>);

#[cfg(loom)]
impl Default for Payload {
    fn default() -> Self {
        Self(loom::cell::UnsafeCell::new([0; LANE_BYTES]))
    }
}

#[cfg(loom)]
// SAFETY: loom checks every access.
unsafe impl Sync for Payload {}

#[cfg(loom)]
impl Payload {
    pub(super) fn store(&self, place: &[u8; LANE_BYTES], _: usize) {
        // SAFETY: loom fails the test when another thread accesses the cell meanwhile.
        self.0.with_mut(|cell| unsafe { *cell = *place });
    }

    /// What `read` makes of the message, behind which there may be other bytes.
    pub(super) fn load<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: as above.
        self.0.with(|cell| read(unsafe { &*cell }))
    }
}

/// One worker's lane. Each third is written by one side, on cache lines of its own; two lines,
/// since processors fetch pairs.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct LaneWords {
    pub(super) command: CommandWords,
    pub(super) answer: AnswerWords,
    pub(super) live: LiveWords,
}

/// From the parent to the worker.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct CommandWords {
    /// Number of the message; the message was written before.
    pub(super) seq: AtomicU32,
    /// 1 when the worker is to end.
    pub(super) closed: AtomicU32,
    /// The worker sleeps on it.
    pub(super) bell: Bell,
    pub(super) message: Payload,
}

/// From the worker to the parent.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct AnswerWords {
    /// Number of the message that was answered last; the answer was written before.
    pub(super) seq: AtomicU32,
    pub(super) message: Payload,
}

/// The worker's place.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct LiveWords {
    phase: AtomicU32,
    step: AtomicU32,
    env: AtomicU32,
    beat: AtomicU32,
}

/// The episode of one environment.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct EpisodeWords {
    id: AtomicU64,
    began: AtomicU64,
}

// SAFETY: `repr(C)` of atomics and of a bell, for which zeroed bytes are a new one.
unsafe impl Words for LaneWords {}
// SAFETY: `repr(C)` of atomics.
unsafe impl Words for EpisodeWords {}

impl LaneWords {
    pub(super) fn close(&self) {
        self.command.closed.store(1, Ordering::Release);
        self.command.bell.ring();
    }
}

/// Plain stores suffice: the parent looks when the worker is dead, or is content with a place that
/// is a moment old.
impl LiveWords {
    pub(super) fn phase(&self, phase: u32) {
        self.phase.store(phase, Ordering::Relaxed);
        self.beat();
    }

    pub(super) fn step(&self, step: u32) {
        self.step.store(step, Ordering::Relaxed);
        self.beat();
    }

    pub(super) fn env(&self, env: u32) {
        self.env.store(env, Ordering::Relaxed);
        self.beat();
    }

    fn beat(&self) {
        // One thread writes, so nothing is lost between load and store.
        let beat = self.beat.load(Ordering::Relaxed);
        self.beat.store(beat.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        for word in [&self.phase, &self.step, &self.env, &self.beat] {
            word.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn place(&self) -> Place {
        Place {
            phase: self.phase.load(Ordering::Relaxed),
            step: self.step.load(Ordering::Relaxed),
            env: self.env.load(Ordering::Relaxed),
            beat: self.beat.load(Ordering::Relaxed),
        }
    }
}

impl EpisodeWords {
    pub(super) fn set(&self, episode: Episode) {
        self.id.store(episode.id, Ordering::Relaxed);
        self.began.store(episode.began, Ordering::Relaxed);
    }

    pub(super) fn episode(&self) -> Episode {
        Episode {
            id: self.id.load(Ordering::Relaxed),
            began: self.began.load(Ordering::Relaxed),
        }
    }
}

#[cfg(not(loom))]
pub(super) use mapped::{HEADER, bytes, cut, read_header, write_header};

#[cfg(not(loom))]
mod mapped {
    use super::{AtomicU64, EpisodeWords, LaneWords, Ordering, Words};
    use crate::ProcessError;
    use crate::control::ControlSpec;
    use crate::shared::{Area, Cut, Shared};

    /// Begins every control block; the last byte is the version of its layout.
    const MAGIC: u64 = u64::from_be_bytes(*b"wdrwctl\x02");

    /// The beginning of a block.
    #[repr(C, align(128))]
    struct HeaderWords {
        magic: AtomicU64,
        fingerprint: AtomicU64,
        workers: AtomicU64,
        envs: AtomicU64,
    }

    // SAFETY: `repr(C)` of atomics.
    unsafe impl Words for HeaderWords {}

    /// Bytes of the header.
    pub(in crate::control) const HEADER: usize = size_of::<HeaderWords>();

    /// Bytes of a block; `None` when they overflow.
    pub(in crate::control) fn bytes(spec: &ControlSpec) -> Option<usize> {
        let lanes = Cut::behind::<LaneWords>(HEADER, spec.workers)?;
        Cut::behind::<EpisodeWords>(lanes, spec.workers.checked_mul(spec.envs)?)
    }

    /// Has the block say what it is.
    pub(in crate::control) fn write_header(
        area: &Area,
        spec: &ControlSpec,
    ) -> Result<(), ProcessError> {
        for header in area.cut().next::<HeaderWords>(1)?.iter() {
            let fill = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
            fill(&header.magic, MAGIC);
            fill(&header.fingerprint, spec.fingerprint);
            fill(&header.workers, spec.workers as u64);
            fill(&header.envs, spec.envs as u64);
        }
        Ok(())
    }

    /// What the header says, if it fits this program.
    pub(in crate::control) fn read_header(
        area: &Area,
        fingerprint: u64,
    ) -> Result<ControlSpec, ProcessError> {
        let header = area.cut().next::<HeaderWords>(1)?;
        let [header] = &*header else {
            return Err(ProcessError::foreign("control block", "magic", MAGIC, 0));
        };
        let got = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let fits = |field, expected, word| match got(word) == expected {
            true => Ok(()),
            false => Err(ProcessError::foreign(
                "control block",
                field,
                expected,
                got(word),
            )),
        };
        fits("magic", MAGIC, &header.magic)?;
        fits("fingerprint", fingerprint, &header.fingerprint)?;
        Ok(ControlSpec {
            fingerprint,
            workers: got(&header.workers) as usize,
            envs: got(&header.envs) as usize,
        })
    }

    /// The words behind the header.
    pub(in crate::control) fn cut(
        area: &Area,
        spec: &ControlSpec,
    ) -> Result<(Shared<LaneWords>, Shared<EpisodeWords>), ProcessError> {
        let mut cut = area.cut();
        cut.next::<HeaderWords>(1)?;
        let lanes = cut.next(spec.workers)?;
        let episodes = cut.next(spec.workers.saturating_mul(spec.envs))?;
        Ok((lanes, episodes))
    }
}
