//! One file of Rust or Python, as the rules and the figures see it.

use std::{collections::BTreeMap, fs, io, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, de::DeserializeOwned};

use super::{Function, Strings, Tokens};
use crate::workspace;

/// The folder of the Python package.
pub(crate) const PYTHON: &str = "python/windrow";

/// One file of Rust or Python.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Source {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    /// Lines without those of unit tests.
    pub(crate) lines: usize,
    /// Lines of unit tests.
    pub(crate) tests: usize,
    /// Lines of comments and documentation outside of unit tests.
    pub(crate) prose: usize,
    /// The first line.
    pub(crate) first: String,
    /// Statements outside of unit tests, see `items.rs` and `scan.py`.
    pub(crate) statements: usize,
    /// Public items outside of unit tests.
    pub(crate) public: usize,
    /// Lines of documentation of these items.
    pub(crate) documentation: usize,
    /// Functions outside of unit tests.
    pub(crate) functions: Vec<Function>,
    /// The text of a file of Rust.
    #[serde(skip)]
    pub(crate) text: String,
    /// Where the text of a file of Rust is that of literals.
    #[serde(skip)]
    pub(crate) strings: Strings,
    /// A file of Rust without its unit tests.
    #[serde(skip)]
    pub(crate) code: Tokens,
    /// The name of a module of Python.
    pub(crate) module: String,
    /// The modules of its package that it imports within functions.
    #[serde(default)]
    pub(crate) hidden_imports: Vec<String>,
    /// The modules of its package that it knows, by the kind of edge, see `edges.py`.
    pub(crate) edges: BTreeMap<String, Vec<String>>,
    /// Names in it that read pickled objects, see `scan.py`.
    pub(crate) unpicklers: Vec<String>,
    /// Parameters annotated as plain `Any` and all that are annotated, then the same of results.
    pub(crate) any_shares: [usize; 4],
}

impl Source {
    /// Reads a file of Rust.
    pub(crate) fn of_rust(path: String, text: String) -> Result<Self> {
        let read = Tokens::read(&text);
        let (tokens, strings) = read.with_context(|| format!("failed to read {path}"))?;
        let (code, tests) = tokens.without_tests();
        let is_own = |line: &usize| !tests.iter().any(|lines| lines.contains(line));
        let all: Vec<_> = text.lines().map(str::trim_start).collect();
        let own: Vec<_> = (1..=all.len()).filter(is_own).collect();
        let prose = own.iter().filter(|line| all[**line - 1].starts_with("//"));
        let public = code.public();
        Ok(Self {
            path,
            lines: own.len(),
            tests: all.len() - own.len(),
            prose: prose.count(),
            first: text.lines().next().unwrap_or_default().to_owned(),
            statements: code.statements(),
            public: public.len(),
            documentation: public.iter().map(|item| item.documentation).sum(),
            functions: code.functions(),
            text,
            strings,
            code,
            ..Self::default()
        })
    }

    /// Whether it belongs to a library or a program, not to its tests, benchmarks or examples.
    pub(crate) fn is_own(&self) -> bool {
        let is_other = self.path.contains("/benches/") || self.path.contains("/examples/");
        !is_other && !is_test(&self.path)
    }

    /// Whether its first line says that a program wrote it, in a comment that begins with
    /// "Generated".
    pub(crate) fn is_generated(&self) -> bool {
        let is_sign = |letter: char| letter.is_whitespace() || "/!#\"".contains(letter);
        let text = self.first.trim_start_matches(is_sign);
        text.len() < self.first.len() && text.starts_with("Generated")
    }

    /// Whether it is a file of Python.
    pub(crate) fn is_python(&self) -> bool {
        self.path.ends_with(".py")
    }
}

/// The files of Rust below `folder`, in order; none when the folder does not exist.
pub(crate) fn rust(root: &Path, folder: &Path) -> Result<Vec<Source>> {
    let failed = || format!("failed to read {}", folder.display());
    let mut sources = Vec::new();
    if !folder.is_dir() {
        return Ok(sources);
    }
    let entries = fs::read_dir(folder).with_context(failed)?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>().with_context(failed)?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources.extend(rust(root, &path)?);
        } else if path.is_file() && name.ends_with(".rs") {
            let text = fs::read_to_string(&path);
            let text = text.with_context(|| format!("failed to read {}", path.display()))?;
            sources.push(Source::of_rust(relative(root, &path), text)?);
        }
    }
    Ok(sources)
}

/// The files of the Python package of the tree at `root`, measured by Python.
pub(crate) fn python(root: &Path) -> Result<Vec<Source>> {
    read_by_python(root, "scan.py", &[PYTHON])
}

