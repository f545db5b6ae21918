use tensordict::NestedKey;

use crate::{EnvError, EnvSpec};

/// What does not fit in a spec, an argument or a value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// An argument that does not fit.
    #[error("{argument} of {of}: expected {expected}, got {got}")]
    Argument {
        /// Name of the argument.
        argument: &'static str,
        /// Environment, transform or observation that it is an argument for.
        of: String,
        /// What was expected.
        expected: String,
        /// What was given.
        got: String,
    },
    /// An observation or action that is not of the kind that it has to be.
    #[error("{leaf} of {env}: expected {expected}, got {got}")]
    Leaf {
        /// Id of the environment.
        env: String,
        /// Name of the observation or action.
        leaf: NestedKey,
        /// What was expected: an element type, a shape, bounds.
        expected: String,
        /// What the environment has.
        got: String,
    },
    /// No observation has this name.
    #[error("{env} has no observation {key}; it has {}", list(known))]
    NoObservation {
        /// Id of the environment.
        env: String,
        /// The name that was asked for.
        key: NestedKey,
        /// Names of the observations.
        known: Vec<NestedKey>,
    },
    /// A new observation has the name of another, or of something else in a frame.
    #[error("frames of {env} have {key} already: a new observation needs another name")]
    NameTaken {
        /// Id of the environment.
        env: String,
        /// The name.
        key: NestedKey,
    },
    /// A value outside its domain.
    #[error("element {element} of {leaf} is {value}, expected {expected}")]
    Value {
        /// Name of the observation or action.
        leaf: NestedKey,
        /// Which of its elements, row-major.
        element: usize,
        /// The value.
        value: f64,
        /// The domain, in words.
        expected: String,
    },
    /// A one-hot vector without a one, or with several.
    #[error("elements {first} to {last} of {leaf} hold {ones} ones, expected exactly one")]
    Ones {
        /// Name of the observation or action.
        leaf: NestedKey,
        /// First element of the vector.
        first: usize,
        /// Last element of the vector.
        last: usize,
        /// How many ones it holds.
        ones: usize,
    },
    /// Lower and upper bounds that are not as many.
    #[error("bounds of different lengths: {lower} lower and {upper} upper ones")]
    Bounds {
        /// Number of lower bounds.
        lower: usize,
        /// Number of upper bounds.
        upper: usize,
    },
    /// A lower bound that is above its upper one, or not a number.
    #[error("bounds of element {element} are not an interval: [{low}, {high}]")]
    Interval {
        /// Which element, row-major.
        element: usize,
        /// Its lower bound.
        low: f32,
        /// Its upper bound.
        high: f32,
    },
    /// Environments of one vector with different specs.
    #[error(
        "environments of one vector need equal specs: environment 0 has {first:?}, environment {env} has {other:?}"
    )]
    Differs {
        /// Spec of environment 0.
        first: Box<EnvSpec>,
        /// Index of the other environment.
        env: usize,
        /// Its spec.
        other: Box<EnvSpec>,
    },
    /// Environments of one policy that differ in what a policy sees of them.
    #[error(
        "environments of one policy observe and accept the same: expected the {part} {expected} of {env}, got {got} of {other}"
    )]
    Unlike {
        /// What differs: the observation, the action, the rewards …
        part: &'static str,
        /// Id of the first environment.
        env: String,
        /// What the first one has.
        expected: String,
        /// Id of the other one.
        other: String,
        /// What the other one has.
        got: String,
    },
}

impl SpecError {
    /// The error for `argument`, a number of steps of the environment of `spec`, when it is 0.
    pub(crate) fn no_steps(argument: &'static str, spec: &EnvSpec) -> EnvError {
        let error = Self::Argument {
            argument,
            of: spec.id.clone(),
            expected: "1 step or more".to_owned(),
            got: 0.to_string(),
        };
        error.into()
    }
}

fn list(keys: &[NestedKey]) -> String {
    let keys: Vec<_> = keys.iter().map(NestedKey::to_string).collect();
    match keys.is_empty() {
        true => "none".to_owned(),
        false => keys.join(", "),
    }
}
