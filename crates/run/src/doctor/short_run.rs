//! Short training runs in a scratch folder, which is removed with them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::checkpoint::{self, Manifest, OpenCheckpoint};
use crate::config::schema::Hooks;
use crate::files;
use crate::kinds::Kinds;
use crate::launch::{self, Console, Nodes, Program, Start};
use crate::plan::{Interval, OnOom, Plan, RunFolders, Sampler};
use crate::session::{Prepared, SINGLE_NODE, generate, prepare};
use crate::user_error::{ErrorPage, ExitCode};

/// The first `steps` of a plan, with a checkpoint after them.
pub(crate) fn shortened(mut plan: Plan, steps: u64) -> Plan {
    plan.length.total_steps = plan.length.total_steps.min(steps);
    plan.length.time = None;
    plan.validate_every = Interval::Never;
    plan.checkpoint.every = Interval::Steps(plan.length.total_steps);
    plan.early_stopping = None;
    (plan.max_restarts, plan.on_oom) = (0, OnOom::Stop);
    plan.logging.sinks.clear();
    (plan.hooks, plan.mirror) = (Hooks::default(), None);
    plan.expect.clear();
    plan
}

/// Refuses an experiment whose results depend on the number of ranks.
pub(crate) fn refuse_torch_order(plan: &Plan) -> Result<(), ErrorPage> {
    if plan.data.sampler != Sampler::Torch {
        return Ok(());
    }
    let what = "`data.sampler = \"torch\"` deals samples out by rank: another world size is \
                another experiment";
    Err(ErrorPage::refused(what, "use `data.sampler = \"shards\"`"))
}

/// Trains to the end. Returns the manifest of the last checkpoint, and the time it took.
pub(crate) fn train(
    plan: &Plan,
    room: &mut ScratchFolder,
) -> Result<(Manifest, Duration), ErrorPage> {
    let folders = room.folders(&format!("world-{}", plan.world_size()))?;
    let time = run(plan, (&folders, false), None, room)?;
    finished(&folders).map(|manifest| (manifest, time))
}

/// Trains in `folders` to the end, from the newest checkpoint in them if the run is resumed.
pub(crate) fn train_in(
    folders: &RunFolders,
    plan: &Plan,
    resume: bool,
    room: &mut ScratchFolder,
) -> Result<Duration, ErrorPage> {
    run(plan, (folders, resume), None, room)
}

/// Trains this machine's ranks. Returns the time, and on node 0 the manifest of the last
/// checkpoint.
pub(crate) fn train_together(
    plan: &Plan,
    nodes: &mut Nodes,
    room: &mut ScratchFolder,
) -> Result<(Option<Manifest>, Duration), ErrorPage> {
    let (folders, is_first) = (room.folders("together")?, nodes.node() == 0);
    let time = run(plan, (&folders, false), Some(nodes), room)?;
    let manifest = is_first.then(|| finished(&folders)).transpose()?;
    Ok((manifest, time))
}

fn run(
    plan: &Plan,
    (folders, resume): (&RunFolders, bool),
    nodes: Option<&mut Nodes>,
    room: &mut ScratchFolder,
) -> Result<Duration, ErrorPage> {
    let program = Program::this().map_err(|error| ErrorPage::of(ExitCode::Resource, &error))?;
    let start = Start { resume, program, console: Console::File, smaller: vec![], waker: None };
    let began = Instant::now();
    let ended = match nodes {
        Some(nodes) => launch::run_node(plan, folders, &start, nodes, &mut |_| ()),
        None => launch::run(plan, folders, &start, &mut |_| ()),
    };
    let ended = ended.map_err(|mut failure| {
        room.keep(&mut failure.log);
        failure.help.get_or_insert_with(|| "train the experiment itself to see it again".into());
        ErrorPage::new(failure.exit_code(), failure.block("no checkpoint"))
    })?;
    if ended.exit_code() != ExitCode::Ok {
        return Err(ErrorPage::new(ended.exit_code(), "stopped before all was done"));
    }
    Ok(began.elapsed())
}

