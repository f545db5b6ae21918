//! The memory of weights, which is mapped buffer by buffer. Each begins with its version.

#[cfg(loom)]
pub(super) use heap::Buffers;
#[cfg(not(loom))]
pub(super) use mapped::{Buffers, HEAD};

#[cfg(not(loom))]
mod mapped {
    use std::slice;
    use std::sync::Arc;

    use windrow_slab::{Mapping, SharedFile};

    use crate::ProcessError;
    use crate::exchange::Snapshot;
    use crate::refused::refused;
    use crate::shared::reserve;
    use windrow_sync::mapped::AtomicI64;

    /// What the memory is for.
    const WHAT: &str = "a buffer of weights";

    /// Bytes before the weights, for their version; the weights begin at a cache line.
    pub(in crate::exchange) const HEAD: usize = 64;

    /// One process's view of all buffers.
    #[derive(Debug)]
    pub(in crate::exchange) struct Buffers {
        file: Arc<SharedFile>,
        /// Where the first one begins in the file.
        first: u64,
        /// Bytes of weights in each.
        bytes: usize,
        /// Those that are mapped here, also held by the snapshots of each.
        mapped: Vec<Option<Arc<Mapping>>>,
    }

    impl Buffers {
        /// Buffers behind the first `words` bytes of the file, each at the beginning of a page.
        pub(in crate::exchange) fn new(file: Arc<SharedFile>, words: u64, bytes: usize) -> Self {
            Self {
                file,
                first: words.next_multiple_of(SharedFile::page() as u64),
                bytes,
                mapped: Vec::new(),
            }
        }

        /// Where this buffer begins in the file, and its length with its head; beyond all files
        /// where that overflows.
        fn place(&self, buffer: usize) -> (u64, usize) {
            let len = self.bytes.saturating_add(HEAD);
            let stride = (len as u64).checked_next_multiple_of(SharedFile::page() as u64);
            let before = stride.and_then(|stride| stride.checked_mul(buffer as u64));
            let offset = before.and_then(|before| before.checked_add(self.first));
            (offset.unwrap_or(u64::MAX), len)
        }

        /// Has the system set this buffer's memory aside, unless it has.
        pub(in crate::exchange) fn make(&mut self, buffer: usize) -> Result<(), ProcessError> {
            if !matches!(self.mapped.get(buffer), Some(Some(_))) {
                let (offset, len) = self.place(buffer);
                reserve(&self.file, offset, len, WHAT)?;
                self.see(buffer)?;
            }
            Ok(())
        }

        /// Maps this buffer, unless it is.
        pub(in crate::exchange) fn see(&mut self, buffer: usize) -> Result<(), ProcessError> {
            if matches!(self.mapped.get(buffer), Some(Some(_))) {
                return Ok(());
            }
            let (offset, len) = self.place(buffer);
            // Before room is made for it: there is no end to the buffers that a broken word may
            // name.
            let mapping = self.file.map(offset, len);
            let mapping = mapping.map_err(refused("map a buffer of weights"))?;
            if self.mapped.len() <= buffer {
                self.mapped.resize_with(buffer + 1, || None);
            }
            self.mapped[buffer] = Some(Arc::new(mapping));
            Ok(())
        }

        /// Whether a snapshot of this buffer is alive.
        pub(in crate::exchange) fn is_held(&mut self, buffer: usize) -> bool {
            let mapping = self.mapped.get_mut(buffer).and_then(Option::as_mut);
            mapping.is_some_and(|mapping| Arc::get_mut(mapping).is_none())
        }

        /// This buffer as it is; [held](Self::is_held) as long as the result or what is made of it
        /// lives.
        pub(in crate::exchange) fn snapshot(
            &self,
            buffer: usize,
        ) -> Result<Snapshot, ProcessError> {
            let mapping = Arc::clone(self.mapping(buffer)?);
            let bytes = self.bytes;
            Ok(Snapshot { mapping, bytes })
        }

        fn mapping(&self, buffer: usize) -> Result<&Arc<Mapping>, ProcessError> {
            let mapping = self.mapped.get(buffer).and_then(Option::as_ref);
            mapping.ok_or(ProcessError::NoSuch {
                what: WHAT,
                index: buffer,
                count: self.mapped.len(),
            })
        }

