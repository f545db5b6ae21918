//! What a subscriber of `tracing` learns.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, subscriber};
use windrow_collect::{Collector, OnLoss};
use windrow_env::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
use windrow_policy::Weights;

/// Keeps events as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "windrow_collect"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn losses_and_refused_weights_are_events() {
    let log = Log::default();
    subscriber::with_default(log.clone(), || {
        let failing = || FailingEnv::new(LedgerEnv::from_seed(), FailAt::Step(5), Failure::Error);
        let mut collector = Collector::builder(failing)
            .frames_per_batch(8)
            .on_loss(OnLoss::Restart { budget: 1 })
            .build()
            .unwrap();
        let mut strange = Weights::new([]);
        strange
            .set("strange", tensordict::Tensor::scalar(1.0f32))
            .unwrap();
        collector.update_policy_weights(&strange).unwrap_err();
        assert!(collector.find_map(Result::err).is_some());
    });
    let events = log.0.lock().unwrap().clone();
    let expected = [
        (Level::WARN, "weights were refused"),
        (Level::WARN, "a worker was lost, and starts over"),
        (Level::ERROR, "a worker was lost, and the collector ends"),
    ];
    assert_eq!(events.len(), expected.len(), "{events:?}");
    for (event, (level, words)) in events.iter().zip(expected) {
        assert!(event.starts_with(level.as_str()), "{event}");
        assert!(event.contains(words), "{event}");
    }
    assert!(events[1].contains("worker=0") && events[1].contains("made to fail in Step(5)"));
}
