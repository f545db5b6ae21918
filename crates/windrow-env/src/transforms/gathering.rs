//! Running statistics of a collector's workers: each environment gathers apart, and the collector
//! merges.
//!
//! A collector and its worker pass numbers in the notes of a part. When the worker gets the part,
//! they are the statistics of then; when it hands the part in, they are what each of its
//! environments has gathered: weight, means, and squared deviations from these. Chan's formula puts
//! two of those together, in an environment (its own with those that it got) and in the collector
//! (those of all, in the order of the environments). Neither depends on how environments are shared
//! out among workers, nor on time.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::elementwise::Real;
use super::statistics::{Kept, Since, Statistics};
use crate::{EnvError, StateVisitor, VecEnv};

/// Running statistics that environments share with others: which, of what, and by which rule. A
/// part of their [spec](crate::EnvSpec::statistics).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gathers {
    pub(super) statistics: Statistics,
    pub(super) rule: Rule,
    /// What is left of older rows: after each step for [`Rule::Sums`], after each row for
    /// [`Rule::Means`].
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
    /// Means of values and of squares, from which a share is missing as long as there are few rows,
    /// and the number of rows.
    Means,
}

/// Numbers before the others of an exchange: a fingerprint, how often the statistics were written,
/// whether they are frozen, and how often others have added to them.
pub(super) const HEAD: usize = 4;

/// What one environment has gathered of one column: how many rows, what these have left of the
/// weight of all rows before, and then [`moments`].
const DELTA: usize = 2;

/// Numbers of the moments of so many elements: a weight, then means, then squared deviations.
const fn moments(elements: usize) -> usize {
    1 + 2 * elements
}

impl Gathers {
    /// How many numbers an exchange takes.
    #[must_use]
    pub fn numbers(&self) -> usize {
        let copied = 2 * self.kept_numbers() + self.elements.len() * self.groups;
        HEAD + copied.max(self.delta_numbers())
    }

    pub(super) fn kept_numbers(&self) -> usize {
        let columns = self.elements.iter();
        columns.map(|each| 2 * each * self.groups + 1).sum()
    }

    pub(super) fn delta_numbers(&self) -> usize {
        self.begin_of_deltas(self.elements.len())
    }

    /// How many numbers the moments of all groups and columns are.
    pub(super) fn base_numbers(&self) -> usize {
        let columns = self.elements.iter();
        columns.map(|each| self.groups * moments(*each)).sum()
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

    /// What goes before the numbers of now.
    pub(super) fn head(&self, kept: &Kept) -> [f64; HEAD] {
        let frozen = f64::from(u8::from(kept.is_frozen));
        let (writes, merges) = (kept.writes as f64, kept.merges as f64);
        [self.fingerprint(), writes, frozen, merges]
    }

    /// How many environments gather.
    #[must_use]
    pub fn envs(&self) -> usize {
        self.envs
    }

    /// Where they are.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Checks that the statistics are of what these environments gather: those of another process
    /// may gather something else.
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

    /// Writes the statistics as they are now into the notes of a worker whose environments gather
    /// them.
    pub fn send(&self, notes: &mut [f64]) {
        let kept = self.statistics.lock();
        notes[..HEAD].copy_from_slice(&self.head(&kept));
        let numbers = &mut notes[HEAD..HEAD + self.kept_numbers()];
        match &kept.gathered {
            Some(gathered) => numbers.copy_from_slice(&gathered.numbers),
            None => numbers.fill(0.0),
        }
    }

    /// Takes over the numbers of the only worker of a collector: as they are where nobody else has
    /// changed these statistics since; otherwise what it has added to those that it began with.
    pub fn replace(&self, notes: &[f64]) {
        let mut kept = self.statistics.lock();
        if !self.counts(notes, &kept) {
            return;
        }
        let Kept {
            gathered: Some(gathered),
            merges,
            ..
        } = &mut *kept
        else {
            return;
        };
        let (now, rest) = notes[HEAD..].split_at(self.kept_numbers());
        let (begun, left) = rest.split_at(self.kept_numbers());
        let bits = |numbers: &[f64]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        if bits(begun) == bits(&gathered.numbers) {
            gathered.numbers.copy_from_slice(now);
        } else {
            self.carry_over(&mut gathered.numbers, (now, begun), left);
            *merges += 1;
        }
    }

    /// Adds to `numbers` what made those of `now` of those of `begun`, of whose weight so much was
    /// `left` for each column and group.
    fn carry_over(&self, numbers: &mut [f64], (now, begun): (&[f64], &[f64]), left: &[f64]) {
        let mut at = 0;
        for (column, elements) in self.elements.iter().enumerate() {
            let size = elements * self.groups;
            let count = at + 2 * size;
            let counts = [numbers[count], now[count], begun[count]];
            let more = counts[1] - counts[2];
            for place in 0..2 * size {
                let group = place % size.max(1) / elements.max(&1);
                let left = left[column * self.groups + group];
                let place = at + place;
                // Means over all rows add up when each is as often in them as there are rows.
                let whole = |count: f64| match self.rule {
                    Rule::Means if self.decay == 1.0 => count,
                    _ => 1.0,
                };
                let sum = numbers[place] * whole(counts[0]) * left;
                let sum =
                    sum + now[place] * whole(counts[1]) - begun[place] * whole(counts[2]) * left;
                if whole(counts[0] + more) > 0.0 {
                    numbers[place] = sum / whole(counts[0] + more);
                }
            }
            numbers[count] = match self.rule {
                Rule::Sums => counts[0] * left[column] + counts[1] - counts[2] * left[column],
                Rule::Means => counts[0] + more,
            };
            at = count + 1;
        }
    }

    /// Merges what environments have gathered into the statistics that they share, in the order
    /// given. Numbers that were frozen or written since those environments got them stay.
    pub fn merge<'a>(handed_in: impl IntoIterator<Item = (&'a Self, &'a [f64])>) {
        let mut handed_in: Vec<_> = handed_in.into_iter().collect();
        while let Some(&(first, _)) = handed_in.first() {
            let (alike, others): (Vec<_>, Vec<_>) =
                handed_in.into_iter().partition(|(of, _)| of.are_of(first));
            first.merge_alike(&alike);
            handed_in = others;
        }
    }

