//! Functions of the user that see batches.

use std::error::Error;

use tensordict::TensorDict;

use crate::error::NextError;

/// Changes a batch before it is delivered.
type Postproc =
    Box<dyn FnMut(TensorDict) -> Result<TensorDict, Box<dyn Error + Send + Sync>> + Send>;

/// Looks at a batch as it is delivered.
type BatchHook = Box<dyn FnMut(&TensorDict) + Send>;

/// The closures that a [builder](crate::CollectorBuilder) was given.
#[derive(Default)]
pub struct Hooks {
    pub(crate) postproc: Vec<Postproc>,
    pub(crate) pre_collect_hook: Option<Box<dyn FnMut() + Send>>,
    pub(crate) post_collect_hook: Option<BatchHook>,
}

impl Hooks {
    /// Applies the post-processing to batch number `number`.
    pub(crate) fn process(
        &mut self,
        mut batch: TensorDict,
        number: u64,
    ) -> Result<TensorDict, NextError> {
        for postproc in &mut self.postproc {
            batch = postproc(batch).map_err(|source| NextError::Postproc {
                batch: number,
                source,
            })?;
        }
        Ok(batch)
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks")
            .field("postproc", &self.postproc.len())
            .field("pre_collect_hook", &self.pre_collect_hook.is_some())
            .field("post_collect_hook", &self.post_collect_hook.is_some())
            .finish()
    }
}
