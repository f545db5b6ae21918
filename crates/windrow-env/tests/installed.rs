//! The registry that a program installs. A program installs one, once: so there is one test.

use windrow_env::testing::CountingEnv;
use windrow_env::{EnvError, EnvFactory, EnvRecipe, EnvRegistry, make, make_vec};

#[test]
fn ids_are_those_of_the_installed_registry() {
    let unknown = || make("Count-v0").err().map(|error| error.to_string());
    assert!(unknown().is_some(), "nothing is installed yet");
    let mut registry = EnvRegistry::builtin();
    registry.register("Count-v0", CountingEnv::default).unwrap();
    registry.install().unwrap();
    assert_eq!(unknown(), None);

    let recipe = EnvRecipe::of("Count-v0");
    let read = EnvRecipe::from_json(&recipe.to_json().unwrap()).unwrap();
    for made in [
        make_vec("Count-v0", 2),
        "Count-v0".build(2),
        String::from("Count-v0").build(2),
        recipe.build(2),
        read.build(2),
    ] {
        assert_eq!(made.unwrap().spec().id, "Counting");
    }
    let threads = std::thread::spawn(|| "Count-v0".build(3).map(|envs| envs.num_envs()));
    assert_eq!(threads.join().unwrap().unwrap(), 3);
    assert_eq!("CartPole-v1".build(1).unwrap().num_envs(), 1);
    assert_eq!(
        make("count-v1").err().unwrap().to_string(),
        "no environment is called \"count-v1\"; did you mean Count-v0?"
    );

    let again = EnvRegistry::new().install().unwrap_err();
    assert!(matches!(again, EnvError::Installed), "{again}");
    assert_eq!(make("Count-v0").unwrap().spec().id, "Counting");
}
