//! The messages between worker processes and the process that has started them.
//!
//! [`ToWorker`] and [`FromWorker`] travel by sockets, with descriptors beside them. [`Command`] and
//! [`Answer`], of which each part takes one, travel by lanes.

use serde::{Deserialize, Serialize};
use tensordict::LeafSpec;
use windrow_env::EnvSpec;
#[cfg(feature = "remote")]
use windrow_env::SpecOutline;
use windrow_peer::json;
#[cfg(feature = "remote")]
use windrow_peer::{ProcessError, decode};
use windrow_policy::PolicySpec;
use windrow_slab::{RecordSpec, Shares};

use super::parallel::messages::{MemberFault, RowsLayout};
use crate::config::options::CollectorConfig;
#[cfg(feature = "remote")]
use crate::error::WorkerFault;
use crate::error::{ErrorKind, SentError, WorkerError};
use crate::probe::{Order, Recorded};
use crate::shared::commands::Commands;
use crate::shared::link::Progress;
use crate::shared::schedule::Share;
use crate::worker::cursor::Beginning;

/// To a worker process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// First: it works for a collector. [`Policy`](Self::Policy) follows.
    Hello(Box<Hello>),
    /// First: it is a member of a [`Parallel`](super::Parallel), with the environment of this
    /// recipe.
    Member(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The recipe of the policy.
    Policy(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The spec that all workers have in common.
    Bind(#[serde(with = "json")] Box<EnvSpec>),
    /// Where its memory is, with the files of slabs, lanes and weights.
    Ready(Box<Ready>),
    /// Where a member's rows are, with the files of rows and lanes.
    Rows(Box<RowsLayout>),
    /// How to record; the command to do so comes by the lane.
    Record(Box<Order>),
    /// A call, in the program's own form; the command to answer it comes by the lane.
    Call(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A state; the command to load it comes by the lane.
    State(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// From a worker process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// It has made its environments.
    Specified(Box<Specified>),
    /// Its policy is bound.
    Bound(Box<PolicySpec>),
    /// It is not ready, and never will be.
    Refused(Refusal),
    /// A fault, after which it waits for a [`Command::Replace`].
    Fault(WorkerError),
    /// A fault after which it ends.
    LastFault(WorkerError),
    /// The profile recorded so far.
    Recorded(Box<Recorded>),
    /// The answer to a call, or to a command about states.
    Returned(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A member has its rows.
    Attached,
    /// What failed in a member, before its answer says that something has.
    MemberFault(MemberFault),
}

/// Most elements of an observation and an action of an environment elsewhere, for each of which
/// bounds take memory, and most environments of a worker there.
#[cfg(feature = "remote")]
pub(super) const MOST_ELEMENTS: usize = 1 << 27;
#[cfg(feature = "remote")]
pub(super) const MOST_ENVS: usize = 1 << 20;

#[cfg(feature = "remote")]
impl FromWorker {
    /// Whether `message` describes environments that are larger or more than any: asked before the
    /// message is read, since a few bytes of it may describe bounds of any amount.
    ///
    /// # Errors
    /// [`ProcessError::Message`] where it cannot be read.
    pub(super) fn is_vast(message: &[u8]) -> Result<bool, ProcessError> {
        /// The beginning of a [`FromWorker`], which has the same variant first.
        #[derive(Deserialize)]
        enum First {
            Specified(Outline),
        }

        #[derive(Deserialize)]
        struct Outline {
            #[serde(with = "json")]
            spec: Spaces,
            num_envs: usize,
        }

        #[derive(Deserialize)]
        struct Spaces {
            observation: SpecOutline,
            action: SpecOutline,
        }

        if message.first() != Some(&0) {
            return Ok(false);
        }
        let First::Specified(Outline { spec, num_envs }) = decode(message)?;
        let leaves = [spec.observation.leaves(""), spec.action.leaves("")];
        let elements = leaves.iter().flatten().try_fold(0usize, |sum, leaf| {
            leaf.checked_bytes()?;
            sum.checked_add(leaf.elements())
        });
        Ok(num_envs > MOST_ENVS || elements.is_none_or(|elements| elements > MOST_ELEMENTS))
    }

    /// Names the part of the message that begins with the byte `first`, among the parts that only
    /// the program itself can read: examples of observations, and errors in the program's own form.
    pub(super) fn value_of(&self, first: u8) -> Option<&'static str> {
        let begins = |bytes: &[u8]| bytes.first() == Some(&first);
        let sent = match self {
            Self::Specified(made) => {
                let mut examples = made.spec.examples.iter();
                return examples
                    .any(|(_, example)| begins(example))
                    .then_some("an example of an observation");
            }
            Self::Refused(refusal) => refusal.sent.as_ref(),
            Self::Fault(error) | Self::LastFault(error) => match error.fault() {
                WorkerFault::Remote { sent, .. } => sent.as_ref(),
                _ => None,
            },
            Self::MemberFault(fault) => fault.sent(),
            Self::Bound(_) | Self::Recorded(_) | Self::Returned(_) | Self::Attached => None,
        };
        sent.filter(|sent| begins(sent.bytes())).map(|_| "an error")
    }
}

/// What a worker process makes its environments of, and what it collects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) worker: usize,
    #[serde(with = "json")]
    pub(super) config: CollectorConfig,
    /// The recipe of its environments.
    #[serde(with = "serde_bytes")]
    pub(super) env: Vec<u8>,
}

/// What a worker has made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Specified {
    #[serde(with = "json")]
    pub(super) spec: EnvSpec,
    pub(super) num_envs: usize,
    /// The thread in which it calls them, where the system tells.
    pub(super) thread: Option<u32>,
    /// Whether the process answers SIGUSR2 with a stack on its standard error.
    pub(super) shows_stack: bool,
}

/// What all workers have agreed on, beside the files of slabs, lanes and weights.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Columns that all policies write.
    pub(crate) columns: Vec<LeafSpec>,
    pub(crate) record: RecordSpec,
    pub(crate) shares: Shares,
    pub(crate) beginning: Beginning,
    /// The parameters of the policy, in the order in which they lie in a buffer.
    pub(crate) weights: Vec<LeafSpec>,
}

/// Why environments or policy of a worker could not be made.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    pub(super) sent: Option<SentError>,
    /// It is no error, but an interruption.
    pub(super) interrupted: bool,
}

