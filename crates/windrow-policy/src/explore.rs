//! Exploration noise around the actions of any policy.

use std::convert::identity;

use serde::{Deserialize, Serialize};
use tensordict::{DType, Element, for_dtype};
use windrow_env::{EnvError, Spec, StateVisitor};
use windrow_slab::{Key, LeafSpec, RowBlock, RowsMut};

use crate::fit::{Fit, at_least, at_most};
use crate::{
    Binding, EnvRows, ExplorationType, KnownRows, Policy, PolicyError, PolicyIn, PolicyRecipe,
    PolicySpec, RandomPolicy, States, Weights,
};

/// The streams of a frame that exploration draws from, far from those of policies.
const CHOICE: usize = 0x4000_0000;
const RANDOM: usize = CHOICE + 1;
const NORMAL: usize = CHOICE + 2;

/// A number that changes over the frames of each environment, such as the probability of a random
/// action.
///
/// It depends on nothing but the frame, so that it goes on where a collector does.
///
/// ```
/// use windrow_policy::Schedule;
///
/// let epsilon = Schedule::linear(1.0, 0.1, 1000);
/// assert_eq!([0, 500, 1000, 9999].map(|frame| epsilon.at(frame)), [1.0, 0.55, 0.1, 0.1]);
/// assert_eq!(Schedule::exponential(1.0, 0.01, 100).at(50), 0.1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    start: f64,
    end: f64,
    frames: u64,
    is_exponential: bool,
}

impl Schedule {
    /// Always `value`.
    #[must_use]
    pub fn constant(value: f64) -> Self {
        Self::linear(value, value, 0)
    }

    /// From `start` to `end` within so many frames of an environment, by equal differences.
    #[must_use]
    pub fn linear(start: f64, end: f64, frames: u64) -> Self {
        Self {
            start,
            end,
            frames,
            is_exponential: false,
        }
    }

    /// From `start` to `end` within so many frames of an environment, by equal factors; both have
    /// to be positive.
    #[must_use]
    pub fn exponential(start: f64, end: f64, frames: u64) -> Self {
        Self {
            is_exponential: true,
            ..Self::linear(start, end, frames)
        }
    }

    /// The number at frame `frame` of an environment.
    #[must_use]
    pub fn at(&self, frame: u64) -> f64 {
        if frame >= self.frames {
            return self.end;
        }
        let done = frame as f64 / self.frames as f64;
        match self.is_exponential {
            false => self.start + (self.end - self.start) * done,
            true => self.start * (self.end / self.start).powf(done),
        }
    }

    /// Whether all of its numbers are finite, from `low` to `high`.
    fn is_within(&self, low: f64, high: f64) -> bool {
        let fits = |value: f64| value.is_finite() && (low..=high).contains(&value);
        let is_positive = self.start > 0.0 && self.end > 0.0;
        fits(self.start) && fits(self.end) && (is_positive || !self.is_exponential)
    }
}

/// An Ornstein-Uhlenbeck process: noise that an episode begins at 0 and that goes on from step to
/// step, `x += theta (mean - x) dt + sigma √dt N(0, 1)`.
///
/// Source: G. E. Uhlenbeck, L. S. Ornstein, "On the theory of the Brownian motion", Physical Review
/// 36, 1930, in the discrete form of T. P. Lillicrap et al., "Continuous control with deep
/// reinforcement learning", ICLR 2016.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrnsteinUhlenbeck {
    /// How fast it returns to the mean.
    pub theta: f64,
    /// Where it returns to.
    pub mean: f64,
    /// How far it is moved.
    pub sigma: f64,
    /// Time of a step.
    pub dt: f64,
    /// Factor of what is added to actions.
    pub scale: Schedule,
}

impl Default for OrnsteinUhlenbeck {
    fn default() -> Self {
        Self {
            theta: 0.15,
            mean: 0.0,
            sigma: 0.2,
            dt: 0.01,
            scale: Schedule::constant(1.0),
        }
    }
}

/// How actions are changed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Exploration {
    Greedy(Schedule),
    Gaussian(Schedule),
    Process(OrnsteinUhlenbeck),
}

