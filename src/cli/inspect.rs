//! Verbs that look and change nothing: `plan`, `report`, `serve`, `schema`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::args::{PlanArgs, ReportArgs, SchemaArgs, ServeArgs};
use crate::cli::node_args::{self, role};
use crate::cli::{answer, refuse_existing, sweep, verbatim};
use crate::config::{self, Vocabulary, closest};
use crate::dashboard::{self, Error, Server};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::Role;
use crate::plan;
use crate::record::{self, to_stderr};
use crate::report;
use crate::runs::{self, LOGS, enter_run, find_sweep};
use crate::session::{LaunchOrigin, Prepared, costs, prepare};
use crate::user_error::{ErrorPage, ExitCode, with_causes};

/// `ddprun plan x.toml`
pub(crate) fn plan(args: &PlanArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let path = args.run.experiment.clone().unwrap_or_default();
    let run = node_args::run_with_variables(&args.run, &role()?)?;
    let origin = LaunchOrigin { role: &Role::Parent, nodes: run.launch.nodes() };
    let prepared = prepare(&path, &run.all_changes(), origin, kinds)?;
    let costs = costs(&prepared, kinds);
    let Prepared { plan, loaded, facts, .. } = &prepared;
    answer(
        "plan",
        || plan::json(plan, loaded, facts, &costs),
        || plan::page(plan, loaded, facts, &costs),
    )
}

/// `ddprun report [RUN]`; of a sweep its results.
pub(crate) fn report(args: &ReportArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let run = args.run.as_deref();
    if let Some(file) = &args.html {
        return report_html(run, file, args.overwrite);
    }
    if let Some(folder) = run.and_then(|run| find_sweep(Path::new(run))) {
        return sweep::show_status(&folder, kinds);
    }
    let description = enter_run(run)?;
    let written = report::write(&description.run.logs, &description.plan.checkpoint);
    let written = written?;
    let logs = &description.run.logs;
    let code = answer("report", || summed_up(logs), || written.text)?;
    if let Some(error) = written.unwritten {
        let why = with_causes(&error);
        to_stderr(&format!("warning: the run's curves are not up to date\n  why: {why}"));
    }
    Ok(code)
}

/// The run and its epochs, as far as they can be read.
fn summed_up(logs: &Path) -> Value {
    let epochs = record::read_epochs(&logs.join(record::EPOCHS)).ok().flatten();
    json!({ "run": runs::summary(logs).ok(), "epochs": epochs.unwrap_or_default() })
}

/// `ddprun report [RUN | FOLDER] --html FILE`
fn report_html(word: Option<&str>, file: &Path, overwrites: bool) -> Result<ExitCode, ErrorPage> {
    refuse_existing(file, overwrites)?;
    let is_folder = |word: &&str| Path::new(word).is_dir();
    let folder = match word {
        None => PathBuf::from(LOGS),
        Some(word) => match find_sweep(Path::new(word)) {
            Some(sweep) => sweep,
            None if is_folder(&word) => PathBuf::from(word),
            None => runs::named_run(Some(word))?,
        },
    };
    let page =
        dashboard::html(&folder).map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    let Some(page) = page else { return Err(no_runs(&folder)) };
    files::create_parent(file)
        .and_then(|()| files::write_atomic(file, page.as_bytes()))
        .map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    answer("page", || json!({ "file": file }), || format!("{}\n", file.display()))
}

/// The refusal of a folder without runs.
fn no_runs(folder: &Path) -> ErrorPage {
    let what = format!("there is no run below `{}`", folder.display());
    let help = "name a folder of runs, as `logs/<name>`; `ddprun experiment.toml` makes one";
    ErrorPage::refused(what, help)
}

/// `ddprun serve [FOLDER]`
pub(crate) fn serve(args: &ServeArgs) -> Result<ExitCode, ErrorPage> {
    let ServeArgs { folder, host, port, allow_remote } = args;
    if !folder.is_dir() {
        let what = format!("there is no folder `{}`", folder.display());
        let help = "name the folder of your runs; it is made by the first `ddprun experiment.toml`";
        return Err(ErrorPage::refused(what, help));
    }
    if !is_own(host) && !allow_remote {
        let what = format!("`--host {host}` lets other machines see your runs");
        let help = "add `--allow-remote`, or leave the page on this machine and reach it by \
            `ssh -L 8430:127.0.0.1:8430 MACHINE`";
        return Err(ErrorPage::refused(what, help));
    }
    // Before anything else: Ctrl-C ends this quietly from now on.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| not_served(&error.into()))?;
    let server = Server::listen(host, *port).map_err(|error| not_served(&error))?;
    let mut printed = Ok(ExitCode::Ok);
    let ready = |has_runs: bool, address: &str| {
        if !has_runs {
            let words = "no run below `{}` yet; the first one shows up by itself";
            to_stderr(&words.replace("{}", &folder.display().to_string()));
        }
        printed = answer("page", || json!({ "url": address }), || format!("{address}\n"));
        to_stderr("press Ctrl-C to stop");
    };
    server.start(folder, ready).map_err(|error| not_served(&error))?;
    printed?;
    signals.forever().next();
    Ok(ExitCode::Ok)
}

