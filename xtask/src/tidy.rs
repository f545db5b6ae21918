//! The rules of the tree that no lint knows: sizes of files and functions, where `unsafe` may stand, which crate and which
//! room of the engine may know which, and that there is one loop.

mod arrows;
mod engine;
mod files;
mod functions;
mod rooms;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    report::{Report, Verdict},
    workspace::Workspace,
};

pub(crate) use files::is_test;
pub(crate) use rooms::graph;

/// One file of Rust or Python, as the rules see it.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The folder of the Python package.
pub(crate) const PYTHON: &str = "python/windrow";

/// Broken rules, and warnings.
#[derive(Debug, Default)]
struct Findings {
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    fn warning(&mut self, text: String) {
        self.warnings.push(text);
    }

    /// The findings of `check` in files of windrow-collect, given by their names and texts.
    #[cfg(test)]
    fn in_collect(check: fn(&[Source], &mut Self), files: &[(&str, &str)]) -> Self {
        let source = |(name, text): &(&str, &str)| Source {
            path: format!("crates/windrow-collect/src/{name}"),
            text: (*text).to_owned(),
        };
        let mut findings = Self::default();
        check(&files.iter().map(source).collect::<Vec<_>>(), &mut findings);
        findings
    }
}

/// Checks the rules alone; `true` when none is broken.
///
/// # Errors
/// Never; failures are part of the report.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::default();
    report.step("tidy", || verdict(workspace));
    Ok(report.close())
}

/// Checks the rules and prints what they found.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn verdict(workspace: &Workspace) -> Result<Verdict> {
    let sources = read(workspace)?;
    let mut findings = Findings::default();
    files::check(&sources, &mut findings);
    functions::check(&sources, &mut findings);
    files::check_roots(workspace, &sources, &mut findings);
    arrows::check(workspace, &mut findings);
    rooms::check(&sources, &mut findings);
    engine::check(&sources, &mut findings);

    findings
        .warnings
        .iter()
        .for_each(|warning| println!("    warning: {warning}"));
    findings
        .problems
        .iter()
        .for_each(|problem| println!("    {problem}"));
    Ok(match findings.problems.len() {
        0 => Verdict::Passed,
        1 => Verdict::Failed(None, "1 rule is broken".to_owned()),
        problems => Verdict::Failed(None, format!("{problems} rules are broken")),
    })
}

/// Every `.rs` file of every package, and every `.py` file of the Python package.
fn read(workspace: &Workspace) -> Result<Vec<Source>> {
    let mut folders: Vec<_> = workspace
        .packages
        .iter()
        .map(|package| (package.folder.clone(), ".rs"))
        .collect();
    folders.push((workspace.root.join(PYTHON), ".py"));
    let mut sources = Vec::new();
    for (folder, extension) in folders {
        sources.extend(below(&workspace.root, &folder, extension)?);
    }
    Ok(sources)
}

/// The files below `folder` with this extension, in order; none when the folder does not exist.
///
/// # Errors
/// When the folder or a file cannot be read.
pub(crate) fn below(root: &Path, folder: &Path, extension: &str) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    if folder.is_dir() {
        collect(folder, extension, &mut paths)?;
    }
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("failed to read {}", path.display()))?;
            Ok(Source {
                path: relative(root, &path),
                text,
            })
        })
        .collect()
}

fn collect(folder: &Path, extension: &str, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?
    {
        let path = entry
            .with_context(|| format!("failed to read {}", folder.display()))?
            .path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, extension, paths)?;
            }
        } else if name.ends_with(extension) {
            paths.push(path);
        }
    }
    Ok(())
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .to_string_lossy()
        .replace('\\', "/")
}
