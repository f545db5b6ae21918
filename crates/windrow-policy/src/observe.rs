//! Joins one or several observation leaves into one block of numbers.

use tensordict::{DType, NestedKey};
use windrow_slab::{Key, Rows};

use crate::PolicyError;
use crate::error::names;
use crate::fit::Fit;

/// Which leaves a network reads.
#[derive(Debug, Clone)]
pub(crate) struct Observe {
    leaves: Vec<Leaf>,
    elements: usize,
    /// All leaves side by side, `[rows, elements]`; unused when there is one leaf of `float32`.
    gathered: Vec<f32>,
}

#[derive(Debug, Clone, Copy)]
struct Leaf {
    index: usize,
    dtype: DType,
    elements: usize,
}

impl Observe {
    /// The leaves called `keys`, `"observation"` when there are none.
    ///
    /// # Errors
    /// [`PolicyError::Fit`] when the environment has no such leaf, or one that does not hold real
    /// numbers.
    pub(crate) fn new(fit: &Fit<'_>, keys: &[NestedKey]) -> Result<Self, PolicyError> {
        let specs = fit.env.observation_leaves();
        let default = [NestedKey::from("observation")];
        let keys = if keys.is_empty() { &default } else { keys };
        let mut leaves = Vec::new();
        for key in keys {
            let Some(index) = specs.iter().position(|spec| spec.key == *key) else {
                let all = names(specs.iter().map(|spec| &spec.key));
                return Err(fit.error("observation leaves", &format!("{key:?}"), &all));
            };
            let (dtype, elements) = (specs[index].dtype, specs[index].elements());
            if !dtype.is_float() {
                let what = format!("dtype of observation leaf {key:?}");
                return Err(fit.error(&what, "float32 or float64", dtype.name()));
            }
            leaves.push(Leaf {
                index,
                dtype,
                elements,
            });
        }
        Ok(Self {
            elements: leaves.iter().map(|leaf| leaf.elements).sum(),
            leaves,
            gathered: Vec::new(),
        })
    }

    /// Numbers in a row.
    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    /// `[rows, elements]`; copies nothing when there is a single leaf of `float32`.
    pub(crate) fn read<'a>(&'a mut self, obs: Rows<'a>) -> Result<&'a [f32], PolicyError> {
        if let [leaf] = self.leaves.as_slice()
            && leaf.dtype == DType::F32
        {
            return Ok(obs.get(Key::new(leaf.index))?);
        }
        self.gathered.resize(obs.envs() * self.elements, 0.0);
        let mut first = 0;
        for leaf in &self.leaves {
            let (width, skip) = (leaf.elements.max(1), first);
            let to = self.gathered.chunks_exact_mut(self.elements.max(1));
            let to = to.map(|row| &mut row[skip..skip + leaf.elements]);
            if leaf.dtype == DType::F64 {
                let from = obs.get::<f64>(Key::new(leaf.index))?.chunks_exact(width);
                for (to, from) in to.zip(from) {
                    for (to, &from) in to.iter_mut().zip(from) {
                        *to = from as f32;
                    }
                }
            } else {
                let from = obs.get::<f32>(Key::new(leaf.index))?.chunks_exact(width);
                for (to, from) in to.zip(from) {
                    to.copy_from_slice(from);
                }
            }
            first += leaf.elements;
        }
        Ok(&self.gathered)
    }
}
