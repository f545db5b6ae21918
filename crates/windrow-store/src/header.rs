//! The header in front of the rows: which rows are filled, and which write is under way.

use std::ops::Range;

use windrow_sync::atomic::{AtomicU64, Ordering, fence};

use crate::epoch::PendingWrite;

/// Words before the bits, of which there is one for each row.
const HEAD: usize = 16;
#[cfg(not(loom))]
const MAGIC: usize = 0;
#[cfg(not(loom))]
const FINGERPRINT: usize = 1;
#[cfg(not(loom))]
const CAPACITY: usize = 2;
/// Twice the number of finished writes, and one more while another is under way.
const SEQUENCE: usize = 3;
/// Two notes of [`Note::WORDS`] each: write `n` uses note `n % 2`, so that the last finished one
/// stays.
const NOTES: usize = 4;

/// The place of a random number, which files that belong to this one repeat; 0 in old files.
#[cfg(not(loom))]
const IDENTITY: usize = 12;

/// The first word of a mapped file, which includes the version of the format.
#[cfg(not(loom))]
const OF_WINDROW: u64 = u64::from_le_bytes(*b"windrow1");

/// The first word while the file is being created.
#[cfg(not(loom))]
pub(crate) const UNMADE: u64 = u64::from_le_bytes(*b"windrow0");

/// Upper limit of all counts: a header with more is damaged.
#[cfg(not(loom))]
const MOST: u64 = 1 << 62;

/// Words and bits in front of the rows, shared by the one writer and any number of readers.
///
/// A write records its rows, sets the sequence to odd, clears its rows' bits, copies, sets the
/// bits, and sets the sequence to even. All of it lies in the store's memory, so that a mapped file
/// can be read after its process died at any instruction: an odd sequence means that the rows of
/// the latest record are torn.
#[derive(Debug)]
pub(crate) struct Header {
    /// The start of the store's memory, `len(capacity)` words of it.
    #[cfg(not(loom))]
    start: std::ptr::NonNull<u64>,
    #[cfg(loom)]
    words: Box<[AtomicU64]>,
    capacity: usize,
}

// SAFETY: an address of words that are only accessed as atomics; the store keeps them alive.
unsafe impl Send for Header {}
// SAFETY: as above.
unsafe impl Sync for Header {}

/// The record of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Note {
    /// First row.
    pub(crate) first: usize,
    /// Rows from there on, modulo the capacity.
    pub(crate) len: usize,
    /// Rows written over the life of the store, before this write.
    pub(crate) before: u64,
    /// The same, after it.
    pub(crate) after: u64,
}

impl Note {
    const WORDS: usize = 4;
}

impl Header {
    /// Words that a store of `capacity` rows needs.
    pub(crate) fn len(capacity: usize) -> usize {
        HEAD + capacity.div_ceil(64)
    }

    /// # Safety
    /// `start` is the start of `len(capacity)` aligned words that live as long as the result and
    /// are accessed through it alone.
    #[cfg(not(loom))]
    pub(crate) unsafe fn new(start: std::ptr::NonNull<u8>, capacity: usize) -> Self {
        Self {
            start: start.cast(),
            capacity,
        }
    }

