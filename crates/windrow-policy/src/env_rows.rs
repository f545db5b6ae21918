use windrow_env::{EnvError, StateVisitor};

use crate::Noise;

/// The environments behind the rows of a block: their numbers, their frames so far, and their
/// random numbers.
///
/// ```
/// use windrow_policy::{EnvRows, Noise};
///
/// let mut envs = EnvRows::new(7, vec![4, 5]);
/// envs.advance();
/// assert_eq!((envs.ids(), envs.frames()), (&[4, 5][..], &[1, 1][..]));
/// assert_eq!(envs.noise(1), Noise::new(7, 5, 1));
/// ```
#[derive(Debug, Clone)]
pub struct EnvRows {
    seed: u64,
    ids: Vec<u32>,
    frames: Vec<u64>,
    is_first: Vec<bool>,
    /// Whether any of `is_first` is set.
    any_first: bool,
    /// Place of each row's state; empty if it is the number of the row.
    places: Vec<usize>,
    /// The random stream of each row's environment at its frame. Stored, since the next frame's is
    /// one addition away.
    noise: Vec<Noise>,
}

impl EnvRows {
    /// Environments `ids`, numbered over all workers, before their first frame.
    #[must_use]
    pub fn new(seed: u64, ids: Vec<u32>) -> Self {
        let rows = ids.len();
        let mut envs = Self {
            seed,
            ids,
            frames: vec![0; rows],
            is_first: vec![true; rows],
            any_first: true,
            places: Vec::new(),
            noise: Vec::new(),
        };
        envs.set_seed(seed);
        envs
    }

    /// Removes all rows, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.frames.clear();
        self.is_first.clear();
        self.any_first = false;
        self.places.clear();
        self.noise.clear();
    }

    /// Appends the rows of `other`, each with its noise and place.
    pub(crate) fn append(&mut self, other: &Self) {
        self.ids.extend_from_slice(&other.ids);
        self.frames.extend_from_slice(&other.frames);
        self.is_first.extend_from_slice(&other.is_first);
        self.any_first |= other.any_first;
        self.places.extend_from_slice(&other.places);
        self.noise.extend_from_slice(&other.noise);
    }

    /// Sets the places of states: `first` for the first row, and so on.
    pub(crate) fn set_places(&mut self, first: usize) {
        self.places.clear();
        self.places.extend(first..first + self.len());
    }

    /// Whether each call may have rows of other environments.
    pub(crate) fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// Bytes of a row in [`write`](Self::write): id, frame, first flag and noise.
    pub const ROW_BYTES: usize = 29;

    /// Appends the rows to `out`, each with its noise, so that [`read`](Self::read) has them in
    /// another process.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.reserve(self.len() * Self::ROW_BYTES);
        let frames = self.frames.iter().zip(&self.is_first).zip(&self.noise);
        for (id, ((frame, &first), noise)) in self.ids.iter().zip(frames) {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&frame.to_le_bytes());
            out.push(u8::from(first));
            out.extend_from_slice(&noise.to_bytes());
        }
    }

    /// Replaces the rows by those that [`write`](Self::write) appended; `None`, and no rows, if
    /// `bytes` are something else.
    #[must_use]
    pub fn read(&mut self, bytes: &[u8]) -> Option<()> {
        self.clear();
        for row in bytes.chunks(Self::ROW_BYTES) {
            let Some((id, frame, first, noise)) = fields(row) else {
                self.clear();
                return None;
            };
            self.ids.push(u32::from_le_bytes(id));
            self.frames.push(u64::from_le_bytes(frame));
            self.is_first.push(first);
            self.any_first |= first;
            self.noise.push(Noise::from_bytes(noise));
        }
        Some(())
    }

    /// Number of rows.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The number of each row's environment, over all workers. `[rows]`.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// How many frames each row's environment has delivered since it was seeded. `[rows]`.
    #[must_use]
    pub fn frames(&self) -> &[u64] {
        &self.frames
    }

    /// Whether each row begins an episode, so that states of its environment end. `[rows]`.
    #[inline(always)]
    #[must_use]
    pub fn is_first(&self) -> &[bool] {
        &self.is_first
    }

    /// Where a policy keeps what it remembers of the environment of row `row`, which must exist:
    /// always the same number for the same environment, and no other environment's. It is `row`
    /// itself, unless the policy is [served](crate::InferenceServer): then rows of a call are any
    /// of its environments, and the numbers are below the number of all of them, or not far above.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, row: usize) -> usize {
        self.places.get(row).copied().unwrap_or(row)
    }

    /// The random numbers of row `row`, which must exist: keyed by seed, environment and frame, so
    /// that actions do not depend on how environments are spread over workers.
    #[inline(always)]
    #[must_use]
    pub fn noise(&self, row: usize) -> Noise {
        self.noise[row].clone()
    }

    /// The random streams of all rows; clone one before you draw from it. `[rows]`.
    #[inline(always)]
    #[must_use]
    pub fn all_noise(&self) -> &[Noise] {
        &self.noise
    }

    /// Becomes the rows of `other`, each with the `n`-th stream beside its own.
    pub(crate) fn become_branch(&mut self, other: &Self, n: usize) {
        self.clear();
        self.append(other);
        self.noise
            .iter_mut()
            .for_each(|noise| *noise = noise.branch(n));
    }

    /// Every environment has delivered one more frame.
    #[inline(always)]
    pub fn advance(&mut self) {
        // One environment is a case of its own, since setting a vector loop up costs more than it
        // does.
        if let ([frame], Some(noise)) = (&mut self.frames[..], self.noise.first_mut()) {
            *frame += 1;
            noise.next_frame();
        } else {
            self.frames.iter_mut().for_each(|frame| *frame += 1);
            self.noise.iter_mut().for_each(Noise::next_frame);
        }
        if self.any_first {
            self.is_first.fill(false);
            self.any_first = false;
        }
    }

    /// Row `row`, which must exist, begins an episode.
    pub fn begin(&mut self, row: usize) {
        self.is_first[row] = true;
        self.any_first = true;
    }

    /// Every environment has delivered `frame` frames.
    pub fn set_frame(&mut self, frame: u64) {
        self.frames.fill(frame);
        self.set_seed(self.seed);
    }

    /// Saves or loads frames, beginnings and the seed of the noise, between two steps.
    ///
    /// # Errors
    /// [`EnvError::State`] where rows of other environments were saved.
    pub fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.section(format!("environments {:?}", self.ids))?;
        let mut seed = self.seed;
        state.value(&mut seed)?;
        state.values(&mut self.frames)?;
        state.values(&mut self.is_first)?;
        self.any_first = self.is_first.contains(&true);
        self.set_seed(seed);
        Ok(())
    }

    /// Draws all further noise from another seed.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
        let rows = self.ids.iter().zip(&self.frames);
        self.noise = rows
            .map(|(&id, &frame)| Noise::new(seed, id, frame))
            .collect();
    }
}

