//! The process of a member: one environment, which executes commands.

use std::error::Error;
use std::os::fd::OwnedFd;

use windrow_env::{
    EnvError, EnvFactory, EnvRecipe, Gathering, Outcomes, Reset, VecEnv, VecEnvError, gatherings,
};
use windrow_peer::{ControlBlock, ProcessError, WorkerLane};
use windrow_slab::{Part, RemoteRing, Step};
use windrow_sync::catch_panic;

use super::messages::{MemberAnswer, MemberCommand, MemberFault, RowsLayout, SEEDED};
use crate::error::{ErrorKind, message_to_send, sent};
use crate::process::child::Child;
use crate::process::messages::{FromWorker, ToWorker};
use crate::process::serve_error::ServeError;
use crate::worker::saved::StateAnswer;

/// Serves the owner of an environment whose recipe was `written`, until it closes the socket.
pub(in crate::process) fn serve(child: &Child, written: &[u8]) -> Result<(), ServeError> {
    let made = guarded(|| {
        let mut env = EnvRecipe::from_bytes(written)?.build(1)?;
        // The owner says with each command what they gather with.
        let gatherings = gatherings(env.as_mut())?.into_iter();
        gatherings.for_each(|gathering| gathering.gather_apart(1));
        Ok(env)
    });
    let mut env = match made {
        Ok(env) => env,
        Err(error) => return child.refuse(ErrorKind::Argument, &error, false),
    };
    child.specify(env.as_ref())?;
    loop {
        // An owner that has finished closes the socket, or the lane of a member that has rows.
        let (rows, files) = match child.next() {
            Err(ServeError::Ended) => return Ok(()),
            Ok((ToWorker::Rows(rows), files)) => (*rows, files),
            other => return Err(other.err().unwrap_or(ServeError::Order)),
        };
        let mut attachment = match guarded(|| Attachment::new(child, env.as_mut(), rows, files)) {
            Ok(attachment) => attachment,
            Err(error) => return child.refuse(ErrorKind::Argument, &error, false),
        };
        child.send(&FromWorker::Attached)?;
        match attachment.serve(child, env.as_mut())? {
            Leaves::ToMove => {}
            Leaves::ForGood => return Ok(()),
        }
    }
}

/// How a member leaves its rows.
enum Leaves {
    ToMove,
    ForGood,
}

/// Memory that a member shares with its owner: its rows and its lane.
struct Attachment {
    layout: RowsLayout,
    part: Part,
    lane: WorkerLane<MemberCommand, MemberAnswer>,
    /// Those that are being reset.
    resets: Vec<Reset>,
}

impl Attachment {
    fn new(
        child: &Child,
        env: &mut dyn VecEnv,
        rows: RowsLayout,
        files: Vec<OwnedFd>,
    ) -> Result<Self, EnvError> {
        let missing = |files: Vec<OwnedFd>| ProcessError::Attached {
            expected: 2,
            got: files.len(),
        };
        let files = <[OwnedFd; 2]>::try_from(files).map_err(missing);
        let [file, control] = files.map_err(EnvError::failed)?;
        let layout = rows.layout()?;
        let fingerprint = layout.fingerprint();
        let file = child.shared_file(file).map_err(EnvError::failed)?;
        let ring = RemoteRing::open(layout, file)?;
        let part = ring.part(0, rows.worker, 0)?;
        let lane = ControlBlock::open(control, fingerprint)
            .and_then(|control| control.worker_lane(rows.worker, move || ring.ring_bell()));
        if rows.bind {
            env.bind(&rows.columns)?;
        }
        Ok(Self {
            resets: Vec::with_capacity(rows.envs),
            layout: rows,
            part,
            lane: lane.map_err(EnvError::failed)?,
        })
    }

