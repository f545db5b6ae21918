//! The environments of the table as tasks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windrow_mujoco::Library;

use tensordict::DType;

use super::envs::{Info, InfoValue, MujocoEnvs, MujocoTask, Number, Simulation};
use super::info::{Entry, Told};
use super::model::{Field, MujocoModel};
use super::numpy::{norm, sum_by, sum_of_squares};
use super::settings::{Given, Settings};
use super::table::{
    Goal, Map, Moment, Noise, Part, Point, Rule, Source, Span, Start, TABLES, Table, Term, Value,
    When,
};
use crate::numpy_pow::square;
use crate::{EXACT_REWARD, EnvError, NamedEnv, NumpyRng, Spec, info};

/// Ids of the environments.
pub const IDS: [&str; TABLES.len()] = {
    let mut ids = [""; TABLES.len()];
    let mut i = 0;
    while i < ids.len() {
        ids[i] = TABLES[i].id;
        i += 1;
    }
    ids
};

/// The names of the arguments that an environment takes, which has one of [these ids](IDS). Any
/// takes `library` and `models`, folders where these are found, `max_episode_steps` and `info`
/// besides.
#[must_use]
pub fn mujoco_arguments(id: &str) -> Vec<&'static str> {
    let table = TABLES.iter().find(|table| table.id == id);
    let own = table.map_or(&[][..], |table| table.arguments);
    let others = if id.ends_with("-v5") {
        &OTHER_MODEL[..]
    } else {
        &[]
    };
    own.iter()
        .map(|(name, _)| *name)
        .chain(others.iter().copied())
        .collect()
}

/// Each environment. The library and the models are found when it is made.
pub(crate) fn entries() -> Vec<(&'static str, NamedEnv)> {
    let named = |id| {
        let entry = NamedEnv::of(
            |id, arguments| Ok(Box::new(make(id, &arguments.read(id)?, 1)?.single()?)),
            |id, arguments, num_envs| Ok(Box::new(make(id, &arguments.read(id)?, num_envs)?)),
            info_of(id),
        );
        (id, entry)
    };
    IDS.map(named).into()
}

/// The entries of `info` that an environment has, which has one of [these ids](IDS), each with
/// whether resets return it, too.
fn info_of(id: &str) -> Vec<(&'static str, bool)> {
    let table = TABLES.iter().find(|table| table.id == id);
    let mut found: Vec<(&str, bool)> = Vec::new();
    for entry in table.map_or(&[][..], |table| table.info) {
        if found.iter().all(|(name, _)| *name != entry.name) {
            found.push((entry.name, entry.at_reset));
        }
    }
    found
}

/// The version of MuJoCo's library, which is in the folder `given` where nothing else says where it
/// is.
///
/// # Errors
/// It is not there, or too old.
pub fn mujoco_version(given: Option<&Path>) -> Result<&'static str, EnvError> {
    let library = Library::load(given).map_err(EnvError::failed)?;
    Ok(library.version())
}

/// The variable that says in which folder models are.
const VARIABLE: &str = "WINDROW_MUJOCO_MODELS";
/// Arguments that have no default in the table: of every environment, and of those that take other
/// models.
const COMMON: [&str; 4] = ["library", "models", "max_episode_steps", "info"];
const OTHER_MODEL: [&str; 2] = ["xml_file", "frame_skip"];