        /// The version of a mapped buffer.
        pub(in crate::exchange) fn version(
            &self,
            buffer: usize,
        ) -> Result<&AtomicI64, ProcessError> {
            let ptr = self.mapping(buffer)?.ptr();
            // SAFETY: the head is mapped as long as `self` lives, begins a page, and is accessed as
            // this atomic only.
            Ok(unsafe { ptr.cast().as_ref() })
        }

        /// The bytes of a mapped buffer.
        ///
        /// # Safety
        /// Nobody writes the buffer, in whatever process, as long as the result lives.
        pub(in crate::exchange) unsafe fn bytes(
            &self,
            buffer: usize,
        ) -> Result<&[u8], ProcessError> {
            let ptr = self.mapping(buffer)?.ptr();
            // SAFETY: behind its head, the buffer is mapped for so many bytes as long as `self`
            // lives; nobody writes them (by the caller).
            Ok(unsafe { slice::from_raw_parts(ptr.add(HEAD).as_ptr(), self.bytes) })
        }

        /// As [`bytes`](Self::bytes), to write them.
        ///
        /// # Safety
        /// Nobody else reads or writes the buffer, in whatever process, as long as the result
        /// lives.
        pub(in crate::exchange) unsafe fn bytes_mut(
            &mut self,
            buffer: usize,
        ) -> Result<&mut [u8], ProcessError> {
            let ptr = self.mapping(buffer)?.ptr();
            // SAFETY: as in `bytes`; nobody else accesses them (by the caller).
            Ok(unsafe { slice::from_raw_parts_mut(ptr.add(HEAD).as_ptr(), self.bytes) })
        }

        /// Buffers that are mapped here.
        #[cfg(test)]
        pub(in crate::exchange) fn made(&self) -> usize {
            self.mapped.iter().flatten().count()
        }
    }
}

#[cfg(loom)]
mod heap {
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    use crate::ProcessError;
    use crate::exchange::Snapshot;
    use windrow_sync::{Shadow, mapped::AtomicI64};

    /// Buffers of one process, each with a shadow that finds two owners at once.
    #[derive(Debug, Clone)]
    pub(in crate::exchange) struct Buffers {
        all: Arc<[Buffer]>,
    }

    #[derive(Debug)]
    struct Buffer {
        version: AtomicI64,
        shadow: Shadow,
        bytes: UnsafeCell<Vec<u8>>,
    }

    // SAFETY: the shadow fails the model before two threads meet in the bytes.
    unsafe impl Sync for Buffer {}

    impl Buffers {
        pub(in crate::exchange) fn model(most: usize, bytes: usize) -> Self {
            let buffer = |_| Buffer {
                version: AtomicI64::new(0),
                shadow: Shadow::default(),
                bytes: UnsafeCell::new(vec![0; bytes]),
            };
            Self {
                all: (0..most).map(buffer).collect(),
            }
        }

        pub(in crate::exchange) fn make(&mut self, _: usize) -> Result<(), ProcessError> {
            Ok(())
        }

        pub(in crate::exchange) fn see(&mut self, _: usize) -> Result<(), ProcessError> {
            Ok(())
        }

        /// Models have readers in other threads only.
        pub(in crate::exchange) fn is_held(&mut self, _: usize) -> bool {
            false
        }

        pub(in crate::exchange) fn snapshot(&self, _: usize) -> Result<Snapshot, ProcessError> {
            Ok(Snapshot {})
        }

        pub(in crate::exchange) fn version(
            &self,
            buffer: usize,
        ) -> Result<&AtomicI64, ProcessError> {
            Ok(&self.all[buffer].version)
        }

        pub(in crate::exchange) unsafe fn bytes(
            &self,
            buffer: usize,
        ) -> Result<&[u8], ProcessError> {
            self.all[buffer].shadow.read();
            // SAFETY: nobody writes the buffer (by the caller), or the shadow has failed the model.
            Ok(unsafe { &*self.all[buffer].bytes.get() })
        }

        pub(in crate::exchange) unsafe fn bytes_mut(
            &mut self,
            buffer: usize,
        ) -> Result<&mut [u8], ProcessError> {
            self.all[buffer].shadow.write();
            // SAFETY: as above.
            Ok(unsafe { &mut *self.all[buffer].bytes.get() })
        }
    }
}
