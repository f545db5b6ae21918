//! CartPole collected by C, in a process of its own: the limit of what an engine could reach.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::timing::{PAIRS, RUN, Work, report};

/// Frames of one request, at least.
const FRAMES: usize = 1 << 22;

/// Actions of the C program, which computes sines by the library, angle by angle: the bits of
/// Gymnasium.
#[derive(Clone, Copy)]
pub enum Program {
    /// Random actions.
    Random,
    /// Actions of a 4-64-64-2 network with tanh.
    Network,
}

/// Reports the ratio of the rates of `ours` and of C, a second of processor time each, with `envs`
/// environments and `frames` a batch.
pub fn ratio(
    name: &str,
    target: f64,
    ours: Work<'_>,
    (envs, frames): (usize, usize),
    program: Program,
) {
    let mut limit = Limit::new((envs, frames), program);
    let _ = (rate(ours), limit.rate());
    let pairs = (0..PAIRS).map(|_| (rate(ours), limit.rate()));
    report(name, target, pairs.collect());
}

/// Frames a second of this process's time on processors.
fn rate(work: Work<'_>) -> f64 {
    let now = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let start = now();
    let mut frames = 0;
    while now() - start < RUN {
        frames += work();
    }
    frames as f64 / (now() - start).as_secs_f64()
}

/// A running program of `limit/cartpole.c`.
struct Limit {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
    frames: u64,
}

impl Limit {
    /// Compiles and starts the program with `envs` environments and batches of `frames` frames.
    fn new((envs, frames): (usize, usize), program: Program) -> Self {
        let batches = FRAMES.div_ceil(frames);
        let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("limit-cartpole");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let compiled = Command::new(&compiler)
            .args(["-O3", "-march=native", "-fno-math-errno"])
            .args(["-fno-trapping-math", "-o"])
            .arg(&binary)
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
        let mut child = Command::new(&binary)
            .args([envs, frames, batches].map(|number| number.to_string()))
            .arg(match program {
                Program::Random => "random",
                Program::Network => "network",
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

    /// Collects some batches; returns frames a second of processor time.
    fn rate(&mut self) -> f64 {
        let mut nanoseconds = [0; 8];
        self.to.as_mut().unwrap().write_all(b".").unwrap();
        self.from.read_exact(&mut nanoseconds).unwrap();
        self.frames as f64 * 1e9 / u64::from_ne_bytes(nanoseconds) as f64
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.to = None;
        let _ = self.child.wait();
    }
}
