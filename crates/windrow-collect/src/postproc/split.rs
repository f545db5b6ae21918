//! One row for each piece of a trajectory.

use tensordict::{DType, Tensor, TensorDict, TensorError};

use crate::trajectories::{
    BatchRows, IDS, MASK, Marks, Move, PADDING_ID, done_of, mask_of, one_each, padding_mask,
    rearranged, rebuilt,
};

/// Other keys of ids and mask, at the top level.
const FLAT_IDS: &[&str] = &["traj_ids"];
const FLAT_MASK: &[&str] = &["mask"];

/// A copy of `batch`, `[…, time]`, with one row for each trajectory in it: `[pieces, longest]`,
/// zeros after the end of each, where ids are -1. The second dimension is named `"time"`.
///
/// A trajectory that continues in the next batch is cut: rows are pieces, in the order in which
/// they come in `batch`, environment by environment. A piece ends where `("collector", "traj_ids")`
/// changes, or top-level `"traj_ids"`, and with its environment's last frame. Where there are no
/// ids, pieces end where `("next", "done")` is true, and ids from 0 on are added.
///
/// `("collector", "mask")`, `bool` `[pieces, longest]`, is true before the end; with top-level
/// `"traj_ids"` it is `"mask"`. Frames that such a mask excludes already are left out.
///
/// ```
/// use windrow_collect::{Collector, postproc::split_trajectories};
///
/// let mut collector = Collector::builder("CartPole-v1")
///     .num_envs(2)
///     .frames_per_batch(100)
///     .max_frames_per_traj(5)
///     .postproc(|batch| split_trajectories(&batch))
///     .build()?;
/// let batch = collector.next().unwrap()?;
/// assert_eq!(batch.batch_size(), &[20, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TensorError`] when neither ids nor `("next", "done")` are there, when one is of another type
/// or shape, when the batch has no dimension, or when padding makes it larger than the address
/// space.
pub fn split_trajectories(batch: &TensorDict) -> Result<TensorDict, TensorError> {
    let rows = BatchRows::of(batch)?;
    let flat = batch.contains_key(FLAT_IDS) && !batch.contains_key(IDS);
    let (key, mask_key) = if flat {
        (FLAT_IDS, FLAT_MASK)
    } else {
        (IDS, MASK)
    };
    let mut frames = batch.exclude(&[mask_key]);
    let pieces = if batch.contains_key(key) {
        let ids = one_each::<i64>(batch, key)?;
        pieces(batch, rows, &ids, &like(batch, DType::Bool)?, mask_key)?
    } else {
        let ids = like(batch, DType::I64)?;
        let pieces = pieces(batch, rows, &ids, &done_of(batch)?, mask_key)?;
        frames.set(key, numbered(batch, &pieces)?)?;
        pieces
    };
    let mut split = padded(&frames, &pieces, key, mask_key)?;
    split.set_names(&[None, Some("time")])?;
    Ok(split)
}

/// Zeros, one for each frame.
fn like(batch: &TensorDict, dtype: DType) -> Result<Tensor, TensorError> {
    Tensor::zeros(dtype, [batch.numel()])
}

/// Index of the first frame, and number of frames, of each piece, row-major.
fn pieces(
    batch: &TensorDict,
    rows: BatchRows,
    ids: &Tensor,
    done: &Tensor,
    mask_key: &[&str],
) -> Result<Vec<(usize, usize)>, TensorError> {
    let mask = mask_of(batch, mask_key)?;
    let marks = Marks::of(ids, done, mask.as_ref())?;
    let mut pieces = Vec::new();
    marks.runs(rows, |run| pieces.push((run.start, run.len)));
    pieces.sort_unstable();
    Ok(pieces)
}

/// The number of each frame's piece.
fn numbered(batch: &TensorDict, pieces: &[(usize, usize)]) -> Result<Tensor, TensorError> {
    let mut ids = vec![0i64; batch.numel()];
    for (id, &(start, len)) in pieces.iter().enumerate() {
        ids[start..start + len].fill(id as i64);
    }
    Tensor::from_vec(ids, batch.batch_size())
}

