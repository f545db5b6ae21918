//! Environments and transforms that have loaded a state go on as those that have saved it.

use tensordict::for_dtype;
use windrow_slab::{Key, LeafSpec, RowBlock};

use crate::gym::ids;
use crate::testing::{Ending, LedgerEnv};
use crate::{
    ActionDiscretizer, AnyTransform, CatFrames, EnvError, EnvFactory, EnvRecipe,
    FrameSkipTransform, InitTracker, Keys, LimitFlag, NoopResetEnv, NumpyRng, OneHotActions,
    Outcomes, Reset, RewardScaling, RewardSum, Sampling, Serial, StateVisitor, Statistics,
    StepCounter, TargetReturn, Taxi, TimeMaxPool, Transformed, VecEnv, VecNorm, VecNormV2,
};

/// Environments and all that a step of them shows.
struct Player {
    envs: Box<dyn VecEnv>,
    obs: RowBlock,
    actions: RowBlock,
    leaves: Vec<LeafSpec>,
}

impl Player {
    fn new(envs: Box<dyn VecEnv>) -> Self {
        let num_envs = envs.num_envs();
        let leaves = envs.spec().observation_leaves();
        Self {
            obs: RowBlock::new(&leaves, num_envs).unwrap(),
            actions: RowBlock::new(&envs.spec().action_leaves(), num_envs).unwrap(),
            leaves,
            envs,
        }
    }

    fn reset(&mut self, which: impl Iterator<Item = usize>, seed: Option<u64>) {
        let resets: Vec<_> = which
            .map(|env| Reset {
                env,
                seed: seed.map(|seed| seed + env as u64),
            })
            .collect();
        self.envs.reset(&resets, self.obs.rows_mut()).unwrap();
    }

    /// Steps with actions of `rng`, resets what has ended, and returns all that is seen.
    fn step(&mut self, rng: &mut NumpyRng) -> String {
        let num_envs = self.envs.num_envs();
        for env in 0..num_envs {
            let mut rows = self.actions.rows_mut();
            let mut row = rows.env_mut(env).unwrap();
            let action = &self.envs.spec().action;
            action.sample(&mut row, || rng.random()).unwrap();
        }
        let mut reward = vec![0.0; num_envs];
        let (mut terminated, mut truncated) = (vec![false; num_envs], vec![false; num_envs]);
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
        };
        self.envs
            .step(self.actions.rows(), self.obs.rows_mut(), outcomes)
            .unwrap();
        let mut seen = format!("{reward:?} {terminated:?} {truncated:?}");
        self.see(&mut seen);
        let ended = (0..num_envs).filter(|&env| terminated[env] || truncated[env]);
        let ended: Vec<usize> = ended.collect();
        if !ended.is_empty() {
            self.reset(ended.into_iter(), None);
            self.see(&mut seen);
        }
        seen
    }

    fn see(&self, seen: &mut String) {
        for (index, leaf) in self.leaves.iter().enumerate() {
            for_dtype!(leaf.dtype, T => {
                *seen += &format!(" {:?}", self.obs.rows().get(Key::<T>::new(index)).unwrap());
            });
        }
    }

    fn saved(&mut self) -> Vec<u8> {
        let mut state = StateVisitor::saving();
        self.envs.visit_state(&mut state).unwrap();
        state.finish().unwrap()
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), EnvError> {
        let mut state = StateVisitor::loading(bytes);
        self.envs.visit_state(&mut state)?;
        state.finish().map(drop)
    }
}

/// Checks that environments that `make` makes go on from states of each other, saved before the
/// first reset and within episodes.
fn assert_goes_on(name: &str, make: impl Fn() -> Box<dyn VecEnv>) {
    let mut original = Player::new(make());
    let unused = original.saved();
    Player::new(make()).load(&unused).unwrap();
    let mut rng = NumpyRng::new(5);
    original.reset(0..original.envs.num_envs(), Some(40));
    for steps in [1, 37, 250] {
        for _ in 0..steps {
            original.step(&mut rng);
        }
        let bytes = original.saved();
        let mut other = Player::new(make());
        other.load(&bytes).unwrap();
        assert_eq!(other.saved(), bytes, "{name}");
        let mut same = rng.clone();
        for step in 0..300 {
            let (a, b) = (original.step(&mut rng), other.step(&mut same));
            assert_eq!(a, b, "{name}, {steps} steps before, then step {step}");
        }
    }
}

fn recipe(id: &str, transforms: impl IntoIterator<Item = AnyTransform>) -> EnvRecipe {
    transforms
        .into_iter()
        .fold(EnvRecipe::of(id), EnvRecipe::with_transform)
}

fn seen() -> Keys {
    Keys::of(["observation"])
}

