//! What all transforms have in common.

use tensordict::DType;
use windrow_slab::{LeafSpec, Rows, RowsMut};

use super::vec_driver::VecDriver;
use super::{
    AnyTransform, CatFrames, CatTensors, ClipTransform, DTypeCastTransform, DoubleToFloat,
    FiniteCheck, FlattenObservation, FrameSkipTransform, InitTracker, Keys, LimitFlag,
    NoopResetEnv, ObservationNorm, OneHotActions, PermuteTransform, Primer, RenameTransform,
    RewardClipping, RewardScaling, RewardSum, SelectTransform, SignTransform, SqueezeTransform,
    StepCounter, TargetReturn, TimeMaxPool, UnsqueezeTransform, VecNorm, VecNormV2,
};
use crate::testing::{FailAt, FailingEnv, Failure, LedgerEnv, check_vec_env};
use crate::{
    CartPole, EnvError, EnvSpec, Joined, Outcomes, Reset, Serial, SpecError, TimeLimit, VecEnv,
    VecEnvError,
};

/// Transforms with the names that they append.
fn transforms() -> [(AnyTransform, &'static str); 4] {
    [
        (StepCounter::new().with_max_steps(4).into(), "step_count"),
        (RewardSum::new().into(), "episode_reward"),
        (InitTracker::new().into(), "is_init"),
        (FiniteCheck {}.into(), ""),
    ]
}

/// All orders of the four.
fn orders() -> Vec<[usize; 4]> {
    let all = 0..256;
    let orders = all.map(|i| [i & 3, (i >> 2) & 3, (i >> 4) & 3, i >> 6]);
    orders
        .filter(|order| (0..4).all(|wrap| order.contains(&wrap)))
        .collect()
}

fn stacked(envs: Box<dyn VecEnv>, order: [usize; 4]) -> Box<dyn VecEnv> {
    let all = transforms();
    let chosen = order.iter().map(|&i| &all[i].0);
    chosen.fold(envs, |envs, transform| transform.around(envs).unwrap())
}

fn cart_poles() -> Box<dyn VecEnv> {
    Box::new(Serial::from_fn(2, CartPole::v1).unwrap())
}

#[test]
fn every_order_observes_the_same() {
    assert_eq!(orders().len(), 24);
    for order in orders() {
        let mut envs = VecDriver::new(stacked(cart_poles(), order));
        let leaves = envs.envs.spec().observation_leaves();
        let names: Vec<_> = leaves.iter().map(|leaf| leaf.key.last()).collect();
        let appended = order.map(|i| transforms()[i].1);
        let appended = appended.into_iter().filter(|name| !name.is_empty());
        let expected: Vec<_> = std::iter::once("observation").chain(appended).collect();
        assert_eq!(names, expected);

        let check = |envs: &VecDriver<_>, steps: [i64; 2]| {
            assert_eq!(envs.seen::<i64>("step_count"), steps);
            assert_eq!(
                envs.seen::<f32>("episode_reward"),
                steps.map(|steps| steps as f32)
            );
            assert_eq!(envs.seen::<bool>("is_init"), steps.map(|steps| steps == 0));
        };
        envs.reset_seeded(&[0, 1], 7).unwrap();
        check(&envs, [0, 0]);
        envs.step(1i64).unwrap();
        check(&envs, [1, 1]);
        envs.reset(&[0]).unwrap();
        check(&envs, [0, 1]);
        for (steps, truncated) in [([1, 2], false), ([2, 3], false), ([3, 4], true)] {
            envs.step(0i64).unwrap();
            assert_eq!(envs.seen::<i64>("step_count"), steps);
            assert_eq!(envs.seen::<f32>("episode_reward"), steps.map(|n| n as f32));
            assert_eq!(envs.truncated, [false, truncated]);
        }
    }
}

#[test]
fn every_order_passes_the_check_of_environments() {
    for order in orders() {
        let report = check_vec_env(stacked(cart_poles(), order).as_mut(), 3).unwrap();
        assert!(report.truncated > 0, "{order:?}");
    }
}

#[test]
fn every_order_finds_what_is_not_finite() {
    for order in orders() {
        let mut index = 0;
        let envs = Serial::from_fn(2, || {
            index += 1;
            let ledger = LedgerEnv::new(0).with_f64();
            FailingEnv::new(ledger, FailAt::Reset(index), Failure::Nan)
        });
        let mut envs = VecDriver::new(stacked(Box::new(envs.unwrap()), order));
        envs.reset(&[1]).unwrap();
        assert_eq!(
            envs.reset(&[1, 0]).unwrap_err().to_string(),
            "environment 1: element 0 of observation \"observation\" is NaN, expected a finite number"
        );
    }
}

#[test]
fn no_name_is_appended_twice_however_far_apart() {
    for order in orders() {
        let named = transforms()
            .into_iter()
            .filter(|(_, name)| !name.is_empty());
        for (transform, name) in named {
            let Err(error) = transform.around(stacked(cart_poles(), order)) else {
                panic!("{name} was appended twice");
            };
            let EnvError::Spec(error) = error else {
                panic!("not about a name: {error}");
            };
            let taken = SpecError::NameTaken {
                env: "CartPole-v1".to_owned(),
                key: name.into(),
            };
            assert_eq!(*error, taken);
        }
    }
}

#[test]
fn each_of_a_kind_has_a_name_of_its_own() {
    let short = StepCounter::new().named("short").with_max_steps(2);
    let both = cart_poles().transformed(short).unwrap();
    let both = both.transformed(StepCounter::new()).unwrap();
    let sums = both.transformed(RewardSum::new().named(("stats", "sum")));
    let begun = sums.unwrap().transformed(InitTracker::new().named("begun"));
    let mut envs = VecDriver::new(begun.unwrap());
    envs.reset(&[0, 1]).unwrap();
    envs.step(0i64).unwrap();
    envs.step(0i64).unwrap();
    for name in ["short", "step_count"] {
        assert_eq!(envs.seen::<i64>(name), [2; 2]);
    }
    assert_eq!(envs.seen_at::<f32>(3), [2.0; 2]);
    assert_eq!(envs.seen::<bool>("begun"), [false; 2]);
    assert_eq!(envs.truncated, [true; 2]);
}

#[test]
fn transforms_come_off_again() {
    let plain = CartPole::v1();
    let envs = Serial::from_fn(2, || plain.clone()).unwrap();
    let counted = envs.transformed(StepCounter::new()).unwrap();
    let summed = counted.transformed(RewardSum::new()).unwrap();
    let tracked = summed.transformed(InitTracker::new()).unwrap();
    let all = tracked.transformed(FiniteCheck {}).unwrap();
    let inner = all.into_inner().into_inner().into_inner().into_inner();
    assert_eq!(inner.spec(), Serial::new(vec![plain]).unwrap().spec());
}

/// Says by an error what it was told that the policy writes.
struct Told(Serial<TimeLimit<CartPole>>);

impl VecEnv for Told {
    fn spec(&self) -> &EnvSpec {
        self.0.spec()
    }

    fn num_envs(&self) -> usize {
        self.0.num_envs()
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        let names: Vec<_> = columns
            .iter()
            .map(|leaf| format!("{:?}", leaf.key))
            .collect();
        Err(EnvError::failed(names.join(" ")))
    }

    fn reset(&mut self, resets: &[Reset], obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.0.reset(resets, obs)
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.0.step(actions, obs, outcomes)
    }

    fn panicked_at(&self) -> Option<usize> {
        Some(0)
    }
}

/// One of each transform that fits a cart pole, around an environment that says what it was told.
fn each_around_told() -> Vec<(&'static str, Box<dyn VecEnv>)> {
    let same = || Keys::of(["observation"]);
    let transforms = [
        ClipTransform::new(["observation"], -1.0, 1.0).into(),
        DTypeCastTransform::new(DType::F32, DType::F64).into(),
        CatFrames::new(2, -1, same()).into(),
        CatTensors::new(["observation"]).into(),
        DoubleToFloat::new().into(),
        FiniteCheck {}.into(),
        FlattenObservation::new(-1, -1, same()).into(),
        FrameSkipTransform::new(2).into(),
        InitTracker::new().into(),
        LimitFlag::new("late", 9).into(),
        NoopResetEnv::new(3).into(),
        ObservationNorm::new("observation", &[0.0], &[1.0]).into(),
        OneHotActions::new().into(),
        PermuteTransform::new([-1], same()).into(),
        Primer::new("hidden", [2], 0.0).into(),
        RewardClipping::new(-1.0, 1.0).into(),
        RewardScaling::new(0.0, 2.0).into(),
        RewardSum::new().into(),
        SignTransform::of(["reward"]).into(),
        StepCounter::new().into(),
        TargetReturn::new(9.0).into(),
        VecNorm::default().into(),
        VecNormV2::new(["observation"]).into(),
        RenameTransform::new(Keys::pairs([("observation", "seen")])).into(),
        SelectTransform::new(["observation"]).into(),
        SqueezeTransform::new(-1, same()).into(),
        TimeMaxPool::new(2, same()).into(),
        UnsqueezeTransform::new(-1, same()).into(),
    ];
    let around = |transform: AnyTransform| {
        let told = Told(Serial::new(vec![CartPole::v1()]).unwrap());
        let envs = transform.around(Box::new(told)).unwrap();
        (transform.name(), envs)
    };
    transforms.into_iter().map(around).collect()
}

#[test]
fn the_environment_that_panicked_is_known_outside_of_every_transform() {
    for (name, envs) in each_around_told() {
        assert_eq!(envs.panicked_at(), Some(0), "{name}");
    }
    let told = Told(Serial::new(vec![CartPole::v1()]).unwrap());
    let joined = Joined::new(vec![cart_poles(), Box::new(told)]).unwrap();
    assert_eq!(joined.panicked_at(), Some(2));
}

#[test]
fn columns_of_the_policy_reach_the_innermost_environments() {
    let columns = ["action", "goal"].map(|name| LeafSpec::new(name, DType::F32, []));
    let told = Told(Serial::new(vec![CartPole::v1()]).unwrap());
    let joined: Box<dyn VecEnv> = Box::new(Joined::new(vec![Box::new(told)]).unwrap());
    let all = each_around_told().into_iter().chain([("Joined", joined)]);
    for (name, mut envs) in all {
        let error = envs.bind(&columns).unwrap_err().to_string();
        assert!(error.contains(r#""action" "goal""#), "{name}: {error}");
    }
}
