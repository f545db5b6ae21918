//! The steps of a plan, each on a block of rows.

use std::mem;
use std::sync::Arc;

use pulp::{Arch, Simd, WithSimd};

use crate::Noise;

use super::aligned::Aligned;
use super::apply::Apply;
use super::elementwise::{Function, Reduction, Zip};
use super::graph::{Draw, Run};
use super::graph_runs::{Stray, draw_gamma, draw_into, normalize};
use super::kernel::Packed;

/// Where the numbers of a value are: in an input, in scratch memory, or in a constant row for all
/// rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    Input(usize),
    /// A slot of scratch memory, and the distance of rows in it.
    Slot(usize, usize),
    Fixed(usize),
}

/// An operation with its constants ready.
#[derive(Debug, Clone)]
pub(super) enum Task {
    /// A copy of a value, which functions may follow.
    Copy,
    /// A linear map of the inputs from this one on.
    Linear(Arc<Packed>, usize),
    Zip(Zip),
    Where,
    Take(Vec<Run>),
    /// Rows, inner size and columns.
    MatMul(usize, usize, usize),
    Reduce(Reduction, usize),
    Softmax(usize),
    LogSoftmax(usize),
    Lookup(usize),
    Gather(usize),
    Within(f32, f32),
    Pick(usize),
    Noise(Draw, usize),
    Gamma(usize),
}

#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) task: Task,
    /// A function of a linear map's result, computed together with it.
    pub(super) function: Option<Function>,
    /// What else is done to the result in place, one after the other.
    pub(super) after: Vec<After>,
    pub(super) from: Vec<Location>,
    /// Scratch memory that is written.
    pub(super) to: Location,
    /// Numbers in a row of the result.
    pub(super) width: usize,
    /// Numbers in a row of the first operand.
    pub(super) first: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    /// `[BLOCK, padded width]` each.
    pub(super) slots: Vec<Aligned>,
    /// `[padded width]` each.
    pub(super) fixed: Vec<Aligned>,
    /// The first number that was out of place since this was asked for.
    pub(super) stray: Option<Stray>,
}

/// A change of a value in place.
#[derive(Debug, Clone)]
pub(super) enum After {
    Function(Function),
    Norm(Norm),
}

/// Layer norm of runs of numbers, with the rows of a factor and of a summand, if there are any.
#[derive(Debug, Clone)]
pub(super) struct Norm {
    pub(super) run: usize,
    pub(super) eps: f32,
    pub(super) factor: Option<usize>,
    pub(super) summand: Option<usize>,
}

impl Norm {
    fn is_plain(&self) -> bool {
        self.factor.is_none() && self.summand.is_none()
    }

    fn is_scaled(&self) -> bool {
        self.factor.is_some() && self.summand.is_none()
    }

    /// Changes rows of `width` numbers, `stride` apart.
    fn apply(&self, fixed: &[Aligned], rows: &mut [f32], stride: usize, width: usize) {
        let fixed = |place: Option<usize>| place.map_or(&[][..], |index| fixed[index].as_slice());
        let (factor, summand) = (fixed(self.factor), fixed(self.summand));
        for row in rows.chunks_exact_mut(stride) {
            let row = &mut row[..width];
            row.chunks_exact_mut(self.run)
                .for_each(|x| normalize(x, self.eps));
            match (factor, summand) {
                ([], _) => {}
                (_, []) => row.iter_mut().zip(factor).for_each(|(x, a)| *x *= a),
                _ => {
                    for ((x, a), b) in row.iter_mut().zip(factor).zip(summand) {
                        *x = *x * a + b;
                    }
                }
            }
        }
    }
}

/// Rows of one value. A distance of 0 means that all rows are the same.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..]
    }
}

/// The inputs of one block of rows.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// All rows of each input, with the numbers in a row.
    pub(super) inputs: &'a [&'a [f32]],
    pub(super) widths: &'a [usize],
    pub(super) noise: &'a [Noise],
    /// The first row of the block, and how many rows there are.
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl<'a> Given<'a> {
    #[inline(always)]
    fn input(self, index: usize) -> Rows<'a> {
        let stride = self.widths[index];
        Rows {
            values: &self.inputs[index][self.first * stride..],
            stride,
        }
    }
}

impl Memory {
    /// The rows of one value, and a slot that has others.
    #[inline(always)]
    fn apart<'a>(
        &'a mut self,
        place: Location,
        slot: usize,
        given: Given<'a>,
    ) -> (Rows<'a>, &'a mut Aligned) {
        let values = match place {
            Location::Slot(from, stride) => {
                let both = self.slots.get_disjoint_mut([from, slot]);
                let [from, to] = both.expect("A step writes to a slot that it does not read.");
                return (
                    Rows {
                        values: from.as_slice(),
                        stride,
                    },
                    to,
                );
            }
            Location::Fixed(index) => Rows {
                values: self.fixed[index].as_slice(),
                stride: 0,
            },
            Location::Input(index) => given.input(index),
        };
        (values, &mut self.slots[slot])
    }

    #[inline(always)]
    pub(super) fn rows<'a>(&'a self, place: Location, given: Given<'a>) -> Rows<'a> {
        match place {
            Location::Input(index) => given.input(index),
            Location::Slot(slot, stride) => Rows {
                values: self.slots[slot].as_slice(),
                stride,
            },
            Location::Fixed(index) => Rows {
                values: self.fixed[index].as_slice(),
                stride: 0,
            },
        }
    }
}

