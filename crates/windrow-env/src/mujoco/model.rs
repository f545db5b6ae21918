use std::path::Path;
use std::sync::Arc;

use windrow_mujoco::{Batch, Component, Kind, Library, LoadError, Model, Output};

use crate::EnvError;

/// A model of MuJoCo, and the fields of its simulations that a task reads.
///
/// The library is found at run time: see the README of `windrow-mujoco`.
#[derive(Debug)]
pub struct MujocoModel {
    model: Arc<Model>,
    /// One simulation, which knows sizes and defaults.
    probe: Batch,
    /// Fields that are no part of a state.
    bound: Vec<String>,
}

/// A field of a simulation, such as `qpos` or `xpos`, which [`MujocoModel::field`] gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub(super) place: Place,
    /// Numbers that it has.
    pub(super) len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Where it begins in a state.
    State(usize),
    /// Which of the fields that are copied out.
    Output(usize),
}

/// Fields that are part of a state, and are read there.
const STATE: [(&str, Component); 5] = [
    ("time", Component::Time),
    ("qpos", Component::Qpos),
    ("qvel", Component::Qvel),
    ("act", Component::Act),
    ("ctrl", Component::Ctrl),
];

/// Fields that only `mj_rnePostConstraint` computes.
const FORCES: [&str; 3] = ["cacc", "cfrc_ext", "cfrc_int"];

impl MujocoModel {
    /// The model in the file of XML at `path`.
    ///
    /// # Errors
    /// [`EnvError::Failed`] with a [`LoadError`] that says what to install, or what MuJoCo does not
    /// understand.
    pub fn from_xml(path: impl AsRef<Path>) -> Result<Self, EnvError> {
        Self::from_xml_with(path.as_ref(), None)
    }

    /// As [`from_xml`](Self::from_xml), with the library, or a folder in which it is, where the
    /// variable `WINDROW_MUJOCO` names no other.
    ///
    /// # Errors
    /// As [`from_xml`](Self::from_xml).
    pub fn from_xml_with(path: &Path, library: Option<&Path>) -> Result<Self, EnvError> {
        let library = Library::load(library).map_err(EnvError::failed)?;
        let model = Model::from_xml(library, path).map_err(EnvError::failed)?;
        let probe = Batch::new(&model, 1).map_err(EnvError::failed)?;
        Ok(Self {
            model,
            probe,
            bound: Vec::new(),
        })
    }

    /// The field `name` of `mjData`, for a task to read.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where there is none, or its values are no `mjtNum`.
    pub fn field(&mut self, name: &str) -> Result<Field, EnvError> {
        if let Some((_, component)) = STATE.iter().find(|(known, _)| *known == name) {
            let range = self.probe.component(*component);
            return Ok(Field {
                place: Place::State(range.start),
                len: range.len(),
            });
        }
        let len = self.probe.bind(name).map_err(EnvError::failed)?.len();
        let known = self.bound.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.bound.push(name.to_owned());
            self.bound.len() - 1
        });
        Ok(Field {
            place: Place::Output(index),
            len,
        })
    }

    /// The id of the body `name`: its place in fields such as `xpos`, whose rows are bodies.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where there is none.
    pub fn body(&self, name: &str) -> Result<usize, EnvError> {
        self.id(Kind::Body, "body", name)
    }

    /// As [`body`](Self::body), for a site.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where there is none.
    pub fn site(&self, name: &str) -> Result<usize, EnvError> {
        self.id(Kind::Site, "site", name)
    }

    fn id(&self, kind: Kind, what: &str, name: &str) -> Result<usize, EnvError> {
        let lacks = || {
            let path = self.model.path().display();
            EnvError::failed(format!("the model {path} has no {what} called {name:?}"))
        };
        self.model.id(kind, name).ok_or_else(lacks)
    }

    /// The numbers of a field of `mjModel`, such as `body_mass`, or `opt.timestep`.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where there is none.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>, EnvError> {
        self.model.numbers(name).map_err(EnvError::failed)
    }

    /// Positions and velocities of a simulation that nothing has changed.
    pub(super) fn defaults(&mut self) -> [Vec<f64>; 2] {
        [Component::Qpos, Component::Qvel].map(|part| {
            let range = self.probe.component(part);
            self.probe.state(0)[range].to_vec()
        })
    }

    /// Whether any field is one of forces on bodies.
    pub(super) fn reads_forces(&self) -> bool {
        let is_force = |name: &String| FORCES.contains(&name.as_str());
        self.bound.iter().any(is_force)
    }

    /// `num_envs` simulations, and what is copied out of each, in the order of [`Place::Output`].
    pub(super) fn batch(&self, num_envs: usize) -> Result<(Batch, Vec<Output>), EnvError> {
        let mut batch = Batch::new(&self.model, num_envs).map_err(EnvError::failed)?;
        let outputs = self.bound.iter().map(|name| batch.bind(name));
        let outputs = outputs.collect::<Result<_, LoadError>>();
        let outputs = outputs.map_err(EnvError::failed)?;
        Ok((batch, outputs))
    }
}

impl Field {
    /// How many numbers it has.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}
