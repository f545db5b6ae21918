//! This program, started again to do something that may end it.

use std::env;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::{descriptors, memory, parents};

/// The variable that says what to do.
const ROLE: &str = "WINDROW_KILLS_ROLE";
/// The variable by which all processes are known that descend from one in a role.
const MARK: &str = "WINDROW_KILLS_MARK";

/// A process that does not end for so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long what it has started may live on. Far more than it takes.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// What this process is to do, if it was started for that.
pub(crate) fn own() -> Option<String> {
    env::var(ROLE).ok()
}

/// Does it.
pub(crate) fn play(role: &str) {
    match role.split_once(' ') {
        _ if role == descriptors::ROLE => descriptors::be(),
        Some((parents::ROLE, cell)) => parents::be(cell),
        Some(_) if role.starts_with(memory::ROLE) => memory::be(role),
        _ => panic!("no role is called {role:?}"),
    }
}

/// A process in a role, with a folder of its own to leave nothing in.
pub(crate) struct Actor {
    pub(crate) process: Child,
    mark: String,
    folder: PathBuf,
}

impl Actor {
    /// Starts this program in `role`, after the commands `limits` of a shell.
    pub(crate) fn start(role: &str, limits: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // The point at its end keeps it from being the beginning of another.
        let name = format!("windrow-kills-{}-{count}.", std::process::id());
        let folder = env::temp_dir().join(&name);
        fs::create_dir(&folder).unwrap();
        let process = Command::new("sh")
            .args(["-c", &format!("{limits} exec \"$0\"")])
            // This very file, also where another has taken its path since.
            .arg(format!("/proc/{}/exe", std::process::id()))
            .env(ROLE, role)
            .env(MARK, &name)
            .env("TMPDIR", &folder)
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mark = format!("{MARK}={name}");
        Self {
            process,
            mark,
            folder,
        }
    }

    /// The processes that live of it and of those that it has started.
    pub(crate) fn family(&self) -> Vec<u32> {
        let pids = marked(&self.mark);
        pids.filter(|&pid| !is_gone(pid)).collect()
    }

    /// One of its workers, if there is any. A process that has just begun still has its parent's
    /// variables and has run nothing of its own, so it is none yet: the system would not let it end
    /// with its parent if somebody stopped it there.
    pub(crate) fn worker(&self) -> Option<u32> {
        let family = self.family();
        marked("WINDROW_WORKER=").find(|pid| family.contains(pid))
    }

    /// Waits for it, which may not take long; what it has printed, or how it has failed.
    pub(crate) fn finish(mut self) -> Result<String, String> {
        let [said, complained] = self.outputs().map(|output| {
            thread::spawn(move || {
                let mut text = Vec::new();
                output.take(1 << 20).read_to_end(&mut text).unwrap();
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                break Some(status);
            }
            if begun.elapsed() > PATIENCE {
                self.process.kill().unwrap();
                self.process.wait().unwrap();
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        let [said, complained] = [said, complained].map(|reader| reader.join().unwrap());
        match status {
            None => Err(format!("it hung; it had said {said:?} and {complained:?}")),
            Some(status) if !status.success() => Err(format!("{status}: {complained}")),
            Some(_) => self.left().map_or(Ok(said), Err),
        }
    }

    fn outputs(&mut self) -> [Box<dyn Read + Send>; 2] {
        let (out, err) = (self.process.stdout.take(), self.process.stderr.take());
        [Box::new(out.unwrap()), Box::new(err.unwrap())]
    }

    /// What it has left behind, if anything: processes that do not end and files.
    pub(crate) fn left(&self) -> Option<String> {
        let begun = Instant::now();
        let processes = loop {
            let left = self.family();
            if left.is_empty() || begun.elapsed() > GRACE {
                break left;
            }
            thread::sleep(Duration::from_millis(1));
        };
        let files = files_below(&self.folder);
        let nothing = processes.is_empty() && files.is_empty();
        (!nothing).then(|| format!("it has left processes {processes:?} and files {files:?}"))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Where it is alive still, something else has failed before.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The processes that have a variable which begins like this.
fn marked(start: &str) -> impl Iterator<Item = u32> {
    let folders = fs::read_dir("/proc").unwrap().flatten();
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    pids.filter(move |pid| {
        // Of a process that has ended, this is empty.
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = variables.split(|&byte| byte == 0);
        variables.any(|variable| variable.starts_with(start.as_bytes()))
    })
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Whether a process has ended, be it that nobody has waited for it yet.
pub(crate) fn is_gone(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    let state = stat.rsplit_once(") ").map(|(_, behind)| behind);
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}
