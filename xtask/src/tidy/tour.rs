//! The tour of the code names files, and items that are in them.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use super::Findings;

const TOUR: &str = "docs/tour.md";

/// Words before the name of an item where it is declared, in Rust and in Python.
const DECLARATIONS: &str = "fn struct enum trait type const mod macro_rules! class def";

/// Checks each link of the tour that leads to a file outside of `docs`.
pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<()> {
    let failed = || format!("failed to read {TOUR}");
    let tour = fs::read_to_string(root.join(TOUR)).with_context(failed)?;
    for (text, path) in links(&tour) {
        match fs::read_to_string(root.join(path)) {
            Ok(source) => {
                let missing = names(text).filter(|name| !declares(&source, name));
                findings
                    .problems
                    .extend(missing.map(|name| format!("{TOUR}: {path} has no item `{name}`")));
            }
            Err(_) => findings
                .problems
                .push(format!("{TOUR}: there is no {path}")),
        }
    }
    Ok(())
}

/// The text of each link out of `docs`, and the path that it leads to.
fn links(tour: &str) -> impl Iterator<Item = (&str, &str)> {
    tour.split("](../")
        .zip(tour.split("](../").skip(1))
        .filter_map(|(before, after)| {
            let (path, _) = after.split_once(')')?;
            let (_, text) = before.rsplit_once('[')?;
            Some((text, path))
        })
}

/// The items that the text of a link names: the last word of each path between backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split('`').skip(1).step_by(2);
    code.filter_map(|name| name.trim_end_matches('!').rsplit("::").next())
}

/// Whether `source` declares an item `name`.
fn declares(source: &str, name: &str) -> bool {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    DECLARATIONS.split(' ').any(|word| {
        let declaration = format!("{word} {name}");
        source.match_indices(&declaration).any(|(at, found)| {
            !source[..at].ends_with(is_word) && !source[at + found.len()..].starts_with(is_word)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{declares, links, names};

    #[test]
    fn links_out_of_the_folder_are_found_with_their_names() {
        let tour = "Read [`A::b` and `c!`](../x/y.rs), [a page](page.md), [d](../z.py).";
        let found: Vec<_> = links(tour).collect();
        assert_eq!(found, [("`A::b` and `c!`", "x/y.rs"), ("d", "z.py")]);
        assert_eq!(names(found[0].0).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn an_item_is_one_that_is_declared_and_not_only_named() {
        assert!(declares("pub(crate) fn rollout<P>(", "rollout"));
        assert!(declares("macro_rules! options {", "options"));
        assert!(!declares("fn rollouts() { rollout() }", "rollout"));
        assert!(!declares("a_fn rollout", "rollout"));
    }
}