/// Reads the manifest of the last checkpoint, and removes the run.
fn finished(folders: &RunFolders) -> Result<Manifest, ErrorPage> {
    let newest = newest_checkpoint(folders)?;
    // All that is compared is in the manifest.
    drop(folders.logs.parent().map(files::remove_folder));
    Ok(newest.manifest)
}

/// Opens the newest checkpoint of a short run.
pub(crate) fn newest_checkpoint(folders: &RunFolders) -> Result<OpenCheckpoint, ErrorPage> {
    checkpoint::newest(&folders.checkpoints)
        .map_err(|error| ErrorPage::of(ExitCode::Checkpoint, &error))
}

/// The folder of generated data in a scratch folder.
const DATA: &str = "data";

/// A folder for short runs, removed on drop unless a failure names a log in it.
pub(crate) struct ScratchFolder {
    path: PathBuf,
    is_kept: bool,
    /// True if the folder around it is removed too, once nothing else is in it.
    is_alone: bool,
}

impl ScratchFolder {
    /// Creates one beside the checkpoints, where there is room for some.
    pub(crate) fn make(plan: &Plan, node: u32) -> Result<Self, ErrorPage> {
        // Several machines may share the folder.
        let name = if node == 0 { "doctor".to_owned() } else { format!("doctor-node-{node}") };
        Self::beside(&plan.checkpoint.dir.join(&plan.name).join(name), true)
    }

    /// Creates one among the system's temporary files.
    pub(crate) fn temporary(name: &str) -> Result<Self, ErrorPage> {
        Self::beside(&std::env::temp_dir().join(format!("ddprun-{name}")), false)
    }

    fn beside(path: &Path, is_alone: bool) -> Result<Self, ErrorPage> {
        let path = files::create_scratch_folder(path);
        let path = path.map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
        Ok(Self { path, is_kept: false, is_alone })
    }

    /// Generates the experiment's data: where it wants them if they are there already, else in this
    /// folder, with the experiment changed to it.
    pub(crate) fn generate(
        &self,
        prepared: Prepared,
        mut changes: Vec<String>,
        kinds: &Kinds,
    ) -> Result<Prepared, ErrorPage> {
        let mut folders = prepared.plan.data.source.survey.values().filter_map(|it| it.as_str());
        let is_there = folders.any(|folder| Path::new(folder).exists());
        let prepared = match prepared.source.generated_in() {
            Some(key) if !is_there => {
                let dir = toml::Value::from(self.join(DATA).to_string_lossy().into_owned());
                changes.push(format!("data.{key}={dir}"));
                prepare(&prepared.loaded.path, &changes, SINGLE_NODE, kinds)?
            }
            _ => prepared,
        };
        generate(&prepared)?;
        Ok(prepared)
    }

    /// The path of `name` in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Leaves the folder to the user under a name that `ls` shows, because a failure names the
    /// `log` in it.
    fn keep(&mut self, log: &mut PathBuf) {
        let name = if self.is_alone { "doctor" } else { "ddprun-try" };
        let kept = self.path.with_file_name(format!("{name}-{:08x}", files::random() as u32));
        if files::rename_folder(&self.path, &kept).is_ok() {
            if let Ok(inner) = log.strip_prefix(&self.path) {
                *log = kept.join(inner);
            }
            self.path = kept;
        }
        self.is_kept = true;
    }

    /// The folders of a run, which are there when it returns.
    pub(crate) fn folders(&self, id: &str) -> Result<RunFolders, ErrorPage> {
        let of = |kind: &str| self.path.join(id).join(kind);
        let (logs, checkpoints) = (of("logs"), of("checkpoints"));
        for folder in [&logs, &checkpoints] {
            files::create_folder(folder)
                .map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
        }
        Ok(RunFolders { id: id.to_owned(), logs, checkpoints })
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if self.is_kept {
            drop(files::remove_folder(&self.join(DATA)));
            return;
        }
        // What cannot be removed does no harm, and is found by its name.
        drop(files::remove_leftover(&self.path));
        if self.is_alone {
            // The experiment's folder goes only if no run is in it.
            files::remove_empty_parent(&self.path);
        }
    }
}
