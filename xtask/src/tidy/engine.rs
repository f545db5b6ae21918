//! The two rules that keep the engine one engine.

use super::{ENGINE, Findings};
use crate::scan::{Source, Tokens};

/// The only file that steps environments in a loop.
const LOOP: &str = "worker/rollout.rs";

/// The process of one environment, which takes a step when it is told to.
const MEMBER: &str = "process/parallel/member.rs";

/// Files that serve every strategy and therefore name none.
const PLAIN: [&str; 3] = ["worker.rs", LOOP, "worker/cursor.rs"];

/// Names of the strategies, which are chosen when a collector is built.
const STRATEGIES: [&str; 3] = ["Placement", "Delivery", "Inference"];

/// Calls that only borrow an environment.
const BORROWS: [&str; 4] = ["as_mut", "deref_mut", "borrow_mut", "get_mut"];

/// Checks that environments are stepped in one place, and that the loop and its surroundings name
/// no strategy.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    let engine = sources.iter();
    let engine = engine.filter_map(|source| Some((source.path.strip_prefix(ENGINE)?, source)));
    let engine: Vec<_> = engine.collect();
    let (mut files, mut places) = (Vec::new(), Vec::new());
    for (name, source) in &engine {
        for line in steps(&source.code) {
            files.push(*name);
            places.push(format!("{}:{line}", source.path));
        }
    }
    if !matches!(files.as_slice(), [LOOP] | [MEMBER, LOOP]) {
        let none = if places.is_empty() { "none" } else { "" };
        findings.problems.push(format!(
            "expected one call of an environment's `step` in {ENGINE}, in {LOOP}, and at most one in {MEMBER}; got {none}{}",
            places.join(", ")
        ));
    }
    for plain in PLAIN {
        let Some((_, source)) = engine.iter().find(|(name, _)| *name == plain) else {
            findings
                .problems
                .push(format!("expected a file {ENGINE}{plain}, found none"));
            continue;
        };
        // In comments, too.
        for (index, line) in source.text.lines().enumerate() {
            let is_sign = |letter: char| !letter.is_alphanumeric() && letter != '_';
            let words: Vec<_> = line.split(is_sign).collect();
            for name in STRATEGIES.iter().filter(|name| words.contains(name)) {
                let place = format!("{}:{}", source.path, index + 1);
                let text = format!("{place}: names `{name}`, which is chosen before it runs");
                findings.problems.push(text);
            }
        }
    }
}

/// Numbers of the lines that call `step` of something named like an environment: `env`, `envs`,
/// `…_env`, `…_envs`, with or without `as_mut()` and the like in between, or of a trait called
/// `…Env`.
fn steps(code: &Tokens) -> Vec<usize> {
    let is_environment = |name: &str| {
        matches!(name, "env" | "envs") || name.ends_with("_env") || name.ends_with("_envs")
    };
    let is_step = |step: &usize| {
        let borrows = |at| code.follow(at - 1, &["(", ")"]) && BORROWS.contains(&code.text(at - 2));
        let mut at = step.saturating_sub(2);
        match step.checked_sub(1).map(|before| code.text(before)) {
            Some(":") => return code.text(step.saturating_sub(3)).ends_with("Env"),
            Some(".") => {}
            _ => return false,
        }
        while at > 3 && borrows(at) {
            at -= 4;
        }
        is_environment(code.text(at))
    };
    let calls = code.find("step").filter(|at| code.text(at + 1) == "(");
    calls.filter(is_step).map(|at| code.0[at].line).collect()
}

#[cfg(test)]
mod tests {
    use super::{Tokens, check, steps};
    use crate::tidy::tests::problems_in_collect;

    const GOOD: [(&str, &str); 3] = [
        (
            "worker/rollout.rs",
            "for t in 0..n { let s = part.step(t); env.step(a)?; }",
        ),
        ("worker.rs", ""),
        ("worker/cursor.rs", ""),
    ];

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        problems_in_collect(check, files)
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

    #[test]
    fn steps_of_environments_are_told_from_other_steps() {
        let steps = |text: &str| steps(&Tokens::read(text).expect("tokens of Rust").0).len();
        for text in [
            "env.step(a)",
            "self.env.as_mut().step(a)",
            "vec_env\n    .step(a)",
            "VecEnv::step(env, a)",
            "envs.step (a)",
            "ready!(env.step(a))",
        ] {
            assert_eq!(steps(text), 1, "{text}");
        }
        for text in [
            "part.step(t)",
            "cursor.step(1)",
            "env.stepper(a)",
            "// env.step(a)",
            "make().step(a)",
            "environment_count.step(a)",
            "step(env)",
            "fn step(env: u8)",
        ] {
            assert_eq!(steps(text), 0, "{text}");
        }
    }
}