/// Id, frame, first flag and noise of a row.
type Fields = ([u8; 4], [u8; 8], bool, [u8; 16]);

fn fields(row: &[u8]) -> Option<Fields> {
    let (id, rest) = row.split_first_chunk()?;
    let (frame, rest) = rest.split_first_chunk()?;
    let (first, rest) = rest.split_first()?;
    let first = match first {
        0 => false,
        1 => true,
        _ => return None,
    };
    Some((*id, *frame, first, rest.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_and_read_again_with_their_noise() {
        let mut envs = EnvRows::new(3, vec![4, 7]);
        envs.set_frame(5);
        envs.advance();
        envs.begin(1);
        let mut bytes = vec![9];
        envs.write(&mut bytes);
        assert_eq!(bytes.len(), 1 + 2 * EnvRows::ROW_BYTES);
        let mut read = EnvRows::new(0, vec![1, 2, 3]);
        read.read(&bytes[1..]).unwrap();
        assert_eq!((read.ids(), read.frames()), (envs.ids(), envs.frames()));
        assert_eq!(read.is_first(), [false, true]);
        assert_eq!(read.all_noise(), envs.all_noise());
        read.advance();
        assert_eq!(read.noise(1), Noise::new(3, 7, 7));
        bytes[1 + 12] = 2;
        for broken in [&bytes[1..], &bytes[1..30 + 7]] {
            assert!(read.read(broken).is_none() && read.is_empty());
        }
    }

    #[test]
    fn carried_noise_is_that_of_the_frame() {
        let mut envs = EnvRows::new(3, vec![0, 1, 9]);
        for frame in 0..5 {
            for (row, id) in [0, 1, 9].into_iter().enumerate() {
                assert_eq!(envs.noise(row), Noise::new(3, id, frame));
            }
            envs.advance();
        }
        envs.set_frame(1 << 40);
        assert_eq!(envs.noise(2), Noise::new(3, 9, 1 << 40));
        envs.set_seed(4);
        assert_eq!(envs.noise(2), Noise::new(4, 9, 1 << 40));
    }

    #[test]
    fn rows_of_others_keep_their_frames_flags_and_noise() {
        let mut other = EnvRows::new(3, vec![4, 7]);
        other.set_frame(5);
        other.advance();
        other.begin(1);
        let mut joint = EnvRows::new(0, vec![9]);
        for before in [1, 0] {
            if before == 0 {
                joint.clear();
            }
            joint.append(&other);
            assert_eq!(joint.place(before), before);
            assert_eq!(joint.len(), before + 2);
            assert_eq!(joint.ids()[before..], [4, 7]);
            assert_eq!(joint.frames()[before..], [6, 6]);
            assert_eq!(joint.is_first()[before..], [false, true]);
            assert_eq!(joint.noise(before + 1), Noise::new(3, 7, 6));
        }
    }

    #[test]
    fn only_the_step_after_a_beginning_is_first() {
        let mut envs = EnvRows::new(0, vec![0, 1]);
        assert_eq!(envs.is_first(), [true, true]);
        envs.advance();
        assert_eq!(envs.is_first(), [false, false]);
        envs.begin(1);
        assert_eq!(envs.is_first(), [false, true]);
        envs.advance();
        assert_eq!(envs.is_first(), [false, false]);
    }
}
