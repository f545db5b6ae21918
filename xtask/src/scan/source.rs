//! One file of Rust or Python, as the rules and the figures see it.

use std::{fs, io, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{Function, Tokens};

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
    /// Functions outside of unit tests.
    pub(crate) functions: Vec<Function>,
    /// The text of a file of Rust.
    #[serde(skip)]
    pub(crate) text: String,
    /// A file of Rust without its unit tests.
    #[serde(skip)]
    pub(crate) code: Tokens,
    /// The name of a module of Python.
    pub(crate) module: String,
    /// The modules of its package that it imports, also within functions.
    pub(crate) imports: Vec<String>,
    /// Those of them that it imports within functions.
    #[serde(default)]
    pub(crate) hidden_imports: Vec<String>,
    /// Parameters annotated as plain `Any` and all that are annotated, then the same of results.
    pub(crate) any_shares: [usize; 4],
}

impl Source {
    /// Reads a file of Rust.
    pub(crate) fn of_rust(path: String, text: String) -> Result<Self> {
        let tokens = Tokens::read(&text).with_context(|| format!("failed to read {path}"))?;
        let (code, tests) = tokens.without_tests();
        let is_own = |line: &usize| !tests.iter().any(|lines| lines.contains(line));
        let all: Vec<_> = text.lines().map(str::trim_start).collect();
        let own: Vec<_> = (1..=all.len()).filter(is_own).collect();
        let prose = own.iter().filter(|line| all[**line - 1].starts_with("//"));
        Ok(Self {
            path,
            lines: own.len(),
            tests: all.len() - own.len(),
            prose: prose.count(),
            functions: code.functions(),
            text,
            code,
            ..Self::default()
        })
    }

    /// Whether it belongs to a library or a program, not to its tests, benchmarks or examples.
    pub(crate) fn is_own(&self) -> bool {
        let is_other = self.path.contains("/benches/") || self.path.contains("/examples/");
        !is_other && !is_test(&self.path)
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
    let (python, _) = crate::python::find()?;
    let output = Command::new(python)
        .args(["-X", "utf8", "-c", include_str!("../scan.py"), PYTHON])
        .current_dir(root)
        .output()
        .context("failed to start Python")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("Python does not read {PYTHON}:\n{}", error.trim_end());
    }
    serde_json::from_slice(&output.stdout).context("scan.py printed no measures")
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
