//! A policy that writes down which weights it has.
#![allow(dead_code, reason = "each test target uses some of it")]

use tensordict::{DType, Tensor, TensorDict};
use windrow_policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights};
use windrow_slab::{Key, LeafSpec, RowsMut};

/// Elements of the weights: enough for a torn read to show.
const ELEMENTS: usize = 512;

/// Acts at random, and writes the value of its weights to the column `"weight"`: NaN when they are
/// not all equal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stamp {
    weight: f32,
}

/// Weights that are `value` all over.
pub(crate) fn weights(value: f32) -> Weights {
    let mut weights = TensorDict::new([]);
    let tensor = Tensor::full([ELEMENTS], value).unwrap();
    weights.set("weight", tensor).unwrap();
    weights
}

impl Policy for Stamp {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let mut columns = binding.spec.action_leaves();
        columns.push(LeafSpec::new("weight", DType::F32, []));
        Ok(PolicySpec::new(columns))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        for (row, action) in out.get_mut::<i64>(Key::new(0))?.iter_mut().enumerate() {
            *action = input.envs.noise(row).below(4).cast_signed();
        }
        out.get_mut::<f32>(Key::new(1))?.fill(self.weight);
        Ok(())
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        let values = weights
            .as_slice::<f32>("weight")
            .map_err(PolicyError::failed)?;
        let whole = values.len() == ELEMENTS && values.iter().all(|value| *value == values[0]);
        self.weight = if whole { values[0] } else { f32::NAN };
        Ok(())
    }

    fn weights(&self) -> Weights {
        weights(self.weight)
    }
}
