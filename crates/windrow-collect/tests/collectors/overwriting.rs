//! Policies that write what the environment observes too.

use tensordict::{DType, NestedKey, TensorDict};
use windrow_collect::{BuildError, Collector};
use windrow_env::Pendulum;
use windrow_policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights};
use windrow_slab::{Key, LeafSpec, RowsMut};

/// Does nothing, and writes the observation ten times as large under `key`.
struct Tenfold(LeafSpec);

impl Tenfold {
    fn new(key: impl Into<NestedKey>, shape: usize) -> Self {
        Self(LeafSpec::new(key, DType::F32, [shape]))
    }
}

impl Policy for Tenfold {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let mut columns = binding.spec.action_leaves();
        columns.push(self.0.clone());
        Ok(PolicySpec::new(columns))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        out.zero(0)?;
        let observed = input.obs.get::<f32>(Key::new(0))?;
        for (to, from) in out.get_mut::<f32>(Key::new(1))?.iter_mut().zip(observed) {
            *to = from * 10.0;
        }
        Ok(())
    }

    fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}

fn floats(batch: &TensorDict, key: &[&str]) -> Vec<f32> {
    batch.get(key).unwrap().to_vec::<f32>().unwrap()
}

fn refusal(policy: fn() -> Tenfold) -> String {
    let built = Collector::builder(Pendulum::v1)
        .policy_factory(move |_| policy())
        .frames_per_batch(4)
        .build();
    match built {
        Err(error @ BuildError::PolicyWrites { .. }) => error.to_string(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn the_policys_observation_is_delivered_at_the_root_and_the_environments_in_random_steps() {
    let mut collector = Collector::builder(Pendulum::v1)
        .policy_factory(|_| Tenfold::new("observation", 3))
        .num_envs(2)
        .frames_per_batch(20)
        .init_random_frames(20)
        .seed(1)
        .build()
        .unwrap();
    for factor in [1.0, 10.0] {
        let batch = collector.next().unwrap().unwrap();
        let root = floats(&batch, &["observation"]);
        let next = floats(&batch, &["next", "observation"]);
        for env in 0..2 {
            let own = env * 30..(env + 1) * 30;
            let followed: Vec<_> = next[own.clone()].iter().map(|x| x * factor).collect();
            assert_eq!(root[own][3..], followed[..27]);
        }
    }
}

#[test]
fn what_is_taken_is_refused() {
    assert_eq!(
        refusal(|| Tenfold::new("observation", 2)),
        "the policy writes \"observation\" float32 [2], where frames of Pendulum-v1 have \"observation\" float32 [3]: let it \
         write that under another name"
    );
    assert_eq!(
        refusal(|| Tenfold::new(("next", "reward"), 3)),
        "the policy writes (\"next\", \"reward\") float32 [3], where frames of Pendulum-v1 have (\"next\", \"reward\"): let it \
         write that under another name"
    );
    assert_eq!(
        refusal(|| Tenfold::new(("collector", "mask"), 3)),
        "the policy writes (\"collector\", \"mask\") float32 [3], where frames of Pendulum-v1 have (\"collector\", \"mask\") in \
         batches with padding: let it write that under another name"
    );
}
