//! Running statistics of a collector's workers: each environment gathers apart, and the collector merges.
//!
//! A collector and its worker pass numbers in the notes of a part. When the worker gets the part, they are the statistics of then; when it
//! hands the part in, they are what each of its environments has gathered: weight, means, and squared deviations from these. Chan's
//! formula puts two of those together, in an environment (its own with those that it got) and in the collector (those of all, in the order
//! of the environments). Neither depends on how environments are shared out among workers, nor on time.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::elementwise::Real;
use super::statistics::{Kept, Statistics};
use crate::EnvError;

/// Running statistics that environments share with others: which, of what, and by which rule. A part of their
/// [spec](crate::EnvSpec::statistics).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gathers {
    pub(super) statistics: Statistics,
    pub(super) rule: Rule,
    /// What is left of older rows: after each step for [`Rule::Sums`], after each row for [`Rule::Means`].
    pub(super) decay: f64,
    /// Environments that gather.
    pub(super) envs: usize,
    /// How many of these have statistics of their own; 1 where all share theirs.
    pub(super) groups: usize,
    /// Elements of each column, for one environment.
    pub(super) elements: Vec<usize>,
    /// Name of the transform, and its columns.
    pub(super) kind: String,
}

/// What the two numbers of an element and the count of its column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Rule {
    /// A sum, a sum of squares, and the number of rows; all fade with each step.
    Sums,
    /// Means of values and of squares, from which a share is missing as long as there are few rows, and the number of rows.
    Means,
}

/// Numbers before the others of an exchange: a fingerprint, how often the statistics were written, and whether they are frozen.
const HEAD: usize = 3;

/// What one environment has gathered of one column: how many rows, what these have left of the weight of all rows before, and then
/// [`moments`].
const DELTA: usize = 2;

/// Numbers of the moments of so many elements: a weight, then means, then squared deviations.
const fn moments(elements: usize) -> usize {
    1 + 2 * elements
}

impl Gathers {
    /// How many numbers an exchange takes.
    #[must_use]
    pub fn numbers(&self) -> usize {
        HEAD + self.kept_numbers().max(self.delta_numbers())
    }

    fn kept_numbers(&self) -> usize {
        let columns = self.elements.iter();
        columns.map(|each| 2 * each * self.groups + 1).sum()
    }

    fn delta_numbers(&self) -> usize {
        self.begin_of_deltas(self.elements.len())
    }

    /// Where the deltas of column `column` begin: those of all environments, one behind the other.
    fn begin_of_deltas(&self, column: usize) -> usize {
        let before = self.elements[..column].iter();
        before
            .map(|each| self.envs * (DELTA + moments(*each)))
            .sum()
    }

    /// A number for all that both sides of an exchange have to agree on.
    fn fingerprint(&self) -> f64 {
        let mut hasher = DefaultHasher::new();
        (&self.kind, &self.elements, self.rule, self.decay.to_bits()).hash(&mut hasher);
        (self.envs, self.groups).hash(&mut hasher);
        // As many bits as a number holds.
        (hasher.finish() >> 11) as f64
    }

    /// Where they are.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Checks that the statistics are of what these environments gather: those of another process may gather something else.
    ///
    /// # Errors
    /// [`SpecError::Argument`](crate::SpecError::Argument).
    pub fn check(&self) -> Result<(), EnvError> {
        match &self.statistics.lock().gathered {
            Some(first) => first.check(&self.kind, self.kept_numbers()),
            None => Ok(()),
        }
    }

    /// Whether these are the statistics that `other` describes.
    #[must_use]
    pub fn are_of(&self, other: &Self) -> bool {
        self.statistics == other.statistics
    }

    /// Writes the statistics as they are now into the notes of a worker whose environments gather them.
    pub fn send(&self, notes: &mut [f64]) {
        let kept = self.statistics.lock();
        let frozen = f64::from(u8::from(kept.is_frozen));
        notes[..HEAD].copy_from_slice(&[self.fingerprint(), kept.writes as f64, frozen]);
        let numbers = &mut notes[HEAD..HEAD + self.kept_numbers()];
        match &kept.gathered {
            Some(gathered) => numbers.copy_from_slice(&gathered.numbers),
            None => numbers.fill(0.0),
        }
    }

    /// Takes over the numbers of the only worker.
    pub fn replace(&self, notes: &[f64]) {
        let mut kept = self.statistics.lock();
        if self.counts(notes, &kept)
            && let Some(gathered) = &mut kept.gathered
        {
            let numbers = &notes[HEAD..HEAD + self.kept_numbers()];
            gathered.numbers.copy_from_slice(numbers);
        }
    }

