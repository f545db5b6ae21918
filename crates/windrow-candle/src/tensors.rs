//! The tensors of a batch.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use tensordict::{AsKey, NestedKey, TensorDict};

use crate::{CandleError, from_candle, to_candle};

/// Tensors of candle under the keys of a [`TensorDict`].
///
/// [`TensorDict::select`] chooses the entries that are copied.
///
/// ```
/// use candle_core::Device;
/// use windrow::Collector;
/// use windrow_candle::Tensors;
///
/// let mut collector = Collector::builder("CartPole-v1").frames_per_batch(50).build()?;
/// let batch = collector.next().ok_or("no batch")??;
/// let tensors = Tensors::new(&batch, &Device::Cpu)?;
/// assert_eq!(tensors.get("observation")?.dims(), [50, 4]);
/// assert_eq!(tensors.get(("next", "reward"))?.dims(), [50, 1]);
///
/// let rewards = Tensors::new(&batch.select(&[("next", "reward")])?, &Device::Cpu)?;
/// assert_eq!(rewards.iter().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Tensors(BTreeMap<NestedKey, Tensor>);

impl Tensors {
    /// Copies every tensor of `dict` to `device`, as [`to_candle`] does.
    ///
    /// # Errors
    /// [`CandleError::At`] the first entry that cannot be copied.
    pub fn new(dict: &TensorDict, device: &Device) -> Result<Self, CandleError> {
        let copied = dict.leaves().map(|(key, tensor)| {
            let tensor = to_candle(tensor, device).map_err(|error| error.at(&key))?;
            Ok((key, tensor))
        });
        copied.collect()
    }

    /// The tensor `key`.
    ///
    /// # Errors
    /// [`CandleError::Tensor`], which lists the existing keys.
    pub fn get(&self, key: impl AsKey) -> Result<&Tensor, CandleError> {
        let key = key.to_key();
        let found = self.0.get(&key);
        found.ok_or_else(|| CandleError::missing(key, self.0.keys().map(NestedKey::to_string)))
    }

    /// Keys and tensors, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&NestedKey, &Tensor)> {
        self.0.iter()
    }

    /// Copies every tensor to a dictionary of `batch_size`, as [`from_candle`] does.
    ///
    /// # Errors
    /// [`CandleError::At`] the first entry that cannot be copied; [`CandleError::Tensor`] for one
    /// that does not start with `batch_size`.
    pub fn to_dict(&self, batch_size: impl AsRef<[usize]>) -> Result<TensorDict, CandleError> {
        let mut dict = TensorDict::new(batch_size);
        for (key, tensor) in &self.0 {
            let tensor = from_candle(tensor).map_err(|error| error.at(key))?;
            dict.set(key, tensor)?;
        }
        Ok(dict)
    }
}

impl FromIterator<(NestedKey, Tensor)> for Tensors {
    fn from_iter<I: IntoIterator<Item = (NestedKey, Tensor)>>(tensors: I) -> Self {
        Self(tensors.into_iter().collect())
    }
}