    /// Merges what environments have gathered of these statistics.
    fn merge_alike(&self, handed_in: &[(&Self, &[f64])]) {
        let mut kept = self.statistics.lock();
        let deltas = handed_in
            .iter()
            .filter(|(of, notes)| of.counts(notes, &kept));
        let deltas: Vec<_> = deltas.map(|(of, notes)| (*of, &notes[HEAD..])).collect();
        // Environments settle what is gathered when they are made.
        let Kept {
            gathered: Some(gathered),
            merges,
            since,
            ..
        } = &mut *kept
        else {
            return;
        };
        if !deltas.is_empty() {
            *merges += 1;
        }
        let mut lefts = since.as_mut().map(|since| &mut since.left[..]);
        let mut rest = &mut gathered.numbers[..];
        for (column, elements) in self.elements.iter().enumerate() {
            let (numbers, others) = rest.split_at_mut(2 * elements * self.groups + 1);
            self.merge_column(column, numbers, &deltas, lefts.as_deref_mut());
            rest = others;
        }
    }

    /// Whether what a worker has handed in belongs to the numbers of now.
    fn counts(&self, notes: &[f64], kept: &Kept) -> bool {
        !kept.is_frozen && notes[..2] == [self.fingerprint(), kept.writes as f64]
    }

    /// Notes in `lefts` what is left of the weight of all rows before.
    fn merge_column(
        &self,
        column: usize,
        numbers: &mut [f64],
        handed_in: &[(&Self, &[f64])],
        mut lefts: Option<&mut [f64]>,
    ) {
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
            if let Some(lefts) = &mut lefts {
                lefts[column * self.groups + group] *= left;
            }
            for delta in deltas(group).filter(|delta| delta[0] > 0.0) {
                add(&mut all, &delta[DELTA..]);
            }
            if self.rule == Rule::Sums {
                count[0] = all[0];
            }
            self.write(&all, values, count[0], group);
        }
    }

    /// The moments of all groups and columns of `numbers`, one behind the other.
    pub(super) fn bases_of(&self, numbers: &[f64], bases: &mut [f64]) {
        let (mut numbers, mut bases) = (numbers, bases);
        for &elements in &self.elements {
            let (values, others) = numbers.split_at(2 * elements * self.groups);
            let (own, rest) = bases.split_at_mut(self.groups * moments(elements));
            for (group, own) in own.chunks_exact_mut(moments(elements)).enumerate() {
                self.moments_of(values, others[0], group, own);
            }
            (numbers, bases) = (&others[1..], rest);
        }
    }

    /// Empties the deltas of all columns and environments.
    pub(super) fn empty(&self, deltas: &mut [f64]) {
        deltas.fill(0.0);
        let mut rest = deltas;
        for &elements in &self.elements {
            let size = DELTA + moments(elements);
            let (own, others) = rest.split_at_mut(self.envs * size);
            own.chunks_exact_mut(size).for_each(|delta| delta[1] = 1.0);
            rest = others;
        }
    }

    /// What a row leaves of the weight of all rows before, and its own, where the deltas of
    /// `together` environments are merged at once.
    pub(super) fn rates(&self, together: usize) -> (f64, f64) {
        match self.rule {
            Rule::Sums => (self.decay, 1.0),
            Rule::Means if self.decay == 1.0 => (1.0, 1.0),
            // Each of a step's rows fades those before it, and all of them weigh alike.
            Rule::Means => {
                let rows = together as f64 / self.groups as f64;
                let left = self.decay.powf(rows);
                (left, (1.0 - left) / (rows * (1.0 - self.decay)))
            }
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

/// The running statistics at work in `env`, in the order of its spec.
///
/// # Errors
/// [`EnvError::Failed`] where they cannot be reached.
pub fn gatherings(env: &mut dyn VecEnv) -> Result<Vec<&mut Gathering>, EnvError> {
    let (id, named) = (env.spec().id.clone(), env.spec().statistics.len());
    let gatherings = env.gatherings();
    match gatherings.len() == named {
        true => Ok(gatherings),
        false => Err(EnvError::failed(format!(
            "expected the {named} running statistics of {id} that its spec names, got {}: environments around others forward VecEnv::gatherings",
            gatherings.len()
        ))),
    }
}

/// Running statistics at work in one vector of environments.
#[derive(Debug)]
pub struct Gathering {
    pub(super) of: Gathers,
    /// Whether these environments use the statistics, and never change them.
    only_reads: bool,
    pub(super) apart: Option<Apart>,
}

/// What environments gather apart from each other.
#[derive(Debug)]
pub(super) struct Apart {
    /// Moments of each group and column, of the numbers that the part began with.
    pub(super) base: Vec<f64>,
    /// Deltas of each column and environment since then.
    pub(super) deltas: Vec<f64>,
    /// What a row leaves of the weight of all rows before.
    pub(super) left: f64,
    /// The weight of a row.
    pub(super) weight: f64,
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

    /// Saves or loads what environments have gathered apart, or the statistics that they change at
    /// each step.
    ///
    /// # Errors
    /// [`EnvError::State`] where something else was saved.
    pub fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let Some(apart) = &mut self.apart else {
            return self.of.statistics.visit_state(state);
        };
        state.values(&mut apart.base)?;
        state.values(&mut apart.deltas)?;
        state.value(&mut apart.left)?;
        state.value(&mut apart.weight)?;
        state.value(&mut apart.is_frozen)
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

    /// Lets each environment gather for itself, as one of `together` whose deltas are merged at
    /// once.
    pub fn gather_apart(&mut self, together: usize) {
        let of = &self.of;
        let (left, weight) = of.rates(together);
        let mut apart = Apart {
            base: vec![0.0; of.base_numbers()],
            deltas: vec![0.0; of.delta_numbers()],
            left,
            weight,
            is_frozen: false,
        };
        of.empty(&mut apart.deltas);
        let mut now = vec![0.0; of.numbers()];
        of.send(&mut now);
        apart.take_up(of, &now);
        self.apart = Some(apart);
    }

    /// Has the environments, which are the only ones, change `statistics` from now on, a
    /// [copy](Statistics::copied) of those that they share.
    pub fn go_on_with(&mut self, statistics: &Statistics) {
        self.of.statistics = statistics.clone();
        let mut kept = statistics.lock();
        let numbers = match &kept.gathered {
            Some(gathered) => gathered.numbers.clone(),
            None => vec![0.0; self.of.kept_numbers()],
        };
        kept.since.get_or_insert(Since {
            numbers,
            left: vec![1.0; self.of.elements.len() * self.of.groups],
            merges: 0.0,
        });
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
                let is_new = notes[1] != kept.writes as f64 || kept.is_frozen || self.only_reads;
                let merges = kept.since.as_ref().map(|since| since.merges);
                if is_new || merges != Some(notes[3]) {
                    kept.writes = notes[1] as u64;
                    kept.go_on_from(&notes[HEAD..HEAD + of.kept_numbers()], notes[3]);
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
                of.empty(&mut apart.deltas);
            }
            None => {
                if let Kept {
                    gathered: Some(gathered),
                    since: Some(since),
                    ..
                } = &mut *of.statistics.lock()
                {
                    let (now, rest) = numbers.split_at_mut(of.kept_numbers());
                    let (begun, left) = rest.split_at_mut(of.kept_numbers());
                    now.copy_from_slice(&gathered.numbers);
                    begun.copy_from_slice(&since.numbers);
                    left[..since.left.len()].copy_from_slice(&since.left);
                    since.numbers.copy_from_slice(now);
                    since.left.fill(1.0);
                }
            }
        }
    }

    /// Drops what was gathered apart since it was handed in: its part is lost.
    pub fn forget(&mut self) {
        if let Some(apart) = &mut self.apart {
            self.of.empty(&mut apart.deltas);
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
    fn take_up(&mut self, of: &Gathers, notes: &[f64]) {
        self.is_frozen = notes[2] != 0.0;
        of.bases_of(&notes[HEAD..], &mut self.base);
    }

    /// Normalises the row of environment `env` by the statistics from the beginning of the part and
    /// what it has gathered since, to which the row is added unless `is_frozen`. Returns false,
    /// without a change, where there are no statistics.
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
