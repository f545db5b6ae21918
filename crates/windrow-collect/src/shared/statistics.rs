//! Running statistics that environments share: workers get them with their parts, and hand in what
//! was gathered.

use windrow_env::{EnvError, Gathers, StateVisitor, Statistics, VecEnv, gatherings};
use windrow_slab::{Lease, Part};

use crate::config::options::CollectorConfig;
use crate::config::plan::Placement;
use crate::error::BuildError;

/// Numbers before the others: the worker's, and how many statistics it gathers.
const HEAD: usize = 2;

/// Which environments change running statistics, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// All of the only worker, which runs in the consumer's thread: those that are shared, at each
    /// step.
    InPlace,
    /// All of the only worker: a copy, at each step.
    Copied,
    /// Each for itself. What all have gathered is merged in the order of environments, so that it
    /// depends neither on how they are shared out among workers nor on time.
    Apart,
}

impl Sharing {
    fn of(config: &CollectorConfig) -> Self {
        match config.merge_statistics || config.num_workers > Some(1) {
            true => Self::Apart,
            false if config.plan().placement == Placement::Inline => Self::InPlace,
            false => Self::Copied,
        }
    }
}

/// What the environments of all workers gather, and where it goes.
#[derive(Debug)]
pub(crate) struct SharedStatistics {
    sharing: Sharing,
    /// By worker. A worker in the place of a lost one gathers the same.
    workers: Vec<Vec<Gathers>>,
}

impl SharedStatistics {
    /// # Errors
    /// [`BuildError::Env`] for a worker whose environments gather something else in the place of
    /// others.
    pub(crate) fn new(
        config: &CollectorConfig,
        workers: Vec<Vec<Gathers>>,
    ) -> Result<Self, BuildError> {
        for (worker, gathers) in workers.iter().enumerate() {
            let checked = gathers.iter().try_for_each(Gathers::check);
            checked.map_err(|source| BuildError::Env { worker, source })?;
        }
        Ok(Self {
            sharing: Sharing::of(config),
            workers,
        })
    }

    /// How many numbers each part needs for them beside its frames.
    pub(crate) fn notes(&self) -> usize {
        if self.sharing == Sharing::InPlace {
            return 0;
        }
        let of_worker = |gathers: &Vec<Gathers>| gathers.iter().map(Gathers::numbers).sum();
        match self.workers.iter().map(of_worker).max() {
            None | Some(0) => 0,
            Some(numbers) => HEAD + numbers,
        }
    }

    /// Notes the statistics of now in a part that worker `worker` gets.
    pub(crate) fn send(&self, worker: usize, part: &mut Part) {
        if let [by, count, rest @ ..] = part.notes() {
            let gathers = &self.workers[worker];
            (*by, *count) = (worker as f64, gathers.len() as f64);
            let mut rest = rest;
            for gathers in gathers {
                let (own, others) = rest.split_at_mut(gathers.numbers());
                gathers.send(own);
                rest = others;
            }
        }
    }

    /// Saves or loads the statistics.
    ///
    /// # Errors
    /// [`EnvError::State`] where other statistics were saved.
    pub(crate) fn visit_state(&self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let mut seen: Vec<&Gathers> = Vec::new();
        for gathers in self.workers.iter().flatten() {
            if !seen.iter().any(|other| other.are_of(gathers)) {
                seen.push(gathers);
            }
        }
        state.section(format!("{} running statistics", seen.len()))?;
        seen.into_iter()
            .try_for_each(|gathers| gathers.statistics().visit_state(state))
    }

    /// Takes what was handed in with the parts of a slab.
    pub(crate) fn take(&self, slab: &Lease) {
        let mut handed_in = Vec::new();
        for (part, commit) in slab.commits().iter().enumerate() {
            // Nobody has filled the part of a worker that is gone.
            if let [by, _, rest @ ..] = slab.notes(part)
                && commit.steps > 0
            {
                let mut rest = rest;
                for gathers in &self.workers[*by as usize] {
                    let (own, others) = rest.split_at(gathers.numbers());
                    handed_in.push((gathers, own));
                    rest = others;
                }
            }
        }
        match self.sharing {
            Sharing::Copied => handed_in
                .into_iter()
                .for_each(|(of, notes)| of.replace(notes)),
            Sharing::InPlace | Sharing::Apart => Gathers::merge(handed_in),
        }
    }
}

/// Lets new environments of a worker gather as `config` says.
///
/// # Errors
/// [`EnvError::Failed`] for environments whose spec names statistics that cannot be reached.
pub(crate) fn prepare(env: &mut dyn VecEnv, config: &CollectorConfig) -> Result<(), EnvError> {
    let sharing = Sharing::of(config);
    if sharing == Sharing::InPlace {
        return Ok(());
    }
    let together = env.num_envs() * config.num_workers.unwrap_or(1);
    // Several of its environments may share one.
    let mut copies: Vec<(Gathers, Statistics)> = Vec::new();
    for gathering in gatherings(env)? {
        if sharing == Sharing::Apart {
            gathering.gather_apart(together);
            continue;
        }
        let gathers = gathering.gathers().clone();
        let copy = copies.iter().find(|(of, _)| of.are_of(&gathers));
        let copy = copy.map_or_else(|| gathers.statistics().copied(), |(_, copy)| copy.clone());
        gathering.go_on_with(&copy);
        copies.push((gathers, copy));
    }
    Ok(())
}

/// Lets the environments of a worker go on from the statistics that came with `part`.
///
/// # Errors
/// [`EnvError::Failed`] where they gather something else than those that the collector was built
/// with.
pub(crate) fn take_up(env: &mut dyn VecEnv, part: &mut Part) -> Result<(), EnvError> {
    let [_, count, rest @ ..] = part.notes() else {
        return Ok(());
    };
    let (gatherings, mut rest) = (env.gatherings(), rest);
    if *count != gatherings.len() as f64 {
        return Err(EnvError::failed(format!(
            "expected environments with {count} running statistics, as those that the collector began with, got {}",
            gatherings.len()
        )));
    }
    for gathering in gatherings {
        let numbers = gathering.gathers().numbers().min(rest.len());
        let (own, others) = rest.split_at_mut(numbers);
        gathering.take_up(own)?;
        rest = others;
    }
    Ok(())
}

/// Puts what environments have gathered into `part`, whose statistics they have [taken
/// up](take_up).
pub(crate) fn hand_in(env: &mut dyn VecEnv, part: &mut Part) {
    if let [_, _, rest @ ..] = part.notes() {
        let mut rest = rest;
        for gathering in env.gatherings() {
            let (own, others) = rest.split_at_mut(gathering.gathers().numbers());
            gathering.hand_in(own);
            rest = others;
        }
    }
}