    /// Merges what environments have gathered into the statistics that all of them share, in the order given. Numbers that were frozen or
    /// written since those environments got them stay.
    pub fn merge(handed_in: &[(&Self, &[f64])]) {
        let Some((first, _)) = handed_in.first() else {
            return;
        };
        let mut kept = first.statistics.lock();
        let deltas = handed_in
            .iter()
            .filter(|(of, notes)| of.counts(notes, &kept));
        let deltas: Vec<_> = deltas.map(|(of, notes)| (*of, &notes[HEAD..])).collect();
        // Environments settle what is gathered when they are made.
        let Some(gathered) = &mut kept.gathered else {
            return;
        };
        let mut rest = &mut gathered.numbers[..];
        for (column, elements) in first.elements.iter().enumerate() {
            let (numbers, others) = rest.split_at_mut(2 * elements * first.groups + 1);
            first.merge_column(column, numbers, &deltas);
            rest = others;
        }
    }

    /// Whether what a worker has handed in belongs to the numbers of now.
    fn counts(&self, notes: &[f64], kept: &Kept) -> bool {
        !kept.is_frozen && notes[..2] == [self.fingerprint(), kept.writes as f64]
    }

    fn merge_column(&self, column: usize, numbers: &mut [f64], handed_in: &[(&Self, &[f64])]) {
        let elements = self.elements[column];
        let size = DELTA + moments(elements);
        // Those of one group, in the order of environments.
        let deltas = |group: usize| {
            handed_in.iter().flat_map(move |(of, deltas)| {
                let own = &deltas[of.begin_of_deltas(column)..][..of.envs * size];
                own.chunks_exact(size).skip(group).step_by(of.groups)
            })
        };
        let rows = |group| deltas(group).map(|delta| delta[0]);
        let longest = (0..self.groups).flat_map(rows).fold(0.0, f64::max);
        if longest == 0.0 {
            return;
        }
        let (values, count) = numbers.split_at_mut(2 * elements * self.groups);
        let before = count[0];
        let most = (0..self.groups).map(|group| rows(group).sum());
        count[0] = match self.rule {
            Rule::Sums => 0.0,
            Rule::Means => before + most.fold(0.0, f64::max),
        };
        let mut all = vec![0.0; moments(elements)];
        for group in 0..self.groups {
            self.moments_of(values, before, group, &mut all);
            let left = match self.rule {
                Rule::Sums => self.decay.powf(longest),
                Rule::Means => self.decay.powf(rows(group).sum()),
            };
            fade(&mut all, left);
            for delta in deltas(group).filter(|delta| delta[0] > 0.0) {
                add(&mut all, &delta[DELTA..]);
            }
            if self.rule == Rule::Sums {
                count[0] = all[0];
            }
            self.write(&all, values, count[0], group);
        }
    }

    /// The moments of group `group` of a column whose numbers are `values` and `count`.
    fn moments_of(&self, values: &[f64], count: f64, group: usize, to: &mut [f64]) {
        let (weight, means, squares) = parts(to);
        let share = self.kept_share(count);
        let whole = match self.rule {
            Rule::Sums => count,
            Rule::Means => share,
        };
        *weight = match self.rule {
            Rule::Means if self.decay < 1.0 => share / (1.0 - self.decay),
            _ => count,
        };
        let elements = means.len();
        let (first, second) = values.split_at(values.len() / 2);
        let own = group * elements..(group + 1) * elements;
        let both = first[own.clone()].iter().zip(&second[own]);
        for ((first, second), (mean, square)) in both.zip(means.iter_mut().zip(squares)) {
            // Nothing was gathered where the weight is 0. Rounding may take the variance below 0.
            (*mean, *square) = match *weight > 0.0 {
                true => {
                    let mean = first / whole;
                    (mean, at_least(second / whole - mean * mean, 0.0) * *weight)
                }
                false => (0.0, 0.0),
            };
        }
    }

    /// Writes moments as the numbers of group `group` of a column of so many rows.
    fn write(&self, moments: &[f64], values: &mut [f64], count: f64, group: usize) {
        let (weight, rest) = (moments[0], &moments[1..]);
        let (means, squares) = rest.split_at(rest.len() / 2);
        let whole = match self.rule {
            Rule::Sums => weight,
            Rule::Means => self.kept_share(count),
        };
        let half = values.len() / 2;
        let begin = group * means.len();
        for (i, (mean, square)) in means.iter().zip(squares).enumerate() {
            values[begin + i] = mean * whole;
            values[half + begin + i] = (square / weight + mean * mean) * whole;
        }
    }

    /// The share of [`Rule::Means`] that comes from rows that there were.
    fn kept_share(&self, count: f64) -> f64 {
        match self.decay {
            1.0 => 1.0,
            decay => 1.0 - decay.powf(count),
        }
    }
}

