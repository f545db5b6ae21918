//! States of native environments that were damaged on their way, as by a disk.
#![allow(missing_docs, clippy::unwrap_used)]

use windrow_env::{EnvError, Outcomes, Reset, StateVisitor, VecEnv, make_vec};
use windrow_slab::RowBlock;

const IDS: [&str; 9] = [
    "Acrobot-v1",
    "Blackjack-v1",
    "CartPole-v1",
    "CliffWalking-v1",
    "FrozenLake-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Taxi-v4",
];

/// An environment with the rows of its steps, whose actions are zeros.
struct Stepped {
    env: Box<dyn VecEnv>,
    actions: RowBlock,
    obs: RowBlock,
}

impl Stepped {
    fn new(id: &str) -> Self {
        let env = make_vec(id, 1).unwrap();
        let actions = RowBlock::new(&env.spec().action_leaves(), 1).unwrap();
        let obs = RowBlock::new(&env.spec().observation_leaves(), 1).unwrap();
        Self { env, actions, obs }
    }

    fn reset(&mut self, seed: Option<u64>) {
        let reset = [Reset { env: 0, seed }];
        self.env.reset(&reset, self.obs.rows_mut()).unwrap();
    }

    fn step(&mut self) {
        let outcomes = Outcomes {
            reward: &mut [0.0],
            terminated: &mut [false],
            truncated: &mut [false],
        };
        let (actions, obs) = (self.actions.rows(), self.obs.rows_mut());
        self.env.step(actions, obs, outcomes).unwrap();
    }

    fn saved(&mut self) -> Vec<u8> {
        let mut saving = StateVisitor::saving();
        self.env.visit_state(&mut saving).unwrap();
        saving.finish().unwrap()
    }

    fn load(&mut self, state: &[u8]) -> Result<(), EnvError> {
        let mut loading = StateVisitor::loading(state);
        self.env.visit_state(&mut loading)?;
        loading.finish().map(drop)
    }
}

/// The bytes that replace eight bytes of a state.
fn damages() -> Vec<[u8; 8]> {
    let numbers = [1e300, -1e300, 1e12, f64::NAN, f64::INFINITY, 0.0];
    let mut damages: Vec<_> = numbers.map(f64::to_le_bytes).into();
    // The second is a great number in fewer bytes, as integers are saved.
    damages.extend([[0xff; 8], [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0]]);
    damages
}

#[test]
fn a_damaged_state_is_refused_or_can_be_gone_on_with() {
    for id in IDS {
        let mut env = Stepped::new(id);
        env.reset(Some(3));
        env.step();
        let whole = env.saved();
        for at in 0..whole.len() {
            for damage in damages() {
                let mut state = whole.clone();
                let len = damage.len().min(whole.len() - at);
                state[at..at + len].copy_from_slice(&damage[..len]);
                if env.load(&state).is_ok() {
                    env.step();
                    env.reset(None);
                    env.step();
                }
            }
        }
        // And a state whose generator is all zeros.
        assert!(env.load(&vec![0; whole.len()]).is_err(), "{id}");
        env.load(&whole).unwrap();
        assert_eq!(env.saved(), whole, "{id}");
    }
}

#[test]
fn an_angle_that_no_motion_leads_to_is_an_error_that_says_it() {
    let mut env = Stepped::new("Acrobot-v1");
    env.reset(Some(3));
    let mut state = env.saved();
    let angle = f64::from(
        env.obs
            .rows()
            .get(windrow_slab::Key::<f32>::new(0))
            .unwrap()[4],
    );
    let at = state.windows(8).position(|at| at == angle.to_le_bytes());
    let at = at.unwrap();
    state[at..at + 8].copy_from_slice(&1e300f64.to_le_bytes());
    let error = env.load(&state).unwrap_err().to_string();
    assert!(
        error.contains("numbers of Acrobot-v1 with absolute values of at most [3.14")
            && error.contains("1e300"),
        "{error}"
    );
}
