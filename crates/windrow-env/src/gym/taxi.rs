use serde::{Deserialize, Serialize};

use super::tabular::{Table, Tabular, Transition};
use crate::{EnvError, NumpyRng, SpecError, StateVisitor};

/// Fetch a passenger at one of four places and take them to another.
///
/// These are the arguments of `Taxi-v4`, named as Gymnasium names them. Observation `int64` in
/// `0..500`: `((row * 5 + column) * 5 + passenger) * 4 + destination`, where passenger 4 is in the
/// taxi. Action `int64`: 0 south, 1 north, 2 east, 3 west, 4 pick up, 5 drop off. Reward -1 for a
/// step, -10 for a pick-up or drop-off that cannot be, 20 at the destination, which terminates.
///
/// Source: T. G. Dietterich, "Hierarchical reinforcement learning with the MAXQ value function
/// decomposition" (2000), as in Gymnasium.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Taxi {
    /// Whether moves may go aside.
    pub is_rainy: bool,
    /// Whether the passenger may choose another destination at their first move.
    pub fickle_passenger: bool,
    /// Probability of a move in its direction, where it is rainy; both sides share the rest.
    pub rainy_probability: f64,
    /// Probability that a fickle passenger chooses another destination.
    pub fickle_probability: f64,
    /// Entries of Gymnasium's `info` that are observed: `"prob"`, the probability of the last
    /// transition (`float64`), and `"action_mask"` (`int8 [6]`), the actions that change the state,
    /// to which random actions are restricted then.
    pub info: Vec<String>,
}

impl Default for Taxi {
    fn default() -> Self {
        Self {
            is_rainy: false,
            fickle_passenger: false,
            rainy_probability: 0.8,
            fickle_probability: 0.3,
            info: Vec::new(),
        }
    }
}

const ACTIONS: usize = 6;
const STATES: usize = 500;
/// Rows and columns of the grid.
const SIZE: usize = 5;
/// Number of the passenger's place in the taxi.
const RIDES: usize = 4;
/// Row and column of the places.
const PLACES: [(usize, usize); 4] = [(0, 0), (0, 4), (4, 0), (4, 3)];
/// What is to the right of each square: an opening or a wall.
const EAST: [&[u8; SIZE]; SIZE] = [b":|::|", b":|::|", b"::::|", b"|:|:|", b"|:|:|"];

/// A state in its parts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ride {
    taxi: (usize, usize),
    passenger: usize,
    destination: usize,
}

impl Ride {
    fn of(state: usize) -> Self {
        let (rest, destination) = (state / PLACES.len(), state % PLACES.len());
        let (square, passenger) = (rest / (RIDES + 1), rest % (RIDES + 1));
        Self {
            taxi: (square / SIZE, square % SIZE),
            passenger,
            destination,
        }
    }

    fn state(self) -> usize {
        let square = self.taxi.0 * SIZE + self.taxi.1;
        (square * (RIDES + 1) + self.passenger) * PLACES.len() + self.destination
    }

    fn rides(self) -> bool {
        self.passenger == RIDES
    }

    /// The square that a move leads to; the same where a wall or the border is in the way.
    fn to(self, direction: usize) -> (usize, usize) {
        let (row, column) = self.taxi;
        match direction {
            0 => ((row + 1).min(SIZE - 1), column),
            1 => (row.saturating_sub(1), column),
            2 if EAST[row][column] == b':' => (row, column + 1),
            3 if column > 0 && EAST[row][column - 1] == b':' => (row, column - 1),
            _ => (row, column),
        }
    }

    /// The state after picking up or dropping off, the reward, and whether that ends the episode.
    fn serve(self, action: usize) -> (Self, f64, bool) {
        let place = PLACES.iter().position(|place| *place == self.taxi);
        match place {
            Some(place) if action == 4 && place == self.passenger => {
                let passenger = RIDES;
                (Self { passenger, ..self }, -1.0, false)
            }
            Some(passenger) if action == 5 && self.rides() => {
                let arrives = passenger == self.destination;
                let reward = if arrives { 20.0 } else { -1.0 };
                (Self { passenger, ..self }, reward, arrives)
            }
            _ => (self, -10.0, false),
        }
    }

    /// Whether `action` changes anything.
    fn is_open(self, action: usize) -> bool {
        match action {
            ..=3 => self.to(action) != self.taxi,
            _ => self.serve(action).0 != self,
        }
    }
}

/// Directions to the left and to the right of each.
const SIDES: [[usize; 2]; 4] = [[2, 3], [3, 2], [1, 0], [0, 1]];

