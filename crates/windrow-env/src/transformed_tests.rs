//! What `Transformed` promises to authors of transforms.

use std::sync::{Arc, Mutex};

use tensordict::DType;
use windrow_slab::{Key, LeafSpec, Row, RowBlock, RowMut};

use crate::testing::CountingEnv;
use crate::transforms::vec_driver::VecDriver;
use crate::{
    Attach, BoundTransform, Env, EnvError, EnvSpec, Joined, Observations, OneHotActions, Outcome,
    Outcomes, Reset, Serial, Spec, Transform, VecEnv, VecEnvError,
};

/// Breaks one rule of transforms or another.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Careless {
    Observations,
    Actions,
    Layout,
}

impl Transform for Careless {
    type Bound = Self;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self, EnvError> {
        match self {
            Self::Observations => {}
            Self::Actions => envs.replace_actions(),
            Self::Layout => envs.spec.observation = Spec::unbounded(DType::F64, [3]),
        }
        Ok(*self)
    }
}

impl BoundTransform for Careless {
    fn reset(&mut self, _: &[Reset], _: Observations<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    fn step(&mut self, obs: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        obs.apart().map(|_| ())
    }
}

fn counting(envs: usize) -> Serial<CountingEnv> {
    Serial::from_fn(envs, || CountingEnv::new(9, 0)).unwrap()
}

#[test]
fn rows_that_a_transform_forgets_to_ask_for_or_to_fill_are_an_error() {
    for (careless, rows) in [
        (Careless::Observations, "observations"),
        (Careless::Actions, "actions"),
    ] {
        let mut envs = VecDriver::new(counting(1).transformed(careless).unwrap());
        envs.reset(&[0]).unwrap();
        let source = envs.step(1i8).unwrap_err().source;
        assert!(
            matches!(source, EnvError::Unfilled { rows: got } if got == rows),
            "{source}"
        );
    }
}

#[test]
fn observations_of_another_layout_need_rows_of_the_environments_own() {
    let error = counting(1).transformed(Careless::Layout).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"observation\" of Counting: expected 1 elements of int32 in place 0, got 3 of float64"
    );
}

/// Observes the action and another column of the policy.
#[derive(Clone)]
struct Goals(EnvSpec);

impl Env for Goals {
    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, _: Option<u64>, _: RowMut<'_>) -> Result<(), EnvError> {
        Ok(())
    }

    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        obs.write(Key::new(0), action.get(Key::<i64>::new(0))?)?;
        obs.write(Key::new(1), action.get(Key::<f64>::new(1))?)?;
        Ok(Outcome::default())
    }
}

#[test]
fn environments_behind_one_hot_actions_read_other_columns_of_the_policy() {
    let observation = Spec::composite([
        ("action_taken", Spec::unbounded(DType::I64, [])),
        ("goal_read", Spec::unbounded(DType::F64, [2])),
    ]);
    let goals = Goals(EnvSpec::new("Goals", observation, Spec::discrete(3)));
    // Joined copies actions into rows of its own, which it can only do when it is told of them.
    let joined = Joined::new(vec![
        Box::new(Serial::new(vec![goals.clone()]).unwrap()),
        Box::new(Serial::new(vec![goals]).unwrap()),
    ]);
    let mut envs = joined.unwrap().transformed(OneHotActions::new()).unwrap();
    let columns = [
        LeafSpec::new("action", DType::I64, [3]),
        LeafSpec::new("goal", DType::F64, [2]),
    ];
    envs.bind(&columns).unwrap();

    let mut actions = RowBlock::new(&columns, 2).unwrap();
    let mut rows = actions.rows_mut();
    let vectors = rows.get_mut(Key::<i64>::new(0)).unwrap();
    vectors.copy_from_slice(&[0, 0, 1, 0, 1, 0]);
    let goals = rows.get_mut(Key::<f64>::new(1)).unwrap();
    goals.copy_from_slice(&[1.5, 2.5, 3.5, 4.5]);
    let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 2).unwrap();
    let outcomes = Outcomes {
        reward: &mut [0.0; 2],
        terminated: &mut [false; 2],
        truncated: &mut [false; 2],
    };
    envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
    assert_eq!(obs.rows().get::<i64>(Key::new(0)).unwrap(), [2, 1]);
    let seen = obs.rows().get::<f64>(Key::new(1)).unwrap();
    assert_eq!(seen, [1.5, 2.5, 3.5, 4.5]);
}

/// Observes the mean of all counts so far, over all workers that were given a clone of it.
#[derive(Debug, Clone, Default)]
struct Mean {
    /// Sum and number.
    shared: Arc<Mutex<(f64, f64)>>,
    frozen: bool,
}

#[derive(Debug)]
struct Averaging {
    of: Mean,
    to: Key<f64>,
}

impl Transform for Mean {
    type Bound = Averaging;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Averaging, EnvError> {
        let to = envs.append(&"mean".into(), Spec::unbounded(DType::F64, [1]))?;
        Ok(Averaging {
            of: self.clone(),
            to: Key::new(to),
        })
    }
}

impl BoundTransform for Averaging {
    fn reset(&mut self, _: &[Reset], _: Observations<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    fn step(&mut self, mut obs: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        let mut shared = self.of.shared.lock().unwrap();
        let counts = obs.rows.as_rows().get(Key::<i32>::new(0)).unwrap();
        for &count in counts.iter().filter(|_| !self.of.frozen) {
            *shared = (shared.0 + f64::from(count), shared.1 + 1.0);
        }
        let mean = shared.0 / shared.1;
        obs.rows.get_mut(self.to).unwrap().fill(mean);
        Ok(())
    }
}

#[test]
fn what_a_transform_learns_can_be_shared_by_workers_and_frozen_in_evaluation() {
    let mean = Mean::default();
    let worker = |mean: &Mean| VecDriver::new(counting(1).transformed(mean.clone()).unwrap());
    let (mut one, mut two) = (worker(&mean), worker(&mean));
    let mut evaluation = worker(&Mean {
        frozen: true,
        ..mean.clone()
    });
    for envs in [&mut one, &mut two, &mut evaluation] {
        envs.reset(&[0]).unwrap();
    }
    one.step(1i8).unwrap();
    two.step(0i8).unwrap();
    evaluation.step(1i8).unwrap();
    assert_eq!(two.seen::<f64>("mean"), [0.5]);
    assert_eq!(evaluation.seen::<f64>("mean"), [0.5]);
    assert_eq!(*mean.shared.lock().unwrap(), (1.0, 2.0));
}
