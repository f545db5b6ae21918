//! The workspace as cargo sees it.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cargo;

/// All packages of the workspace and where it lies.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// One package.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    /// The packages it depends on, in whatever way.
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// A package that another one depends on.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
}

/// One thing cargo builds from a package.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// `lib`, `bin`, `test` and the like.
    pub(crate) kind: Vec<String>,
    /// The file it starts in.
    pub(crate) src_path: PathBuf,
    /// Whether it has tests of its own.
    #[serde(default)]
    pub(crate) test: bool,
}

impl Workspace {
    /// Asks cargo for the packages of the workspace at `root`.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let output = cargo::command(root, "metadata --no-deps --format-version 1")
            .output()
            .context("failed to start cargo")?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("the workspace does not load:\n{}", error.trim_end());
        }
        serde_json::from_slice(&output.stdout).context("cargo metadata printed another format")
    }

    /// The first files of libraries and programs, other than examples, benchmarks, tests and build
    /// scripts.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &Path> {
        const OTHERS: [&str; 4] = ["example", "bench", "test", "custom-build"];
        let targets = self.packages.iter().flat_map(|package| &package.targets);
        let is_other = |target: &&Target| OTHERS.iter().any(|kind| target.kind == [*kind]);
        let programs = targets.filter(move |target| !is_other(target));
        programs.map(|target| target.src_path.as_path())
    }

    /// Arguments that name these packages and those of their integration tests that are `wanted`.
    pub(crate) fn tests(&self, names: &str, wanted: fn(&str) -> bool) -> Result<String> {
        let mut arguments = String::new();
        for name in names.split(' ') {
            let package = self.packages.iter().find(|package| package.name == name);
            let package =
                package.with_context(|| format!("the workspace has no package {name}"))?;
            arguments += &format!(" --package={name}");
            for test in package.tests().filter(|test| wanted(test)) {
                arguments += &format!(" --test={test}");
            }
        }
        Ok(arguments)
    }
}

impl Package {
    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new(""))
    }

    /// Names of its integration tests.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &str> {
        self.names(|target| target.kind == ["test"])
    }

    /// Names of its examples that have tests of their own.
    pub(crate) fn tested_examples(&self) -> impl Iterator<Item = &str> {
        self.names(|target| target.kind == ["example"] && target.test)
    }

    fn names(&self, wanted: fn(&Target) -> bool) -> impl Iterator<Item = &str> {
        let targets = self.targets.iter().filter(move |target| wanted(target));
        targets.map(|target| target.name.as_str())
    }
}

/// Root folder of the workspace this program was built from.
pub(crate) fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR");
    let manifest = manifest.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&manifest).parent();
    root.map(Path::to_owned).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use super::{Package, Target, Workspace};

    /// A workspace of these packages, each of which is a library.
    pub(crate) fn library(names: &[&str]) -> Workspace {
        let package = |name: &&str| {
            let mut package = package(name, &["a"]);
            package.targets[0].kind = vec!["lib".to_owned()];
            package.targets[0].src_path = format!("/w/crates/{name}/src/lib.rs").into();
            package
        };
        Workspace {
            root: "/w".into(),
            packages: names.iter().map(package).collect(),
        }
    }

    /// A package with these integration tests.
    pub(crate) fn package(name: &str, tests: &[&str]) -> Package {
        let target = |test: &&str| Target {
            name: (*test).to_owned(),
            kind: vec!["test".to_owned()],
            src_path: PathBuf::new(),
            test: true,
        };
        Package {
            name: name.to_owned(),
            targets: tests.iter().map(target).collect(),
            ..Package::default()
        }
    }

    #[test]
    fn a_package_is_read_from_metadata() {
        let read = serde_json::from_value(json!({
            "name": "windrow-slab",
            "version": "0.1.0",
            "manifest_path": "/w/crates/windrow-slab/Cargo.toml",
            "dependencies": [{ "name": "windrow-tensordict", "rename": "tensordict", "kind": null }],
            "targets": [
                { "name": "windrow_slab", "kind": ["lib"], "src_path": "/w/crates/windrow-slab/src/lib.rs" },
                { "name": "loom", "kind": ["test"], "src_path": "/w/crates/windrow-slab/tests/loom.rs" },
                { "name": "parts", "kind": ["example"], "src_path": "/w/parts.rs", "test": true },
                { "name": "ring", "kind": ["example"], "src_path": "/w/ring.rs", "test": false },
            ],
        }));
        let package: Package = read.expect("cargo's format");
        assert_eq!(package.dependencies[0].name, "windrow-tensordict");
        assert_eq!(package.tests().collect::<Vec<_>>(), ["loom"]);
        assert_eq!(package.tested_examples().collect::<Vec<_>>(), ["parts"]);
        let workspace = Workspace {
            root: PathBuf::new(),
            packages: vec![package.clone()],
        };
        let programs: Vec<_> = workspace.programs().collect();
        assert_eq!(programs, [Path::new("/w/crates/windrow-slab/src/lib.rs")]);
        assert!(package.folder().ends_with("crates/windrow-slab"));
    }
}
