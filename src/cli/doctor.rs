//! `ddprun doctor x.toml`: a few steps of the experiment at each world size, and whether they gave
//! the same bits.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::checkpoint::{self, Manifest};
use crate::cli::args::DoctorArgs;
use crate::cli::prepare::{ALONE, Prepared, generate, prepare, refused, vocabulary};
use crate::cli::{Refusal, to_stdout};
use crate::config::{self, Loaded};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::exit_code as exit;
use crate::launch::{self, Console, Program, Start};
use crate::plan::{Cadence, Plan, RunFolders, Sampler};
use crate::terminal::counted;
use crate::units::WorldSize;

/// Trains at each world size and compares what is left. Exit 9 names the first parameter that
/// differs.
pub(crate) fn doctor(args: &DoctorArgs, kinds: &Kinds) -> Result<u8, Refusal> {
    let prepared = at_most(args, kinds)?;
    generate(&prepared)?;
    let plans = plans(args, &prepared, kinds)?;
    let mut room = ScratchFolder::make(&prepared.plan)?;
    let shards = prepared.plan.batch.shards;
    let precision = format!("{:?}", prepared.plan.precision).to_lowercase();
    to_stdout(&format!(
        "{} of {}: global batch {} in {shards} shards, {precision}\n",
        counted(plans[0].length.total_steps, "step"),
        prepared.plan.name,
        prepared.plan.batch.global
    ))?;
    let mut first: Option<(WorldSize, Manifest)> = None;
    for plan in &plans {
        let world = plan.world_size();
        let (manifest, time) = train(plan, &mut room)?;
        to_stdout(&line(world, &manifest, time))?;
        match &first {
            None => first = Some((world, manifest)),
            Some((one, of_one)) => same(*one, of_one, world, &manifest)?,
        }
    }
    to_stdout("the same bits at every world size: parameters, optimizer and progress\n")
}

/// The experiment at the largest of the world sizes, so that its shards admit the others.
fn at_most(args: &DoctorArgs, kinds: &Kinds) -> Result<Prepared, Refusal> {
    if args.run.launch.nodes() > 1 {
        let page = "error: `ddprun doctor` compares ranks of one machine\n  do: omit `--nnodes`; \
                    several machines give the bits of one with as many ranks";
        return Err(Refusal::new(exit::REFUSED, page));
    }
    let path = args.run.experiment.clone().unwrap_or_default();
    let largest = args.world_sizes.iter().max().copied().unwrap_or(1);
    let mut changes = args.run.all_changes();
    changes.push(format!("distributed.devices={largest}"));
    let prepared = prepare(&path, &changes, ALONE, kinds)?;
    if prepared.plan.data.sampler == Sampler::Torch {
        let page = "error: `data.sampler = \"torch\"` deals samples out by rank: another world \
                    size is another experiment\n  do: use `data.sampler = \"shards\"`";
        return Err(Refusal::new(exit::REFUSED, page));
    }
    Ok(prepared)
}

/// A plan for each world size: the first steps of the run, without anything that only a whole run
/// has.
fn plans(args: &DoctorArgs, prepared: &Prepared, kinds: &Kinds) -> Result<Vec<Plan>, Refusal> {
    let experiment = prepared.plan.pin(prepared.loaded.experiment.clone());
    let text =
        config::resolved(&experiment).map_err(|error| Refusal::of(exit::BUG, &error, None))?;
    let mut plans = Vec::new();
    for world in &args.world_sizes {
        let change = format!("distributed.devices={world}");
        let loaded = load(&prepared.loaded, &text, change, kinds)?;
        plans.push(shortened(Prepared::of(loaded, ALONE, None, kinds)?.plan, args.steps));
    }
    Ok(plans)
}

fn load(original: &Loaded, text: &str, change: String, kinds: &Kinds) -> Result<Loaded, Refusal> {
    config::load_text(&original.path, text, &[change], &vocabulary(kinds)).map_err(refused)
}

