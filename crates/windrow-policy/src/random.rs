//! Actions drawn uniformly from the action space.

use pulp::{Arch, Simd, WithSimd};
use tensordict::{DType, Element, NestedKey};
use windrow_env::{ChoiceCode, EnvError, EnvSpec, Spec, StateVisitor};
use windrow_slab::{Key, Rows, RowsMut};

use crate::weights::expect_none;
use crate::{Binding, Noise, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec, Weights};

/// Rows from which on vector instructions are worth the choice between their variants.
const MANY_ROWS: usize = 16;

/// Draws every action leaf from its whole domain, independently of observations; choices with a
/// [mask](EnvSpec::masks) are restricted to legal ones.
///
/// Choices and bounded values are uniform; values with one bound are that bound plus or minus an
/// exponential of mean 1, values without bounds normal. Integers are uniform over both bounds
/// included, or the above rounded down.
///
/// A row's action depends on seed, environment and frame only.
///
/// Source: the distributions are those of `Space.sample` in Gymnasium's documentation (`Box`,
/// `Discrete`, `MultiDiscrete`, `MultiBinary`).
///
/// ```
/// use windrow_env::{EnvSpec, Spec};
/// use windrow_policy::{Binding, Policy, RandomPolicy};
/// # use tensordict::DType;
///
/// let env = EnvSpec::new("Coin", Spec::unbounded(DType::F32, [1]), Spec::discrete(2));
/// let mut policy = RandomPolicy::new();
/// assert_eq!(policy.bind(&Binding::new(&env, 1)).unwrap().columns, env.action_leaves());
/// ```
#[derive(Debug, Clone, Default)]
pub struct RandomPolicy {
    leaves: Option<Box<[Sampler]>>,
    /// The number of choices, where the action is a single one.
    choices: Option<u32>,
    arch: Arch,
}

