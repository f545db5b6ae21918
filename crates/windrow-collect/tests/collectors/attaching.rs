//! As whom a collector writes: as the same writer as long as it numbers trajectories as it does.

use std::sync::{Arc, Mutex};

use tensordict::TensorDict;
use windrow_collect::Collector;
use windrow_slab::{Sink, SinkError, WriterId};

/// Notes as whom collectors attach: with a number of their own, or again as a first one.
#[derive(Debug, Default)]
struct Door(Mutex<Vec<Option<WriterId>>>);

impl Door {
    fn enter(&self, first: Option<WriterId>) -> WriterId {
        let mut entered = self.0.lock().unwrap();
        entered.push(first);
        WriterId(entered.len() as u64 - 1)
    }
}

impl Sink for Door {
    fn attach(&self) -> WriterId {
        self.enter(None)
    }

    fn attach_again(&self, first: WriterId) -> WriterId {
        self.enter(Some(first))
    }

    fn extend(&self, _: WriterId, _: &TensorDict) -> Result<(), SinkError> {
        Ok(())
    }

    fn detach(&self, _: WriterId, _: Option<SinkError>) {}
}

#[test]
fn a_collector_attaches_again_as_whom_it_was_first_until_it_goes_back_to_a_state() {
    let door = Arc::new(Door::default());
    let build = || {
        Collector::builder("CartPole-v1")
            .frames_per_batch(10)
            .replay_buffer(Arc::clone(&door))
            .build()
            .unwrap()
    };
    let (mut first, mut second) = (build(), build());
    let state = first.state_dict().unwrap();
    first.next().unwrap().unwrap();
    second.next().unwrap().unwrap();
    first.next().unwrap().unwrap();
    first.load_state_dict(&state).unwrap();
    first.next().unwrap().unwrap();
    first.start().unwrap();
    first.shutdown().unwrap();
    let entered = door.0.lock().unwrap().clone();
    let again = |number| Some(WriterId(number));
    assert_eq!(entered, [None, None, again(0), None, again(3)]);
}
