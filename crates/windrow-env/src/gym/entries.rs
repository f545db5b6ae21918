//! Ids of Gymnasium's classic control and toy texts, with the arguments and the limits that it
//! registers them with.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    Acrobot, Blackjack, CartPole, CliffWalking, FrozenLake, MountainCar, MountainCarContinuous,
    Pendulum, Taxi,
};
use crate::factory::many;
use crate::{Arguments, Env, EnvError, NamedEnv, Serial, TimeLimit};

/// Each environment.
pub(crate) fn entries() -> Vec<(&'static str, NamedEnv)> {
    classic_control().into_iter().chain(toy_text()).collect()
}

/// All ids in alphabetical order.
#[cfg(test)]
pub(crate) fn ids() -> Vec<&'static str> {
    let mut ids: Vec<_> = entries().into_iter().map(|(id, _)| id).collect();
    ids.sort_unstable();
    ids
}

/// Environments with arguments, some of which the id gives itself: `given`. Several are copies
/// of one, and share what never changes.
fn alike<A, E, F>(given: Value, info: &[&'static str], factory: F) -> NamedEnv
where
    A: DeserializeOwned + 'static,
    E: Env + Clone + 'static,
    F: Fn(&str, A) -> Result<E, EnvError> + Clone + Send + Sync + 'static,
{
    let made = move |id: &str, arguments: &Arguments| factory(id, arguments.read_over(id, &given)?);
    let single = made.clone();
    NamedEnv::of(
        move |id, arguments| Ok(Box::new(single(id, arguments)?)),
        move |id, arguments, num_envs| {
            let first = made(id, arguments)?;
            let envs = many(num_envs, || first.clone())?;
            Ok(Box::new(Serial::new(envs)?))
        },
        info.iter().map(|&name| (name, true)).collect(),
    )
}

/// Gymnasium's classic control, which takes no arguments.
fn classic_control() -> [(&'static str, NamedEnv); 5] {
    /// Accepts none.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    fn named<E: Env + Clone + 'static>(env: fn() -> TimeLimit<E>) -> NamedEnv {
        alike(json!({}), &[], move |_, Nothing {}| Ok(env()))
    }
    [
        ("CartPole-v1", named(CartPole::v1)),
        ("Pendulum-v1", named(Pendulum::v1)),
        ("MountainCar-v0", named(MountainCar::v0)),
        ("MountainCarContinuous-v0", named(MountainCarContinuous::v0)),
        ("Acrobot-v1", named(Acrobot::v1)),
    ]
}

/// Gymnasium's toy texts, with the arguments and the limits that it registers them with.
fn toy_text() -> [(&'static str, NamedEnv); 6] {
    const PROB: &[&str] = &["prob"];
    let lake = |map: &str, limit| {
        alike(
            json!({"map_name": map}),
            PROB,
            move |id, lake: FrozenLake| Ok(TimeLimit::of(lake.env(id)?, limit)),
        )
    };
    let cliff = |is_slippery: bool| {
        let given = json!({"is_slippery": is_slippery});
        alike(given, PROB, |id, cliff: CliffWalking| cliff.env(id))
    };
    let taxi = |id: &str, taxi: Taxi| Ok(TimeLimit::of(taxi.env(id)?, 200));
    let blackjack = |id: &str, rules: Blackjack| Ok(rules.env(id));
    [
        ("FrozenLake-v1", lake("4x4", 100)),
        ("FrozenLake8x8-v1", lake("8x8", 200)),
        ("CliffWalking-v1", cliff(false)),
        ("CliffWalkingSlippery-v1", cliff(true)),
        ("Taxi-v4", alike(json!({}), &["prob", "action_mask"], taxi)),
        ("Blackjack-v1", alike(json!({"sab": true}), &[], blackjack)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnvFactory, EnvRecipe, EnvRegistry, make, make_vec};

    #[test]
    fn builtin_environments_are_made_with_their_own_limits() {
        let limits = ids()
            .into_iter()
            .map(|id| (id, make(id).unwrap().spec().max_episode_steps))
            .collect::<Vec<_>>();
        let expected = [
            ("Acrobot-v1", Some(500)),
            ("Blackjack-v1", None),
            ("CartPole-v1", Some(500)),
            ("CliffWalking-v1", None),
            ("CliffWalkingSlippery-v1", None),
            ("FrozenLake-v1", Some(100)),
            ("FrozenLake8x8-v1", Some(200)),
            ("MountainCar-v0", Some(200)),
            ("MountainCarContinuous-v0", Some(999)),
            ("Pendulum-v1", Some(200)),
            ("Taxi-v4", Some(200)),
        ];
        assert_eq!(limits, expected);
        for (id, _) in expected {
            let envs = make_vec(id, 3).unwrap();
            assert_eq!((envs.num_envs(), envs.spec().id.as_str()), (3, id));
        }
    }

    #[test]
    fn arguments_go_before_those_of_the_id() {
        let registry = EnvRegistry::builtin();
        let states = |id: &str, arguments: Value| {
            let recipe = EnvRecipe::of(id).with_arguments(&arguments).unwrap();
            let envs = recipe
                .build_from(&registry, 2)
                .map_err(|error| error.to_string())?;
            Ok::<_, String>(envs.spec().observation.choices().unwrap()[0])
        };
        assert_eq!(
            states("FrozenLake8x8-v1", json!({"is_slippery": false})),
            Ok(64)
        );
        assert_eq!(
            states("FrozenLake8x8-v1", json!({"map_name": "4x4"})),
            Ok(16)
        );
        assert_eq!(
            states("FrozenLake-v1", json!({"desc": ["SF", "HG", "FF"]})),
            Ok(6)
        );
        let error = states("FrozenLake-v1", json!({"map_name": null})).unwrap_err();
        assert!(
            error.contains("invalid type: null, expected a string"),
            "{error}"
        );
        assert_eq!(
            registry.info("Taxi-v4").unwrap(),
            [("prob", true), ("action_mask", true)]
        );
        assert!(registry.info("Taxi").is_err());
    }

    #[test]
    fn classic_control_takes_no_arguments() {
        for (id, _) in classic_control() {
            let recipe = |given: Value| EnvRecipe::of(id).with_arguments(&given).unwrap();
            assert!(recipe(json!({})).build(2).is_ok());
            let error = recipe(json!({"fast_math": true})).build(2).err().unwrap();
            assert_eq!(
                error.to_string(),
                format!(
                    "the arguments {{\"fast_math\":true}} of {id} cannot be read: unknown field `fast_math`, there are no fields"
                )
            );
        }
    }
}
