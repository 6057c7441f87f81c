//! The hooks and the mirror of a run, in the one process of it that has them.

use serde_json::{Map, Value};

use crate::launch::Program;
use crate::plan::{Plan, RunFolders};
use crate::session::hooks::{HookCalls, Hooks};
use crate::session::mirror::{Mirror, MirrorRequests};
use crate::user_error::ExitCode;

/// What goes on beside a run.
#[derive(Default)]
pub(crate) struct SideTasks {
    hooks: Option<Hooks>,
    mirror: Option<Mirror>,
}

/// What they hear of the run.
#[derive(Clone)]
pub(crate) struct SideListener {
    hooks: Option<HookCalls>,
    mirror: Option<MirrorRequests>,
}

impl SideTasks {
    /// Starts those that the run has.
    pub(crate) fn start(plan: &Plan, run: &RunFolders) -> Self {
        Self { hooks: Hooks::start(plan, run), mirror: Mirror::start(plan, run) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hooks.is_none() && self.mirror.is_none()
    }

    /// `program`, whose ranks pass on what they record if anything depends on that.
    pub(crate) fn listen_to(&self, program: Program) -> Program {
        let wants_events = self.hooks.as_ref().is_some_and(Hooks::wants_events);
        if wants_events || self.mirror.is_some() { program.telling_events() } else { program }
    }

    pub(crate) fn listener(&self) -> SideListener {
        SideListener {
            hooks: self.hooks.as_ref().map(Hooks::calls).cloned(),
            mirror: self.mirror.as_ref().map(Mirror::requests).cloned(),
        }
    }

    /// Waits for the mirror, and then for the hooks: the command for the end of a run may switch the
    /// machine off. `failure` is the error with which the run failed.
    pub(crate) fn end(self, code: ExitCode, failure: Option<&str>) {
        if let Some(mirror) = self.mirror {
            mirror.end();
        }
        if let Some(hooks) = self.hooks {
            hooks.end_run(code, failure);
        }
    }
}

impl SideListener {
    /// Passes on an event that the first rank has recorded.
    pub(crate) fn on_event(&self, event: &Map<String, Value>) {
        if let Some(hooks) = &self.hooks {
            hooks.on_event(event);
        }
        if let Some(mirror) = &self.mirror {
            mirror.on_event(event);
        }
    }
}
