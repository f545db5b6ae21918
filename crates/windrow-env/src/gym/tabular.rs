//! Environments whose states, actions and transitions are a table, as those of Gymnasium's toy
//! texts.

use std::sync::Arc;

use tensordict::{DType, Element};
use windrow_slab::{Key, Row, RowMut};

use super::space::index;
use super::taxi::Fickle;
use crate::{
    EXACT_REWARD, Env, EnvError, EnvRng, EnvSpec, NumpyRng, Outcome, Spec, StateVisitor, info,
};

/// One of the ways that a step can go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transition {
    pub(super) probability: f64,
    pub(super) state: usize,
    pub(super) reward: f64,
    pub(super) terminated: bool,
}

/// The transitions of each state and action, and the states in which episodes begin.
#[derive(Debug, Default)]
pub(super) struct Table {
    actions: usize,
    /// Of state `s` and action `a`, those from `first[s * actions + a]` to the next.
    first: Vec<usize>,
    transitions: Vec<Transition>,
    /// Probability of each transition, and of those before it of the same state and action.
    sums: Vec<f64>,
    /// The same of the states in which episodes begin.
    begins: Vec<f64>,
    /// An element for each action of each state: whether it changes the state. Empty where nothing
    /// says so.
    masks: Vec<i8>,
}

impl Table {
    /// A table of so many `states` and `actions`. Episodes begin in each of the states that
    /// `begins` accepts with the same probability; `step` adds the transitions of a state and an
    /// action.
    pub(super) fn new(
        (states, actions): (usize, usize),
        begins: impl Fn(usize) -> bool,
        mut step: impl FnMut(usize, usize, &mut Vec<Transition>),
    ) -> Self {
        let mut table = Self {
            actions,
            ..Self::default()
        };
        for state in 0..states {
            for action in 0..actions {
                let from = table.transitions.len();
                table.first.push(from);
                step(state, action, &mut table.transitions);
                let chances = table.transitions[from..].iter();
                table.sums.extend(sums(chances.map(|one| one.probability)));
            }
        }
        table.first.push(table.transitions.len());
        let weights: Vec<f64> = (0..states)
            .map(|state| f64::from(u8::from(begins(state))))
            .collect();
        let all: f64 = weights.iter().sum();
        table.begins = sums(weights.into_iter().map(|weight| weight / all)).collect();
        table
    }

    /// The same, with whether each action changes each state, as `mask` says.
    pub(super) fn with_masks(mut self, mask: impl Fn(usize, usize) -> bool) -> Self {
        let states = 0..self.begins.len();
        let pairs = states.flat_map(|state| (0..self.actions).map(move |action| (state, action)));
        self.masks = pairs
            .map(|(state, action)| i8::from(mask(state, action)))
            .collect();
        self
    }

    /// Environments of this table, called `id`, that observe the entries `info`.
    ///
    /// # Errors
    /// [`SpecError::Argument`](crate::SpecError::Argument) for an entry of `info` that there is
    /// not.
    pub(super) fn into_env(
        self,
        id: &str,
        wanted: &[String],
        fickle: Option<Fickle>,
    ) -> Result<Tabular, EnvError> {
        let observation = Spec::discrete(self.begins.len());
        let mut spec = EnvSpec::new(id, observation, Spec::discrete(self.actions));
        let number = || Spec::unbounded(DType::F64, []);
        let (chance, exact) = (("prob", number()), (EXACT_REWARD, number()));
        let (chance, exact, mask) = match self.masks.is_empty() {
            true => {
                let [chance, exact] = observe(&mut spec, wanted, &[chance, exact])?;
                (chance, exact, None)
            }
            false => {
                let mask = Spec::unbounded(DType::I8, [self.actions]);
                let known = [chance, exact, (info::ACTION_MASK, mask)];
                observe(&mut spec, wanted, &known)?.into()
            }
        };
        Ok(Tabular {
            state: None,
            fickle,
            rng: EnvRng::new(),
            chance,
            exact,
            mask,
            spec: Arc::new(spec),
            table: Arc::new(self),
        })
    }

    /// The state in which an episode begins.
    fn begin(&self, rng: &mut NumpyRng) -> usize {
        sample(&self.begins, rng)
    }

    /// A transition from `state` by `action`.
    #[inline]
    fn step(&self, state: usize, action: usize, rng: &mut NumpyRng) -> &Transition {
        let at = state * self.actions + action;
        let range = self.first[at]..self.first[at + 1];
        &self.transitions[range.start + sample(&self.sums[range], rng)]
    }

    fn mask(&self, state: usize) -> &[i8] {
        let from = state * self.actions;
        self.masks
            .get(from..from + self.actions)
            .unwrap_or_default()
    }
}

/// Sums of the numbers so far, each rounded, as `numpy.cumsum` has them.
fn sums(numbers: impl Iterator<Item = f64>) -> impl Iterator<Item = f64> {
    numbers.scan(0.0, |sum, number| {
        *sum += number;
        Some(*sum)
    })
}

/// The index that Gymnasium's `categorical_sample` draws: the first whose sum is above a random
/// number, or 0 where rounding leaves none.
#[inline]
fn sample(sums: &[f64], rng: &mut NumpyRng) -> usize {
    let drawn = rng.random();
    let found = match sums.len() {
        ..=8 => sums.iter().position(|&sum| sum > drawn),
        len => Some(sums.partition_point(|&sum| sum <= drawn)).filter(|&found| found < len),
    };
    found.unwrap_or_default()
}

