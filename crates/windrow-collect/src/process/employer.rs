//! Who answers for a crew's end.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::crew::Crew;

/// How long workers may take to end by themselves.
const PATIENCE: Duration = Duration::from_millis(500);

/// A crew whose processes have ended once this is dropped, and with them the thread that watches over them: others hold the crew
/// for a moment only, but one of them could be the last.
pub(crate) struct Employer(Arc<Crew>);

impl Employer {
    pub(super) fn new(crew: Arc<Crew>) -> Self {
        Self(crew)
    }
}

impl Deref for Employer {
    type Target = Arc<Crew>;

    fn deref(&self) -> &Arc<Crew> {
        &self.0
    }
}

impl Drop for Employer {
    fn drop(&mut self) {
        // Nothing can take an error any more.
        let _ = self
            .0
            .supervisor()
            .and_then(|supervisor| supervisor.shutdown(PATIENCE));
    }
}
