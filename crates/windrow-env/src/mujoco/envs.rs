use std::fmt;
use std::ops::Index;

use tensordict::DType;
use windrow_mujoco::{Batch, Output, SimulationError};
use windrow_slab::{Key, LeafSpec, Row, RowMut, Rows, RowsMut};

use super::model::{Field, MujocoModel, Place};
use crate::factory::many;
use crate::info::append;
use crate::vec_env::{check_rows, out_of_range};
use crate::{
    Env, EnvError, EnvRng, EnvSpec, IntoVecEnv, NumpyRng, Outcome, Outcomes, Reset, Spec,
    SpecError, StateVisitor, VecEnv, VecEnvError, sole,
};

const OBSERVATION: Key<f64> = Key::new(0);
const ACTION: Key<f32> = Key::new(0);

/// A task in simulations of a MuJoCo model: its observations, rewards and ends of episodes. It
/// holds the [`Field`]s that it reads.
pub trait MujocoTask: Send {
    /// Length of an observation.
    fn observation_len(&self) -> usize;

    /// Positions and velocities with which an episode begins; those of the model stand there.
    fn start(&self, qpos: &mut [f64], qvel: &mut [f64], rng: &mut NumpyRng) {
        let _ = (qpos, qvel, rng);
    }

    /// Writes the observation, after a reset or a step.
    fn observe(&self, sim: &Simulation<'_>, observation: &mut [f64]);

    /// The reward of the step.
    fn reward(&self, sim: &Simulation<'_>) -> f64;

    /// Whether the step has terminated the episode.
    fn is_done(&self, sim: &Simulation<'_>) -> bool;

    /// How many numbers the next step is given of this one, as [`Simulation::kept`].
    fn kept_len(&self) -> usize {
        0
    }

    /// Writes those numbers, after a reset or a step, such as a position whose change the next step
    /// rewards.
    fn keep(&self, sim: &Simulation<'_>, kept: &mut [f64]) {
        let _ = (sim, kept);
    }
}

impl<T: MujocoTask + ?Sized> MujocoTask for Box<T> {
    fn observation_len(&self) -> usize {
        (**self).observation_len()
    }

    fn start(&self, qpos: &mut [f64], qvel: &mut [f64], rng: &mut NumpyRng) {
        (**self).start(qpos, qvel, rng);
    }

    fn observe(&self, sim: &Simulation<'_>, observation: &mut [f64]) {
        (**self).observe(sim, observation);
    }

    fn reward(&self, sim: &Simulation<'_>) -> f64 {
        (**self).reward(sim)
    }

    fn is_done(&self, sim: &Simulation<'_>) -> bool {
        (**self).is_done(sim)
    }

    fn kept_len(&self) -> usize {
        (**self).kept_len()
    }

    fn keep(&self, sim: &Simulation<'_>, kept: &mut [f64]) {
        (**self).keep(sim, kept);
    }
}

/// One simulation after a reset or a step: `sim[field]` are the values of a field.
///
/// Positions and velocities are those after the step. What MuJoCo derives from them, such as
/// `xpos`, is of before the last of its own steps, as `mj_step` leaves it, and right after a reset.
#[derive(Debug, Clone, Copy)]
pub struct Simulation<'a> {
    state: &'a [f64],
    batch: &'a Batch,
    outputs: &'a [Output],
    env: usize,
    action: &'a [f32],
    kept: &'a [f64],
    dt: f64,
}

impl<'a> Simulation<'a> {
    /// The values of a field.
    #[inline]
    #[must_use]
    pub fn get(&self, field: Field) -> &'a [f64] {
        match field.place {
            Place::State(start) => &self.state[start..start + field.len],
            Place::Output(index) => self.batch.output(self.outputs[index], self.env),
        }
    }

    /// The action of the step; empty after a reset.
    #[must_use]
    pub fn action(&self) -> &'a [f32] {
        self.action
    }

    /// The numbers that [`MujocoTask::keep`] wrote after the last reset or step.
    #[must_use]
    pub fn kept(&self) -> &'a [f64] {
        self.kept
    }

    /// Seconds between two observations.
    #[must_use]
    pub fn dt(&self) -> f64 {
        self.dt
    }
}

impl Index<Field> for Simulation<'_> {
    type Output = [f64];

    fn index(&self, field: Field) -> &[f64] {
        self.get(field)
    }
}