/// `num_envs` environments with this `id` of the table.
///
/// # Errors
/// Arguments that do not fit; MuJoCo or the model cannot be found or loaded.
fn make(
    id: &str,
    settings: &Settings,
    num_envs: usize,
) -> Result<MujocoEnvs<GymnasiumTask>, EnvError> {
    let table = TABLES.iter().find(|table| table.id == id);
    let table = table.ok_or_else(|| EnvError::failed(format!("MuJoCo has no {id}")))?;
    let given = Given {
        id,
        defaults: table.arguments,
        settings,
    };
    let others = match id.ends_with("-v5") {
        true => [&COMMON[..], &OTHER_MODEL].concat(),
        false => COMMON.to_vec(),
    };
    given.check(&others)?;
    let (file, frame_skip) = table.model;
    let file = given.text("xml_file")?.unwrap_or(file);
    let path = model_file(Path::new(file), given.text("models")?)?;
    let library = given.text("library")?.map(Path::new);
    let mut model = MujocoModel::from_xml_with(&path, library)?;
    let compiler = Compiler {
        given: &given,
        model: &mut model,
        kept: Vec::new(),
    };
    let (task, info) = compiler.task(table, given.names("info")?)?;
    let frame_skip = given.steps("frame_skip", frame_skip)?;
    let limit = given.steps("max_episode_steps", table.max_episode_steps)?;
    let envs = MujocoEnvs::new(id, model, task, frame_skip, num_envs)?;
    envs.with_info(info).with_time_limit(limit)
}

/// Where the model `file` is: as it is, or in one of the folders where models may be.
fn model_file(file: &Path, given: Option<&str>) -> Result<PathBuf, EnvError> {
    let mut folders: Vec<PathBuf> = std::env::var_os(VARIABLE)
        .map(PathBuf::from)
        .into_iter()
        .collect();
    folders.extend(given.map(PathBuf::from));
    let installed = windrow_mujoco::packages("gymnasium").into_iter();
    folders.extend(installed.map(|gymnasium| gymnasium.join("envs/mujoco/assets")));
    let places = folders.iter().map(|folder| folder.join(file));
    let mut places = std::iter::once(file.to_owned()).chain(places);
    places.find(|place| place.is_file()).ok_or_else(|| {
        EnvError::failed(format!(
            "the model {} was not found: it comes with Gymnasium, `pip install gymnasium`; set {VARIABLE} to the folder gymnasium/envs/mujoco/assets, \
             or give the path of a model as xml_file",
            file.display()
        ))
    })
}

/// Whether a simulation is healthy.
type Healthy = Arc<dyn Fn(&Simulation<'_>) -> bool + Send + Sync>;
/// Writes numbers of a simulation to the beginning of what is given, and returns the rest.
type Writer = Box<dyn for<'o> Fn(&Simulation<'_>, &'o mut [f64]) -> &'o mut [f64] + Send + Sync>;
type Starter = Box<dyn Fn(&mut [f64], &mut [f64], &mut NumpyRng) + Send + Sync>;

/// An environment of the table, over a model.
pub(crate) struct GymnasiumTask {
    observation_len: usize,
    parts: Vec<Writer>,
    gains: Vec<Number>,
    costs: Vec<Number>,
    healthy: Healthy,
    terminates: bool,
    kept: Vec<Number>,
    start: Starter,
}

impl MujocoTask for GymnasiumTask {
    fn observation_len(&self) -> usize {
        self.observation_len
    }

    fn start(&self, qpos: &mut [f64], qvel: &mut [f64], rng: &mut NumpyRng) {
        (self.start)(qpos, qvel, rng);
    }

    fn observe(&self, sim: &Simulation<'_>, observation: &mut [f64]) {
        self.parts
            .iter()
            .fold(observation, |rest, write| write(sim, rest));
    }

    fn reward(&self, sim: &Simulation<'_>) -> f64 {
        let sum = |terms: &[Number]| {
            let terms = terms.iter().map(|term| term(sim));
            terms.reduce(|sum, term| sum + term)
        };
        let gains = sum(&self.gains).unwrap_or(0.0);
        sum(&self.costs).map_or(gains, |costs| gains - costs)
    }

    fn is_done(&self, sim: &Simulation<'_>) -> bool {
        self.terminates && !(self.healthy)(sim)
    }

    fn kept_len(&self) -> usize {
        self.kept.len()
    }

    fn keep(&self, sim: &Simulation<'_>, kept: &mut [f64]) {
        for (kept, number) in kept.iter_mut().zip(&self.kept) {
            *kept = number(sim);
        }
    }
}

/// Reads the table, with the arguments that were given, for a model.
struct Compiler<'a> {
    given: &'a Given<'a>,
    model: &'a mut MujocoModel,
    /// Numbers of this step that the next one reads.
    kept: Vec<Number>,
}

