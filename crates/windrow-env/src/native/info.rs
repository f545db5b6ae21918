//! Entries of Gymnasium's `info`, which native environments observe where they are asked to.

use windrow_slab::RowMut;

use crate::{EnvError, EnvSpec, Spec, SpecError};

/// The name under which environments say which actions are legal.
pub(super) const ACTION_MASK: &str = "action_mask";

/// The name under which rewards are observed in double precision (`float64`, before they are
/// rounded), where the argument `info` of an environment has it: those of MuJoCo and of tables,
/// such as `Taxi-v4`. Gymnasium's `info` has no such entry.
pub const EXACT_REWARD: &str = "exact_reward";

/// Lets `spec` observe the entries `wanted` of those that the environment has, `known`. Gives for
/// each of these the leaf that it is observed as.
///
/// # Errors
/// As [`find`].
pub(super) fn observe<const N: usize>(
    spec: &mut EnvSpec,
    wanted: &[String],
    known: &[(&str, Spec); N],
) -> Result<[Option<usize>; N], EnvError> {
    let found = find(&spec.id, wanted, &known.each_ref().map(|(name, _)| *name))?;
    let specs = found.iter().map(|&entry| known[entry].1.clone());
    let first = append(spec, wanted.iter().cloned().zip(specs).collect());
    let mut leaves = [None; N];
    for (leaf, entry) in (first..).zip(found) {
        leaves[entry] = Some(leaf);
    }
    Ok(leaves)
}

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
