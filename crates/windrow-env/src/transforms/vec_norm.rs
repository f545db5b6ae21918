use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensordict::NestedKey;
use windrow_slab::LeafSpec;
use windrow_sync::unpoisoned;

use super::elementwise::{Elementwise, ElementwiseOp, Real, columns, reward};
use super::gathering::{Gathering, Gathers, Rule as Kind};
use super::statistics::{Gathered, Kept, Statistics};
use crate::{Attach, EnvError, Spec, SpecError, StateVisitor, Transform, serde_form};

/// Normalises observations and rewards by running statistics of them: sums, sums of squares and a
/// count, from which older steps fade.
///
/// Each step of the environments changes the statistics once, by the rows of all of them, before it
/// is normalised; so does a reset. Numbers are those of TorchRL's transform of this name, which
/// takes the deviation for `sqrt(max(variance, eps))`.
///
/// ```
/// use windrow_env::{Pendulum, Serial, VecEnv, VecNorm};
///
/// let norm = VecNorm::new(["observation", "reward"]).with_decay(0.99);
/// let envs = Serial::from_fn(8, Pendulum::v1)?.transformed(norm)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VecNorm {
    /// Names of the observations, or `reward`; `None` for `observation` and `reward`.
    #[serde(with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the results, which are then observed in addition; `None` replaces what is
    /// normalised.
    #[serde(with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
    /// What is left of older steps after each step.
    pub decay: f64,
    /// The least variance, and the least deviation.
    pub eps: f64,
    /// Whether the statistics are used, but not changed.
    pub frozen: bool,
    /// Where they are shared; `None` for statistics of each vector's own, which begin anew with it.
    pub statistics: Option<Statistics>,
}

impl Default for VecNorm {
    fn default() -> Self {
        Self {
            in_keys: None,
            out_keys: None,
            decay: 0.9999,
            eps: 1e-4,
            frozen: false,
            statistics: None,
        }
    }
}

impl VecNorm {
    /// Normalises `keys`, which are observations or `reward`.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = impl Into<NestedKey>>) -> Self {
        Self {
            in_keys: Some(keys.into_iter().map(Into::into).collect()),
            ..Self::default()
        }
    }

    /// Keeps so much of older steps.
    #[must_use]
    pub fn with_decay(mut self, decay: f64) -> Self {
        self.decay = decay;
        self
    }

    /// Shares statistics with all environments that share the same, such as those of all workers of
    /// a collector; without this, each worker has statistics of its own.
    #[must_use]
    pub fn sharing(mut self, statistics: &Statistics) -> Self {
        self.statistics = Some(statistics.clone());
        self
    }
}

impl Transform for VecNorm {
    type Bound = Elementwise<Running>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let plan = Plan {
            rule: Rule::Sums,
            decay: self.decay,
            eps: self.eps,
            frozen: self.frozen,
        };
        let keys = (self.in_keys.as_deref(), self.out_keys.as_deref());
        plan.attach(envs, keys, self.statistics.as_ref())
    }
}

/// How several environments in lockstep count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Lockstep {
    /// One after the other, as if each had the transform and all shared the statistics: each row is
    /// normalised by those that it has just changed.
    #[default]
    Turns,
    /// All together, by the means of their values and of the squares.
    Mean,
    /// Each has statistics of its own.
    Apart,
}

/// Normalises observations and rewards by running means of them and of their squares.
///
/// Each step changes the statistics before it is normalised; so does a reset. Numbers are those of
/// TorchRL's transform of this name, which corrects the means for the steps that there were not
/// yet, in `float32`.
///
/// ```
/// use windrow_env::{Lockstep, Pendulum, Serial, VecEnv, VecNormV2};
///
/// let norm = VecNormV2::new(["observation", "reward"]).with_lockstep(Lockstep::Mean);
/// let envs = Serial::from_fn(8, Pendulum::v1)?.transformed(norm)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VecNormV2 {
    /// Names of the observations, or `reward`; `None` for `observation` and `reward`.
    #[serde(default, with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the results, which are then observed in addition; `None` replaces what is
    /// normalised.
    #[serde(default, with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
    /// What is left of older steps after each step; 1 weighs all steps alike.
    #[serde(default = "slow")]
    pub decay: f64,
    /// The least deviation.
    #[serde(default = "small")]
    pub eps: f64,
    /// How several environments in lockstep count.
    #[serde(default)]
    pub lockstep: Lockstep,
    /// Whether the statistics are used, but not changed.
    #[serde(default)]
    pub frozen: bool,
    /// Where they are shared; `None` for statistics of each vector's own, which begin anew with it.
    #[serde(default)]
    pub statistics: Option<Statistics>,
}

