//! Parts and weights on their way between processes.

use std::hint::black_box;
use std::time::Instant;

use windrow::nn::Sequential;
use windrow::{
    Collector, Head, MultiAsyncCollector, MultiSyncCollector, NetworkPolicy, Placement, Tensor,
    TensorDict,
};

use crate::{net, timing};

/// A batch of one frame of each worker, asked for as soon as the one before has come; microseconds,
/// the median of some.
pub fn handover() {
    const BATCHES: usize = 3000;
    if !timing::is_chosen("handover") {
        return;
    }
    let one_step = |workers: usize, placement| {
        MultiSyncCollector::builder("CartPole-v1")
            .num_workers(workers)
            .frames_per_batch(workers)
            .placement(placement)
            .build()
            .unwrap()
    };
    let batch_us = |collector: &mut Collector| {
        let mut times: Vec<f64> = (0..BATCHES)
            .map(|_| {
                let start = Instant::now();
                drop(collector.next().unwrap().unwrap());
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[BATCHES / 2]
    };
    for (workers, limit) in [(2, 20.0), (8, 45.0)] {
        let mut threads = one_step(workers, Placement::Threads);
        let mut processes = one_step(workers, Placement::Processes);
        let pairs: Vec<(f64, f64)> = (0..9)
            .map(|_| (batch_us(&mut processes), batch_us(&mut threads)))
            .collect();
        let mut all = pairs.iter().map(|(processes, _)| *processes);
        timing::at_most(&format!("handover_{workers}_us"), limit, || {
            all.next().unwrap_or_default()
        });
        if workers == 2 {
            let mut all = pairs.iter().map(|(processes, threads)| processes / threads);
            timing::at_most("handover_2_over_threads", 1.3, || {
                all.next().unwrap_or_default()
            });
        }
        let threads = pairs.iter().map(|(_, threads)| *threads);
        eprintln!(
            "    {workers} workers in threads: from {:.1} us",
            threads.fold(f64::INFINITY, f64::min)
        );
    }
}

/// Two workers in processes over two in threads, CartPole with the 4-64-64-2 network.
pub fn cartpole() {
    if !timing::is_chosen("cartpole") {
        return;
    }
    let build = |placement| {
        MultiAsyncCollector::builder("CartPole-v1")
            .num_workers(2)
            .num_envs(64)
            .policy(NetworkPolicy::new(net::network(), Head::Categorical))
            .frames_per_batch(8192)
            .placement(placement)
            .build()
            .unwrap()
    };
    let mut processes = build(Placement::Processes);
    let mut threads = build(Placement::Threads);
    let pairs = (0..timing::PAIRS).map(|_| (alone(&mut processes), alone(&mut threads)));
    timing::report("cartpole", 0.95, pairs.collect());
}

/// Frames a second of a collector that runs ahead, whose workers then rest while another one is
/// timed.
fn alone(collector: &mut Collector) -> f64 {
    // What was collected while the other side was timed does not count.
    for _ in 0..4 {
        drop(collector.next());
    }
    let rate = timing::rate(&mut || black_box(collector.next().unwrap().unwrap()).numel() as u64);
    // Its workers go on until they have filled what they may in advance.
    drop(collector.pause().unwrap());
    rate
}

/// A publish of the 4-64-64-2 network's 4610 parameters to two processes.
pub fn publish_small() {
    const TIMES: u32 = 2000;
    if !timing::is_chosen("publish_5k_us") {
        return;
    }
    let mut collector = with_network(net::network());
    let weights = collector.policy_weights();
    timing::at_most("publish_5k_us", 10.0, || {
        let start = Instant::now();
        for _ in 0..TIMES {
            black_box(collector.update_policy_weights(&weights).unwrap());
        }
        (start.elapsed() / TIMES).as_secs_f64() * 1e6
    });
}

/// A publish of 25 million parameters to two processes over a plain copy of as many numbers.
pub fn publish_large() {
    const WIDTH: usize = 5000;
    if !timing::is_chosen("publish_25m_over_copy") {
        return;
    }
    let network = Sequential::new()
        .linear(4, WIDTH)
        .tanh()
        .linear(WIDTH, WIDTH)
        .tanh()
        .linear(WIDTH, 2);
    let mut collector = with_network(network);
    let weights = collector.policy_weights();
    let plain = values(&weights);
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    // Both sides write to memory that they have written to before.
    let mut copy = plain.clone();
    for _ in 0..3 {
        collector.update_policy_weights(&weights).unwrap();
    }
    timing::at_most("publish_25m_over_copy", 1.3, || {
        let published = time(&mut || {
            black_box(collector.update_policy_weights(&weights).unwrap());
        });
        let copied = time(&mut || {
            for (to, from) in copy.iter_mut().zip(&plain) {
                to.copy_from_slice(from);
            }
            black_box(&mut copy);
        });
        published / copied
    });
}

fn values(weights: &TensorDict) -> Vec<Vec<f32>> {
    let leaves = weights.leaves();
    leaves
        .map(|(_, tensor): (_, &Tensor)| tensor.to_vec::<f32>().unwrap())
        .collect()
}

fn with_network(network: Sequential) -> Collector {
    MultiSyncCollector::builder("CartPole-v1")
        .num_workers(2)
        .policy(NetworkPolicy::new(network, Head::Categorical))
        .frames_per_batch(2)
        .placement(Placement::Processes)
        .build()
        .unwrap()
}
