use std::env;
use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::LoadError;
use crate::api::Api;

/// The variable that says where the library is.
const VARIABLE: &str = "WINDROW_MUJOCO";

/// MuJoCo, loaded. A program loads each library once, and keeps it.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    pub(crate) api: &'static Api,
}

static LOADED: Mutex<Vec<(PathBuf, Library)>> = Mutex::new(Vec::new());

impl Library {
    /// The library: of the variable `WINDROW_MUJOCO`, of the folder or file `given`, of the active
    /// virtual environment, or beside the program, whichever comes first.
    ///
    /// # Errors
    /// [`LoadError::NotFound`], [`LoadError::Old`] or [`LoadError::Library`].
    pub fn load(given: Option<&Path>) -> Result<Self, LoadError> {
        let path = find(&places(given))?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, library)) = loaded.iter().find(|(known, _)| *known == path) {
            return Ok(*library);
        }
        let library = Self {
            api: Box::leak(Box::new(Api::load(&path)?)),
        };
        loaded.push((path, library));
        Ok(library)
    }

    /// Its version, such as `4.0.0`.
    #[must_use]
    pub fn version(self) -> &'static str {
        // SAFETY: it needs nothing.
        let version = unsafe { (self.api.version)() };
        // SAFETY: text that ends with NUL, in a library that stays.
        unsafe { CStr::from_ptr(version) }
            .to_str()
            .unwrap_or("unknown")
    }
}

/// Where the library may be, first to last: files, and folders.
fn places(given: Option<&Path>) -> Vec<PathBuf> {
    if let Some(place) = env::var_os(VARIABLE) {
        // Whoever names a library wants no other.
        return vec![place.into()];
    }
    let mut places: Vec<PathBuf> = given.map(Into::into).into_iter().collect();
    places.extend(packages("mujoco"));
    let program = env::current_exe().ok();
    places.extend(program.as_deref().and_then(Path::parent).map(Into::into));
    places
}

/// The folders of a package of Python in the active virtual environment (`VIRTUAL_ENV`,
/// `CONDA_PREFIX`), one for each version of Python there.
#[must_use]
pub fn packages(name: &str) -> Vec<PathBuf> {
    let roots = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(env::var_os);
    let versions = roots.filter_map(|root| fs::read_dir(Path::new(&root).join("lib")).ok());
    let folders = versions.flatten().flatten();
    let folders = folders.map(|version| version.path().join("site-packages").join(name));
    folders.filter(|folder| folder.is_dir()).collect()
}

fn find(places: &[PathBuf]) -> Result<PathBuf, LoadError> {
    let found = places.iter().find_map(|place| match place.is_dir() {
        true => in_folder(place),
        false => place.is_file().then(|| place.clone()),
    });
    found.ok_or_else(|| LoadError::NotFound {
        looked: places.to_vec(),
    })
}

/// The library in `folder`: the last by name where there are several.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|file| file.path());
    files.filter(|file| is_library(file)).max()
}

fn is_library(file: &Path) -> bool {
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let is_shared = name.contains(".so") || name.ends_with(".dylib");
    name == "mujoco.dll" || name.starts_with("libmujoco.") && is_shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_its_name() {
        for name in [
            "libmujoco.so.4.0.0",
            "libmujoco.so",
            "libmujoco.3.17.0.dylib",
            "mujoco.dll",
        ] {
            assert!(is_library(Path::new(name)), "{name}");
        }
        for name in [
            "libmujoco_extra.so",
            "batch.py",
            "_batch.cpython-311-x86_64-linux-gnu.so",
        ] {
            assert!(!is_library(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_error_that_says_what_to_install() {
        let error = find(&["/nowhere/mujoco".into(), "/nowhere/else".into()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "MuJoCo was not found: `pip install mujoco`, and set WINDROW_MUJOCO to the folder of that package, or to the library in it; \
             looked in /nowhere/mujoco, /nowhere/else"
        );
    }
}