impl Compiler<'_> {
    /// The task of `table`, and the entries `wanted` of its `info`.
    fn task(
        mut self,
        table: &'static Table,
        wanted: &[String],
    ) -> Result<(GymnasiumTask, Vec<Info>), EnvError> {
        let (mut parts, mut observation_len) = (Vec::new(), 0);
        for part in table.observation {
            if self.holds(part.when)? {
                let (len, writer) = self.part(part)?;
                observation_len += len;
                parts.push(writer);
            }
        }
        let healthy = self.healthy(table.healthy)?;
        let mut terms = |terms: &'static [Term]| {
            let terms = terms.iter().map(|term| self.term(term, &healthy));
            terms.collect::<Result<Vec<_>, _>>()
        };
        let (gains, costs) = (terms(table.gains)?, terms(table.costs)?);
        let info = self.info(table, wanted, &healthy)?;
        let task = GymnasiumTask {
            observation_len,
            parts,
            gains,
            costs,
            terminates: self.holds(table.terminates)?,
            start: self.start(&table.start)?,
            healthy,
            kept: self.kept,
        };
        Ok((task, info))
    }

    fn info(
        &mut self,
        table: &'static Table,
        wanted: &[String],
        healthy: &Healthy,
    ) -> Result<Vec<Info>, EnvError> {
        let mut entries = Vec::new();
        for entry in table.info {
            if self.holds(entry.when)? {
                entries.push(entry);
            }
        }
        let names = entries.iter().map(|entry| entry.name);
        let names: Vec<&str> = names.chain([EXACT_REWARD]).collect();
        let found = info::find(self.given.id, wanted, &names)?;
        let found = found.into_iter().map(|at| match entries.get(at) {
            Some(entry) => self.entry(entry, healthy),
            None => Ok(Info {
                name: EXACT_REWARD,
                spec: Spec::unbounded(DType::F64, []),
                at_reset: false,
                value: InfoValue::Reward,
            }),
        });
        found.collect()
    }

    fn entry(&mut self, entry: &'static Entry, healthy: &Healthy) -> Result<Info, EnvError> {
        let (spec, value) = match &entry.of {
            Told::Field(name) => {
                let field = self.model.field(name)?;
                let spec = Spec::unbounded(DType::F64, [field.len()]);
                (spec, InfoValue::Field(field))
            }
            Told::Number(term) => {
                let (dtype, number) = (self.dtype(term), self.term(term, healthy)?);
                let value = match dtype {
                    DType::F32 => InfoValue::F32(number),
                    DType::I64 => InfoValue::I64(number),
                    _ => InfoValue::F64(number),
                };
                (Spec::unbounded(dtype, []), value)
            }
        };
        Ok(Info {
            name: entry.name,
            spec,
            at_reset: entry.at_reset,
            value,
        })
    }

    /// The type that NumPy computes a term in.
    fn dtype(&self, term: &Term) -> DType {
        match term {
            Term::Minus(term) => self.dtype(term),
            Term::Action(_) => DType::F32,
            // Python's booleans times an integer are integers. Those of the table are.
            Term::Alive(Value::Is(_)) => DType::I64,
            Term::Alive(Value::Of(argument)) if self.given.is_integer(argument) => DType::I64,
            _ => DType::F64,
        }
    }

    fn holds(&self, when: When) -> Result<bool, EnvError> {
        match when {
            When::Always => Ok(true),
            When::If(argument) => self.given.flag(argument),
            When::Unless(argument) => Ok(!self.given.flag(argument)?),
        }
    }

    fn value(&self, value: Value) -> Result<f64, EnvError> {
        match value {
            Value::Is(value) => Ok(value),
            Value::Of(argument) => self.given.number(argument),
        }
    }

    fn span(&self, span: Span) -> Result<[f64; 2], EnvError> {
        match span {
            Span::Is(low, high) => Ok([low, high]),
            Span::Of(argument) => self.given.range(argument),
        }
    }

    /// Length and writer of a part of the observation.
    fn part(&mut self, part: &Part) -> Result<(usize, Writer), EnvError> {
        let (from, to) = (part.from, part.to);
        let field = match part.of {
            Source::Field(name) => self.field(name, from)?,
            Source::Place(body) => {
                let (field, place) = self.place(body)?;
                return Ok((3, writer(field, place, place + 3, |value| value)));
            }
            Source::Way(there, here) => {
                let (field, there) = self.place(there)?;
                let (_, here) = self.place(here)?;
                let len = to.min(3);
                let way = move |sim: &Simulation<'_>, out: &mut [f64]| {
                    let places = &sim[field];
                    for (i, value) in out.iter_mut().enumerate() {
                        *value = places[there + i] - places[here + i];
                    }
                };
                return Ok((len, split(len, way)));
            }
        };
        let to = to.min(field.len());
        let len = to.saturating_sub(from);
        let writer = match part.map {
            Map::Same => writer(field, from, to, |value| value),
            Map::Sin => writer(field, from, to, f64::sin),
            Map::Cos => writer(field, from, to, f64::cos),
            Map::Clip(span) => {
                let [low, high] = self.span(span)?;
                writer(field, from, to, move |value| clip(value, low, high))
            }
        };
        Ok((len, writer))
    }

    /// Positions of bodies, and where that of `body` begins.
    fn place(&mut self, body: &str) -> Result<(Field, usize), EnvError> {
        Ok((self.model.field("xpos")?, 3 * self.model.body(body)?))
    }

    /// A field of which the first `len` numbers are read.
    fn field(&mut self, name: &str, len: usize) -> Result<Field, EnvError> {
        let field = self.model.field(name)?;
        match field.len() {
            has if has >= len => Ok(field),
            has => Err(EnvError::failed(format!(
                "{} needs a model with {len} numbers or more in {name}, got {has}",
                self.given.id
            ))),
        }
    }

    fn healthy(&mut self, rules: &'static [Rule]) -> Result<Healthy, EnvError> {
        let (qpos, qvel) = (self.model.field("qpos")?, self.model.field("qvel")?);
        let mut checks: Vec<Healthy> = Vec::new();
        for rule in rules {
            checks.push(match *rule {
                Rule::Finite => Arc::new(move |sim| {
                    let mut state = sim[qpos].iter().chain(&sim[qvel]);
                    state.all(|value| value.is_finite())
                }),
                Rule::Inside(index, span) => {
                    let [low, high] = self.span(span)?;
                    let qpos = self.field("qpos", index + 1)?;
                    Arc::new(move |sim| low < sim[qpos][index] && sim[qpos][index] < high)
                }
                Rule::Within(index, span) => {
                    let [low, high] = self.span(span)?;
                    let qpos = self.field("qpos", index + 1)?;
                    Arc::new(move |sim| low <= sim[qpos][index] && sim[qpos][index] <= high)
                }
                Rule::AllInside(from, span) => {
                    let [low, high] = self.span(span)?;
                    Arc::new(move |sim| {
                        let mut state = sim[qpos].iter().chain(&sim[qvel]).skip(from);
                        state.all(|&value| low < value && value < high)
                    })
                }
                Rule::Above(height) => {
                    let sites = self.field("site_xpos", 3)?;
                    // What is no number is not low.
                    Arc::new(move |sim| sim[sites][2] > height || sim[sites][2].is_nan())
                }
            });
        }
        Ok(Arc::new(move |sim| checks.iter().all(|check| check(sim))))
    }

    fn term(&mut self, term: &'static Term, healthy: &Healthy) -> Result<Number, EnvError> {
        Ok(match *term {
            Term::Constant(value) => Box::new(move |_| value),
            Term::Minus(term) => {
                let term = self.term(term, healthy)?;
                Box::new(move |sim| -term(sim))
            }
            Term::Forward(weight, point) => {
                let (weight, speed) = (self.value(weight)?, self.speed(point, 0)?);
                Box::new(move |sim| weight * speed(sim))
            }
            Term::Sideways(point) => self.speed(point, 1)?,
            Term::Along(point, axis) => self.point(point, axis)?,
            Term::Away(point) => {
                let (x, y) = (self.point(point, 0)?, self.point(point, 1)?);
                Box::new(move |sim| norm(&[x(sim), y(sim)]))
            }
            Term::Moved(index) => {
                let qpos = self.field("qpos", index + 1)?;
                let [start, _] = self.model.defaults();
                Box::new(move |sim| sim[qpos][index] - start[index])
            }
            Term::Alive(reward) => {
                let (reward, healthy) = (self.value(reward)?, Arc::clone(healthy));
                Box::new(move |sim| f64::from(u8::from(healthy(sim))) * reward)
            }
            Term::AliveOrEnding(reward) => {
                let (reward, healthy) = (self.value(reward)?, Arc::clone(healthy));
                let terminates = self.given.flag("terminate_when_unhealthy")?;
                Box::new(move |sim| f64::from(u8::from(terminates || healthy(sim))) * reward)
            }
            Term::Action(weight) => {
                let weight = self.value(weight)? as f32;
                Box::new(move |sim| f64::from(weight * sum_of_squares(sim.action())))
            }
            Term::Control(weight) => {
                let (weight, ctrl) = (self.value(weight)?, self.model.field("ctrl")?);
                Box::new(move |sim| weight * sum_of_squares(&sim[ctrl]))
            }
            Term::Contact(weight, forces, cost, when) => {
                self.contact(weight, forces, cost, when)?
            }
            Term::Height => {
                let timestep = self.model.numbers("opt.timestep")?[0];
                let qpos = self.field("qpos", 3)?;
                Box::new(move |sim| sim[qpos][2] / timestep)
            }
            Term::Distance(weight, from, to, moment) => {
                let weight = self.value(weight)?;
                let distance = self.distance(from, to)?;
                match moment {
                    Moment::Now => Box::new(move |sim| distance(sim) * weight),
                    Moment::Before => {
                        let before = self.kept.len();
                        self.kept.push(distance);
                        Box::new(move |sim| sim.kept()[before] * weight)
                    }
                }
            }
            Term::TipDistance => {
                let sites = self.field("site_xpos", 3)?;
                Box::new(move |sim| 0.01 * square(sim[sites][0]) + square(sim[sites][2] - 2.0))
            }
            Term::TipSpeed => {
                let qvel = self.field("qvel", 3)?;
                Box::new(move |sim| 0.001 * square(sim[qvel][1]) + 0.005 * square(sim[qvel][2]))
            }
        })
    }

    /// How fast a point has moved along an axis since the last step.
    fn speed(&mut self, point: Point, axis: usize) -> Result<Number, EnvError> {
        let before = self.kept.len();
        let (now, then) = (self.point(point, axis)?, self.point(point, axis)?);
        self.kept.push(then);
        Ok(Box::new(move |sim| {
            (now(sim) - sim.kept()[before]) / sim.dt()
        }))
    }

    /// Where a point lies along an axis.
    fn point(&mut self, point: Point, axis: usize) -> Result<Number, EnvError> {
        let body = match point {
            Point::Joints => {
                let qpos = self.field("qpos", axis + 1)?;
                return Ok(Box::new(move |sim| sim[qpos][axis]));
            }
            Point::Centre => {
                let masses = self.model.numbers("body_mass")?;
                let total = sum_by(&masses, |mass| mass);
                let places = self.model.field("xipos")?;
                return Ok(Box::new(move |sim| {
                    let places = sim[places].chunks_exact(3);
                    let weighed = places.zip(&masses).map(|(place, mass)| mass * place[axis]);
                    weighed.fold(0.0, |sum, weighed| sum + weighed) / total
                }));
            }
            Point::Named(name) => self.model.body(name)?,
            Point::Of(argument) => match self.given.body(argument)? {
                Ok(body) => body,
                Err(name) => self.model.body(name)?,
            },
        };
        let places = self.model.field("xpos")?;
        if 3 * body >= places.len() {
            return Err(EnvError::failed(format!("the model has no body {body}")));
        }
        Ok(Box::new(move |sim| sim[places][3 * body + axis]))
    }

    fn distance(&mut self, from: &str, to: &str) -> Result<Number, EnvError> {
        let (places, from) = self.place(from)?;
        let (_, to) = self.place(to)?;
        Ok(Box::new(move |sim| {
            let places = &sim[places];
            let way: [f64; 3] = std::array::from_fn(|i| places[from + i] - places[to + i]);
            norm(&way)
        }))
    }

    fn contact(
        &mut self,
        weight: Value,
        forces: Span,
        cost: Span,
        when: When,
    ) -> Result<Number, EnvError> {
        if !self.holds(when)? {
            return Ok(Box::new(|_| 0.0));
        }
        let weight = self.value(weight)?;
        let ([low, high], [least, most]) = (self.span(forces)?, self.span(cost)?);
        let field = self.model.field("cfrc_ext")?;
        Ok(Box::new(move |sim| {
            let clipped: Vec<f64> = sim[field]
                .iter()
                .map(|&force| clip(force, low, high))
                .collect();
            clip(weight * sum_of_squares(&clipped), least, most)
        }))
    }

    fn start(&self, start: &Start) -> Result<Starter, EnvError> {
        let (qpos_noise, goal) = (self.value(start.qpos)?, start.goal);
        let (qvel_noise, is_normal) = match start.qvel {
            Noise::Uniform(scale) => (self.value(scale)?, false),
            Noise::Normal(scale) => (self.value(scale)?, true),
        };
        Ok(Box::new(move |qpos, qvel, rng| {
            if goal != Goal::Object {
                for value in qpos.iter_mut() {
                    *value += rng.uniform(-qpos_noise, qpos_noise);
                }
            }
            let fixed = draw_goal(goal, qpos, rng);
            for value in qvel.iter_mut() {
                *value += match is_normal {
                    true => qvel_noise * rng.standard_normal(),
                    false => rng.uniform(-qvel_noise, qvel_noise),
                };
            }
            let moving = qvel.len() - fixed.min(qvel.len());
            qvel[moving..].fill(0.0);
        }))
    }
}

