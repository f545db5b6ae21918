//! Environments that observe text, beside transforms that do not read it.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use tensordict::DType;
use windrow_env::testing::LedgerEnv;
use windrow_env::{
    CatFrames, CatTensors, ClipTransform, DTypeCastTransform, EnvError, EnvSpec, ExcludeTransform,
    FrameSkipTransform, InitTracker, Joined, Keys, ObservationNorm, OneHotActions, Outcomes,
    RenameTransform, Reset, Serial, StepCounter, UnsqueezeTransform, VecEnv,
};
use windrow_slab::{Key, RowBlock};

fn ledgers(numbers: std::ops::Range<i64>) -> Serial<LedgerEnv> {
    let ledgers = numbers.map(|env| LedgerEnv::new(env).with_max_length(1000).with_text());
    Serial::new(ledgers.collect()).unwrap()
}

/// The observations called `name` after a reset and after each of 40 steps, of all environments.
fn texts(mut envs: impl VecEnv, name: &str) -> Vec<Vec<String>> {
    let count = envs.num_envs();
    let leaves = envs.spec().observation_leaves();
    let place = leaves.iter().position(|leaf| leaf.key == name.into());
    let key = Key::new(place.unwrap());
    let mut obs = RowBlock::new(&leaves, count).unwrap();
    let actions = RowBlock::new(&envs.spec().action_leaves(), count).unwrap();
    let seen = |obs: &RowBlock| {
        let texts = obs.rows().strings(key).unwrap();
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
        texts.into_iter().map(text).collect::<Vec<_>>()
    };
    let resets: Vec<_> = (0..count).map(|env| Reset { env, seed: None }).collect();
    envs.reset(&resets, obs.rows_mut()).unwrap();
    let mut all = vec![seen(&obs)];
    for _ in 0..40 {
        let outcomes = Outcomes {
            reward: &mut vec![0.0; count],
            terminated: &mut vec![false; count],
            truncated: &mut vec![false; count],
        };
        // A ledger that is over says so; none is within these steps.
        envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
        all.push(seen(&obs));
    }
    all
}

/// What `texts` finds of environments `numbers`, of which each step is `each` steps.
fn expected(numbers: std::ops::Range<i64>, each: i64) -> Vec<Vec<String>> {
    let row = |step: i64| {
        numbers
            .clone()
            .map(move |env| LedgerEnv::text([env, 0, step * each]))
    };
    (0..=40).map(|step| row(step).collect()).collect()
}

/// Ledgers whose first episode is long enough.
fn long() -> std::ops::Range<i64> {
    let is_long = |env: &i64| (*env..env + 3).all(|env| LedgerEnv::length(env, 0, 1000) > 90);
    let first = (0..).find(is_long).unwrap();
    first..first + 3
}

#[test]
fn transforms_that_do_not_read_text_leave_it_as_it_is() {
    let numbers = long();
    let own = || ledgers(numbers.clone());
    let same = expected(numbers.clone(), 1);
    assert_eq!(texts(own(), "text"), same);
    assert_eq!(
        texts(own().transformed(StepCounter::new()).unwrap(), "text"),
        same
    );
    assert_eq!(
        texts(own().transformed(InitTracker::new()).unwrap(), "text"),
        same
    );
    assert_eq!(
        texts(own().transformed(OneHotActions::new()).unwrap(), "text"),
        same
    );
    // These give the environments rows of their own, from which text is copied.
    let stacked = CatFrames::new(2, -1, Keys::of(["observation"]));
    assert_eq!(texts(own().transformed(stacked).unwrap(), "text"), same);
    let renamed = RenameTransform::new(Keys::pairs([("text", "note")]));
    assert_eq!(texts(own().transformed(renamed).unwrap(), "note"), same);
    let floats = DTypeCastTransform::new(DType::I64, DType::F32);
    assert_eq!(texts(own().transformed(floats).unwrap(), "text"), same);
    let joined: Vec<Box<dyn VecEnv>> = vec![
        Box::new(ledgers(numbers.start..numbers.start + 1)),
        Box::new(ledgers(numbers.start + 1..numbers.end)),
    ];
    assert_eq!(texts(Joined::new(joined).unwrap(), "text"), same);
    let one = numbers.start..numbers.start + 1;
    let skipping = ledgers(one.clone()).transformed(FrameSkipTransform::new(2));
    assert_eq!(texts(skipping.unwrap(), "text"), expected(one, 2));
    let without = own().transformed(ExcludeTransform::new(["text"])).unwrap();
    assert_eq!(without.spec().observation_leaves().len(), 1);
}

#[test]
fn transforms_that_read_numbers_refuse_text() {
    let own = || ledgers(0..2);
    let refusal = |made: Result<EnvSpec, EnvError>| made.unwrap_err().to_string();
    let spec = |envs: &dyn VecEnv| envs.spec().clone();
    let refused = [
        refusal(
            own()
                .transformed(ClipTransform::new(["text"], 0.0, 1.0))
                .map(|envs| spec(&envs)),
        ),
        refusal(
            own()
                .transformed(CatFrames::new(2, -1, Keys::of(["text"])))
                .map(|envs| spec(&envs)),
        ),
        refusal(
            own()
                .transformed(UnsqueezeTransform::new(-1, Keys::of(["text"])))
                .map(|envs| spec(&envs)),
        ),
        refusal(
            own()
                .transformed(ObservationNorm::new("text", &[0.0], &[1.0]))
                .map(|envs| spec(&envs)),
        ),
        refusal(
            own()
                .transformed(CatTensors::new(["observation", "text"]))
                .map(|envs| spec(&envs)),
        ),
    ];
    for message in refused {
        assert!(
            message.starts_with(r#""text" of Ledger: expected "#),
            "{message}"
        );
        assert!(message.ends_with("got bytes"), "{message}");
    }
    let cast = DTypeCastTransform::new(DType::I64, DType::Bytes);
    let message = refusal(own().transformed(cast).map(|envs| spec(&envs)));
    assert_eq!(
        message,
        r#""observation" of Ledger: expected a type of numbers to cast to, got bytes"#
    );
}
