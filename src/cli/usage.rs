//! Refusals of command lines that are not understood, with what was probably meant.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, CommandFactory};

use crate::cli::args::{Args, Run};
#[cfg(not(all(feature = "dashboard", feature = "clusters")))]
use crate::config::kind::LeftOut;
use crate::config::{self, Problem, closest};
use crate::kinds::Kinds;
use crate::session::refuse_other_files;
use crate::user_error::{ErrorPage, ExitCode};

/// The answer to users who look for a profiler.
const TIMES: &str = "see where the time of a run goes, rank by rank, with `ddprun serve`";

/// Verbs of other programs, and the answer to each.
const OTHER_VERBS: [(&[&str], &str); 17] = [
    (&["train", "run", "fit", "start"], "train with `ddprun EXPERIMENT.toml`"),
    (
        &["list", "runs", "ps", "status", "history"],
        "list the runs with `ddprun ls`, or see them in the browser with `ddprun serve`",
    ),
    (
        &["remove", "delete", "del", "clean"],
        "remove a run and its checkpoints with `ddprun rm RUN`",
    ),
    (&["tail", "follow", "watch"], "follow the newest run with `ddprun logs -f`"),
    (
        &["dashboard", "board", "tensorboard", "ui", "web", "view", "show", "plot", "open"],
        "see all runs in the browser with `ddprun serve`, or the newest here with `ddprun report`",
    ),
    (&["diff"], "compare runs with `ddprun compare RUN RUN`"),
    (
        &["infer", "inference", "apply"],
        "predict files with `ddprun predict`, or generate text or actions with `ddprun sample`",
    ),
    (&["evaluate", "test", "validate"], "evaluate a run with `ddprun eval`"),
    (&["generate"], "generate text or actions with `ddprun sample`"),
    (&["continue", "restart"], "continue a run with `ddprun resume`"),
    (&["tune", "search", "hpo"], "run a hyperparameter sweep with `ddprun sweep`"),
    (
        &["new", "create", "setup", "scaffold", "quickstart"],
        "write an experiment for a file or folder of data with `ddprun init DATA`, or one that \
         needs no data with `ddprun init`",
    ),
    (&["config", "keys", "options"], "print every key of an experiment file with `ddprun schema`"),
    (
        &["dry-run", "dryrun", "smoke", "fast_dev_run"],
        "see what would happen with `ddprun plan EXPERIMENT.toml`, or try each part of it with \
         two steps with `ddprun try EXPERIMENT.toml`",
    ),
    (&["profile", "profiler", "bench", "benchmark"], TIMES),
    (&["lint", "verify"], "check files without running them with `ddprun check FILE`"),
    (&["serve_model", "deploy", "api"], "answer predictions over HTTP with `ddprun serve-model`"),
];

/// The error of clap as a page: what is wrong, and what to do.
pub(crate) fn refused(error: &clap::Error) -> ErrorPage {
    let text = error.render().to_string();
    let mut parts = text.trim_end().split("\n\n");
    let what = parts.next().unwrap_or_default().to_owned();
    let rest: Vec<&str> = parts.map(str::trim).collect();
    let page = ErrorPage::new(ExitCode::Refused, what);
    if rest.is_empty() { page } else { page.help(rest.join("\n")) }
}

/// The page of a command whose feature this build is without.
#[cfg(not(all(feature = "dashboard", feature = "clusters")))]
pub(crate) fn left_out(feature: &'static str) -> ErrorPage {
    let left_out = LeftOut { name: feature, feature };
    ErrorPage::refused(left_out.to_string(), left_out.help())
}

/// Refuses an experiment that is no file, but a word where a verb would be.
pub(crate) fn refuse_unknown_verb(run: &Run) -> Result<(), ErrorPage> {
    if let Some(path) = &run.experiment {
        refuse_other_files(path)?;
    }
    let missing = run.experiment.as_deref().filter(|path| !path.exists()).and_then(Path::to_str);
    let Some(word) = missing.filter(|word| !word.contains(['.', '/', '='])) else { return Ok(()) };
    let what = format!("`{word}` is neither a file nor a command");
    Err(ErrorPage::refused(what, instead_of(word, &run.changes)))
}

