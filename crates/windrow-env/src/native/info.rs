//! Entries of Gymnasium's `info`, which native environments observe where they are asked to.

use windrow_slab::RowMut;

use crate::{EnvError, EnvSpec, Spec, SpecError};

/// The name under which environments say which actions are legal.
pub(super) const ACTION_MASK: &str = "action_mask";

/// Lets `spec` observe the entries `wanted` behind its own observation, in their order, as a Python environment's: an `action_mask`
/// says which actions are legal. `known` has the entries of the environment. Gives for each of these the leaf that it is observed as.
///
/// # Errors
/// [`SpecError::Argument`] for an entry that the environment does not have, or one that is wanted twice.
pub(super) fn observe<const N: usize>(
    spec: &mut EnvSpec,
    wanted: &[String],
    known: &[(&str, Spec); N],
) -> Result<[Option<usize>; N], EnvError> {
    let own = spec.observation_leaves().len();
    let mut leaves = [None; N];
    let mut added = Vec::with_capacity(wanted.len());
    for name in wanted {
        let found = known.iter().position(|(known, _)| known == name);
        let Some(entry) = found.filter(|&entry| leaves[entry].is_none()) else {
            let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            return Err(SpecError::Argument {
                argument: "info",
                of: spec.id.clone(),
                expected: format!("some of {names:?}, each once"),
                got: format!("{wanted:?}"),
            }
            .into());
        };
        leaves[entry] = Some(own + added.len());
        added.push((name.clone(), known[entry].1.clone()));
    }
    if added.is_empty() {
        return Ok(leaves);
    }
    spec.info = wanted.iter().map(|name| name.as_str().into()).collect();
    if wanted.iter().any(|name| name == ACTION_MASK) {
        spec.masks = vec![("action".into(), ACTION_MASK.into())];
    }
    let mut entries = match std::mem::replace(&mut spec.observation, Spec::Composite(Vec::new())) {
        Spec::Composite(entries) => entries,
        bare => vec![("observation".to_owned(), bare)],
    };
    entries.append(&mut added);
    spec.observation = Spec::Composite(entries);
    Ok(leaves)
}

/// Writes `values` as the entry that is observed as `leaf`, where it is observed.
#[inline(always)]
pub(super) fn write<T: tensordict::Element>(
    obs: &mut RowMut<'_>,
    leaf: Option<usize>,
    values: &[T],
) -> Result<(), EnvError> {
    match leaf {
        Some(leaf) => Ok(obs.write(windrow_slab::Key::new(leaf), values)?),
        None => Ok(()),
    }
}
