//! The Python distributions as they are published: built, checked, and tested in environments that
//! have nothing else of the tree.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    cargo, process, python,
    report::{Report, Verdict},
};

/// Where everything goes.
const FOLDER: &str = "target/wheels";
/// Programs that build and check.
const TOOLS: &str = "release/requirements.txt";
/// What the tests of a wheel need, of the packages that `tests/python/requirements.txt` pins.
const NEEDED: [&str; 9] = [
    "gymnasium",
    "numpy",
    "pytest",
    "pytest-xdist",
    "ray",
    "safetensors",
    "tensordict",
    "torch",
    "torchrl",
];
/// The oldest system of Linux that wheels are for.
const SYSTEM: &str = "manylinux_2_28";
const PLATFORMS: [&str; 2] = ["x86_64", "aarch64"];
/// Wheels are for the stable interface of 3.11, so for each of these.
const PYTHONS: [&str; 4] = ["3.11", "3.12", "3.13", "3.14"];
/// Most bytes of a wheel.
const LARGEST: u64 = 6_000_000;
/// Version of `cargo-about`, which collects the licences of what is compiled in.
const ABOUT: &str = "0.9.3";
const LICENCES: &str = "LICENSES-THIRD-PARTY.txt";

/// Compresses the files of a wheel as far as its format allows.
const PACK: &str = "import pathlib, sys, zipfile, zopfli
path = pathlib.Path(sys.argv[1])
packed = path.with_suffix('.packed')
with zipfile.ZipFile(path) as old, zopfli.ZipFile(packed, 'w', iterations=15) as new:
    for file in old.infolist():
        new.writestr(file, old.read(file))
packed.replace(path)";

/// What to do beside building and checking.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// Tests of `python/tests` that each wheel has to pass where it is installed
    #[arg(long, default_value = "seeds")]
    tests: String,
    /// One platform, `x86_64` or `aarch64`
    #[arg(long, value_parser = PLATFORMS)]
    only: Option<String>,
    /// Build and check only
    #[arg(long)]
    no_tests: bool,
}

/// A wheel in one interpreter.
struct Row {
    python: String,
    platform: &'static str,
    outcome: String,
}

/// Builds, checks, installs and tests; `true` when all that could be tried here passed.
pub(crate) fn run(root: &Path, request: &Request) -> Result<bool> {
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("failed to make {FOLDER}"))?;
    let tools = python::environment_of(root, &format!("{FOLDER}/venv"), TOOLS)?;
    let mut report = Report::default();
    report.step("workflow", || workflow(root, &tools));
    report.step("licences", || licences(root));
    let mut rows = Vec::new();
    let wanted = |platform: &&str| request.only.as_deref().is_none_or(|only| only == *platform);
    for platform in PLATFORMS.into_iter().filter(wanted) {
        let target = format!("{platform}-unknown-linux-gnu");
        let mut wheel = None;
        report.step(&format!("wheel for {platform}"), || {
            if !has_standard_library(&target) {
                let why = format!("no standard library: rustup target add {target}");
                return Ok(Verdict::NotRun(why));
            }
            wheel = Some(build(root, &tools, &target)?);
            Ok(Verdict::Passed)
        });
        let Some(wheel) = wheel else {
            rows.push(row("-", platform, "not built"));
            continue;
        };
        report.step(&format!("checks of {platform}"), || {
            check(root, &tools, &wheel)
        });
        if request.no_tests || platform != env::consts::ARCH {
            rows.push(row("-", platform, "not run"));
            continue;
        }
        for version in PYTHONS {
            let name = format!("Python {version}, {platform}");
            let program = format!("python{version}");
            if python::suitable(program.as_ref()).is_err() {
                rows.push(row(version, platform, "not on this machine"));
                continue;
            }
            let mut outcome = "failed".to_owned();
            report.step(&name, || {
                let verdict = test(root, &tools, &wheel, version, &request.tests);
                if let Ok(Verdict::Tested(counts)) = &verdict {
                    outcome = counts.to_string();
                }
                verdict
            });
            rows.push(row(version, platform, &outcome));
        }
    }
    let passed = report.close();
    println!(
        "\n{:8} {:10} tests of the installed wheel",
        "Python", "platform"
    );
    for row in rows {
        println!("{:8} {:10} {}", row.python, row.platform, row.outcome);
    }
    Ok(passed)
}

fn row(python: &str, platform: &'static str, outcome: &str) -> Row {
    Row {
        python: python.to_owned(),
        platform,
        outcome: outcome.to_owned(),
    }
}

