//! What a collector and its worker processes tell each other.
//!
//! What is rare travels as frames of the control socket; what each part takes travels as words of the worker's lane.

use serde::{Deserialize, Serialize};
use tensordict::LeafSpec;
use windrow_env::{EnvRecipe, EnvSpec};
use windrow_peer::{MESSAGE_WORDS, Message};
use windrow_slab::{RecordSpec, Shares};

use crate::config::options::CollectorConfig;
use crate::error::{ErrorKind, SentError};
use crate::shared::desk::Progress;
use crate::shared::orders::{Orders, Restart, Resume};
use crate::shared::schedule::Share;
use crate::worker::cursor::Beginning;

/// Kinds of frames, by what their body holds.
pub(super) mod frame {
    /// To the worker, in pieces: [`Hello`](super::Hello). The recipe of its policy follows.
    pub(crate) const HELLO: u8 = 1;
    /// To the worker, in pieces: bytes of the recipe of its policy.
    pub(crate) const POLICY: u8 = 9;
    /// From the worker: [`Specified`](super::Specified).
    pub(crate) const SPECIFIED: u8 = 2;
    /// To the worker: the spec that all workers have in common.
    pub(crate) const BIND: u8 = 3;
    /// From the worker: what its policy says about itself.
    pub(crate) const BOUND: u8 = 4;
    /// To the worker: [`Ready`](super::Ready), with the files of slabs, lanes and weights.
    pub(crate) const READY: u8 = 5;
    /// From the worker: a fault for which it waits to hear how to go on.
    pub(crate) const FAULT: u8 = 6;
    /// From the worker: a fault after which it ends.
    pub(crate) const LAST_FAULT: u8 = 7;
    /// From a worker that is not ready yet: [`Refusal`](super::Refusal), why it never will be.
    pub(crate) const REFUSAL: u8 = 8;
    /// To the worker: an [`Order`](crate::probe::Order) to record, which comes with the command to do so.
    pub(crate) const RECORD: u8 = 10;
    /// From the worker: what it has [recorded](crate::probe::Recorded) so far.
    pub(crate) const RECORDED: u8 = 11;
    /// To the worker, in pieces: a call, in the program's own form, which comes with the command to answer it.
    pub(crate) const CALL: u8 = 12;
    /// From the worker, in pieces: the answer to a call.
    pub(crate) const RETURNED: u8 = 13;
}

/// What a worker process makes its environments of, and what it collects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) worker: usize,
    pub(super) config: CollectorConfig,
    pub(super) env: EnvRecipe,
}

/// What a worker has made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Specified {
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
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    /// Fill a part.
    Fill(Fill),
    /// Make environments and policy anew.
    Replace,
    /// Record the parts that follow; a frame says how.
    Record,
    /// End the recording.
    EndRecording,
    /// Answer a call, which comes in frames.
    Call,
}

/// A part to be filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fill {
    pub(super) slot: usize,
    pub(super) part: usize,
    pub(super) seq: u64,
    pub(super) share: Share,
    pub(super) orders: Orders,
}

/// From a worker to its collector, by its lane.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    /// The part is written.
    Filled {
        steps: usize,
        progress: Progress,
        waited_ns: u64,
    },
    /// The part could not be filled; a frame tells why.
    Lost { progress: Progress },
    /// It does what it was told, and has nothing to say to it.
    Heard,
}

const FILL: u32 = 1;
const REPLACE: u32 = 2;
const RECORD: u32 = 3;
const END_RECORDING: u32 = 4;
const CALL: u32 = 5;
const FILLED: u32 = 1;
const LOST: u32 = 2;
const HEARD: u32 = 3;

/// How the restart of an order is written as a word.
const UNSEEDED: u64 = 1;
const SEEDED: u64 = 2;
const SEEDED_ALIKE: u64 = 3;
const RESUMED: u64 = 4;

impl Command {
    pub(super) fn to_message(self) -> Message {
        match self {
            Self::Fill(fill) => message(FILL, fill.words()),
            Self::Replace => message(REPLACE, []),
            Self::Record => message(RECORD, []),
            Self::EndRecording => message(END_RECORDING, []),
            Self::Call => message(CALL, []),
        }
    }

    /// `None` for a message that no collector sends.
    pub(super) fn from_message(message: &Message) -> Option<Self> {
        match message.kind {
            FILL => Fill::read(&message.words).map(Self::Fill),
            REPLACE => Some(Self::Replace),
            RECORD => Some(Self::Record),
            END_RECORDING => Some(Self::EndRecording),
            CALL => Some(Self::Call),
            _ => None,
        }
    }
}