fn instead_of(word: &str, rest: &[String]) -> String {
    let command = Args::command();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let checkpoint = command.find_subcommand("checkpoint");
    let is_of_checkpoints = checkpoint.is_some_and(|verb| verb.find_subcommand(word).is_some());
    let other = OTHER_VERBS.iter().find(|(words, _)| words.contains(&word));
    match (other, rest) {
        (Some((["train", ..], _)), [experiment, ..]) if Path::new(experiment).exists() => {
            format!("did you mean `ddprun {}`?", rest.join(" "))
        }
        (Some((_, does)), _) => (*does).to_owned(),
        (None, _) if is_of_checkpoints => format!("did you mean `ddprun checkpoint {word}`?"),
        (None, _) => match closest(word, verbs.map(Command::get_name)) {
            Some(verb) => format!("did you mean `ddprun {verb}`?"),
            None => "see `ddprun --help` for the commands, or give an experiment, which is a TOML \
                     file"
                .to_owned(),
        },
    }
}

/// Refuses a URL where the command line wants a file, a folder or a run.
pub(crate) fn refuse_urls(
    command: &Command,
    matches: &ArgMatches,
    line: &[OsString],
) -> Result<(), ErrorPage> {
    if let Some((verb, inner)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(verb)
    {
        return refuse_urls(command, inner, line);
    }
    let is_path = |argument: &&Arg| {
        let is_path = argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        is_path || argument.is_positional()
    };
    for argument in command.get_arguments().filter(is_path) {
        let values = matches.try_get_raw(argument.get_id().as_str()).ok().flatten();
        let mut urls = values.into_iter().flatten().filter_map(|value| value.to_str());
        let Some(url) = urls.find(|value| config::url_scheme(value).is_some()) else { continue };
        let words: Vec<String> =
            line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let index = words.iter().position(|word| word.ends_with(url)).unwrap_or_default();
        let help = config::instead_of_url(config::url_scheme(url).unwrap_or_default());
        let problem = Problem::of_word(&words, index, format!("`{url}` {}", config::NO_URL));
        return Err(problem.help(help).into());
    }
    Ok(())
}

/// Names the key that was meant by an unknown flag: `--epochs 3` is `train.epochs=3`.
pub(crate) fn refuse_unknown_flag(
    error: &clap::Error,
    line: &[OsString],
    kinds: &Kinds,
) -> Option<ErrorPage> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument || !takes_changes(line) {
        return None;
    }
    if let Some(help) = instead_of_flag(flag, line) {
        let what = format!("`{flag}` is not a flag");
        return Some(ErrorPage::refused(what, help));
    }
    if error.get(ContextKind::SuggestedArg).is_some() {
        return None;
    }
    let name = flag.trim_start_matches('-');
    // It means a file, not `data.config_name`.
    let key = kinds.vocabulary().key_of_flag(name).filter(|_| name != "config")?;
    let change = format!("{key}={}", value_of(flag, line).unwrap_or("..."));
    let what = format!("`{flag}` is not a flag; write keys without dashes");
    Some(ErrorPage::refused(what, format!("write `{change}`")))
}

