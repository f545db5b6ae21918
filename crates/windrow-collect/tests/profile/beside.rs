//! Another profiler beside the recorder.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;
use windrow_collect::{
    ControlError, Placement, ProfileConfig, ProfileError, Profiler, ProfilerRecipe,
};
use windrow_sync::error_chain;

use super::{config, multi_sync, single, take};

type Done = Result<(), Box<dyn Error + Send + Sync>>;

/// Notes what it is told, and fails where it is told this.
#[derive(Debug, Clone, Default)]
struct Notes {
    told: Arc<Mutex<Vec<String>>>,
    fails: Option<&'static str>,
}

impl Notes {
    fn tell(&self, what: &'static str) -> Done {
        self.told.lock().unwrap().push(what.to_owned());
        match self.fails == Some(what) {
            true => Err(format!("no {what}").into()),
            false => Ok(()),
        }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn added_to(&self, config: ProfileConfig) -> ProfileConfig {
        let notes = self.clone();
        config.profiler(ProfilerRecipe::new(move |_| Ok(notes.clone())))
    }
}

impl Profiler for Notes {
    fn begin(&mut self) -> Done {
        self.tell("begin")
    }

    fn step(&mut self) -> Done {
        self.tell("step")
    }

    fn end(&mut self, path: &Path) -> Done {
        assert!(path.exists(), "the phases are written before");
        self.tell("end")
    }
}

#[test]
fn another_profiler_hears_of_all_rollouts_that_are_profiled() {
    for placement in [Placement::Inline, Placement::Threads] {
        let (folder, notes) = (TempDir::new().unwrap(), Notes::default());
        let mut collector = single(placement).build().unwrap();
        let config = notes.added_to(config(&folder));
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 5);
        collector.shutdown().unwrap();
        assert_eq!(notes.take(), ["begin", "step", "step", "step", "end"]);
    }
}

#[test]
fn another_profiler_ends_with_its_thread() {
    for placement in [Placement::Inline, Placement::Threads] {
        let (folder, notes) = (TempDir::new().unwrap(), Notes::default());
        let mut collector = single(placement).build().unwrap();
        let config = notes.added_to(config(&folder).num_rollouts(100));
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 2);
        collector.shutdown().unwrap();
        let told = notes.take();
        assert_eq!((&told[0][..], &told[told.len() - 1][..]), ("begin", "end"));
    }
}

#[test]
fn no_other_thread_ends_another_profiler() {
    let (folder, notes) = (TempDir::new().unwrap(), Notes::default());
    let mut collector = single(Placement::Inline).build().unwrap();
    collector
        .enable_profile(&notes.added_to(config(&folder).num_rollouts(100)))
        .unwrap();
    take(&mut collector, 2);
    let ended = thread::spawn(move || collector.shutdown()).join().unwrap();
    assert!(matches!(
        ended,
        Err(ControlError::Profile(ProfileError::Profiler {
            worker: 0,
            ..
        }))
    ));
    assert_eq!(notes.take(), ["begin", "step", "step"]);
}

#[test]
fn an_error_of_another_profiler_is_reported_and_the_collector_goes_on() {
    for fails in ["begin", "step", "end"] {
        let folder = TempDir::new().unwrap();
        let notes = Notes {
            fails: Some(fails),
            ..Notes::default()
        };
        let mut collector = single(Placement::Inline).build().unwrap();
        let config = notes.added_to(config(&folder));
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 3);
        let error = collector.next().unwrap().unwrap_err();
        assert_eq!(
            error_chain(&error),
            format!("the profiler of worker 0 failed: no {fails}")
        );
        take(&mut collector, 1);
        assert!(config.path_of(0).exists(), "the phases are written");
        assert_eq!(notes.take().last().unwrap(), fails);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_needs_what_its_profiler_is_made_of() {
    let (folder, notes) = (TempDir::new().unwrap(), Notes::default());
    let mut collector = multi_sync(Placement::Processes, 1).build().unwrap();
    let config = notes.added_to(config(&folder));
    let refused = collector.enable_profile(&config);
    assert!(matches!(
        refused,
        Err(ControlError::Profile(ProfileError::Unwritten))
    ));
    // The program of this test makes no profilers.
    let notes = notes.clone();
    let recipe = ProfilerRecipe::new(move |_| Ok(notes.clone())).written_as("notes");
    collector.enable_profile(&config.profiler(recipe)).unwrap();
    take(&mut collector, 3);
    let error = error_chain(&collector.shutdown().unwrap_err());
    assert!(error.ends_with("makes no profilers"), "{error}");
}