/// Draws what else an episode begins with, and returns how many velocities at the end are 0.
fn draw_goal(goal: Goal, qpos: &mut [f64], rng: &mut NumpyRng) -> usize {
    match (goal, qpos) {
        (Goal::Disk, [.., x, y]) => loop {
            let goal: [f64; 2] = rng.uniform_array(-0.2, 0.2);
            if norm(&goal) < 0.2 {
                [*x, *y] = goal;
                break 2;
            }
        },
        (Goal::Object, [.., x, y, goal_x, goal_y]) => loop {
            let object = [rng.uniform(-0.3, 0.0), rng.uniform(-0.2, 0.2)];
            if norm(&object) > 0.17 {
                [*x, *y, *goal_x, *goal_y] = [object[0], object[1], 0.0, 0.0];
                break 4;
            }
        },
        _ => 0,
    }
}

/// `np.clip`.
fn clip(value: f64, low: f64, high: f64) -> f64 {
    let value = if value < low { low } else { value };
    if value > high { high } else { value }
}

/// Writes what `map` makes of the values `from..to` of a field.
fn writer(
    field: Field,
    from: usize,
    to: usize,
    map: impl Fn(f64) -> f64 + Send + Sync + 'static,
) -> Writer {
    split(to.saturating_sub(from), move |sim, out| {
        for (out, &value) in out.iter_mut().zip(&sim[field][from..]) {
            *out = map(value);
        }
    })
}

/// Has `write` fill the first `len` numbers.
fn split(
    len: usize,
    write: impl Fn(&Simulation<'_>, &mut [f64]) + Send + Sync + 'static,
) -> Writer {
    Box::new(move |sim, out| {
        let (own, rest) = out.split_at_mut(len);
        write(sim, own);
        rest
    })
}