impl Fill {
    fn words(self) -> [u64; 11] {
        let Self {
            slot, part, share, ..
        } = self;
        let (restart, restart_seed) = match self.orders.restart {
            None => (0, 0),
            Some(Restart::Unseeded) => (UNSEEDED, 0),
            Some(Restart::Seeded { seed, same: false }) => (SEEDED, seed),
            Some(Restart::Seeded { seed, same: true }) => (SEEDED_ALIKE, seed),
            Some(Restart::Resumed) => (RESUMED, 0),
        };
        let resume = self.orders.resume;
        let (frame, traj_id, seed) = resume.map_or((0, 0, 0), |saved| {
            (saved.frame, saved.traj_id.cast_unsigned(), saved.seed)
        });
        [
            slot as u64,
            part as u64,
            self.seq,
            share.steps as u64,
            u64::from(share.random),
            restart,
            restart_seed,
            u64::from(resume.is_some()),
            frame,
            traj_id,
            seed,
        ]
    }

    fn read(words: &[u64]) -> Option<Self> {
        let &[
            slot,
            part,
            seq,
            steps,
            random,
            restart,
            restart_seed,
            resumes,
            frame,
            traj_id,
            seed,
            ..,
        ] = words
        else {
            return None;
        };
        let restart = match restart {
            0 => None,
            UNSEEDED => Some(Restart::Unseeded),
            SEEDED | SEEDED_ALIKE => Some(Restart::Seeded {
                seed: restart_seed,
                same: restart == SEEDED_ALIKE,
            }),
            RESUMED => Some(Restart::Resumed),
            _ => return None,
        };
        let resume = (resumes != 0).then(|| Resume {
            frame,
            traj_id: traj_id.cast_signed(),
            seed,
        });
        Some(Self {
            slot: slot as usize,
            part: part as usize,
            seq,
            share: Share {
                steps: steps as usize,
                random: random != 0,
            },
            orders: Orders { restart, resume },
        })
    }
}

impl Answer {
    pub(super) fn to_message(self) -> Message {
        let words = |progress: Progress| {
            [
                progress.version.cast_unsigned(),
                progress.next_frame,
                progress.next_traj_id.cast_unsigned(),
            ]
        };
        match self {
            Self::Filled {
                steps,
                progress,
                waited_ns,
            } => {
                let [version, frame, traj_id] = words(progress);
                message(FILLED, [version, frame, traj_id, steps as u64, waited_ns])
            }
            Self::Lost { progress } => message(LOST, words(progress)),
            Self::Heard => message(HEARD, []),
        }
    }

    /// `None` for a message that no worker sends.
    pub(super) fn from_message(message: &Message) -> Option<Self> {
        let &[version, frame, traj_id, steps, waited_ns, ..] = &message.words[..] else {
            return None;
        };
        let progress = Progress {
            version: version.cast_signed(),
            next_frame: frame,
            next_traj_id: traj_id.cast_signed(),
        };
        match message.kind {
            FILLED => Some(Self::Filled {
                steps: steps as usize,
                progress,
                waited_ns,
            }),
            LOST => Some(Self::Lost { progress }),
            HEARD => Some(Self::Heard),
            _ => None,
        }
    }
}

fn message<const N: usize>(kind: u32, first: [u64; N]) -> Message {
    let mut words = [0; MESSAGE_WORDS];
    words[..N].copy_from_slice(&first);
    Message { kind, words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_and_its_orders_are_read_as_they_were_written() {
        let restarts = [
            None,
            Some(Restart::Unseeded),
            Some(Restart::Seeded {
                seed: u64::MAX,
                same: false,
            }),
            Some(Restart::Seeded {
                seed: 3,
                same: true,
            }),
            Some(Restart::Resumed),
        ];
        let resumes = [
            None,
            Some(Resume {
                frame: 7,
                traj_id: -1,
                seed: 9,
            }),
        ];
        for restart in restarts {
            for resume in resumes {
                let fill = Fill {
                    slot: 3,
                    part: 2,
                    seq: 1 << 40,
                    share: Share {
                        steps: 17,
                        random: resume.is_some(),
                    },
                    orders: Orders { restart, resume },
                };
                let message = Command::Fill(fill).to_message();
                let Some(Command::Fill(read)) = Command::from_message(&message) else {
                    panic!("not a part: {message:?}");
                };
                assert_eq!(format!("{read:?}"), format!("{fill:?}"));
            }
        }
    }

    #[test]
    fn a_command_without_a_part_is_read_as_it_was_written() {
        for command in [
            Command::Replace,
            Command::Record,
            Command::EndRecording,
            Command::Call,
        ] {
            let read = Command::from_message(&command.to_message());
            assert_eq!(format!("{read:?}"), format!("{:?}", Some(command)));
        }
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let progress = Progress {
            version: -3,
            next_frame: 8,
            next_traj_id: 1 << 50,
        };
        for answer in [
            Answer::Filled {
                steps: 5,
                progress,
                waited_ns: 12,
            },
            Answer::Lost { progress },
            Answer::Heard,
        ] {
            let read = Answer::from_message(&answer.to_message());
            assert_eq!(format!("{read:?}"), format!("{:?}", Some(answer)));
        }
    }

    #[test]
    fn a_message_of_an_unknown_kind_is_none() {
        let unknown = message(99, [1, 2, 3]);
        assert!(Command::from_message(&unknown).is_none());
        assert!(Answer::from_message(&unknown).is_none());
    }
}
