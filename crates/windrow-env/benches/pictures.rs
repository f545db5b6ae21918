//! Times each transform of the stack for games of Atari, one by one:
//! `cargo bench -p windrow-env --bench pictures`.
//!
//! Each line is `name  microseconds a frame`. `cargo xtask bench pictures` compares the stack with
//! TorchRL's.

use std::time::Instant;

use tensordict::DType;
use windrow_env::{
    AnyTransform, CatFrames, Env, EnvError, EnvSpec, GrayScale, Keys, Outcome, Outcomes, Reset,
    Resize, Serial, Spec, TimeMaxPool, ToTensorImage, VecEnv,
};
use windrow_slab::{Row, RowBlock, RowMut};

const FRAMES: usize = 20;
const RUNS: usize = 100;

/// Goes on showing its first frame, of zeros.
struct Still(EnvSpec);

impl Env for Still {
    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, _: Option<u64>, _: RowMut<'_>) -> Result<(), EnvError> {
        Ok(())
    }

    fn step(&mut self, _: Row<'_>, _: RowMut<'_>) -> Result<Outcome, EnvError> {
        Ok(Outcome::default())
    }
}

fn seconds(transforms: &[AnyTransform], dtype: DType, shape: &[usize]) -> Result<f64, EnvError> {
    let observation = Spec::composite([("pixels", Spec::unbounded(dtype, shape))]);
    let still = Still(EnvSpec::new("Still", observation, Spec::discrete(2)));
    let mut envs: Box<dyn VecEnv> = Box::new(Serial::new(vec![still])?);
    for transform in transforms {
        envs = transform.around(envs)?;
    }
    let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 1)?;
    let actions = RowBlock::new(&envs.spec().action_leaves(), 1)?;
    let reset = [Reset { env: 0, seed: None }];
    envs.reset(&reset, obs.rows_mut())
        .map_err(EnvError::failed)?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        for _ in 0..FRAMES {
            let outcomes = Outcomes {
                reward: &mut [0.0],
                terminated: &mut [false],
                truncated: &mut [false],
            };
            envs.step(actions.rows(), obs.rows_mut(), outcomes)
                .map_err(EnvError::failed)?;
        }
        best = best.min(start.elapsed().as_secs_f64() / FRAMES as f64);
    }
    Ok(best)
}

fn main() -> Result<(), EnvError> {
    let keys = || Keys::of(["pixels"]);
    let pool: AnyTransform = TimeMaxPool::new(2, keys()).into();
    let tensor: AnyTransform = ToTensorImage::default().into();
    let grey: AnyTransform = GrayScale::new(keys()).into();
    let resize: AnyTransform = Resize::new(84, 84, keys()).into();
    let frames: AnyTransform = CatFrames::new(4, -3, keys()).into();
    let (rgb, channels, one, small) =
        (&[210, 160, 3], &[3, 210, 160], &[1, 210, 160], &[1, 84, 84]);
    for (name, transform, dtype, shape) in [
        ("max pool", &pool, DType::U8, rgb),
        ("to tensor", &tensor, DType::U8, rgb),
        ("grey", &grey, DType::F32, channels),
        ("resize", &resize, DType::F32, one),
        ("stack", &frames, DType::F32, small),
    ] {
        println!(
            "{name}  {:.1} µs",
            1e6 * seconds(std::slice::from_ref(transform), dtype, shape)?
        );
    }
    let all = [pool, tensor, grey, resize, frames];
    println!("all  {:.1} µs", 1e6 * seconds(&all, DType::U8, rgb)?);
    Ok(())
}
