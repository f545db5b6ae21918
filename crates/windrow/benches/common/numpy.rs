//! NumPy in a process of its own, which waits while the other side is timed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::timing;

const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/python/numpy_replay.py"
);

pub struct NumPy {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl NumPy {
    /// Starts it; `None` when no interpreter is named.
    pub fn start() -> Option<Self> {
        let python = std::env::var_os("WINDROW_PYTHON")?;
        let mut child = Command::new(python)
            .arg(SCRIPT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Some(Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        })
    }

    /// Frames a second of one run.
    pub fn rate(&mut self) -> f64 {
        writeln!(self.input, "{}", timing::RUN.as_secs_f64()).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for NumPy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
