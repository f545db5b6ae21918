//! What evaluations tell.

use std::time::Duration;

use tensordict::TensorError;
use windrow_collect::{Collector, EvaluatorBuilder, Placement};
use windrow_env::{CartPole, RewardSum, StepCounter};
use windrow_policy::{ExplorationType, PolicyRecipe, RandomPolicy};

use crate::program::elsewhere;
use crate::{Choose, choose, expected, ledgers, named, placed};

#[test]
fn counting_gives_the_worked_example() {
    for placement in elsewhere() {
        let evaluator = placed(placement, named("Counting", (8, 4)))
            .policy_recipe(PolicyRecipe::named("ones"))
            .build()
            .unwrap();
        let result = evaluator.evaluate(None, None).unwrap();
        assert_eq!(
            (result.returns, result.lengths),
            (vec![0.0; 10], vec![5; 10])
        );
        assert_eq!(
            (result.reward, result.reward_std, result.episode_length),
            (0.0, 0.0, 5.0)
        );
        assert_eq!(
            (result.num_episodes, result.step, result.policy_version),
            (10, 0, 0)
        );
        assert!(
            result.time > Duration::ZERO
                && (result.fps - 50.0 / result.time.as_secs_f64()).abs() < 1e-6 * result.fps
        );
    }
}

#[test]
fn exactly_the_first_episodes_of_each_environment_count() {
    for placement in elsewhere() {
        for (envs, shares) in [
            (1, &[10][..]),
            (3, &[4, 3, 3]),
            (4, &[3, 3, 2, 2]),
            (12, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]),
        ] {
            for (max_length, max_steps) in [(20, None), (100, None), (100, Some(7))] {
                let mut builder = ledgers(placement, max_length)
                    .policy_recipe(choose(2))
                    .num_envs(envs);
                if let Some(steps) = max_steps {
                    builder = builder.max_steps(steps);
                }
                let result = builder.build().unwrap().evaluate(None, None).unwrap();
                let limit = max_steps.map_or(i64::MAX, |steps| steps as i64);
                let (returns, lengths) = expected(shares, max_length, limit, 2);
                assert_eq!(
                    (result.num_episodes, &result.lengths),
                    (10, &lengths),
                    "{envs} environments"
                );
                for (got, expected) in result.returns.iter().zip(&returns) {
                    assert!(
                        (got - expected).abs() < 1e-5,
                        "{envs} environments: {got} {expected}"
                    );
                }
                let mean = returns.iter().sum::<f32>() / 10.0;
                let squares: f32 = returns.iter().map(|total| (total - mean).powi(2)).sum();
                assert!((result.reward - f64::from(mean)).abs() < 1e-5);
                assert!((result.reward_std - f64::from((squares / 9.0).sqrt())).abs() < 1e-4);
                assert_eq!(
                    result.episode_length,
                    lengths.iter().sum::<u64>() as f64 / 10.0
                );
            }
        }
    }
}

#[test]
fn an_environment_that_counts_its_steps_is_limited_too() {
    for placement in elsewhere() {
        let counted = named("Counting", (8, 0)).with_num_envs(2);
        let counted = counted.with_transform(StepCounter::new());
        let evaluator = placed(placement, counted)
            .policy_recipe(PolicyRecipe::named("ones"))
            .max_steps(5);
        let result = evaluator.build().unwrap().evaluate(None, None).unwrap();
        assert_eq!(result.lengths, [5; 10]);
    }
}

#[test]
fn cartpole_is_what_a_collector_collects() {
    let mut collector = Collector::builder(CartPole::v1)
        .policy(Choose(1))
        .frames_per_batch(200)
        .seed(3)
        .build()
        .unwrap();
    let batch = collector.next().unwrap().unwrap();
    let done = batch
        .get(("next", "done"))
        .unwrap()
        .to_vec::<bool>()
        .unwrap();
    let ends: Vec<u64> = (1..)
        .zip(done)
        .filter_map(|(end, done)| done.then_some(end))
        .collect();
    let begins = std::iter::once(0).chain(ends.iter().copied());
    let lengths: Vec<u64> = ends
        .iter()
        .zip(begins)
        .map(|(end, begin)| end - begin)
        .take(10)
        .collect();
    assert!(
        lengths.iter().all(|length| (8..=11).contains(length)),
        "{lengths:?}"
    );

    let returns: Vec<f32> = lengths.iter().map(|&length| length as f32).collect();
    for placement in elsewhere() {
        let evaluator = placed(placement, "CartPole-v1")
            .policy_recipe(choose(1))
            .seed(3);
        let result = evaluator.build().unwrap().evaluate(None, None).unwrap();
        assert_eq!(
            (&result.lengths, result.reward),
            (&lengths, result.episode_length)
        );
        assert_eq!(result.returns, returns);
    }
}

