//! The matrix product of a linear layer, on tiles of rows and outputs that stay in registers.
//!
//! Vector lanes are outputs. The inputs are cut into up to four runs, each summed in order with
//! fused multiply-adds into an accumulator of its own: `((bias + run 0) + run 1) + run 2) + run 3`.
//! The four runs keep the arithmetic units busy when there is a single row; with several rows they
//! follow one another.
//!
//! Few outputs would leave most lanes empty. There, lanes are inputs: input `k` belongs to partial
//! sum `k % 16` of its output. These are added as a tree, and the bias last.
//!
//! The order of the sums never depends on the number of rows or lanes, so a row's result does not
//! either.

use pulp::Simd;

use super::aligned::{Aligned, LINE};

/// Inputs from which on the sum is cut into runs.
const MIN_CUT: usize = 16;
/// Runs that it is cut into.
const RUNS: usize = 4;
/// Outputs up to which lanes are inputs, if these fill whole cache lines.
const FEW: usize = 4;
/// Cache lines of outputs that a tile spans with 16 lanes; one with fewer lanes, which also means
/// fewer registers.
const WIDE_LINES: usize = 4;

/// Weights of a linear layer, in the order in which the kernel reads them: panels of outputs, in
/// each input after input.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    /// `[inputs, width]` for each panel of `width` outputs, where missing outputs are zeros;
    /// `[outputs, inputs]` where outputs are few.
    weight: Aligned,
    /// `[padded outputs]`.
    bias: Aligned,
    inputs: usize,
    /// Number of outputs, where they are few.
    few: Option<usize>,
    /// Outputs, rounded up to whole cache lines.
    padded: usize,
    /// Outputs of a panel; the last one may be narrower.
    panel: usize,
}

/// Rounds `n` up to whole cache lines.
pub(crate) const fn padded(n: usize) -> usize {
    n.next_multiple_of(LINE)
}

impl Packed {
    /// Room for the weights of a layer, for vectors of `lanes` elements.
    pub(crate) fn zeros(inputs: usize, outputs: usize, lanes: usize) -> Self {
        let padded = padded(outputs);
        let lines = if lanes >= LINE { WIDE_LINES } else { 1 };
        Self {
            weight: Aligned::zeros(inputs * padded),
            bias: Aligned::zeros(padded),
            inputs,
            few: ((1..=FEW).contains(&outputs) && inputs.is_multiple_of(LINE)).then_some(outputs),
            padded,
            panel: lines * LINE,
        }
    }

    /// Takes over `weight` `[outputs, inputs]` and `bias` `[outputs]`, both row-major.
    pub(crate) fn pack(&mut self, weight: &[f32], bias: &[f32]) {
        let (inputs, panel, padded) = (self.inputs, self.panel, self.padded);
        self.bias.as_mut_slice()[..bias.len()].copy_from_slice(bias);
        let packed = self.weight.as_mut_slice();
        if self.few.is_some() {
            packed[..weight.len()].copy_from_slice(weight);
            return;
        }
        for (output, row) in weight.chunks_exact(inputs).enumerate() {
            let first = output / panel * panel;
            let width = panel.min(padded - first);
            let places = packed[first * inputs + output - first..].iter_mut();
            for (place, &value) in places.step_by(width).zip(row) {
                *place = value;
            }
        }
    }