impl RandomPolicy {
    /// A policy that learns the action space when it is bound.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for RandomPolicy {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let env = binding.spec;
        env.check().map_err(PolicyError::failed)?;
        let leaves = env.action.leaves("action");
        let samplers: Result<_, _> = leaves
            .iter()
            .map(|(key, spec)| {
                let sampler = Sampler::new(spec);
                let sampler = sampler.ok_or_else(|| unfit(env, &format!("{key:?}"), spec))?;
                match env.masks.iter().find(|(action, _)| action == key) {
                    Some((_, mask)) => sampler.masked(env, mask),
                    None => Ok(sampler),
                }
            })
            .collect();
        let samplers: Box<[_]> = samplers?;
        self.choices = match *samplers {
            [Sampler::Choice(n)] => u32::try_from(n).ok(),
            _ => None,
        };
        self.leaves = Some(samplers);
        Ok(PolicySpec::new(env.action_leaves()))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        // One choice of one environment is the commonest case, and a few instructions without the
        // others.
        if let (Some(n), [noise], 1, 1) = (
            self.choices,
            input.envs.all_noise(),
            input.obs.envs(),
            out.envs(),
        ) && let [action] = out.get_mut(Key::new(0))?
        {
            *action = i64::from(noise.clone().below_u32(n));
            return Ok(());
        }
        self.draw(input, out)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        Ok(expect_none(weights)?)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        Ok(expect_none(weights)?)
    }

    fn recipe(&self) -> Option<PolicyRecipe> {
        Some(PolicyRecipe::random())
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

impl RandomPolicy {
    /// Draws every leaf of every row.
    #[inline(never)]
    fn draw(&self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        let Some(leaves) = &self.leaves else {
            return Err(PolicyError::NotBound {
                policy: "random policy",
            });
        };
        input.check_rows(out.envs())?;
        let noise = input.envs.all_noise();
        for (leaf, sampler) in leaves.iter().enumerate() {
            sampler.fill(self.arch, noise, input.obs, leaf, &mut out)?;
        }
        Ok(())
    }
}

#[cold]
fn unfit(env: &EnvSpec, leaf: &str, spec: &Spec) -> PolicyError {
    PolicyError::Fit {
        policy: "random policy".into(),
        env: env.id.clone(),
        what: format!("domain of action leaf {leaf}"),
        expected: "at least one value".into(),
        got: format!("{spec:?}"),
    }
}

/// How one leaf is drawn, decided when the policy is bound.
#[derive(Debug, Clone)]
enum Sampler {
    /// One choice of this many options.
    Choice(u64),
    /// A choice for each element.
    Choices(Box<[u64]>),
    /// A choice for each vector, as a one among zeros.
    OneHot(Box<[usize]>),
    /// As [`Choices`](Self::Choices) or [`OneHot`](Self::OneHot), of those options that an
    /// observation says are legal.
    Legal {
        options: Box<[usize]>,
        code: ChoiceCode,
        mask: usize,
        dtype: DType,
    },
    /// This number of zeros or ones.
    Bits(Box<[()]>),
    /// A number for each element.
    Values(DType, Box<[Domain]>),
}

impl Sampler {
    /// `None` when the domain has no value.
    fn new(spec: &Spec) -> Option<Self> {
        Some(match spec {
            Spec::Discrete { n } => Self::Choice(non_zero(*n)?),
            Spec::MultiDiscrete { nvec } => {
                Self::Choices(nvec.iter().map(|&n| non_zero(n)).collect::<Option<_>>()?)
            }
            Spec::OneHot { nvec } => Self::OneHot(
                nvec.iter()
                    .all(|&n| n > 0)
                    .then(|| nvec.as_slice().into())?,
            ),
            Spec::Binary { shape } => {
                Self::Bits(std::iter::repeat_n((), shape.iter().product()).collect())
            }
            Spec::Unbounded { dtype, shape } => {
                let free = Domain::new(*dtype, f64::NEG_INFINITY, f64::INFINITY)?;
                Self::Values(*dtype, vec![free; shape.iter().product()].into())
            }
            Spec::Bounded {
                dtype, low, high, ..
            } => {
                let domains = low.iter().zip(high);
                let domains = domains.map(|(&low, &high)| Domain::new(*dtype, low, high));
                Self::Values(*dtype, domains.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}

impl Sampler {
    /// The same with only those choices that the observation `mask` says are legal.
    fn masked(self, env: &EnvSpec, mask: &NestedKey) -> Result<Self, PolicyError> {
        let (options, code): (Box<[usize]>, _) = match self {
            Self::Choice(n) => (Box::from([n as usize]), ChoiceCode::Index),
            Self::Choices(n) => (n.iter().map(|&n| n as usize).collect(), ChoiceCode::Index),
            Self::OneHot(n) => (n, ChoiceCode::OneHot),
            other => return Ok(other),
        };
        let width = options.iter().sum::<usize>();
        let leaves = env.observation_leaves();
        let found = leaves
            .iter()
            .position(|leaf| leaf.key == *mask && is_flag(leaf.dtype) && leaf.elements() == width);
        let Some(mask) = found else {
            return Err(PolicyError::Fit {
                policy: "random policy".into(),
                env: env.id.clone(),
                what: format!("mask of legal actions {mask:?}"),
                expected: format!("an observation of bool, int8 or uint8 [{width}]"),
                got: match leaves.iter().find(|leaf| leaf.key == *mask) {
                    Some(leaf) => format!("{} {:?}", leaf.dtype, leaf.shape.as_slice()),
                    None => "none of this name".into(),
                },
            });
        };
        Ok(Self::Legal {
            options,
            code,
            dtype: leaves[mask].dtype,
            mask,
        })
    }

    /// Draws one leaf of every row.
    fn fill(
        &self,
        arch: Arch,
        rows: &[Noise],
        obs: Rows<'_>,
        leaf: usize,
        out: &mut RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        match self {
            Self::Choice(n) => {
                let out = out.get_mut(Key::new(leaf))?;
                choices(arch, *n, rows, leaf, out);
                Ok(())
            }
            Self::Choices(n) => fill(n, rows, leaf, out, |&n, noise| noise.below(n).cast_signed()),
            Self::OneHot(n) => one_hot(n, rows, leaf, out.get_mut(Key::new(leaf))?),
            Self::Legal {
                options,
                code,
                mask,
                dtype,
            } => {
                let mask = flags(obs, *mask, *dtype)?;
                legal(
                    options,
                    *code,
                    rows,
                    leaf,
                    &mask,
                    out.get_mut(Key::new(leaf))?,
                )
            }
            Self::Bits(elements) => fill(elements, rows, leaf, out, |(), noise| {
                (noise.bits() >> 63) as i8
            }),
            Self::Values(dtype, domains) => values(*dtype, domains, rows, leaf, out),
        }
    }
}

fn non_zero(n: usize) -> Option<u64> {
    (n > 0).then_some(n as u64)
}

/// The domain of one number.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Domain {
    /// Between two bounds, the upper one a whole unit higher for integers.
    Between(f64, f64),
    /// Not below.
    Above(f64),
    /// Not above.
    Below(f64),
    /// Anything.
    Free,
}

impl Domain {
    fn new(dtype: DType, low: f64, high: f64) -> Option<Self> {
        // Every bit pattern of a small type is a legal value, so its own limits are bounds.
        let (low, high) = match dtype {
            DType::Bool => (low.max(0.0), high.min(1.0)),
            DType::U8 => (low.max(0.0), high.min(f64::from(u8::MAX))),
            _ => (low, high),
        };
        let unit = if dtype.is_float() { 0.0 } else { 1.0 };
        match (low.is_finite(), high.is_finite()) {
            (true, true) => (low <= high).then_some(Self::Between(low, high + unit)),
            (true, false) => (high > low).then_some(Self::Above(low)),
            (false, true) => (low < high).then_some(Self::Below(high)),
            (false, false) => (low < high).then_some(Self::Free),
        }
    }

    #[inline]
    fn sample(self, noise: &mut Noise) -> f64 {
        match self {
            Self::Between(low, high) => {
                let u = noise.f64();
                // Each side by itself, since the distance between the bounds may overflow.
                (low * (1.0 - u) + high * u).clamp(low, high)
            }
            Self::Above(low) => low + noise.exponential(),
            Self::Below(high) => high - noise.exponential(),
            Self::Free => noise.normal(),
        }
    }

    /// An integer; the bound that [`new`](Self::new) raised by one is never reached.
    #[inline]
    fn sample_integer(self, noise: &mut Noise) -> i64 {
        let value = self.sample(noise).floor() as i64;
        match self {
            Self::Between(_, high) => value.min(high as i64 - 1),
            _ => value,
        }
    }
}

/// One choice a row: the loop that random collection spends its time in.
#[inline(always)]
fn choices(arch: Arch, n: u64, rows: &[Noise], leaf: usize, out: &mut [i64]) {
    let op = FillChoices { n, rows, leaf, out };
    match op.out.len() {
        0..MANY_ROWS => op.run(),
        _ => arch.dispatch(op),
    }
}

#[inline(always)]
fn choice(n: u64, noise: &Noise, leaf: usize) -> i64 {
    let mut noise = noise.branch(leaf);
    match u32::try_from(n) {
        Ok(n) => i64::from(noise.below_u32(n)),
        Err(_) => noise.below(n).cast_signed(),
    }
}

struct FillChoices<'a> {
    n: u64,
    rows: &'a [Noise],
    leaf: usize,
    out: &'a mut [i64],
}

impl FillChoices<'_> {
    #[inline(always)]
    fn run(self) {
        let (n, leaf) = (self.n, self.leaf);
        // Distinguished outside the loops, so that each is a vector loop.
        match (u32::try_from(n), leaf) {
            (Ok(_), 0) => self.each(|noise| choice(n & u64::from(u32::MAX), noise, 0)),
            (Ok(_), _) => self.each(|noise| choice(n & u64::from(u32::MAX), noise, leaf)),
            (Err(_), _) => self.each(|noise| choice(n, noise, leaf)),
        }
    }

    #[inline(always)]
    fn each(self, draw: impl Fn(&Noise) -> i64) {
        for (action, noise) in self.out.iter_mut().zip(self.rows) {
            *action = draw(noise);
        }
    }
}

impl WithSimd for FillChoices<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.run();
    }
}

/// The choices that would be drawn as indices, as ones among zeros.
fn one_hot(
    options: &[usize],
    rows: &[Noise],
    leaf: usize,
    out: &mut [i64],
) -> Result<(), PolicyError> {
    let code = ChoiceCode::OneHot;
    out.fill(0);
    for (row, noise) in out
        .chunks_exact_mut(code.elements(options).max(1))
        .zip(rows)
    {
        if let [n] = *options {
            code.write(row, 0, 0, choice(n as u64, noise, leaf) as usize);
            continue;
        }
        let (mut noise, mut first) = (noise.branch(leaf), 0);
        for (number, &n) in options.iter().enumerate() {
            code.write(row, number, first, noise.below(n as u64) as usize);
            first += n;
        }
    }
    Ok(())
}

/// Whether masks may hold elements of `dtype`.
fn is_flag(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::I8 | DType::U8)
}

