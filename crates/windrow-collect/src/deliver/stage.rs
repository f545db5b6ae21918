//! The last stage of a batch, where functions of the user see it.

use tensordict::TensorDict;

use crate::config::hooks::Hooks;
use crate::deliver::assemble::unpadded;
use crate::deliver::sink_writer::SinkWriter;
use crate::error::NextError;

/// Turns a collected batch into the object that the user gets, or writes it.
///
/// Collectors collect, pause and end in the same way, whatever they deliver. Only this stage
/// differs between front doors: [`Hooks`] calls closures and delivers a [`TensorDict`]; a binding
/// to another language delivers an object of that language.
///
/// All methods run in the thread that asks for batches, or, after
/// [`Collector::start`](crate::Collector::start), in the collector's own thread.
pub trait LastStage: Send + 'static {
    /// The object that the collector delivers.
    type Out: Send;

    /// Whether the collector keeps a batch until it is [finished](Self::finish) and
    /// [written](Self::write), and tries again with the next call after an
    /// [interruption](crate::CollectorBuilder::interruptions).
    const TRIES_AGAIN: bool = false;

    /// Runs before the frames of a batch are collected, and `again` where a wait for them was
    /// interrupted and goes on.
    ///
    /// # Errors
    /// Any; nothing is collected then.
    fn prepare(&mut self, _again: bool) -> Result<(), NextError> {
        Ok(())
    }

    /// Runs after the frames of a batch were collected, or collecting has failed: ends what
    /// [`prepare`](Self::prepare) began.
    fn collected(&mut self) {}

    /// Turns batch number `number` into the object that is delivered or written.
    ///
    /// # Errors
    /// Any. An error ends the collector, unless it is a [`NextError::Stage`] that holds an
    /// interruption.
    fn finish(&mut self, batch: TensorDict, number: u64) -> Result<Self::Out, NextError>;

    /// As [`finish`](Self::finish), for zeros in the shape of a batch.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish).
    fn preview(&mut self, zeros: TensorDict, number: u64) -> Result<Self::Out, NextError>;

    /// Writes the result of [`finish`](Self::finish) and returns what was written. Only collectors
    /// with a [replay buffer](crate::CollectorBuilder::replay_buffer) call it.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    fn write(&mut self, batch: Self::Out, writer: &SinkWriter) -> Result<Self::Out, NextError>;

    /// Joins all that was written of the frames of one batch: nothing, one object or several.
    ///
    /// # Errors
    /// Any.
    fn join(&mut self, written: Vec<Self::Out>) -> Result<Self::Out, NextError>;

    /// Takes an error over that has ended the collector's own thread, or returns it. Then the next
    /// call on the collector delivers it, and so does the replay buffer.
    fn fail(&mut self, failure: NextError) -> Option<NextError> {
        Some(failure)
    }

    /// Runs last in the collector's own thread.
    fn leave(&mut self) {}
}

impl LastStage for Hooks {
    type Out = TensorDict;

    fn prepare(&mut self, again: bool) -> Result<(), NextError> {
        if let Some(hook) = &mut self.pre_collect_hook
            && !again
        {
            hook();
        }
        Ok(())
    }

    fn finish(&mut self, batch: TensorDict, number: u64) -> Result<TensorDict, NextError> {
        let batch = self.process(batch, number)?;
        if let Some(hook) = &mut self.post_collect_hook {
            hook(&batch);
        }
        Ok(batch)
    }

    fn preview(&mut self, zeros: TensorDict, number: u64) -> Result<TensorDict, NextError> {
        self.process(zeros, number)
    }

    fn write(&mut self, batch: TensorDict, writer: &SinkWriter) -> Result<TensorDict, NextError> {
        let frames = unpadded(batch)?;
        writer.extend(&frames)?;
        Ok(frames)
    }

    fn join(&mut self, mut written: Vec<TensorDict>) -> Result<TensorDict, NextError> {
        Ok(match written.len() {
            0 => TensorDict::new([0]).with_names(&[Some("time")])?,
            1 => written.swap_remove(0),
            _ => TensorDict::cat(&written, 0)?,
        })
    }
}
