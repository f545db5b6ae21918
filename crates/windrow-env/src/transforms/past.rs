//! Observations that are made of the last ones.

use std::fmt::Debug;

use tensordict::{DType, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowBlock, RowMut};

use super::relayout::FillLeaf;
use crate::number::Number;
use crate::{EnvError, StateVisitor};

/// Makes one observation of the last ones of an environment. They lie in a ring, one behind the
/// other.
pub trait Merge: Debug + Send {
    /// Fills `ring` with what stands for the observations before the `first` of an episode.
    fn begin<T: Number>(&self, ring: &mut [T], first: &[T]);

    /// Makes `to` of the observations in `ring`, the last of which is at place `newest`.
    fn merge<T: Number>(&self, ring: &[T], newest: usize, to: &mut [T]);
}

/// The last observations of each environment, for `M` to make one of them.
#[derive(Debug)]
pub struct Past<M> {
    dtype: DType,
    from: usize,
    pub(super) to: usize,
    n: usize,
    /// `n` observations of each environment, one behind the other.
    ring: RowBlock,
    /// The place of the oldest one of each environment.
    oldest: Vec<usize>,
    merge: M,
}

impl<M: Merge> Past<M> {
    /// The last `n` observations of `leaf`, which is the environments' leaf `from`; `n > 0`.
    pub(super) fn new(
        n: usize,
        (from, leaf): (usize, &LeafSpec),
        num_envs: usize,
        merge: M,
    ) -> Result<Self, EnvError> {
        let ring = LeafSpec::new("past", leaf.dtype, [n, leaf.elements()]);
        Ok(Self {
            dtype: leaf.dtype,
            from,
            to: 0,
            n,
            ring: RowBlock::new(&[ring], num_envs)?,
            oldest: vec![0; num_envs],
            merge,
        })
    }

    fn show(
        &mut self,
        env: usize,
        from: Row<'_>,
        to: &mut RowMut<'_>,
        is_first: bool,
    ) -> Result<(), EnvError> {
        let mut rows = self.ring.rows_mut();
        let (Some(mut row), Some(oldest)) = (rows.env_mut(env), self.oldest.get_mut(env)) else {
            return Ok(());
        };
        for_dtype!(self.dtype, T => {
            let seen = from.get(Key::<T>::new(self.from))?;
            let to = to.get_mut(Key::<T>::new(self.to))?;
            let ring = row.get_mut(Key::<T>::new(0))?;
            if is_first {
                self.merge.begin(ring, seen);
            }
            let newest = *oldest;
            ring[newest * seen.len()..][..seen.len()].copy_from_slice(seen);
            *oldest = (newest + 1) % self.n;
            self.merge.merge(ring, newest, to);
        });
        Ok(())
    }
}

impl<M: Merge> FillLeaf for Past<M> {
    fn first(&mut self, env: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        self.show(env, from, to, true)
    }

    fn next(&mut self, env: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        self.show(env, from, to, false)
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(&mut self.oldest)?;
        let mut rows = self.ring.rows_mut();
        for_dtype!(self.dtype, T => state.values(rows.get_mut(Key::<T>::new(0))?))
    }
}
