//! The metadata that gives a flat safetensors file its nesting back.
//!
//! ```json
//! {"version": 1,
//!  "dicts": [{"path": [], "batch_size": [2], "names": ["time"]},
//!            {"path": ["next"], "batch_size": [2], "names": ["time"]}],
//!  "tensors": {"action": ["action"], "next.reward": ["next", "reward"]}}
//! ```
//!
//! A tensor of bytes is in the file as one of `uint8`, its encoded form; then
//! `"strings": {"text": [2]}` has its shape, and the version is 2.
//!
//! Dicts come before those inside them. Names in the file are for people and other tools to read;
//! nothing is guessed from their dots. All is flat, because JSON readers limit nesting.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::tensordict::{Batch, Names};
use crate::{DType, Entry, NestedKey, Result, Shape, TensorDict, TensorError};

/// Name of the metadata item.
pub(super) const METADATA_KEY: &str = "windrow.tensordict";

/// The one name that a tensor in a file cannot have.
const RESERVED: &str = "__metadata__";

/// The version of a file without tensors of bytes, and of one with such.
const VERSIONS: [u64; 2] = [1, 2];

/// Most names in the path of a dict. Reading, writing and dropping a dict recurses, and takes stack
/// for each name.
const DEEPEST: usize = 100;

/// Names of a path, outermost first; empty for the outermost dict.
type Path = Vec<String>;

/// Where every dict and tensor of a file belongs.
#[derive(Debug)]
pub(super) struct Layout {
    /// Path and batch of every dict, outer dicts first.
    pub(super) dicts: Vec<(Path, Batch)>,
    /// Name in the file and path of every tensor.
    pub(super) tensors: BTreeMap<String, Path>,
    /// Name in the file and shape of every tensor of bytes.
    pub(super) strings: BTreeMap<String, Vec<usize>>,
}

impl Layout {
    /// The layout of `dict`, with names for its tensors that are unique in a file.
    ///
    /// # Errors
    /// [`TensorError::Corrupt`] for dicts that are nested too deep.
    pub(super) fn of(dict: &TensorDict) -> Result<Layout> {
        let mut layout = Layout {
            dicts: Vec::new(),
            tensors: BTreeMap::new(),
            strings: BTreeMap::new(),
        };
        layout.add(&mut Vec::new(), dict)?;
        Ok(layout)
    }

    fn add(&mut self, path: &mut Path, dict: &TensorDict) -> Result<()> {
        check_depth(path)?;
        self.dicts.push((path.clone(), dict.batch().clone()));
        for (name, entry) in dict.entries() {
            path.push(name.to_string());
            match entry {
                Entry::Dict(inner) => self.add(path, inner)?,
                Entry::Tensor(tensor) => {
                    let name = self.unused_name(path.join("."));
                    if tensor.dtype() == DType::Bytes {
                        self.strings.insert(name.clone(), tensor.shape().to_vec());
                    }
                    self.tensors.insert(name, path.clone());
                }
            }
            path.pop();
        }
        Ok(())
    }

    /// `name`, with a number added when another tensor ("a.b" beside ("a", "b")) or the format has
    /// taken it.
    fn unused_name(&self, name: String) -> String {
        let taken = |name: &String| name == RESERVED || self.tensors.contains_key(name);
        if !taken(&name) {
            return name;
        }
        let mut numbered = (2u64..).map(|number| format!("{name}#{number}"));
        numbered.find(|candidate| !taken(candidate)).unwrap_or(name)
    }

    /// The metadata item's text.
    pub(super) fn to_json(&self) -> String {
        let dicts: Vec<Value> = self
            .dicts
            .iter()
            .map(|(path, batch)| {
                let names: Vec<Option<&str>> = batch.names.iter().map(Option::as_deref).collect();
                json!({"path": path, "batch_size": batch.size.as_slice(), "names": names})
            })
            .collect();
        let [plain, with_strings] = VERSIONS;
        let mut json = json!({"version": plain, "dicts": dicts, "tensors": self.tensors});
        if !self.strings.is_empty() {
            json["version"] = with_strings.into();
            json["strings"] = json!(self.strings);
        }
        json.to_string()
    }

