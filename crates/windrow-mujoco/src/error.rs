use std::path::PathBuf;

/// MuJoCo's library, or a model, could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no library in any of the places.
    #[error(
        "MuJoCo was not found: `pip install mujoco`, and set WINDROW_MUJOCO to the folder of that package, or to the library in it; looked in {}",
        shown(looked)
    )]
    NotFound {
        /// The places.
        looked: Vec<PathBuf>,
    },
    /// The library lacks functions, as those before version 3.17 do.
    #[error(
        "expected MuJoCo 3.17 or later, got {version} in {}, which has no {function}: `pip install --upgrade mujoco`",
        path.display()
    )]
    Old {
        /// The library.
        path: PathBuf,
        /// What it says.
        version: String,
        /// What it lacks.
        function: &'static str,
    },
    /// The library cannot be loaded.
    #[error("MuJoCo cannot be loaded from {}", path.display())]
    Library {
        /// The library.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: libloading::Error,
    },
    /// The model cannot be read, or no simulation made of it.
    #[error("MuJoCo refuses the model {}: {reason}", path.display())]
    Model {
        /// Its file.
        path: PathBuf,
        /// MuJoCo's reason.
        reason: String,
    },
    /// The model, or the data of its simulations, has no numbers of this name.
    #[error("{of} of MuJoCo has no field {name:?} of numbers")]
    NoField {
        /// The structure.
        of: &'static str,
        /// The name.
        name: String,
    },
}

fn shown(looked: &[PathBuf]) -> String {
    let places: Vec<_> = looked
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    match places.is_empty() {
        true => "no folder".to_owned(),
        false => places.join(", "),
    }
}

/// MuJoCo gave up a simulation, which keeps the state of before the call.
#[derive(Debug, thiserror::Error)]
#[error("MuJoCo: {reason}")]
pub struct SimulationError {
    /// Which of the batch.
    pub simulation: usize,
    /// What MuJoCo says.
    pub reason: String,
}
