//! What transforms add to a frame, around eight environments with the numbers of HalfCheetah.
//!
//! Values are microseconds a frame and targets are upper limits. The environments copy numbers that
//! were drawn before, and the time of the same steps without transforms is taken off.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/mod.rs"]
mod timing;

use std::time::Instant;

use windrow::envs::{
    ClipTransform, Env, EnvError, EnvSpec, Outcome, Outcomes, Reset, RewardSum, Serial, Spec,
    Statistics, StepCounter, VecEnv, VecNorm, VecNormV2,
};
use windrow::tensordict::DType;
use windrow::{Key, Row, RowBlock, RowMut};

const ENVS: usize = 8;
const STEPS: usize = 20_000;
const NUMBERS: usize = 17;

fn main() {
    let norm = || VecNorm::new(["observation"]).with_decay(0.99999);
    let second = || VecNormV2::new(["observation"]).with_decay(0.99999);
    timing::at_most("vecnorm_stack_us", 0.3, || {
        added(|envs| stack(envs.transformed(norm()).unwrap()))
    });
    timing::at_most("vecnorm_v2_stack_us", 0.3, || {
        added(|envs| stack(envs.transformed(second()).unwrap()))
    });
    let shared = Statistics::new();
    timing::at_most("vecnorm_stack_shared_us", 0.3, || {
        added(|envs| stack(envs.transformed(norm().sharing(&shared)).unwrap()))
    });
}

/// The transforms of TorchRL's PPO around what is normalised.
fn stack(envs: impl VecEnv + 'static) -> Box<dyn VecEnv> {
    let clip = ClipTransform::new(["observation"], -10.0, 10.0);
    let clipped = envs.transformed(clip).unwrap();
    let summed = clipped.transformed(RewardSum::new()).unwrap();
    Box::new(summed.transformed(StepCounter::new()).unwrap())
}

/// Microseconds that `around` adds to each frame.
fn added(around: impl Fn(Serial<Drawn>) -> Box<dyn VecEnv>) -> f64 {
    let envs = || Serial::from_fn(ENVS, Drawn::new).unwrap();
    let (mut least, mut plain) = (f64::INFINITY, f64::INFINITY);
    let (mut transformed, mut bare) = (around(envs()), envs());
    for _ in 0..5 {
        least = least.min(seconds(transformed.as_mut()));
        plain = plain.min(seconds(&mut bare));
    }
    (least - plain) * 1e6 / (STEPS * ENVS) as f64
}

fn seconds(envs: &mut dyn VecEnv) -> f64 {
    let mut obs = RowBlock::new(&envs.spec().observation_leaves(), ENVS).unwrap();
    let actions = RowBlock::new(&envs.spec().action_leaves(), ENVS).unwrap();
    let (mut reward, mut terminated, mut truncated) = ([0.0; ENVS], [false; ENVS], [false; ENVS]);
    let resets: Vec<_> = (0..ENVS).map(|env| Reset { env, seed: None }).collect();
    envs.reset(&resets, obs.rows_mut()).unwrap();
    let start = Instant::now();
    for _ in 0..STEPS {
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
        };
        envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
    }
    start.elapsed().as_secs_f64()
}

/// Observes numbers that were drawn before, in turn.
struct Drawn {
    spec: EnvSpec,
    numbers: Vec<[f64; NUMBERS]>,
    step: usize,
}

impl Drawn {
    fn new() -> Self {
        let observation = Spec::unbounded(DType::F64, [NUMBERS]);
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64 - 0.3
        };
        let numbers = (0..64).map(|_| std::array::from_fn(|i| draw() * (1 + i) as f64));
        Self {
            spec: EnvSpec::new("Drawn", observation, Spec::unbounded(DType::F32, [6])),
            numbers: numbers.collect(),
            step: 0,
        }
    }

    fn show(&mut self, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        self.step = (self.step + 1) % self.numbers.len();
        Ok(obs.write(Key::new(0), &self.numbers[self.step])?)
    }
}

impl Env for Drawn {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.show(obs)
    }

    fn step(&mut self, _: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.show(obs)?;
        Ok(Outcome {
            reward: 1.0,
            ..Outcome::default()
        })
    }
}