/// Weight, means and squared deviations.
fn parts(moments: &mut [f64]) -> (&mut f64, &mut [f64], &mut [f64]) {
    let (weight, rest) = moments.split_at_mut(1);
    let (means, squares) = rest.split_at_mut(rest.len() / 2);
    (&mut weight[0], means, squares)
}

/// Leaves `left` of their weight.
fn fade(moments: &mut [f64], left: f64) {
    let (weight, _, squares) = parts(moments);
    *weight *= left;
    squares.iter_mut().for_each(|square| *square *= left);
}

/// Adds other moments, by Chan's formula.
fn add(moments: &mut [f64], other: &[f64]) {
    let (weight, means, squares) = parts(moments);
    let (other_weight, rest) = (other[0], &other[1..]);
    let (other_means, other_squares) = rest.split_at(rest.len() / 2);
    let sum = *weight + other_weight;
    let share = other_weight / sum;
    let others = other_means.iter().zip(other_squares);
    for ((mean, square), (other_mean, other_square)) in means.iter_mut().zip(squares).zip(others) {
        let far = other_mean - *mean;
        *mean += far * share;
        *square += other_square + far * far * *weight * share;
    }
    *weight = sum;
}

/// Running statistics at work in one vector of environments.
#[derive(Debug)]
pub struct Gathering {
    of: Gathers,
    /// Whether these environments use the statistics, and never change them.
    only_reads: bool,
    apart: Option<Apart>,
}

/// What environments gather apart from each other.
#[derive(Debug)]
pub(super) struct Apart {
    /// Moments of each group and column, of the numbers that the part began with.
    base: Vec<f64>,
    /// Deltas of each column and environment since then.
    deltas: Vec<f64>,
    /// What a row leaves of the weight of all rows before.
    left: f64,
    /// The weight of a row.
    weight: f64,
    pub(super) is_frozen: bool,
}

impl Gathering {
    pub(super) fn new(of: Gathers, only_reads: bool) -> Self {
        Self {
            of,
            only_reads,
            apart: None,
        }
    }

    /// What is gathered.
    #[must_use]
    pub fn gathers(&self) -> &Gathers {
        &self.of
    }

    /// The place of the numbers, where environments change these at each step.
    pub(super) fn shared(&self) -> Option<&Statistics> {
        match self.apart {
            None => Some(&self.of.statistics),
            Some(_) => None,
        }
    }

    /// Lets each environment gather for itself, as one of `together` whose deltas are merged at once.
    pub fn gather_apart(&mut self, together: usize) {
        let of = &self.of;
        let (left, weight) = match of.rule {
            Rule::Sums => (of.decay, 1.0),
            Rule::Means if of.decay == 1.0 => (1.0, 1.0),
            // Each of a step's rows fades those before it, and all of them weigh alike.
            Rule::Means => {
                let rows = together as f64 / of.groups as f64;
                let left = of.decay.powf(rows);
                (left, (1.0 - left) / (rows * (1.0 - of.decay)))
            }
        };
        let base = of.elements.iter().map(|each| of.groups * moments(*each));
        let mut apart = Apart {
            base: vec![0.0; base.sum()],
            deltas: vec![0.0; of.delta_numbers()],
            left,
            weight,
            is_frozen: false,
        };
        apart.forget(of);
        let mut now = vec![0.0; of.numbers()];
        of.send(&mut now);
        apart.take_up(of, &now);
        self.apart = Some(apart);
    }

    /// Has the environments, which are the only ones, change `statistics` from now on, a [copy](Statistics::copied) of those that they share.
    pub fn go_on_with(&mut self, statistics: &Statistics) {
        self.of.statistics = statistics.clone();
    }

