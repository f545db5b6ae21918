use super::{Draw, Frames, NoDraw, Sampler};
use crate::{SampleRng, Shortage};

/// Draws every frame with the same probability, with replacement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RandomSampler;

impl RandomSampler {
    /// The sampler, which has no arguments.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Sampler for RandomSampler {
    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        let len = frames.len();
        if len == 0 {
            return Err(Shortage::Empty.into());
        }
        let rows = (0..batch_size).map(|_| frames.row(rng.below(len)) as u32);
        Ok(Draw::of(rows.collect()))
    }
}
