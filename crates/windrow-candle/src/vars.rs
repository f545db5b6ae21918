//! Parameters that learn.

use std::collections::BTreeMap;

use candle_core::{Device, Var};
use windrow_policy::{Misfit, Weights};

use crate::tensor::windrow_dtype;
use crate::{CandleError, from_candle, to_candle};

/// Variables of candle under the names of windrow's [`Weights`], which are PyTorch's: `"0.weight"`,
/// `"0.bias"`, `"log_std"`, …
///
/// Clones, and networks made of them, share the variables, as those of candle do.
/// [`weights`](Self::weights) shares nothing: a policy that gets them keeps its parameters while
/// the variables learn.
///
/// For networks of candle's own layers, they go into a `VarMap` of candle-nn and come out of one:
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap, linear};
/// use windrow::nn::Sequential;
/// use windrow_candle::Vars;
///
/// let mut net = Sequential::new().linear(4, 2);
/// let map = VarMap::new();
/// map.data().lock().expect("nobody panicked").extend(Vars::new(&net.weights(), &Device::Cpu)?);
/// let layer = linear(4, 2, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("0"))?;
/// // Learn here.
/// # assert_eq!(windrow_candle::from_candle(layer.weight())?, *net.weights().get("0.weight")?);
/// let vars: Vars = map.data().lock().expect("nobody panicked").clone().into_iter().collect();
/// net.load(&vars.weights()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Vars(BTreeMap<String, Var>);

impl Vars {
    /// Variables on `device`, with copies of `weights`, such as
    /// [`Policy::weights`](windrow_policy::Policy::weights) gives. Nested names are joined by dots.
    ///
    /// # Errors
    /// [`CandleError::At`] the first that cannot be copied.
    pub fn new(weights: &Weights, device: &Device) -> Result<Self, CandleError> {
        let flat = weights.flatten_keys(".")?;
        let vars = flat.leaves().map(|(key, tensor)| {
            let var = to_candle(tensor, device).and_then(|copy| Ok(Var::from_tensor(&copy)?));
            Ok((key.to_string(), var.map_err(|error| error.at(&key))?))
        });
        vars.collect()
    }

    /// The variable `name`.
    ///
    /// # Errors
    /// [`CandleError::Tensor`], which lists the existing names.
    pub fn get(&self, name: &str) -> Result<&Var, CandleError> {
        let found = self.0.get(name);
        found.ok_or_else(|| CandleError::missing(name, self.0.keys().cloned()))
    }

    /// Names and variables, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Var)> {
        self.0.iter().map(|(name, var)| (name.as_str(), var))
    }

    /// All variables, as optimizers take them.
    #[must_use]
    pub fn all_vars(&self) -> Vec<Var> {
        self.0.values().cloned().collect()
    }

    /// A copy of the values for a policy, such as `update_policy_weights` of a collector takes.
    ///
    /// # Errors
    /// [`CandleError::At`] the first that cannot be copied.
    pub fn weights(&self) -> Result<Weights, CandleError> {
        let mut weights = Weights::new([]);
        for (name, var) in self.iter() {
            let tensor = from_candle(var).map_err(|error| error.at(name))?;
            weights.set(name, tensor)?;
        }
        Ok(weights)
    }

    /// Takes over the values of `weights`, such as those of a file, all or (on error) none. What
    /// shares the variables has them at once.
    ///
    /// # Errors
    /// [`CandleError::Policy`] naming every tensor that is missing, unexpected, or of another shape
    /// or element type.
    pub fn load(&self, weights: &Weights) -> Result<(), CandleError> {
        let flat = weights.flatten_keys(".")?;
        let named = flat.leaves().map(|(key, tensor)| (key.to_string(), tensor));
        let mut left: BTreeMap<_, _> = named.collect();
        let mut values = Vec::with_capacity(self.0.len());
        let mut misfits = Vec::new();
        for (name, var) in self.iter() {
            let dtype = windrow_dtype(var.dtype()).map_err(|error| error.at(name))?;
            let found = left.remove(name);
            match Misfit::check(|| name.to_owned(), dtype, var.dims(), found) {
                Ok(tensor) => values.push(to_candle(tensor, var.device())?.to_dtype(var.dtype())?),
                Err(misfit) => misfits.push(misfit),
            }
        }
        misfits.extend(left.into_iter().map(|(name, tensor)| Misfit::Unexpected {
            name,
            got: tensor.shape().into(),
        }));
        CandleError::of_misfits(misfits)?;
        for (var, value) in self.0.values().zip(&values) {
            var.set(value)?;
        }
        Ok(())
    }
}

impl FromIterator<(String, Var)> for Vars {
    fn from_iter<I: IntoIterator<Item = (String, Var)>>(vars: I) -> Self {
        Self(vars.into_iter().collect())
    }
}

impl IntoIterator for Vars {
    type Item = (String, Var);
    type IntoIter = std::collections::btree_map::IntoIter<String, Var>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
#[path = "vars_tests.rs"]
mod tests;