/// Changes the actions of a policy where [`PolicyIn::exploration`] is [`ExplorationType::Random`].
///
/// A row's noise depends on seed, environment and frame only, and on the steps of its episode for a
/// process. Columns beside the actions, such as log-probabilities, stay those of the policy.
///
/// ```
/// use windrow_policy::{Explore, Head, NetworkPolicy, Policy, Schedule, nn::Sequential};
///
/// let net = Sequential::new().linear(4, 64).tanh().linear(64, 2);
/// let greedy = NetworkPolicy::new(net, Head::Deterministic);
/// let policy = Explore::epsilon_greedy(greedy, Schedule::linear(1.0, 0.05, 10_000));
/// assert!(policy.recipe().is_some());
/// ```
#[derive(Debug, Clone)]
pub struct Explore<P> {
    policy: P,
    how: Exploration,
    bound: Option<Bound>,
}

#[derive(Debug, Clone)]
struct Bound {
    /// The columns of the actions, which come first.
    actions: Vec<LeafSpec>,
    /// The bounds of each action's elements; empty where there are none.
    bounds: Vec<Vec<(f64, f64)>>,
    /// Elements of all actions.
    elements: usize,
    random: RandomPolicy,
    /// Random actions. `[rows]`.
    drawn: Scratch,
    /// The rows, with noise of their own.
    apart: EnvRows,
    /// What is added to actions. `[rows, elements]`.
    added: Vec<f64>,
    /// The process of each place. `[places, elements]`.
    process: Vec<f64>,
    known: KnownRows,
}

/// Rows whose contents last for a call, so that a copy has none.
#[derive(Debug, Default)]
struct Scratch(Option<RowBlock>);

impl Clone for Scratch {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Scratch {
    /// A block of so many rows.
    fn rows(&mut self, leaves: &[LeafSpec], rows: usize) -> Result<&mut RowBlock, PolicyError> {
        let fits = self.0.as_mut().is_some_and(|own| own.limit(rows).is_ok());
        if !fits {
            self.0 = Some(RowBlock::new(leaves, rows).map_err(PolicyError::failed)?);
        }
        Ok(self.0.as_mut().expect("The lines above have made it."))
    }
}

impl<P: Policy> Explore<P> {
    fn new(policy: P, how: Exploration) -> Self {
        Self {
            policy,
            how,
            bound: None,
        }
    }

    /// With probability `epsilon`, a row has a [random action](RandomPolicy) in place of its own.
    #[must_use]
    pub fn epsilon_greedy(policy: P, epsilon: Schedule) -> Self {
        Self::new(policy, Exploration::Greedy(epsilon))
    }

    /// Adds normal noise of this deviation to real actions, and keeps them within their bounds.
    #[must_use]
    pub fn gaussian(policy: P, deviation: Schedule) -> Self {
        Self::new(policy, Exploration::Gaussian(deviation))
    }

    /// Adds a process of its own to each element of real actions, and keeps them within their
    /// bounds.
    #[must_use]
    pub fn ornstein_uhlenbeck(policy: P, process: OrnsteinUhlenbeck) -> Self {
        Self::new(policy, Exploration::Process(process))
    }

