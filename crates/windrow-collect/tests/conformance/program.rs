//! This test program, run again to be a worker: it knows the names that `names` of the test target
//! gives.
#![allow(dead_code, reason = "each test target uses some of it")]

use std::sync::LazyLock;

use windrow_collect::Placement;
#[cfg(target_os = "linux")]
use windrow_collect::WorkerProgram;

/// The placements of workers in threads and in processes, as far as this platform has them. Each is
/// printed: the last of them is the one that a test failed at.
pub(crate) fn elsewhere() -> impl Iterator<Item = Placement> {
    let placements = [
        Placement::Threads,
        #[cfg(target_os = "linux")]
        Placement::Processes,
    ];
    placements
        .into_iter()
        .inspect(|placement| println!("{placement:?}"))
}

/// All placements.
pub(crate) fn placements() -> impl Iterator<Item = Placement> {
    [Placement::Inline].into_iter().chain(elsewhere())
}

/// The builder of a collector or an evaluator, over environments and a policy that have names.
macro_rules! placed {
    ($builder:expr, $placement:expr) => {{
        let builder = $builder.placement($placement);
        $crate::program::know_names();
        #[cfg(target_os = "linux")]
        let builder = builder.worker_program($crate::program::program());
        builder
    }};
}
pub(crate) use placed;

/// Makes the names known here.
pub(crate) fn know_names() {
    LazyLock::force(&KNOWN);
}

/// This program, run again to be a worker.
#[cfg(target_os = "linux")]
pub(crate) fn program() -> WorkerProgram {
    let (_, module) = module_path!().split_once("::").unwrap();
    let entry = format!("{module}::worker_entry");
    let mut program = WorkerProgram::current();
    program.args = ["--exact", &entry, "--nocapture"].map(Into::into).to_vec();
    program
}

static KNOWN: LazyLock<()> = LazyLock::new(|| {
    #[cfg(target_os = "linux")]
    windrow_collect::worker_main(crate::names).unwrap();
    #[cfg(not(target_os = "linux"))]
    {
        let mut registry = windrow_policy::Registry::builtin();
        crate::names(&mut registry).unwrap();
        registry.install().unwrap();
    }
});

/// Not a test: what the worker processes of the others run.
#[test]
fn worker_entry() {
    know_names();
}
