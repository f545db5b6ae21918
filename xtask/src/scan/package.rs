//! Which module of the Python package knows which.

use std::collections::BTreeSet;

use super::Source;

/// The kinds of edges that `edges.py` finds, each with fewer readers than the one before.
pub(crate) const KINDS: [&str; 4] = ["imports", "strings", "packages", "tables"];

/// The dependencies between modules of Python, by edges of these `kinds`.
pub(crate) fn edges<'a>(
    python: impl IntoIterator<Item = &'a Source>,
    kinds: &[&str],
) -> BTreeSet<(String, String)> {
    let edges = python.into_iter().flat_map(|source| {
        let known = kinds.iter().filter_map(|kind| source.edges.get(*kind));
        known
            .flatten()
            .map(|known| (source.module.clone(), known.clone()))
    });
    edges.filter(|(from, to)| from != to).collect()
}

/// The private modules of Python that stand in a string of Rust.
pub(crate) fn named<'a>(
    sources: impl IntoIterator<Item = &'a Source>,
    python: impl IntoIterator<Item = &'a Source>,
) -> Vec<&'a str> {
    let own = sources.into_iter().filter(|source| source.is_own());
    let tokens = own.flat_map(|source| &source.code.0);
    let strings: BTreeSet<_> = tokens.map(|token| token.text.trim_matches('"')).collect();
    let modules = python.into_iter().map(|source| source.module.as_str());
    let is_named = |module: &&str| module.contains("._") && strings.contains(module);
    modules.filter(is_named).collect()
}