    pub(crate) fn by(policy: P, how: Exploration) -> Self {
        Self::new(policy, how)
    }
}

impl Exploration {
    /// What is wrong with its numbers, if anything is.
    fn fault(&self) -> Option<String> {
        let any = ("finite numbers of at least 0", f64::MAX);
        let (what, schedule, (expected, high)) = match self {
            Self::Greedy(epsilon) => ("epsilon", epsilon, ("numbers from 0 to 1", 1.0)),
            Self::Gaussian(deviation) => ("deviation", deviation, any),
            Self::Process(process) => {
                let numbers = [process.theta, process.mean, process.sigma, process.dt];
                let fits = numbers.iter().all(|x| x.is_finite())
                    && process.sigma >= 0.0
                    && process.dt > 0.0;
                if !fits {
                    return Some(format!(
                        "expected finite numbers, sigma of at least 0 and dt above 0, got {process:?}"
                    ));
                }
                ("scale", &process.scale, any)
            }
        };
        let positive = match schedule.is_exponential {
            true => ", both positive as factors need",
            false => "",
        };
        (!schedule.is_within(0.0, high))
            .then(|| format!("{what}: expected {expected}{positive}, got {schedule:?}"))
    }
}

impl<P: Policy> Policy for Explore<P> {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        if let Some(fault) = self.how.fault() {
            return Err(PolicyError::failed(fault));
        }
        let env = binding.spec;
        let fit = Fit {
            policy: "exploration noise",
            env,
        };
        let mut spec = self.policy.bind(binding)?;
        let mut random = RandomPolicy::new();
        let leaves = env.action.leaves("action");
        let mut actions = spec.columns.clone();
        actions.truncate(leaves.len());
        if matches!(self.how, Exploration::Greedy(_)) {
            let columns = random.bind(binding)?.columns;
            if let Some((own, drawn)) = actions.iter().zip(&columns).find(|(a, b)| a != b) {
                let show = |leaf: &LeafSpec| format!("{} {:?}", leaf.dtype, leaf.shape);
                let what = format!("action {:?} of the policy", own.key);
                return Err(fit.error(&what, &show(drawn), &show(own)));
            }
        } else if let Some(at) = actions.iter().position(|leaf| !leaf.dtype.is_float()) {
            let what = format!("action {:?}", actions[at].key);
            return Err(fit.error(&what, "float32 or float64", actions[at].dtype.name()));
        }
        let is_process = matches!(self.how, Exploration::Process(_));
        let writes_state = spec.columns.iter().any(|column| {
            column
                .key
                .components()
                .first()
                .is_some_and(|name| **name == *"next")
        });
        if is_process && !writes_state {
            spec.states = States::ByPlace;
        }
        self.bound = Some(Bound {
            elements: actions.iter().map(LeafSpec::elements).sum(),
            bounds: leaves.iter().map(|(_, spec)| bounds(spec)).collect(),
            actions,
            random,
            drawn: Scratch::default(),
            apart: EnvRows::new(0, Vec::new()),
            added: Vec::new(),
            process: Vec::new(),
            known: KnownRows::default(),
        });
        Ok(spec)
    }

    fn needs_first_rows(&self) -> bool {
        self.policy.needs_first_rows()
    }

    fn become_reference(&mut self, bound: &PolicySpec) {
        self.policy.become_reference(bound);
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.policy.act(input, out.reborrow())?;
        let Some(bound) = &mut self.bound else {
            return Err(PolicyError::NotBound {
                policy: "exploration",
            });
        };
        if input.exploration != ExplorationType::Random {
            return Ok(());
        }
        match self.how {
            Exploration::Greedy(epsilon) => return bound.replace(epsilon, input, &mut out),
            Exploration::Gaussian(deviation) => bound.draw(deviation, input.envs),
            Exploration::Process(process) => bound.advance(process, input.envs),
        }
        bound.add(&mut out)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.policy.load(weights)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        self.policy.check(weights)
    }

    fn weights(&self) -> Weights {
        self.policy.weights()
    }

    fn version(&self) -> Option<i64> {
        self.policy.version()
    }

    fn recipe(&self) -> Option<PolicyRecipe> {
        let inner = self.policy.recipe()?;
        Some(PolicyRecipe::exploring(inner, self.how))
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.policy.visit_state(state)?;
        match (&mut self.bound, self.how) {
            (Some(bound), Exploration::Process(_)) => bound.visit_state(state),
            _ => Ok(()),
        }
    }
}

