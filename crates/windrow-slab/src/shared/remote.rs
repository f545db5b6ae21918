//! A worker's view of a ring in another process (ADR 0014).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use windrow_sync::atomic::AtomicU64;
use windrow_sync::{Mutex, lock};

use super::SharedFile;
use super::segment::{Segment, refused};
use crate::control::Control;
use crate::part::Owner;
use crate::ring::{Commit, Ticket};
use crate::slab::Slab;
use crate::{Layout, Part, SlabError};

/// A ring that another process owns, in the process of a worker.
///
/// The owner claims a part and sends its numbers: slab, part and sequence. The worker makes a
/// [`Part`] of these and fills it like a part of its own ring. Committing or dropping it here only
/// ends this process's right to write; the report to the owner is a message of the caller's. The
/// owner then commits or drops the part that it has claimed.
#[derive(Debug)]
pub struct RemoteRing {
    layout: Layout,
    segment: Segment,
    control: Control,
    slabs: Mutex<Slabs>,
}

#[derive(Debug, Default)]
struct Slabs {
    /// The slabs named so far, by number.
    mapped: BTreeMap<usize, Arc<Slab>>,
    /// Slab and part of each `Part` that is alive.
    lent: Vec<(usize, usize)>,
}

impl RemoteRing {
    /// The ring in `file`, whose slabs are laid out by `layout`.
    ///
    /// # Errors
    /// [`SlabError::NoRing`] when the file holds something else, [`SlabError::OtherLayout`] when
    /// the ring's layout is another one, [`SlabError::System`].
    pub fn open(layout: Layout, file: SharedFile) -> Result<Arc<Self>, SlabError> {
        let (segment, control) = Segment::open(file, &layout)?;
        Ok(Arc::new(Self {
            layout,
            segment,
            control,
            slabs: Mutex::new(Slabs::default()),
        }))
    }

    /// Where columns lie in each slab.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The part that the ring's owner names by its [slab](Part::slot), its [index](Part::index) in
    /// it and the slab's [number](Part::seq). Maps the slab when it is named for the first time.
    ///
    /// # Errors
    /// [`SlabError::NoSuchSlab`], [`SlabError::NoSuchPart`], and [`SlabError::StillLent`] while an
    /// earlier [`Part`] of the same memory is alive; [`SlabError::System`] when the slab cannot be
    /// mapped.
    pub fn part(self: &Arc<Self>, slot: usize, part: usize, seq: u64) -> Result<Part, SlabError> {
        let parts = self.layout.parts.len();
        if part >= parts {
            return Err(SlabError::NoSuchPart { part, parts });
        }
        let mut slabs = lock(&self.slabs);
        if slabs.lent.contains(&(slot, part)) {
            return Err(SlabError::StillLent { slot, part });
        }
        let slab = match slabs.mapped.get(&slot) {
            Some(slab) => Arc::clone(slab),
            None => {
                let slab = Arc::new(self.map(slot)?);
                slabs.mapped.insert(slot, Arc::clone(&slab));
                slab
            }
        };
        slabs.lent.push((slot, part));
        drop(slabs);
        let owner: Arc<dyn Owner> = Arc::<Self>::clone(self);
        Ok(Part::new(owner, slab, Ticket { slot, part, seq }))
    }

    /// Wakes the thread that waits for the ring. Call it after a filled part was reported to the
    /// owner.
    pub fn ring_bell(&self) {
        self.control.bell.ring();
    }

    fn map(&self, slot: usize) -> Result<Slab, SlabError> {
        self.segment
            .slab(&self.layout, slot)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => SlabError::NoSuchSlab { slot },
                _ => refused("mmap")(error),
            })
    }

    fn take_back(&self, Ticket { slot, part, .. }: Ticket) {
        lock(&self.slabs).lent.retain(|lent| *lent != (slot, part));
    }
}

impl Owner for RemoteRing {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn cut(&self) -> &AtomicU64 {
        &self.control.cut
    }

    fn commit(&self, ticket: Ticket, _: Commit) {
        self.take_back(ticket);
    }

    fn orphan(&self, ticket: Ticket) {
        self.take_back(ticket);
    }
}
