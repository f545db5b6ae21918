//! The words of an exchange: two for each worker.

use std::sync::Arc;

use windrow_sync::mapped::AtomicU32;

use super::buffers::Buffers;
use crate::ProcessError;
use crate::shared::{Shared, Words as Shareable};

/// The words of publisher and reader for one worker. Buffers are counted from 1, and 0 is none.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct SeatWords {
    /// Written by the publisher.
    pub(super) newest: Line,
    /// Written by the worker, and by the publisher when it is dead.
    pub(super) pinned: Line,
}

/// A word with cache lines of its own.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Line(AtomicU32);

impl std::ops::Deref for Line {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.0
    }
}

// SAFETY: `repr(C)` of atomics.
unsafe impl Shareable for SeatWords {}

/// All words of one exchange.
#[derive(Debug)]
#[cfg_attr(loom, derive(Clone))]
pub(super) struct Words {
    #[cfg(not(loom))]
    file: Arc<windrow_slab::SharedFile>,
    /// Of each worker.
    pub(super) seats: Arc<Shared<SeatWords>>,
}

impl Words {
    pub(super) fn no_worker(&self, worker: usize) -> ProcessError {
        ProcessError::NoSuch {
            what: "worker",
            index: worker,
            count: self.seats.len(),
        }
    }
}

#[cfg(loom)]
impl Words {
    pub(super) fn create(workers: usize, bytes: usize) -> Result<(Self, Buffers), ProcessError> {
        let seats = Arc::new(Shared::model(workers));
        // One that is newest and one that is pinned for each worker, and one to write.
        Ok((Self { seats }, Buffers::model(2 * workers + 1, bytes)))
    }
}

#[cfg(not(loom))]
mod mapped {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Arc;

    use super::{Buffers, SeatWords, Shareable, Words};
    use crate::ProcessError;
    use crate::refused::refused;
    use crate::shared::{Area, Cut};
    use windrow_sync::mapped::{AtomicU64, Ordering};

    /// Begins every exchange; the last byte is the version of its layout.
    const MAGIC: u64 = u64::from_be_bytes(*b"wdrwxch\x02");

    /// The beginning of the file.
    #[repr(C, align(128))]
    struct HeaderWords {
        magic: AtomicU64,
        workers: AtomicU64,
        bytes: AtomicU64,
    }

    // SAFETY: `repr(C)` of atomics.
    unsafe impl Shareable for HeaderWords {}

    /// Bytes of header and words; `None` when they overflow.
    fn size(workers: usize) -> Option<usize> {
        Cut::behind::<SeatWords>(size_of::<HeaderWords>(), workers)
    }

    impl Words {
        pub(in crate::exchange) fn create(
            workers: usize,
            bytes: usize,
        ) -> Result<(Self, Buffers), ProcessError> {
            let area = Area::create(
                "the words of an exchange",
                size(workers).unwrap_or(usize::MAX),
            )?;
            for header in area.cut().next::<HeaderWords>(1)?.iter() {
                let fill = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
                fill(&header.magic, MAGIC);
                fill(&header.workers, workers as u64);
                fill(&header.bytes, bytes as u64);
            }
            Self::over(area, workers, bytes)
        }

        pub(in crate::exchange) fn open(fd: OwnedFd) -> Result<(Self, Buffers), ProcessError> {
            let head = Area::open(fd, size_of::<HeaderWords>())?;
            let header = head.cut().next::<HeaderWords>(1)?;
            let read = |word: fn(&HeaderWords) -> &AtomicU64| {
                header
                    .first()
                    .map_or(0, |header| word(header).load(Ordering::Relaxed))
            };
            let magic = read(|header| &header.magic);
            if magic != MAGIC {
                return Err(ProcessError::foreign("exchange", "magic", MAGIC, magic));
            }
            let workers = read(|header| &header.workers) as usize;
            let bytes = read(|header| &header.bytes) as usize;
            let mapping = head.file.map(0, size(workers).unwrap_or(usize::MAX));
            let mapping = Arc::new(mapping.map_err(refused("map the words of an exchange"))?);
            let file = head.file;
            Self::over(Area { file, mapping }, workers, bytes)
        }

        fn over(area: Area, workers: usize, bytes: usize) -> Result<(Self, Buffers), ProcessError> {
            let mut cut = area.cut();
            cut.next::<HeaderWords>(1)?;
            let seats = Arc::new(cut.next(workers)?);
            let first = area.mapping.len() as u64;
            let file = Arc::new(area.file);
            let buffers = Buffers::new(Arc::clone(&file), first, bytes);
            Ok((Self { file, seats }, buffers))
        }

        pub(in crate::exchange) fn as_fd(&self) -> BorrowedFd<'_> {
            self.file.as_fd()
        }
    }
}
