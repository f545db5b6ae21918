//! Time of one forward pass beside a plain hand-written one: `cargo bench -p windrow-policy`.
//!
//! Both are timed in turns in one run; each figure is the median of several, in microseconds a
//! call.

use std::hint::black_box;
use std::time::Instant;

use tensordict::DType;
use windrow_env::{EnvSpec, Spec};
use windrow_policy::nn::{Graph, Layer, Sequential};
use windrow_policy::{
    Binding, EnvRows, ExplorationType, Head, NetworkPolicy, Noise, Policy, PolicyIn, RandomPolicy,
};
use windrow_slab::RowBlock;

/// The same network as three nested loops, outputs innermost so that the compiler can vectorise
/// them for the baseline instruction set.
struct Plain {
    /// `[inputs, outputs]` and `[outputs]` of each layer.
    layers: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Plain {
    fn new(net: &Sequential) -> Self {
        let layers = net.layers().iter().filter_map(|layer| {
            let Layer::Linear(linear) = layer else {
                return None;
            };
            let (inputs, outputs) = (linear.inputs(), linear.outputs());
            let transposed = (0..inputs * outputs)
                .map(|i| linear.weight()[i % outputs * inputs + i / outputs])
                .collect();
            Some((transposed, linear.bias()?.to_vec()))
        });
        Self {
            layers: layers.collect(),
        }
    }

    fn forward(&self, input: &[f32], rows: usize, out: &mut [f32]) {
        let width = input.len() / rows;
        let outs = out.chunks_exact_mut(out.len() / rows);
        for (x, out) in input.chunks_exact(width).zip(outs) {
            let mut x = x.to_vec();
            for (number, (weight, bias)) in self.layers.iter().enumerate() {
                let mut y = bias.clone();
                for (&x, row) in x.iter().zip(weight.chunks_exact(bias.len())) {
                    for (y, &w) in y.iter_mut().zip(row) {
                        *y += x * w;
                    }
                }
                if number + 1 < self.layers.len() {
                    y.iter_mut().for_each(|y| *y = y.tanh());
                }
                x = y;
            }
            out.copy_from_slice(&x);
        }
    }
}

fn time(calls: usize, mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        f();
    }
    start.elapsed().as_secs_f64() * 1e6 / calls as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(name: &str, mut net: Sequential, inputs: usize, outputs: usize) -> Outcome {
    let plain = Plain::new(&net);
    for rows in [1, 2, 4, 8, 16, 64, 256] {
        let mut noise = Noise::new(1, 0, 0);
        let input: Vec<f32> = (0..rows * inputs).map(|_| noise.f32() - 0.5).collect();
        let (mut out, mut other) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs]);
        // Fails here, once, if sizes do not fit.
        net.forward(&input, &mut out)?;
        let [native, simple] = alternate(
            || {
                let _ = net.forward(black_box(&input), &mut out);
                black_box(&mut out);
            },
            || {
                plain.forward(black_box(&input), rows, &mut other);
                black_box(&mut other);
            },
        );
        let ratio = simple / native;
        println!(
            "{name:<14} rows {rows:>3}: {native:>9.3} us, plain {simple:>9.3} us, {ratio:>5.1}x"
        );
    }
    Ok(())
}

/// The network as a graph beside itself: the ratio of their times, at least 0.95.
fn measure_graph(name: &str, net: &Sequential, inputs: usize, outputs: usize) -> Outcome {
    for rows in [1, 8, 64] {
        let (mut net, (mut graph, value)) = (net.clone(), Graph::of(net));
        let input = vec![0.1; rows * inputs];
        let (mut out, mut own) = (vec![0.0; rows * outputs], [vec![0.0; rows * outputs]]);
        graph.forward(&[&input], &[value], &mut own)?;
        net.forward(&input, &mut out)?;
        assert_eq!(own[0], out);
        let [chain, whole] = alternate(
            || {
                let _ = net.forward(black_box(&input), &mut out);
                black_box(&mut out);
            },
            || {
                let _ = graph.forward(&[black_box(&input)], &[value], &mut own);
                black_box(&mut own);
            },
        );
        let ratio = chain / whole;
        println!(
            "{name:<14} rows {rows:>3}: {chain:>9.3} us, graph {whole:>9.3} us, {ratio:>5.2}x"
        );
    }
    Ok(())
}

/// A whole policy on CartPole's specs beside the network alone.
fn measure_policy(name: &str, make: impl Fn() -> Box<dyn Policy>, net: &Sequential) -> Outcome {
    let env = EnvSpec::new(
        "CartPole-v1",
        Spec::unbounded(DType::F32, [4]),
        Spec::discrete(2),
    );
    for rows in [1, 8, 64] {
        let (mut policy, mut net) = (make(), net.clone());
        let spec = policy.bind(&Binding::new(&env, rows))?;
        let obs = RowBlock::new(&env.observation_leaves(), rows)?;
        let mut actions = RowBlock::new(&spec.columns, rows)?;
        let mut envs = EnvRows::new(1, (0..rows as u32).collect());
        let mut out = vec![0.0; rows * 2];
        let zeros = vec![0.0; rows * 4];
        let [act, forward] = alternate(
            || {
                envs.advance();
                let input = PolicyIn::new(obs.rows(), black_box(&envs), ExplorationType::Random);
                let _ = policy.act(&input, actions.rows_mut());
                black_box(&mut actions);
            },
            || {
                let _ = net.forward(black_box(&zeros), &mut out);
                black_box(&mut out);
            },
        );
        println!("{name:<14} rows {rows:>3}: {act:>9.4} us, network alone {forward:>9.3} us");
    }
    Ok(())
}

/// Medians of many repeats each, in turns and so short that few are interrupted, in microseconds a
/// call.
fn alternate(mut a: impl FnMut(), mut b: impl FnMut()) -> [f64; 2] {
    let calls = |f: &mut dyn FnMut()| (100.0 / time(3, f)).ceil() as usize;
    let (calls_a, calls_b) = (calls(&mut a), calls(&mut b));
    let (mut times_a, mut times_b) = (Vec::new(), Vec::new());
    for _ in 0..201 {
        times_a.push(time(calls_a, &mut a));
        times_b.push(time(calls_b, &mut b));
    }
    [median(times_a), median(times_b)]
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let tanh = |sizes: [usize; 4]| {
        let [a, b, c, d] = sizes;
        let net = Sequential::new().linear(a, b).tanh();
        net.linear(b, c).tanh().linear(c, d)
    };
    let small = tanh([4, 64, 64, 2]);
    measure("4-64-64-2", small.clone(), 4, 2)?;
    measure("17-256-256-6", tanh([17, 256, 256, 6]), 17, 6)?;
    measure_graph("4-64-64-2", &small, 4, 2)?;
    measure_graph("17-256-256-6", &tanh([17, 256, 256, 6]), 17, 6)?;
    measure_policy("random policy", || Box::new(RandomPolicy::new()), &small)?;
    let categorical = || NetworkPolicy::new(small.clone(), Head::Categorical);
    measure_policy("categorical", || Box::new(categorical()), &small)
}
