//! `ddprun x.toml` and `ddprun resume`: a run from its start, or from its newest checkpoint, to its
//! end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::args::{ResumeArgs, Run, run_and_changes};
use crate::cli::node_args::{self, role};
use crate::cli::sample;
use crate::config::values;
use crate::kinds::Kinds;
use crate::launch::rank_env::ExternalRank;
use crate::launch::{self, Role};
use crate::runs::{self, enter_run, find_range_test, find_sweep};
use crate::session::{
    self, Environment, LaunchOrigin, Launched, MissingCheckpoints, OtherData, ResumedRun,
    RunRequest, join_page, load, new_or_relaunched,
};
use crate::user_error::{ErrorPage, ExitCode};
use crate::worker;

/// `ddprun x.toml [key=value ...]`
pub(crate) fn train(args: &Run, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let path = args.experiment.clone().unwrap_or_default();
    let role = role()?;
    let args = node_args::run_with_variables(args, &role)?;
    let (place, changes) = (node_args::place(&args.launch)?, args.all_changes());
    let make = |origin: LaunchOrigin<'_>| new_or_relaunched(&path, &changes, origin, kinds);
    // What is wrong with the experiment, the first rank says.
    let timeout = || Some(load(&path, &changes, kinds).ok()?.experiment.distributed.timeout.0);
    conclude(session::launch(place, &role, make, &timeout, kinds)?, kinds)
}

/// Prints how a run ended, and a sample of one that generates text.
fn conclude(launched: Launched, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let (tokens, logs) = (launched.sample_tokens, launched.logs().to_owned());
    let code = session::conclude(launched)?;
    if let Some(tokens) = tokens
        && code == ExitCode::Ok
    {
        sample::at_the_end(tokens, &logs, kinds);
    }
    Ok(code)
}

/// `ddprun worker`: a rank that our own parent started.
pub(crate) fn worker(kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let role = role()?;
    let membership =
        launch::join(&role, || Err(session::Never)).map_err(|error| join_page(&error))?;
    Ok(worker::run(membership, None, kinds).code)
}

/// `ddprun resume [RUN] [key=value ...]`: continues a run. Changes that would alter earlier results
/// are refused by name.
pub(crate) fn resume(args: &ResumeArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let (run, changes) = run_and_changes(&args.words);
    // With `--from`, the word names a run of the mirror.
    run.filter(|_| args.from.is_none()).map_or(Ok(()), |run| refuse_sweep(Path::new(run)))?;
    let mut role = role()?;
    let mut launch = node_args::with_variables(&args.launch, &role)?;
    // They are meant from here, and the run may be elsewhere.
    launch.rendezvous.token_file = launch.rendezvous.token_file.take().map(absolute);
    if let Role::Foreign(ExternalRank { rendezvous: Some(endpoint), .. }) = &mut role {
        endpoint.token_file = absolute(std::mem::take(&mut endpoint.token_file));
    }
    // Each rank of a foreign launcher goes there; those that do not see the run are told of it by
    // the first.
    let brings = !matches!(&role, Role::Foreign(place) if !place.is_first_of_machine());
    let entered = match args.from.as_deref().filter(|_| brings) {
        Some(from) => session::restore(from, run, args.strict)
            .and_then(|logs| enter_run(Some(&logs.to_string_lossy()))),
        None => enter_run(run),
    };
    let timeout = entered.as_ref().ok().and_then(|found| stored_timeout(&found.run.logs, &changes));
    let place = node_args::place(&launch)?;
    let make = |origin: LaunchOrigin<'_>| {
        let description = entered?;
        let other_data = args.accept_changed_data.then(|| "--accept-changed-data".to_owned());
        let asked: Vec<String> = changes.iter().cloned().chain(other_data).collect();
        session::refuse_changed_trial(&description.run, &asked)?;
        let changes: Vec<String> = changes.into_iter().chain(launch.changes()).collect();
        let prepared = session::resumed(&description, &changes, Environment::Read, origin, kinds)?;
        let data = if args.accept_changed_data { OtherData::Accepted } else { OtherData::Refused };
        let gone = if args.from_scratch {
            MissingCheckpoints::FromScratch
        } else {
            MissingCheckpoints::Refused
        };
        let strict = args.strict;
        let resumed = ResumedRun { folders: description.run, data, gone, strict };
        Ok(RunRequest::of(prepared, resumed))
    };
    conclude(session::launch(place, &role, make, &|| timeout, kinds)?, kinds)
}

/// `distributed.timeout` of a run with these changes, where it can be read.
fn stored_timeout(run: &Path, changes: &[String]) -> Option<Duration> {
    let config = runs::config(run).ok()?;
    let stored = config.get("distributed")?.get("timeout")?.as_str()?;
    let changed = changes.iter().rev().find_map(|word| word.strip_prefix("distributed.timeout="));
    let timeout = toml::Value::from(changed.unwrap_or(stored).trim_matches('"'));
    timeout.try_into::<values::Duration>().ok().map(|timeout| timeout.0)
}

/// Refuses sweeps and range tests: they continue with the command that started them.
fn refuse_sweep(word: &Path) -> Result<(), ErrorPage> {
    let (folder, what, or) = match (find_sweep(word), find_range_test(word)) {
        (Some(folder), _) => (folder, "a sweep", ", or name one of its trials"),
        (None, Some(folder)) => (folder, "a learning-rate range test", ""),
        (None, None) => return Ok(()),
    };
    let what = format!("`{}` is {what}", folder.display());
    Err(ErrorPage::refused(
        what,
        format!("start it again with the `ddprun sweep` command that began it{or}"),
    ))
}

/// A relative path as it is meant here.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