/// The answer to a flag of other programs.
fn instead_of_flag(flag: &str, line: &[OsString]) -> Option<String> {
    let all = Args::command();
    let command = command_of(&all, line);
    let has_verb = command.get_name() != all.get_name();
    let has_ranks = command.get_arguments().any(|word| word.get_long() == Some("nproc-per-node"));
    let mut positionals = command.get_positionals();
    let takes_file =
        positionals.any(|word| ["experiment", "file"].contains(&word.get_id().as_str()));
    let value = value_of(flag, line);
    match flag.trim_start_matches('-').replace('_', "-").as_str() {
        "ranks" | "num-ranks" | "world-size" | "nproc" if has_ranks => {
            let count = value.filter(|value| value.parse::<u32>().is_ok()).unwrap_or("N");
            Some(format!("write `--nproc-per-node {count}`"))
        }
        "ranks" | "num-ranks" | "world-size" | "nproc" | "nproc-per-node"
            if command.get_name() == "sweep" =>
        {
            let count = value.filter(|value| value.parse::<u32>().is_ok()).unwrap_or("N");
            Some(format!("write `sweep.devices_per_trial={count}`: the ranks of each trial"))
        }
        "resume" | "continue" if !has_verb => Some(
            "continue a run with `ddprun resume RUN`, or the newest with `ddprun \
                  resume`"
                .to_owned(),
        ),
        "config" | "config-file" if takes_file => {
            let verb = if has_verb { format!("{} ", command.get_name()) } else { String::new() };
            let file = value.unwrap_or("EXPERIMENT.toml");
            Some(format!("give the file as the first argument: `ddprun {verb}{file}`"))
        }
        "dry-run" if !has_verb => {
            let is_toml = |word: &&str| Path::new(word).extension().is_some_and(|it| it == "toml");
            let file = line.iter().filter_map(|word| word.to_str()).find(is_toml);
            let file = file.unwrap_or("EXPERIMENT.toml");
            Some(format!("see what would happen, without running it, with `ddprun plan {file}`"))
        }
        "profile" | "profiler" => Some(TIMES.to_owned()),
        "verbose" | "v" | "debug" => {
            Some("follow the logs, which hold all details, with `ddprun logs -f`".to_owned())
        }
        _ => None,
    }
}

/// The command of this command line: that of its verb, or the one that trains.
fn command_of<'a>(all: &'a Command, line: &[OsString]) -> &'a Command {
    line.get(1).and_then(|verb| all.find_subcommand(verb)).unwrap_or(all)
}

/// True if the verb of this command line takes `key=value`.
fn takes_changes(line: &[OsString]) -> bool {
    let command = Args::command();
    let is_change = |name: &clap::builder::Str| name.contains("KEY=VALUE");
    command_of(&command, line)
        .get_positionals()
        .any(|word| word.get_value_names().unwrap_or_default().iter().any(is_change))
}