fn slow() -> f64 {
    0.9999
}

fn small() -> f64 {
    1e-4
}

impl VecNormV2 {
    /// Normalises `keys`, which are observations or `reward`.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = impl Into<NestedKey>>) -> Self {
        Self {
            in_keys: Some(keys.into_iter().map(Into::into).collect()),
            out_keys: None,
            decay: slow(),
            eps: small(),
            lockstep: Lockstep::Turns,
            frozen: false,
            statistics: None,
        }
    }

    /// Keeps so much of older steps; 1 weighs all steps alike.
    #[must_use]
    pub fn with_decay(mut self, decay: f64) -> Self {
        self.decay = decay;
        self
    }

    /// Several environments in lockstep count so.
    #[must_use]
    pub fn with_lockstep(mut self, lockstep: Lockstep) -> Self {
        self.lockstep = lockstep;
        self
    }

    /// Shares statistics with all environments that share the same, such as those of all workers of
    /// a collector; without this, each worker has statistics of its own.
    #[must_use]
    pub fn sharing(mut self, statistics: &Statistics) -> Self {
        self.statistics = Some(statistics.clone());
        self
    }
}

impl Transform for VecNormV2 {
    type Bound = Elementwise<Running>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let plan = Plan {
            rule: Rule::Means(self.lockstep),
            decay: self.decay,
            eps: self.eps,
            frozen: self.frozen,
        };
        let keys = (self.in_keys.as_deref(), self.out_keys.as_deref());
        plan.attach(envs, keys, self.statistics.as_ref())
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    Sums,
    Means(Lockstep),
}

/// Arguments of both transforms.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rule: Rule,
    decay: f64,
    eps: f64,
    frozen: bool,
}

/// The least deviation and what the means are corrected with.
#[derive(Debug, Clone, Copy)]
struct Rates {
    decay: f64,
    eps: f64,
    /// Logarithm of the decay.
    log: f32,
}

impl Plan {
    fn attach(
        self,
        envs: &mut Attach<'_>,
        keys: (Option<&[NestedKey]>, Option<&[NestedKey]>),
        shared: Option<&Statistics>,
    ) -> Result<Elementwise<Running>, EnvError> {
        let name = match self.rule {
            Rule::Sums => "VecNorm",
            Rule::Means(_) => "VecNormV2",
        };
        let bounds = [
            ("decay", self.decay, self.decay <= 1.0),
            ("eps", self.eps, true),
        ];
        for (argument, given, fits) in bounds {
            if !fits || given.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
                return Err(SpecError::Argument {
                    argument,
                    of: format!("{name} of {}", envs.inner().id),
                    expected: "a number above 0, a decay of 1 at most".to_owned(),
                    got: given.to_string(),
                }
                .into());
            }
        }
        let free = |leaf: &LeafSpec| Spec::unbounded(leaf.dtype, &leaf.shape);
        let default = ["observation".into(), reward()];
        let columns = columns(envs, keys.0.unwrap_or(&default), keys.1, free)?;
        let apart = self.rule == Rule::Means(Lockstep::Apart);
        let times = if apart { envs.num_envs() } else { 1 };
        let mut total = 0;
        let mut kept = Vec::new();
        for column in &columns {
            let elements = column.elements * times;
            kept.push(ColumnNumbers {
                begin: total,
                elements,
            });
            total += 2 * elements + 1;
        }
        let of = Gathered::nothing(name, &columns, apart.then_some(times), total);
        let gathering = match shared {
            None => None,
            Some(shared) => {
                shared.settle(&of)?;
                let gathers = Gathers {
                    statistics: shared.clone(),
                    rule: match self.rule {
                        Rule::Sums => Kind::Sums,
                        Rule::Means(_) => Kind::Means,
                    },
                    decay: self.decay,
                    envs: envs.num_envs(),
                    groups: times,
                    elements: columns.iter().map(|column| column.elements).collect(),
                    kind: of.kind(),
                };
                envs.spec.statistics.push(gathers.clone());
                Some(Gathering::new(gathers, self.frozen))
            }
        };
        let widest = kept.iter().map(|kept| kept.elements).max().unwrap_or(0);
        let running = Running {
            plan: self,
            rates: Rates {
                decay: self.decay,
                eps: self.eps,
                log: self.decay.ln() as f32,
            },
            kept,
            numbers: of.numbers,
            scratch: vec![0.0; 2 * widest],
            gathering,
            is_frozen: self.frozen,
            left: Vec::new(),
        };
        Ok(Elementwise::new(columns, running))
    }
}