/// Reads the workflow that publishes: whether it is one, and whether it gives away what it may do.
fn workflow(root: &Path, tools: &Path) -> Result<Verdict> {
    const FILE: &str = ".github/workflows/release.yml";
    let schema = "check-jsonschema --builtin-schema vendor.github-workflows";
    done(tool(root, tools, schema).arg(FILE))?;
    let mut zizmor = tool(root, tools, "zizmor --offline --no-progress --quiet");
    Verdict::of_program(zizmor.arg(FILE), "zizmor has something to say")
}

/// Writes the licences of all crates that are compiled in, which wheels and the source distribution
/// carry.
fn licences(root: &Path) -> Result<Verdict> {
    let folder = root.join(FOLDER).join("tools");
    let program = folder.join("bin/cargo-about");
    if !process::succeeds(Command::new(&program).arg("--version")) {
        let mut install =
            cargo::command(root, "install --locked --quiet --features cli cargo-about");
        install.args(["--version", ABOUT, "--root"]).arg(&folder);
        done(&mut install)?;
    }
    let mut about = Command::new(program);
    about
        .current_dir(root)
        .args(["generate", "--fail", "--offline", "--locked"]);
    about.args(["--manifest-path", "crates/windrow-python/Cargo.toml"]);
    about.args(["--config", "release/about.toml", "release/about.hbs"]);
    about.args(["--output-file", LICENCES]);
    Verdict::of_program(
        &mut about,
        "cargo-about could not account for every licence",
    )
}

fn has_standard_library(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    let output = rustc
        .args(["--print", "target-libdir", "--target", target])
        .output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Builds the source distribution and, from what it holds, the wheel for `target`. Returns the
/// wheel, whose symbols are beside it.
fn build(root: &Path, tools: &Path, target: &str) -> Result<PathBuf> {
    let out = root.join(FOLDER).join(target);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("failed to remove {}", out.display()))?;
    }
    let mut maturin = tool(root, tools, "maturin build --sdist --zig");
    maturin
        .args(["--compatibility", SYSTEM, "--target", target, "--out"])
        .arg(&out);
    // A folder of its own: zig is another linker, for which everything would be built again and
    // again.
    maturin.env("CARGO_TARGET_DIR", root.join(FOLDER).join("build"));
    done(&mut maturin)?;
    split_symbols(root, tools, &out)?;
    file(&out, ".whl")
}

/// Moves the symbols of the wheel in `folder` into a file beside it, where debuggers and profilers
/// find them by its name.
fn split_symbols(root: &Path, tools: &Path, folder: &Path) -> Result<()> {
    let wheel = file(folder, ".whl")?;
    let parts = folder.join("parts");
    done(
        tool(root, tools, "wheel unpack --dest")
            .arg(&parts)
            .arg(&wheel),
    )?;
    let unpacked = file(&parts, "")?;
    let library = file(&unpacked.join("windrow"), ".so")?;
    let symbols = folder.join("_windrow.abi3.so.debug");
    // That of LLVM reads the files of every processor.
    let llvm = process::succeeds(Command::new("llvm-objcopy").arg("--version"));
    let objcopy = || Command::new(["objcopy", "llvm-objcopy"][usize::from(llvm)]);
    done(
        objcopy()
            .arg("--only-keep-debug")
            .arg(&library)
            .arg(&symbols),
    )?;
    let link = format!("--add-gnu-debuglink={}", symbols.display());
    done(objcopy().args(["--strip-all", &link]).arg(&library))?;
    done(
        tool(root, tools, "wheel pack --dest-dir")
            .arg(folder)
            .arg(&unpacked),
    )?;
    // `wheel` compresses in a hurry. What every installation downloads is worth half a minute.
    let mut pack = Command::new(tools);
    done(pack.args(["-c", PACK]).arg(&wheel))?;
    fs::remove_dir_all(&parts).with_context(|| format!("failed to remove {}", parts.display()))
}

/// The one file in `folder` whose name ends in `end`.
fn file(folder: &Path, end: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths = paths.filter(|path| path.to_string_lossy().ends_with(end));
    match (paths.next(), paths.next()) {
        (Some(path), None) => Ok(path),
        _ => bail!("expected one file *{end} in {}", folder.display()),
    }
}

/// Whether package indexes would take the files, and each system the wheel.
fn check(root: &Path, tools: &Path, wheel: &Path) -> Result<Verdict> {
    let folder = wheel.parent().unwrap_or(root);
    let sdist = file(folder, ".tar.gz")?;
    let size = fs::metadata(wheel)
        .context("failed to read the wheel")?
        .len();
    let unpacked = unpacked(tools, wheel)?;
    println!(
        "    {} bytes, unpacked {unpacked}: {}",
        size,
        wheel.display()
    );
    if size > LARGEST {
        let why = format!("expected at most {LARGEST} bytes, got {size}");
        return Ok(Verdict::Failed(None, why));
    }
    let mut twine = tool(root, tools, "twine check --strict");
    done(twine.arg(wheel).arg(&sdist))?;
    done(tool(root, tools, "abi3audit --strict").arg(wheel))?;
    let shown = process::run(tool(root, tools, "auditwheel show").arg(wheel), |_| false)?;
    if !shown.success || !shown.lines.iter().any(|line| line.contains(SYSTEM)) {
        let why = format!(
            "expected {SYSTEM} of auditwheel, got: {}",
            shown.lines.join(" ")
        );
        return Ok(Verdict::Failed(None, why));
    }
    Ok(Verdict::Passed)
}

