//! What a worker notes in shared memory while it runs, so that the collector knows where it was
//! when it died.

use tensordict::for_dtype;
use windrow_peer::{ControlBlock, Episode, LiveWriter, Place as Live};
use windrow_slab::{Key, LeafSpec, Part, Row, SlabError};

use crate::error::Place;
use crate::probe::{Phase, Probe};

/// Notes phase, row, and the episodes of the worker's environments.
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

    /// For a part that was just claimed.
    pub(super) fn of_part(&self) -> Self {
        self.notes.phase(Phase::WaitSlab as u32);
        self.clone()
    }

    /// The part was handed over. What has been noted of it says nothing about the next one, which
    /// the collector may lend before the worker takes it up.
    pub(super) fn handed_over(&self) {
        self.notes.phase(Phase::Commit as u32);
    }
}

impl Probe for LiveProbe {
    #[inline]
    fn mark(&mut self, ended: Phase) {
        self.notes.phase(ended as u32);
        self.row += u32::from(ended == Phase::Close);
    }

    #[inline]
    fn stands<I: Iterator<Item = (usize, Place)>>(&mut self, begun: impl FnOnce() -> I) {
        self.notes.step(self.row);
        for (env, Place { episode, step, .. }) in begun() {
            // Its step at row 0, so that nothing is written again as long as the episode goes on.
            let began = step.wrapping_sub(u64::from(self.row));
            self.notes.episode(env, Episode { id: episode, began });
        }
    }
}

/// What a worker was doing when it died.
#[derive(Debug, Default)]
pub(super) struct LastSeen {
    /// Where its environment stood, if it has one.
    pub(super) place: Option<Place>,
    /// The last action of that environment.
    pub(super) action: Option<String>,
    /// In words that follow "it was"; for several environments, with the place and the last action
    /// of each.
    pub(super) doing: String,
}

/// Most environments that an error names.
const NAMED: usize = 8;

impl LastSeen {
    /// What worker `worker` has noted in `control` while it filled `part`, whose actions are the
    /// columns `action`: none of a worker that does not write them here.
    pub(super) fn of(
        worker: usize,
        control: &ControlBlock,
        part: &Part,
        action: &[LeafSpec],
    ) -> Self {
        let Ok(live) = control.place(worker) else {
            return Self::default();
        };
        let envs = part.envs();
        let place = |env| {
            let episode = control.episode(worker, env).ok()?;
            Some(Place {
                env: worker * envs + env,
                episode: episode.id,
                step: u64::from(live.step).wrapping_add(episode.began),
            })
        };
        let row = last_row(live, part.steps()).filter(|_| !action.is_empty());
        let acted = |env| written(part.policy(row?)?.env(env)?, action).ok();
        let doing = doing(live, part);
        if envs == 1 {
            return Self {
                place: place(0),
                action: acted(0),
                doing: doing.to_owned(),
            };
        }
        // They step as one: nobody knows at which of them it was.
        let each = (0..envs.min(NAMED)).filter_map(|env| {
            let Place {
                env: id,
                episode,
                step,
            } = place(env)?;
            let action =
                acted(env).map_or_else(String::new, |action| format!(", last action {action}"));
            Some(format!(
                "environment {id} in episode {episode}, step {step}{action}"
            ))
        });
        let mut each: Vec<String> = each.collect();
        if envs > NAMED {
            each.push(format!("and {} more", envs - NAMED));
        }
        Self {
            place: None,
            action: None,
            doing: format!(
                "{doing}, {envs} environments that step together: {}",
                each.join("; ")
            ),
        }
    }
}

/// Whether it has not begun to write its part: what else it has noted is of the part before.
fn is_before(live: Live) -> bool {
    let before = [
        Phase::Rollout,
        Phase::Commit,
        Phase::WaitSlab,
        Phase::LoadWeights,
    ];
    before.iter().any(|&ended| live.phase == ended as u32)
}

/// The last row of the part that has an action.
fn last_row(live: Live, steps: usize) -> Option<usize> {
    if is_before(live) {
        return None;
    }
    // The policy has written this row once it is done with the step.
    let acted = live.phase == Phase::Policy as u32 || live.phase == Phase::EnvStep as u32;
    let row = (live.step as usize + usize::from(acted)).checked_sub(1)?;
    (row < steps).then_some(row)
}

/// What follows the phase that has ended.
fn doing(live: Live, part: &Part) -> &'static str {
    let whole = live.step as usize >= part.steps();
    match Phase::ALL.get(live.phase as usize) {
        Some(Phase::WaitSlab) => "loading weights",
        Some(Phase::LoadWeights) => "in `reset`, at the start of a part",
        Some(Phase::Open) => "in its policy",
        Some(Phase::Close) if !whole => "in its policy",
        Some(Phase::Close) => "handing over a part",
        Some(Phase::Policy) => "in `step`",
        Some(Phase::EnvStep) => "in `reset`, after the end of an episode",
        Some(Phase::Commit) => "between two parts",
        _ => "about to begin a part",
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
            _ => format!("{:?} {values}", leaf.key),
        });
    }
    Ok(leaves.join(", "))
}
