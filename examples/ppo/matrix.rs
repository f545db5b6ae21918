//! Products of matrices, in tiles whose sums stay in registers.

/// A matrix whose rows or columns lie in a slice one after the other.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    /// From an element to the one below, and to the one on its right.
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// Of rows with this many `columns`.
    pub(super) fn new(values: &'a [f32], columns: usize) -> Self {
        let strides = [columns, 1];
        Self { values, strides }
    }

    pub(super) fn transposed(self) -> Self {
        let [down, right] = self.strides;
        let strides = [right, down];
        Self { strides, ..self }
    }
}

/// `out = a b`, where `b` has rows of `columns` numbers, as `out` has.
pub(super) fn product(a: Matrix<'_>, b: &[f32], columns: usize, out: &mut [f32]) {
    let rows = out.len() / columns;
    let mut row = 0;
    while row < rows {
        let tall = rows - row >= 4;
        let mut column = 0;
        while column < columns {
            let corner = [row, column];
            column += match (tall, columns - column) {
                (true, 8..) => tile::<4, 8>(a, b, columns, corner, out),
                (true, 4..) => tile::<4, 4>(a, b, columns, corner, out),
                (true, _) => tile::<4, 1>(a, b, columns, corner, out),
                (false, 8..) => tile::<1, 8>(a, b, columns, corner, out),
                (false, _) => tile::<1, 1>(a, b, columns, corner, out),
            };
        }
        row += if tall { 4 } else { 1 };
    }
}

/// Computes the elements of `out` from `corner` on, `H` rows and `W` columns; returns `W`.
fn tile<const H: usize, const W: usize>(
    a: Matrix<'_>,
    b: &[f32],
    columns: usize,
    [row, column]: [usize; 2],
    out: &mut [f32],
) -> usize {
    let [down, right] = a.strides;
    let mut sums = [[0.0; W]; H];
    for (k, b) in b.chunks_exact(columns).enumerate() {
        let b = &b[column..column + W];
        for (i, sums) in sums.iter_mut().enumerate() {
            let a = a.values[(row + i) * down + k * right];
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    for (out, sums) in out.chunks_exact_mut(columns).skip(row).zip(&sums) {
        out[column..column + W].copy_from_slice(sums);
    }
    W
}

/// Writes the rows of `values`, of this many `columns`, as columns.
pub(super) fn transpose(values: &[f32], columns: usize, out: &mut Vec<f32>) {
    out.clear();
    for column in 0..columns {
        out.extend(values.iter().skip(column).step_by(columns));
    }
}

#[cfg(test)]
mod tests {
    use super::{Matrix, product, transpose};

    /// `rows` times `columns` small whole numbers, whose sums are exact.
    fn numbers(rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns)
            .map(|i| (i * 7 % 11) as f32 - 5.0)
            .collect()
    }

    #[test]
    fn tiles_of_every_size_make_the_product_that_its_definition_makes() {
        for [m, k, n] in [
            [1, 1, 1],
            [4, 3, 8],
            [5, 7, 1],
            [3, 2, 9],
            [9, 64, 13],
            [2, 5, 4],
        ] {
            let (a, b) = (numbers(m, k), numbers(k, n));
            let mut expected = vec![0.0; m * n];
            for (i, sum) in expected.iter_mut().enumerate() {
                *sum = (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum();
            }
            let mut out = vec![f32::NAN; m * n];
            product(Matrix::new(&a, k), &b, n, &mut out);
            assert_eq!(out, expected, "[{m}, {k}] times [{k}, {n}]");

            let mut columns = Vec::new();
            transpose(&a, k, &mut columns);
            product(Matrix::new(&columns, m).transposed(), &b, n, &mut out);
            assert_eq!(out, expected, "[{k}, {m}] transposed times [{k}, {n}]");
        }
    }
}
