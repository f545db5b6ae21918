//! Collectors of environments and policies that the program has registered. A program installs one
//! registry: so there is one test.

use tensordict::DType;
use windrow_collect::{BuildError, Collector, CollectorBuilder, Placement};
use windrow_env::testing::CountingEnv;
use windrow_env::{EnvError, EnvRecipe, StepCounter};
use windrow_policy::{PolicyError, PolicyRecipe, Registry, policy_fn};
use windrow_slab::{Key, LeafSpec};

const WORKERS: usize = 2;

fn placed(builder: CollectorBuilder, placement: Placement, policy: &str) -> CollectorBuilder {
    builder
        .placement(placement)
        .num_workers(WORKERS)
        .policy_recipe(PolicyRecipe::named(policy))
        .frames_per_batch(8)
}

#[test]
fn names_that_the_program_registers_work_in_every_placement() {
    let placements = [Placement::Inline, Placement::Threads];
    for placement in placements {
        let unknown = placed(Collector::builder("Count-v0"), placement, "ones").build();
        assert!(matches!(
            unknown.err(),
            Some(BuildError::Env {
                source: EnvError::UnknownId { .. },
                ..
            })
        ));
    }

    let mut registry = Registry::builtin();
    registry
        .env("Count-v0", || CountingEnv::new(100, 0))
        .unwrap();
    registry
        .policy("ones", |worker| {
            let columns = [
                LeafSpec::new("action", DType::I8, [1]),
                LeafSpec::new("worker", DType::I64, []),
            ];
            policy_fn(columns, move |_, mut out| {
                out.get_mut::<i8>(Key::new(0))?.fill(1);
                out.get_mut::<i64>(Key::new(1))?.fill(worker as i64);
                Ok(())
            })
        })
        .unwrap();
    let installed = registry.clone();
    installed.install().unwrap();
    assert!(matches!(registry.install(), Err(EnvError::Installed)));

    for placement in placements {
        let recipe = EnvRecipe::of("Count-v0").with_transform(StepCounter::new());
        for builder in [Collector::builder("Count-v0"), Collector::builder(recipe)] {
            let mut collector = placed(builder, placement, "ones").build().unwrap();
            let batch = collector.next().unwrap().unwrap();
            let steps = 8 / WORKERS as i32;
            let counts: Vec<_> = (0..WORKERS).flat_map(|_| 0..steps).collect();
            assert_eq!(batch.as_slice::<i32>("observation").unwrap(), counts);
            let workers = batch.as_slice::<i64>("worker").unwrap();
            assert_eq!(workers, [0, 0, 0, 0, 1, 1, 1, 1]);
        }
        let near = placed(Collector::builder("Count-v0"), placement, "one").build();
        assert!(matches!(
            near.err(),
            Some(BuildError::Policy { source: PolicyError::UnknownPolicy { near, .. }, .. }) if near == ["ones"]
        ));
    }
    assert_eq!(Registry::installed().policies.names().len(), 1);
}
