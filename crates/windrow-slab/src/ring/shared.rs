//! A ring whose workers are in other processes.

use std::sync::{Arc, Weak};

use super::{MemorySource, Pump, Ring, RingSpec, Waits, states};
use crate::shared::{Bell, Segment, SharedFile};
use crate::{Layout, SlabError};

impl Ring {
    /// As [`new`](Self::new), with slabs in memory that other processes can map: a
    /// [`RemoteRing`](crate::RemoteRing) is such a process's view of it. Memory is reserved at once
    /// for the slabs in regular use, those ahead and two more, so that running out of it is an
    /// error here; further slabs reserve theirs when a consumer that keeps batches needs them.
    ///
    /// Workers in this process may claim parts as well.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`SlabError::Descriptors`] when the process may open no more
    /// files.
    pub fn shared(layout: Layout, spec: RingSpec) -> Result<Arc<Self>, SlabError> {
        spec.check(&layout)?;
        let slabs = spec.max_slabs.min(spec.ahead.saturating_add(2));
        let (segment, control) = Segment::create(&layout, slabs)?;
        let (segment, control) = (Arc::new(segment), Arc::new(control));
        let (layout, source) = (Arc::new(layout), MemorySource::Shared(Arc::clone(&segment)));
        let states = states(&layout, spec, &control, source)?;
        Ok(Arc::new(Self {
            layout,
            states,
            waits: Waits::pumped(Arc::clone(&control)),
            control,
            segment: Some(segment),
        }))
    }

    /// The file that workers in other processes map; `None` if slabs are this process's own.
    #[must_use]
    pub fn file(&self) -> Option<&SharedFile> {
        self.segment.as_ref().map(|segment| segment.file())
    }

    /// The bell that workers in other processes ring after a report, and this ring after a change:
    /// a thread that waits for the ring then runs the pump and looks again. `None` if slabs are
    /// this process's own.
    #[must_use]
    pub fn bell(&self) -> Option<&Bell> {
        self.segment.is_some().then(|| &*self.control.bell)
    }

    /// Sets the `pump` that claims and commits parts for workers in other processes, for as long as
    /// it lives. A ring has one pump: further ones are ignored, as is any pump of a ring that is
    /// not [shared](Self::shared).
    pub fn attend(&self, pump: Weak<dyn Pump>) {
        self.waits.attend(pump);
    }

    /// Runs the [pump](Pump) once more. Call it after a change that the ring does not know of, such
    /// as a new process in place of one that died.
    pub fn pump(&self) {
        self.waits.pump();
    }
}
