//! Every interleaving of a learner that publishes and workers that look: run with
//! `cargo xtask models`.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use loom::thread;
use tensordict::{Tensor, TensorDict};
use windrow_policy::{Published, WeightStore, Weights};

/// All interleavings with at most three switches away from a thread that could go on.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

fn weights(value: i64) -> Weights {
    let mut weights = TensorDict::new([]);
    let tensor = Tensor::full([2], value).unwrap();
    weights.set("weight", tensor).unwrap();
    weights
}

/// The value of weights, which is that of their version.
fn whole(published: &Published) -> i64 {
    let values = published.weights.as_slice::<i64>("weight").unwrap();
    assert_eq!(values, [published.version; 2]);
    published.version
}

/// Looks twice, as a worker does before each of its parts; the version that it has then.
fn worker(store: &Arc<WeightStore>, id: usize) -> thread::JoinHandle<i64> {
    let store = Arc::clone(store);
    thread::spawn(move || {
        let mut version = 0;
        for _ in 0..2 {
            if let Some(published) = store.other_than(version, id) {
                assert!(published.version > version);
                version = whole(&published);
            }
        }
        version
    })
}

#[test]
fn workers_see_whole_versions_that_only_grow() {
    model(|| {
        let store = Arc::new(WeightStore::new(2));
        let workers = [worker(&store, 0), worker(&store, 1)];
        assert_eq!(store.publish(&weights(1)).unwrap(), 1);
        assert_eq!(store.publish(&weights(2)).unwrap(), 2);
        for worker in workers {
            assert!((0..=2).contains(&worker.join().unwrap()));
        }
        for id in 0..2 {
            assert_eq!(
                store.other_than(1, id).map(|newest| whole(&newest)),
                Some(2)
            );
        }
    });
}

#[test]
fn what_was_published_before_a_part_began_is_seen_by_it() {
    model(|| {
        let store = Arc::new(WeightStore::new(1));
        store.publish(&weights(1)).unwrap();
        let worker = worker(&store, 0);
        store.publish(&weights(2)).unwrap();
        assert!(worker.join().unwrap() >= 1);
    });
}

#[test]
fn two_learners_never_publish_the_same_version() {
    model(|| {
        let store = Arc::new(WeightStore::new(2));
        let other = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.publish_to(1, &weights(7)).unwrap().unwrap())
        };
        let mine = store.publish(&weights(7)).unwrap();
        let mut versions = [mine, other.join().unwrap()];
        let newest = |id| store.newest(id).unwrap().version;
        // Worker 0 was sent one of them, worker 1 whichever came last.
        assert_eq!((newest(0), newest(1)), (mine, 2));
        versions.sort_unstable();
        assert_eq!((versions, store.version()), ([1, 2], 2));
    });
}

#[test]
fn weights_for_one_worker_are_not_seen_by_another() {
    model(|| {
        let store = Arc::new(WeightStore::new(2));
        let workers = [worker(&store, 0), worker(&store, 1)];
        assert_eq!(store.publish_to(1, &weights(1)).unwrap(), Some(1));
        let [first, second] = workers.map(|worker| worker.join().unwrap());
        assert_eq!(first, 0);
        assert!((0..=1).contains(&second));
        assert_eq!(whole(&store.other_than(0, 1).unwrap()), 1);
    });
}
