//! Errors of workers as they are written down.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use windrow_sync::error_chain;

use super::worker::{FaultKind, Place, SentError, WorkerError, WorkerFault};

/// All that is left of an error in another process.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    worker: usize,
    place: Option<Place>,
    kind: FaultKind,
    message: String,
    env: Option<usize>,
    sent: Option<SentError>,
}

/// Its place, and its fault as a kind and a message.
impl Serialize for WorkerError {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let written = Written {
            worker: self.worker,
            place: self.place,
            kind: self.fault().kind(),
            message: error_chain(self.fault()),
            env: self.fault().env(),
            sent: match self.fault() {
                WorkerFault::Remote { sent, .. } => sent.clone(),
                _ => None,
            },
        };
        written.serialize(to)
    }
}

/// The fault is a [`WorkerFault::Remote`].
impl<'de> Deserialize<'de> for WorkerError {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Written {
            worker,
            place,
            kind,
            message,
            env,
            sent,
        } = Written::deserialize(from)?;
        let fault = WorkerFault::Remote {
            kind,
            message,
            env,
            sent,
        };
        Ok(Self::new(worker, place, fault))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;

    use windrow_env::EnvError;
    use windrow_policy::PolicyError;
    use windrow_slab::SlabError;

    use super::*;
    use crate::BuildError;

    const PLACE: Place = Place {
        env: 7,
        episode: 1 << 60,
        step: 3,
    };

    fn there_and_back(error: &WorkerError) -> WorkerError {
        serde_json::from_str(&serde_json::to_string(error).unwrap()).unwrap()
    }

    fn died(stderr: &str, action: Option<&str>) -> WorkerFault {
        WorkerFault::Died {
            status: "was ended by signal 9 (SIGKILL)".to_owned(),
            stderr: stderr.to_owned(),
            doing: action.map_or("", |_| "in `step`").to_owned(),
            action: action.map(str::to_owned),
        }
    }

    /// A fault of every kind, and the environment that failed, if one did.
    fn faults() -> Vec<(WorkerFault, FaultKind, Option<usize>)> {
        let env = EnvError::failed("out of \"coffee\"\n\u{1f}").of(2);
        let slab = SlabError::NoMemory {
            frames: 3,
            bytes: 9,
        };
        let remake = BuildError::Policy {
            worker: 0,
            source: PolicyError::failed("gone"),
        };
        vec![
            (WorkerFault::Env(env), FaultKind::Env, Some(2)),
            (
                WorkerFault::Policy(PolicyError::NoLegalAction),
                FaultKind::Policy,
                None,
            ),
            (WorkerFault::Slab(slab), FaultKind::Slab, None),
            (
                WorkerFault::Start(io::Error::other("no thread")),
                FaultKind::Start,
                None,
            ),
            (WorkerFault::Panic("oh".to_owned()), FaultKind::Panic, None),
            (
                WorkerFault::Remake(Box::new(remake)),
                FaultKind::Remake,
                None,
            ),
            (
                died("Segmentation fault\n", Some("[1]")),
                FaultKind::Died,
                None,
            ),
        ]
    }

    #[test]
    fn a_fault_of_another_process_reads_as_one_of_this() {
        for (fault, kind, env) in faults() {
            assert_eq!((fault.kind(), fault.env()), (kind, env));
            let error = WorkerError::new(4, Some(PLACE), fault);
            let read = there_and_back(&error);
            assert_eq!(error_chain(&read), error_chain(&error));
            assert_eq!(error_chain(read.fault()), error_chain(error.fault()));
            assert_eq!((read.fault().kind(), read.fault().env()), (kind, env));
            assert_eq!(read.worker(), 4);
            assert_eq!(
                (read.env(), read.episode(), read.step()),
                (Some(7), Some(1 << 60), Some(3))
            );
            assert!(matches!(read.fault(), WorkerFault::Remote { .. }));
            // A second journey, such as from a process of a process, adds nothing.
            assert_eq!(there_and_back(&read).to_string(), error_chain(&error));
        }
    }

