use serde::{Deserialize, Serialize};

use super::tabular::{Table, Tabular, Transition};
use crate::{EnvError, SpecError};

/// Cross the ice from the start to the goal without falling into a hole; on slippery ice, steps may
/// go aside.
///
/// These are the arguments of `FrozenLake-v1` and `FrozenLake8x8-v1`, named as Gymnasium names
/// them. Observation `int64`: row times number of columns plus column. Action `int64`: 0 left, 1
/// down, 2 right, 3 up. An episode terminates at the goal or in a hole.
///
/// ```
/// use windrow_env::{EnvFactory, EnvRecipe, FrozenLake, Spec};
///
/// let dry = FrozenLake { is_slippery: false, ..FrozenLake::default() };
/// let lakes = EnvRecipe::of("FrozenLake-v1").with_arguments(&dry)?.build(8)?;
/// assert_eq!(lakes.spec().observation, Spec::discrete(16));
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrozenLake {
    /// Rows of the map: `S` start, `F` ice, `H` hole, `G` goal; other letters are ice. `None` for
    /// the map of `map_name`.
    pub desc: Option<Vec<String>>,
    /// `"4x4"` or `"8x8"`.
    pub map_name: String,
    /// Whether steps may go to either side of their direction.
    pub is_slippery: bool,
    /// Probability of a step in its direction, where it is slippery; both sides share the rest.
    pub success_rate: f64,
    /// Rewards of a step to the goal, into a hole, and onto ice.
    pub reward_schedule: [f64; 3],
    /// Entries of Gymnasium's `info` that are observed: `"prob"`, the probability of the last
    /// transition (`float64`).
    pub info: Vec<String>,
}

impl Default for FrozenLake {
    fn default() -> Self {
        Self {
            desc: None,
            map_name: "4x4".to_owned(),
            is_slippery: true,
            success_rate: 1.0 / 3.0,
            reward_schedule: [1.0, 0.0, 0.0],
            info: Vec::new(),
        }
    }
}

const MAPS: [(&str, &[&str]); 2] = [
    ("4x4", &["SFFF", "FHFH", "FFFH", "HFFG"]),
    (
        "8x8",
        &[
            "SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF",
            "FFFHFFFG",
        ],
    ),
];

/// Rows of letters, all of one length.
struct Map<'a> {
    letters: Vec<&'a [u8]>,
    columns: usize,
}

impl Map<'_> {
    /// The state that a step in `direction` from `state` leads to.
    fn next(&self, state: usize, direction: usize) -> usize {
        let (row, column) = (state / self.columns, state % self.columns);
        let (row, column) = match direction {
            0 => (row, column.saturating_sub(1)),
            1 => ((row + 1).min(self.letters.len() - 1), column),
            2 => (row, (column + 1).min(self.columns - 1)),
            _ => (row.saturating_sub(1), column),
        };
        row * self.columns + column
    }

    fn letter(&self, state: usize) -> u8 {
        self.letters[state / self.columns][state % self.columns]
    }
}

impl FrozenLake {
    /// The environment, called `id`.
    pub(crate) fn env(&self, id: &str) -> Result<Tabular, EnvError> {
        let map = self.map(id)?;
        if !(0.0..=1.0).contains(&self.success_rate) {
            let got = self.success_rate.to_string();
            return Err(unfit("success_rate", id, "a probability from 0 to 1", got));
        }
        let aside = (1.0 - self.success_rate) / 2.0;
        let reach = |probability, state: usize| {
            let (kind, terminated) = match map.letter(state) {
                b'G' => (0, true),
                b'H' => (1, true),
                _ => (2, false),
            };
            Transition {
                probability,
                state,
                reward: self.reward_schedule[kind],
                terminated,
            }
        };
        let step = |state: usize, action: usize, to: &mut Vec<Transition>| {
            if matches!(map.letter(state), b'G' | b'H') {
                to.push(Transition {
                    reward: 0.0,
                    ..reach(1.0, state)
                });
            } else if self.is_slippery {
                let chances = [(3, aside), (0, self.success_rate), (1, aside)];
                let ways = chances
                    .map(|(turn, chance)| reach(chance, map.next(state, (action + turn) % 4)));
                to.extend(ways);
            } else {
                to.push(reach(1.0, map.next(state, action)));
            }
        };
        let states = map.letters.len() * map.columns;
        let table = Table::new((states, 4), |state| map.letter(state) == b'S', step);
        table.into_env(id, &self.info, None)
    }

