//! Which rows on disk follow each other: a file that each write appends to, so that opening a
//! storage reads no rows.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use windrow_store::Store;
use windrow_sync::unpoisoned;

use crate::file::io_error;
use crate::runs::KeptRuns;
use crate::{ReplayError, RunMarks};

/// The first word, which includes the version of the format.
const OF_WINDROW: u64 = u64::from_le_bytes(*b"windruns");
/// Words before the first boundary: mark, capacity, identity of the store, and room for two slots.
const HEAD: usize = 24;
const SLOTS: [usize; 2] = [8, 16];
/// The place of the identity.
const IDENTITY: usize = 2;
/// Boundaries that a file has at least before those of overwritten rows are dropped.
const FEW: usize = 4096;

/// The boundaries between the runs of a ring, in a file that outlives the process.
///
/// A write first appends its boundaries, then says in the older of two slots how many there are
/// once the store has counted its rows, and then writes these. So whichever instruction a process
/// dies at, the newest slot whose count the store has reached belongs to the rows that are whole.
/// Rows that were written since then, without a slot, have no boundaries.
#[derive(Debug)]
pub(super) struct RunFile {
    path: PathBuf,
    owner: RunOwner,
    held: Mutex<Held>,
}

/// The store whose runs a file holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunOwner {
    capacity: usize,
    /// Its [`Store::identity`].
    identity: u64,
}

impl RunOwner {
    pub(super) fn of(store: &Store) -> Self {
        Self {
            capacity: store.capacity(),
            identity: store.identity(),
        }
    }
}

#[derive(Debug)]
struct Held {
    file: File,
    /// The last slot that holds.
    slot: Slot,
    /// Whether the other slot is of a write that failed: it is to be replaced before the store
    /// counts as many rows.
    has_failed: bool,
    /// How many boundaries were left when those of overwritten rows were dropped last.
    left: usize,
}

/// The runs at a time, in the numbers of frames: frame `n` lies in row `n % capacity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Slot {
    /// Number of this state; 0 is that of a new file.
    sequence: u64,
    /// Rows that the store has written over its life.
    written: u64,
    /// As of [`KeptRuns`].
    keys: u64,
    base: u64,
    next: u64,
    /// Boundaries in the file.
    count: u64,
}

impl Slot {
    const WORDS: usize = 7;

    fn words(self) -> [u64; Self::WORDS] {
        let Self {
            sequence,
            written,
            keys,
            base,
            next,
            count,
        } = self;
        let words = [sequence, written, keys, base, next, count];
        let check = words.iter().fold(OF_WINDROW, |hash, word| {
            (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        });
        [sequence, written, keys, base, next, count, check]
    }

    /// The slot of these words; a new file's where they are zeros, and `None` where no slot is
    /// there.
    fn parse(words: &[u64]) -> Option<Self> {
        if words.iter().all(|&word| word == 0) {
            return Some(Self::default());
        }
        let &[sequence, written, keys, base, next, count, _] = words else {
            return None;
        };
        let slot = Self {
            sequence,
            written,
            keys,
            base,
            next,
            count,
        };
        let fits = base <= next && next <= u64::MAX >> 2;
        (slot.words() == *words && fits).then_some(slot)
    }

    /// The number of the next frame once the store has written `written` rows over its life.
    fn next_at(self, written: u64) -> u64 {
        self.next + written.wrapping_sub(self.written)
    }
}

impl RunFile {
    /// A file at `path` without boundaries, replacing an old one.
    ///
    /// # Errors
    /// [`ReplayError::Io`].
    pub(super) fn make(path: &Path, owner: RunOwner) -> Result<Self, ReplayError> {
        let file = made(path, owner, &[], Slot::default())?;
        Ok(Self::of(path, owner, file, Slot::default()))
    }