    #[test]
    fn an_error_without_a_place_has_none_there() {
        let read = there_and_back(&WorkerError::new(
            0,
            None,
            WorkerFault::Panic("oh".to_owned()),
        ));
        assert_eq!(read.to_string(), "worker 0: panicked: oh");
        assert_eq!(
            (read.env(), read.episode(), read.step()),
            (None, None, None)
        );
    }

    #[test]
    fn no_error_says_what_its_source_says() {
        for (fault, ..) in faults() {
            let error = WorkerError::new(0, Some(PLACE), fault);
            let mut link: &dyn Error = &error;
            while let Some(source) = link.source() {
                assert!(!link.to_string().contains(&source.to_string()), "{link}");
                link = source;
            }
        }
        let remake = BuildError::Env {
            worker: 2,
            source: EnvError::failed(io::Error::other("lost link")),
        };
        let error = WorkerError::new(0, None, WorkerFault::Remake(Box::new(remake)));
        let said = "worker 0: failed to start over: failed to make the environments of worker 2: lost link";
        assert_eq!(error_chain(&error), said);
        assert_eq!(there_and_back(&error).to_string(), said);
    }

    #[test]
    fn a_failure_of_the_policy_makes_sense_without_its_source() {
        let fault = WorkerFault::Policy(PolicyError::NoLegalAction);
        assert_eq!(fault.to_string(), "the policy failed");
        let error = WorkerError::new(2, None, fault);
        assert_eq!(error.to_string(), "worker 2: the policy failed");
        let source = PolicyError::NoLegalAction;
        let error = BuildError::Policy { worker: 2, source };
        assert_eq!(error.to_string(), "failed to set up the policy of worker 2");
    }

    #[test]
    fn a_process_that_has_ended_leaves_its_last_words() {
        let text = |fault: WorkerFault| WorkerError::new(1, Some(PLACE), fault).to_string();
        assert_eq!(
            text(died("Fatal error\n  in step\n\n", Some("[0.5, -1]"))),
            format!(
                "worker 1, environment 7, episode {}, step 3: its process was ended by signal 9 (SIGKILL); it was in `step`; the last action of its environment was [0.5, -1]; the last lines of its stderr:\nFatal error\n  in step",
                1u64 << 60
            )
        );
        let silent = text(died("", None));
        assert!(
            silent.ends_with(
                "its process was ended by signal 9 (SIGKILL); it wrote nothing to its stderr"
            ),
            "{silent}"
        );
    }

    #[test]
    fn what_is_no_error_of_a_worker_is_not_read() {
        for (json, named) in [
            (r#"{"worker": 1}"#, "missing field"),
            (
                r#"{"worker": 1, "place": null, "kind": "Env", "message": "", "env": null, "age": 3}"#,
                "unknown field `age`",
            ),
            (
                r#"{"worker": 1, "place": null, "kind": "Storm", "message": "", "env": null}"#,
                "unknown variant `Storm`",
            ),
        ] {
            let error = serde_json::from_str::<WorkerError>(json)
                .unwrap_err()
                .to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_was_sent_of_an_error_is_among_its_sources_there() {
        let fault = WorkerFault::Policy(PolicyError::failed("no such layer"));
        let send = |error: &(dyn Error + 'static)| {
            let source = error.source()?;
            Some(format!("{source}!").into_bytes())
        };
        let error = WorkerError::new(4, Some(PLACE), fault);
        let read = there_and_back(&there_and_back(&error.to_send(send, |_| false)));
        assert_eq!(read.to_string(), error_chain(&error));
        let WorkerFault::Remote {
            sent: Some(sent), ..
        } = read.fault()
        else {
            panic!("{read:?}")
        };
        assert_eq!(sent.bytes(), b"no such layer!");
        assert_eq!(sent.to_string(), "the policy failed: no such layer");
        assert!(matches!(
            there_and_back(&error.to_send(|_| None, |_| false)).fault(),
            WorkerFault::Remote { sent: None, .. }
        ));
    }
}