impl Step {
    /// Makes `next` part of this step, whose result nothing else reads, if it can be done in place.
    pub(super) fn absorbs(&mut self, next: &Self) -> bool {
        let fixed = match next.from.get(1) {
            Some(Location::Fixed(index)) => Some(*index),
            _ => None,
        };
        match (&next.task, self.after.last_mut(), fixed) {
            (Task::Copy, last, _) => {
                let mut after = next.after.clone();
                if let (Task::Linear(..), None, None, Some(After::Function(first))) =
                    (&self.task, self.function, last, after.first())
                {
                    self.function = Some(*first);
                    after.remove(0);
                }
                self.after.extend(after);
            }
            (Task::Zip(Zip::Mul), Some(After::Norm(norm)), Some(index)) if norm.is_plain() => {
                norm.factor = Some(index);
            }
            (Task::Zip(Zip::Add), Some(After::Norm(norm)), Some(index)) if norm.is_scaled() => {
                norm.summand = Some(index);
            }
            _ => return false,
        }
        true
    }

    #[inline(always)]
    pub(super) fn take(&self, arch: Arch, memory: &mut Memory, given: Given<'_>) {
        let Location::Slot(slot, stride) = self.to else {
            return;
        };
        if stride == 0 {
            // There is no number to write, and chunks have one at least.
            return;
        }
        let len = given.rows * stride;
        if let Task::Linear(packed, skip) = &self.task {
            let (x, to) = memory.apart(self.from[0], slot, given);
            arch.dispatch(&mut Apply {
                linear: Some((packed, &x.values[*skip..], x.stride)),
                function: self.function,
                rows: given.rows,
                values: &mut to.as_mut_slice()[..len],
            });
        } else {
            self.other(arch, memory, given, (slot, stride));
        }
        for after in &self.after {
            match after {
                After::Function(function) => {
                    arch.dispatch(&mut Apply {
                        linear: None,
                        function: Some(*function),
                        rows: given.rows,
                        values: &mut memory.slots[slot].as_mut_slice()[..len],
                    });
                }
                After::Norm(norm) => {
                    let values = &mut memory.slots[slot].as_mut_slice()[..len];
                    norm.apply(&memory.fixed, values, stride, self.width);
                }
            }
        }
    }

    /// A step of another kind than the linear ones, which should not pay for it.
    #[inline(never)]
    fn other(
        &self,
        arch: Arch,
        memory: &mut Memory,
        given: Given<'_>,
        (slot, stride): (usize, usize),
    ) {
        let mut target = mem::take(&mut memory.slots[slot]);
        let stray = arch.dispatch(Other {
            step: self,
            memory,
            given,
            out: &mut target.as_mut_slice()[..given.rows * stride],
            stride,
        });
        memory.slots[slot] = target;
        if let Some(stray) = stray {
            memory.stray.get_or_insert(stray);
        }
    }
}

/// A step that is neither a linear layer nor in place, see [`Apply`].
struct Other<'a> {
    step: &'a Step,
    memory: &'a Memory,
    given: Given<'a>,
    out: &'a mut [f32],
    stride: usize,
}

impl WithSimd for Other<'_> {
    type Output = Option<Stray>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Option<Stray> {
        let Self {
            step,
            memory,
            given,
            out,
            stride,
        } = self;
        let from = |i: usize| memory.rows(step.from[i], given);
        let width = step.width;
        let rows = 0..given.rows;
        match &step.task {
            Task::Copy => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    out[..width].copy_from_slice(&from(0).row(row)[..width]);
                }
            }
            Task::Zip(zip) => {
                let (a, b) = (from(0), from(1));
                if a.stride == stride && b.stride == stride {
                    zip.apply(&a.values[..out.len()], &b.values[..out.len()], out);
                } else {
                    for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                        zip.apply(&a.row(row)[..stride], &b.row(row)[..stride], out);
                    }
                }
            }
            Task::Where => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    let (test, a, b) = (from(0).row(row), from(1).row(row), from(2).row(row));
                    for (i, out) in out[..width].iter_mut().enumerate() {
                        *out = if test[i] == 0.0 { b[i] } else { a[i] };
                    }
                }
            }
            Task::Take(runs) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    copy_runs(runs, |source| from(source).row(row), out);
                }
            }
            Task::Noise(draw, branch) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    let noise = given.noise[given.first + row].branch(*branch);
                    draw_into(*draw, noise, &mut out[..width]);
                }
            }
            Task::Gamma(branch) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    let noise = given.noise[given.first + row].branch(*branch);
                    draw_gamma(&from(0).row(row)[..width], noise, out);
                }
            }
            task => {
                let mut stray = None;
                for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                    let x = &from(0).row(row)[..step.first];
                    let second = match step.from.len() {
                        1 => x,
                        _ => from(1).row(row),
                    };
                    stray = stray.or(task.by_runs(x, second, &mut out[..width]));
                }
                return stray;
            }
        }
        None
    }
}

#[inline(always)]
fn copy_runs<'a>(runs: &[Run], from: impl Fn(usize) -> &'a [f32], mut out: &mut [f32]) {
    for &Run(source, start, count, step) in runs {
        let (source, start) = (from(source as usize), start as usize);
        let (to, rest) = mem::take(&mut out).split_at_mut(count as usize);
        match step {
            1 => to.copy_from_slice(&source[start..][..count as usize]),
            0 => to.fill(source[start]),
            _ => {
                let places = (0..).map(|i: i64| (start as i64 + i * i64::from(step)) as usize);
                to.iter_mut()
                    .zip(places)
                    .for_each(|(to, place)| *to = source[place]);
            }
        }
        out = rest;
    }
}
