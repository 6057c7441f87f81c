//! `ddprun sweep ask` and `tell`: a sweep whose trials another program trains.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::cli::answer;
use crate::cli::args::{AskArgs, SweepStep, TellArgs};
use crate::cli::sweep::no_sweep;
use crate::config::sweep::Values;
use crate::kinds::Kinds;
use crate::record::Screen;
use crate::runs::find_sweep;
use crate::session::{TrialRunner, VISIBLE_GPUS, gpus, load_sweep, number_sweep, one_run};
use crate::sweep::{self, Answer, Machine, SweepRequest, TrialResult};
use crate::user_error::{ErrorPage, ExitCode};

/// `ddprun sweep ask` or `ddprun sweep tell`.
pub(crate) fn step(step: &SweepStep, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    match step {
        SweepStep::Ask(args) => ask(args, kinds),
        SweepStep::Tell(args) => tell(args, kinds),
    }
}

/// Adds a trial to a sweep, and prints its values.
fn ask(args: &AskArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let (mut sweep, base) = load_sweep(&args.file, &args.words, kinds)?;
    let method = kinds.methods.build(&sweep.search.method).map_err(sweep::Error::from)?;
    if method.range_test().is_some() {
        return Err(one_run());
    }
    if !args.own.is_empty() && method.points(&sweep.search).is_some() {
        let what = format!(
            "`--with` is for methods that draw, and `{}` knows its trials",
            sweep.search.method.name
        );
        let help = "leave it out, or choose `sweep.method=random`, `tpe` or `gp`";
        return Err(ErrorPage::refused(what, help));
    }
    let own = own_values(args, kinds)?;
    number_sweep(&mut sweep, &args.words, &base, args.extend)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let order = SweepRequest {
        sweep: &sweep,
        base: &base,
        methods: &kinds.methods,
        pruners: &kinds.pruners,
        machine: Machine { cores, gpus: gpus().map_or(0, |gpus| gpus.len()) },
        deadline: None,
        extend: args.extend,
        retry_failed: false,
        earlier: &[],
        screen: Screen::Silent,
    };
    let visible = std::env::var_os(VISIBLE_GPUS).map(|names| names.to_string_lossy().into_owned());
    let trainer = TrialRunner::new(&sweep.base, &order.folder(), visible, kinds)?;
    let folder = order.folder().display().to_string();
    match sweep::ask(order, &trainer, own)? {
        Answer::Trial { trial, changes } => {
            let values: Map<String, Value> = trial.values.iter().cloned().collect();
            let object = || {
                json!({
                    "sweep": folder,
                    "trial": trial.number,
                    "values": values,
                    "metric": sweep.search.metric,
                    "goal": sweep.search.goal,
                    "base": sweep.base,
                    "overrides": changes,
                })
            };
            let words = || {
                let set = sweep::values_of(&trial);
                let tell = format!("ddprun sweep tell {folder} {} VALUE", trial.number);
                format!(
                    "trial {}: {set}\ntell its {} with `{tell}`\n",
                    trial.number, sweep.search.metric
                )
            };
            answer("ask", object, words)
        }
        Answer::None(why) => {
            let object = || json!({ "sweep": folder, "trial": null, "why": why });
            answer("ask", object, || format!("no trial: {why}\n"))
        }
    }
}

/// The values of `--with`, checked as a setting to start with: each is in the search space.
fn own_values(args: &AskArgs, kinds: &Kinds) -> Result<Option<Values>, ErrorPage> {
    if args.own.is_empty() {
        return Ok(None);
    }
    let mut pairs = Vec::new();
    for word in &args.own {
        let Some((key, value)) = word.split_once('=') else {
            let what = format!("`--with {word}` gives no value");
            return Err(ErrorPage::refused(what, "write `--with KEY=VALUE`"));
        };
        pairs.push(format!("\"{key}\" = {value}"));
    }
    let start = format!("sweep.start=[{{{}}}]", pairs.join(", "));
    let words: Vec<String> = args.words.iter().cloned().chain([start]).collect();
    let (with_own, _) = load_sweep(&args.file, &words, kinds)?;
    Ok(with_own.search.start.into_iter().next())
}

/// Records the result of a trial.
fn tell(args: &TellArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let folder = find_sweep(&args.sweep).ok_or_else(|| no_sweep(&args.sweep))?;
    let result = match (&args.failed, args.value) {
        (Some(reason), _) => TrialResult::Failed(reason.clone()),
        (None, value) => TrialResult::Value(value.unwrap_or(f64::NAN)),
    };
    let story = sweep::tell(&folder, args.trial, result, &kinds.pruners)?;
    let goal = story.subject.goal;
    let told = story.trials.iter().find(|trial| trial.number == args.trial);
    let best = sweep::best(&story.trials, goal);
    let object = || {
        json!({
            "sweep": folder.display().to_string(),
            "trial": args.trial,
            "state": told.map(|trial| trial.state),
            "value": told.and_then(|trial| trial.value(goal)),
            "best": best.map(|best| json!({ "trial": best.number, "value": best.value(goal) })),
        })
    };
    let words = || best_words(best, &story.subject.metric, goal, &folder);
    answer("tell", object, words)
}

fn best_words(
    best: Option<&sweep::Trial>,
    metric: &str,
    goal: crate::plan::Mode,
    folder: &Path,
) -> String {
    match best.and_then(|best| Some((best, best.value(goal)?))) {
        Some((best, value)) => format!("best {metric} {value}, trial {}\n", best.number),
        None => format!("no trial of `{}` has finished yet\n", folder.display()),
    }
}