    /// The file at `path`, and the runs of a store that has written `written` rows; `None` where
    /// nothing was kept.
    ///
    /// # Errors
    /// [`ReplayError::Io`]; [`ReplayError::Damaged`] when the file does not hold runs;
    /// [`ReplayError::Misfit`] when it belongs to another store.
    pub(super) fn open(
        path: &Path,
        owner: RunOwner,
        written: u64,
    ) -> Result<(Self, Option<KeptRuns>), ReplayError> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(path);
        let file = file.map_err(io_error("open", path))?;
        let bytes = std::fs::read(path).map_err(io_error("read", path))?;
        let damaged = |expected: String, got: String| ReplayError::Damaged {
            path: path.to_path_buf(),
            expected,
            got,
        };
        let words: Vec<u64> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        if words.len() < HEAD || words[..2] != [OF_WINDROW, owner.capacity as u64] {
            let expected = format!("the trajectories of {} rows", owner.capacity);
            return Err(damaged(
                expected,
                format!("{} bytes of others", bytes.len()),
            ));
        }
        if words[IDENTITY] != owner.identity {
            return Err(ReplayError::Misfit {
                path: path.to_path_buf(),
                expected: "those of rows.bin beside it: restore both files from one copy"
                    .to_owned(),
                got: "the trajectories of another storage".to_owned(),
            });
        }
        let slots = SLOTS.map(|at| Slot::parse(&words[at..at + Slot::WORDS]));
        let reached = slots
            .iter()
            .flatten()
            .filter(|slot| slot.written <= written);
        let slot = reached.max_by_key(|slot| slot.sequence).copied();
        let slot = slot.ok_or_else(|| {
            let expected = format!("a state of at most {written} written rows");
            damaged(expected, "none".to_owned())
        })?;
        let boundaries = usize::try_from(slot.count).ok();
        let boundaries = boundaries.and_then(|count| words[HEAD..].get(..count));
        let is_fine = |boundaries: &&[u64]| {
            let frames = || boundaries.iter().map(|&word| KeptRuns::frame(word));
            frames().is_sorted() && frames().all(|frame| frame <= slot.next)
        };
        let Some(boundaries) = boundaries.filter(is_fine) else {
            let expected = format!("{} places up to frame {}", slot.count, slot.next);
            return Err(damaged(expected, "others".to_owned()));
        };
        let kept = (slot.sequence > 0).then(|| KeptRuns {
            keys: slot.keys,
            base: slot.base,
            next: slot.next_at(written),
            boundaries: boundaries.to_vec(),
        });
        Ok((Self::of(path, owner, file, slot), kept))
    }