/// Whether the elements of an observation are set.
fn flags(obs: Rows<'_>, leaf: usize, dtype: DType) -> Result<Vec<bool>, PolicyError> {
    fn set<T: Element + Default + PartialEq>(values: &[T]) -> Vec<bool> {
        values.iter().map(|value| *value != T::default()).collect()
    }
    Ok(match dtype {
        DType::I8 => set(obs.get::<i8>(Key::new(leaf))?),
        DType::U8 => set(obs.get::<u8>(Key::new(leaf))?),
        _ => set(obs.get::<bool>(Key::new(leaf))?),
    })
}

/// Choices among those options that `mask` says are legal.
fn legal(
    options: &[usize],
    code: ChoiceCode,
    rows: &[Noise],
    leaf: usize,
    mask: &[bool],
    out: &mut [i64],
) -> Result<(), PolicyError> {
    out.fill(0);
    let masks = mask.chunks_exact(options.iter().sum());
    let actions = out.chunks_exact_mut(code.elements(options));
    for ((row, mask), noise) in actions.zip(masks).zip(rows) {
        let (mut noise, mut first) = (noise.branch(leaf), 0);
        for (number, &n) in options.iter().enumerate() {
            let options = &mask[first..first + n];
            let count = options.iter().filter(|legal| **legal).count() as u64;
            let drawn = noise.below(count) as usize;
            let mut legal = options.iter().enumerate().filter(|(_, legal)| **legal);
            let Some((chosen, _)) = legal.nth(drawn) else {
                return Err(PolicyError::NoLegalAction);
            };
            code.write(row, number, first, chosen);
            first += n;
        }
    }
    Ok(())
}