/// True if only this machine can reach `host`.
fn is_own(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn not_served(error: &Error) -> ErrorPage {
    let help = match error {
        Error::PortInUse { .. } => {
            "stop the other program, or choose another port with `--port` (0: any that is free)"
        }
        Error::Listen { .. } => "choose an address of this machine, and a port from 1024 on",
        Error::System(_) => "close other programs, and try again",
    };
    ErrorPage::of(ExitCode::Refused, error).help(help)
}

/// Every key of an experiment, a sweep or a cluster, as TOML or as a JSON schema; with a table its
/// keys alone.
pub(crate) fn schema(args: &SchemaArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    /// The JSON schema and the reference.
    type Page = (fn(&Vocabulary) -> Value, fn(&Vocabulary) -> String);
    let vocabulary = kinds.vocabulary();
    if let Some(table) = &args.table {
        return schema_of(table, args.kind.as_deref(), args.json_schema, &vocabulary);
    }
    let (schema, reference): Page = if args.sweep {
        (config::sweep::json_schema, config::sweep::reference)
    } else if args.clusters {
        (config::clusters::json_schema, config::clusters::reference)
    } else {
        (config::json_schema, |vocabulary| vocabulary.reference().to_owned())
    };
    if args.json_schema {
        return schema_alone(&schema(&vocabulary));
    }
    verbatim("schema", || json!({ "schema": schema(&vocabulary) }), || reference(&vocabulary))
}

/// `ddprun schema optimizer`: the keys of one table, and of those in it, with the kinds that it
/// chooses among; `ddprun schema optimizer sgd`, also with a dot between: the options of one of
/// them.
fn schema_of(
    table: &str,
    kind: Option<&str>,
    as_json: bool,
    vocabulary: &Vocabulary,
) -> Result<ExitCode, ErrorPage> {
    let of_dot = || {
        let (table, kind) = table.rsplit_once('.')?;
        let is_kind = vocabulary.kind(table, kind).is_ok();
        let is_left_out = || vocabulary.left_out(table, kind).is_some();
        (is_kind || is_left_out()).then_some((table, kind))
    };
    if let Some((table, kind)) = kind.map(|kind| (table, kind)).or_else(of_dot) {
        return schema_of_kind(table, kind, as_json, vocabulary);
    }
    let page = vocabulary.index();
    let header = |line: &str| Some(line.strip_prefix('[')?.split(']').next()?.to_owned());
    let is_asked = |name: &str| {
        name.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut inside = false;
    let lines = page.lines().filter(|line| {
        inside = header(line).map_or(inside, |name| is_asked(&name));
        inside
    });
    let found: Vec<&str> = lines.collect();
    if found.is_empty() {
        let tables: Vec<String> = page.lines().filter_map(header).collect();
        let help = match closest(table, tables.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("choose one of {}", tables.join(", ")),
        };
        let what = format!("`{table}` is not a table of an experiment");
        return Err(ErrorPage::refused(what, help));
    }
    let text = found.join("\n").trim_end().to_owned() + "\n";
    let whole = config::json_schema(vocabulary);
    let schema =
        table.split('.').try_fold(&whole, |part, name| part.pointer("/properties")?.get(name));
    if as_json {
        return schema_alone(&schema.cloned().unwrap_or_default());
    }
    answer("schema", || json!({ "table": table, "schema": schema, "text": text }), || text.clone())
}

/// A JSON schema for a file that programs read, and nothing around it.
fn schema_alone(schema: &Value) -> Result<ExitCode, ErrorPage> {
    let text = || serde_json::to_string_pretty(schema).unwrap_or_default() + "\n";
    verbatim("schema", || json!({ "schema": schema }), text)
}

fn schema_of_kind(
    table: &str,
    kind: &str,
    as_json: bool,
    vocabulary: &Vocabulary,
) -> Result<ExitCode, ErrorPage> {
    let names = match vocabulary.kind(table, kind) {
        Ok((_, schema)) if as_json => return schema_alone(&schema),
        Ok((page, schema)) => {
            let object = || json!({ "table": table, "kind": kind, "schema": schema, "text": page });
            return answer("schema", object, || page.clone());
        }
        Err(names) => names,
    };
    if let Some(kind) = vocabulary.left_out(table, kind) {
        return Err(ErrorPage::refused(kind.to_string(), kind.help()));
    }
    let what = if names.is_empty() {
        format!("`{table}` has no kinds to choose from")
    } else {
        format!("`{table}` has no `{kind}`")
    };
    let help = match closest(kind, names.iter().copied()) {
        Some(near) => format!("did you mean `ddprun schema {table} {near}`?"),
        None => format!("see `ddprun schema {table}` for what it has"),
    };
    Err(ErrorPage::refused(what, help))
}
