//! CartPole collected by C, in a process of its own: the limit of what an engine could reach.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Frames of one request, at least: enough for the way there and back to take no share.
const FRAMES: usize = 1 << 20;

/// How the C program computes sine and cosine.
#[derive(Debug, Clone, Copy)]
pub enum Sine {
    /// By the library, angle by angle: the bits of Gymnasium.
    Libm,
    /// By series, in vectors; the last bits differ.
    Polynomial,
}

/// A running program of `limit/cartpole.c`.
pub struct Limit {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
    frames: u64,
}

impl Limit {
    /// Compiles and starts the program with `envs` environments and batches of `frames` frames.
    pub fn new((envs, frames): (usize, usize), sine: Sine) -> Self {
        let batches = FRAMES.div_ceil(frames);
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("limit-cartpole");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let compiled = Command::new(&compiler)
            .args(["-O3", "-march=native", "-fno-math-errno"])
            .args(["-fno-trapping-math", "-o"])
            .arg(&program)
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/benches/limit/cartpole.c"
            ))
            .arg("-lm")
            .status();
        assert!(
            compiled
                .as_ref()
                .is_ok_and(std::process::ExitStatus::success),
            "expected a C compiler called {compiler}, which `CC` names, to compile cartpole.c, got {compiled:?}"
        );
        let mut child = Command::new(&program)
            .args([envs, frames, batches].map(|number| number.to_string()))
            .arg(match sine {
                Sine::Libm => "libm",
                Sine::Polynomial => "polynomial",
            })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            to: child.stdin.take(),
            from: child.stdout.take().unwrap(),
            child,
            frames: (batches * frames) as u64,
        }
    }

    /// Collects some batches, and returns how many frames those are.
    pub fn collect(&mut self) -> u64 {
        self.to.as_mut().unwrap().write_all(b".").unwrap();
        self.from.read_exact(&mut [0]).unwrap();
        self.frames
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.to = None;
        let _ = self.child.wait();
    }
}