    /// `out[r] = bias + weight · input[r]` for every row.
    ///
    /// `input`: `rows` rows, `stride` elements apart, the first `inputs` of which count; `out`:
    /// `[rows, padded]`.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(
        &self,
        simd: S,
        rows: usize,
        input: &[f32],
        stride: usize,
        out: &mut [f32],
    ) {
        if let Some(outputs) = self.few {
            let rows = (0..rows).map(|row| &input[row * stride..][..self.inputs]);
            let out = out.as_chunks_mut::<LINE>().0;
            return match outputs {
                1 => self.dots::<S, 1>(simd, rows, out),
                2 => self.dots::<S, 2>(simd, rows, out),
                3 => self.dots::<S, 3>(simd, rows, out),
                _ => self.dots::<S, 4>(simd, rows, out),
            };
        }
        let mut first = 0;
        while first < self.padded {
            let width = self.panel.min(self.padded - first);
            let tile = Tiles {
                weight: &self.weight.as_slice()[first * self.inputs..][..width * self.inputs],
                bias: &self.bias.as_slice()[first..][..width],
                input,
                stride,
                inputs: self.inputs,
                rows,
                first,
                padded: self.padded,
            };
            match (S::F32_LANES, width / LINE) {
                (16, 4) => tile.all::<S, 4>(simd, out),
                (16, 3) => tile.all::<S, 3>(simd, out),
                (16, 2) => tile.all::<S, 2>(simd, out),
                (16, _) => tile.all::<S, 1>(simd, out),
                (8, _) => tile.all::<S, 2>(simd, out),
                (4, _) => tile.all::<S, 4>(simd, out),
                (2, _) => tile.all::<S, 8>(simd, out),
                _ => tile.all::<S, 16>(simd, out),
            }
            first += width;
        }
    }

    /// `N` outputs of each row, one after the other, whose lanes are inputs.
    #[inline(always)]
    fn dots<'a, S: Simd, const N: usize>(
        &self,
        simd: S,
        rows: impl Iterator<Item = &'a [f32]>,
        out: &mut [[f32; LINE]],
    ) {
        let weight = &self.weight.as_slice()[..N * self.inputs];
        let bias = self.bias.as_slice();
        for (x, out) in rows.zip(out) {
            *out = [0.0; LINE];
            for n in 0..N {
                out[n] = bias[n] + dot(simd, x, &weight[n * self.inputs..][..self.inputs]);
            }
        }
    }
}

/// The sum of products of two vectors of whole cache lines.
#[inline(always)]
fn dot<S: Simd>(simd: S, x: &[f32], w: &[f32]) -> f32 {
    let mut sums = [0.0; LINE];
    let parts = S::as_mut_simd_f32s(&mut sums).0;
    let (x, w) = (x.as_chunks::<LINE>().0, w.as_chunks::<LINE>().0);
    for (x, w) in x.iter().zip(w) {
        let (x, w) = (S::as_simd_f32s(x).0, S::as_simd_f32s(w).0);
        for ((sum, &x), &w) in parts.iter_mut().zip(x).zip(w) {
            *sum = simd.mul_add_e_f32s(x, w, *sum);
        }
    }
    total(sums)
}

/// The sum of partial sums, added as a tree: first each of the one half to one of the other.
#[inline(always)]
pub(super) fn total(mut parts: [f32; LINE]) -> f32 {
    let mut half = LINE / 2;
    while half > 0 {
        for i in 0..half {
            parts[i] += parts[i + half];
        }
        half /= 2;
    }
    parts[0]
}

/// One panel of outputs for all rows.
#[derive(Clone, Copy)]
struct Tiles<'a> {
    weight: &'a [f32],
    bias: &'a [f32],
    input: &'a [f32],
    stride: usize,
    inputs: usize,
    rows: usize,
    /// First output of the panel.
    first: usize,
    padded: usize,
}

