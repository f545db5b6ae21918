//! The ring of slabs that the parent shows its workers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use windrow_slab::{Layout, RemoteRing, SharedFile, SlabError};

use crate::ChildEnd;
use crate::ProcessError;

impl ChildEnd {
    /// The ring behind `fd`, which came from the parent by the control socket; its slabs are laid out by `layout`.
    ///
    /// # Errors
    /// [`ProcessError::System`] when it is not the file of slabs; as [`RemoteRing::open`].
    pub fn ring(&self, layout: Layout, fd: OwnedFd) -> Result<Arc<RemoteRing>, RingError> {
        // SAFETY: only the parent writes to the socket that `fd` came by. It names each part to one worker at a time, and leaves
        // the part alone until that worker has answered or its process has ended.
        let file = unsafe { SharedFile::from_fd(fd) };
        let file = file.map_err(|source| ProcessError::System {
            what: "take the file of slabs",
            source,
        })?;
        Ok(RemoteRing::open(layout, file)?)
    }
}

/// The ring of the parent cannot be seen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The descriptor is not one of a ring.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The ring is another one than expected.
    #[error(transparent)]
    Slab(#[from] SlabError),
}
