//! Printing dicts.

use std::fmt;

use super::{Entry, TensorDict};

/// Spaces that one level of nesting is indented by.
const INDENT: usize = 4;

/// Names, shapes and dtypes as a tree, without elements.
impl fmt::Display for TensorDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_indented(f, 0)
    }
}

/// As [`TensorDict`] prints it; a tensor shows its shape and dtype only.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_indented(f, 0)
    }
}

impl Entry {
    fn write_indented(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        match self {
            Entry::Tensor(tensor) => tensor.write_header(f),
            Entry::Dict(dict) => dict.write_indented(f, indent),
        }
    }
}

impl TensorDict {
    /// Writes the dict, whose first line starts wherever the caller stands, with `indent` spaces
    /// before the others.
    fn write_indented(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        let (inner, field) = (indent + INDENT, indent + 2 * INDENT);
        write!(f, "TensorDict(\n{:inner$}fields={{", "")?;
        for (i, (name, entry)) in self.entries.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}\n{:field$}{name}: ", "")?;
            entry.write_indented(f, field)?;
        }
        write!(
            f,
            "}},\n{:inner$}batch_size={:?}",
            "",
            self.batch.size.as_slice()
        )?;
        if self.batch.names.iter().any(Option::is_some) {
            f.write_str(", names=[")?;
            for (i, name) in self.batch.names.iter().enumerate() {
                f.write_str(if i == 0 { "" } else { ", " })?;
                match name {
                    Some(name) => write!(f, "{name:?}")?,
                    None => f.write_str("None")?,
                }
            }
            f.write_str("]")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Tensor, TensorDict};

    #[test]
    fn prints_a_collected_batch() {
        let zeros = |dtype, shape: &[usize]| Tensor::zeros(dtype, shape).unwrap();
        let mut batch = TensorDict::new([200]).with_names(&[Some("time")]).unwrap();
        batch.set("action", zeros(DType::F32, &[200, 1])).unwrap();
        batch
            .set(("collector", "traj_ids"), zeros(DType::I64, &[200]))
            .unwrap();
        batch.set("done", zeros(DType::Bool, &[200, 1])).unwrap();
        batch
            .set(("next", "observation"), zeros(DType::F32, &[200, 3]))
            .unwrap();
        batch
            .set(("next", "reward"), zeros(DType::F32, &[200, 1]))
            .unwrap();
        let expected = r#"TensorDict(
    fields={
        action: Tensor(shape=[200, 1], dtype=float32),
        collector: TensorDict(
            fields={
                traj_ids: Tensor(shape=[200], dtype=int64)},
            batch_size=[200], names=["time"]),
        done: Tensor(shape=[200, 1], dtype=bool),
        next: TensorDict(
            fields={
                observation: Tensor(shape=[200, 3], dtype=float32),
                reward: Tensor(shape=[200, 1], dtype=float32)},
            batch_size=[200], names=["time"])},
    batch_size=[200], names=["time"])"#;
        assert_eq!(batch.to_string(), expected);
        assert_eq!(
            batch.get_entry("done").unwrap().to_string(),
            "Tensor(shape=[200, 1], dtype=bool)"
        );
    }

    #[test]
    fn prints_empty_and_unnamed() {
        assert_eq!(
            TensorDict::new([]).to_string(),
            "TensorDict(\n    fields={},\n    batch_size=[])"
        );
        let half = TensorDict::new([2, 3])
            .with_names(&[None, Some("time")])
            .unwrap();
        assert!(
            half.to_string()
                .ends_with(r#"batch_size=[2, 3], names=[None, "time"])"#)
        );
    }
}