/// From the collector to a worker, by its lane.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Command {
    /// Fill a part.
    Fill(Fill),
    /// Make environments and policy anew.
    Replace,
    /// Record the parts that follow; [`ToWorker::Record`] says how.
    Record,
    /// End the recording.
    EndRecording,
    /// Answer a call, a [`ToWorker::Call`].
    Call,
    /// Answer with the state.
    Save { pickle: bool },
    /// Go on from a state, a [`ToWorker::State`].
    Load,
}

impl Command {
    /// Whether a [`ToWorker`] comes with it.
    #[cfg(feature = "remote")]
    pub(super) fn has_message(&self) -> bool {
        matches!(self, Self::Record | Self::Call | Self::Load)
    }
}

/// A part to be filled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Fill {
    pub(super) slot: usize,
    pub(super) part: usize,
    pub(super) seq: u64,
    pub(super) share: Share,
    pub(super) commands: Commands,
}

/// From a worker to its collector, by its lane.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The part is written.
    Filled {
        steps: usize,
        progress: Progress,
        waited_ns: u64,
    },
    /// The part could not be filled; a [`FromWorker::Fault`] says why.
    Lost { progress: Progress },
    /// Done.
    Done,
}

#[cfg(test)]
mod tests {
    use windrow_peer::{LANE_BYTES, decode, encode};

    use super::*;
    use crate::shared::commands::{Restart, Resume};

    #[cfg(feature = "remote")]
    #[test]
    fn environments_that_are_vast_are_known_before_their_bounds_get_memory() {
        let made = |num_envs| {
            let spec = EnvSpec::new(
                "Small",
                windrow_env::Spec::bounded(&[0.0; 3], &[1.0; 3]).unwrap(),
                windrow_env::Spec::discrete(2),
            );
            let made = Specified {
                spec,
                num_envs,
                thread: None,
                shows_stack: false,
            };
            encode(&FromWorker::Specified(Box::new(made))).unwrap()
        };
        let small = made(2);
        assert!(!FromWorker::is_vast(&small).unwrap());
        assert!(!FromWorker::is_vast(&encode(&FromWorker::Attached).unwrap()).unwrap());
        assert!(FromWorker::is_vast(&made(1 << 40)).unwrap());
        // The text of the spec lies behind the number of the variant and the text's length.
        let (len, rest) = postcard::take_from_bytes::<usize>(&small[1..]).unwrap();
        let text = std::str::from_utf8(&rest[..len]).unwrap();
        let vast = text.replace("[3]", "[4398046511104]");
        let vast = vast.replace(",3]", ",4398046511104]");
        assert_ne!(vast, text);
        let message = [&[0], &encode(&vast).unwrap()[..], &rest[len..]].concat();
        assert!(FromWorker::is_vast(&message).unwrap());
    }

    #[test]
    fn the_longest_command_and_answer_fit_into_a_lane() {
        let (word, id) = (u64::MAX, i64::MIN);
        let fill = Command::Fill(Fill {
            slot: usize::MAX,
            part: usize::MAX,
            seq: word,
            share: Share {
                steps: usize::MAX,
                random: true,
            },
            commands: Commands {
                restart: Some(Restart::Seeded {
                    seed: word,
                    same: true,
                }),
                resume: Some(Resume {
                    frame: word,
                    traj_id: id,
                    seed: word,
                }),
            },
        });
        let filled = Answer::Filled {
            steps: usize::MAX,
            progress: Progress {
                version: id,
                next_frame: word,
                next_traj_id: id,
            },
            waited_ns: word,
        };
        let (command, answer) = (encode(&fill).unwrap(), encode(&filled).unwrap());
        assert!(command.len().max(answer.len()) <= LANE_BYTES);
        assert_eq!(decode::<Command>(&command).unwrap(), fill);
        assert_eq!(decode::<Answer>(&answer).unwrap(), filled);
    }
}
