use tensordict::NestedKey;

use crate::{EnvError, EnvSpec};

/// A spec, an argument or a value that does not fit, and why.
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
        /// Expected values, in words.
        expected: String,
        /// The value given.
        got: String,
    },
    /// An observation or action of the wrong element type, size or domain.
    #[error("{leaf:?} of {env}: expected {expected}, got {got}")]
    Leaf {
        /// Id of the environment.
        env: String,
        /// Name of the observation or action.
        leaf: NestedKey,
        /// Expected element type, shape or bounds.
        expected: String,
        /// Element type, shape or bounds in the environment.
        got: String,
    },
    /// No observation has this name.
    #[error("{env} has no observation {key:?}; it has {}", list(known))]
    NoObservation {
        /// Id of the environment.
        env: String,
        /// The name that was asked for.
        key: NestedKey,
        /// Names of the observations.
        known: Vec<NestedKey>,
    },
    /// A new observation has the name of another, or of something else in a frame.
    #[error("frames of {env} have {key:?} already: a new observation needs another name")]
    NameTaken {
        /// Id of the environment.
        env: String,
        /// The name.
        key: NestedKey,
    },
    /// A value outside its domain.
    #[error("element {element} of {leaf:?} is {value}, expected {expected}")]
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
    #[error("elements {first} to {last} of {leaf:?} hold {ones} ones, expected exactly one")]
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
    /// Environments of one policy whose specs differ.
    #[error(
        "environments of one policy observe and accept the same: expected the {part} {expected} of {env}, got {got} of {other}"
    )]
    Unlike {
        /// The part of the spec that differs: observation, action, rewards …
        part: &'static str,
        /// Id of the first environment.
        env: String,
        /// This part of the first one.
        expected: String,
        /// Id of the other one.
        other: String,
        /// This part of the other one.
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
    let keys: Vec<_> = keys.iter().map(|key| format!("{key:?}")).collect();
    match keys.is_empty() {
        true => "none".to_owned(),
        false => keys.join(", "),
    }
}
