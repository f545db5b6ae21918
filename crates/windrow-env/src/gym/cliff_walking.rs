use serde::{Deserialize, Serialize};

use super::tabular::{Table, Tabular, Transition};
use crate::EnvError;

/// Walk along a cliff to the goal; a step over its edge leads back to the start.
///
/// These are the arguments of `CliffWalking-v1`, and of `CliffWalkingSlippery-v1`, which is
/// slippery, named as Gymnasium names them. Observation `int64`: row times 12 plus column. Action
/// `int64`: 0 up, 1 right, 2 down, 3 left. Reward -1 for every step, and -100 for one over the
/// edge. An episode terminates at the goal.
///
/// Source: R. Sutton and A. Barto, "Reinforcement Learning: An Introduction" (2020), example 6.6,
/// as in Gymnasium.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CliffWalking {
    /// Whether steps may go to either side of their direction, with the same probability as in it.
    pub is_slippery: bool,
    /// Entries of Gymnasium's `info` that are observed: `"prob"`, the probability of the last
    /// transition (`float64`).
    pub info: Vec<String>,
}

const ROWS: usize = 4;
const COLUMNS: usize = 12;
const START: usize = (ROWS - 1) * COLUMNS;
const GOAL: usize = ROWS * COLUMNS - 1;

/// Where a step in `direction` leads.
fn next(state: usize, direction: usize) -> usize {
    let (row, column) = (state / COLUMNS, state % COLUMNS);
    let (row, column) = match direction {
        0 => (row.saturating_sub(1), column),
        1 => (row, (column + 1).min(COLUMNS - 1)),
        2 => ((row + 1).min(ROWS - 1), column),
        _ => (row, column.saturating_sub(1)),
    };
    row * COLUMNS + column
}

/// A step that leads to `state`.
fn reach(probability: f64, state: usize) -> Transition {
    let is_cliff = (START + 1..GOAL).contains(&state);
    Transition {
        probability,
        state: if is_cliff { START } else { state },
        reward: if is_cliff { -100.0 } else { -1.0 },
        terminated: state == GOAL,
    }
}

impl CliffWalking {
    /// The environment, called `id`.
    pub(crate) fn env(&self, id: &str) -> Result<Tabular, EnvError> {
        let turns: &[usize] = if self.is_slippery { &[3, 0, 1] } else { &[0] };
        let chance = 1.0 / turns.len() as f64;
        let step = |state: usize, action: usize, to: &mut Vec<Transition>| {
            let ways = turns.iter().map(|turn| next(state, (action + turn) % 4));
            to.extend(ways.map(|state| reach(chance, state)));
        };
        let table = Table::new((ROWS * COLUMNS, 4), |state| state == START, step);
        table.into_env(id, &self.info, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, assert_choices_are_checked};
    use crate::testing::check_env;

    #[test]
    fn the_edge_leads_back_and_the_goal_ends() {
        let mut env = Driver::new(CliffWalking::default().env("CliffWalking-v1").unwrap());
        env.reset(None);
        assert_eq!(env.observation::<i64>(), [36]);
        assert_eq!(env.step(1i64).unwrap().reward, -100.0);
        assert_eq!(env.observation::<i64>(), [36]);
        env.step(0i64).unwrap();
        for _ in 0..11 {
            assert_eq!(env.step(1i64).unwrap().reward, -1.0);
        }
        let end = env.step(2i64).unwrap();
        assert_eq!(
            (end.reward, end.terminated, env.observation::<i64>()[0]),
            (-1.0, true, 47)
        );
    }

    #[test]
    fn the_environment_keeps_its_promises() {
        let slippery = CliffWalking {
            is_slippery: true,
            info: vec!["prob".to_owned()],
        };
        let env = || slippery.env("CliffWalkingSlippery-v1").unwrap();
        check_env(&mut env(), 1).unwrap();
        assert_choices_are_checked(env(), 4);
    }
}