impl Tiles<'_> {
    /// `V` vectors make up the panel's width.
    #[inline(always)]
    fn all<S: Simd, const V: usize>(self, simd: S, out: &mut [f32]) {
        let mut row = 0;
        while row + 4 <= self.rows {
            self.four_rows::<S, V>(simd, row, out);
            row += 4;
        }
        if row + 2 <= self.rows {
            self.two_rows::<S, V>(simd, row, out);
            row += 2;
        }
        if row < self.rows {
            self.one_row::<S, V>(simd, row, out);
        }
    }

    /// Inputs of the first run and of each of the others, and how many others there are.
    #[inline(always)]
    fn runs(&self) -> (usize, usize, usize) {
        match self.inputs < MIN_CUT {
            true => (self.inputs, 0, 0),
            false => {
                let others = self.inputs / RUNS;
                (self.inputs - others * (RUNS - 1), others, RUNS - 1)
            }
        }
    }

    /// The input of `row`.
    #[inline(always)]
    fn x(&self, row: usize) -> &[f32] {
        &self.input[row * self.stride..][..self.inputs]
    }

    /// The panel's weights, one vector group an input.
    #[inline(always)]
    fn weights<S: Simd, const V: usize>(&self) -> &[[S::f32s; V]] {
        S::as_simd_f32s(self.weight).0.as_chunks().0
    }

    #[inline(always)]
    fn biases<S: Simd, const V: usize>(&self, simd: S) -> [S::f32s; V] {
        match S::as_simd_f32s(self.bias).0.as_chunks().0 {
            [bias, ..] => *bias,
            [] => [simd.splat_f32s(0.0); V],
        }
    }

    /// Four rows from `row` on, run after run.
    #[inline(always)]
    fn four_rows<S: Simd, const V: usize>(self, simd: S, row: usize, out: &mut [f32]) {
        let weights = self.weights::<S, V>();
        let x = [
            self.x(row),
            self.x(row + 1),
            self.x(row + 2),
            self.x(row + 3),
        ];
        let (first, others, count) = self.runs();
        let bias = self.biases::<S, V>(simd);
        let (w, mut w_rest) = weights.split_at(first);
        let [a, b, c, d] = x.map(|x| x.split_at(first));
        let mut sums = four(simd, [bias; 4], [a.0, b.0, c.0, d.0], w);
        let mut x_rest = [a.1, b.1, c.1, d.1];
        for _ in 0..count {
            let (w, w_after) = w_rest.split_at(others);
            let [a, b, c, d] = x_rest.map(|x| x.split_at(others));
            let zeros = [[simd.splat_f32s(0.0); V]; 4];
            let part = four(simd, zeros, [a.0, b.0, c.0, d.0], w);
            (w_rest, x_rest) = (w_after, [a.1, b.1, c.1, d.1]);
            let ([a, b, c, d], [e, f, g, h]) = (sums, part);
            sums = [
                add(simd, a, e),
                add(simd, b, f),
                add(simd, c, g),
                add(simd, d, h),
            ];
        }
        let [a, b, c, d] = sums;
        self.store(row, a, out);
        self.store(row + 1, b, out);
        self.store(row + 2, c, out);
        self.store(row + 3, d, out);
    }

    /// Two rows from `row` on, run after run.
    #[inline(always)]
    fn two_rows<S: Simd, const V: usize>(self, simd: S, row: usize, out: &mut [f32]) {
        let weights = self.weights::<S, V>();
        let x = [self.x(row), self.x(row + 1)];
        let (first, others, count) = self.runs();
        let bias = self.biases::<S, V>(simd);
        let (w, mut w_rest) = weights.split_at(first);
        let [a, b] = x.map(|x| x.split_at(first));
        let mut sums = two(simd, [bias; 2], [a.0, b.0], w);
        let mut x_rest = [a.1, b.1];
        for _ in 0..count {
            let (w, w_after) = w_rest.split_at(others);
            let [a, b] = x_rest.map(|x| x.split_at(others));
            let part = two(simd, [[simd.splat_f32s(0.0); V]; 2], [a.0, b.0], w);
            (w_rest, x_rest) = (w_after, [a.1, b.1]);
            let ([a, b], [c, d]) = (sums, part);
            sums = [add(simd, a, c), add(simd, b, d)];
        }
        let [a, b] = sums;
        self.store(row, a, out);
        self.store(row + 1, b, out);
    }

    /// A single row, its runs side by side.
    #[inline(always)]
    fn one_row<S: Simd, const V: usize>(self, simd: S, row: usize, out: &mut [f32]) {
        let (weights, x) = (self.weights::<S, V>(), self.x(row));
        let (first, others, count) = self.runs();
        let bias = self.biases::<S, V>(simd);
        if count == 0 {
            return self.store(row, one(simd, bias, x, weights), out);
        }
        let (x_lead, x) = x.split_at(first - others);
        let (w_lead, w) = weights.split_at(first - others);
        let sum = one(simd, bias, x_lead, w_lead);
        let zeros = [simd.splat_f32s(0.0); V];
        let run = |i: usize| (&x[i * others..][..others], &w[i * others..][..others]);
        let ((x0, w0), (x1, w1), (x2, w2), (x3, w3)) = (run(0), run(1), run(2), run(3));
        let sums = [sum, zeros, zeros, zeros];
        let [a, b, c, d] = four_apart(simd, sums, [x0, x1, x2, x3], [w0, w1, w2, w3]);
        let sum = add(simd, add(simd, add(simd, a, b), c), d);
        self.store(row, sum, out);
    }

    #[inline(always)]
    fn store<S: Copy + pulp::bytemuck::Pod, const V: usize>(
        &self,
        row: usize,
        sums: [S; V],
        out: &mut [f32],
    ) {
        let width = V * size_of::<S>() / size_of::<f32>();
        let out = &mut out[row * self.padded + self.first..][..width];
        out.copy_from_slice(pulp::bytemuck::cast_slice(&sums));
    }
}