/// The value of `flag`: `--epochs=3`, `--epochs 3`.
fn value_of<'a>(flag: &str, line: &'a [OsString]) -> Option<&'a str> {
    let words: Vec<&str> = line.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let at = words.iter().position(|word| word.split('=').next() == Some(flag))?;
    match words[at].split_once('=') {
        Some((_, value)) => Some(value),
        None => {
            words.get(at + 1).copied().filter(|next| !next.starts_with('-') && !next.contains('='))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn hint(line: &str) -> Option<String> {
        let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let refusal = match Args::try_parse_from(&line) {
            Ok(args) => refuse_unknown_verb(&args.run).err(),
            Err(error) => refuse_unknown_flag(&error, &line, &Kinds::default()),
        };
        refusal.map(|refusal| refusal.page().lines().last().unwrap_or_default().to_owned())
    }

    #[track_caller]
    fn check(line: &str, expected: &str) {
        assert_eq!(hint(line).as_deref(), Some(format!("  do: {expected}").as_str()), "{line}");
    }

    #[test]
    fn a_verb_of_another_program_is_told_ours() {
        check("ddprun train", "train with `ddprun EXPERIMENT.toml`");
        let file = "experiments/quickstart.toml";
        check(
            &format!("ddprun train {file} train.epochs=3"),
            &format!("did you mean `ddprun {file} train.epochs=3`?"),
        );
        check("ddprun list", OTHER_VERBS[1].1);
        check("ddprun tensorboard logs", OTHER_VERBS[4].1);
        check("ddprun infer", OTHER_VERBS[6].1);
        check("ddprun evaluate x", OTHER_VERBS[7].1);
        check("ddprun export", "did you mean `ddprun checkpoint export`?");
        check("ddprun pln", "did you mean `ddprun plan`?");
        check(
            "ddprun banana",
            "see `ddprun --help` for the commands, or give an experiment, \
               which is a TOML file",
        );
        assert_eq!(hint("ddprun nosuch.toml"), None);
        check("ddprun src", "write an experiment for the data in it with `ddprun init src`");
        check("ddprun new", OTHER_VERBS[11].1);
        check("ddprun dry-run x.toml", OTHER_VERBS[13].1);
        check("ddprun lint x.toml", OTHER_VERBS[15].1);
    }

    #[test]
    fn a_url_is_refused_where_a_file_or_a_run_belongs() {
        let refused = |line: &str| {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let matches = Args::command().try_get_matches_from(&line).unwrap();
            refuse_urls(&Args::command(), &matches, &line).err().map(|it| it.page().into_owned())
        };
        for line in [
            "ddprun s3://bucket/x.toml",
            "ddprun plan gs://bucket/x.toml train.epochs=3",
            "ddprun eval --weights hf://org/name x.toml",
            "ddprun predict photos https://x.org/a.png",
            "ddprun predict photos a.png --out=s3://bucket/a.csv",
            "ddprun init s3://bucket/data",
            "ddprun resume s3://bucket/run",
            "ddprun x.toml --token-file s3://bucket/token",
        ] {
            let page = refused(line).unwrap_or_else(|| panic!("{line}"));
            assert!(page.contains("is a URL, but must be a path"), "{page}");
        }
        assert_eq!(refused("ddprun sample x --prompt https://x.org"), None);
        assert_eq!(refused("ddprun x.toml experiment.tags=[a://b]"), None);
        assert_eq!(refused("ddprun eval run:x/best"), None);
    }

    #[test]
    fn a_flag_of_another_program_is_told_its_key() {
        check("ddprun x.toml --epochs 3", "write `train.epochs=3`");
        check("ddprun x.toml --lr=0.1", "write `optimizer.lr=0.1`");
        check("ddprun plan x.toml --batch-size 3", "write `train.batch_size=3`");
        check("ddprun resume --batch_size=3", "write `train.batch_size=3`");
        check("ddprun x.toml --optimizer.lr 3", "write `optimizer.lr=3`");
        check("ddprun x.toml --epochs", "write `train.epochs=...`");
        check("ddprun --gpus 2 x.toml", "write `distributed.devices=2`");
        assert_eq!(hint("ddprun x.toml --zzzzzz"), None);
        assert_eq!(hint("ddprun report --epochs 3"), None);
    }

    #[test]
    fn a_flag_of_another_program_is_told_what_does_the_same() {
        check("ddprun x.toml --ranks 2", "write `--nproc-per-node 2`");
        check("ddprun plan x.toml --world_size=4", "write `--nproc-per-node 4`");
        check("ddprun x.toml --nproc", "write `--nproc-per-node N`");
        let devices = "write `sweep.devices_per_trial=4`: the ranks of each trial";
        check("ddprun sweep x.toml --nproc-per-node 4", devices);
        let resume = "continue a run with `ddprun resume RUN`, or the newest with `ddprun resume`";
        check("ddprun x.toml --resume", resume);
        check("ddprun --config x.toml", "give the file as the first argument: `ddprun x.toml`");
        let file = "give the file as the first argument: `ddprun plan EXPERIMENT.toml`";
        check("ddprun plan --config", file);
        let plan = "see what would happen, without running it, with `ddprun plan x.toml`";
        check("ddprun x.toml --dry-run", plan);
        let logs = "follow the logs, which hold all details, with `ddprun logs -f`";
        check("ddprun x.toml --verbose", logs);
        check("ddprun x.toml -v", logs);
        check("ddprun x.toml --profile", TIMES);
        check("ddprun profile x.toml", TIMES);
        assert_eq!(hint("ddprun resume --config x.toml"), None);
    }
}
