//! Episode marks: the entries of frames that mark the ends of episodes, and the trajectory of each
//! frame.

use std::sync::LazyLock;

use tensordict::{DType, NestedKey, Tensor, TensorDict, TensorError};

use crate::ReplayError;
use crate::runs::{Author, Open};

/// The entries that hold the ends of episodes and the ids of trajectories.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunKeys {
    /// A flag that is set with the last frame of an episode; `("next", "done")` when not given.
    pub end_key: Option<NestedKey>,
    /// An integer that is the same in all frames of a trajectory; `("collector", "traj_ids")` or
    /// `"episode"` when not given.
    pub traj_key: Option<NestedKey>,
}

static DONE: LazyLock<NestedKey> = LazyLock::new(|| ["next", "done"].into());
static IDS: LazyLock<[NestedKey; 2]> =
    LazyLock::new(|| [["collector", "traj_ids"].into(), "episode".into()]);

impl RunKeys {
    fn end(&self) -> &NestedKey {
        self.end_key.as_ref().unwrap_or(&DONE)
    }

    /// The keys of ids, in the order in which they are tried.
    fn ids(&self) -> &[NestedKey] {
        match &self.traj_key {
            Some(key) => std::slice::from_ref(key),
            None => &*IDS,
        }
    }

    /// A number that names them in files: never 0, and the same for keys that are read of the same
    /// frames.
    pub(crate) fn fingerprint(&self) -> u64 {
        // FNV-1a: files outlive the standard library's hashes, which may change with a release.
        let text = format!("{:?}", (self.end(), self.ids()));
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash.max(1)
    }

    /// All keys that are read.
    pub(crate) fn candidates(&self) -> Vec<NestedKey> {
        self.ids().iter().chain([self.end()]).cloned().collect()
    }
}

/// Ends and ids of frames that are written together.
#[derive(Debug)]
pub(crate) struct EpisodeMarks {
    frames: usize,
    /// Frames after which the next belongs to another environment: those of one row of the batch.
    row: usize,
    /// Whether the batch has several rows: the last is of another environment than the first of the
    /// next batch.
    several_rows: bool,
    author: Author,
    /// One flag a frame; `None` without ends.
    ends: Option<Tensor>,
    /// One id a frame.
    ids: Option<Vec<i64>>,
}

impl EpisodeMarks {
    /// Reads them from `frames`: flat, rows of `row` frames one after another.
    ///
    /// # Errors
    /// [`TensorError`] naming the key when an entry is not of the right dtype or shape,
    /// [`ReplayError::NoRuns`] when runs are `needed` and neither is there.
    pub(crate) fn read(
        frames: &TensorDict,
        row: usize,
        keys: &RunKeys,
        needed: bool,
    ) -> Result<Self, ReplayError> {
        let ends = ends_of(frames, keys.end())?;
        let mut ids = None;
        let mut id_keys = keys.ids().iter();
        while ids.is_none()
            && let Some(key) = id_keys.next()
        {
            ids = ids_of(frames, key)?;
        }
        if needed && ends.is_none() && ids.is_none() {
            return Err(ReplayError::NoRuns {
                end_key: keys.end().clone(),
                traj_key: keys.ids()[0].clone(),
            });
        }
        Ok(Self {
            frames: frames.numel(),
            row: row.max(1),
            several_rows: frames.numel() > row,
            author: Author::User(None),
            ends,
            ids,
        })
    }

    /// These marks, of frames of that author; users are the default.
    pub(crate) fn by(self, author: Author) -> Self {
        Self { author, ..self }
    }

    /// Ends and ids, one each a frame, of frames of one row.
    #[cfg(test)]
    pub(crate) fn of(ends: Option<&[bool]>, ids: Option<&[i64]>) -> Self {
        let frames = ends
            .map_or(0, <[bool]>::len)
            .max(ids.map_or(0, <[i64]>::len));
        Self {
            frames,
            row: frames.max(1),
            several_rows: false,
            author: Author::User(None),
            ends: ends.map(|ends| Tensor::from_slice(ends, [frames]).unwrap()),
            ids: ids.map(<[i64]>::to_vec),
        }
    }

