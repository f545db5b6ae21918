//! A sampler that holds any other one and rejects some of the frames that it draws.

use std::collections::HashSet;

use tensordict::{Tensor, TensorDict};
use windrow_replay::{
    Draw, Frames, LazyTensorStorage, NoDraw, Priorities, PrioritizedSampler, RandomSampler,
    ReplayBuffer, ReplayError, RowOrder, RowSpan, RunKeys, SampleRng, Sampler,
    SamplerWithoutReplacement,
};

/// Draws as `inner` does, but only the `newest` frames.
#[derive(Debug, Clone)]
struct NewestSampler {
    inner: Box<dyn Sampler>,
    newest: usize,
}

impl Sampler for NewestSampler {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        self.inner.begin(capacity)
    }

    fn run_keys(&self) -> Option<&RunKeys> {
        self.inner.run_keys()
    }

    fn order(&self) -> Option<RowOrder> {
        Some(RowOrder::Ring)
    }

    fn priorities(&mut self) -> Option<&mut Priorities> {
        self.inner.priorities()
    }

    fn written(&mut self, rows: RowSpan, frames: &Frames<'_>) {
        self.inner.written(rows, frames);
    }

    fn evicted(&mut self, rows: RowSpan, frames: &Frames<'_>) {
        self.inner.evicted(rows, frames);
    }

    fn cleared(&mut self) {
        self.inner.cleared();
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        let len = frames.len();
        let places = len.saturating_sub(self.newest)..len;
        let rows: HashSet<u32> = places.map(|at| frames.row(at) as u32).collect();
        let mut all = Draw::default();
        while all.rows.len() < batch_size {
            let draw = self.inner.draw(batch_size - all.rows.len(), frames, rng)?;
            let weights = draw.weights.iter().flatten().copied();
            let kept = |row: &u32| rows.contains(row);
            let weights = draw.rows.iter().zip(weights).filter(|(row, _)| kept(row));
            if draw.weights.is_some() {
                let weights = weights.map(|(_, weight)| weight);
                all.weights.get_or_insert_default().extend(weights);
            }
            all.rows.extend(draw.rows.iter().copied().filter(kept));
            all.ends_pass |= draw.ends_pass;
        }
        Ok(all)
    }

    fn update_priority(
        &mut self,
        rows: &[i64],
        priorities: &[f32],
        frames: &Frames<'_>,
    ) -> Result<usize, ReplayError> {
        self.inner.update_priority(rows, priorities, frames)
    }

    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        self.inner.state_dict()
    }

    fn load_state_dict(
        &mut self,
        state: &TensorDict,
        frames: &Frames<'_>,
    ) -> Result<(), ReplayError> {
        self.inner.load_state_dict(state, frames)
    }
}

#[test]
fn a_sampler_can_hold_any_other_one_and_reject_what_it_draws() {
    let inner: [Box<dyn Sampler>; 3] = [
        RandomSampler::new().into(),
        SamplerWithoutReplacement::new().into(),
        PrioritizedSampler::new(0.6, 0.4).into(),
    ];
    for inner in inner {
        let name = format!("{inner:?}");
        let sampler = NewestSampler { inner, newest: 10 };
        let build = || {
            ReplayBuffer::builder()
                .storage(LazyTensorStorage::new(40))
                .sampler(sampler.clone())
                .seed(3)
                .build()
                .unwrap()
        };
        let buffer = build();
        let mut frames = TensorDict::new([65]);
        frames.set("t", Tensor::arange(0..65).unwrap()).unwrap();
        buffer.extend(&frames).unwrap();
        let sample = buffer.sample(8).unwrap();
        let times = sample.as_slice::<i64>("t").unwrap();
        assert!(times.len() == 8 && times.iter().all(|&t| t >= 55), "{name}");
        let rows = sample.as_slice::<i64>("index").unwrap();
        let updated = buffer.update_priority(rows, &[0.5; 8]);
        assert_eq!(updated.ok(), buffer.beta().map(|_| 8), "{name}");

        let other = build();
        other
            .load_state_dict(&buffer.state_dict().unwrap())
            .unwrap();
        let drawn = |buffer: &ReplayBuffer| buffer.sample(8).unwrap().get("t").unwrap().clone();
        assert_eq!(drawn(&other), drawn(&buffer), "{name}");
    }
}
