//! The environments that come with windrow. Those of one origin have a folder and a feature, and
//! the rest of the crate knows them by this table alone.

use crate::NamedEnv;

/// Ids, and what makes their environments.
type Entries = Vec<(&'static str, NamedEnv)>;

/// The entries of each folder.
pub(crate) const ROOMS: &[fn() -> Entries] = &[
    #[cfg(feature = "gym")]
    crate::gym::entries,
    #[cfg(feature = "mujoco")]
    crate::mujoco::entries,
];