/// Where the statistics of a column are: two numbers for each element, then a count.
#[derive(Debug, Clone, Copy)]
struct ColumnNumbers {
    begin: usize,
    elements: usize,
}

/// Normalises by running statistics.
#[derive(Debug)]
pub struct Running {
    plan: Plan,
    rates: Rates,
    kept: Vec<ColumnNumbers>,
    /// The statistics of all columns.
    numbers: Vec<f64>,
    /// Room for two numbers for each element.
    scratch: Vec<f64>,
    /// The statistics that the environments share with others, if they do.
    gathering: Option<Gathering>,
    /// Whether they are used, but not changed, until the next step.
    is_frozen: bool,
    /// What is left of the weight of older rows in a copy, for each column and group; empty where
    /// nobody asks.
    left: Vec<f64>,
}

impl Running {
    /// Notes that `rows` rows of column `column` were counted, from environment `env` on.
    fn fade(&mut self, column: usize, env: usize, rows: usize) {
        let decay = self.plan.decay;
        let groups = self.left.len() / self.kept.len();
        let own = &mut self.left[column * groups..(column + 1) * groups];
        match self.plan.rule {
            Rule::Sums => own[0] *= decay,
            Rule::Means(Lockstep::Apart) => {
                own[env..env + rows]
                    .iter_mut()
                    .for_each(|left| *left *= decay);
            }
            Rule::Means(_) => own[0] *= decay.powi(rows as i32),
        }
    }
}

impl ElementwiseOp for Running {
    #[inline]
    fn within<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let shared = self.gathering.as_ref().and_then(Gathering::shared);
        let Some(kept) = shared.map(|shared| Arc::clone(shared.kept())) else {
            return change(self);
        };
        let mut kept = unpoisoned(kept.lock());
        self.is_frozen = kept.is_frozen || self.plan.frozen;
        let Kept {
            gathered: Some(gathered),
            since,
            ..
        } = &mut *kept
        else {
            return change(self);
        };
        let mut swap = |running: &mut Self| {
            std::mem::swap(&mut running.numbers, &mut gathered.numbers);
            if let Some(since) = since {
                std::mem::swap(&mut running.left, &mut since.left);
            }
        };
        swap(self);
        let changed = change(self);
        swap(self);
        changed
    }

    fn gathering(&mut self) -> Option<&mut Gathering> {
        self.gathering.as_mut()
    }

    #[inline]
    fn change<T: Real>(
        &mut self,
        column: usize,
        env: usize,
        values: &mut [T],
    ) -> Result<(), EnvError> {
        if let Some((apart, of)) = self.gathering.as_mut().and_then(Gathering::apart) {
            let how = (apart.is_frozen || self.plan.frozen, self.rates.eps);
            let rows = values.chunks_exact_mut(of.elements[column].max(1));
            for (env, row) in (env..).zip(rows) {
                if !apart.normalise(of, (column, env), row, how) {
                    return Err(nothing_gathered());
                }
            }
            return Ok(());
        }
        let ColumnNumbers { begin, elements } = self.kept[column];
        if !self.is_frozen && !self.left.is_empty() {
            let apart = self.plan.rule == Rule::Means(Lockstep::Apart);
            let groups = if apart {
                self.left.len() / self.kept.len()
            } else {
                1
            };
            self.fade(column, env, values.len() * groups / elements.max(1));
        }
        let (mut first, others) = self.numbers[begin..].split_at_mut(elements);
        let (mut second, others) = others.split_at_mut(elements);
        let apart = self.plan.rule == Rule::Means(Lockstep::Apart);
        // The rows of some environments that have statistics of their own: they do not count as a
        // step of all.
        let counts = !apart || values.len() == elements;
        if !counts {
            let own = env * values.len()..(env + 1) * values.len();
            (first, second) = (&mut first[own.clone()], &mut second[own]);
        }
        let elements = first.len();
        let mut of = Moments {
            first,
            second,
            count: &mut others[0],
            scratch: self.scratch[..2 * elements].split_at_mut(elements),
            rates: self.rates,
        };
        if self.is_frozen && *of.count == 0.0 {
            return Err(nothing_gathered());
        }
        match self.plan.rule {
            Rule::Sums => of.by_sums(values, self.is_frozen),
            Rule::Means(Lockstep::Mean) => {
                if !self.is_frozen {
                    of.add_means(values);
                }
                of.normalise(values);
            }
            Rule::Means(_) => {
                let count = *of.count;
                for row in values.chunks_exact_mut(elements.max(1)) {
                    match self.is_frozen {
                        false => of.in_turn(row),
                        true => of.normalise(row),
                    }
                }
                if !counts {
                    *of.count = count;
                }
            }
        }
        Ok(())
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(&mut self.numbers)?;
        match &mut self.gathering {
            Some(gathering) => gathering.visit_state(state),
            None => Ok(()),
        }
    }
}

