//! A policy that writes down whose weights it acts with.

use windrow::policy::{Binding, PolicyIn, PolicySpec};
use windrow::{DType, Key, LeafSpec, Policy, PolicyError, RowsMut, Tensor, TensorDict, Weights};

/// The name by which workers make it.
pub(crate) const NAME: &str = "stamp";
/// The column that it writes beside actions.
pub(crate) const COLUMN: &str = "stamp";

/// Elements of the weights: enough for a torn read to show.
const ELEMENTS: usize = 512;
/// What is written where the weights are not those of one version.
const TORN: i64 = -1;

/// Acts at random, and writes which version its weights are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stamp {
    version: i64,
}

/// Weights that say that they are this version.
pub(crate) fn weights(version: i64) -> Weights {
    let mut weights = TensorDict::new([]);
    let tensor = Tensor::full([ELEMENTS], version).unwrap();
    weights.set("version", tensor).unwrap();
    weights
}

impl Policy for Stamp {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let mut columns = binding.spec.action_leaves();
        columns.push(LeafSpec::new(COLUMN, DType::I64, []));
        Ok(PolicySpec::new(columns))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        for (row, action) in out.get_mut::<i64>(Key::new(0))?.iter_mut().enumerate() {
            *action = input.envs.noise(row).below(4).cast_signed();
        }
        out.get_mut::<i64>(Key::new(1))?.fill(self.version);
        Ok(())
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        let values = weights
            .as_slice::<i64>("version")
            .map_err(PolicyError::failed)?;
        let whole = values.len() == ELEMENTS && values.iter().all(|value| *value == values[0]);
        self.version = if whole { values[0] } else { TORN };
        Ok(())
    }

    fn weights(&self) -> Weights {
        weights(self.version)
    }
}
