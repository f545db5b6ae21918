//! The two rules that keep the engine one engine.

use super::{Findings, Source};
use crate::scan::rust as code;

const FOLDER: &str = "crates/windrow-collect/src/";

/// The only file that steps environments in a loop.
const LOOP: &str = "worker/rollout.rs";

/// The process of one environment, which takes a step when it is told to.
const MEMBER: &str = "process/parallel/member.rs";

/// Files that serve every strategy and therefore name none.
const PLAIN: [&str; 3] = ["worker.rs", LOOP, "worker/cursor.rs"];

/// Names of the strategies, which are chosen when a collector is built.
const STRATEGIES: [&str; 3] = ["Placement", "Delivery", "Inference"];

/// Checks that environments are stepped in one place, and that the loop and its surroundings name no strategy.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    let engine: Vec<_> = sources
        .iter()
        .filter(|source| source.path.starts_with(FOLDER))
        .collect();
    let mut steps = Vec::new();
    for source in &engine {
        let blanked = code::blank(code::without_unit_tests(&source.text));
        steps.extend(
            code::environment_steps(&blanked)
                .into_iter()
                .map(|line| (source.path.as_str(), line)),
        );
    }
    let places: Vec<_> = steps
        .iter()
        .map(|(path, line)| format!("{path}:{line}"))
        .collect();
    let files: Vec<_> = steps
        .iter()
        .filter_map(|(path, _)| path.strip_prefix(FOLDER))
        .collect();
    match files.as_slice() {
        [LOOP] | [MEMBER, LOOP] => {}
        _ => findings.problem(format!(
            "expected one call of an environment's `step` in {FOLDER}, in {LOOP}, and at most one in {MEMBER}; got {}",
            if places.is_empty() {
                "none".to_owned()
            } else {
                places.join(", ")
            }
        )),
    }
    for name in PLAIN {
        let path = format!("{FOLDER}{name}");
        let Some(source) = engine.iter().find(|source| source.path == path) else {
            findings.problem(format!("expected a file {path}, found none"));
            continue;
        };
        for strategy in STRATEGIES {
            for line in code::lines_with(&source.text, strategy) {
                findings.problem(format!(
                    "{path}:{line}: names `{strategy}`, which is chosen before it runs"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::Findings;

    const GOOD: [(&str, &str); 3] = [
        (
            "worker/rollout.rs",
            "for t in 0..n { let s = part.step(t); env.step(a)?; }",
        ),
        ("worker.rs", ""),
        ("worker/cursor.rs", ""),
    ];

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        Findings::in_collect(check, files).problems
    }

    #[test]
    fn one_loop_is_fine_and_tests_may_step_as_they_like() {
        assert!(problems(&GOOD).is_empty());
        let tested = [
            GOOD[0],
            GOOD[1],
            (
                "worker/cursor.rs",
                "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { env.step(a) } }",
            ),
        ];
        assert!(problems(&tested).is_empty());
    }

    #[test]
    fn a_second_loop_is_found() {
        let files = [
            GOOD[0],
            GOOD[1],
            GOOD[2],
            ("evaluator.rs", "\nself.env.step(a)"),
        ];
        let found = problems(&files);
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .ends_with("src/worker/rollout.rs:1, crates/windrow-collect/src/evaluator.rs:2"),
            "{}",
            found[0]
        );
        assert_eq!(problems(&GOOD[1..]).len(), 2, "no call, and no file");
    }

    #[test]
    fn the_process_of_an_environment_takes_one_step() {
        let member = |text| {
            [
                ("process/parallel/member.rs", text),
                GOOD[0],
                GOOD[1],
                GOOD[2],
            ]
        };
        assert!(problems(&member("env.step(a)")).is_empty());
        assert_eq!(problems(&member("env.step(a); env.step(b)")).len(), 1);
    }

    #[test]
    fn the_loop_names_no_strategy() {
        let files = [
            GOOD[0],
            (
                "worker.rs",
                "\nmatch placement { Placement::Threads => {} }",
            ),
            GOOD[2],
        ];
        assert_eq!(
            problems(&files),
            [
                "crates/windrow-collect/src/worker.rs:2: names `Placement`, which is chosen before it runs"
            ]
        );
    }
}
