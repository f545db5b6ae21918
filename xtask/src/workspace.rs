//! The workspace as cargo sees it.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// All packages of the workspace and where it lies.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// One package.
#[derive(Debug, Clone, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// Names of the packages it depends on, in whatever way.
    pub(crate) dependencies: Vec<String>,
    pub(crate) targets: Vec<Target>,
}

/// One thing cargo builds from a package.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The file it starts in.
    pub(crate) source: PathBuf,
}

/// The kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Library,
    Binary,
    Test,
    /// An example, a benchmark or a build script.
    Other,
}

impl Workspace {
    /// Asks cargo for the packages of the workspace at `root`.
    ///
    /// # Errors
    /// When a manifest cannot be read, in cargo's words.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let output = cargo::command(root)
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .output()
            .context("failed to start cargo")?;
        if !output.status.success() {
            bail!(
                "the workspace does not load:\n{}",
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        let metadata: Value =
            serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
        let packages = list(&metadata, "packages")
            .iter()
            .map(Package::read)
            .collect();
        Ok(Self {
            root: root.to_owned(),
            packages,
        })
    }

    /// The package called `name`.
    ///
    /// # Errors
    /// When the workspace has none of that name.
    pub(crate) fn package(&self, name: &str) -> Result<&Package> {
        self.packages
            .iter()
            .find(|package| package.name == name)
            .with_context(|| format!("the workspace has no package `{name}`"))
    }
}

impl Package {
    fn read(value: &Value) -> Self {
        let manifest = PathBuf::from(text(value, "manifest_path"));
        Self {
            name: text(value, "name"),
            folder: manifest.parent().map(Path::to_owned).unwrap_or_default(),
            dependencies: list(value, "dependencies")
                .iter()
                .map(|dependency| text(dependency, "name"))
                .collect(),
            targets: list(value, "targets").iter().map(Target::read).collect(),
        }
    }

    /// Names of its integration tests.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &str> {
        self.targets
            .iter()
            .filter(|target| target.kind == Kind::Test)
            .map(|target| target.name.as_str())
    }
}

impl Target {
    fn read(value: &Value) -> Self {
        let kind = match list(value, "kind").first().and_then(Value::as_str) {
            Some("lib" | "rlib" | "cdylib" | "dylib" | "staticlib" | "proc-macro") => Kind::Library,
            Some("bin") => Kind::Binary,
            Some("test") => Kind::Test,
            _ => Kind::Other,
        };
        Self {
            name: text(value, "name"),
            kind,
            source: PathBuf::from(text(value, "src_path")),
        }
    }
}

/// Root folder of the workspace this program was built from.
///
/// # Errors
/// When the manifest of this package lies in no folder.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = manifest.parent().with_context(|| {
        format!(
            "expected xtask inside a workspace, got {}",
            manifest.display()
        )
    })?;
    Ok(root.to_owned())
}

fn text(value: &Value, field: &str) -> String {
    value
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value
        .get(field)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Kind, Package};

    #[test]
    fn a_package_is_read_from_metadata() {
        let package = Package::read(&json!({
            "name": "windrow-slab",
            "manifest_path": "/w/crates/windrow-slab/Cargo.toml",
            "dependencies": [{ "name": "windrow-tensordict", "rename": "tensordict", "kind": null }],
            "targets": [
                { "name": "windrow_slab", "kind": ["lib"], "src_path": "/w/crates/windrow-slab/src/lib.rs" },
                { "name": "loom", "kind": ["test"], "src_path": "/w/crates/windrow-slab/tests/loom.rs" },
            ],
        }));
        assert_eq!(package.dependencies, ["windrow-tensordict"]);
        assert_eq!(package.tests().collect::<Vec<_>>(), ["loom"]);
        assert_eq!(package.targets[0].kind, Kind::Library);
        assert!(package.folder.ends_with("crates/windrow-slab"));
    }
}