/// Bytes of what a wheel holds, which has to be the licences and the list of what is compiled in,
/// too.
fn unpacked(tools: &Path, wheel: &Path) -> Result<String> {
    const ASK: &str = "import sys, zipfile
files = zipfile.ZipFile(sys.argv[1]).infolist()
names = ' '.join(file.filename for file in files)
lacks = [part for part in ('/sboms/', 'LICENSES-THIRD-PARTY', 'LICENSE-MIT', 'py.typed') if part not in names]
sys.exit(f'the wheel lacks {lacks}') if lacks else print(sum(file.file_size for file in files))";
    let mut command = Command::new(tools);
    let asked = process::run(command.args(["-c", ASK]).arg(wheel), |_| false)?;
    if !asked.success {
        bail!("{}", python::last(&asked.lines));
    }
    Ok(python::last(&asked.lines).to_owned())
}

/// Installs a wheel into a new environment of one Python and runs tests there, away from the
/// sources.
fn test(root: &Path, tools: &Path, wheel: &Path, version: &str, tests: &str) -> Result<Verdict> {
    let folder = root.join(FOLDER).join(format!("python{version}"));
    let mut venv = tool(root, tools, "uv venv --quiet --clear --python");
    done(venv.arg(format!("python{version}")).arg(&folder))?;
    let interpreter = python::interpreter(&folder);
    let mut install = tool(root, tools, "uv pip install --quiet --python");
    install
        .arg(&interpreter)
        .arg(format!("{}[torch,gymnasium]", wheel.display()));
    done(install.args(pins(root)?))?;

    let start = Instant::now();
    let mut import = Command::new(&interpreter);
    // Away from the tree, and from variables that lead there.
    import.current_dir(&folder).env_remove("PYTHONPATH");
    import.args([
        "-X",
        "importtime",
        "-c",
        "import windrow; print(windrow.__file__)",
    ]);
    let imported = process::run(&mut import, |_| false)?;
    let time = start.elapsed();
    let from = imported
        .lines
        .iter()
        .any(|line| Path::new(line).starts_with(&folder));
    if !imported.success || !from {
        bail!(
            "windrow was not imported from {}: {}",
            folder.display(),
            imported.lines.join("\n")
        );
    }
    let cost = imported
        .lines
        .iter()
        .find(|line| line.trim_end().ends_with("| windrow"));
    let cost = cost
        .and_then(|line| line.split('|').nth(1))
        .unwrap_or("?")
        .trim();
    println!(
        "    import windrow: {cost} us of {} ms that the program took",
        time.as_millis()
    );

    let mut pytest = Command::new(&interpreter);
    pytest.current_dir(root).env_remove("PYTHONPATH");
    pytest.args([
        "-m",
        "pytest",
        "--quiet",
        "--color=no",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
    ]);
    Verdict::of_runner(pytest.arg(format!("python/tests/{tests}")))
}

/// The pinned versions of what tests need.
fn pins(root: &Path) -> Result<Vec<String>> {
    let file = fs::read_to_string(root.join("tests/python/requirements.txt"));
    let file = file.context("failed to read tests/python/requirements.txt")?;
    let name = |line: &str| line.split(['=', '[']).next().unwrap_or_default().to_owned();
    let lines = file
        .lines()
        .filter(|line| NEEDED.contains(&name(line).as_str()));
    Ok(lines.map(str::to_owned).collect())
}

/// A program of the tools and its arguments.
fn tool(root: &Path, tools: &Path, line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(tools.with_file_name(words.next().unwrap_or_default()));
    command.current_dir(root).args(words);
    // They look for each other on the path.
    let folder = tools.parent().map(Path::to_path_buf);
    let path = env::var_os("PATH").unwrap_or_default();
    if let Ok(path) = env::join_paths(folder.into_iter().chain(env::split_paths(&path))) {
        command.env("PATH", path);
    }
    command
}

/// Runs a program that has to succeed.
fn done(command: &mut Command) -> Result<()> {
    let finished = process::run(command, |_| false)?;
    if !finished.success {
        bail!(
            "`{}` failed ({}): {}",
            command.get_program().display(),
            finished.status,
            python::last(&finished.lines)
        );
    }
    Ok(())
}
