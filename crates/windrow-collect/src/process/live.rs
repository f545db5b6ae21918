//! What a worker notes in shared memory while it runs, so that the collector knows where it was when it died.

use windrow_process::{Episode, LiveWriter};

use crate::error::Place;
use crate::probe::{Phase, Probe};

/// Notes phase, episode and step of the first environment.
#[derive(Debug, Clone)]
pub(super) struct LiveProbe(LiveWriter);

impl LiveProbe {
    pub(super) fn new(writer: LiveWriter) -> Self {
        Self(writer)
    }
}

impl Probe for LiveProbe {
    #[inline]
    fn mark(&mut self, ended: Phase) {
        self.0.phase(ended as u32);
    }

    #[inline]
    fn stands(&mut self, at: impl FnOnce() -> Place) {
        let Place { episode, step, .. } = at();
        self.0.step(step as u32);
        let began = 0;
        self.0.episode(0, Episode { id: episode, began });
    }
}