    /// Goes on from the statistics that a collector has [sent](Gathers::send).
    ///
    /// # Errors
    /// [`EnvError::Failed`] where they are statistics of something else.
    pub fn take_up(&mut self, notes: &[f64]) -> Result<(), EnvError> {
        let of = &self.of;
        if notes.len() < of.numbers() || notes[0] != of.fingerprint() {
            return Err(EnvError::failed(format!(
                "expected running statistics of the environments that the collector began with, got those of {}, in {} environments",
                of.kind, of.envs
            )));
        }
        match &mut self.apart {
            Some(apart) => apart.take_up(of, notes),
            None => {
                let mut kept = of.statistics.lock();
                kept.is_frozen = notes[2] != 0.0;
                // Others may have gathered since, where these environments do not.
                if notes[1] != kept.writes as f64 || kept.is_frozen || self.only_reads {
                    kept.writes = notes[1] as u64;
                    if let Some(gathered) = &mut kept.gathered {
                        let numbers = &notes[HEAD..HEAD + of.kept_numbers()];
                        gathered.numbers.copy_from_slice(numbers);
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes what was gathered since the last call into the notes that the statistics came in.
    pub fn hand_in(&mut self, notes: &mut [f64]) {
        let of = &self.of;
        let (head, numbers) = notes.split_at_mut(HEAD);
        if self.only_reads {
            // Nothing that counts.
            head[0] = 0.0;
            return;
        }
        match &mut self.apart {
            Some(apart) => {
                numbers[..apart.deltas.len()].copy_from_slice(&apart.deltas);
                apart.forget(of);
            }
            None => {
                if let Some(gathered) = &of.statistics.lock().gathered {
                    numbers[..gathered.numbers.len()].copy_from_slice(&gathered.numbers);
                }
            }
        }
    }

    /// Drops what was gathered apart since it was handed in: its part is lost.
    pub fn forget(&mut self) {
        if let Some(apart) = &mut self.apart {
            apart.forget(&self.of);
        }
    }

    /// What environments gather apart, and by which rule.
    #[inline]
    pub(super) fn apart(&mut self) -> Option<(&mut Apart, &Gathers)> {
        let apart = self.apart.as_mut()?;
        Some((apart, &self.of))
    }
}

impl Apart {
    fn forget(&mut self, of: &Gathers) {
        self.deltas.fill(0.0);
        let mut rest = &mut self.deltas[..];
        for &elements in &of.elements {
            let size = DELTA + moments(elements);
            let (own, others) = rest.split_at_mut(of.envs * size);
            own.chunks_exact_mut(size).for_each(|delta| delta[1] = 1.0);
            rest = others;
        }
    }

    fn take_up(&mut self, of: &Gathers, notes: &[f64]) {
        self.is_frozen = notes[2] != 0.0;
        let (mut numbers, mut base) = (&notes[HEAD..], &mut self.base[..]);
        for &elements in &of.elements {
            let (values, others) = numbers.split_at(2 * elements * of.groups);
            let (own, rest) = base.split_at_mut(of.groups * moments(elements));
            for (group, own) in own.chunks_exact_mut(moments(elements)).enumerate() {
                of.moments_of(values, others[0], group, own);
            }
            (numbers, base) = (&others[1..], rest);
        }
    }

    /// Normalises the row of environment `env` by the statistics from the beginning of the part and what it has gathered since, to which the
    /// row is added unless `is_frozen`. Returns false, without a change, where there are no statistics.
    pub(super) fn normalise<T: Real>(
        &mut self,
        of: &Gathers,
        (column, env): (usize, usize),
        row: &mut [T],
        (is_frozen, eps): (bool, f64),
    ) -> bool {
        let elements = of.elements[column];
        let before = of.elements[..column].iter();
        let bases: usize = before.map(|each| of.groups * moments(*each)).sum();
        let base = &self.base[bases + env % of.groups * moments(elements)..][..moments(elements)];
        let size = DELTA + moments(elements);
        let begin = of.begin_of_deltas(column) + env * size;
        let (progress, delta) = self.deltas[begin..][..size].split_at_mut(DELTA);
        let (weight, means, squares) = parts(delta);
        if !is_frozen {
            progress[0] += 1.0;
            progress[1] *= self.left;
            *weight = *weight * self.left + self.weight;
            let share = self.weight / *weight;
            for ((x, mean), square) in row.iter().zip(&mut *means).zip(&mut *squares) {
                let far = x.double() - *mean;
                *mean += far * share;
                *square = *square * self.left + self.weight * far * far * (1.0 - share);
            }
        }
        let old = base[0] * progress[1];
        let sum = old + *weight;
        if sum == 0.0 {
            return false;
        }
        let (base_means, base_squares) = base[1..].split_at(elements);
        let share = *weight / sum;
        let bases = base_means.iter().zip(base_squares);
        let own = means.iter().zip(&*squares);
        for (x, ((own_mean, own_square), (mean, square))) in row.iter_mut().zip(own.zip(bases)) {
            let far = own_mean - mean;
            let mean = mean + far * share;
            let squares = square * progress[1] + own_square + far * far * old * share;
            let variance = squares / sum;
            let variance = match of.rule {
                Rule::Sums => at_least(variance, eps),
                Rule::Means => variance,
            };
            *x = T::of((x.double() - mean) / at_least(variance.sqrt(), eps));
        }
        true
    }
}

/// `x`, or `least` where that is greater; what is no number stays so.
fn at_least(x: f64, least: f64) -> f64 {
    if x < least { least } else { x }
}