impl Bound {
    /// Saves or loads the process of each place.
    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.known.visit_state(state)?;
        let mut process = self.process.clone();
        state.value(&mut process)?;
        let expected = self.known.len() * self.elements;
        if process.len() < expected {
            return Err(EnvError::State {
                expected: format!("{expected} numbers of noise"),
                got: process.len().to_string(),
            });
        }
        self.process = process;
        Ok(())
    }

    /// Puts random actions into some of the rows.
    fn replace(
        &mut self,
        epsilon: Schedule,
        input: &PolicyIn<'_>,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        let rows = input.envs.len();
        let (noise, frames) = (input.envs.all_noise(), input.envs.frames());
        let explores = |row: usize| noise[row].branch(CHOICE).f64() < epsilon.at(frames[row]);
        let chosen: u64 = (0..rows).map(|row| u64::from(explores(row))).sum();
        if chosen == 0 {
            return Ok(());
        }
        let drawn = self.drawn.rows(&self.actions, rows)?;
        self.apart.become_branch(input.envs, RANDOM);
        let apart = PolicyIn {
            envs: &self.apart,
            ..*input
        };
        self.random.act(&apart, drawn.rows_mut())?;
        for (index, leaf) in self.actions.iter().enumerate() {
            let width = leaf.elements();
            for_dtype!(leaf.dtype, T => {
                let from = drawn.rows().get::<T>(Key::new(index))?;
                let to = out.get_mut::<T>(Key::new(index))?;
                for row in (0..rows).filter(|&row| explores(row)) {
                    to[row * width..][..width].copy_from_slice(&from[row * width..][..width]);
                }
            });
        }
        Ok(())
    }

    /// Draws normal noise for each element.
    fn draw(&mut self, deviation: Schedule, envs: &EnvRows) {
        self.added.resize(envs.len() * self.elements, 0.0);
        let rows = self.added.chunks_exact_mut(self.elements.max(1));
        for ((noise, &frame), added) in envs.all_noise().iter().zip(envs.frames()).zip(rows) {
            let (mut noise, deviation) = (noise.branch(NORMAL), deviation.at(frame));
            added
                .iter_mut()
                .for_each(|x| *x = deviation * noise.normal());
        }
    }

    /// One step of the process of each row.
    fn advance(&mut self, process: OrnsteinUhlenbeck, envs: &EnvRows) {
        self.added.resize(envs.len() * self.elements, 0.0);
        let width = self.elements;
        let begins = self.known.begins(envs);
        for (row, added) in self.added.chunks_exact_mut(width.max(1)).enumerate() {
            let first = envs.place(row) * width;
            if self.process.len() < first + width {
                self.process.resize(first + width, 0.0);
            }
            let own = &mut self.process[first..][..width];
            if begins[row] {
                own.fill(0.0);
            }
            let scale = process.scale.at(envs.frames()[row]);
            let mut noise = envs.noise(row).branch(NORMAL);
            for (x, added) in own.iter_mut().zip(added) {
                *x += process.theta * (process.mean - *x) * process.dt
                    + process.sigma * process.dt.sqrt() * noise.normal();
                *added = scale * *x;
            }
        }
        self.known.keep(envs);
    }

    /// Adds to the actions of all rows.
    fn add(&self, out: &mut RowsMut<'_>) -> Result<(), PolicyError> {
        let mut first = 0;
        for (index, (leaf, bounds)) in self.actions.iter().zip(&self.bounds).enumerate() {
            let added = self.added.chunks_exact(self.elements.max(1));
            let added = added.map(|row| &row[first..][..leaf.elements()]);
            match leaf.dtype {
                DType::F64 => sum(out.get_mut::<f64>(Key::new(index))?, added, bounds),
                _ => sum(out.get_mut::<f32>(Key::new(index))?, added, bounds),
            }
            first += leaf.elements();
        }
        Ok(())
    }
}

/// A real number of an action.
trait Real: Element {
    fn plus(self, added: f64, bounds: Option<&(f64, f64)>) -> Self;
}

macro_rules! real {
    ($type:ty, $at_least:path, $at_most:path) => {
        impl Real for $type {
            fn plus(self, added: f64, bounds: Option<&(f64, f64)>) -> Self {
                let sum = (f64::from(self) + added) as $type;
                match bounds.map(|&(low, high)| ($at_least(low), $at_most(high))) {
                    Some((low, _)) if sum < low => low,
                    Some((_, high)) if sum > high => high,
                    // NaN, too: it shows that the policy is broken.
                    _ => sum,
                }
            }
        }
    };
}

real!(f32, at_least, at_most);
real!(f64, identity, identity);

fn sum<'a, T: Real>(
    actions: &mut [T],
    added: impl ExactSizeIterator<Item = &'a [f64]>,
    bounds: &[(f64, f64)],
) {
    let width = (actions.len() / added.len().max(1)).max(1);
    for (row, added) in actions.chunks_exact_mut(width).zip(added) {
        for (element, (x, &added)) in row.iter_mut().zip(added).enumerate() {
            *x = x.plus(added, bounds.get(element));
        }
    }
}

/// The bounds of an action's elements; none where it has none.
fn bounds(spec: &Spec) -> Vec<(f64, f64)> {
    match spec {
        Spec::Bounded { low, high, .. } => low.iter().copied().zip(high.iter().copied()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
#[path = "explore_tests.rs"]
mod tests;