/// A padded row for each of `pieces`, and the mask under `mask_key`.
fn padded(
    batch: &TensorDict,
    pieces: &[(usize, usize)],
    key: &[&str],
    mask_key: &[&str],
) -> Result<TensorDict, TensorError> {
    let lens: Vec<usize> = pieces.iter().map(|&(_, len)| len).collect();
    let longest = lens.iter().copied().max().unwrap_or(0);
    let places = pieces.iter().zip((0..).step_by(longest.max(1)));
    let moves: Vec<Move> = places
        .map(|(&(from, len), to)| Move { from, to, len })
        .collect();
    let (dims, size) = (batch.ndim(), [lens.len(), longest]);
    let mut out = rebuilt(batch, dims, &size, &mut |tensor| {
        rearranged(tensor, dims, &moves, &size)
    })?;
    let ids = out.get(key)?;
    let (shape, mut ids) = (ids.shape().to_vec(), ids.to_vec::<i64>()?);
    for (row, &len) in ids.chunks_mut(longest.max(1)).zip(&lens) {
        row[len..].fill(PADDING_ID);
    }
    out.set(key, Tensor::from_vec(ids, shape)?)?;
    out.set(mask_key, padding_mask(&lens, longest)?)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that are numbered from 1 on.
    fn batch(size: &[usize]) -> TensorDict {
        let mut batch = TensorDict::new(size);
        let frames = batch.numel();
        let numbers = Tensor::arange(1..frames as i64 + 1).unwrap();
        let shape = [size, &[1]].concat();
        batch
            .set("observation", numbers.view(shape).unwrap())
            .unwrap();
        batch
    }

    fn with_ids(size: &[usize], key: &[&str], ids: &[i64]) -> TensorDict {
        let mut batch = batch(size);
        batch
            .set(key, Tensor::from_slice(ids, size).unwrap())
            .unwrap();
        batch
    }

    fn ints(batch: &TensorDict, key: &[&str]) -> Vec<i64> {
        batch.get(key).unwrap().to_vec().unwrap()
    }

    fn mask(batch: &TensorDict, key: &[&str]) -> Vec<bool> {
        batch.get(key).unwrap().to_vec().unwrap()
    }

    #[test]
    fn pieces_are_padded_to_the_longest() {
        let batch = with_ids(&[2, 3], IDS, &[7, 7, 9, 4, 4, 4]);
        let split = split_trajectories(&batch).unwrap();
        assert_eq!(split.batch_size(), [3, 3]);
        assert_eq!(split.names()[1].as_deref(), Some("time"));
        assert_eq!(ints(&split, &["observation"]), [1, 2, 0, 3, 0, 0, 4, 5, 6]);
        assert_eq!(ints(&split, IDS), [7, 7, -1, 9, -1, -1, 4, 4, 4]);
        let (o, x) = (false, true);
        assert_eq!(mask(&split, MASK), [x, x, o, x, o, o, x, x, x]);
    }

    #[test]
    fn pieces_come_environment_by_environment_also_where_a_later_one_ends_first() {
        let split = split_trajectories(&with_ids(&[2, 3], IDS, &[7, 7, 7, 4, 9, 9])).unwrap();
        assert_eq!(ints(&split, IDS), [7, 7, 7, 4, -1, -1, 9, 9, -1]);
        assert_eq!(ints(&split, &["observation"]), [1, 2, 3, 4, 0, 0, 5, 6, 0]);
    }

    #[test]
    fn workers_and_nested_dicts_keep_what_follows_time() {
        let mut batch = with_ids(&[2, 1, 2], IDS, &[1, 2, 3, 3]);
        let mut agents = TensorDict::new([2, 1, 2, 5]);
        let state = Tensor::arange(0..20).unwrap().view([2, 1, 2, 5]).unwrap();
        agents.set("state", state).unwrap();
        batch.set("agents", agents).unwrap();
        let split = split_trajectories(&batch).unwrap();
        let agents = split.get_dict("agents").unwrap();
        assert_eq!(agents.batch_size(), [3, 2, 5]);
        let last = agents.index(2).unwrap();
        assert_eq!(ints(&last, &["state"]), (10..20).collect::<Vec<_>>());
    }

    #[test]
    fn without_ids_the_endings_tell() {
        let mut batch = batch(&[2, 4]);
        let (o, x) = (false, true);
        let done = Tensor::from_vec(vec![o, x, o, o, o, o, o, x], [2, 4, 1]).unwrap();
        batch.set(("next", "done"), done).unwrap();
        let split = split_trajectories(&batch).unwrap();
        assert_eq!(split.batch_size(), [3, 4]);
        assert_eq!(ints(&split, IDS), [0, 0, -1, -1, 1, 1, -1, -1, 2, 2, 2, 2]);
        assert_eq!(
            ints(&split, &["observation"]),
            [1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 7, 8]
        );
    }

    #[test]
    fn ids_at_the_top_have_their_mask_there() {
        let split = split_trajectories(&with_ids(&[3], FLAT_IDS, &[5, 6, 6])).unwrap();
        assert_eq!(mask(&split, FLAT_MASK), [true, false, true, true]);
        assert!(!split.contains_key(MASK));
    }

    #[test]
    fn frames_that_a_mask_excludes_are_left_out() {
        let mut batch = with_ids(&[2, 2], IDS, &[1, 0, 2, 2]);
        let kept = Tensor::from_vec(vec![true, false, true, true], [2, 2]).unwrap();
        batch.set(MASK, kept).unwrap();
        let split = split_trajectories(&batch).unwrap();
        assert_eq!(ints(&split, &["observation"]), [1, 0, 3, 4]);
        assert_eq!(mask(&split, MASK), [true, false, true, true]);
        // What is split already stays what it is.
        assert_eq!(split_trajectories(&split).unwrap(), split);
    }

    #[test]
    fn no_frames_make_no_pieces() {
        let split = split_trajectories(&with_ids(&[0, 4], IDS, &[])).unwrap();
        assert_eq!(split.batch_size(), [0, 0]);
    }

    #[test]
    fn neither_ids_nor_endings_is_an_error() {
        let message = split_trajectories(&batch(&[3])).unwrap_err().to_string();
        assert!(message.contains(r#"("next", "done")"#), "{message}");
    }
}
