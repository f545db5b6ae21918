//! The memory of weights, which is mapped buffer by buffer.

#[cfg(loom)]
pub(super) use heap::Buffers;
#[cfg(not(loom))]
pub(super) use mapped::Buffers;

#[cfg(not(loom))]
mod mapped {
    use std::slice;
    use std::sync::Arc;

    use windrow_slab::{Mapping, SharedFile};

    use crate::ProcessError;
    use crate::refused::refused;
    use crate::shared::reserve;

    /// What the memory is for.
    const WHAT: &str = "a buffer of weights";

    /// One process's view of all buffers.
    #[derive(Debug)]
    pub(in crate::exchange) struct Buffers {
        file: Arc<SharedFile>,
        /// Where the first one begins in the file.
        first: u64,
        /// Bytes of each.
        bytes: usize,
        mapped: Vec<Option<Mapping>>,
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

        /// Where this buffer begins in the file; `None` beyond all files.
        fn offset(&self, buffer: usize) -> Option<u64> {
            let page = SharedFile::page() as u64;
            let stride = (self.bytes.max(1) as u64).checked_next_multiple_of(page)?;
            stride.checked_mul(buffer as u64)?.checked_add(self.first)
        }

        /// Has the system set this buffer's memory aside, unless it has.
        pub(in crate::exchange) fn make(&mut self, buffer: usize) -> Result<(), ProcessError> {
            if !matches!(self.mapped.get(buffer), Some(Some(_))) {
                let offset = self.offset(buffer).unwrap_or(u64::MAX);
                reserve(&self.file, offset, self.bytes.max(1), WHAT)?;
                self.see(buffer)?;
            }
            Ok(())
        }

        /// Maps this buffer, unless it is.
        pub(in crate::exchange) fn see(&mut self, buffer: usize) -> Result<(), ProcessError> {
            if self.mapped.len() <= buffer {
                self.mapped.resize_with(buffer + 1, || None);
            }
            let offset = self.offset(buffer).unwrap_or(u64::MAX);
            if let Some(mapping @ None) = self.mapped.get_mut(buffer) {
                let mapped = self.file.map(offset, self.bytes.max(1));
                *mapping = Some(mapped.map_err(refused("map a buffer of weights"))?);
            }
            Ok(())
        }

        fn mapping(&self, buffer: usize) -> Result<&Mapping, ProcessError> {
            let mapping = self.mapped.get(buffer).and_then(Option::as_ref);
            mapping.ok_or(ProcessError::NoSuch {
                what: WHAT,
                index: buffer,
                count: self.mapped.len(),
            })
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
            // SAFETY: the buffer is mapped for so many bytes as long as `self` lives; nobody writes it (by the caller).
            Ok(unsafe { slice::from_raw_parts(ptr.as_ptr(), self.bytes) })
        }

        /// As [`bytes`](Self::bytes), to write them.
        ///
        /// # Safety
        /// Nobody else reads or writes the buffer, in whatever process, as long as the result lives.
        pub(in crate::exchange) unsafe fn bytes_mut(
            &mut self,
            buffer: usize,
        ) -> Result<&mut [u8], ProcessError> {
            let ptr = self.mapping(buffer)?.ptr();
            // SAFETY: the buffer is mapped for so many bytes as long as `self` lives; nobody else accesses it (by the caller).
            Ok(unsafe { slice::from_raw_parts_mut(ptr.as_ptr(), self.bytes) })
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
    use crate::sync::Shadow;

    /// Buffers of one process, each with a shadow that finds two owners at once.
    #[derive(Debug, Clone)]
    pub(in crate::exchange) struct Buffers {
        all: Arc<[Buffer]>,
    }

    #[derive(Debug)]
    struct Buffer {
        shadow: Shadow,
        bytes: UnsafeCell<Vec<u8>>,
    }

    // SAFETY: the shadow fails the model before two threads meet in the bytes.
    unsafe impl Sync for Buffer {}

    impl Buffers {
        pub(in crate::exchange) fn model(most: usize, bytes: usize) -> Self {
            let buffer = |_| Buffer {
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