/// The first `steps` of a plan, with a checkpoint after them.
fn shortened(mut plan: Plan, steps: u64) -> Plan {
    plan.length.total_steps = plan.length.total_steps.min(steps);
    plan.length.time = None;
    plan.validate_every = Cadence::Never;
    plan.checkpoint.every = Cadence::Steps(plan.length.total_steps);
    plan.early_stopping = None;
    plan.max_restarts = 0;
    plan.logging.sinks.clear();
    plan.expect.clear();
    plan
}

/// Trains to the end, and returns what the last checkpoint consists of.
fn train(plan: &Plan, room: &mut ScratchFolder) -> Result<(Manifest, Duration), Refusal> {
    let folders = room.folders(plan.world_size());
    for folder in [&folders.logs, &folders.checkpoints] {
        files::create_folder(folder).map_err(|error| Refusal::of(exit::STORAGE, &error, None))?;
    }
    let program = Program::this().map_err(|error| Refusal::of(exit::RESOURCE, &error, None))?;
    let start =
        Start { resume: false, program, console: Console::File, smaller: vec![], waker: None };
    let began = Instant::now();
    let ended = launch::run(plan, &folders, &start, &mut |_| ()).map_err(|mut failure| {
        room.is_kept = true;
        failure.help.get_or_insert_with(|| "train the experiment itself to see it again".into());
        Refusal::new(failure.exit_code(), failure.block("no checkpoint"))
    })?;
    if ended.exit_code() != 0 {
        return Err(Refusal::new(
            ended.exit_code(),
            "stopped before all world sizes were compared",
        ));
    }
    let newest = checkpoint::newest(&folders.checkpoints)
        .map_err(|error| Refusal::of(exit::CHECKPOINT, &error, None))?;
    let time = began.elapsed();
    // All that is compared is in the manifest.
    drop(folders.logs.parent().map(files::remove_folder));
    Ok((newest.manifest, time))
}

fn line(world: WorldSize, manifest: &Manifest, time: Duration) -> String {
    let ranks = counted(u64::from(world.get()), "rank");
    let hash = manifest.fingerprint();
    format!("{ranks:<9} {:.16}  {:.1} s\n", hash, time.as_secs_f64())
}

/// Refuses two world sizes whose results differ bitwise.
fn same(
    one: WorldSize,
    ours: &Manifest,
    other: WorldSize,
    theirs: &Manifest,
) -> Result<(), Refusal> {
    let Some(difference) = ours.first_difference(theirs) else { return Ok(()) };
    let ranks = |world: WorldSize| counted(u64::from(world.get()), "rank");
    let page = format!(
        "error: {} and {} differ bitwise, first in {difference}\n  why: an operation of the model \
         adds in an order, or draws numbers, that depend on the rank\n  do: use the operations of \
         `ddprun::ops` and `ddprun::rng` in a model of your own; if it is one of ours, report it",
        ranks(one),
        ranks(other)
    );
    Err(Refusal::new(exit::EXPECTATION, page))
}

/// A folder for the runs, gone with this value unless a failure names a log in it.
struct ScratchFolder {
    path: PathBuf,
    is_kept: bool,
}

impl ScratchFolder {
    /// Beside the checkpoints, where there is room for some.
    fn make(plan: &Plan) -> Result<Self, Refusal> {
        let name = format!("doctor-{}", std::process::id());
        let path = plan.checkpoint.dir.join(&plan.name).join(name);
        files::create_writable_folder(&path)
            .map_err(|error| Refusal::of(exit::STORAGE, &error, None))?;
        Ok(Self { path, is_kept: false })
    }

    fn folders(&self, world: WorldSize) -> RunFolders {
        let id = format!("world-{world}");
        let of = |kind: &Path| self.path.join(&id).join(kind);
        RunFolders { logs: of(Path::new("logs")), checkpoints: of(Path::new("checkpoints")), id }
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // What cannot be removed does no harm, and its name tells what it is.
        drop(files::remove_folder(&self.path));
        // The experiment's folder goes only if no run is in it.
        drop(self.path.parent().map(std::fs::remove_dir));
    }
}