    /// Reads the metadata item's text back.
    pub(super) fn from_json(text: &str) -> Result<Layout> {
        let json: Value = serde_json::from_slice(text.as_bytes())
            .map_err(|error| corrupt(format!("{METADATA_KEY} is not JSON: {error}")))?;
        match json.get("version").and_then(Value::as_u64) {
            Some(version) if VERSIONS.contains(&version) => {}
            other => {
                let [first, last] = VERSIONS;
                return Err(corrupt(format!(
                    "expected {METADATA_KEY} version {first} or {last}, got {other:?}"
                )));
            }
        }
        let dicts = array(&json, "dicts")?
            .iter()
            .map(parse_dict)
            .collect::<Result<_>>()?;
        let tensors = json
            .get("tensors")
            .and_then(Value::as_object)
            .ok_or_else(|| expected("tensors", "an object"))?;
        let tensors = tensors
            .iter()
            .map(|(name, path)| Ok((name.clone(), strings(path)?)))
            .collect::<Result<_>>()?;
        let strings = json.get("strings").map(parse_shapes).transpose()?;
        let strings = strings.unwrap_or_default();
        Ok(Layout {
            dicts,
            tensors,
            strings,
        })
    }

    /// The dict of this layout, without its tensors.
    pub(super) fn skeleton(&self) -> Result<TensorDict> {
        let mut dicts = self.dicts.iter();
        let mut out = match dicts.next() {
            Some((path, batch)) if path.is_empty() => TensorDict::with_batch(batch.clone()),
            _ => return Err(expected("dicts", "the outermost dict first")),
        };
        for (path, batch) in dicts {
            check_depth(path)?;
            let (key, parent) = match path.split_last() {
                Some((_, parent)) => (key_of(path), parent),
                None => return Err(expected("dicts", "one outermost dict")),
            };
            let known = parent.is_empty() || out.get_dict(key_of(parent)).is_ok();
            if !known || out.contains_key(&key) {
                return Err(corrupt(format!(
                    "dict {key:?} comes twice, or before the dict around it"
                )));
            }
            out.set(&key, TensorDict::new(&batch.size))?;
            out.restore_batch(&key, batch)?;
        }
        Ok(out)
    }
}

/// Refuses the path of a dict that is nested too deep.
fn check_depth(path: &[String]) -> Result<()> {
    match path.len() {
        0..=DEEPEST => Ok(()),
        depth => Err(corrupt(format!(
            "expected dicts at most {DEEPEST} deep in each other, got one {depth} deep"
        ))),
    }
}

/// The key of a path; `path` is not empty.
pub(super) fn key_of(path: &[String]) -> NestedKey {
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    NestedKey::from(names.as_slice())
}

pub(super) fn corrupt(reason: impl Into<String>) -> TensorError {
    TensorError::Corrupt {
        reason: reason.into(),
    }
}

fn expected(field: &str, what: &str) -> TensorError {
    corrupt(format!("expected {field} of {METADATA_KEY} to be {what}"))
}

fn array<'a>(json: &'a Value, field: &str) -> Result<&'a [Value]> {
    json.get(field)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .ok_or_else(|| expected(field, "an array"))
}

fn strings(json: &Value) -> Result<Path> {
    let items = json
        .as_array()
        .ok_or_else(|| expected("path", "an array of names"))?;
    items
        .iter()
        .map(|item| item.as_str().map(str::to_owned))
        .collect::<Option<_>>()
        .ok_or_else(|| expected("path", "an array of names"))
}

/// Names and their shapes.
fn parse_shapes(json: &Value) -> Result<BTreeMap<String, Vec<usize>>> {
    serde_json::from_value(json.clone())
        .map_err(|_| expected("strings", "an object of names and shapes"))
}

fn parse_dict(json: &Value) -> Result<(Path, Batch)> {
    let path = strings(json.get("path").unwrap_or(&Value::Null))?;
    let size: Option<Shape> = array(json, "batch_size")?
        .iter()
        .map(|size| size.as_u64().and_then(|size| usize::try_from(size).ok()))
        .collect();
    let size = size.ok_or_else(|| expected("batch_size", "an array of sizes"))?;
    let names = array(json, "names")?.iter().map(|name| match name {
        Value::Null => Some(None),
        Value::String(name) => Some(Some(Arc::from(name.as_str()))),
        _ => None,
    });
    let names: Names = names
        .collect::<Option<_>>()
        .ok_or_else(|| expected("names", "an array of names and nulls"))?;
    if names.len() != size.len() {
        return Err(TensorError::Names {
            expected: size.len(),
            got: names.len(),
        });
    }
    Ok((path, Batch { size, names }))
}
