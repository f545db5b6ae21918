//! Errors about unknown names, with suggestions.

/// The names of `known` that look like `name`, best first. The part before a slash is a namespace,
/// which must be equal.
///
/// ```
/// use windrow_env::names::near;
///
/// assert_eq!(near("cartpole-v0", ["CartPole-v1", "Pendulum-v1"]), ["CartPole-v1"]);
/// assert!(near("mine/CartPole-v1", ["CartPole-v1"]).is_empty());
/// ```
#[must_use]
pub fn near<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    const ALIKE: f64 = 0.7;
    let namespace = |name: &str| name.rsplit_once('/').map(|(space, _)| space.to_owned());
    let (space, wanted) = (namespace(name), name.to_lowercase());
    let alike =
        |known: &str| strsim::normalized_damerau_levenshtein(&wanted, &known.to_lowercase());
    let known = known.into_iter().filter(|known| namespace(known) == space);
    let mut near: Vec<_> = known.map(|known| (alike(known), known)).collect();
    near.retain(|&(alike, _)| alike >= ALIKE);
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter()
        .map(|(_, known)| known.to_owned())
        .collect()
}

/// The end of an error about an unknown name: the names that look like it, or else all that there
/// are.
#[must_use]
pub fn others(near: &[String], known: &[String]) -> String {
    match near {
        [] if known.is_empty() => String::new(),
        [] => format!("; there are {}", known.join(", ")),
        [name] => format!("; did you mean {name}?"),
        names => format!("; did you mean one of {}?", names.join(", ")),
    }
}
