//! Checks that a policy and an environment fit each other.

use tensordict::DType;
use windrow_env::{ChoiceCode, EnvSpec, Spec};

use crate::gaussian::{Bounds, Gaussian};
use crate::{Head, PolicyError, PolicySpec, Scale};

/// Both sides, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fit<'a> {
    pub(crate) policy: &'a str,
    pub(crate) env: &'a EnvSpec,
}

/// An action that a head can write.
#[derive(Debug)]
pub(crate) enum Action {
    /// Choices, each with its number of options.
    Choices {
        counts: Box<[usize]>,
        code: ChoiceCode,
    },
    /// The network's outputs themselves.
    Copy(DType),
    /// Samples of normal distributions.
    Normal(Gaussian, DType),
}

impl Fit<'_> {
    #[cold]
    pub(crate) fn error(&self, what: &str, expected: &str, got: &str) -> PolicyError {
        PolicyError::Fit {
            policy: self.policy.to_owned(),
            env: self.env.id.clone(),
            what: what.to_owned(),
            expected: expected.to_owned(),
            got: got.to_owned(),
        }
    }

    /// Checks that the policy's number, if it has one, equals the environment's.
    pub(crate) fn equal(
        &self,
        what: &str,
        policy: Option<usize>,
        env: usize,
    ) -> Result<(), PolicyError> {
        match policy {
            Some(n) if n != env => {
                let expected = format!("{n} by the network");
                Err(self.error(what, &expected, &format!("{env} from the environment")))
            }
            _ => Ok(()),
        }
    }

    /// How `head` writes the environment's action from `width` numbers a row.
    ///
    /// # Errors
    /// [`PolicyError::Fit`] when the action is not of the kind that the head writes, or of another
    /// size; [`PolicyError::Failed`] when the environment's spec contradicts itself.
    pub(crate) fn action(&self, head: &Head, width: usize) -> Result<Action, PolicyError> {
        self.env.check().map_err(PolicyError::failed)?;
        let leaves = self.env.action.leaves("action");
        let [(_, spec)] = leaves.as_slice() else {
            return Err(self.error("action leaves", "1", &leaves.len().to_string()));
        };
        match head {
            Head::Categorical => {
                let counts =
                    choices(spec).ok_or_else(|| self.kind(head, "discrete choices", spec))?;
                self.equal("outputs", Some(width), counts.iter().sum())?;
                let code = ChoiceCode::of(spec);
                Ok(Action::Choices { counts, code })
            }
            Head::Deterministic => {
                if let (Spec::Discrete { .. } | Spec::OneHot { .. }, Some([n])) =
                    (spec, spec.choices())
                {
                    self.equal("outputs", Some(width), *n)?;
                    let counts = [*n].into();
                    let code = ChoiceCode::of(spec);
                    return Ok(Action::Choices { counts, code });
                }
                let real = self.real(head, spec)?;
                self.equal("outputs", Some(width), spec.shape().iter().product())?;
                Ok(Action::Copy(real))
            }
            Head::Normal(scale) => self.normal(head, scale, spec, width, None),
            Head::TanhNormal(scale) => {
                let bounds = self.bounds(head, spec)?;
                self.normal(head, scale, spec, width, Some(bounds))
            }
        }
    }

    fn normal(
        &self,
        head: &Head,
        scale: &Scale,
        spec: &Spec,
        width: usize,
        bounds: Option<Bounds>,
    ) -> Result<Action, PolicyError> {
        let dtype = self.real(head, spec)?;
        let normal = Gaussian {
            actions: spec.shape().iter().product(),
            mapping: match scale {
                Scale::Mapped(mapping) => Some(mapping.prepare()),
                Scale::Parameter { .. } => None,
            },
            bounds,
        };
        self.equal("outputs", Some(width), normal.width())?;
        if normal.actions == 0 {
            return Err(self.error("elements of an action", "at least 1", "0"));
        }
        Ok(Action::Normal(normal, dtype))
    }

    fn real(&self, head: &Head, spec: &Spec) -> Result<DType, PolicyError> {
        match spec {
            Spec::Bounded { dtype, .. } | Spec::Unbounded { dtype, .. } if dtype.is_float() => {
                Ok(*dtype)
            }
            other => Err(self.kind(head, "real numbers", other)),
        }
    }

    fn bounds(&self, head: &Head, spec: &Spec) -> Result<Bounds, PolicyError> {
        let Spec::Bounded { low, high, .. } = spec else {
            return Err(self.kind(head, "real numbers between bounds", spec));
        };
        let bounds: Bounds = low
            .iter()
            .zip(high)
            .map(|(&low, &high)| (at_least(low), at_most(high)))
            .collect();
        let bad = |&(low, high): &(f32, f32)| !(high - low).is_finite() || low >= high;
        match bounds.iter().position(bad) {
            None => Ok(bounds),
            Some(i) => {
                let (low, high) = bounds[i];
                let what = format!("bounds of action element {i} for a squashed distribution");
                Err(self.error(&what, "finite and different", &format!("[{low}, {high}]")))
            }
        }
    }

    fn kind(&self, head: &Head, expected: &str, spec: &Spec) -> PolicyError {
        let what = format!("action for head {head:?}");
        self.error(&what, expected, &describe(spec))
    }
}

/// The smallest `f32` that is not below `low`: rounding down would leave the bounds.
pub(crate) fn at_least(low: f64) -> f32 {
    match low as f32 {
        rounded if f64::from(rounded) < low => rounded.next_up(),
        rounded => rounded,
    }
}

/// The largest `f32` that is not above `high`.
pub(crate) fn at_most(high: f64) -> f32 {
    -at_least(-high)
}

fn choices(spec: &Spec) -> Option<Box<[usize]>> {
    let counts = spec.choices()?;
    (!counts.is_empty() && !counts.contains(&0)).then(|| counts.into())
}

/// A spec without its bounds, which may be long.
fn describe(spec: &Spec) -> String {
    match spec {
        Spec::Unbounded { dtype, shape } => format!("unbounded {dtype} {shape:?}"),
        Spec::Bounded { dtype, shape, .. } => format!("bounded {dtype} {shape:?}"),
        Spec::Discrete { n } => format!("one of {n} choices"),
        Spec::Binary { shape } => format!("binary {shape:?}"),
        Spec::MultiDiscrete { nvec } => format!("one each of {nvec:?} choices"),
        Spec::OneHot { nvec } => format!("one-hot choices of {nvec:?}"),
        other => format!("{other:?}"),
    }
}

impl PolicySpec {
    /// Checks that the first columns are the environment's action leaves, or columns that it
    /// [takes](EnvSpec::takes) for them.
    ///
    /// # Errors
    /// [`PolicyError::Fit`] naming the first action leaf that is missing or declared otherwise.
    pub fn check_actions(&self, policy: &str, env: &EnvSpec) -> Result<(), PolicyError> {
        let fit = Fit { policy, env };
        for (i, leaf) in env.action_leaves().iter().enumerate() {
            let got = match self.columns.get(i) {
                Some(column) if env.takes(leaf, column) => continue,
                Some(column) => column.to_string(),
                None => "no such column".to_owned(),
            };
            return Err(fit.error(&format!("column {i}"), &leaf.to_string(), &got));
        }
        Ok(())
    }
}