    fn of(path: &Path, owner: RunOwner, file: File, slot: Slot) -> Self {
        let held = Held {
            file,
            slot,
            // The other slot may be of a write that the process did not survive.
            has_failed: true,
            left: slot.count as usize,
        };
        Self {
            path: path.to_path_buf(),
            owner,
            held: Mutex::new(held),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        unpoisoned(self.held.lock())
    }

    /// Calls `write` for `len` rows from `first` on, modulo the capacity, of a store that has
    /// written `written` rows before; `marks` are the runs of their frames.
    ///
    /// # Errors
    /// The errors of `write`; [`ReplayError::Io`].
    pub(super) fn around(
        &self,
        (first, len): (usize, usize),
        marks: &RunMarks<'_>,
        written: impl FnOnce() -> u64,
        write: impl FnOnce() -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let mut held = self.held();
        let written = written();
        let (start, base) = self.start(held.slot, first, written);
        let keys = marks.keys;
        let is_first = held.slot.count == 0 && base == start;
        if marks.boundaries.is_empty() && !held.has_failed && held.slot.keys == keys && start > base
        {
            // The run goes on, as it does behind each slot.
            return write();
        }
        if held.slot.count as usize > 2 * held.left + FEW {
            self.drop_overwritten(&mut held, written)?;
        }
        let words = marks.boundaries.iter();
        let words: Vec<u64> = words.map(|&it| KeptRuns::word(it, start)).collect();
        let place = HEAD + held.slot.count as usize;
        self.put(&held, place, &words)?;
        let slot = Slot {
            written: written + len as u64,
            keys: if is_first || held.slot.keys == keys {
                keys
            } else {
                0
            },
            base,
            next: start + len as u64,
            count: held.slot.count + words.len() as u64,
            ..held.slot
        };
        self.moved(&mut held, slot, write)
    }

    /// As [`around`](Self::around), for frames whose runs nobody names. Boundaries stay where they
    /// are written `in_place` of others; all are to be found anew, since these may end elsewhere.
    ///
    /// # Errors
    /// The errors of `write`; [`ReplayError::Io`].
    pub(super) fn around_unknown(
        &self,
        (first, len): (usize, usize),
        in_place: impl FnOnce() -> bool,
        written: impl FnOnce() -> u64,
        write: impl FnOnce() -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let mut held = self.held();
        if held.slot.sequence == 0 {
            // Nothing is kept of storages that no ring is written to.
            return write();
        }
        let written = written();
        let (base, next) = if in_place() {
            (held.slot.base, held.slot.next_at(written))
        } else {
            let (start, base) = self.start(held.slot, first, written);
            (base, start + len as u64)
        };
        let slot = Slot {
            written: written + len as u64,
            keys: 0,
            base,
            next,
            ..held.slot
        };
        self.moved(&mut held, slot, write)
    }

    /// Replaces all that is kept, for a store that has written `written` rows.
    ///
    /// # Errors
    /// [`ReplayError::Io`].
    pub(super) fn replace(
        &self,
        runs: &KeptRuns,
        written: impl FnOnce() -> u64,
    ) -> Result<(), ReplayError> {
        let mut held = self.held();
        let written = written();
        self.renew(&mut held, runs, written)
    }

    /// Calls `clear`, which empties a store that has written `written` rows, and forgets all
    /// boundaries.
    pub(super) fn clear(&self, written: impl FnOnce() -> u64, clear: impl FnOnce()) {
        let mut held = self.held();
        clear();
        if held.slot.sequence == 0 {
            return;
        }
        let slot = Slot {
            sequence: held.slot.sequence + 1,
            written: written(),
            ..Slot::default()
        };
        let place = SLOTS[(slot.sequence % 2) as usize];
        // Where that fails, the old slot is of rows that are gone, which is as good.
        let put = self.put(&held, place, &slot.words());
        (held.slot, held.has_failed) = (slot, put.is_err());
    }

    /// The number of the frame that goes into row `first`, and that of the first whose runs are
    /// known: the same where no frames before it stay.
    fn start(&self, slot: Slot, first: usize, written: u64) -> (u64, u64) {
        let (next, capacity) = (slot.next_at(written), self.owner.capacity as u64);
        let skipped = (first as u64 + capacity - next % capacity) % capacity;
        match skipped {
            0 => (next, slot.base),
            _ => (next + skipped, next + skipped),
        }
    }

    /// Writes a slot, and then what makes it hold.
    fn moved(
        &self,
        held: &mut Held,
        slot: Slot,
        write: impl FnOnce() -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let sequence = slot.sequence + 1;
        let slot = Slot { sequence, ..slot };
        held.has_failed = true;
        self.put(held, SLOTS[(sequence % 2) as usize], &slot.words())?;
        write()?;
        (held.slot, held.has_failed) = (slot, false);
        Ok(())
    }

    /// Writes the boundaries that are left once those of overwritten rows are dropped into a file
    /// of their own, which replaces this one.
    fn drop_overwritten(&self, held: &mut Held, written: u64) -> Result<(), ReplayError> {
        let next = held.slot.next_at(written);
        let oldest = next
            .saturating_sub(self.owner.capacity as u64)
            .max(held.slot.base);
        let mut bytes = vec![0; 8 * held.slot.count as usize];
        read_at(&held.file, &mut bytes, 8 * HEAD as u64).map_err(io_error("read", &self.path))?;
        let words = bytes
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        let boundaries = words.filter(|&word| KeptRuns::frame(word) >= oldest);
        let runs = KeptRuns {
            keys: held.slot.keys,
            base: held.slot.base,
            next,
            boundaries: boundaries.collect(),
        };
        self.renew(held, &runs, written)
    }

    fn renew(&self, held: &mut Held, runs: &KeptRuns, written: u64) -> Result<(), ReplayError> {
        let count = runs.boundaries.len();
        let slot = Slot {
            sequence: held.slot.sequence + 1,
            written,
            keys: runs.keys,
            base: runs.base,
            next: runs.next,
            count: count as u64,
        };
        let unfinished = self.path.with_extension("tmp");
        let file = made(&unfinished, self.owner, &runs.boundaries, slot)?;
        std::fs::rename(&unfinished, &self.path).map_err(io_error("rename", &unfinished))?;
        *held = Held {
            file,
            slot,
            has_failed: false,
            left: count,
        };
        Ok(())
    }

    fn put(&self, held: &Held, place: usize, words: &[u64]) -> Result<(), ReplayError> {
        let written = write_at(&held.file, &bytes_of(words), 8 * place as u64);
        written.map_err(io_error("write", &self.path))
    }
}

/// A new file at `path`.
fn made(path: &Path, owner: RunOwner, boundaries: &[u64], slot: Slot) -> Result<File, ReplayError> {
    let mut head = [0; HEAD];
    head[..2].copy_from_slice(&[OF_WINDROW, owner.capacity as u64]);
    head[IDENTITY] = owner.identity;
    if slot.sequence > 0 {
        let at = SLOTS[(slot.sequence % 2) as usize];
        head[at..at + Slot::WORDS].copy_from_slice(&slot.words());
    }
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(true);
    let file = options.open(path).map_err(io_error("create", path))?;
    let written = write_at(&file, &bytes_of(&head), 0)
        .and_then(|()| write_at(&file, &bytes_of(boundaries), 8 * HEAD as u64));
    written.map_err(io_error("write", path))?;
    Ok(file)
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
fn write_at(mut file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};

    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};

    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{Boundary, RunKeys, SampleRng};