impl Taxi {
    /// The environment, called `id`.
    pub(crate) fn env(&self, id: &str) -> Result<Tabular, EnvError> {
        for (argument, value) in [
            ("rainy_probability", self.rainy_probability),
            ("fickle_probability", self.fickle_probability),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(SpecError::Argument {
                    argument,
                    of: id.to_owned(),
                    expected: "a probability from 0 to 1".to_owned(),
                    got: value.to_string(),
                }
                .into());
            }
        }
        let begins = |state| {
            let ride = Ride::of(state);
            !ride.rides() && ride.passenger != ride.destination
        };
        let table = Table::new((STATES, ACTIONS), begins, |state, action, to| {
            self.step(Ride::of(state), action, to);
        });
        let table = table.with_masks(|state, action| Ride::of(state).is_open(action));
        let fickle = self.fickle_passenger.then_some(Fickle {
            probability: self.fickle_probability,
            is_due: false,
        });
        table.into_env(id, &self.info, fickle)
    }

    /// Adds the transitions from `ride` by `action`.
    fn step(&self, ride: Ride, action: usize, to: &mut Vec<Transition>) {
        if action >= SIDES.len() {
            let (ride, reward, terminated) = ride.serve(action);
            return to.push(Transition {
                probability: 1.0,
                state: ride.state(),
                reward,
                terminated,
            });
        }
        let reach = |probability, taxi| Transition {
            probability,
            state: Ride { taxi, ..ride }.state(),
            reward: -1.0,
            terminated: false,
        };
        let ahead = ride.to(action);
        if !self.is_rainy {
            return to.push(reach(1.0, ahead));
        }
        let aside = (1.0 - self.rainy_probability) / 2.0;
        to.push(reach(self.rainy_probability, ahead));
        // A taxi that cannot go ahead does not slip aside either.
        let sides = SIDES[action].map(|side| match ahead == ride.taxi {
            true => ahead,
            false => ride.to(side),
        });
        to.extend(sides.map(|taxi| reach(aside, taxi)));
    }
}

/// A passenger who may choose another destination at their first move.
#[derive(Debug, Clone)]
pub(super) struct Fickle {
    probability: f64,
    /// Whether they still may.
    is_due: bool,
}

impl Fickle {
    /// Begins an episode.
    pub(super) fn begin(&mut self, rng: &mut NumpyRng) {
        self.is_due = rng.random() < self.probability;
    }

    /// The state `to`, which a step from `from` leads to, with the destination that they choose.
    pub(super) fn change(&mut self, from: usize, to: usize, rng: &mut NumpyRng) -> usize {
        let (before, after) = (Ride::of(from), Ride::of(to));
        if !self.is_due || !before.rides() || before.taxi == after.taxi {
            return to;
        }
        self.is_due = false;
        let drawn = rng.integers(PLACES.len() as u32 - 1) as usize;
        let destination = drawn + usize::from(drawn >= before.destination);
        Ride {
            destination,
            ..after
        }
        .state()
    }

    pub(super) fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.value(&mut self.is_due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, assert_choices_are_checked};
    use crate::testing::check_env;

    fn observing(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn states_are_their_parts() {
        assert!((0..STATES).all(|state| Ride::of(state).state() == state));
        let ride = Ride::of(328);
        assert_eq!(
            (ride.taxi, ride.passenger, ride.destination),
            ((3, 1), 2, 0)
        );
    }

    #[test]
    fn walls_are_in_the_way_on_both_sides() {
        let at = |row, column| Ride {
            taxi: (row, column),
            ..Ride::of(0)
        };
        for row in 0..SIZE {
            for column in 0..SIZE - 1 {
                let (east, west) = (at(row, column).to(2), at(row, column + 1).to(3));
                let is_wall = matches!((row, column), (0 | 1, 1) | (3 | 4, 0 | 2));
                assert_eq!(east == (row, column), is_wall);
                assert_eq!(west == (row, column + 1), is_wall);
            }
        }
    }

    #[test]
    fn the_mask_says_which_actions_change_the_state() {
        let taxi = Taxi {
            info: observing(&["action_mask", "prob"]),
            ..Taxi::default()
        };
        let mut env = Driver::new(taxi.env("Taxi-v4").unwrap());
        for seed in 0..40 {
            env.reset(Some(seed));
            let (before, mask) = (env.observation::<i64>()[0], env.leaf::<i8>(1).to_vec());
            for (action, &is_open) in mask.iter().enumerate() {
                env.reset(Some(seed));
                env.step(action as i64).unwrap();
                assert_eq!(env.observation::<i64>()[0] != before, is_open == 1);
            }
        }
        let spec = taxi.env("Taxi-v4").unwrap();
        assert_eq!(
            crate::Env::spec(&spec).masks,
            [("action".into(), "action_mask".into())]
        );
    }

    #[test]
    fn a_fickle_passenger_chooses_anew_once() {
        let mut fickle = Fickle {
            probability: 1.0,
            is_due: false,
        };
        let mut rng = NumpyRng::new(0);
        fickle.begin(&mut rng);
        let ride = Ride {
            taxi: (2, 2),
            passenger: RIDES,
            destination: 1,
        };
        let moved = Ride {
            taxi: (2, 3),
            ..ride
        };
        assert_eq!(
            fickle.change(ride.state(), ride.state(), &mut rng),
            ride.state()
        );
        let changed = Ride::of(fickle.change(ride.state(), moved.state(), &mut rng));
        assert_eq!((changed.taxi, changed.passenger), ((2, 3), RIDES));
        assert_ne!(changed.destination, 1);
        assert_eq!(
            fickle.change(ride.state(), moved.state(), &mut rng),
            moved.state()
        );
    }

    #[test]
    fn the_environment_keeps_its_promises() {
        let taxi = Taxi {
            is_rainy: true,
            fickle_passenger: true,
            info: observing(&["prob"]),
            ..Taxi::default()
        };
        check_env(&mut taxi.env("Taxi-v4").unwrap(), 1).unwrap();
        assert_choices_are_checked(taxi.env("Taxi-v4").unwrap(), 6);
        let wet = Taxi {
            rainy_probability: -0.1,
            ..taxi
        };
        let error = wet.env("Taxi-v4").unwrap_err().to_string();
        assert_eq!(
            error,
            "rainy_probability of Taxi-v4: expected a probability from 0 to 1, got -0.1"
        );
    }
}
