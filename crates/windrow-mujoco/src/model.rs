use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::api::MjModel;
use crate::{Batch, Library, LoadError};

/// Room for a message of MuJoCo.
pub(crate) const MESSAGE: usize = 1024;

/// Objects of a model that have names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// `mjOBJ_BODY`
    Body = 1,
    /// `mjOBJ_JOINT`
    Joint = 3,
    /// `mjOBJ_SITE`
    Site = 6,
}

/// A model, which simulations share.
#[derive(Debug)]
pub struct Model {
    raw: NonNull<MjModel>,
    library: Library,
    path: PathBuf,
}

// SAFETY: nobody writes to it between its loading and its end.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Model {
    /// The model in the file of XML at `path`.
    ///
    /// # Errors
    /// [`LoadError::Model`] with MuJoCo's reason.
    pub fn from_xml(library: Library, path: &Path) -> Result<Arc<Self>, LoadError> {
        let refused = |reason: String| LoadError::Model {
            path: path.to_owned(),
            reason,
        };
        let text = path.to_str().and_then(|path| CString::new(path).ok());
        let text = text.ok_or_else(|| refused("its name is no text".to_owned()))?;
        let mut message = [0; MESSAGE];
        // SAFETY: a path that ends with NUL, no file system of the caller's, and room for a
        // message.
        let raw = unsafe {
            (library.api.load_xml)(
                text.as_ptr(),
                ptr::null(),
                message.as_mut_ptr(),
                MESSAGE as c_int,
            )
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(Arc::new(Self {
                raw,
                library,
                path: path.to_owned(),
            })),
            None => Err(refused(text_of(&message))),
        }
    }

    /// The id of the object with this `name`.
    #[must_use]
    pub fn id(&self, kind: Kind, name: &str) -> Option<usize> {
        let name = CString::new(name).ok()?;
        // SAFETY: a model, and a name that ends with NUL.
        let id = unsafe {
            (self.library.api.name_to_id)(self.raw.as_ptr(), kind as c_int, name.as_ptr())
        };
        usize::try_from(id).ok()
    }

    /// The numbers of a field of `mjModel`, such as `body_mass` and `opt.timestep`.
    ///
    /// # Errors
    /// [`LoadError::NoField`], and [`LoadError::Model`] where no simulation can be made.
    pub fn numbers(self: &Arc<Self>, name: &str) -> Result<Vec<f64>, LoadError> {
        // The model's structure is not known, a batch gives its fields by their names.
        Batch::new(self, 1)?.model_numbers(name)
    }

    /// Where it was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn raw(&self) -> *const MjModel {
        self.raw.as_ptr()
    }

    pub(crate) fn library(&self) -> Library {
        self.library
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: batches hold the model that they are of, so none is left.
        unsafe { (self.library.api.delete_model)(self.raw.as_ptr()) }
    }
}

/// A message that ends with NUL.
pub(crate) fn text_of(message: &[c_char]) -> String {
    let bytes = message.iter().map(|&byte| byte as u8);
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
