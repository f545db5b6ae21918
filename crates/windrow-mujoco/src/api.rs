//! The functions of MuJoCo that are called, and what each of them needs to hold.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::Library;

use crate::LoadError;

/// `mjModel`: immutable once it was loaded, so that several threads may read it.
#[repr(C)]
pub(crate) struct MjModel([u8; 0]);

/// `mjData`: one simulation's memory.
#[repr(C)]
pub(crate) struct MjData([u8; 0]);

/// `mjBatch`.
#[repr(C)]
pub(crate) struct MjBatch([u8; 0]);

/// `mjVFS`.
#[repr(C)]
pub(crate) struct MjVfs([u8; 0]);

/// `mjBatchConfig`.
#[repr(C)]
pub(crate) struct MjBatchConfig {
    pub(crate) threads: c_int,
    /// An `mjData` for each simulation, instead of one for each thread.
    pub(crate) persistent: bool,
}

/// `mjfBatchFunc`. MuJoCo may leave it by a jump where a simulation fails, so it must hold nothing
/// that has to be dropped.
pub(crate) type BatchFunction =
    unsafe extern "C-unwind" fn(*const MjModel, *mut MjData, c_int, *mut c_void);

macro_rules! api {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, in a library that stays loaded.
        pub(crate) struct Api {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
            _library: Library,
        }

        impl Api {
            /// Loads the library at `path`.
            pub(crate) fn load(path: &Path) -> Result<Self, LoadError> {
                let failed = |source| LoadError::Library { path: path.to_owned(), source };
                // SAFETY: the initializers of MuJoCo's library touch nothing but its own memory.
                let library = unsafe { Library::new(path) }.map_err(failed)?;
                $(
                    // SAFETY: MuJoCo's headers declare this type for the function of this name.
                    let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                    let $name = match found {
                        Ok(function) => *function,
                        Err(_) => return Err(lacking(&library, path, $symbol)),
                    };
                )*
                Ok(Self { $($name,)* _library: library })
            }
        }
    };
}

api! {
    /// Compiles a file of XML. Takes a path that ends with NUL, and room for a message; returns
    /// null where it fails. The caller owns the model.
    load_xml = "mj_loadXML": fn(*const c_char, *const MjVfs, *mut c_char, c_int) -> *mut MjModel;
    /// Takes a model that nothing uses any more.
    delete_model = "mj_deleteModel": fn(*mut MjModel);
    /// The id of an object of a type (`mjtObj`), by a name that ends with NUL; -1 without one.
    name_to_id = "mj_name2id": fn(*const MjModel, c_int, *const c_char) -> c_int;
    /// Advances data of this model by a step. Calls the program's error handler, or leaves by a
    /// jump in a batch, where it fails.
    step = "mj_step": fn(*const MjModel, *mut MjData);
    /// Computes what depends on the state, without a step; as `step`.
    forward = "mj_forward": fn(*const MjModel, *mut MjData);
    /// Computes forces on bodies from what a step has left; as `step`.
    rne_post_constraint = "mj_rnePostConstraint": fn(*const MjModel, *mut MjData);
    /// Sets data of this model to its defaults.
    reset_data = "mj_resetData": fn(*const MjModel, *mut MjData);
    /// Writes a component of a state of this model (`mjtState`) from as many numbers as it has.
    set_state = "mj_setState": fn(*const MjModel, *mut MjData, *const f64, c_int);
    /// Makes simulations of a copy of the model; room for a message; returns null where it fails.
    /// The caller owns the batch, whose copy may refer to what the model has, so that the model has
    /// to live as long.
    make_batch = "mjb_makeBatch": fn(*const MjModel, c_int, *const MjBatchConfig, *mut c_char, c_int) -> *mut MjBatch;
    /// Takes a batch that nothing uses any more.
    delete_batch = "mjb_deleteBatch": fn(*mut MjBatch);
    /// The length of a row of `state`.
    state_len = "mjb_nstate": fn(*const MjBatch) -> c_int;
    /// Rows of states, one a simulation, in memory of the batch, which stays where it is.
    state = "mjb_state": fn(*mut MjBatch) -> *mut f64;
    /// Where a component lies in the first row, and its length.
    state_component = "mjb_stateComponent": fn(*mut MjBatch, c_int, *mut c_int) -> *mut f64;
    /// Has a field of `mjData` copied out after each call of `batch_step` and `batch_forward`: its
    /// rows, one a simulation, in memory of the batch, which stays where it is; their length and
    /// the size of an element. Null where there is no such field.
    output = "mjb_output": fn(*mut MjBatch, *const c_char, *mut c_int, *mut c_int) -> *mut c_void;
    /// Gives a field of `mjModel` values for each simulation, which begin as the model's; as
    /// `output`.
    expand = "mjb_expand": fn(*mut MjBatch, *const c_char, *mut c_int, *mut c_int) -> *mut c_void;
    /// Advances the simulations with these ids, each below their number, by some steps, computes
    /// stages (`mjtStage`), and copies fields out. Returns how many failed.
    batch_step = "mjb_step": fn(*mut MjBatch, *const c_int, c_int, c_int, c_int) -> c_int;
    /// Computes stages (`mjtStage`) of simulations and copies fields out; as `batch_step`.
    batch_forward = "mjb_forward": fn(*mut MjBatch, *const c_int, c_int, c_int) -> c_int;
    /// Runs a function on the simulations with these ids, each below their number, and saves their
    /// states where the last is not 0. The argument is passed to each call. Returns how many
    /// failed.
    apply = "mjb_apply": fn(*mut MjBatch, *const c_int, c_int, BatchFunction, *mut c_void, c_int) -> c_int;
    /// For each simulation, whether its last call failed.
    status = "mjb_status": fn(*const MjBatch) -> *const c_int;
    /// The message of a simulation's last call, which ends with NUL and lives until its next.
    error = "mjb_error": fn(*const MjBatch, c_int) -> *const c_char;
    /// The version, as text that ends with NUL and lives as long as the library.
    version = "mj_versionString": fn() -> *const c_char;
}

/// The error of a library that has no `function`.
fn lacking(library: &Library, path: &Path, function: &'static str) -> LoadError {
    // SAFETY: MuJoCo's headers declare this type for the function of this name.
    let version =
        unsafe { library.get::<unsafe extern "C-unwind" fn() -> c_uint>(b"mj_version\0") };
    let version = match version {
        // SAFETY: it needs nothing.
        Ok(version) => unsafe { version() }.to_string(),
        Err(_) => "another library".to_owned(),
    };
    LoadError::Old {
        path: path.to_owned(),
        version,
        function,
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}
