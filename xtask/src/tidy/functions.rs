//! Sizes of functions: their lines and parameters.

use super::{Findings, Source, files};
use crate::scan::functions::{Function, in_python, in_rust};

/// Most lines of a function, its signature and docstring included.
const LINES: usize = 80;

/// Most parameters of a function, `self` aside.
const PARAMETERS: usize = 6;

/// Checks every function outside of tests.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    for source in sources
        .iter()
        .filter(|source| !files::is_test(&source.path))
    {
        let is_python = source.path.ends_with(".py");
        let functions = match is_python {
            true => in_python(&source.text),
            false => in_rust(crate::scan::rust::without_unit_tests(&source.text)),
        };
        for function in functions {
            let allowed = if is_python {
                options(&function)
            } else {
                Options::default()
            };
            let place = format!("{}:{}: `{}`", source.path, function.line, function.name);
            let lines = function.lines.unwrap_or(0);
            let counted = if allowed.signature {
                lines - function.signature
            } else {
                lines
            };
            if counted > LINES {
                findings.problem(format!(
                    "{place} has {counted} lines: expected at most {LINES}"
                ));
            }
            let counted = function.parameters() - allowed.parameters;
            if counted > PARAMETERS {
                findings.problem(format!(
                    "{place} takes {counted} parameters: expected at most {PARAMETERS}"
                ));
            }
        }
    }
}

/// The part of a function that does not count, because users read it as a list of options.
#[derive(Debug, Default)]
struct Options {
    signature: bool,
    parameters: usize,
}

/// A constructor may take any number of options, since a class has only one; a public function those that callers name.
fn options(function: &Function) -> Options {
    if matches!(function.name.as_str(), "__init__" | "__new__") {
        return Options {
            signature: true,
            parameters: function.parameters(),
        };
    }
    let is_public = !function.name.starts_with('_');
    Options {
        signature: is_public && function.by_name > PARAMETERS,
        parameters: if is_public { function.by_name } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::{Findings, Source};

    fn problems(path: &str, text: String) -> Vec<String> {
        let mut findings = Findings::default();
        let path = path.to_owned();
        check(&[Source { path, text }], &mut findings);
        findings.problems
    }

    #[test]
    fn a_function_of_eighty_lines_is_fine_and_a_longer_one_is_not() {
        let rust = |lines: usize| format!("fn f() {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        let python = |lines: usize| format!("def f():\n{}", "    a()\n".repeat(lines - 1));
        for (path, text) in [
            ("a.rs", rust(80)),
            ("a.py", python(80)),
            ("tests/a.rs", rust(90)),
        ] {
            assert!(problems(path, text).is_empty(), "{path}");
        }
        for (path, text) in [("a.rs", rust(81)), ("a.py", python(81))] {
            let expected = format!("{path}:1: `f` has 81 lines: expected at most 80");
            assert_eq!(problems(path, text), [expected]);
        }
    }

    #[test]
    fn six_parameters_are_fine_and_seven_are_not() {
        let rust = |count: usize| format!("fn f(&self, {}) {{}}", "_: u8, ".repeat(count));
        assert!(problems("a.rs", rust(6)).is_empty());
        let expected = "a.rs:1: `f` takes 7 parameters: expected at most 6";
        assert_eq!(problems("a.rs", rust(7)), [expected]);
    }

    #[test]
    fn options_of_a_constructor_and_of_a_public_function_are_not_counted() {
        let names: String = (0..90)
            .map(|index| format!("        a{index},\n"))
            .collect();
        let many = |name: &str, star: &str| {
            format!("class A:\n    def {name}(\n        self,\n{star}{names}    ):\n        pass\n")
        };
        assert!(problems("a.py", many("__init__", "")).is_empty());
        assert!(problems("a.py", many("made", "        *,\n")).is_empty());
        assert_eq!(problems("a.py", many("made", "")).len(), 2);
        assert_eq!(problems("a.py", many("_made", "        *,\n")).len(), 2);
    }
}
