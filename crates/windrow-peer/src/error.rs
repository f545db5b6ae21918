use std::io;
use std::path::PathBuf;

/// Errors of worker processes, of the memory that they share with their parent, and of the sockets
/// between them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The system refused something.
    #[error("failed to {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A program could not be started as a worker.
    #[error("failed to start {}", .program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// This process may not open another file, socket or pipe.
    #[error(
        "failed to {what}: all {limit} file descriptors of this process are in use; close some, or raise the limit with `ulimit -n`"
    )]
    Descriptors {
        /// What was tried.
        what: &'static str,
        /// Descriptors that the process may have.
        limit: u64,
    },
    /// The system does not give the memory to share.
    #[error("no memory to share: the system does not give {bytes} bytes for {what}")]
    NoMemory {
        /// What the memory was for.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// Shared memory has another content than this program expects.
    #[error(
        "the {what} in shared memory does not fit this program: expected {field} {expected:#x}, got {got:#x}; are parent and worker of the same build?"
    )]
    Foreign {
        /// What the memory should hold.
        what: &'static str,
        /// What differs.
        field: &'static str,
        /// The value of this program.
        expected: u64,
        /// The value found.
        got: u64,
    },
    /// A worker, environment or buffer was named that does not exist.
    #[error("{what} {index} does not exist: there are {count}")]
    NoSuch {
        /// What was named.
        what: &'static str,
        /// Its number.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Weights hold no such tensor.
    #[error(
        "weights hold no {dtype} of shape {shape:?} at byte {at}, where {bytes} bytes are left"
    )]
    NoTensor {
        /// Where it was to begin, a multiple of 64.
        at: usize,
        /// Its shape.
        shape: Vec<usize>,
        /// Its element type.
        dtype: String,
        /// Bytes from there on.
        bytes: usize,
    },
    /// A second message was sent before the answer to the first came.
    #[error(
        "worker {worker} has not answered message {sent} yet; receive its answer, or reset the lane when the worker is dead"
    )]
    Unanswered {
        /// The worker.
        worker: usize,
        /// The number of the message without an answer.
        sent: u32,
    },
    /// A worker answered without having been asked.
    #[error("worker {worker} sends an answer, but has no message to answer")]
    NotAsked {
        /// The worker.
        worker: usize,
    },
    /// What comes by a socket is no frame: it would be longer than the limit.
    #[error("a frame has {got} bytes, at most {limit} are allowed")]
    TooLong {
        /// Bytes allowed.
        limit: usize,
        /// Bytes of the frame.
        got: usize,
    },
    /// The other side ended in the middle of a frame.
    #[error("the other side ended in the middle of a frame: expected {expected} bytes, got {got}")]
    CutShort {
        /// Bytes of the frame, as far as they are known.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// A frame carries another number of descriptors than it says, or more than allowed.
    #[error("a frame carries {got} descriptors, expected {expected}")]
    Attached {
        /// Descriptors announced or allowed.
        expected: usize,
        /// Descriptors there.
        got: usize,
    },
    /// A message cannot be written, or other bytes came in its place.
    #[error("a {message} cannot be {verb}: {reason}; are parent and worker of the same build?")]
    Message {
        /// Type of the message.
        message: &'static str,
        /// What was tried: `read` or `written`.
        verb: &'static str,
        /// What was wrong.
        reason: String,
    },
    /// A worker was started by a parent that speaks another protocol, or without its socket.
    #[error("this process was started as a worker, but {what}: expected {expected}, got {got}")]
    Handshake {
        /// What does not fit.
        what: &'static str,
        /// What was expected.
        expected: String,
        /// What came.
        got: String,
    },
    /// Something was asked of a supervisor that was shut down.
    #[error("the supervisor of these workers was shut down")]
    ShutDown,
    /// Workers live although they were killed.
    #[error(
        "{} worker processes did not end although they were killed: {pids:?}; the system holds them in a call that cannot be interrupted",
        .pids.len()
    )]
    Unkillable {
        /// Their process ids.
        pids: Vec<u32>,
    },
    /// The handler of events panicked; the workers were killed.
    #[error("the handler of the workers' events panicked; the workers were killed")]
    Panicked,
}

impl ProcessError {
    pub(crate) fn foreign(
        what: &'static str,
        field: &'static str,
        expected: u64,
        got: u64,
    ) -> Self {
        Self::Foreign {
            what,
            field,
            expected,
            got,
        }
    }
}
