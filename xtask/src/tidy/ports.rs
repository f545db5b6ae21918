//! Which module of the Python package may know which, and which one Rust may name.

use super::Findings;
use crate::scan::{
    Source,
    modules::circles,
    package::{imports, named},
};

/// The only module that Rust names.
const PORTS: &str = "windrow._ports";

/// Two modules may know each other.
const LARGEST_CIRCLE: usize = 2;

/// Checks that Rust names [`PORTS`] alone, that no function hides an import of the package's own
/// modules, and that these form no circle.
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
    for circle in circles(&imports(python.iter().copied()))
        .iter()
        .filter(|circle| circle.len() > LARGEST_CIRCLE)
    {
        let circle = circle.join(", ");
        findings.problems.push(format!(
            "these modules import each other in a circle: {circle}"
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
    use crate::{scan::Source, tidy::Findings};

    fn module(name: &str, imports: &[&str], hidden: &[&str]) -> Source {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Source {
            path: format!("python/{name}.py"),
            module: name.to_owned(),
            imports: owned(imports),
            hidden_imports: owned(hidden),
            ..Source::default()
        }
    }

    #[test]
    fn circles_hidden_imports_and_other_ports_are_problems() {
        let rust = r#"fn f() { g("windrow._ports"); g("windrow._a"); }"#;
        let rust = Source::of_rust("crates/a/src/a.rs".to_owned(), rust.to_owned()).expect("Rust");
        let a = module("windrow._a", &["windrow._b"], &[]);
        let b = module("windrow._b", &["windrow._c", "windrow._a"], &["windrow._a"]);
        let c = module("windrow._c", &["windrow._a"], &[]);
        let ports = module("windrow._ports", &[], &[]);
        let mut findings = Findings::default();
        check(&[rust, a, b, c, ports], &mut findings);
        let found = findings.problems.join("\n");
        assert_eq!(findings.problems.len(), 3, "{found}");
        for part in [
            "_b.py: a function imports windrow._a",
            "a circle: windrow._a, windrow._b, windrow._c",
            "Rust names windrow._a,",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
    }
}