    #[cfg(loom)]
    pub(crate) unsafe fn new(_: std::ptr::NonNull<u8>, capacity: usize) -> Self {
        Self {
            words: (0..Self::len(capacity))
                .map(|_| AtomicU64::new(0))
                .collect(),
            capacity,
        }
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < Self::len(self.capacity), "word {at} is in the header");
        // SAFETY: `at` is below `len(capacity)`: one of the first words, or the word of a row below
        // the capacity; `new` promises these words.
        unsafe { AtomicU64::from_ptr(self.start.add(at).as_ptr()) }
    }

    #[cfg(loom)]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at]
    }

    /// Whether `row`, which must be below the capacity, holds a frame.
    #[inline(always)]
    pub(crate) fn is_filled(&self, row: u32) -> bool {
        let word = self.word(HEAD + row as usize / 64).load(Ordering::Relaxed);
        word >> (row % 64) & 1 == 1
    }

    /// Records the beginning of a write, and clears its rows' bits. Only the writer calls this and
    /// the other methods that change words.
    pub(crate) fn begin(&self, write: PendingWrite, after: u64) {
        let sequence = self.load(SEQUENCE);
        let note = Note {
            first: write.first,
            len: write.len,
            before: self.last().after,
            after,
        };
        self.put((sequence / 2 % 2) as usize, note);
        self.word(SEQUENCE).store(sequence + 1, Ordering::Release);
        // Not a byte of the rows may change before the header says so, or a file could hold torn
        // rows that look whole.
        fence(Ordering::SeqCst);
        self.set(write, false);
        fence(Ordering::SeqCst);
    }

    /// Records the end of a write: its rows are filled from now on.
    pub(crate) fn commit(&self, write: PendingWrite) {
        fence(Ordering::SeqCst);
        self.set(write, true);
        self.finish();
    }

    /// Records the end of a write that leaves its rows empty.
    pub(crate) fn finish(&self) {
        self.word(SEQUENCE)
            .store(self.load(SEQUENCE) + 1, Ordering::Release);
    }

    /// The last finished write.
    pub(crate) fn last(&self) -> Note {
        let finished = self.load(SEQUENCE) / 2;
        // Both notes of an empty store are zero, so that the one before the first is as well.
        self.note((finished.wrapping_sub(1) % 2) as usize)
    }

    fn note(&self, which: usize) -> Note {
        let at = NOTES + which * Note::WORDS;
        Note {
            first: self.load(at) as usize,
            len: self.load(at + 1) as usize,
            before: self.load(at + 2),
            after: self.load(at + 3),
        }
    }

    fn put(&self, which: usize, note: Note) {
        let at = NOTES + which * Note::WORDS;
        let words = [note.first as u64, note.len as u64, note.before, note.after];
        for (place, value) in words.into_iter().enumerate() {
            self.word(at + place).store(value, Ordering::Relaxed);
        }
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Sets or clears the bits of these rows.
    fn set(&self, rows: PendingWrite, filled: bool) {
        for piece in rows.pieces(self.capacity) {
            self.set_range(piece, filled);
        }
    }

    fn set_range(&self, rows: Range<usize>, filled: bool) {
        let mut row = rows.start;
        while row < rows.end {
            let end = rows.end.min((row / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (end - row))) << (row % 64);
            let word = self.word(HEAD + row / 64);
            // Readers load the word meanwhile, for its other bits; there is no second writer.
            let old = word.load(Ordering::Relaxed);
            let new = if filled { old | mask } else { old & !mask };
            word.store(new, Ordering::Relaxed);
            row = end;
        }
    }

    /// Runs of filled rows, in order.
    pub(crate) fn filled(&self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for at in 0..self.capacity.div_ceil(64) {
            let mut word = self.load(HEAD + at);
            let base = (at * 64) as u32;
            let mut from = 0;
            while word != 0 {
                let skip = word.trailing_zeros();
                let run = (word >> skip).trailing_ones();
                let start = base + from + skip;
                match runs.last_mut() {
                    Some(last) if last.end == start => last.end = start + run,
                    _ => runs.push(start..start + run),
                }
                from += skip + run;
                word = word.checked_shr(skip + run).unwrap_or(0);
            }
        }
        runs
    }

    /// Makes memory of zeros behind [`UNMADE`] into a store whose layout has this fingerprint.
    #[cfg(not(loom))]
    pub(crate) fn create(&self, fingerprint: u64) {
        self.word(FINGERPRINT).store(fingerprint, Ordering::Relaxed);
        self.word(CAPACITY)
            .store(self.capacity as u64, Ordering::Relaxed);
        self.word(IDENTITY)
            .store(windrow_sync::entropy(), Ordering::Relaxed);
        self.word(MAGIC).store(OF_WINDROW, Ordering::Release);
    }

    /// The random number of the file, which no other file has.
    #[cfg(not(loom))]
    pub(crate) fn identity(&self) -> u64 {
        self.load(IDENTITY)
    }

    /// Whether this memory is not a store yet.
    #[cfg(not(loom))]
    pub(crate) fn is_unmade(&self) -> bool {
        self.load(MAGIC) == UNMADE
    }

    /// Repairs the file of a process that died: empties the rows of an unfinished write.
    ///
    /// # Errors
    /// The expected and the found value, if the header does not belong to such a store.
    #[cfg(not(loom))]
    pub(crate) fn recover(&self, fingerprint: u64) -> Result<(), (String, String)> {
        let capacity = self.capacity as u64;
        if self.load(MAGIC) != OF_WINDROW {
            let expected = "the mark of a windrow storage".to_owned();
            return Err((expected, "another".to_owned()));
        }
        if self.load(CAPACITY) != capacity {
            let got = format!("{} rows", self.load(CAPACITY));
            return Err((format!("{capacity} rows"), got));
        }
        if self.load(FINGERPRINT) != fingerprint {
            let expected = "frames of the names, types and shapes of these".to_owned();
            return Err((expected, "others".to_owned()));
        }
        let sequence = self.load(SEQUENCE);
        if sequence > MOST {
            return Err((format!("at most {MOST} writes"), format!("{sequence}")));
        }
        self.check(self.last())?;
        let torn = self.note((sequence / 2 % 2) as usize);
        if sequence % 2 == 1 {
            self.check(torn)?;
            let rows = PendingWrite {
                first: torn.first,
                len: torn.len,
            };
            self.set(rows, false);
            fence(Ordering::SeqCst);
            let undone = Note {
                len: 0,
                after: torn.before,
                ..torn
            };
            self.put((sequence / 2 % 2) as usize, undone);
            self.word(SEQUENCE).store(sequence + 1, Ordering::Release);
        }
        // Bits behind the last row would be runs of rows that do not exist.
        let spare = self.capacity % 64;
        if spare > 0 {
            let word = self.word(HEAD + self.capacity / 64);
            word.fetch_and(u64::MAX >> (64 - spare), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Checks that a write lies within the rows and counts no more than these.
    #[cfg(not(loom))]
    fn check(&self, note: Note) -> Result<(), (String, String)> {
        let Note {
            first,
            len,
            before,
            after,
        } = note;
        let counted = after.checked_sub(before);
        let counts = before <= MOST && counted.is_some_and(|rows| rows <= self.capacity as u64);
        if first < self.capacity && len <= self.capacity && counts {
            return Ok(());
        }
        let expected = format!("a write within {} rows that counts no more", self.capacity);
        let got = format!("{len} rows from {first} on, counted from {before} to {after}");
        Err((expected, got))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The header of a store of `capacity` rows, all of them filled by one write.
    fn filled(capacity: usize) -> (Header, Vec<u64>) {
        let mut memory = vec![0; Header::len(capacity)];
        let start = std::ptr::NonNull::from(memory.as_mut_slice()).cast();
        // SAFETY: the words are returned beside the header that uses them, and nothing else does.
        let header = unsafe { Header::new(start, capacity) };
        header.create(5);
        let all = PendingWrite {
            first: 0,
            len: capacity,
        };
        header.begin(all, capacity as u64);
        header.commit(all);
        (header, memory)
    }

    fn runs(only: Range<usize>) -> Vec<Range<u32>> {
        std::iter::once(only.start as u32..only.end as u32).collect()
    }

    #[test]
    fn a_write_that_died_before_it_cleared_its_rows_leaves_none_of_them() {
        for capacity in [64, 70, 130] {
            let (header, _memory) = filled(capacity);
            let first = capacity - 3;
            let torn = Note {
                first,
                len: 5,
                before: capacity as u64,
                after: capacity as u64 + 5,
            };
            header.put(1, torn);
            header.word(SEQUENCE).store(3, Ordering::Release);
            assert_eq!(header.filled(), runs(0..capacity));
            header.recover(5).unwrap();
            assert_eq!(header.filled(), runs(2..first));
            assert_eq!(header.last().after, capacity as u64);
        }
    }

    #[test]
    fn bits_behind_the_last_row_are_no_rows() {
        for capacity in [1, 63, 64, 65, 127] {
            let (header, _memory) = filled(capacity);
            let last = header.word(Header::len(capacity) - 1);
            last.store(u64::MAX, Ordering::Relaxed);
            header.recover(5).unwrap();
            assert_eq!(header.filled(), runs(0..capacity));
        }
    }

    #[test]
    fn a_write_that_died_while_it_took_its_note_changes_nothing() {
        let (header, _memory) = filled(10);
        // The first of four header is that of the next write, the others are older.
        header.put(
            1,
            Note {
                first: 9,
                ..Note::default()
            },
        );
        header.recover(5).unwrap();
        assert_eq!(header.filled(), runs(0..10));
        assert_eq!((header.last().first, header.last().after), (0, 10));
    }

    #[test]
    fn a_recovery_that_died_half_way_is_done_again() {
        let (header, _memory) = filled(10);
        // Of the entry that says that nothing was written, the length is there and the count is
        // not.
        let half_undone = Note {
            first: 4,
            len: 0,
            before: 10,
            after: 13,
        };
        header.put(1, half_undone);
        header.word(SEQUENCE).store(3, Ordering::Release);
        header.recover(5).unwrap();
        assert_eq!((header.last().first, header.last().after), (4, 10));
    }

    #[test]
    fn a_header_that_no_store_writes_is_refused() {
        let spoil = [
            (MAGIC, 0),
            (CAPACITY, 11),
            (FINGERPRINT, 6),
            (SEQUENCE, u64::MAX),
            (NOTES, 10),
            (NOTES + 1, 11),
            (NOTES + 2, u64::MAX),
            (NOTES + 3, u64::MAX),
        ];
        for (at, word) in spoil {
            let (header, _memory) = filled(10);
            header.recover(5).unwrap();
            header.word(at).store(word, Ordering::Relaxed);
            assert!(header.recover(5).is_err(), "word {at}");
        }
    }
}
