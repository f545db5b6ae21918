//! The last stage of a batch's way, where the user's functions see it.

use tensordict::TensorDict;

use crate::CollectError;
use crate::deliver::assemble::unpadded;
use crate::deliver::sink_writer::SinkWriter;

/// Makes a collected batch what the user gets, or writes it.
///
/// A collector has one life, whatever it delivers: it collects, pauses and ends in the same way. This is where front doors
/// differ: [`Hooks`] calls closures and delivers a [`TensorDict`]; another language makes an object of its own.
///
/// All methods run in the thread that asks for batches, or, after [`Collector::start`](crate::Collector::start), in the
/// collector's own.
pub trait LastStage: Send + 'static {
    /// What [`Collector::next`](crate::Collector) returns.
    type Out: Send;

    /// Whether a batch is kept while it is [finished](Self::finish) and [written](Self::write), so that both can be tried
    /// again after an [interruption](crate::CollectorBuilder::interruptions).
    const TRIES_AGAIN: bool = false;

    /// Runs before the frames of a batch are collected.
    ///
    /// # Errors
    /// Whatever went wrong; nothing is collected then.
    fn prepare(&mut self) -> Result<(), CollectError> {
        Ok(())
    }

    /// Runs after them, also when collecting has failed: ends what [`prepare`](Self::prepare) began.
    fn collected(&mut self) {}

    /// Makes batch number `number` what is delivered or written.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn finish(&mut self, batch: TensorDict, number: u64) -> Result<Self::Out, CollectError>;

    /// As [`finish`](Self::finish), of zeros in the shape of a batch that is not delivered.
    ///
    /// # Errors
    /// As there.
    fn preview(&mut self, zeros: TensorDict, number: u64) -> Result<Self::Out, CollectError>;

    /// Writes what [`finish`](Self::finish) has made, and returns what was written. Called by collectors with a
    /// [replay buffer](crate::CollectorBuilder::replay_buffer) only.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn write(&mut self, batch: Self::Out, writer: &SinkWriter) -> Result<Self::Out, CollectError>;

    /// Makes one of all that the frames of one batch gave to be written: none, one or several.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn join(&mut self, written: Vec<Self::Out>) -> Result<Self::Out, CollectError>;

    /// Takes over an error that has ended the collector's own thread, or returns it: then the next call on the collector
    /// delivers it, and readers of the replay buffer are told.
    fn fail(&mut self, failure: CollectError) -> Option<CollectError> {
        Some(failure)
    }

    /// Runs last in the collector's own thread.
    fn leave(&mut self) {}
}

/// Something done to every batch before it is delivered.
pub(crate) type Postproc = Box<
    dyn FnMut(TensorDict) -> Result<TensorDict, Box<dyn std::error::Error + Send + Sync>> + Send,
>;

/// Something that looks at every batch as it is delivered.
pub(crate) type BatchHook = Box<dyn FnMut(&TensorDict) + Send>;

/// The closures that a [builder](crate::CollectorBuilder) was given.
#[derive(Default)]
pub struct Hooks {
    pub(crate) postproc: Vec<Postproc>,
    pub(crate) pre_collect_hook: Option<Box<dyn FnMut() + Send>>,
    pub(crate) post_collect_hook: Option<BatchHook>,
}

impl Hooks {
    fn process(&mut self, mut batch: TensorDict, number: u64) -> Result<TensorDict, CollectError> {
        for postproc in &mut self.postproc {
            batch = postproc(batch).map_err(|source| CollectError::Postproc {
                batch: number,
                source,
            })?;
        }
        Ok(batch)
    }
}

impl LastStage for Hooks {
    type Out = TensorDict;

    fn prepare(&mut self) -> Result<(), CollectError> {
        if let Some(hook) = &mut self.pre_collect_hook {
            hook();
        }
        Ok(())
    }

    fn finish(&mut self, batch: TensorDict, number: u64) -> Result<TensorDict, CollectError> {
        let batch = self.process(batch, number)?;
        if let Some(hook) = &mut self.post_collect_hook {
            hook(&batch);
        }
        Ok(batch)
    }

    fn preview(&mut self, zeros: TensorDict, number: u64) -> Result<TensorDict, CollectError> {
        self.process(zeros, number)
    }

    fn write(
        &mut self,
        batch: TensorDict,
        writer: &SinkWriter,
    ) -> Result<TensorDict, CollectError> {
        let frames = unpadded(batch)?;
        writer.extend(&frames)?;
        Ok(frames)
    }

    fn join(&mut self, mut written: Vec<TensorDict>) -> Result<TensorDict, CollectError> {
        Ok(match written.len() {
            0 => TensorDict::new([0]).with_names(&[Some("time")])?,
            1 => written.swap_remove(0),
            _ => TensorDict::cat(&written, 0)?,
        })
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
