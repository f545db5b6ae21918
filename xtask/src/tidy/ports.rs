//! Which module of the Python package may know which, and which one Rust may name.

use super::Findings;
use crate::scan::{
    Source,
    modules::circles,
    package::{KINDS, edges, named},
};

/// The only module that Rust names.
const PORTS: &str = "windrow._ports";

/// Two modules may know each other, as a class and one that its methods make of it.
const LARGEST_CIRCLE: usize = 2;

/// Checks that Rust names [`PORTS`] alone, that no function hides an import of the package's own
/// modules, and that these form no circle, in whatever form they name each other.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    let (python, rust): (Vec<_>, Vec<_>) = sources.iter().partition(|source| source.is_python());
    for source in &python {
        for known in &source.hidden_imports {
            findings.problems.push(format!(
                "{}: a function imports {known}: import it at the top, by `_lazy.module` where it imports an optional package",
                source.path
            ));
        }
    }
    for circle in circles(&edges(python.iter().copied(), &KINDS))
        .iter()
        .filter(|circle| circle.len() > LARGEST_CIRCLE)
    {
        let circle = circle.join(", ");
        findings.problems.push(format!(
            "these modules know each other in a circle: {circle}"
        ));
    }
    for name in named(rust, python.iter().copied())
        .into_iter()
        .filter(|name| *name != PORTS)
    {
        findings
            .problems
            .push(format!("Rust names {name}, expected {PORTS} alone"));
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::{
        scan::{Source, read_files},
        tidy::Findings,
    };

    /// The problems of a Python package `p` and a file of Rust.
    fn problems(test: &str, files: &[(&str, &str)], rust: &str) -> Vec<String> {
        let mut sources: Vec<Source> = read_files(test, "scan.py", files);
        let rust = Source::of_rust("crates/a/src/a.rs".to_owned(), rust.to_owned()).expect("Rust");
        sources.push(rust);
        let mut findings = Findings::default();
        check(&sources, &mut findings);
        findings.problems
    }

    #[test]
    fn an_arrow_of_any_kind_closes_a_circle() {
        let arrows = [
            ("import", "from p._a import A\n"),
            ("string", "_a = module('p._a')\n"),
            ("package", "import p\ndef f():\n    return p.A\n"),
            ("table", "P = 'p'\nHOMES = {'a': f'{P}._a:A'}\n"),
        ];
        for (kind, arrow) in arrows {
            let open = [
                ("p/__init__.py", "from p._a import A\n"),
                ("p/_a.py", "from p import _b\n"),
                ("p/_b.py", "from p import _c\n"),
                ("p/_c.py", ""),
            ];
            let mut closed = open;
            closed[3].1 = arrow;
            let test = format!("circle-{kind}");
            assert_eq!(problems(&test, &open, ""), [""; 0], "{kind}");
            let expected = "these modules know each other in a circle: p._a, p._b, p._c";
            assert_eq!(problems(&test, &closed, ""), [expected], "{kind}");
        }
    }

    #[test]
    fn two_modules_may_know_each_other() {
        let files = [
            ("p/_a.py", "from p import _b\n"),
            ("p/_b.py", "from p import _a\n"),
        ];
        assert_eq!(problems("pair", &files, ""), [""; 0]);
    }

    #[test]
    fn a_function_imports_no_module_of_the_package() {
        let files = [
            ("p/_a.py", "def f():\n    from p import _b\n"),
            ("p/_b.py", ""),
        ];
        let found = problems("hidden", &files, "");
        let expected = "p/_a.py: a function imports p._b:";
        assert!(
            found.len() == 1 && found[0].starts_with(expected),
            "{found:?}"
        );
    }

    #[test]
    fn rust_names_one_module_of_python() {
        let module = |name: &str| Source {
            module: name.to_owned(),
            path: format!("python/{name}.py"),
            ..Source::default()
        };
        let rust = r#"fn f() { g("windrow._ports"); g("windrow._a"); }"#;
        let rust = Source::of_rust("crates/a/src/a.rs".to_owned(), rust.to_owned()).expect("Rust");
        let mut findings = Findings::default();
        check(
            &[rust, module("windrow._a"), module("windrow._ports")],
            &mut findings,
        );
        let expected = "Rust names windrow._a, expected windrow._ports alone";
        assert_eq!(findings.problems, [expected]);
    }
}
