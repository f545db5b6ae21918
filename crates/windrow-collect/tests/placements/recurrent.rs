//! Policies that remember: one state for each environment, forgotten where an episode begins.

use std::error::Error;

use tensordict::{DType, NestedKey, TensorDict};
use windrow_collect::{CollectorBuilder, MultiAsyncCollector, MultiSyncCollector, Placement};
use windrow_policy::{
    Binding, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec, Registry, Weights,
};
use windrow_slab::{Key, LeafSpec, RowsMut};

use crate::program::{placed, placements};

pub(crate) fn names(registry: &mut Registry) -> Result<(), Box<dyn Error + Send + Sync>> {
    registry.policy_with("turns", |(key, start): (String, i64), _| {
        Turns::new(key, start)
    })?;
    Ok(())
}

/// Recipe of [`Turns`].
fn turns(key: &str, start: i64) -> PolicyRecipe {
    PolicyRecipe::named_with("turns", &(key, start)).unwrap()
}

/// Pushes left and right by turns, and counts the steps of each environment's episode.
struct Turns {
    /// Name of the count.
    key: String,
    start: i64,
    steps: Vec<i64>,
}

impl Turns {
    fn new(key: String, start: i64) -> Self {
        Self {
            key,
            start,
            steps: Vec::new(),
        }
    }
}

impl Policy for Turns {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let mut columns = binding.spec.action_leaves();
        for key in [
            NestedKey::from(self.key.as_str()),
            ("next", self.key.as_str()).into(),
        ] {
            columns.push(LeafSpec::new(key, DType::I64, [1]));
        }
        Ok(PolicySpec::new(columns))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.steps.resize(input.envs.len(), 0);
        for (row, &first) in input.envs.is_first().iter().enumerate() {
            if first {
                self.steps[row] = self.start;
            }
            out.get_mut::<i64>(Key::new(0))?[row] = self.steps[row] % 2;
            out.get_mut::<i64>(Key::new(1))?[row] = self.steps[row];
            self.steps[row] += 1;
            out.get_mut::<i64>(Key::new(2))?[row] = self.steps[row];
        }
        Ok(())
    }

    fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}

fn ints(batch: &TensorDict, key: &[&str]) -> Vec<i64> {
    batch.get(key).unwrap().to_vec::<i64>().unwrap()
}

fn check(builder: CollectorBuilder, placement: Placement) {
    let collector = placed!(builder, placement)
        .policy_recipe(turns("turn", 0))
        .num_workers(2)
        .num_envs(3)
        .frames_per_batch(120)
        .max_frames_per_traj(60)
        .total_frames(600)
        .seed(1)
        .build()
        .unwrap();
    let mut episodes = 0;
    for batch in collector {
        let batch = batch.unwrap();
        let counted = ints(&batch, &["step_count"]);
        assert_eq!(ints(&batch, &["turn"]), counted);
        assert_eq!(
            ints(&batch, &["next", "turn"]),
            ints(&batch, &["next", "step_count"])
        );
        let turns: Vec<_> = counted.iter().map(|steps| steps % 2).collect();
        assert_eq!(ints(&batch, &["action"]), turns);
        episodes += counted.iter().filter(|&&steps| steps == 0).count();
    }
    assert!(episodes > 6, "nothing was forgotten");
}

#[test]
fn states_are_carried_and_forgotten_for_each_environment() {
    for placement in placements() {
        check(MultiSyncCollector::builder("CartPole-v1"), placement);
        check(MultiAsyncCollector::builder("CartPole-v1"), placement);
    }
}

#[test]
fn an_observation_becomes_a_state_when_the_policy_writes_it_too() {
    for placement in placements() {
        let mut collector = placed!(MultiSyncCollector::builder("CartPole-v1"), placement)
            .max_frames_per_traj(60)
            .policy_recipe(turns("step_count", 100))
            .frames_per_batch(40)
            .build()
            .unwrap();
        let batch = collector.next().unwrap().unwrap();
        let turns = ints(&batch, &["step_count"]);
        assert_eq!((turns[0], turns[1]), (100, 101));
        let next: Vec<_> = turns.iter().map(|turn| turn + 1).collect();
        assert_eq!(ints(&batch, &["next", "step_count"]), next);
    }
}