/// Runs a Python program of this folder over folders below `root`, and reads the JSON that it
/// prints.
pub(crate) fn read_by_python<T: DeserializeOwned>(
    root: &Path,
    program: &str,
    folders: &[&str],
) -> Result<T> {
    let (python, _) = crate::python::find()?;
    let programs = workspace::root().join("xtask/src");
    let output = Command::new(python)
        .args(["-B", "-X", "utf8"])
        .arg(programs.join(program))
        .args(folders)
        .current_dir(root)
        .output()
        .context("failed to start Python")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let folders = folders.join(", ");
        bail!("Python does not read {folders}:\n{}", error.trim_end());
    }
    let failed = || format!("expected JSON from {program}");
    serde_json::from_slice(&output.stdout).with_context(failed)
}

/// `path` below `root`, with forward slashes.
pub(crate) fn relative(root: &Path, path: &Path) -> String {
    let path = path.strip_prefix(root).unwrap_or(path);
    path.to_string_lossy().replace('\\', "/")
}

/// Whether a file holds nothing but tests.
pub(crate) fn is_test(path: &str) -> bool {
    path.split('/')
        .any(|part| matches!(part, "tests" | "tests.rs") || part.ends_with("_tests.rs"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::{env, fs, process};

    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::{Source, read_by_python};

    /// What `program` says of files below a folder of their own; `test` names the folder.
    pub(crate) fn read<T: DeserializeOwned>(
        test: &str,
        program: &str,
        files: &[(&str, &str)],
    ) -> T {
        let root = env::temp_dir().join(format!("windrow-xtask-{test}-{}", process::id()));
        // A killed run with the same process id may have left it.
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let found = read_by_python(&root, program, &["p"]);
        fs::remove_dir_all(&root).expect("it was there");
        found.expect("measures")
    }

    #[test]
    fn a_module_of_python_is_known_however_it_is_named() {
        let init = "\
from p import _rust
from p._lazy import names_of
if TYPE_CHECKING:
    from p._a import A
else:
    __getattr__ = names_of(__name__, {'B': '_b'})
";
        let files = [
            ("p/__init__.py", init),
            ("p/_a.py", "from p import B\n"),
            ("p/_b.py", "import p\ndef f():\n    return p.A\n"),
            ("p/_c.py", "if TYPE_CHECKING:\n    from p import _a\n"),
            ("p/_d.py", "def f():\n    from . import _b\n"),
            ("p/_e.py", "\"\"\"p._a\"\"\"\n_b = module('p._b')\n"),
            (
                "p/_f.py",
                "P = 'p'\nHOMES = {x: f'{P}._{x}:of' for x in 'ab'}\n",
            ),
            ("p/_g.py", "from p import _rust\nX = _rust.X\n"),
            ("p/_h.py", "x = {}.get('p')\nprint(x)\n"),
            ("p/_lazy.py", ""),
        ];
        let sources: Vec<Source> = read("edges", "scan.py", &files);
        let edges = |source: &Source| {
            let edges = source.edges.iter().filter(|(_, known)| !known.is_empty());
            let edges = edges.map(|(kind, known)| format!("{kind} {}", known.join(" ")));
            let edges: Vec<_> = edges.collect();
            format!("{}: {}", source.module, edges.join(", "))
        };
        let edges: Vec<_> = sources.iter().map(edges).collect();
        let expected = [
            "p: imports p._lazy",
            "p._a: packages p._b",
            "p._b: packages p._a",
            "p._c: ",
            "p._d: imports p._b",
            "p._e: strings p._b",
            "p._f: tables p._a p._b",
            "p._g: ",
            "p._h: ",
            "p._lazy: ",
        ];
        assert_eq!(edges, expected);
    }

    #[test]
    fn docstrings_of_python_are_no_statements() {
        let text = "\
\"\"\"P.\"\"\"
class A:
    \"\"\"A.

    B.
    \"\"\"
    def f(self):
        x = (1,
             2); return x
    def _g(self):
        \"\"\"G.\"\"\"
";
        let sources: Vec<Source> = read("statements", "scan.py", &[("p/__init__.py", text)]);
        let [source] = &sources[..] else {
            panic!("expected one file, got {sources:?}");
        };
        // The class, two functions and two statements.
        assert_eq!(source.statements, 5);
        assert_eq!([source.public, source.documentation], [2, 4]);
        assert_eq!(source.first, "\"\"\"P.\"\"\"");
    }

    #[test]
    fn prose_of_python_is_found_in_stubs_too() {
        let text = "\"\"\"P.\n\"\"\"\nx = 1  # a\ny = '''\n# b\n'''\n";
        let files = [("p/a.pyi", text), ("p/target/b.py", text)];
        let found: Value = read("prose", "prose.py", &files);
        let expected = json!([{ "path": "p/a.pyi", "comments": [[3, 7]], "docstrings": [[1, 2]] }]);
        assert_eq!(found, expected);
    }
}
