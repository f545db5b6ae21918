//! Collects Pendulum-v1 with random actions and prints the batches.

use windrow::Collector;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut collector = Collector::builder("Pendulum-v1")
        .frames_per_batch(200)
        .total_frames(1000)
        .build()?;
    for batch in &mut collector {
        println!("{}", batch?);
    }
    Ok(())
}
