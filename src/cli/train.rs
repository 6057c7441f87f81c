//! `ddprun x.toml`: a run from its start to its last words.

use crate::cli::args::Run;
use crate::cli::{node_args, sample};
use crate::kinds::Kinds;
use crate::launch::{self, Role};
use crate::session::{self, Launched, Origin, load, new_or_relaunched, no_place};
use crate::user_error::{ErrorPage, ExitCode};
use crate::worker;

/// `ddprun x.toml [key=value ...]`
pub(crate) fn train(args: &Run, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let path = args.experiment.clone().unwrap_or_default();
    let role = role()?;
    let args = node_args::run_with_variables(args, &role)?;
    let (place, changes) = (node_args::place(&args.launch)?, args.all_changes());
    let make = |origin: Origin<'_>| new_or_relaunched(&path, &changes, origin, kinds);
    // What is wrong with the experiment, the first rank says.
    let timeout = || Some(load(&path, &changes, kinds).ok()?.experiment.distributed.timeout.0);
    report(session::launch(place, &role, make, &timeout, kinds)?, kinds)
}

/// Says how a run ended, and samples from one that generates text.
pub(crate) fn report(launched: Launched, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let (tokens, logs) = (launched.sample_tokens, launched.logs().to_owned());
    let code = session::conclude(launched)?;
    if let Some(tokens) = tokens
        && code == ExitCode::Ok
    {
        sample::at_the_end(tokens, &logs, kinds);
    }
    Ok(code)
}

/// What started this process.
pub(crate) fn role() -> Result<Role, ErrorPage> {
    launch::rank_env::from_environment().map_err(|error| ErrorPage::of(ExitCode::Refused, &error))
}

/// `ddprun worker`: a rank that our own parent started.
pub(crate) fn worker(kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let role = role()?;
    let membership =
        launch::join(&role, || Err(session::Never)).map_err(|error| no_place(&error))?;
    Ok(worker::run(membership, None, kinds).code)
}