/// An environment that follows a [`Table`], which copies share.
#[derive(Debug, Clone)]
pub(crate) struct Tabular {
    state: Option<usize>,
    /// What a passenger of a taxi may do beside.
    fickle: Option<Fickle>,
    rng: EnvRng,
    /// The leaves in which the probability of the last transition, its reward and the legal actions
    /// are observed.
    chance: Option<usize>,
    exact: Option<usize>,
    mask: Option<usize>,
    spec: Arc<EnvSpec>,
    table: Arc<Table>,
}

impl Tabular {
    /// Writes what is observed after a transition of probability `chance` to `state`, which is
    /// rewarded.
    #[inline]
    fn write(
        &self,
        state: usize,
        (chance, reward): (f64, f64),
        obs: &mut RowMut<'_>,
    ) -> Result<(), EnvError> {
        obs.write(Key::new(0), &[state as i64])?;
        write(obs, self.chance, &[chance])?;
        write(obs, self.exact, &[reward])?;
        write(obs, self.mask, self.table.mask(state))
    }
}

impl Env for Tabular {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let rng = self.rng.for_reset(seed);
        let state = self.table.begin(rng);
        if let Some(fickle) = &mut self.fickle {
            fickle.begin(rng);
        }
        self.state = Some(state);
        self.write(state, (1.0, 0.0), &mut obs)
    }

    #[inline]
    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let action = index(action, self.table.actions)?;
        let Some(from) = self.state else {
            return Err(EnvError::NotReset);
        };
        let rng = self.rng.present();
        let Transition {
            probability,
            mut state,
            reward,
            terminated,
        } = *self.table.step(from, action, rng);
        if let Some(fickle) = &mut self.fickle {
            state = fickle.change(from, state, rng);
        }
        self.state = Some(state);
        self.write(state, (probability, reward), &mut obs)?;
        Ok(Outcome {
            reward: reward as f32,
            terminated,
            truncated: false,
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let states = self.table.begins.len();
        // It is an index of the table's.
        state.checked(&mut self.state, |loaded| match *loaded {
            Some(at) if at >= states => Err(EnvError::State {
                expected: format!("one of {states} states of {}", self.spec.id),
                got: at.to_string(),
            }),
            _ => Ok(()),
        })?;
        if let Some(fickle) = &mut self.fickle {
            fickle.visit_state(state)?;
        }
        state.value(&mut self.rng)
    }
}

/// Lets `spec` observe the entries `wanted` of those that the environment has, `known`. Gives for
/// each of these the leaf that it is observed as.
///
/// # Errors
/// As [`info::find`].
fn observe<const N: usize>(
    spec: &mut EnvSpec,
    wanted: &[String],
    known: &[(&str, Spec); N],
) -> Result<[Option<usize>; N], EnvError> {
    let found = info::find(&spec.id, wanted, &known.each_ref().map(|(name, _)| *name))?;
    let specs = found.iter().map(|&entry| known[entry].1.clone());
    let first = info::append(spec, wanted.iter().cloned().zip(specs).collect());
    let mut leaves = [None; N];
    for (leaf, entry) in (first..).zip(found) {
        leaves[entry] = Some(leaf);
    }
    Ok(leaves)
}

/// Writes `values` as the entry that is observed as `leaf`, where it is observed.
#[inline(always)]
fn write<T: Element>(
    obs: &mut RowMut<'_>,
    leaf: Option<usize>,
    values: &[T],
) -> Result<(), EnvError> {
    match leaf {
        Some(leaf) => Ok(obs.write(Key::new(leaf), values)?),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_above_all_sums_is_the_first_index() {
        for len in [3, 20] {
            let mut rng = NumpyRng::new(0);
            assert_eq!(sample(&vec![1e-9; len], &mut rng), 0);
            let mut rising: Vec<f64> = sums(vec![1.0 / len as f64; len].into_iter()).collect();
            rising[len - 1] = 1.0;
            let drawn = NumpyRng::new(1).random();
            let expected = rising.iter().position(|&sum| sum > drawn).unwrap();
            assert_eq!(sample(&rising, &mut NumpyRng::new(1)), expected);
        }
    }

    #[test]
    fn a_state_that_the_table_does_not_have_is_not_loaded() {
        let env = |states| {
            let stay = |state, _, to: &mut Vec<_>| {
                to.push(Transition {
                    probability: 1.0,
                    state,
                    reward: 0.0,
                    terminated: false,
                });
            };
            let table = Table::new((states, 1), |state| state == states - 1, stay);
            table.into_env("Stay", &[], None).unwrap()
        };
        let (mut large, mut small) = (env(3), env(2));
        large.state = Some(2);
        let mut saving = StateVisitor::saving();
        large.visit_state(&mut saving).unwrap();
        let bytes = saving.finish().unwrap();
        let error = small
            .visit_state(&mut StateVisitor::loading(&bytes))
            .unwrap_err();
        assert!(
            error.to_string().contains("one of 2 states of Stay"),
            "{error}"
        );
    }
}
