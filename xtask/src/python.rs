//! The Python environment of the tests: made once under `target/venv`, made again when its recipe changes.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::process::{self, Show};

/// Oldest Python the packages of the recipe still support.
const OLDEST: (u32, u32) = (3, 11);

/// Tried in this order when `PYTHON` is not set.
const CANDIDATES: [&str; 7] = [
    "python3",
    "python3.15",
    "python3.14",
    "python3.13",
    "python3.12",
    "python3.11",
    "python",
];

/// Environment variable through which tests learn where the interpreter is.
pub(crate) const VARIABLE: &str = "WINDROW_PYTHON";

/// Interpreter of the environment, which is made first when it is missing, unfinished or of another recipe.
///
/// # Errors
/// When there is no suitable Python, or its packages cannot be installed.
pub(crate) fn environment(root: &Path) -> Result<PathBuf> {
    let recipe = root.join("tests/python/requirements.txt");
    let wanted = fs::read_to_string(&recipe)
        .with_context(|| format!("failed to read {}", recipe.display()))?;
    let folder = root.join("target/venv");
    fs::create_dir_all(root.join("target")).context("failed to make the folder target")?;
    let lock =
        File::create(root.join("target/venv.lock")).context("failed to make target/venv.lock")?;
    lock.lock().context("failed to lock target/venv.lock")?;

    let interpreter = interpreter_in(&folder);
    if is_finished(&folder, &wanted)
        && process::succeeds(Command::new(&interpreter).args(["-c", ""]))
    {
        return Ok(interpreter);
    }
    if folder.exists() {
        eprintln!("target/venv is unfinished or was made from another recipe: making it again");
        fs::remove_dir_all(&folder)
            .with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    let (python, version) = find()?;
    eprintln!(
        "making target/venv with Python {version}; the packages are large, this can take minutes"
    );
    make(&python, &folder, &interpreter, &recipe)?;
    // Written last: an environment without its stamp was never finished.
    fs::write(stamp_in(&folder), stamp(&wanted))
        .context("failed to write the stamp of target/venv")?;
    Ok(interpreter)
}

fn make(python: &Path, folder: &Path, interpreter: &Path, recipe: &Path) -> Result<()> {
    let made = process::run(
        Command::new(python).args(["-m", "venv"]).arg(folder),
        Show::Only(|_| false),
    )?;
    if !made.success {
        bail!(
            "`{} -m venv` failed ({}): {}; some systems keep this module in a package of its own, such as python3-venv",
            python.display(),
            made.status,
            last(&made.lines)
        );
    }
    let mut pip = Command::new(interpreter);
    pip.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "--quiet",
        "-r",
    ])
    .arg(recipe);
    let installed = process::run(&mut pip, Show::Only(|line| line.starts_with("Collecting")))?;
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

/// A Python that is new enough, with its version: `$PYTHON`, otherwise the first suitable one on the path.
fn find() -> Result<(PathBuf, String)> {
    if let Some(chosen) = env::var_os("PYTHON").filter(|chosen| !chosen.is_empty()) {
        let expected = || {
            format!(
                "expected Python {}.{} or newer in PYTHON",
                OLDEST.0, OLDEST.1
            )
        };
        return suitable(&chosen).with_context(expected);
    }
    let mut refusals = Vec::new();
    for candidate in CANDIDATES {
        match suitable(&OsString::from(candidate)) {
            Ok(found) => return Ok(found),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    bail!(
        "expected Python {}.{} or newer on the path or in PYTHON; {}",
        OLDEST.0,
        OLDEST.1,
        refusals.join("; ")
    )
}

fn suitable(program: &OsString) -> Result<(PathBuf, String)> {
    let shown = program.display();
    let ask = "import sys; print('.'.join(map(str, sys.version_info[:3])))";
    let output = Command::new(program)
        .args(["-c", ask])
        .output()
        .with_context(|| format!("no {shown}"))?;
    if !output.status.success() {
        bail!("{shown} does not run ({})", output.status);
    }
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if is_new_enough(&version) {
        Ok((PathBuf::from(program), version))
    } else {
        bail!("{shown} is Python {version}")
    }
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST)
}

fn is_finished(folder: &Path, recipe: &str) -> bool {
    fs::read_to_string(stamp_in(folder)).is_ok_and(|found| found == stamp(recipe))
}

fn stamp_in(folder: &Path) -> PathBuf {
    folder.join("windrow-stamp")
}

/// Changes whenever the recipe does (FNV-1a, 64 bits).
fn stamp(recipe: &str) -> String {
    let hash = recipe
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}\n")
}

fn interpreter_in(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) {
        "Scripts/python.exe"
    } else {
        "bin/python"
    })
}

fn last(lines: &[String]) -> &str {
    lines
        .iter()
        .rev()
        .map(|line| line.trim())
        .find(|line| !line.is_empty())
        .unwrap_or("it printed nothing")
}

#[cfg(test)]
mod tests {
    use std::{env, ffi::OsString, fs, process};

    use super::{is_finished, is_new_enough, stamp, stamp_in, suitable};

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
        let error = suitable(&OsString::from("no-such-python")).expect_err("there is none");
        assert!(error.to_string().contains("no-such-python"));
    }

    #[test]
    fn only_an_environment_with_the_right_stamp_is_finished() {
        let folder = env::temp_dir().join(format!("windrow-xtask-stamp-{}", process::id()));
        // A killed run with the same process id may have left it.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        assert!(!is_finished(&folder, "numpy==1"));
        fs::write(stamp_in(&folder), stamp("numpy==1")).expect("a stamp");
        assert!(is_finished(&folder, "numpy==1"));
        assert!(!is_finished(&folder, "numpy==2"));
        fs::remove_dir_all(&folder).expect("it was there");
    }
}
