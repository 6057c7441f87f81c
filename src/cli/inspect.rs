//! Verbs that look and change nothing: `plan`, `report`, `schema`.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::args::{PlanArgs, ReportArgs, SchemaArgs};
#[cfg(feature = "dashboard")]
use crate::cli::dashboard;
use crate::cli::node_args::{self, role};
#[cfg(not(all(feature = "dashboard", feature = "clusters")))]
use crate::cli::usage;
use crate::cli::{answer, refuse_existing, sweep, verbatim};
use crate::config::{self, Vocabulary, closest};
use crate::kinds::Kinds;
use crate::launch::Role;
use crate::plan;
use crate::record::{self, to_stderr};
use crate::report;
use crate::runs::{self, enter_run, find_sweep};
use crate::session::{LaunchOrigin, Prepared, check_mirror, costs, prepare};
use crate::user_error::{ErrorPage, ExitCode, with_causes};

/// `ddprun plan x.toml`
pub(crate) fn plan(args: &PlanArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let path = args.run.experiment.clone().unwrap_or_default();
    let run = node_args::run_with_variables(&args.run, &role()?)?;
    let origin = LaunchOrigin { role: &Role::Parent, nodes: run.launch.nodes() };
    let prepared = prepare(&path, &run.all_changes(), origin, kinds)?;
    if origin.nodes == 1 {
        check_mirror(&prepared.loaded)?;
    }
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
        refuse_existing(file, args.overwrite)?;
        #[cfg(feature = "dashboard")]
        return dashboard::report_html(run, file);
        #[cfg(not(feature = "dashboard"))]
        return Err(usage::left_out("dashboard"));
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

/// Every key of an experiment, a sweep or a cluster, as TOML or as a JSON schema; with a table its
/// keys alone.
pub(crate) fn schema(args: &SchemaArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    /// The JSON schema and the reference.
    type Page = (fn(&Vocabulary) -> Value, fn(&Vocabulary) -> String);
    #[cfg(not(feature = "clusters"))]
    if args.clusters {
        return Err(usage::left_out("clusters"));
    }
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
