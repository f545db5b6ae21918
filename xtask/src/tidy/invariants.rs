//! Which code may panic when an invariant is broken, and how.
//!
//! Clippy refuses `unwrap`, `panic!`, `todo!` and `unimplemented!` everywhere. Inside the engine,
//! `expect` and `unreachable!` are the right answer to what cannot happen: a default in its place
//! would turn a broken invariant into a wrong number. What data, files or users can cause is an
//! error, never a panic.

use super::Findings;
use crate::scan::{Source, is_test};

/// Modules that read what users, files or other processes give them. All that goes wrong there has
/// a cause outside of the program.
const INPUT: &[&str] = &[
    "tensordict/src/io",
    "tensordict/src/serde_form.rs",
    "windrow-store/src/header.rs",
    "windrow-store/src/mapped.rs",
    "windrow-store/src/schema.rs",
    "windrow-peer/src/wire",
    "windrow-env/src/arguments.rs",
    "windrow-env/src/recipe.rs",
    "windrow-env/src/registry.rs",
    "windrow-env/src/serde_form.rs",
    "windrow-env/src/spec.rs",
    "windrow-env/src/spec/serde_form.rs",
    "windrow-policy/src/network_policy/serde_form.rs",
    "windrow-policy/src/recipe.rs",
    "windrow-policy/src/registry.rs",
    "windrow-policy/src/weights.rs",
    "windrow-collect/src/config",
    "windrow-collect/src/process/messages.rs",
    "windrow-replay/src/checkpoint",
    "windrow-replay/src/episode_ends.rs",
    "windrow-replay/src/file.rs",
    "windrow-replay/src/saved.rs",
    "windrow-replay/src/storage",
    "windrow-remote/",
    "windrow-python/",
];

/// Checks that each module of the list exists: a renamed one would lose its rule.
pub(super) fn check_list(sources: &[Source], findings: &mut Findings) {
    for module in INPUT {
        let path = format!("crates/{module}");
        if !sources.iter().any(|source| source.path.starts_with(&path)) {
            findings.problems.push(format!(
                "{path}: expected a module that reads input, found none"
            ));
        }
    }
}

/// Checks every file of the crates, tests and benchmarks apart.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    for source in sources {
        let Some(path) = source.path.strip_prefix("crates/") else {
            continue;
        };
        if !path.contains("/src/") || source.is_python() || is_test(&source.path) {
            continue;
        }
        let reads_input = INPUT.iter().any(|module| path.starts_with(module));
        for (line, call, reason) in panics(source) {
            let place = format!("{}:{line}: `{call}`", source.path);
            if reads_input {
                findings.problems.push(format!(
                    "{place} in a module that reads what users, files or other processes give: expected an error"
                ));
            } else if !is_sentence(reason) {
                findings.problems.push(format!(
                    "{place}: expected a sentence that says why it cannot happen, such as \"The queue has this slab.\", got {reason}"
                ));
            }
        }
    }
}

/// Line, name and first argument of each call that panics when an invariant is broken.
fn panics(source: &Source) -> impl Iterator<Item = (usize, &'static str, &str)> {
    let code = &source.code;
    let calls = [
        ("expect", [".", "expect", "("]),
        ("unreachable!", ["unreachable", "!", "("]),
    ];
    calls.into_iter().flat_map(move |(name, texts)| {
        let starts = code
            .find(texts[0])
            .filter(move |&at| code.follow(at, &texts));
        starts.map(move |at| (code.0[at].line, name, code.text(at + texts.len())))
    })
}

/// Whether `reason` is a string that begins with a capital letter and ends with a full stop, or
/// with the values of what was found.
fn is_sentence(reason: &str) -> bool {
    let text = reason.trim_matches('"');
    let ends = text.ends_with('.') || text.contains(": {");
    reason.starts_with('"') && text.starts_with(char::is_uppercase) && text.contains(' ') && ends
}

#[cfg(test)]
mod tests {
    use super::{INPUT, check, check_list};
    use crate::tidy::tests::problems;

    fn count(path: &str, text: &str) -> usize {
        problems(check, &[(path, text)]).len()
    }

    const ENGINE: &str = "crates/windrow-slab/src/ring.rs";

    #[test]
    fn a_reason_is_a_sentence() {
        for good in [
            r#"fn f() { a.expect("A slab has a part."); }"#,
            r#"fn f() { unreachable!("The slab is ready: {:?}", phase); }"#,
            "#[expect(dead_code)] fn f() {}",
            "fn f() {}\n#[cfg(test)]\nmod tests { fn g() { a.expect(\"a part\"); } }",
        ] {
            assert_eq!(count(ENGINE, good), 0, "{good}");
        }
        for bad in [
            r#"fn f() { a.expect("a part"); }"#,
            r#"fn f() { a.expect("Part."); }"#,
            "fn f() { a.expect(reason); }",
            "fn f() { unreachable!(); }",
        ] {
            assert_eq!(count(ENGINE, bad), 1, "{bad}");
        }
    }

    #[test]
    fn a_module_of_the_list_that_is_gone_is_found() {
        let found = problems(check_list, &[("crates/windrow-remote/src/lib.rs", "")]);
        assert_eq!(found.len(), INPUT.len() - 1);
    }

    #[test]
    fn what_reads_input_never_panics() {
        let text =
            r#"fn f() { a.expect("A file has a header."); unreachable!("It is never empty."); }"#;
        assert_eq!(
            count("crates/windrow-replay/src/checkpoint/read.rs", text),
            2
        );
        assert_eq!(count("crates/windrow-python/src/gil.rs", text), 2);
        assert_eq!(count("crates/windrow-python/benches/gil.rs", text), 0);
        assert_eq!(count("xtask/src/gil.rs", text), 0);
    }
}
