//! Entries of Gymnasium's `info`, which environments that come with windrow observe where they are
//! asked to.

use crate::{EnvError, EnvSpec, Spec, SpecError};

/// The name under which environments say which actions are legal.
pub(crate) const ACTION_MASK: &str = "action_mask";

/// Which of `known` each of the entries `wanted` is, for the environments `id`.
///
/// # Errors
/// [`SpecError::Argument`] for an entry that the environment does not have, or one that is wanted
/// twice.
pub(crate) fn find(id: &str, wanted: &[String], known: &[&str]) -> Result<Vec<usize>, EnvError> {
    let mut found = Vec::with_capacity(wanted.len());
    for name in wanted {
        let entry = known.iter().position(|known| known == name);
        match entry.filter(|entry| !found.contains(entry)) {
            Some(entry) => found.push(entry),
            None => {
                return Err(SpecError::Argument {
                    argument: "info",
                    of: id.to_owned(),
                    expected: format!("some of {known:?}, each once"),
                    got: format!("{wanted:?}"),
                }
                .into());
            }
        }
    }
    Ok(found)
}

/// Lets `spec` observe the entries `added` behind its own observation, in their order, as a Python
/// environment's: an `action_mask` says which actions are legal. Gives the leaf that the first of
/// them is observed as; the others follow.
pub(crate) fn append(spec: &mut EnvSpec, mut added: Vec<(String, Spec)>) -> usize {
    let own = spec.observation_leaves().len();
    if added.is_empty() {
        return own;
    }
    let names = added.iter().map(|(name, _)| name.as_str());
    spec.info = names.clone().map(Into::into).collect();
    if names.clone().any(|name| name == ACTION_MASK) {
        spec.masks = vec![("action".into(), ACTION_MASK.into())];
    }
    let mut entries = match std::mem::replace(&mut spec.observation, Spec::Composite(Vec::new())) {
        Spec::Composite(entries) => entries,
        bare => vec![("observation".to_owned(), bare)],
    };
    entries.append(&mut added);
    spec.observation = Spec::Composite(entries);
    own
}