fn nothing_gathered() -> EnvError {
    SpecError::Argument {
        argument: "frozen",
        of: "VecNorm".to_owned(),
        expected: "statistics to normalise with: load some, or gather some first".to_owned(),
        got: "none".to_owned(),
    }
    .into()
}

/// The statistics of one column.
struct Moments<'a> {
    first: &'a mut [f64],
    second: &'a mut [f64],
    count: &'a mut f64,
    scratch: (&'a mut [f64], &'a mut [f64]),
    rates: Rates,
}

impl Moments<'_> {
    /// Sums up the rows of `values` and their squares, in the scratch.
    #[inline(always)]
    fn sum_up<T: Real>(&mut self, values: &[T]) -> usize {
        let (sums, squares) = (&mut *self.scratch.0, &mut *self.scratch.1);
        let rows = values.chunks_exact(sums.len().max(1));
        let count = rows.len();
        sums.fill(0.0);
        squares.fill(0.0);
        for row in rows {
            for ((&x, sum), square) in row.iter().zip(&mut *sums).zip(&mut *squares) {
                *sum = (T::of(*sum) + x).double();
                *square = (T::of(*square) + x * x).double();
            }
        }
        count
    }

    /// Changes sums, sums of squares and count by all rows, and normalises these.
    #[inline(always)]
    fn by_sums<T: Real>(&mut self, values: &mut [T], is_frozen: bool) {
        if !is_frozen {
            let rows = self.sum_up(values);
            let decay = T::of(self.rates.decay);
            let fade = |all: &mut [f64], some: &[f64]| {
                for (all, some) in all.iter_mut().zip(some) {
                    *all = (T::of(*all) * decay + T::of(*some)).double();
                }
            };
            fade(self.first, self.scratch.0);
            fade(self.second, self.scratch.1);
            *self.count = f64::from(*self.count as f32 * self.rates.decay as f32 + rows as f32);
        }
        let (count, eps) = (T::of(*self.count), T::of(self.rates.eps));
        let (means, deviations) = (&mut *self.scratch.0, &mut *self.scratch.1);
        let both = self.first.iter().zip(&*self.second);
        for ((&sum, &squares), (mean, deviation)) in both.zip(means.iter_mut().zip(deviations)) {
            let m = T::of(sum) / count;
            let d = at_least(at_least(T::of(squares) / count - m * m, eps).sqrt(), eps);
            (*mean, *deviation) = (m.double(), d.double());
        }
        self.apply(values);
    }

    /// How much `rows` more count beside all before, which are counted with them.
    #[inline(always)]
    fn weight(&self, rows: usize) -> f64 {
        match self.rates.decay {
            // What TorchRL divides is whole, so it gets a number of float32.
            1.0 => f64::from(rows as f32 / *self.count as f32),
            decay if rows == 1 => 1.0 - decay,
            decay => 1.0 - decay.powi(rows as i32),
        }
    }

    /// The share of the means that comes from steps that there were, in float32, as TorchRL has it.
    #[inline(always)]
    fn kept(&self) -> f64 {
        match self.rates.decay {
            1.0 => 1.0,
            _ => f64::from(1.0 - (*self.count as f32 * self.rates.log).exp()),
        }
    }

    /// Moves the means towards one row, and normalises it.
    #[inline(always)]
    fn in_turn<T: Real>(&mut self, row: &mut [T]) {
        *self.count += 1.0;
        let weight = T::of(self.weight(1));
        let (near, rest) = (weight < T::of(0.5), T::of(1.0) - weight);
        let (scale, eps) = (T::of(1.0) / T::of(self.kept()), T::of(self.rates.eps));
        let both = self.first.iter_mut().zip(&mut *self.second);
        for (x, (first, second)) in row.iter_mut().zip(both) {
            let (mean, square) = (T::of(*first), T::of(*second));
            let (far, far_square) = (*x - mean, *x * *x - square);
            let (mean, square) = match near {
                true => (mean + weight * far, square + weight * far_square),
                false => (*x - far * rest, *x * *x - far_square * rest),
            };
            (*first, *second) = (mean.double(), square.double());
            // Rounding may take the variance below 0, of which there is no root.
            let variance = at_least((square - mean * mean) * scale, T::default());
            *x = (*x - mean * scale) / at_least(variance.sqrt(), eps);
        }
    }

    /// Moves the means towards those of all rows.
    #[inline(always)]
    fn add_means<T: Real>(&mut self, values: &[T]) {
        let rows = self.sum_up(values);
        *self.count += rows as f64;
        let weight = self.weight(rows);
        let (rows, weight) = (T::of(rows as f64), T::of(weight));
        let near = weight < T::of(0.5);
        let rest = T::of(1.0) - weight;
        let step = |all: &mut [f64], some: &[f64]| {
            for (all, some) in all.iter_mut().zip(some) {
                let (from, to) = (T::of(*all), T::of(*some) / rows);
                let moved = if near {
                    from + weight * (to - from)
                } else {
                    to - (to - from) * rest
                };
                *all = moved.double();
            }
        };
        step(self.first, self.scratch.0);
        step(self.second, self.scratch.1);
    }

    /// Normalises rows by the means, corrected for the steps that there were not yet.
    #[inline(always)]
    fn normalise<T: Real>(&mut self, values: &mut [T]) {
        let (kept, eps) = (T::of(self.kept()), T::of(self.rates.eps));
        let (means, deviations) = (&mut *self.scratch.0, &mut *self.scratch.1);
        let both = self.first.iter().zip(&*self.second);
        for ((&first, &second), (mean, deviation)) in both.zip(means.iter_mut().zip(deviations)) {
            let (first, second) = (T::of(first), T::of(second));
            // Rounding may take the variance below 0, of which there is no root.
            let variance = at_least((second - first * first) / kept, T::default());
            *mean = (first / kept).double();
            *deviation = at_least(variance.sqrt(), eps).double();
        }
        self.apply(values);
    }

    /// Subtracts the means in the scratch from all rows, and divides by the deviations there.
    #[inline(always)]
    fn apply<T: Real>(&self, values: &mut [T]) {
        let (means, deviations) = (&*self.scratch.0, &*self.scratch.1);
        for row in values.chunks_exact_mut(means.len().max(1)) {
            for ((x, mean), deviation) in row.iter_mut().zip(means).zip(deviations) {
                *x = (*x - T::of(*mean)) / T::of(*deviation);
            }
        }
    }
}

/// `x`, or `least` where that is greater; what is no number stays so.
#[inline(always)]
fn at_least<T: Real>(x: T, least: T) -> T {
    if x < least { least } else { x }
}
