//! What a worker notes in shared memory while it runs, so that the collector knows where it was when it died.

use tensordict::for_dtype;
use windrow_process::{ControlBlock, Episode, LiveWriter};
use windrow_slab::{Key, LeafSpec, Part, Row, SlabError};

use crate::error::Place;
use crate::probe::{Phase, Probe};

/// Notes phase, row, episode and step of the worker's first environment.
#[derive(Debug, Clone)]
pub(super) struct LiveProbe {
    notes: LiveWriter,
    /// Row of the part that is written next.
    row: u32,
}

impl LiveProbe {
    pub(super) fn new(notes: LiveWriter) -> Self {
        Self { notes, row: 0 }
    }
}

impl Probe for LiveProbe {
    #[inline]
    fn mark(&mut self, ended: Phase) {
        self.notes.phase(ended as u32);
        self.row += u32::from(ended == Phase::Close);
    }

    #[inline]
    fn stands(&mut self, at: impl FnOnce() -> Place) {
        let Place { episode, step, .. } = at();
        self.notes.step(self.row);
        self.notes.episode(
            0,
            Episode {
                id: episode,
                began: step,
            },
        );
    }
}

/// Where a worker stood when it died, and the last action of its environment.
#[derive(Debug, Default)]
pub(super) struct LastSeen {
    pub(super) place: Option<Place>,
    pub(super) action: Option<String>,
}

impl LastSeen {
    /// What worker `worker` has noted in `control` while it filled `part`, whose actions are the columns `action`. Nothing
    /// where it has several environments: nobody knows at which of them it was.
    pub(super) fn of(
        worker: usize,
        control: &ControlBlock,
        part: &Part,
        action: &[LeafSpec],
    ) -> Self {
        let noted = control
            .place(worker)
            .ok()
            .zip(control.episode(worker, 0).ok());
        let Some((live, episode)) = noted.filter(|_| part.envs() == 1) else {
            return Self::default();
        };
        let place = Place {
            env: worker,
            episode: episode.id,
            step: episode.began,
        };
        // The policy has written this row once it is done with the step.
        let acted = live.phase == Phase::Policy as u32 || live.phase == Phase::EnvStep as u32;
        let row = (live.step as usize + usize::from(acted)).checked_sub(1);
        let row = row.and_then(|row| part.policy(row)?.env(0));
        Self {
            place: Some(place),
            action: row.and_then(|row| written(row, action).ok()),
        }
    }
}

/// The values of an action, one list for each of its leaves.
fn written(row: Row<'_>, action: &[LeafSpec]) -> Result<String, SlabError> {
    let mut leaves = Vec::new();
    for (index, leaf) in action.iter().enumerate() {
        let values = for_dtype!(leaf.dtype, T => {
            format!("{:?}", row.get::<T>(Key::new(index))?)
        });
        leaves.push(match action.len() {
            1 => values,
            _ => format!("{} {values}", leaf.key),
        });
    }
    Ok(leaves.join(", "))
}
