//! Compares the results of a few steps of the experiment at several world sizes, bit by bit.

use std::path::Path;
use std::time::Duration;

use crate::checkpoint::Manifest;
use crate::config;
use crate::doctor::short_run::{ScratchFolder, refuse_torch_order, shortened, train};
use crate::kinds::Kinds;
use crate::plan::{Plan, admitted_worlds};
use crate::session::{self, Prepared, SINGLE_NODE, prepare};
use crate::terminal::counted;
use crate::units::WorldSize;
use crate::user_error::{ErrorPage, ExitCode};

/// Results of [`check_world_sizes`] as they come.
pub enum WorldSizesProgress<'a> {
    /// The trainings begin, of so many steps.
    Started { plan: &'a Plan, steps: u64 },
    /// One world size has been trained.
    Trained { world: WorldSize, manifest: &'a Manifest, time: Duration },
}

/// Trains the first `steps` of the experiment at `path` with `changes` at each of `world_sizes`,
/// and compares the checkpoints.
///
/// # Errors
///
/// Exit 9 names the first parameter that differs.
pub fn check_world_sizes(
    path: &Path,
    mut changes: Vec<String>,
    world_sizes: &[u32],
    steps: u64,
    kinds: &Kinds,
    report: &mut dyn FnMut(WorldSizesProgress<'_>) -> Result<(), ErrorPage>,
) -> Result<(), ErrorPage> {
    // The largest of the world sizes, so that its shards admit the others.
    let largest = world_sizes.iter().max().copied().unwrap_or(1);
    changes.push(format!("distributed.devices={largest}"));
    let prepared = prepare(path, &changes, SINGLE_NODE, kinds)?;
    refuse_torch_order(&prepared.plan)?;
    refuse_sizes(world_sizes, prepared.plan.batch.shards.get())?;
    let mut scratch = ScratchFolder::make(&prepared.plan, 0)?;
    let prepared = scratch.generate(prepared, changes, kinds)?;
    let plans = plans(world_sizes, steps, &prepared, kinds)?;
    let steps = plans[0].length.total_steps;
    report(WorldSizesProgress::Started { plan: &prepared.plan, steps })?;
    let mut first: Option<(WorldSize, Manifest)> = None;
    for plan in &plans {
        let world = plan.world_size();
        let (manifest, time) = train(plan, &mut scratch)?;
        report(WorldSizesProgress::Trained { world, manifest: &manifest, time })?;
        match &first {
            None => first = Some((world, manifest)),
            Some((one, of_one)) => refuse_different(*one, of_one, world, &manifest)?,
        }
    }
    Ok(())
}

/// Refuses world sizes over which `shards` shards cannot be divided, and one size alone.
fn refuse_sizes(sizes: &[u32], shards: u32) -> Result<(), ErrorPage> {
    let admitted = admitted_worlds(shards);
    let what = match sizes.iter().find(|size| !admitted.contains(size)) {
        Some(size) => {
            let (shards, ranks) =
                (counted(shards.into(), "shard"), counted((*size).into(), "rank"));
            format!("{shards} cannot be divided over {ranks}")
        }
        None if sizes.iter().all(|size| *size == sizes[0]) => {
            "there is only one size, and nothing to compare".to_owned()
        }
        None => return Ok(()),
    };
    let what = format!("`--world-sizes`: {what}");
    Err(ErrorPage::refused(what, "give sizes such as 1,2,4"))
}

/// A plan for each world size: the first steps of the run, without anything that only a whole run
/// has.
fn plans(
    world_sizes: &[u32],
    steps: u64,
    prepared: &Prepared,
    kinds: &Kinds,
) -> Result<Vec<Plan>, ErrorPage> {
    let experiment = prepared.plan.pin(prepared.loaded.experiment.clone());
    let text = session::to_toml(&experiment)?;
    let mut plans = Vec::new();
    for world in world_sizes {
        let change = format!("distributed.devices={world}");
        let loaded =
            config::load_text(&prepared.loaded.path, &text, &[change], &kinds.vocabulary())?;
        plans.push(shortened(Prepared::of(loaded, SINGLE_NODE, None, kinds)?.plan, steps));
    }
    Ok(plans)
}

/// Refuses two world sizes whose results differ bitwise.
fn refuse_different(
    one: WorldSize,
    ours: &Manifest,
    other: WorldSize,
    theirs: &Manifest,
) -> Result<(), ErrorPage> {
    let Some(difference) = ours.first_difference(theirs) else { return Ok(()) };
    let ranks = |world: WorldSize| counted(u64::from(world.get()), "rank");
    let page = format!(
        "error: {} and {} differ bitwise, first in {difference}\n  why: an operation of the model \
         adds in an order, or draws numbers, that depend on the rank",
        ranks(one),
        ranks(other)
    );
    let help = "use the operations of `ddprun::ops` and `ddprun::rng` in a model of your own; if \
                it is one of ours, report it";
    Err(ErrorPage::new(ExitCode::Expectation, page).help(help))
}