#[test]
fn every_evaluation_begins_anew_from_the_same_seed() {
    for placement in elsewhere() {
        let evaluator = ledgers(placement, 50)
            .policy_recipe(choose(1))
            .num_envs(2)
            .num_trajectories(3)
            .build()
            .unwrap();
        let first = evaluator.evaluate(None, None).unwrap();
        assert_eq!(first.lengths, expected(&[2, 1], 50, i64::MAX, 1).1);
        for step in 1..4 {
            let next = evaluator.evaluate(None, None).unwrap();
            assert_eq!((next.step, next.seed), (step, 0));
            assert_eq!(
                (next.returns, next.lengths),
                (first.returns.clone(), first.lengths.clone())
            );
        }
    }
}

/// Acts at random in environments that begin at random.
fn random(placement: Placement) -> EvaluatorBuilder {
    placed(placement, "CartPole-v1")
        .policy(RandomPolicy::new())
        .exploration_type(ExplorationType::Random)
}

#[test]
fn without_a_seed_each_evaluation_draws_one_and_has_episodes_of_its_own() {
    for placement in elsewhere() {
        let evaluators =
            [random(placement), random(placement)].map(|builder| builder.build().unwrap());
        let results: Vec<_> = [0, 0, 1, 1]
            .iter()
            .map(|&one: &usize| evaluators[one].evaluate(None, None).unwrap())
            .collect();
        for (i, result) in results.iter().enumerate() {
            for other in &results[..i] {
                assert_ne!(result.seed, other.seed);
                assert_ne!(result.returns, other.returns);
            }
            // What it tells is enough to see the same episodes again.
            let again = random(Placement::Threads)
                .seed(result.seed)
                .build()
                .unwrap();
            for _ in 0..2 {
                assert_eq!(again.evaluate(None, None).unwrap().returns, result.returns);
            }
        }
    }
}

#[test]
fn vectors_of_environments_keep_their_number_and_their_own_sums() {
    for placement in elsewhere() {
        let envs = named("Ledger", (20, Duration::ZERO)).with_num_envs(3);
        let envs = envs
            .with_transform(StepCounter::new())
            .with_transform(RewardSum::new());
        let evaluator = placed(placement, envs)
            .policy_recipe(choose(3))
            .num_trajectories(7)
            .seed(0)
            .build()
            .unwrap();
        let result = evaluator.evaluate(None, None).unwrap();
        let (returns, lengths) = expected(&[3, 2, 2], 20, i64::MAX, 3);
        assert_eq!(result.lengths, lengths);
        assert!(
            result
                .returns
                .iter()
                .zip(returns)
                .all(|(got, sum)| (got - sum).abs() < 1e-5)
        );
    }
}

#[test]
fn metrics_see_the_whole_trajectories() {
    for placement in elsewhere() {
        let evaluator = ledgers(placement, 9)
            .policy_recipe(choose(0))
            .num_envs(2)
            .num_trajectories(3)
            .log_prefix("test")
            .metrics(|trajectories| {
                let mask = trajectories
                    .as_slice::<bool>(("collector", "mask"))
                    .unwrap();
                let places = trajectories
                    .get("observation")
                    .unwrap()
                    .to_vec::<i64>()
                    .unwrap();
                let longest = trajectories.batch_size()[1];
                assert!(mask.chunks(longest).zip(places.chunks(3 * longest)).all(
                    |(mask, places)| {
                        mask.iter()
                            .zip(places.chunks(3))
                            .zip(0..)
                            .all(|((frame, place), t)| !frame || place[2] == t)
                    }
                ));
                let frames = mask.iter().filter(|frame| **frame).count() as f64;
                Ok::<_, TensorError>(vec![("frames".to_owned(), frames)])
            })
            .build()
            .unwrap();
        let result = evaluator.evaluate(None, Some(12)).unwrap();
        let lengths = expected(&[2, 1], 9, i64::MAX, 0).1;
        assert_eq!(
            result.metrics,
            [("frames".to_owned(), lengths.iter().sum::<u64>() as f64)]
        );
        let numbers = result.to_map();
        assert_eq!(
            (numbers["test/step"], numbers["test/frames"]),
            (12.0, result.metrics[0].1)
        );
    }
}

#[test]
fn actions_are_the_best_guess_unless_told() {
    for placement in elsewhere() {
        let told = || ledgers(placement, 9).policy_recipe(PolicyRecipe::named("told"));
        let random = told().exploration_type(ExplorationType::Random);
        for (builder, action) in [(told(), 0), (random, 1)] {
            let result = builder.build().unwrap().evaluate(None, None).unwrap();
            assert_eq!(result.returns, expected(&[10], 9, i64::MAX, action).0);
        }
    }
}
