//! Words in memory that processes share.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A type that may lie in shared memory, where other processes change it.
///
/// # Safety
/// It has the same layout in every process of one build (`repr(C)`), any bytes are a value of it,
/// zeroed ones its default, and what is reached through a shared reference is atomic.
pub(crate) unsafe trait Words: Send + Sync {}

/// Words of one kind, one behind the other.
pub(crate) struct Shared<T> {
    #[cfg(not(loom))]
    words: mapped::Words<T>,
    #[cfg(loom)]
    words: Arc<[T]>,
}

impl<T: Words> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.words
    }
}

impl<T: Words> Shared<T> {
    /// Those with this index, which keep the memory.
    pub(crate) fn item(self: &Arc<Self>, index: usize) -> Option<Item<T>> {
        (index < self.len()).then(|| Item {
            all: Arc::clone(self),
            index,
        })
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// One of [`Shared`] words.
pub(crate) struct Item<T> {
    all: Arc<Shared<T>>,
    index: usize,
}

impl<T: Words> Deref for Item<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.all[self.index]
    }
}

impl<T> Clone for Item<T> {
    fn clone(&self) -> Self {
        Self {
            all: Arc::clone(&self.all),
            index: self.index,
        }
    }
}

impl<T> fmt::Debug for Item<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item").field("index", &self.index).finish()
    }
}

#[cfg(loom)]
impl<T: Default> Shared<T> {
    /// Models have words of their own, which know of each other.
    pub(crate) fn model(count: usize) -> Self {
        let words = (0..count).map(|_| T::default()).collect();
        Self { words }
    }
}

#[cfg(not(loom))]
pub(crate) use mapped::{Area, Cut, reserve};

#[cfg(not(loom))]
mod mapped {
    use std::io;
    use std::ops::Deref;
    use std::os::fd::OwnedFd;
    use std::ptr::NonNull;
    use std::slice;
    use std::sync::Arc;

    use windrow_slab::{Mapping, SharedFile};

    use super::Shared;
    use crate::ProcessError;
    use crate::refused::refused;

    /// Words of a mapping, which lives as long as they do.
    pub(super) struct Words<T> {
        first: NonNull<T>,
        count: usize,
        _mapping: Arc<Mapping>,
    }

    // SAFETY: it gives shared references to its words only, which are `Sync`, and the mapping may
    // be dropped by any thread.
    unsafe impl<T: super::Words> Send for Words<T> {}
    // SAFETY: as above.
    unsafe impl<T: super::Words> Sync for Words<T> {}

    impl<T: super::Words> Deref for Words<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            // SAFETY: `Cut::next` checked that they lie aligned within the mapping, which this
            // value keeps; any bytes are a value, and other processes change them by atomic
            // operations only (`super::Words`).
            unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
        }
    }

    /// A file and the mapping of its first bytes.
    pub(crate) struct Area {
        pub(crate) file: SharedFile,
        pub(crate) mapping: Arc<Mapping>,
    }

    impl Area {
        /// New memory of zeros, for `what`.
        pub(crate) fn create(what: &'static str, bytes: usize) -> Result<Self, ProcessError> {
            let file = SharedFile::create("windrow").map_err(refused("make memory to share"))?;
            reserve(&file, 0, bytes, what)?;
            Self::of(file, bytes)
        }

        /// The memory behind a descriptor that the parent sent.
        pub(crate) fn open(fd: OwnedFd, bytes: usize) -> Result<Self, ProcessError> {
            // SAFETY: the parent runs the same protocol, which the caller checks by the words at
            // the beginning: all words are atomic, and buffers are written while nobody has pinned
            // them.
            let file = unsafe { SharedFile::from_fd(fd) }.map_err(refused("open shared memory"))?;
            Self::of(file, bytes)
        }

        fn of(file: SharedFile, bytes: usize) -> Result<Self, ProcessError> {
            let mapping = file.map(0, bytes).map_err(refused("map shared memory"))?;
            let mapping = Arc::new(mapping);
            Ok(Self { file, mapping })
        }

        /// Its bytes, to be cut into words.
        pub(crate) fn cut(&self) -> Cut<'_> {
            let (mapping, at) = (&self.mapping, 0);
            Cut { mapping, at }
        }
    }

    /// Has the system set bytes aside.
    pub(crate) fn reserve(
        file: &SharedFile,
        offset: u64,
        bytes: usize,
        what: &'static str,
    ) -> Result<(), ProcessError> {
        file.reserve(offset, bytes as u64)
            .map_err(|source| match source.kind() {
                io::ErrorKind::OutOfMemory
                | io::ErrorKind::StorageFull
                | io::ErrorKind::FileTooLarge => ProcessError::NoMemory {
                    what,
                    bytes,
                    source,
                },
                _ => refused("set shared memory aside")(source),
            })
    }

    /// A mapping that is cut into words from its beginning on.
    pub(crate) struct Cut<'a> {
        mapping: &'a Arc<Mapping>,
        at: usize,
    }

    impl Cut<'_> {
        /// Bytes that a [`Cut`] at `at` has reached behind `count` words; `None` when that
        /// overflows.
        pub(crate) fn behind<T>(at: usize, count: usize) -> Option<usize> {
            let at = at.checked_next_multiple_of(align_of::<T>())?;
            at.checked_add(size_of::<T>().checked_mul(count)?)
        }

        /// The next `count` words, aligned.
        pub(crate) fn next<T: super::Words>(
            &mut self,
            count: usize,
        ) -> Result<Shared<T>, ProcessError> {
            let end = Self::behind::<T>(self.at, count).unwrap_or(usize::MAX);
            let mapped = self.mapping.len();
            if end > mapped {
                let (end, mapped) = (end as u64, mapped as u64);
                return Err(ProcessError::foreign("words", "size", end, mapped));
            }
            let start = end - count * size_of::<T>();
            self.at = end;
            // SAFETY: `start` is at most `end`, which lies within the mapping or just behind it.
            let first = unsafe { self.mapping.ptr().add(start) }.cast();
            let words = Words {
                first,
                count,
                _mapping: Arc::clone(self.mapping),
            };
            Ok(Shared { words })
        }
    }
}
