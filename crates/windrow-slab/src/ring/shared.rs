//! A ring whose workers are in other processes.

use std::sync::{Arc, Weak};

use super::{Pump, Ring, RingSpec, Source, Waits, states};
use crate::shared::{Bell, Segment, SharedFile};
use crate::{Layout, SlabError};

impl Ring {
    /// As [`new`](Self::new), with slabs in memory that other processes can map: a [`RemoteRing`](crate::RemoteRing) is such a
    /// process's view of it. The system sets the memory of the slabs that a consumer needs who drops each batch before it asks
    /// for the one after the next aside at once; that of others when they are first needed.
    ///
    /// Workers in this process may claim parts as well.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`SlabError::Descriptors`] when the process may open no more files.
    pub fn shared(layout: Layout, spec: RingSpec) -> Result<Arc<Self>, SlabError> {
        spec.check(&layout)?;
        let slabs = spec.max_slabs.min(spec.ahead.saturating_add(2));
        let (segment, control) = Segment::create(&layout, slabs)?;
        let (segment, control) = (Arc::new(segment), Arc::new(control));
        let (layout, source) = (Arc::new(layout), Source::Shared(Arc::clone(&segment)));
        let states = states(&layout, spec, &control, source)?;
        Ok(Arc::new(Self {
            layout,
            states,
            waits: Waits::pumped(Arc::clone(&control)),
            control,
            segment: Some(segment),
        }))
    }

    /// What workers in other processes map; `None` when the slabs are this process's own.
    #[must_use]
    pub fn file(&self) -> Option<&SharedFile> {
        self.segment.as_ref().map(|segment| segment.file())
    }

    /// Rung by workers in other processes after they have reported something, and by this ring: whoever waits for the ring then
    /// runs the pump and looks again. `None` when the slabs are this process's own.
    #[must_use]
    pub fn bell(&self) -> Option<&Bell> {
        self.segment.is_some().then(|| &*self.control.bell)
    }

    /// Has `pump` do the work of workers in other processes, from now on and for as long as it lives. A ring has one pump:
    /// further ones do not count, and a ring that is not [shared](Self::shared) takes none.
    pub fn attend(&self, pump: Weak<dyn Pump>) {
        self.waits.attend(pump);
    }

    /// Has the [pump](Pump) run once more: to be called after something changed that the ring does not know of, such as a new
    /// process in place of one that died.
    pub fn pump(&self) {
        self.waits.pump();
    }
}
