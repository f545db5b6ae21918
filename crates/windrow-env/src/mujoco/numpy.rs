//! Sums as NumPy computes them, in its order of additions: the last bits depend on it.

use std::ops::{Add, Mul};

/// Longest run that NumPy adds up without halving it.
const BLOCK: usize = 128;
/// Sums that it adds up side by side.
const LANES: usize = 8;

/// `np.sum(np.square(values))`.
pub(super) fn sum_of_squares<T>(values: &[T]) -> T
where
    T: Copy + Default + Add<Output = T> + Mul<Output = T>,
{
    sum_by(values, |value| value * value)
}

/// `np.sum` of what `map` makes of the values.
pub(super) fn sum_by<T: Copy + Default + Add<Output = T>>(
    values: &[T],
    map: impl Fn(T) -> T + Copy,
) -> T {
    match values.len() {
        len if len > BLOCK => {
            let half = len / 2 - len / 2 % LANES;
            let (left, right) = values.split_at(half);
            sum_by(left, map) + sum_by(right, map)
        }
        len if len >= LANES => {
            let (runs, rest) = values.as_chunks::<LANES>();
            let mut sums = [T::default(); LANES];
            for (i, run) in runs.iter().enumerate() {
                for (sum, &value) in sums.iter_mut().zip(run) {
                    *sum = if i == 0 {
                        map(value)
                    } else {
                        *sum + map(value)
                    };
                }
            }
            let [a, b, c, d, e, f, g, h] = sums;
            let sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
            rest.iter().fold(sum, |sum, &value| sum + map(value))
        }
        _ => values
            .iter()
            .fold(T::default(), |sum, &value| sum + map(value)),
    }
}

/// `np.linalg.norm(values)`, of two or three numbers, where OpenBLAS uses AVX-512: elsewhere it
/// rounds each square.
pub(super) fn norm(values: &[f64]) -> f64 {
    values
        .iter()
        .fold(0.0, |sum, value| value.mul_add(*value, sum))
        .sqrt()
}
