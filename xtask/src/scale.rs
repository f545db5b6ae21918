//! What Ray would bring on 1 to 1000 machines, on paper: a simulation whose costs were measured on one machine.

mod cluster;

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    package::{self, Profile},
    process::{self, Show},
    python,
};
use cluster::{Costs, Job, Outcome, simulate};

/// The program that measures the costs, and prints lines `name: number` that this reads.
const PROGRAM: &str = "python/benches/hops.py";

/// How far a prediction may be from the measurement, as a factor.
const TOLERANCE: f64 = 1.5;

/// Gibit a second, in bytes.
const GIGABIT: f64 = 1e9 / 8.0;

/// Which cluster to simulate.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Measures this machine's costs, and compares predictions for two actors on it with what they bring
    #[arg(long)]
    check: bool,
    /// Measured costs: the output of `python/benches/hops.py`, instead of running it
    #[arg(long)]
    measured: Option<std::path::PathBuf>,
    /// Cores of each machine
    #[arg(long, default_value_t = 16)]
    cores: usize,
    /// Frames of a worker's share of a batch
    #[arg(long, default_value_t = 1000.0)]
    frames: f64,
    /// Parameters of the policy, of four bytes
    #[arg(long, default_value_t = 1e6)]
    parameters: f64,
    /// Seconds between two versions of weights
    #[arg(long, default_value_t = 1.0)]
    every: f64,
    /// Gbit/s of each machine's network, each way
    #[arg(long, default_value_t = 10.0)]
    network: f64,
}

/// Measured on two virtual cores, beside other work, in November 2026 by [`PROGRAM`].
const MEASURED: Costs = Costs {
    actor_call: 0.29e-3,
    learner_call: 0.84e-3,
    learner_process: 1.27e-3,
    weights_call: 0.27e-3,
    copy: 8.9e9,
    network: 10.0 * GIGABIT,
};

/// What is collected: a name, bytes of a frame, seconds of a core for one. CartPole's were measured, the others are assumed.
const KINDS: [(&str, f64, f64); 3] = [
    ("native CartPole", 59.3, 1.5e-6),
    ("HalfCheetah", 330.0, 60e-6),
    ("Atari, 4 x 84 x 84", 56_480.0, 400e-6),
];

const MACHINES: [usize; 4] = [1, 10, 100, 1000];

/// Prints the table, or compares a prediction with a measurement; `false` if they differ.
///
/// # Errors
/// When the costs cannot be measured or read.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    if options.check || options.measured.is_some() {
        return check(&measured(root, options.measured.as_deref())?);
    }
    let costs = Costs {
        network: options.network * GIGABIT,
        ..MEASURED
    };
    println!(
        "{} cores a machine, {} Gbit/s, {} frames a worker and batch, {} parameters every {} s; one learner\n",
        options.cores, options.network, options.frames, options.parameters, options.every
    );
    println!(
        "{:<20}{:<22}{:>9}{:>14}{:>9}{:>13}   saturated",
        "", "an actor has", "machines", "frames/s", "share", "weights"
    );
    for (name, frame_bytes, frame_time) in KINDS {
        for (shape, workers) in [("one core", 1), ("a machine's cores", options.cores)] {
            for machines in MACHINES {
                let job = Job {
                    machines,
                    cores: options.cores,
                    actors: options.cores / workers,
                    workers,
                    frames_per_batch: options.frames * workers as f64,
                    frame_bytes,
                    frame_time,
                    weight_bytes: 4.0 * options.parameters,
                    weights_every: options.every,
                };
                line(name, shape, &job, &simulate(&costs, &job));
            }
        }
    }
    Ok(true)
}

fn line(name: &str, shape: &str, job: &Job, outcome: &Outcome) {
    println!(
        "{name:<20}{shape:<22}{:>9}{:>14.0}{:>8.0}%{:>10.0} ms   {}",
        job.machines,
        outcome.rate,
        100.0 * outcome.rate / outcome.ideal,
        1e3 * outcome.fan_out,
        outcome.saturated()
    );
}

impl Outcome {
    /// The station that holds the others up.
    fn saturated(&self) -> String {
        let most = self
            .busy
            .iter()
            .max_by(|one, other| one.1.total_cmp(&other.1));
        let Some((name, share)) = most else {
            return String::new();
        };
        let weights = match name.starts_with("thread") && self.publishing > 0.1 {
            true => format!(", {:.0} % for weights", 100.0 * self.publishing),
            false => String::new(),
        };
        format!("{name} ({:.0} %{weights})", 100.0 * share)
    }
}

/// What two actors collect on one machine, and the costs of that, as `python/benches/hops.py` prints them.
#[derive(Debug)]
struct Measured {
    costs: Costs,
    job: Job,
    /// Frames a second.
    rate: f64,
}

/// The environments that [`PROGRAM`] steps: a slow one and a quick one.
const STEPPED: [&str; 2] = ["gymnasium", "native"];

fn measured(root: &Path, file: Option<&Path>) -> Result<String> {
    if let Some(file) = file {
        return fs::read_to_string(file)
            .with_context(|| format!("failed to read {}", file.display()));
    }
    let python = python::environment(root)?;
    package::build(root, &python, Profile::Release)?;
    let mut command = Command::new(&python);
    let finished = process::run(command.current_dir(root).arg(PROGRAM), Show::All)?;
    if !finished.success {
        bail!("{PROGRAM} failed ({})", finished.status);
    }
    Ok(finished.lines.join("\n"))
}