    /// The map, which has a start.
    fn map(&self, id: &str) -> Result<Map<'_>, EnvError> {
        let letters: Vec<&[u8]> = match &self.desc {
            Some(rows) => rows.iter().map(|row| row.as_bytes()).collect(),
            None => {
                let found = MAPS.iter().find(|(name, _)| *name == self.map_name);
                let Some((_, rows)) = found else {
                    let got = format!("{:?}", self.map_name);
                    return Err(unfit("map_name", id, "\"4x4\" or \"8x8\"", got));
                };
                rows.iter().map(|row| row.as_bytes()).collect()
            }
        };
        let columns = letters.first().map_or(0, |row| row.len());
        let is_even = letters
            .iter()
            .all(|row| row.len() == columns && row.is_ascii());
        if !is_even || !letters.iter().any(|row| row.contains(&b'S')) {
            let expected = "rows of the same number of letters, one of them S, the start";
            return Err(unfit("desc", id, expected, format!("{:?}", self.desc)));
        }
        Ok(Map { letters, columns })
    }
}

fn unfit(argument: &'static str, id: &str, expected: &str, got: String) -> EnvError {
    let error = SpecError::Argument {
        argument,
        of: id.to_owned(),
        expected: expected.to_owned(),
        got,
    };
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, assert_choices_are_checked};
    use crate::testing::check_env;

    fn lake(change: impl Fn(&mut FrozenLake)) -> Result<Tabular, String> {
        let mut lake = FrozenLake::default();
        change(&mut lake);
        lake.env("FrozenLake-v1").map_err(|error| error.to_string())
    }

    #[test]
    fn the_way_across_dry_ice_is_rewarded_once() {
        let mut env = Driver::new(lake(|lake| lake.is_slippery = false).unwrap());
        env.reset(Some(0));
        let way = [1i64, 1, 2, 2, 1, 2];
        let steps = way.map(|action| {
            let outcome = env.step(action).unwrap();
            (
                env.observation::<i64>()[0],
                outcome.reward,
                outcome.terminated,
            )
        });
        let expected = [4, 8, 9, 10, 14, 15]
            .map(|state| (state, f32::from(u8::from(state == 15)), state == 15));
        assert_eq!(steps, expected);
    }

    #[test]
    fn the_probability_of_a_step_is_observed_where_it_is_wanted() {
        let mut env = Driver::new(
            lake(|lake| {
                lake.success_rate = 0.5;
                lake.info = vec!["prob".to_owned()];
            })
            .unwrap(),
        );
        env.reset(Some(3));
        assert_eq!(env.leaf::<f64>(1), [1.0]);
        let mut seen = [0, 0];
        for _ in 0..50 {
            if env.step(2i64).unwrap().terminated {
                env.reset(None);
                continue;
            }
            match env.leaf::<f64>(1)[0] {
                0.5 => seen[0] += 1,
                0.25 => seen[1] += 1,
                other => panic!("{other}"),
            }
        }
        assert!(seen[0] > 9 && seen[1] > 9, "{seen:?}");
    }

    #[test]
    fn the_environment_keeps_its_promises() {
        assert_choices_are_checked(lake(|_| ()).unwrap(), 4);
        let report = check_env(
            &mut lake(|lake| lake.map_name = "8x8".to_owned()).unwrap(),
            1,
        )
        .unwrap();
        assert!(report.terminated > 5);
    }

    #[test]
    fn arguments_that_do_not_fit_are_named() {
        let map = |rows: &[&str]| {
            let rows = rows.iter().map(|row| (*row).to_owned()).collect();
            lake(|lake| lake.desc = Some(Vec::clone(&rows))).map(drop)
        };
        assert_eq!(map(&["SX", "FG"]), Ok(()));
        for wrong in [&[][..], &["FF"], &["SF", "G"], &["Sé", "FGG"]] {
            let error = map(wrong).unwrap_err();
            assert!(
                error.starts_with("desc of FrozenLake-v1: expected rows"),
                "{error}"
            );
        }
        let error = |change: fn(&mut FrozenLake)| lake(change).map(drop).unwrap_err();
        assert!(error(|lake| lake.map_name = "5x5".to_owned()).contains("got \"5x5\""));
        assert!(
            error(|lake| lake.success_rate = f64::NAN)
                .contains("a probability from 0 to 1, got NaN")
        );
        let twice = ["prob", "prob"].map(str::to_owned);
        assert!(
            lake(|lake| lake.info = twice.to_vec())
                .map(drop)
                .unwrap_err()
                .contains("each once")
        );
        assert_eq!(
            error(|lake| lake.info = vec!["action_mask".to_owned()]),
            r#"info of FrozenLake-v1: expected some of ["prob", "exact_reward"], each once, got ["action_mask"]"#
        );
    }
}
