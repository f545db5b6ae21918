//! Reads a trace as a viewer would.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// A span as a viewer would see it, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) rollout: u64,
    pub(crate) step: Option<u64>,
    pub(crate) steps: Option<u64>,
}

/// A trace that has the right form.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) base: u64,
    /// Name and spans of each process.
    pub(crate) tracks: BTreeMap<u64, (String, Vec<Span>)>,
}

impl Trace {
    /// Reads a file and checks it against the Trace Event Format, the JSON object form of it.
    pub(crate) fn read(path: &Path) -> Self {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let json: Value = serde_json::from_str(&text).unwrap();
        assert!(matches!(
            json["displayTimeUnit"].as_str(),
            Some("ms" | "ns")
        ));
        let base = json["baseTimeNanoseconds"].as_u64().unwrap();
        let mut tracks = BTreeMap::<u64, (String, Vec<Span>)>::new();
        let mut threads = BTreeMap::new();
        for event in json["traceEvents"].as_array().unwrap() {
            let number = |key: &str| whole(&event[key], key, event);
            let (pid, tid) = (number("pid"), number("tid"));
            assert!(pid > 0 && tid > 0, "0 is the idle process: {event}");
            assert_eq!(*threads.entry(tid).or_insert(pid), pid, "{event}");
            let name = event["name"].as_str().unwrap();
            let args = &event["args"];
            assert!(args.is_object(), "{event}");
            let track = tracks.entry(pid).or_default();
            match event["ph"].as_str() {
                Some("M") => match name {
                    "process_name" => track.0 = args["name"].as_str().unwrap().to_owned(),
                    "thread_name" => assert!(args["name"].is_string(), "{event}"),
                    "process_sort_index" => assert!(args["sort_index"].is_i64(), "{event}"),
                    _ => panic!("no metadata of this name: {event}"),
                },
                Some("X") => {
                    assert!(event["cat"].is_string(), "{event}");
                    let (start, nanos) = (nanos(&event["ts"]), nanos(&event["dur"]));
                    track.1.push(Span {
                        name: name.to_owned(),
                        start,
                        end: start + nanos,
                        rollout: args["rollout"].as_u64().unwrap(),
                        step: args["step"].as_u64(),
                        steps: args["steps"].as_u64(),
                    });
                }
                _ => panic!("neither metadata nor a complete event: {event}"),
            }
        }
        Self { base, tracks }
    }

    /// The spans of the only track, which are well nested.
    pub(crate) fn only(&self) -> &[Span] {
        assert_eq!(self.tracks.len(), 1, "{:?}", self.tracks.keys());
        let (_, spans) = self.tracks.values().next().unwrap();
        check_nesting(spans);
        spans
    }

    pub(crate) fn rollouts(&self) -> Vec<u64> {
        let rollouts = self.only().iter().filter(|span| span.name == "Rollout");
        rollouts.map(|span| span.rollout).collect()
    }
}

pub(crate) fn whole(value: &Value, key: &str, event: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{key} of {event}"))
}

/// Microseconds as a JSON number, which viewers read into a double.
pub(crate) fn nanos(micros: &Value) -> u64 {
    assert!(micros.is_number(), "{micros}");
    let micros = micros.as_f64().unwrap();
    assert!((0.0..1e12).contains(&micros), "loses precision: {micros}");
    (micros * 1000.0).round() as u64
}

/// Goes through the spans as viewers do: each lies within the one below it on the stack, or begins
/// after its end.
pub(crate) fn check_nesting(spans: &[Span]) {
    assert!(
        spans
            .iter()
            .is_sorted_by_key(|span| (span.start, span.name != "Rollout"))
    );
    let mut stack: Vec<&Span> = Vec::new();
    for span in spans {
        while stack
            .pop_if(|top| top.end <= span.start && !holds(top, span))
            .is_some()
        {}
        if let Some(top) = stack.last() {
            assert!(holds(top, span), "{span:?} overlaps {top:?}");
        }
        assert_eq!(stack.len(), usize::from(span.name != "Rollout"), "{span:?}");
        stack.push(span);
    }
}

/// Whether `inner` is a phase of the rollout `outer`.
pub(crate) fn holds(outer: &Span, inner: &Span) -> bool {
    outer.name == "Rollout"
        && inner.name != "Rollout"
        && outer.start <= inner.start
        && inner.end <= outer.end
}

/// The rollouts of a track, each with its phases.
pub(crate) fn by_rollout(spans: &[Span]) -> Vec<(&Span, &[Span])> {
    spans
        .chunk_by(|_, next| next.name != "Rollout")
        .map(|rollout| (&rollout[0], &rollout[1..]))
        .collect()
}

/// Checks that a rollout consists of each phase in its place, and that they fill it without a gap.
pub(crate) fn check_phases(rollout: &Span, phases: &[Span], steps: u64) {
    assert_eq!(rollout.steps, Some(steps));
    let mut expected = vec![("WaitSlab", None), ("LoadWeights", None), ("Open", None)];
    for step in 0..steps {
        expected.extend(["Policy", "EnvStep", "Close"].map(|phase| (phase, Some(step))));
    }
    expected.push(("Commit", None));
    let got: Vec<_> = phases
        .iter()
        .map(|span| (span.name.as_str(), span.step))
        .collect();
    assert_eq!(got, expected);
    let mut at = rollout.start;
    for span in phases {
        assert_eq!(
            (span.start, span.rollout),
            (at, rollout.rollout),
            "{span:?}"
        );
        at = span.end;
    }
    assert_eq!(at, rollout.end);
}