    const CAPACITY: usize = 50;

    /// The file, and what is in it.
    const OWNER: RunOwner = RunOwner {
        capacity: CAPACITY,
        identity: 7,
    };

    struct Model {
        directory: TempDir,
        file: RunFile,
        written: u64,
        next: u64,
        boundaries: Vec<u64>,
    }

    impl Model {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let file = RunFile::make(&directory.path().join("runs.bin"), OWNER).unwrap();
            Self {
                directory,
                file,
                written: 0,
                next: 0,
                boundaries: Vec::new(),
            }
        }

        /// With the end of an episode after the seventh.
        fn of_20_frames() -> Self {
            let mut model = Self::new();
            let boundaries = [boundary(0, false, true), boundary(7, true, false)];
            model.write(20, &boundaries, true);
            model
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("runs.bin")
        }

        /// Writes `len` frames with these boundaries; `survives`: whether the process survives the
        /// write.
        fn write(&mut self, len: usize, boundaries: &[Boundary], survives: bool) {
            let marks = RunMarks::new(boundaries, &RunKeys::default());
            let rows = ((self.next % CAPACITY as u64) as usize, len);
            let died = ReplayError::Detached;
            let write = || if survives { Ok(()) } else { Err(died) };
            let done = self.file.around(rows, &marks, || self.written, write);
            assert_eq!(done.is_ok(), survives);
            if survives {
                let words = boundaries.iter().map(|&it| KeptRuns::word(it, self.next));
                self.boundaries.extend(words);
                self.next += len as u64;
                self.written += len as u64;
            }
        }