    #[cfg(test)]
    pub(crate) fn rows_of(self, row: usize) -> Self {
        Self {
            row,
            several_rows: self.frames > row,
            ..self
        }
    }

    /// Drops the first `frames` frames.
    pub(crate) fn skip(mut self, frames: usize) -> Result<Self, TensorError> {
        if frames == 0 {
            return Ok(self);
        }
        self.frames -= frames;
        if let Some(ids) = &mut self.ids {
            ids.drain(..frames);
        }
        if let Some(ends) = &mut self.ends {
            *ends = ends.narrow(0, frames, self.frames)?;
        }
        // Rows are counted from the end, so that the first, cut one is shorter.
        Ok(self)
    }

    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    /// The state in which the last run can continue with the first of these frames.
    pub(crate) fn first_of(&self) -> Open {
        self.beside(0)
    }

    /// How the run of the last of these frames may continue.
    pub(crate) fn open(&self) -> Open {
        self.beside(self.frames - 1)
    }

    fn beside(&self, frame: usize) -> Open {
        if self.several_rows {
            return Open::No;
        }
        match (&self.ids, self.author) {
            (Some(ids), Author::Collector(stream)) => Open::Id(Some(stream), ids[frame]),
            (Some(ids), Author::User(_)) => Open::Id(None, ids[frame]),
            (None, Author::User(Some(thread))) => Open::Chain(thread),
            (None, _) => Open::No,
        }
    }

    /// Whether a row begins with this frame.
    pub(crate) fn begins_row(&self, frame: usize) -> bool {
        (self.frames - frame).is_multiple_of(self.row)
    }

    /// The end of the run that begins with frame `start`, `limit` at most, and whether its episode
    /// ends there.
    pub(crate) fn run_end(&self, start: usize, limit: usize) -> (usize, bool) {
        // Counted from the end: see `skip`.
        let left = (self.frames - start - 1) % self.row + 1;
        let limit = limit.min(start + left);
        let ids = self.ids.as_deref();
        let ends = self.ends.as_ref().and_then(|ends| ends.as_slice().ok());
        // Piece by piece, so that neither list is searched far beyond the end that the other one
        // has.
        let mut at = start;
        while at < limit {
            let piece = at..limit.min(at + PIECE);
            let other = |ids: &[i64]| ids[piece.clone()].iter().position(|id| *id != ids[start]);
            let same = ids.and_then(other).unwrap_or(piece.len());
            let last = ends.and_then(|ends: &[bool]| first_set(&ends[at..at + same]));
            match last {
                Some(last) => return (at + last + 1, true),
                None if same < piece.len() => return (at + same, false),
                None => at = piece.end,
            }
        }
        (limit, false)
    }
}

/// Frames that are searched together.
const PIECE: usize = 64;

/// Place of the first flag that is set.
fn first_set(flags: &[bool]) -> Option<usize> {
    let (words, rest) = flags.as_chunks::<8>();
    let word = |word: &[bool; 8]| u64::from_le_bytes(word.map(u8::from));
    match words.iter().position(|flags| word(flags) != 0) {
        Some(at) => Some(8 * at + word(&words[at]).trailing_zeros() as usize / 8),
        None => Some(8 * words.len() + rest.iter().position(|&flag| flag)?),
    }
}

/// One flag a frame: whether any of its flags under `key` is set. None when the entry is missing.
fn ends_of(frames: &TensorDict, key: &NestedKey) -> Result<Option<Tensor>, TensorError> {
    let Some(flags) = found(frames, key, &[DType::Bool])? else {
        return Ok(None);
    };
    let count = frames.numel();
    let flags = flags.contiguous();
    match flags.len().checked_div(count) {
        None | Some(1) => flags.view([count]).map(Some),
        Some(0) => Tensor::zeros(DType::Bool, [count]).map(Some),
        Some(each) => {
            let any = |flags: &[bool]| flags.contains(&true);
            let ends: Vec<bool> = flags.as_slice()?.chunks(each).map(any).collect();
            Tensor::from_vec(ends, [count]).map(Some)
        }
    }
}