/// `draw` for every element of every row, with that row's stream.
fn fill<T: Element, D>(
    elements: &[D],
    rows: &[Noise],
    leaf: usize,
    out: &mut RowsMut<'_>,
    draw: impl Fn(&D, &mut Noise) -> T,
) -> Result<(), PolicyError> {
    if elements.is_empty() {
        return Ok(());
    }
    let out = out
        .get_mut(Key::<T>::new(leaf))?
        .chunks_exact_mut(elements.len());
    for (row, noise) in out.zip(rows) {
        let mut noise = noise.branch(leaf);
        for (value, element) in row.iter_mut().zip(elements) {
            *value = draw(element, &mut noise);
        }
    }
    Ok(())
}

/// Numbers of any element type.
fn values(
    dtype: DType,
    domains: &[Domain],
    rows: &[Noise],
    leaf: usize,
    out: &mut RowsMut<'_>,
) -> Result<(), PolicyError> {
    let whole = |domain: &Domain, noise: &mut Noise| domain.sample_integer(noise);
    match dtype {
        DType::F64 => fill(domains, rows, leaf, out, |d, noise| d.sample(noise)),
        DType::Bool => fill(domains, rows, leaf, out, |d, noise| whole(d, noise) != 0),
        DType::U8 => fill(domains, rows, leaf, out, |d, noise| whole(d, noise) as u8),
        DType::I8 => fill(domains, rows, leaf, out, |d, noise| whole(d, noise) as i8),
        DType::I16 => fill(domains, rows, leaf, out, |d, noise| whole(d, noise) as i16),
        DType::I32 => fill(domains, rows, leaf, out, |d, noise| whole(d, noise) as i32),
        DType::I64 => fill(domains, rows, leaf, out, whole),
        _ => fill(domains, rows, leaf, out, |d, noise| d.sample(noise) as f32),
    }
}

#[cfg(test)]
#[path = "random_tests.rs"]
mod tests;