#[test]
fn all_native_environments_go_on_from_their_states() {
    for id in ids() {
        assert_goes_on(id, || id.build(3).unwrap());
    }
    let fickle = Taxi {
        is_rainy: true,
        fickle_passenger: true,
        info: vec!["action_mask".to_owned()],
        ..Taxi::default()
    };
    let fickle = EnvRecipe::of("Taxi-v4").with_arguments(&fickle).unwrap();
    assert_goes_on("a fickle passenger", || fickle.build(3).unwrap());
}

#[test]
fn transforms_go_on_from_their_states() {
    let stacks: Vec<(&str, Vec<AnyTransform>)> = vec![
        (
            "CartPole-v1",
            vec![
                StepCounter::new().with_max_steps(30).into(),
                RewardSum::new().into(),
                InitTracker::new().into(),
            ],
        ),
        (
            "CartPole-v1",
            vec![
                LimitFlag::new("late", 7).into(),
                TargetReturn::new(50.0).into(),
                OneHotActions::new().into(),
            ],
        ),
        (
            "Pendulum-v1",
            vec![
                VecNorm::new(["observation"]).into(),
                CatFrames::new(3, -1, seen()).into(),
                RewardScaling::new(0.5, 2.0).into(),
            ],
        ),
        (
            "Pendulum-v1",
            vec![
                VecNormV2::new(["observation", "reward"]).into(),
                TimeMaxPool::new(4, seen()).into(),
            ],
        ),
        (
            "Acrobot-v1",
            vec![
                FrameSkipTransform::new(3).into(),
                NoopResetEnv::new(9).into(),
                StepCounter::new().with_max_steps(25).into(),
            ],
        ),
        (
            "MountainCarContinuous-v0",
            vec![
                ActionDiscretizer {
                    sampling: Sampling::Random,
                    ..ActionDiscretizer::new([5])
                }
                .into(),
            ],
        ),
    ];
    for (id, transforms) in stacks {
        let names: Vec<_> = transforms.iter().map(AnyTransform::name).collect();
        let recipe = recipe(id, transforms);
        assert_goes_on(&names.join(", "), || recipe.build(2).unwrap());
    }
}

#[test]
fn statistics_that_environments_share_go_back_to_what_was_saved() {
    let shared = Statistics::new();
    let norm = VecNorm::new(["observation"]).sharing(&shared);
    let mut player = Player::new(recipe("Pendulum-v1", [norm.into()]).build(2).unwrap());
    player.reset(0..2, Some(1));
    let mut rng = NumpyRng::new(5);
    player.step(&mut rng);
    let (bytes, then) = (player.saved(), shared.read());
    player.step(&mut rng);
    assert_ne!(shared.read(), then);
    player.load(&bytes).unwrap();
    assert_eq!(shared.read(), then);
}

#[test]
fn a_state_of_something_else_is_an_error_that_names_both() {
    let saved = |recipe: EnvRecipe, num_envs| {
        let mut player = Player::new(recipe.build(num_envs).unwrap());
        player.saved()
    };
    let counted = || recipe("CartPole-v1", [StepCounter::new().into()]);
    let mut player = Player::new(counted().build(2).unwrap());
    let others = [
        (
            saved(recipe("Acrobot-v1", []), 2),
            "got the state of 2 x Acrobot-v1",
        ),
        (saved(counted(), 3), "got the state of 3 x CartPole-v1"),
        (
            saved(recipe("CartPole-v1", [RewardSum::new().into()]), 2),
            "expected the state of StepCounter, got the state of RewardSum",
        ),
        (
            saved(recipe("CartPole-v1", []), 2),
            "expected a value of String",
        ),
        (
            saved(counted().with_transform(RewardSum::new()), 2),
            "expected the end of the state",
        ),
    ];
    for (bytes, expected) in others {
        let error = player.load(&bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_transform_that_says_nothing_of_its_state_cannot_be_saved() {
    #[derive(Debug)]
    struct Silent;
    impl crate::Transform for Silent {
        type Bound = Self;
        fn attach(&self, _: &mut crate::Attach<'_>) -> Result<Self, EnvError> {
            Ok(Self)
        }
    }
    impl crate::BoundTransform for Silent {
        fn reset(
            &mut self,
            _: &[Reset],
            _: crate::Observations<'_>,
        ) -> Result<(), crate::VecEnvError> {
            Ok(())
        }
        fn step(
            &mut self,
            _: crate::Observations<'_>,
            _: Outcomes<'_>,
        ) -> Result<(), crate::VecEnvError> {
            Ok(())
        }
    }
    let envs = Serial::from_fn(2, crate::CartPole::v1).unwrap();
    let mut envs = Transformed::new(envs, &Silent).unwrap();
    let error = envs.visit_state(&mut StateVisitor::saving()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the state of Silent cannot be saved: implement visit_state for it"
    );
}

#[test]
fn ledgers_go_on() {
    assert_goes_on("ledger", || {
        let env = LedgerEnv::from_seed().with_ending(Ending::Mixed);
        Box::new(Serial::new(vec![env.clone(), env]).unwrap())
    });
}
