//! Every class of collector on worker processes, one of which is killed in the middle: what comes
//! of it with each `OnLoss`.
//!
//! `cargo run --release --example processes`

use std::error::Error;

use windrow::OnLoss;

/// What a user may want of a collector that loses a worker.
const WISHES: [(OnLoss, &str); 3] = [
    (
        OnLoss::Raise,
        "OnLoss::Raise: the error is delivered, and the collector ends.",
    ),
    (
        OnLoss::Restart { budget: 1 },
        "OnLoss::Restart { budget: 1 }: another process takes the place of the one that died.",
    ),
    (
        OnLoss::Continue,
        "OnLoss::Continue: the others go on without it.",
    ),
];

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // First of all: each worker process runs this program again, and is taken over here.
    windrow::worker_main(|_registry| Ok(()))?;
    for (on_loss, wish) in WISHES {
        println!("{wish}");
        for (name, builder) in killed::classes() {
            killed::run(name, builder.on_loss(on_loss))?;
        }
        println!();
    }
    println!("No worker process is left, and this program ends as if nothing had happened.");
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<(), Box<dyn Error>> {
    let wishes = WISHES.map(|(_, wish)| wish).join("\n");
    println!("Workers run in processes on Linux only. There, this program shows:\n{wishes}");
    Ok(())
}

/// Collectors whose first worker is killed.
#[cfg(target_os = "linux")]
mod killed {
    use std::error::Error;

    use rustix::process::{Pid, Signal, kill_process};
    use windrow::{
        AsyncCollector, Collector, CollectorBuilder, MultiAsyncCollector, MultiSyncCollector,
        NextError, Placement,
    };

    const ENV: &str = "CartPole-v1";
    const FRAMES_PER_BATCH: usize = 512;
    /// Batches before the kill, and after the loss was noticed.
    const BATCHES: u64 = 10;

    /// The four classes: two with a single worker, two with three of them.
    pub(crate) fn classes() -> [(&'static str, CollectorBuilder); 4] {
        [
            ("Collector", Collector::builder(ENV)),
            ("AsyncCollector", AsyncCollector::builder(ENV)),
            (
                "MultiSyncCollector",
                MultiSyncCollector::builder(ENV).num_workers(3),
            ),
            (
                "MultiAsyncCollector",
                MultiAsyncCollector::builder(ENV).num_workers(3),
            ),
        ]
    }

    /// Collects some batches, kills worker 0, and tells what follows.
    pub(crate) fn run(
        name: &str,
        builder: CollectorBuilder,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut collector = builder
            .placement(Placement::Processes)
            .frames_per_batch(FRAMES_PER_BATCH)
            .seed(0)
            .build()?;
        for batch in collector.by_ref().take(BATCHES as usize) {
            batch?;
        }
        let pid = kill_first(&collector)?;
        println!("  {name}: killed process {pid}, worker 0, after {BATCHES} batches");
        let mut left = None;
        while left != Some(0) {
            match collector.next() {
                Some(Ok(_)) => {}
                Some(Err(NextError::Worker(error))) => println!("    raised: {error}"),
                Some(Err(other)) => return Err(other.into()),
                None => break,
            }
            left = left.map(|left: u64| left - 1);
            for loss in collector.take_losses() {
                println!("    lost, and went on: {loss}");
                left = Some(BATCHES);
            }
        }
        tell_workers(&collector);
        collector.shutdown()?;
        Ok(())
    }

    fn kill_first(collector: &Collector) -> Result<u32, Box<dyn Error + Send + Sync>> {
        let workers = collector.worker_stats();
        let pid = workers.first().and_then(|worker| worker.pid);
        let pid = pid.ok_or("worker 0 has no process")?;
        let id = Pid::from_raw(pid.cast_signed()).ok_or("a process without a number")?;
        kill_process(id, Signal::KILL)?;
        Ok(pid)
    }

    /// Where the workers are after all that.
    fn tell_workers(collector: &Collector) {
        let stats = collector.stats();
        println!(
            "    after {} batches and {} frames, {} of {} workers collect:",
            stats.batches, stats.frames, stats.workers_alive, stats.workers
        );
        for worker in collector.worker_stats() {
            let place = match worker.pid {
                Some(pid) if worker.restarts > 0 => format!("in process {pid}, a new one"),
                Some(pid) => format!("in process {pid}"),
                None => "whose process has ended".to_owned(),
            };
            println!(
                "      worker {}, {place}, has filled {} parts",
                worker.worker, worker.parts
            );
        }
    }
}