    /// Executes commands, until it is to leave these rows.
    fn serve(&mut self, child: &Child, env: &mut dyn VecEnv) -> Result<Leaves, ServeError> {
        while let Some(command) = self.lane.receive() {
            let mut panicked = false;
            let done = match command {
                MemberCommand::Call => {
                    self.note(env, |gathering, notes| gathering.show(notes));
                    let answered = child.answer_call().map(|()| true)?;
                    self.note(env, |gathering, notes| gathering.tell(notes));
                    answered
                }
                MemberCommand::Save { pickle } => {
                    let saved = StateAnswer::of_saving(pickle, |state| env.visit_state(state));
                    child.send(&FromWorker::Returned(saved.to_bytes()))?;
                    true
                }
                MemberCommand::Load => {
                    let (ToWorker::State(state), _) = child.next()? else {
                        return Err(ServeError::Order);
                    };
                    let loaded = StateAnswer::of_loading(&state, |state| env.visit_state(state));
                    child.send(&FromWorker::Returned(loaded.to_bytes()))?;
                    true
                }
                MemberCommand::Move => true,
                MemberCommand::Step | MemberCommand::Reset => {
                    let did = catch_panic(|| self.execute(command, env));
                    panicked = did.is_err();
                    let did = did.unwrap_or_else(|message| {
                        let at = env.panicked_at().unwrap_or(0);
                        Err(panic_error(&message).of(at))
                    });
                    did.map_err(|fault| report(child, &fault)).is_ok()
                }
            };
            self.lane.send(match done {
                true => &MemberAnswer::Done,
                false => &MemberAnswer::Failed,
            })?;
            match command {
                MemberCommand::Move => return Ok(Leaves::ToMove),
                // Nothing is known of an environment that has panicked.
                _ if panicked => return Err(ServeError::Ended),
                _ => {}
            }
        }
        Ok(Leaves::ForGood)
    }

    /// Calls `f` with each of the running statistics and its notes.
    fn note(&mut self, env: &mut dyn VecEnv, f: impl Fn(&mut Gathering, &mut [f64])) {
        let mut rest = self.part.notes();
        for gathering in env.gatherings() {
            let (own, others) = rest.split_at_mut(gathering.gathers().lent_numbers());
            f(gathering, own);
            rest = others;
        }
    }

    fn execute(&mut self, command: MemberCommand, env: &mut dyn VecEnv) -> Result<(), VecEnvError> {
        self.note(env, Gathering::borrow);
        self.play(command, env)?;
        self.note(env, Gathering::give_back);
        Ok(())
    }

    fn play(&mut self, command: MemberCommand, env: &mut dyn VecEnv) -> Result<(), VecEnvError> {
        let mut rows = self.part.rows();
        let Some(step) = rows.next_step() else {
            return Ok(());
        };
        match command {
            MemberCommand::Reset => {
                marked(&self.layout, &step, &mut self.resets).map_err(|error| error.of(0))?;
                env.reset(&self.resets, step.next_obs)
            }
            _ => {
                let outcomes = Outcomes {
                    reward: step.reward,
                    terminated: step.terminated,
                    truncated: step.truncated,
                };
                env.step(step.policy.as_rows(), step.next_obs, outcomes)
            }
        }
    }
}

/// Reads which environments are to be reset, and their seeds.
fn marked(layout: &RowsLayout, step: &Step<'_>, resets: &mut Vec<Reset>) -> Result<(), EnvError> {
    let (mark, seed) = layout.reset();
    let rows = step.policy.as_rows();
    let marks = rows.get(mark)?.iter().zip(rows.get(seed)?);
    resets.clear();
    resets.extend(marks.enumerate().filter(|(_, (mark, _))| **mark != 0).map(
        |(env, (mark, seed))| Reset {
            env,
            seed: (*mark == SEEDED).then(|| seed.cast_unsigned()),
        },
    ));
    Ok(())
}

/// Reports a fault, before the answer says that there is one.
fn report(child: &Child, fault: &VecEnvError) {
    let source: &(dyn Error + 'static) = &fault.source;
    let fault = MemberFault {
        env: fault.env,
        message: message_to_send(source),
        sent: sent(source, child.program.send_errors),
    };
    // The owner is gone where this fails.
    let _ = child.send(&FromWorker::MemberFault(fault));
}

fn guarded<R>(f: impl FnOnce() -> Result<R, EnvError>) -> Result<R, EnvError> {
    catch_panic(f).unwrap_or_else(|message| Err(panic_error(&message)))
}

fn panic_error(message: &str) -> EnvError {
    EnvError::failed(format!("panicked: {message}"))
}