impl Measured {
    /// Reads lines `name: number` about the environment called `env`; others are left out.
    fn read(text: &str, env: &str) -> Result<Self> {
        let value = |name: &str| {
            let found = text.lines().find_map(|line| {
                let (known, rest) = line.trim().split_once(": ")?;
                let number = rest.split_whitespace().next()?.parse::<f64>().ok()?;
                (known == name).then_some(number)
            });
            found
                .with_context(|| format!("expected a line `{name}: number` of {PROGRAM}, got none"))
        };
        let own = |name: &str| value(&format!("{env}_{name}"));
        Ok(Self {
            costs: Costs {
                actor_call: value("actor_call_us")? / 1e6,
                learner_call: own("learner_call_us")? / 1e6,
                learner_process: own("learner_process_us")? / 1e6,
                weights_call: value("weights_call_us")? / 1e6,
                copy: value("copy_gb_s")? * 1e9,
                network: f64::INFINITY,
            },
            job: Job {
                machines: 1,
                cores: value("cores")? as usize,
                actors: 2,
                workers: 1,
                frames_per_batch: value("frames_per_batch")?,
                frame_bytes: value("frame_bytes")?,
                frame_time: own("frame_us")? / 1e6,
                weight_bytes: 0.0,
                weights_every: f64::MAX,
            },
            rate: own("two_actors_frames_s")?,
        })
    }
}

/// Compares predictions for two actors with their measured rates.
fn check(text: &str) -> Result<bool> {
    let mut all = true;
    for env in STEPPED {
        let measured = Measured::read(text, env)?;
        let predicted = simulate(&measured.costs, &measured.job).rate;
        let ratio = predicted / measured.rate;
        let is_near = (1.0 / TOLERANCE..=TOLERANCE).contains(&ratio);
        println!(
            "two actors, {env} CartPole: predicted {predicted:.0} frames/s, measured {:.0}",
            measured.rate
        );
        println!(
            "predicted over measured, {env}  {ratio:.2}  {:.2} to {TOLERANCE:.2}  {}",
            1.0 / TOLERANCE,
            if is_near { "ok" } else { "short" }
        );
        all &= is_near;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{Costs, Job, check, simulate};

    const COSTS: Costs = Costs {
        actor_call: 0.0,
        learner_call: 1e-3,
        learner_process: 1e-3,
        weights_call: 1e-3,
        copy: 1e12,
        network: 1e9,
    };

    fn job(machines: usize) -> Job {
        Job {
            machines,
            cores: 2,
            actors: 2,
            workers: 1,
            frames_per_batch: 1000.0,
            frame_bytes: 100.0,
            frame_time: 1e-4,
            weight_bytes: 1e6,
            weights_every: 1e9,
        }
    }

    /// Whether two numbers differ by a twentieth at most.
    fn is_near(one: f64, other: f64) -> bool {
        (one / other - 1.0).abs() < 0.05
    }

    #[test]
    fn few_machines_bring_all_that_their_cores_can() {
        // A batch of 0.1 s on each of 20 cores.
        let outcome = simulate(&COSTS, &job(10));
        assert!(is_near(outcome.ideal, 200_000.0), "{outcome:?}");
        assert!(is_near(outcome.rate, outcome.ideal), "{outcome:?}");
        assert!(outcome.saturated().starts_with("cores"), "{outcome:?}");
        assert!(is_near(outcome.fan_out, 4.0 * 1e-3 + 20.0 * 1e-3));
    }

    #[test]
    fn the_thread_of_the_learner_saturates() {
        // 1000 batches a second, of 2000 that come.
        let outcome = simulate(&COSTS, &job(100));
        assert!(is_near(outcome.rate, 1e6), "{outcome:?}");
        assert!(outcome.saturated().starts_with("thread"), "{outcome:?}");
    }

    #[test]
    fn the_network_of_the_learner_saturates() {
        let costs = Costs {
            network: 1e7,
            ..COSTS
        };
        // 100 kB a batch: 100 batches a second, of 200.
        let outcome = simulate(&costs, &job(10));
        assert!(is_near(outcome.rate, 1e5), "{outcome:?}");
        assert!(
            outcome.saturated().starts_with("network of the learner"),
            "{outcome:?}"
        );
    }

    #[test]
    fn weights_take_the_time_of_the_learner() {
        let often = Job {
            weights_every: 0.25,
            ..job(100)
        };
        // 200 calls of 1 ms each quarter of a second leave a fifth of it.
        let outcome = simulate(&COSTS, &often);
        assert!(is_near(outcome.rate, 2e5), "{outcome:?}");
    }

    #[test]
    fn a_learner_on_the_only_machine_uses_its_cores() {
        let costs = Costs {
            learner_call: 0.1,
            learner_process: 0.1,
            ..COSTS
        };
        // 0.2 s of a core for each batch, of two cores.
        let outcome = simulate(&costs, &job(1));
        assert!(is_near(outcome.rate, 10_000.0), "{outcome:?}");
    }

    #[test]
    fn predictions_are_compared_with_measurements() {
        let lines = |rate: u32| {
            let each = ["gymnasium", "native"].map(|env| {
                format!(
                    "{env}_frame_us: 100 of a core\n{env}_learner_call_us: 300\n{env}_learner_process_us: 500\n\
                     {env}_two_actors_frames_s: {rate}\n"
                )
            });
            format!(
                "a warning\ncores: 2\nframes_per_batch: 1000\nframe_bytes: 60\nactor_call_us: 300\nweights_call_us: 100\n\
                 copy_gb_s: 2\n{}",
                each.concat()
            )
        };
        assert!(check(&lines(19_000)).expect("a comparison"));
        assert!(!check(&lines(10_000)).expect("a comparison"));
        let error = check("cores: 2").expect_err("lines are missing");
        assert!(error.to_string().contains("actor_call_us"), "{error}");
    }
}
