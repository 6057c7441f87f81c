//! The experiment that a run has stored -> the same, prepared to go on.

use crate::cli::other_length::{moved_lr, refuse_shorter};
use crate::cli::prepare::{Origin, Prepared, refused, vocabulary};
use crate::cli::run_files::stored_experiment;
use crate::cli::{Refusal, to_stderr};
use crate::config::schema::PrecisionChoice;
use crate::config::{self, Change, Loaded, Source};
use crate::kinds::Kinds;
use crate::launch::exit_code as exit;
use crate::plan::{Bf16Instructions, Plan, Precision};
use crate::runs::StoredRun;

/// What changes the stored experiment beside the words of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Environment {
    /// `DDPRUN_*` variables: a user resumes.
    Read,
    /// Nothing: a launcher starts the run again, in the environment that it began in.
    Ignored,
}

/// Decides again about the run that goes on, with these changes.
///
/// # Errors
///
/// A change would alter what was already computed, or end the run before where it is.
pub(crate) fn prepare(
    description: &StoredRun,
    changes: &[String],
    environment: Environment,
    origin: Origin<'_>,
    kinds: &Kinds,
) -> Result<Prepared, Refusal> {
    let (path, text) = stored_experiment(&description.run)?;
    let words = vocabulary(kinds);
    let before = config::load_text(&path, &text, &[], &words).map_err(refused)?;
    let load = match environment {
        Environment::Read => config::load_stored,
        Environment::Ignored => config::load_text,
    };
    let mut now = load(&path, &text, changes, &words).map_err(refused)?;
    let changed = config::refuse_unsafe(&before.experiment, &now.experiment)
        .map_err(|changes| refusal(&changes, &now))?;
    if now.experiment.train.precision == PrecisionChoice::Amp {
        // What it stands for is a matter of the version; the run goes on as it began.
        now.experiment.train.precision = description.plan.precision.into();
    }
    now.pretrained.clone_from(&description.plan.model.pretrained_checkpoint);
    let prepared = Prepared::of(now, origin, Some(&description.plan.data.source.found), kinds)?;
    let (train, plan) = (&prepared.loaded.experiment.train, &prepared.plan);
    refuse_shorter(&description.run, &changed, train, plan.length.steps_per_epoch)?;
    for change in &changed {
        to_stderr(&format!("changed: {change}{}", by(change, &prepared.loaded)));
    }
    if let Some(change) = moved_lr(description, &changed, plan, kinds) {
        to_stderr(&change);
    }
    if let Some(change) = other_bf16(&description.plan, &prepared.plan) {
        to_stderr(&change);
    }
    Ok(prepared)
}

/// Says that this processor multiplies bf16 numbers in another way than the run's, if it does.
fn other_bf16(before: &Plan, now: &Plan) -> Option<String> {
    let way = |found: Option<Bf16Instructions>| {
        found.map_or("rounded fp32".to_owned(), |found| found.to_string())
    };
    let is_meant =
        |plan: &Plan| plan.precision == Precision::Bf16 && !plan.distributed.is_on_gpus();
    let ways = [before, now].map(|plan| plan.bf16_instructions);
    (is_meant(before) && is_meant(now) && ways[0] != ways[1]).then(|| {
        let [before, now] = ways.map(way);
        format!("changed: bf16 by {now}, before by {before}: the last bits differ")
    })
}

/// The variable that makes a change, if one does.
fn by(change: &Change, now: &Loaded) -> String {
    match now.sources.get(&change.key) {
        Some(Source::Environment(name)) => format!(" (by {name})"),
        _ => String::new(),
    }
}

fn refusal(changes: &[Change], now: &Loaded) -> Refusal {
    let line = |change: &Change| format!("\n  {change}{}", by(change, now));
    let list: Vec<String> = changes.iter().map(line).collect();
    let variables: Vec<&str> = changes
        .iter()
        .filter_map(|change| match now.sources.get(&change.key)? {
            Source::Environment(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let help = if variables.len() == changes.len() {
        format!("take the variables away: `unset {}`", variables.join(" "))
    } else if changes.iter().all(|change| config::is_folder(&change.key)) {
        "omit them: a run stays in its folders; to move it, move them, and leave a link (`ln -s`) \
         in their place"
            .to_owned()
    } else {
        let safe = config::safe_on_resume().join("`, `");
        format!(
            "omit them. To train with other values, start a new run, with \
             `model.pretrained=run:NAME/latest` from these weights. These keys can change on \
             resume, except for their folders: `{safe}`"
        )
    };
    let list = list.concat();
    let page = format!("error: these keys cannot change on resume:{list}\n  do: {help}");
    Refusal::new(exit::REFUSED, page)
}
