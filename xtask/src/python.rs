//! Python environments under `target`, that of the tests and that of the site: each is made once,
//! and again when its recipe changes. Programs of the Python package, which is built into the one
//! of the tests, run there.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context, Result, bail};

use crate::{
    certify, faults, process,
    report::{Report, Verdict},
};

/// Oldest Python the packages of the recipe still support.
const OLDEST: [u32; 2] = [3, 11];

/// Tried in this order when `PYTHON` is not set.
const CANDIDATES: &str = "python3 python3.15 python3.14 python3.13 python3.12 python3.11 python";

/// What a finished environment holds.
const STAMP: &str = "windrow-stamp";

/// How the package is built: as in all tests, and as it is released.
pub(crate) const DEV: &str = "maturin develop --quiet --profile dev";
pub(crate) const RELEASE: &str = "maturin develop --quiet --profile wheel";

/// Environment variable through which tests learn where the interpreter is.
pub(crate) const VARIABLE: &str = "WINDROW_PYTHON";

/// Interpreter of the environment of the tests.
pub(crate) fn environment(root: &Path) -> Result<PathBuf> {
    environment_of(root, "target/venv", "tests/python/requirements.txt")
}

/// Interpreter of the environment in `folder` that holds what `recipe` lists; it is made first when
/// it is missing, unfinished or of another recipe.
pub(crate) fn environment_of(root: &Path, folder: &str, recipe: &str) -> Result<PathBuf> {
    let name = folder;
    let recipe = root.join(recipe);
    let wanted = fs::read_to_string(&recipe);
    let wanted = wanted.with_context(|| format!("failed to read {}", recipe.display()))?;
    let folder = root.join(name);
    let lock = folder.with_extension("lock");
    let failed = || format!("failed to lock {}", lock.display());
    fs::create_dir_all(folder.parent().unwrap_or(root)).with_context(failed)?;
    let lock = File::create(&lock).with_context(failed)?;
    lock.lock().with_context(failed)?;

    let interpreter = interpreter(&folder);
    let runs = || process::succeeds(Command::new(&interpreter).args(["-c", ""]));
    if is_finished(&folder, &wanted) && runs() {
        return Ok(interpreter);
    }
    if folder.exists() {
        eprintln!("{name} is unfinished or was made from another recipe: making it again");
        fs::remove_dir_all(&folder)
            .with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    let (python, version) = find()?;
    eprintln!("making {name} with Python {version}; large packages can take minutes");
    make(&python, &folder, &interpreter, &recipe)?;
    // Written last: an environment without its stamp was never finished.
    fs::write(folder.join(STAMP), wanted)
        .with_context(|| format!("failed to write the stamp of {name}"))?;
    Ok(interpreter)
}

/// Where the virtual environment in `folder` has its interpreter.
pub(crate) fn interpreter(folder: &Path) -> PathBuf {
    folder.join(["bin/python", "Scripts/python.exe"][usize::from(cfg!(windows))])
}

fn make(python: &Path, folder: &Path, interpreter: &Path, recipe: &Path) -> Result<()> {
    let mut venv = Command::new(python);
    let made = process::run(venv.args(["-m", "venv"]).arg(folder), |_| false)?;
    if !made.success {
        bail!(
            "`{} -m venv` failed ({}): {}; some systems keep this module in a package of its own, such as python3-venv",
            python.display(),
            made.status,
            last(&made.lines)
        );
    }
    // Most modules are never imported: each is compiled when it is, not as it is installed.
    const INSTALL: &str =
        "-m pip install --disable-pip-version-check --progress-bar off --quiet --no-compile -r";
    let mut pip = Command::new(interpreter);
    pip.args(INSTALL.split(' ')).arg(recipe);
    let installed = process::run(&mut pip, |line| line.starts_with("Collecting"))?;
    if !installed.success {
        bail!(
            "pip failed ({}) to install {}: {}; pip's own variables, such as PIP_INDEX_URL and PIP_FIND_LINKS, \
             tell it where packages are",
            installed.status,
            recipe.display(),
            last(&installed.lines)
        );
    }
    Ok(())
}

/// A Python that is new enough, with its version: `$PYTHON`, otherwise the first suitable one on
/// the path.
pub(crate) fn find() -> Result<(PathBuf, String)> {
    let [major, minor] = OLDEST;
    let expected = format!("expected Python {major}.{minor} or newer");
    if let Some(chosen) = env::var_os("PYTHON").filter(|chosen| !chosen.is_empty()) {
        return suitable(&chosen).with_context(|| format!("{expected} in PYTHON"));
    }
    let mut refusals = Vec::new();
    for candidate in CANDIDATES.split(' ') {
        match suitable(candidate.as_ref()) {
            Ok(found) => return Ok(found),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    bail!(
        "{expected} on the path or in PYTHON; {}",
        refusals.join("; ")
    )
}

/// The program and its version, if it is a Python that is new enough.
pub(crate) fn suitable(program: &OsStr) -> Result<(PathBuf, String)> {
    let shown = program.display();
    let ask = "import sys; print('.'.join(map(str, sys.version_info[:3])))";
    let output = Command::new(program).args(["-c", ask]).output();
    let output = output.with_context(|| format!("no {shown}"))?;
    if !output.status.success() {
        bail!("{shown} does not run ({})", output.status);
    }
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !is_new_enough(&version) {
        bail!("{shown} is Python {version}");
    }
    Ok((PathBuf::from(program), version))
}

fn is_new_enough(version: &str) -> bool {
    let numbers: Result<Vec<u32>, _> = version.split('.').map(str::parse).collect();
    numbers.is_ok_and(|numbers| numbers.as_slice() >= OLDEST.as_slice())
}

fn is_finished(folder: &Path, recipe: &str) -> bool {
    fs::read_to_string(folder.join(STAMP)).is_ok_and(|found| found == recipe)
}

/// The last line that says something.
pub(crate) fn last(lines: &[String]) -> &str {
    let mut lines = lines.iter().rev().map(|line| line.trim());
    lines
        .find(|line| !line.is_empty())
        .unwrap_or("it printed nothing")
}

/// Runs the steps that concern the package; none can be tried without an interpreter.
pub(crate) fn steps(report: &mut Report, root: &Path, python: Option<&PathBuf>) {
    let mut built = false;
    report.step("Python package", || {
        let Some(python) = python else {
            return Ok(Verdict::NotRun("there is no Python environment".to_owned()));
        };
        build(root, python, DEV)?;
        built = true;
        Ok(Verdict::Passed)
    });
    let python = python.filter(|_| built);
    let mut step = |name, step: &dyn Fn(&Path) -> Result<Verdict>| {
        report.step(name, || match python {
            Some(python) => step(python),
            None => Ok(Verdict::NotRun("the package was not built".to_owned())),
        });
    };
    step("Python types", &|python| types(root, python));
    step("Python tests", &|python| tests(root, python));
    step("comparison with Gymnasium", &|python| {
        certify::short(root, python)
    });
    let program = |python: &Path, program, why| {
        let passed = faults::program(root, python, program)?;
        Ok(Verdict::of_check(passed, why))
    };
    step("deaths of Python's worker processes", &|python| {
        program(python, "kills --kills 50", faults::HARM)
    });
    let why = "an action was computed with another state";
    step("state of Python's policies", &|python| {
        // Each form once, with a class of collector that the seed draws, and others in time left.
        // By hand, each run draws a seed of its own.
        program(python, "stale --seconds 20 --seed 7", why)
    });
}

/// Checks the format of all Python and the rules that `pyproject.toml` lists, both by ruff.
pub(crate) fn style(root: &Path, python: Option<&PathBuf>) -> Result<Verdict> {
    let Some(python) = python else {
        return Ok(Verdict::NotRun("there is no Python environment".to_owned()));
    };
    let check = |what: &str, why| {
        let mut command = in_environment(root, python, what);
        command.env("RUFF_CACHE_DIR", root.join("target/ruff"));
        Verdict::of_program(&mut command, why)
    };
    let format = check(
        "ruff format --check",
        "these files are not formatted: run `$(cargo xtask python) -m ruff format`",
    )?;
    let lints = check("ruff check --quiet", "ruff has something to say")?;
    Ok(match format {
        Verdict::Passed => lints,
        failed => failed,
    })
}

/// Builds the extension and installs the package so that its sources are those of the tree.
fn build(root: &Path, python: &Path, maturin: &str) -> Result<()> {
    let mut command = in_environment(root, python, maturin);
    // A target folder of its own: the settings that PyO3 is built with differ, and each change
    // builds everything anew.
    command.env("CARGO_TARGET_DIR", root.join("target/python"));
    let built = process::run(&mut command, |_| false)?;
    if !built.success {
        bail!("maturin failed to build the package ({})", built.status);
    }
    Ok(())
}

fn types(root: &Path, python: &Path) -> Result<Verdict> {
    let check = |what: &'static str, cache: &str| {
        let mut command = in_environment(root, python, what);
        command.env("MYPYPATH", "python");
        command.env("MYPY_CACHE_DIR", root.join("target").join(cache));
        Verdict::of_program(&mut command, &format!("{what} has something to say"))
    };
    // Each uses one core.
    let (own, stubs) = thread::scope(|scope| {
        let stubs = scope.spawn(|| check("mypy.stubtest windrow._windrow", "stubtest"));
        let own = check("mypy", "mypy");
        (
            own,
            stubs.join().unwrap_or_else(|panic| resume_unwind(panic)),
        )
    });
    Ok(match own? {
        Verdict::Passed => stubs?,
        failed => failed,
    })
}

fn tests(root: &Path, python: &Path) -> Result<Verdict> {
    // Many tests start programs and wait for them, so two at a time take little more than half as
    // long.
    let pytest = "pytest --quiet --color=no -n 2 --dist worksteal";
    Verdict::of_runner(&mut in_environment(root, python, pytest))
}

/// A module of the environment, and its arguments.
fn in_environment(root: &Path, python: &Path, module: &str) -> Command {
    let mut command = Command::new(python);
    command.current_dir(root).arg("-m").args(module.split(' '));
    command.env("VIRTUAL_ENV", root.join("target/venv"));
    command
}

/// The interpreter of the environment, in which the package is built, by [`DEV`] or [`RELEASE`].
pub(crate) fn with_package(root: &Path, maturin: &str) -> Result<PathBuf> {
    let python = environment(root)?;
    build(root, &python, maturin)?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::{STAMP, is_finished, is_new_enough, suitable};

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, expected) in [
            ("3.11.0", true),
            ("3.9.18", false),
            ("3.10.13", false),
            ("4.0", true),
            ("3", false),
            ("", false),
        ] {
            assert_eq!(is_new_enough(version), expected, "{version}");
        }
    }

    #[test]
    fn a_missing_interpreter_is_named() {
        let error = suitable("no-such-python".as_ref()).expect_err("there is none");
        assert!(error.to_string().contains("no-such-python"));
    }

    #[test]
    fn only_an_environment_with_the_right_stamp_is_finished() {
        let folder = env::temp_dir().join(format!("windrow-xtask-stamp-{}", process::id()));
        // A killed run with the same process id may have left it.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        assert!(!is_finished(&folder, "numpy==1"));
        fs::write(folder.join(STAMP), "numpy==1").expect("a stamp");
        assert!(is_finished(&folder, "numpy==1"));
        assert!(!is_finished(&folder, "numpy==2"));
        fs::remove_dir_all(&folder).expect("it was there");
    }
}