/// A group of inputs with the weights of the outputs of one tile.
type Weights<'a, S, const V: usize> = &'a [[<S as Simd>::f32s; V]];

/// Adds the products of a run's inputs with their weights, in order, in one accumulator.
#[inline(always)]
fn one<S: Simd, const V: usize>(
    simd: S,
    mut sum: [S::f32s; V],
    x: &[f32],
    w: Weights<'_, S, V>,
) -> [S::f32s; V] {
    for (&x, w) in x.iter().zip(w) {
        add_products(simd, &mut sum, x, w);
    }
    sum
}

/// As [`one`], for two accumulators at once.
#[inline(always)]
fn two<S: Simd, const V: usize>(
    simd: S,
    sums: [[S::f32s; V]; 2],
    [x0, x1]: [&[f32]; 2],
    w: Weights<'_, S, V>,
) -> [[S::f32s; V]; 2] {
    let [mut a, mut b] = sums;
    for ((&x0, &x1), w) in x0.iter().zip(x1).zip(w) {
        add_products(simd, &mut a, x0, w);
        add_products(simd, &mut b, x1, w);
    }
    [a, b]
}

/// As [`one`], for four accumulators at once. Written out, since the compiler keeps an array that
/// is indexed by a loop's variable in memory.
#[inline(always)]
fn four<S: Simd, const V: usize>(
    simd: S,
    sums: [[S::f32s; V]; 4],
    [x0, x1, x2, x3]: [&[f32]; 4],
    w: Weights<'_, S, V>,
) -> [[S::f32s; V]; 4] {
    let [mut a, mut b, mut c, mut d] = sums;
    for ((((&x0, &x1), &x2), &x3), w) in x0.iter().zip(x1).zip(x2).zip(x3).zip(w) {
        add_products(simd, &mut a, x0, w);
        add_products(simd, &mut b, x1, w);
        add_products(simd, &mut c, x2, w);
        add_products(simd, &mut d, x3, w);
    }
    [a, b, c, d]
}

/// As [`four`], each accumulator with weights of its own.
#[inline(always)]
fn four_apart<S: Simd, const V: usize>(
    simd: S,
    sums: [[S::f32s; V]; 4],
    [x0, x1, x2, x3]: [&[f32]; 4],
    [w0, w1, w2, w3]: [Weights<'_, S, V>; 4],
) -> [[S::f32s; V]; 4] {
    let [mut a, mut b, mut c, mut d] = sums;
    let (x01, x23) = (x0.iter().zip(x1), x2.iter().zip(x3));
    let (w01, w23) = (w0.iter().zip(w1), w2.iter().zip(w3));
    for ((((&x0, &x1), (&x2, &x3)), (w0, w1)), (w2, w3)) in x01.zip(x23).zip(w01).zip(w23) {
        add_products(simd, &mut a, x0, w0);
        add_products(simd, &mut b, x1, w1);
        add_products(simd, &mut c, x2, w2);
        add_products(simd, &mut d, x3, w3);
    }
    [a, b, c, d]
}

#[inline(always)]
fn add_products<S: Simd, const V: usize>(
    simd: S,
    sums: &mut [S::f32s; V],
    x: f32,
    w: &[S::f32s; V],
) {
    let x = simd.splat_f32s(x);
    for v in 0..V {
        sums[v] = simd.mul_add_e_f32s(x, w[v], sums[v]);
    }
}

#[inline(always)]
fn add<S: Simd, const V: usize>(simd: S, mut a: [S::f32s; V], b: [S::f32s; V]) -> [S::f32s; V] {
    for v in 0..V {
        a[v] = simd.add_f32s(a[v], b[v]);
    }
    a
}
