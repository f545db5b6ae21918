//! Operations of a graph on runs of numbers of one row.

use std::fmt::{self, Display, Formatter};

use rand_distr::{Distribution, Gamma};

use crate::Noise;
use crate::categorical::pick;

use super::elementwise::Reduction;
use super::graph::Draw;
use super::norm::sum;
use super::step::Task;

/// A number outside of its bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stray {
    what: &'static str,
    bounds: (f32, f32),
    got: f32,
}

impl Display for Stray {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { what, bounds, got } = self;
        let (low, high) = bounds;
        write!(
            f,
            "the network expected {what} from {low} to {high}, got {got}"
        )
    }
}

impl Task {
    /// Runs a task on one row, run by run; returns a number outside of its bounds, if there is one.
    #[inline(always)]
    pub(super) fn by_runs(&self, x: &[f32], second: &[f32], out: &mut [f32]) -> Option<Stray> {
        let mut stray = None;
        match self {
            Self::MatMul(rows, inner, columns) => {
                let pairs = x.chunks_exact(rows * inner);
                let pairs = pairs.zip(second.chunks_exact(inner * columns));
                for (out, (a, b)) in out.chunks_exact_mut(rows * columns).zip(pairs) {
                    multiply(a, b, *columns, out);
                }
            }
            Self::Reduce(reduction, run) => {
                for (out, x) in out.iter_mut().zip(x.chunks_exact(*run)) {
                    *out = reduction.apply(x);
                }
            }
            Self::Softmax(run) => {
                for (out, x) in out.chunks_exact_mut(*run).zip(x.chunks_exact(*run)) {
                    softmax(x, out);
                }
            }
            Self::LogSoftmax(run) => {
                for (out, x) in out.chunks_exact_mut(*run).zip(x.chunks_exact(*run)) {
                    log_softmax(x, out);
                }
            }
            Self::Lookup(run) => {
                for (out, &index) in out.chunks_exact_mut(*run).zip(second) {
                    match at(index, x.len() / run, &mut stray) {
                        Some(index) => out.copy_from_slice(&x[index * run..][..*run]),
                        None => out.fill(f32::NAN),
                    }
                }
            }
            Self::Gather(run) => {
                let each = out.len() / (x.len() / run);
                let places = second.chunks_exact(each).zip(x.chunks_exact(*run));
                for (out, (places, x)) in out.chunks_exact_mut(each).zip(places) {
                    for (out, &place) in out.iter_mut().zip(places) {
                        *out = at(place, *run, &mut stray).map_or(f32::NAN, |place| x[place]);
                    }
                }
            }
            Self::Within(low, high) => {
                out.copy_from_slice(&x[..out.len()]);
                let outside = out.iter().find(|&x| x < low || x > high);
                stray = outside.map(|&got| Stray {
                    what: "an observation or state",
                    bounds: (*low, *high),
                    got,
                });
            }
            Self::Pick(run) => {
                for (out, (weights, &uniform)) in
                    out.iter_mut().zip(x.chunks_exact(*run).zip(second))
                {
                    let total = Reduction::Sum.apply(weights);
                    let is_some = total.is_finite() && total > 0.0;
                    *out = if is_some {
                        pick(weights, uniform * total) as f32
                    } else {
                        f32::NAN
                    };
                }
            }
            _ => {}
        }
        stray
    }
}

/// The index that a number stands for, if it is below the given count; any other number is recorded
/// as `stray`.
#[inline(always)]
fn at(place: f32, count: usize, stray: &mut Option<Stray>) -> Option<usize> {
    let is_place = place >= 0.0 && place < count as f32;
    if !is_place && !place.is_nan() {
        *stray = stray.or(Some(Stray {
            what: "an index",
            bounds: (0.0, count as f32 - 1.0),
            got: place,
        }));
    }
    is_place.then_some(place as usize)
}

#[inline(always)]
fn softmax(x: &[f32], out: &mut [f32]) {
    let top = Reduction::Max.apply(x);
    out.iter_mut()
        .zip(x)
        .for_each(|(out, x)| *out = (x - top).exp());
    let total = Reduction::Sum.apply(out);
    out.iter_mut().for_each(|out| *out /= total);
}

#[inline(always)]
fn log_softmax(x: &[f32], out: &mut [f32]) {
    // The largest term is subtracted first, since it would hide the small rest.
    let top = Reduction::Max.apply(x);
    let total = sum(x, |x| (x - top).exp()).ln();
    out.iter_mut()
        .zip(x)
        .for_each(|(out, x)| *out = (x - top) - total);
}

/// The product of two matrices, the second with the given number of columns. Rows of the second are
/// added up, so that neighbours in memory are computed together.
#[inline(always)]
fn multiply(a: &[f32], b: &[f32], columns: usize, out: &mut [f32]) {
    let inner = b.len() / columns;
    for (out, a) in out.chunks_exact_mut(columns).zip(a.chunks_exact(inner)) {
        out.fill(0.0);
        for (&a, b) in a.iter().zip(b.chunks_exact(columns)) {
            for (out, &b) in out.iter_mut().zip(b) {
                *out += a * b;
            }
        }
    }
}

#[inline(always)]
pub(super) fn normalize(x: &mut [f32], eps: f32) {
    let count = x.len() as f32;
    let mean = sum(x, |x| x) / count;
    let variance = sum(x, |x| (x - mean) * (x - mean)) / count;
    let scale = 1.0 / (variance + eps).sqrt();
    x.iter_mut().for_each(|x| *x = (*x - mean) * scale);
}

#[inline(always)]
pub(super) fn draw_into(draw: Draw, mut noise: Noise, out: &mut [f32]) {
    match draw {
        Draw::Uniform => out.iter_mut().for_each(|out| *out = noise.f32()),
        Draw::Normal => out.iter_mut().for_each(|out| *out = noise.normal() as f32),
    }
}

/// Samples of gamma distributions; none is 0, which a logarithm or a quotient of them could not
/// take.
pub(super) fn draw_gamma(shapes: &[f32], mut noise: Noise, out: &mut [f32]) {
    for (out, &shape) in out.iter_mut().zip(shapes) {
        let gamma = Gamma::new(f64::from(shape), 1.0);
        *out = gamma.map_or(f32::NAN, |gamma| {
            (gamma.sample(&mut noise) as f32).max(f32::MIN_POSITIVE)
        });
    }
}
