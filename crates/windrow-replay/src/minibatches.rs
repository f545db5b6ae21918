use std::collections::VecDeque;

use tensordict::{TensorDict, TensorError};

use crate::{ReplayError, SampleRng};

/// Last minibatches whose memory may be used again: a learner may still hold one while it asks for
/// the next.
const KEPT: usize = 2;

/// Shuffled minibatches of a batch, in several passes over its frames.
///
/// Each pass has every frame once, in an order of its own; the last minibatch of a pass is short
/// where the size does not divide the frames. A minibatch is a copy, in the memory of one before
/// that nobody holds any more; keep as many as you like.
///
/// ```
/// use windrow_replay::Minibatches;
/// use tensordict::{Tensor, TensorDict};
///
/// let mut batch = TensorDict::new([2, 50]);
/// batch.set("reward", Tensor::arange(0..100)?.view([2, 50])?)?;
/// let mut minibatches = Minibatches::new(32)?.epochs(3).seed(7);
/// let mut sizes = Vec::new();
/// for minibatch in minibatches.of(&batch) {
///     sizes.push(minibatch?.numel());
/// }
/// assert_eq!(sizes, [32, 32, 32, 4].repeat(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Minibatches {
    size: usize,
    epochs: usize,
    rng: SampleRng,
    order: Vec<usize>,
    spare: VecDeque<TensorDict>,
}

impl Minibatches {
    /// Minibatches of `size` frames, in one pass, by a seed from the operating system.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] when `size` is 0.
    pub fn new(size: usize) -> Result<Self, ReplayError> {
        if size == 0 {
            return Err(ReplayError::Argument {
                name: "size of a minibatch",
                expected: "1 or more".into(),
                got: "0".into(),
            });
        }
        Ok(Self {
            size,
            epochs: 1,
            rng: SampleRng::from_entropy(),
            order: Vec::new(),
            spare: VecDeque::with_capacity(KEPT + 1),
        })
    }

    /// How many passes there are over each batch.
    #[must_use]
    pub fn epochs(mut self, epochs: usize) -> Self {
        self.epochs = epochs;
        self
    }

    /// Draws the same orders as others of this seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.rng = SampleRng::new(seed);
        self
    }

    /// Those of `batch`, whose frames are counted over all batch dimensions. Orders go on from
    /// those of the batch before.
    pub fn of<'a>(&'a mut self, batch: &'a TensorDict) -> Passes<'a> {
        Passes {
            left: if batch.numel() > 0 { self.epochs } else { 0 },
            next: batch.numel(),
            batch,
            drawn: self,
        }
    }

    /// Shuffles the numbers below `len` (Fisher and Yates).
    fn shuffle(&mut self, len: usize) {
        self.order.clear();
        self.order.extend(0..len);
        for last in (1..len).rev() {
            self.order.swap(last, self.rng.below(last + 1));
        }
    }
}

/// The minibatches of one batch, made by [`Minibatches::of`].
#[derive(Debug)]
pub struct Passes<'a> {
    batch: &'a TensorDict,
    drawn: &'a mut Minibatches,
    /// Passes to begin.
    left: usize,
    /// Place in the order at which the next minibatch begins.
    next: usize,
}

impl Iterator for Passes<'_> {
    type Item = Result<TensorDict, TensorError>;

    fn next(&mut self) -> Option<Self::Item> {
        let len = self.batch.numel();
        if self.next >= len {
            self.left = self.left.checked_sub(1)?;
            self.next = 0;
            self.drawn.shuffle(len);
        }
        let Minibatches {
            size, order, spare, ..
        } = &mut *self.drawn;
        let end = self.next.saturating_add(*size).min(len);
        let oldest = if spare.len() < KEPT {
            None
        } else {
            spare.pop_front()
        };
        let rows = &order[std::mem::replace(&mut self.next, end)..end];
        let made = self
            .batch
            .rows_into(rows, oldest.unwrap_or_else(|| TensorDict::new([0])));
        if let Ok(made) = &made {
            spare.push_back(made.clone());
        }
        Some(made)
    }
}

#[cfg(test)]
mod tests {
    use tensordict::Tensor;

    use super::*;

    fn batch(frames: i64) -> TensorDict {
        let mut batch = TensorDict::new([frames as usize]);
        batch.set("at", Tensor::arange(0..frames).unwrap()).unwrap();
        let twice = Tensor::arange(0..2 * frames).unwrap();
        let twice = twice.view([frames as usize, 2]).unwrap();
        batch.set(("next", "twice"), twice).unwrap();
        batch
    }

    fn at(minibatch: &TensorDict) -> Vec<i64> {
        minibatch.get("at").unwrap().to_vec().unwrap()
    }

    #[test]
    fn each_pass_has_every_frame_once_in_an_order_of_its_own() {
        let batch = batch(10);
        let mut minibatches = Minibatches::new(4).unwrap().epochs(3).seed(1);
        let drawn: Vec<_> = minibatches.of(&batch).map(Result::unwrap).collect();
        let mut orders: Vec<Vec<i64>> = drawn
            .chunks(3)
            .map(|pass| pass.iter().flat_map(at).collect())
            .collect();
        assert_ne!(orders[0], orders[1]);
        for order in &mut orders {
            order.sort_unstable();
            assert_eq!(*order, (0..10).collect::<Vec<_>>());
        }
        for minibatch in &drawn {
            let twice = minibatch.as_slice::<i64>(("next", "twice")).unwrap();
            let expected = at(minibatch)
                .into_iter()
                .flat_map(|at| [2 * at, 2 * at + 1]);
            assert!(twice.iter().copied().eq(expected));
        }
    }

    #[test]
    fn orders_follow_the_seed_and_go_on_with_the_next_batch() {
        let batch = batch(50);
        let mut drawn = [5, 5, 6].map(|seed| {
            let mut minibatches = Minibatches::new(50).unwrap().seed(seed);
            [0, 1].map(|_| at(&minibatches.of(&batch).next().unwrap().unwrap()))
        });
        assert_eq!(drawn[0], drawn[1]);
        assert_ne!(drawn[0], drawn[2]);
        let [first, second] = &mut drawn[0];
        assert_ne!(first, second);
    }

    #[test]
    fn minibatches_that_are_held_stay_as_they_are_and_the_memory_of_others_is_used_again() {
        let batch = batch(8);
        let mut minibatches = Minibatches::new(2).unwrap().epochs(5).seed(0);
        let held: Vec<_> = minibatches.of(&batch).map(Result::unwrap).collect();
        let before: Vec<_> = held.iter().map(at).collect();
        let mut places = std::collections::BTreeSet::new();
        for minibatch in minibatches.of(&batch) {
            places.insert(minibatch.unwrap().get("at").unwrap().data_ptr());
        }
        assert!(places.len() <= KEPT, "{places:?}");
        assert_eq!(held.iter().map(at).collect::<Vec<_>>(), before);
    }

    #[test]
    fn no_frames_make_no_minibatch_and_none_has_no_size() {
        let mut minibatches = Minibatches::new(4).unwrap().epochs(2);
        assert!(minibatches.of(&batch(0)).next().is_none());
        let error = Minibatches::new(0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "size of a minibatch: expected 1 or more, got 0"
        );
    }
}