/// A number that a simulation has.
pub(super) type Number = Box<dyn Fn(&Simulation<'_>) -> f64 + Send + Sync>;

/// An entry of Gymnasium's `info`, observed behind the observation.
pub(super) struct Info {
    pub(super) name: &'static str,
    pub(super) spec: Spec,
    /// Whether resets return it, too; otherwise it is 0 there.
    pub(super) at_reset: bool,
    pub(super) value: InfoValue,
}

/// What an entry says, of the type that it is observed in.
pub(super) enum InfoValue {
    F64(Number),
    F32(Number),
    I64(Number),
    Field(Field),
    /// The reward of the step, before it is rounded.
    Reward,
}

impl Info {
    /// Writes the entry as `leaf`, after a step with this reward, or after a reset.
    fn write(
        &self,
        sim: &Simulation<'_>,
        reward: Option<f64>,
        obs: &mut RowMut<'_>,
        leaf: usize,
    ) -> Result<(), EnvError> {
        let value = |number: &Number| match reward.is_some() || self.at_reset {
            true => number(sim),
            false => 0.0,
        };
        match &self.value {
            InfoValue::F64(number) => obs.write(Key::new(leaf), &[value(number)])?,
            InfoValue::F32(number) => obs.write(Key::new(leaf), &[value(number) as f32])?,
            InfoValue::I64(number) => obs.write(Key::new(leaf), &[value(number) as i64])?,
            InfoValue::Field(field) => obs.write(Key::new(leaf), &sim[*field])?,
            InfoValue::Reward => obs.write(Key::new(leaf), &[reward.unwrap_or(0.0)])?,
        }
        Ok(())
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Environments over one model, which one call of MuJoCo steps together.
///
/// Observations are `float64`, actions `float32` within the ranges of the model's actuators.
#[derive(Debug)]
pub struct MujocoEnvs<T> {
    batch: Batch,
    outputs: Vec<Output>,
    task: T,
    spec: EnvSpec,
    layout: Layout,
    frame_skip: i32,
    forces: bool,
    dt: f64,
    worlds: Vec<World>,
    /// Entries of `info`, and the leaf that the first is observed as.
    info: Vec<Info>,
    info_leaf: usize,
    /// The simulations that are being called.
    which: Vec<i32>,
    /// The environment whose task is being called.
    at: Option<usize>,
}

/// The state of an environment that MuJoCo does not hold.
#[derive(Debug, Clone)]
struct World {
    rng: EnvRng,
    has_begun: bool,
    elapsed: usize,
    kept: Vec<f64>,
}

/// Where parts lie in a state, and their defaults.
#[derive(Debug)]
struct Layout {
    qpos: Field,
    qvel: Field,
    ctrl: Field,
    defaults: [Vec<f64>; 2],
}

impl<T: MujocoTask> MujocoEnvs<T> {
    /// `num_envs` environments of `task`, called `id` in messages, which take `frame_skip` of
    /// MuJoCo's steps for one of their own.
    ///
    /// # Errors
    /// [`EnvError::Empty`], [`SpecError::Argument`] for a `frame_skip` of 0, and
    /// [`EnvError::Failed`] where MuJoCo makes no simulations of the model.
    pub fn new(
        id: &str,
        mut model: MujocoModel,
        task: T,
        frame_skip: usize,
        num_envs: usize,
    ) -> Result<Self, EnvError> {
        if num_envs == 0 {
            return Err(EnvError::Empty);
        }
        let layout = Layout {
            qpos: model.field("qpos")?,
            qvel: model.field("qvel")?,
            ctrl: model.field("ctrl")?,
            defaults: model.defaults(),
        };
        let ranges = model.numbers("actuator_ctrlrange")?;
        let (low, high): (Vec<f32>, Vec<f32>) = ranges
            .chunks_exact(2)
            .map(|range| (range[0] as f32, range[1] as f32))
            .unzip();
        let observation = Spec::unbounded(DType::F64, [task.observation_len()]);
        let spec = EnvSpec::new(id, observation, Spec::bounded(&low, &high)?);
        let steps = i32::try_from(frame_skip).ok().filter(|&steps| steps > 0);
        let steps = steps.ok_or_else(|| SpecError::no_steps("frame_skip", &spec))?;
        let [timestep] = model.numbers("opt.timestep")?[..] else {
            unreachable!("A model has one time step.");
        };
        let world = World {
            rng: EnvRng::new(),
            has_begun: false,
            elapsed: 0,
            kept: vec![0.0; task.kept_len()],
        };
        let (batch, outputs) = model.batch(num_envs)?;
        Ok(Self {
            batch,
            outputs,
            spec,
            layout,
            frame_skip: steps,
            forces: model.reads_forces(),
            dt: timestep * frame_skip as f64,
            worlds: many(num_envs, || world.clone())?,
            task,
            info: Vec::new(),
            info_leaf: 1,
            which: Vec::with_capacity(num_envs),
            at: None,
        })
    }

    /// Truncates episodes after `max_episode_steps` steps.
    ///
    /// # Errors
    /// [`SpecError::Argument`] for 0.
    pub fn with_time_limit(mut self, max_episode_steps: usize) -> Result<Self, EnvError> {
        if max_episode_steps == 0 {
            return Err(SpecError::no_steps("max_episode_steps", &self.spec));
        }
        self.spec.max_episode_steps = Some(max_episode_steps);
        Ok(self)
    }

    /// Observes these entries of `info`, too.
    pub(super) fn with_info(mut self, info: Vec<Info>) -> Self {
        let added = info.iter();
        let added = added.map(|entry| (entry.name.to_owned(), entry.spec.clone()));
        self.info_leaf = append(&mut self.spec, added.collect());
        self.info = info;
        self
    }

    /// Has the environment `env` take `action` in the next call of [`advance`](Self::advance).
    fn act(&mut self, env: usize, action: &[f32]) -> Result<(), EnvError> {
        if !self.worlds[env].has_begun {
            return Err(EnvError::NotReset);
        }
        let ctrl = part(self.batch.state_mut(env), self.layout.ctrl);
        for (control, &value) in ctrl.iter_mut().zip(action) {
            *control = f64::from(value);
        }
        self.which.push(env as i32);
        Ok(())
    }

    /// Steps the environments that have an action.
    fn advance(&mut self) -> Result<(), VecEnvError> {
        let stepped = self.batch.step(&self.which, self.frame_skip, self.forces);
        self.which.clear();
        stepped.map_err(failed)
    }

    /// Observation, reward and flags of the environment `env` after `action`.
    fn outcome(
        &mut self,
        env: usize,
        action: &[f32],
        obs: RowMut<'_>,
    ) -> Result<Outcome, EnvError> {
        self.at = Some(env);
        let sim = self.simulation(env, action);
        let reward = self.task.reward(&sim);
        let terminated = self.task.is_done(&sim);
        self.observed(env, Some((action, reward)), obs)?;
        let world = &mut self.worlds[env];
        world.elapsed += 1;
        let limit = self.spec.max_episode_steps;
        self.at = None;
        Ok(Outcome {
            reward: reward as f32,
            terminated,
            truncated: limit.is_some_and(|limit| world.elapsed >= limit),
        })
    }

    /// Writes the observation of `env` after a step of this action and reward, or after a reset,
    /// and keeps what its next step is given.
    fn observed(
        &mut self,
        env: usize,
        taken: Option<(&[f32], f64)>,
        mut obs: RowMut<'_>,
    ) -> Result<(), EnvError> {
        let (action, reward) = (
            taken.map_or(&[][..], |taken| taken.0),
            taken.map(|taken| taken.1),
        );
        let row = obs.get_mut(OBSERVATION)?;
        self.task.observe(&self.simulation(env, action), row);
        for (leaf, entry) in (self.info_leaf..).zip(&self.info) {
            entry.write(&self.simulation(env, action), reward, &mut obs, leaf)?;
        }
        let mut kept = std::mem::take(&mut self.worlds[env].kept);
        self.task.keep(&self.simulation(env, action), &mut kept);
        self.worlds[env].kept = kept;
        Ok(())
    }

    /// Draws with what the environment `env` begins in the next call of [`restart`](Self::restart).
    fn begin(&mut self, env: usize, seed: Option<u64>) {
        self.at = Some(env);
        let [mut qpos, mut qvel] = self.layout.defaults.clone();
        let world = &mut self.worlds[env];
        self.task
            .start(&mut qpos, &mut qvel, world.rng.for_reset(seed));
        (world.has_begun, world.elapsed) = (true, 0);
        let state = self.batch.state_mut(env);
        part(state, self.layout.qpos).copy_from_slice(&qpos);
        part(state, self.layout.qvel).copy_from_slice(&qvel);
        self.which.push(env as i32);
        self.at = None;
    }

    /// Begins the episodes that were drawn.
    fn restart(&mut self) -> Result<(), VecEnvError> {
        let begun = self.batch.restart(&self.which);
        self.which.clear();
        begun.map_err(failed)
    }

    /// The state of the environment `env`.
    fn visit(&mut self, env: usize, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let world = &mut self.worlds[env];
        state.value(&mut world.rng)?;
        state.value(&mut world.has_begun)?;
        state.steps(&mut world.elapsed)?;
        state.values(&mut world.kept)?;
        state.values(self.batch.state_mut(env))
    }

    /// The only environment of a vector of one.
    ///
    /// # Errors
    /// [`EnvError::AlreadyVector`] for several.
    pub fn single(self) -> Result<MujocoEnv<T>, EnvError> {
        match self.worlds.len() {
            1 => Ok(MujocoEnv(self)),
            envs => Err(EnvError::AlreadyVector { envs, asked: 1 }),
        }
    }

    /// Steps the environments `which`.
    fn step_each(
        &mut self,
        which: impl Iterator<Item = usize> + Clone,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        let total = self.worlds.len();
        check_rows(total, actions, &obs, &outcomes)?;
        let Outcomes {
            reward,
            terminated,
            truncated,
        } = outcomes;
        let all = actions
            .get(ACTION)
            .map_err(|error| EnvError::from(error).of(0))?;
        let (len, missing) = (self.layout.ctrl.len(), |env| {
            out_of_range(env, total, total)
        });
        let action = |env: usize| {
            all.get(env * len..(env + 1) * len)
                .ok_or_else(|| missing(env))
        };
        self.which.clear();
        for env in which.clone() {
            self.act(env, action(env)?).map_err(|error| error.of(env))?;
        }
        self.advance()?;
        for env in which {
            let row = obs.env_mut(env).ok_or_else(|| missing(env))?;
            let outcome = self.outcome(env, action(env)?, row);
            let outcome = outcome.map_err(|error| error.of(env))?;
            reward[env] = outcome.reward;
            terminated[env] = outcome.terminated;
            truncated[env] = outcome.truncated;
        }
        Ok(())
    }

    fn simulation<'a>(&'a self, env: usize, action: &'a [f32]) -> Simulation<'a> {
        Simulation {
            state: self.batch.state(env),
            batch: &self.batch,
            outputs: &self.outputs,
            env,
            action,
            kept: &self.worlds[env].kept,
            dt: self.dt,
        }
    }
}

/// The part of a state where `field` lies.
fn part(state: &mut [f64], field: Field) -> &mut [f64] {
    match field.place {
        Place::State(start) => &mut state[start..start + field.len],
        Place::Output(_) => &mut [],
    }
}

#[cold]
fn failed(error: SimulationError) -> VecEnvError {
    let env = error.simulation;
    EnvError::failed(error).of(env)
}

impl<T: MujocoTask> VecEnv for MujocoEnvs<T> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.worlds.len()
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        let (total, rows) = (self.worlds.len(), obs.envs());
        self.which.clear();
        for &Reset { env, seed } in resets {
            if env >= total.min(rows) {
                return Err(out_of_range(env, total, rows));
            }
            self.begin(env, seed);
        }
        self.restart()?;
        for &Reset { env, .. } in resets {
            let row = obs
                .env_mut(env)
                .ok_or_else(|| out_of_range(env, total, rows))?;
            self.at = Some(env);
            self.observed(env, None, row)
                .map_err(|error| error.of(env))?;
        }
        self.at = None;
        Ok(())
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.step_each(0..self.worlds.len(), actions, obs, outcomes)
    }

    fn step_some(
        &mut self,
        which: &[usize],
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.step_each(which.iter().copied(), actions, obs, outcomes)
    }

    fn step_apart(&self) -> bool {
        true
    }

    fn bind(&mut self, _: &[LeafSpec]) -> Result<(), EnvError> {
        Ok(())
    }

    fn panicked_at(&self) -> Option<usize> {
        self.at
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.section(format!("{} x {}", self.worlds.len(), self.spec.id))?;
        (0..self.worlds.len()).try_for_each(|env| self.visit(env, state))
    }
}

/// One environment of [`MujocoEnvs`], by itself.
#[derive(Debug)]
pub struct MujocoEnv<T>(MujocoEnvs<T>);

impl<T: MujocoTask> Env for MujocoEnv<T> {
    fn spec(&self) -> &EnvSpec {
        &self.0.spec
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.0.begin(0, seed);
        self.0.restart().map_err(|error| error.source)?;
        self.0.observed(0, None, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let action = action.get(ACTION)?;
        self.0.act(0, action)?;
        self.0.advance().map_err(|error| error.source)?;
        self.0.outcome(0, action, obs)
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.0.visit(0, state)
    }
}

/// Several vectors are none.
impl<T: MujocoTask + 'static> IntoVecEnv for MujocoEnvs<T> {
    fn join(copies: Vec<Self>) -> Result<Box<dyn VecEnv>, EnvError> {
        Ok(Box::new(sole(copies)?))
    }
}