/// One id a frame. None when the entry is missing.
fn ids_of(frames: &TensorDict, key: &NestedKey) -> Result<Option<Vec<i64>>, TensorError> {
    let Some(ids) = found(frames, key, &[DType::I64, DType::I32])? else {
        return Ok(None);
    };
    let count = frames.numel();
    if ids.len() != count {
        let error = TensorError::Shape {
            op: "trajectory ids",
            expected: vec![count],
            got: ids.shape().to_vec(),
        };
        return Err(error.at(key));
    }
    ids.cast(DType::I64)?.to_vec().map(Some)
}

fn found<'a>(
    frames: &'a TensorDict,
    key: &NestedKey,
    dtypes: &[DType],
) -> Result<Option<&'a Tensor>, TensorError> {
    if !frames.contains_key(key) {
        return Ok(None);
    }
    let tensor = frames.get(key)?;
    if !dtypes.contains(&tensor.dtype()) {
        let (expected, got) = (dtypes[0], tensor.dtype());
        return Err(TensorError::DType { expected, got }.at(key));
    }
    Ok(Some(tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(done: &[bool], ids: &[i64]) -> TensorDict {
        let mut frames = TensorDict::new([done.len()]);
        let done = Tensor::from_slice(done, [done.len(), 1]).unwrap();
        frames.set(("next", "done"), done).unwrap();
        let ids = Tensor::from_slice(ids, [ids.len()]).unwrap();
        frames.set(("collector", "traj_ids"), ids).unwrap();
        frames
    }

    fn ends(marks: &EpisodeMarks) -> Vec<(usize, bool)> {
        let mut found = vec![marks.run_end(0, marks.len())];
        while let Some(&(end, _)) = found.last().filter(|(end, _)| *end < marks.len()) {
            found.push(marks.run_end(end, marks.len()));
        }
        found
    }

    #[test]
    fn runs_end_at_flags_ids_and_rows() {
        let mut done = [false; 20];
        done[9] = true;
        done[19] = true;
        let mut ids = [1; 20];
        ids[15..].fill(2);
        let read =
            |row| EpisodeMarks::read(&frames(&done, &ids), row, &RunKeys::default(), true).unwrap();
        let whole = [(10, true), (15, false), (20, true)];
        assert_eq!(ends(&read(20)), whole);
        assert_eq!(
            ends(&read(5)),
            [(5, false), (10, true), (15, false), (20, true)]
        );
        assert_eq!(ends(&read(20).skip(12).unwrap()), [(3, false), (8, true)]);
        assert_eq!(
            ends(&read(10).skip(7).unwrap()),
            [(3, true), (8, false), (13, true)]
        );
    }

    #[test]
    fn keys_may_be_named_and_flags_be_several() {
        let mut frames = frames(&[true; 4], &[1; 4]);
        let flags = [false, false, true, false, false, false, false, true];
        let ends_of_agents = Tensor::from_slice(&flags, [4, 2]).unwrap();
        frames.set("over", ends_of_agents).unwrap();
        let ids = Tensor::from_slice(&[0i32, 0, 0, 1], [4, 1]).unwrap();
        frames.set("run", ids).unwrap();
        let keys = RunKeys {
            end_key: Some("over".into()),
            traj_key: Some("run".into()),
        };
        let marks = EpisodeMarks::read(&frames, 4, &keys, true).unwrap();
        assert_eq!(ends(&marks), [(2, true), (3, false), (4, true)]);
    }

    #[test]
    fn frames_that_say_nothing_are_refused_where_runs_are_needed() {
        let mut frames = TensorDict::new([2]);
        frames.set("x", Tensor::arange(0..2).unwrap()).unwrap();
        let read = |frames: &TensorDict, needed| {
            EpisodeMarks::read(frames, 2, &RunKeys::default(), needed)
        };
        assert_eq!(
            read(&frames, true).unwrap_err().to_string(),
            r#"trajectories cannot be told apart: frames have neither ("next", "done") nor ("collector", "traj_ids")"#
        );
        assert_eq!(ends(&read(&frames, false).unwrap()), [(2, false)]);
        let ids = Tensor::zeros(DType::F32, [2]).unwrap();
        frames.set("episode", ids).unwrap();
        assert_eq!(
            read(&frames, false).unwrap_err().to_string(),
            r#"entry "episode": expected dtype int64, got float32"#
        );
    }
}
