//! The last stage of a batch's way, where the user's functions see it.

use tensordict::TensorDict;

use crate::CollectError;
use crate::config::hooks::Hooks;
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
