//! A linear layer and an element-wise function on a block of rows.

use pulp::{Simd, WithSimd};

use super::Function;
use super::kernel::Packed;

/// Rows that pass through the whole network before the next ones, so that values between two layers
/// stay in the nearest caches and scratch memory is bounded.
pub(super) const BLOCK: usize = 64;

/// Copies `rows` rows from one distance to another, as much of each as both have.
#[inline(always)]
pub(super) fn copy_rows(
    rows: usize,
    from: &[f32],
    from_stride: usize,
    to: &mut [f32],
    to_stride: usize,
) {
    let width = from_stride.min(to_stride);
    for row in 0..rows {
        let from = &from[row * from_stride..][..width];
        let to = &mut to[row * to_stride..][..width];
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// A linear layer and a function after it, either of which may be missing. Compiled apart from the
/// loop over steps: inside of it, the compiler would prepare for all functions at once, which takes
/// longer than a row of a small network.
///
/// Dispatched by reference: moved, it would be read in wider pieces than it was just written in,
/// which makes a processor wait.
pub(super) struct Apply<'a> {
    /// The layer, and its inputs with the distance of their rows.
    pub(super) linear: Option<(&'a Packed, &'a [f32], usize)>,
    pub(super) function: Option<Function>,
    pub(super) rows: usize,
    /// `[rows, padded outputs]`.
    pub(super) values: &'a mut [f32],
}

impl WithSimd for &mut Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if let Some((packed, input, stride)) = self.linear {
            packed.apply(simd, self.rows, input, stride, self.values);
        }
        if let Some(function) = self.function {
            function.apply(simd, self.values);
        }
    }
}

/// Asks for the vector length, in `f32` elements.
pub(super) struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}
