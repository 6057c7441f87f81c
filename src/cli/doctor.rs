//! `ddprun doctor x.toml`: a few steps of the experiment at each world size, and whether they gave
//! the same bits; over several machines [`doctor_machines`].

use std::time::Duration;

use serde_json::json;

use crate::checkpoint::Manifest;
use crate::cli::args::DoctorArgs;
use crate::cli::doctor_training::{ScratchFolder, refuse_torch_order, shortened, train, trained};
use crate::cli::train::role;
use crate::cli::{answer, doctor_machines, node_args};
use crate::config::{self, Loaded};
use crate::kinds::Kinds;
use crate::plan::{Plan, admitted_worlds};
use crate::session::{self, ALONE, Prepared, prepare, vocabulary};
use crate::terminal::counted;
use crate::units::WorldSize;
use crate::user_error::{ErrorPage, ExitCode};

/// Trains at each world size and compares what is left. Exit 9 names the first parameter that
/// differs.
pub(crate) fn doctor(args: &DoctorArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let run = node_args::run_with_variables(&args.run, &role()?)?;
    if let Some(place) = node_args::place(&run.launch)? {
        return doctor_machines::doctor(&run, args.steps, &place, kinds);
    }
    // The largest of the world sizes, so that its shards admit the others.
    let largest = args.world_sizes.iter().max().copied().unwrap_or(1);
    let mut changes = run.all_changes();
    changes.push(format!("distributed.devices={largest}"));
    let path = run.experiment.clone().unwrap_or_default();
    let prepared = prepare(&path, &changes, ALONE, kinds)?;
    refuse_torch_order(&prepared.plan)?;
    refuse_sizes(&args.world_sizes, prepared.plan.batch.shards.get())?;
    let mut room = ScratchFolder::make(&prepared.plan, 0)?;
    let prepared = room.generate(prepared, changes, kinds)?;
    let plans = plans(args, &prepared, kinds)?;
    let shards = prepared.plan.batch.shards;
    let precision = format!("{:?}", prepared.plan.precision).to_lowercase();
    let steps = plans[0].length.total_steps;
    let Plan { name, batch, .. } = &prepared.plan;
    let object = || {
        json!({
            "experiment": name,
            "steps": steps,
            "global_batch_size": batch.global,
            "shards": shards.get(),
            "precision": precision,
        })
    };
    answer("doctor", object, || {
        let (steps, global) = (counted(steps, "step"), batch.global);
        let shards = counted(u64::from(shards.get()), "shard");
        format!("{steps} of {name}: global batch {global} in {shards}, {precision}\n")
    })?;
    let mut first: Option<(WorldSize, Manifest)> = None;
    for plan in &plans {
        let world = plan.world_size();
        let (manifest, time) = train(plan, &mut room)?;
        let object = || trained(world.get(), &manifest, time);
        answer("trained", object, || line(world, &manifest, time))?;
        match &first {
            None => first = Some((world, manifest)),
            Some((one, of_one)) => same(*one, of_one, world, &manifest)?,
        }
    }
    answer(
        "identical",
        || json!({ "world_sizes": args.world_sizes }),
        || "the same bits at every world size: parameters, optimizer and progress\n".to_owned(),
    )
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
    let page = format!("error: `--world-sizes`: {what}\n  do: give sizes such as 1,2,4");
    Err(ErrorPage::new(ExitCode::Refused, page))
}

/// A plan for each world size: the first steps of the run, without anything that only a whole run
/// has.
fn plans(args: &DoctorArgs, prepared: &Prepared, kinds: &Kinds) -> Result<Vec<Plan>, ErrorPage> {
    let experiment = prepared.plan.pin(prepared.loaded.experiment.clone());
    let text = session::written(&experiment)?;
    let mut plans = Vec::new();
    for world in &args.world_sizes {
        let change = format!("distributed.devices={world}");
        let loaded = load(&prepared.loaded, &text, change, kinds)?;
        plans.push(shortened(Prepared::of(loaded, ALONE, None, kinds)?.plan, args.steps));
    }
    Ok(plans)
}

fn load(original: &Loaded, text: &str, change: String, kinds: &Kinds) -> Result<Loaded, ErrorPage> {
    Ok(config::load_text(&original.path, text, &[change], &vocabulary(kinds))?)
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
) -> Result<(), ErrorPage> {
    let Some(difference) = ours.first_difference(theirs) else { return Ok(()) };
    let ranks = |world: WorldSize| counted(u64::from(world.get()), "rank");
    let page = format!(
        "error: {} and {} differ bitwise, first in {difference}\n  why: an operation of the model \
         adds in an order, or draws numbers, that depend on the rank\n  do: use the operations of \
         `ddprun::ops` and `ddprun::rng` in a model of your own; if it is one of ours, report it",
        ranks(one),
        ranks(other)
    );
    Err(ErrorPage::new(ExitCode::Expectation, page))
}
