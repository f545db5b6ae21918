//! The channel of a worker that shares no memory with its collector: it fills a part of its own,
//! and sends the rows.

use std::sync::{Arc, Weak};
use std::thread::{self, sleep};
use std::time::Duration;

use tensordict::LeafSpec;
use windrow_peer::net::Deadline;
use windrow_peer::{ControlBlock, ControlSpec};
use windrow_policy::Published;
use windrow_slab::{Layout, Order, Part, PartOrder, Ring, RingSpec, Shares, SlabError};
use windrow_sync::error_chain;

use super::stream::{Beat, Said, StreamEnd};
use crate::error::BuildError;
use crate::process::channel::Channel;
use crate::process::live::LiveProbe;
use crate::process::messages::{Answer, Command, Fill, Ready};
use crate::process::serve_error::ServeError;
use crate::process::weights::{ReceiveError, weights_from};

/// How often a worker says where it is.
const PULSE: Duration = Duration::from_millis(100);

/// By a stream.
pub(in crate::process) struct StreamChannel {
    stream: Arc<StreamEnd>,
    /// One part, which is filled again and again.
    ring: Arc<Ring>,
    leaves: Vec<LeafSpec>,
    weights: Option<Published>,
}

impl StreamChannel {
    pub(in crate::process) fn open(
        stream: Arc<StreamEnd>,
        ready: &Ready,
    ) -> Result<(Self, LiveProbe), BuildError> {
        let Shares {
            steps,
            envs,
            batched,
            ..
        } = &ready.shares;
        let shares = Shares {
            steps: vec![steps.iter().copied().max().unwrap_or(0)],
            envs: *envs,
            batched: *batched,
            order: PartOrder::Sequential,
        };
        let spec = RingSpec {
            order: Order::ByWorker,
            workers: 1,
            ahead: 1,
            max_slabs: 1,
            cut_after: None,
            max_age: None,
        };
        let ring = Ring::new(Layout::new(&ready.record, shares)?, spec)?;
        let (control, _) = ControlBlock::create::<Command, Answer>(ControlSpec {
            fingerprint: 0,
            workers: 1,
            envs: *envs,
        })?;
        let live = LiveProbe::new(control.live_writer(0)?);
        let (envs, watched, cut) = (*envs, Arc::downgrade(&stream), Arc::clone(&ring));
        thread::Builder::new()
            .name("windrow-heartbeat".to_owned())
            .spawn(move || beat(&watched, &control, envs, &cut))
            .map_err(BuildError::Thread)?;
        let channel = Self {
            stream,
            ring,
            leaves: ready.weights.clone(),
            weights: None,
        };
        Ok((channel, live))
    }
}

/// Says where the worker is, and cuts its part in `ring` short where the collector asks for it, for
/// as long as it is there.
fn beat(stream: &Weak<StreamEnd>, control: &ControlBlock, envs: usize, ring: &Ring) {
    loop {
        sleep(PULSE);
        let (Some(stream), Ok(place)) = (stream.upgrade(), control.place(0)) else {
            return;
        };
        let episodes = (0..envs).filter_map(|env| control.episode(0, env).ok());
        let sent = stream.send_beside(&Said::Beat(Beat::new(place, episodes)));
        if sent
            .and_then(|()| stream.check_cut(|| ring.cut_all(true)))
            .is_err()
        {
            return;
        }
    }
}

impl StreamChannel {
    /// The next command. Weights that come before it are kept.
    fn next(&mut self) -> Result<Command, ServeError> {
        loop {
            let (said, bytes) = self.stream.receive(Deadline::Never)?;
            match said {
                Said::Command(command) => return Ok(command),
                Said::Weights(version) => {
                    let weights = weights_from(&self.leaves, &bytes).map_err(ReceiveError::from)?;
                    self.weights = Some(Published {
                        version,
                        weights: Arc::new(weights),
                    });
                }
                // It came too late: the part had ended.
                Said::Cut => {}
                Said::End => return Err(ServeError::Ended),
                _ => return Err(ServeError::Order),
            }
        }
    }
}

impl Channel for StreamChannel {
    fn receive(&mut self) -> Option<Command> {
        match self.next() {
            Ok(command) => Some(command),
            Err(ServeError::Ended | ServeError::Connection(_)) => None,
            Err(error) => {
                // No answer is due that could say it.
                eprintln!("windrow-worker: {}", error_chain(&error));
                None
            }
        }
    }

    fn part(&mut self, _: &Fill) -> Result<Part, SlabError> {
        self.ring.cut_all(false);
        let part = self.ring.claim(0).ok_or(SlabError::Stopped)?;
        self.stream.begin_part();
        Ok(part)
    }

    fn newest_weights(&mut self, held: Option<i64>) -> Result<Option<Published>, ReceiveError> {
        let newer = self.weights.as_ref();
        Ok(newer
            .filter(|weights| Some(weights.version) != held)
            .cloned())
    }

    fn answer(&mut self, answer: Answer, part: Option<Part>, follow: usize) -> bool {
        let mut rows = Vec::new();
        if let Some(part) = part {
            part.write_to(&mut rows)
                .expect("Values in this process's own memory are not mapped.");
        }
        let answer = Said::Answer { answer, follow };
        self.stream.end_part(&answer, rows).is_ok()
    }
}
