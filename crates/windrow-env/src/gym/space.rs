//! Spaces and actions that the native environments have in common.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensordict::{DType, Shape};
use windrow_slab::{Key, Row};

use crate::{EnvError, Spec, StateVisitor};

/// The observation: first and only leaf, `float32`.
pub(super) const OBSERVATION: Key<f32> = Key::new(0);

/// A box of `float32` values.
pub(super) fn interval<const N: usize>(low: [f32; N], high: [f32; N]) -> Spec {
    Spec::Bounded {
        dtype: DType::F32,
        shape: Shape::from_slice(&[N]),
        low: low.map(f64::from).to_vec(),
        high: high.map(f64::from).to_vec(),
    }
}

/// The entry of `table` that the discrete action of `row` chooses.
///
/// A table instead of branches: a random policy would make every branch a coin toss for the
/// predictor.
#[inline(always)]
pub(super) fn choice<const N: usize>(row: Row<'_>, table: &[f64; N]) -> Result<f64, EnvError> {
    let action = row.scalar(Key::<i64>::new(0))?;
    meaning(action, table).ok_or_else(|| no_such_choice(action, N))
}

/// The entry of `table` that `action` chooses.
#[inline(always)]
fn meaning<const N: usize>(action: i64, table: &[f64; N]) -> Option<f64> {
    table.get(usize::try_from(action).ok()?).copied()
}

/// As [`meaning`], by comparisons: vector instructions are slow at tables.
#[expect(
    clippy::needless_range_loop,
    reason = "enumerated, loops are not inlined"
)]
#[inline(always)]
pub(super) fn meaning_compared<const N: usize>(action: i64, table: &[f64; N]) -> Option<f64> {
    let mut chosen = table[0];
    for i in 1..N {
        chosen = if action == i as i64 { table[i] } else { chosen };
    }
    (0..N as i64).contains(&action).then_some(chosen)
}

/// The discrete action of `row`, one of `choices`.
#[inline(always)]
pub(super) fn index(row: Row<'_>, choices: usize) -> Result<usize, EnvError> {
    let action = row.scalar(Key::<i64>::new(0))?;
    match usize::try_from(action).ok().filter(|&i| i < choices) {
        Some(i) => Ok(i),
        None => Err(no_such_choice(action, choices)),
    }
}

#[cold]
fn no_such_choice(action: i64, choices: usize) -> EnvError {
    EnvError::Action {
        expected: format!("an integer from 0 to {}", choices - 1),
        got: action.to_string(),
    }
}

/// Saves or loads a state of motion. The absolute values of its `numbers` are at most `reach`: a
/// loaded state that no step of `id` reaches is an error, also if a number is NaN.
pub(super) fn visit_motion<S: Copy + Serialize + DeserializeOwned, const N: usize>(
    visitor: &mut StateVisitor<'_>,
    (id, reach): (&str, [f64; N]),
    state: &mut Option<S>,
    numbers: impl Fn(S) -> [f64; N],
) -> Result<(), EnvError> {
    // States name their arithmetic: some were written by a faster one, whose bits differ.
    visitor.section("exact arithmetic")?;
    visitor.checked(state, |loaded| {
        let Some(got) = loaded.map(numbers) else {
            return Ok(());
        };
        let mut each = got.iter().zip(reach);
        match each.all(|(number, most)| number.abs() <= most) {
            true => Ok(()),
            false => Err(EnvError::State {
                expected: format!("numbers of {id} with absolute values of at most {reach:?}"),
                got: format!("{got:?}"),
            }),
        }
    })
}

/// The single number of a continuous action, not yet clipped to its bounds.
#[inline(always)]
pub(super) fn number(row: Row<'_>, bound: f32) -> Result<f32, EnvError> {
    let action = row.scalar(Key::<f32>::new(0))?;
    if action.is_nan() {
        return Err(not_a_number(action, bound));
    }
    Ok(action)
}

#[cold]
fn not_a_number(action: f32, bound: f32) -> EnvError {
    EnvError::Action {
        expected: format!(
            "a number from {:.1} to {bound:.1}, or one to be clipped to it",
            -bound
        ),
        got: action.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use crate::{CartPole, Env, StateVisitor};

    #[test]
    fn a_state_of_other_arithmetic_is_refused() {
        let mut saved = StateVisitor::saving();
        saved.section("fast_math").unwrap();
        let saved = saved.finish().unwrap();
        let error = CartPole::new().visit_state(&mut StateVisitor::loading(&saved));
        assert_eq!(
            error.unwrap_err().to_string(),
            "the state does not fit: expected the state of exact arithmetic, got the state of fast_math"
        );
    }
}
