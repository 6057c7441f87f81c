//! A run that is asked for: a new one, or one that is resumed.

use crate::record::{RESOLVED, newest_of, to_stderr};
use crate::session::experiment::{Prepared, warn_about};
use crate::session::resume::ResumedRun;
use crate::session::run_folder::{OtherData, OwnedRun, folders_of, open_run};
use crate::user_error::{ErrorPage, ExitCode};

/// What is to be run.
pub struct RunRequest {
    pub(crate) prepared: Prepared,
    /// The run that is resumed; a new one has no folders yet.
    resumed: Option<ResumedRun>,
}

impl RunRequest {
    /// A new run; what may not be meant so is said.
    pub(crate) fn new(prepared: Prepared) -> Self {
        warn_about(&prepared);
        Self { prepared, resumed: None }
    }

    /// A run that goes on.
    pub fn of(prepared: Prepared, resumed: ResumedRun) -> Self {
        Self { resumed: Some(resumed), ..Self::new(prepared) }
    }

    /// Makes the run's folders, or takes possession of those of the run that is resumed.
    pub fn open(&self) -> Result<OwnedRun, ErrorPage> {
        match &self.resumed {
            Some(run) => run.own(&self.prepared),
            None => open_run(&self.prepared),
        }
    }

    /// As [`RunRequest::open`], on node 0 of several machines whose others continue the run `id`:
    /// this process takes the place of the one that had made it.
    pub(crate) fn open_again(&self, id: &str) -> Result<OwnedRun, ErrorPage> {
        let plan = &self.prepared.plan;
        let run = match &self.resumed {
            Some(run) if run.folders.id == id => run.clone(),
            Some(run) => {
                return Err(not_continued(
                    id,
                    &format!("node 0 was asked to resume {}", run.folders.id),
                ));
            }
            None => ResumedRun::of(folders_of(plan, id)),
        };
        let logs = &run.folders.logs;
        let is_name = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_name || !newest_of(logs, RESOLVED).is_file() {
            return Err(not_continued(id, &format!("there is none in `{}`", logs.display())));
        }
        to_stderr(&format!(
            "the other machines continue run {id}: so does node 0, from its newest checkpoint"
        ));
        run.own(&self.prepared)
    }

    /// What to do about data other than those that the run began with.
    pub fn other_data(&self) -> OtherData {
        self.resumed.as_ref().map_or(OtherData::Refused, |run| run.data)
    }
}

fn not_continued(id: &str, why: &str) -> ErrorPage {
    let page = format!(
        "error: the other machines continue run {id}, but node 0 cannot\n  why: {why}\n  do: stop \
         ddprun on all machines, and start it on all again"
    );
    ErrorPage::new(ExitCode::Refused, page)
}
