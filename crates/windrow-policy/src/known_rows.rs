//! Which environments a policy has states of.

use windrow_env::{EnvError, StateVisitor};

use crate::EnvRows;

/// The environments whose states a policy has, for policies that keep states by
/// [place](EnvRows::place).
///
/// ```
/// use windrow_policy::{EnvRows, KnownRows};
///
/// let (mut known, mut envs) = (KnownRows::default(), EnvRows::new(0, vec![0, 1]));
/// assert_eq!(known.begins(&envs), [true, true]);
/// known.keep(&envs);
/// envs.advance();
/// envs.begin(1);
/// assert_eq!(known.begins(&envs), [false, true]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct KnownRows {
    /// By place: the frame that its state is for.
    next_frames: Vec<u64>,
    begins: Vec<bool>,
}

/// Marks a place without a state; no environment reaches this frame.
const NONE: u64 = u64::MAX;

impl KnownRows {
    /// Which rows start with an initial state: they begin an episode, or went on without the
    /// policy, or the policy failed at the step before. `[rows]`.
    pub fn begins(&mut self, envs: &EnvRows) -> &[bool] {
        let rows = envs.is_first().iter().zip(envs.frames()).enumerate();
        self.begins.clear();
        self.begins.extend(rows.map(|(row, (&first, frame))| {
            first || self.next_frames.get(envs.place(row)) != Some(frame)
        }));
        &self.begins
    }

    /// Saves or loads which environments these are, and their frames.
    ///
    /// # Errors
    /// [`EnvError::State`] where something else was saved.
    pub fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.value(&mut self.next_frames)
    }

    /// Places up to the last with a state.
    pub(crate) fn len(&self) -> usize {
        self.next_frames.len()
    }

    /// Records that the policy has acted: it now has states of these rows for their next frames.
    pub fn keep(&mut self, envs: &EnvRows) {
        for (row, frame) in envs.frames().iter().enumerate() {
            let place = envs.place(row);
            if self.next_frames.len() <= place {
                self.next_frames.resize(place + 1, NONE);
            }
            self.next_frames[place] = frame + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_know_their_frames_whatever_rows_they_have() {
        let mut known = KnownRows::default();
        let [mut one, mut other] = [vec![0, 1], vec![0]].map(|ids| EnvRows::new(0, ids));
        one.set_places(3);
        other.set_places(0);
        let mut joint = EnvRows::new(0, Vec::new());
        let call = |known: &mut KnownRows, joint: &mut EnvRows, parts: [&EnvRows; 2]| {
            joint.clear();
            parts.into_iter().for_each(|part| joint.append(part));
            let begins = known.begins(joint).to_vec();
            known.keep(joint);
            begins
        };
        assert_eq!(call(&mut known, &mut joint, [&one, &other]), [true; 3]);
        one.advance();
        other.advance();
        assert_eq!(call(&mut known, &mut joint, [&other, &one]), [false; 3]);
        assert_eq!((joint.place(0), joint.place(2)), (0, 4));
        // One goes on without the policy, the other begins an episode.
        one.advance();
        one.advance();
        other.advance();
        other.begin(0);
        assert_eq!(call(&mut known, &mut joint, [&one, &other]), [true; 3]);
        one.advance();
        let begins = call(&mut known, &mut joint, [&one, &other]);
        assert_eq!(begins, [false, false, true]);
    }
}