        /// Opens the file as another process does, and compares what can be read of rows that are
        /// there.
        fn reopen(&mut self) {
            let (file, kept) = RunFile::open(&self.path(), OWNER, self.written).unwrap();
            self.file = file;
            let kept = kept.unwrap();
            assert_eq!(kept.next, self.next);
            assert_eq!(kept.keys, RunKeys::default().fingerprint());
            let oldest = self.next.saturating_sub(CAPACITY as u64);
            assert!(kept.base <= oldest);
            let of_rows = |words: &[u64]| -> Vec<u64> {
                let words = words.iter().copied();
                words
                    .filter(|&word| KeptRuns::frame(word) >= oldest)
                    .collect()
            };
            assert_eq!(of_rows(&kept.boundaries), of_rows(&self.boundaries));
        }
    }

    fn boundary(at: usize, ended: bool, apart: bool) -> Boundary {
        Boundary { at, ended, apart }
    }

    #[test]
    fn boundaries_are_those_of_rows_that_are_whole_wherever_a_process_died() {
        let mut rng = SampleRng::new(5);
        let mut model = Model::new();
        model.write(1, &[boundary(0, false, true)], true);
        for _ in 0..3000 {
            let len = 1 + rng.below(9);
            let mut boundaries = Vec::new();
            for at in 0..=len {
                if rng.below(6) == 0 {
                    boundaries.push(boundary(at, rng.below(2) == 0, rng.below(2) == 0));
                }
            }
            model.write(len, &boundaries, rng.below(4) > 0);
            if rng.below(5) == 0 {
                model.reopen();
            }
        }
        assert!(model.next > 100 * CAPACITY as u64);
    }

    #[test]
    fn boundaries_of_overwritten_rows_leave_the_file() {
        let mut model = Model::new();
        let all: Vec<Boundary> = (0..10).map(|at| boundary(at, true, false)).collect();
        let mut longest = 0;
        for _ in 0..3000 {
            model.write(10, &all, true);
            longest = longest.max(std::fs::metadata(model.path()).unwrap().len());
        }
        model.reopen();
        assert!(
            longest <= 8 * (HEAD + FEW + 2 * CAPACITY + 20) as u64,
            "{longest}"
        );
    }

    #[test]
    fn frames_whose_runs_nobody_names_are_to_be_looked_at() {
        let mut model = Model::of_20_frames();
        // In place of others, behind the newest, and somewhere else.
        for (first, in_place, next, base) in
            [(3, true, 20, 0), (20, false, 22, 0), (40, false, 42, 40)]
        {
            let written = model.written;
            let unknown = model
                .file
                .around_unknown((first, 2), || in_place, || written, || Ok(()));
            unknown.unwrap();
            model.written += 2;
            let (file, kept) = RunFile::open(&model.path(), OWNER, model.written).unwrap();
            model.file = file;
            let kept = kept.unwrap();
            assert_eq!((kept.keys, kept.next, kept.base), (0, next, base));
            assert_eq!(kept.boundaries.len(), 2);
        }
        // Nor do they become known with the next write.
        let marks = RunMarks::new(&[], &RunKeys::default());
        let written = model.written;
        model
            .file
            .around((42, 1), &marks, || written, || Ok(()))
            .unwrap();
        let (_, kept) = RunFile::open(&model.path(), OWNER, written + 1).unwrap();
        assert_eq!(kept.map(|kept| (kept.keys, kept.next)), Some((0, 43)));
    }

    #[test]
    fn a_cleared_file_begins_anew() {
        let mut model = Model::new();
        model.write(20, &[boundary(0, false, true)], true);
        let written = model.written;
        model.file.clear(|| written, || ());
        (model.next, model.boundaries) = (0, Vec::new());
        model.write(5, &[boundary(0, false, true)], false);
        model.write(
            4,
            &[boundary(0, false, true), boundary(2, true, false)],
            true,
        );
        model.reopen();
    }

    #[test]
    fn a_file_of_others_is_refused() {
        let model = Model::of_20_frames();
        let path = model.path();
        let good = std::fs::read(&path).unwrap();
        let open = |bytes: &[u8], written| {
            std::fs::write(&path, bytes).unwrap();
            let opened = RunFile::open(&path, OWNER, written);
            opened
                .map(|(_, kept)| kept)
                .map_err(|error| error.to_string())
        };
        assert!(open(&good, 20).unwrap().is_some());
        assert!(
            open(&good[..100], 20)
                .unwrap_err()
                .contains("runs.bin is damaged")
        );
        let short = &good[..good.len() - 8];
        assert!(open(short, 20).unwrap_err().contains("expected 2 places"));
        let mut other = good.clone();
        other[8 * HEAD] = 0xff;
        assert!(open(&other, 20).unwrap_err().contains("expected 2 places"));
        let mut torn = good.clone();
        torn[8 * SLOTS[1] + 1] ^= 1;
        // What is left is the state of a new file, which says nothing.
        assert!(open(&torn, 20).unwrap().is_none());
    }
}
