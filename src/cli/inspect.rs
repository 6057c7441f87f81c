//! Verbs that look and change nothing: `plan`, `report`, `schema`.

use std::path::{Path, PathBuf};

use candle_core::Device;
use serde_json::{Value, json};

use crate::cli::args::{PlanArgs, ReportArgs};
use crate::cli::train::role;
use crate::cli::{answer, node_args, refuse_existing, sweep, verbatim};
use crate::config::{self, Vocabulary, closest};
use crate::dashboard;
use crate::engine::{self, PassProfile};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::Role;
use crate::memory;
use crate::plan::{self, Costs, Memory};
use crate::record::{self, to_stderr};
use crate::report;
use crate::runs::{self, LOGS, enter_run, find_sweep};
use crate::session::{Prepared, prepare};
use crate::units::Bytes;
use crate::user_error::{ErrorPage, ExitCode, with_causes};

/// Stacks and small blocks of a process.
const HEAP: Bytes = Bytes(4 << 20);

/// `ddprun plan x.toml`
pub(crate) fn plan(args: &PlanArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let path = args.run.experiment.clone().unwrap_or_default();
    let run = node_args::run_with_variables(&args.run, &role()?)?;
    let origin = (&Role::Parent, run.launch.nodes());
    let prepared = prepare(&path, &run.all_changes(), origin, kinds)?;
    let costs = costs(&prepared, kinds);
    let Prepared { plan, loaded, facts, .. } = &prepared;
    answer(
        "plan",
        || plan::json(plan, loaded, facts, &costs),
        || plan::page(plan, loaded, facts, &costs),
    )
}

/// Largest model that is built to see what a pass of it needs.
const TRIED: Bytes = Bytes(1 << 30);

/// What the run needs: measured on a small batch, or estimated for a model that is too large for a
/// try. Unknown for a model that cannot be built or run here, which training will say.
fn costs(prepared: &Prepared, kinds: &Kinds) -> Costs {
    let plan = &prepared.plan;
    let least = Memory::of(plan, None);
    // A frozen base, as under LoRA, is listed as buffers.
    let held = Bytes(least.weights.0 + least.buffers.0);
    if held > TRIED {
        let estimated = kinds.models.describe(&plan.model);
        let estimated = estimated.ok().and_then(|facts| plan::estimate_pass(plan, &facts));
        if let Some(pass) = estimated {
            let (memory, flops) = (Memory::of(plan, Some(pass.activations)), Some(pass.flops));
            return Costs { memory, flops, is_estimated: true };
        }
    }
    let profiled = profiled(prepared, held, kinds);
    let mut memory = Memory::of(plan, profiled.and_then(|pass| pass.activations));
    if let Some(program) = memory::of_program().filter(|_| profiled.is_some()) {
        memory.base = Bytes(program.0 + HEAP.0);
    }
    Costs { memory, flops: profiled.map(|pass| pass.flops), is_estimated: false }
}

/// What a pass needs; `None` if it cannot be tried: the values of the model, which are `held` while
/// it is built, leave no room for their gradients and for others on this machine.
fn profiled(prepared: &Prepared, held: Bytes, kinds: &Kinds) -> Option<PassProfile> {
    let plan = &prepared.plan;
    if prepared.facts.memory.is_some_and(|memory| Bytes(4 * held.0) > memory) {
        return None;
    }
    let components = kinds.components(plan, &Device::Cpu).ok()?;
    engine::profile_pass(plan, &components).ok()
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

/// The run, and its epochs, as far as they can be read.
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

/// There is nothing to show.
pub(crate) fn no_runs(folder: &Path) -> ErrorPage {
    let what = format!("error: there is no run below `{}`", folder.display());
    let help = "name a folder of runs, as `logs/<name>`; `ddprun experiment.toml` makes one";
    ErrorPage::new(ExitCode::Refused, format!("{what}\n  do: {help}"))
}

/// A reference page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Experiment,
    Sweep,
    Clusters,
}

impl Page {
    /// The page that these flags ask for.
    pub(crate) fn of(sweep: bool, clusters: bool) -> Self {
        let asked = [(sweep, Self::Sweep), (clusters, Self::Clusters)];
        asked.into_iter().find(|(flag, _)| *flag).map_or(Self::Experiment, |(_, page)| page)
    }
}

/// Every key of an experiment, a sweep or a cluster, as TOML or as a JSON schema.
pub(crate) fn schema(of: Page, as_json: bool, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let vocabulary = kinds.vocabulary();
    let schema = || match of {
        Page::Experiment => config::json_schema(&vocabulary),
        Page::Sweep => config::sweep::json_schema(&vocabulary),
        Page::Clusters => config::clusters::json_schema(&vocabulary),
    };
    let text = || match of {
        // For a file that editors read: the schema and nothing around it.
        _ if as_json => serde_json::to_string_pretty(&schema()).unwrap_or_default() + "\n",
        Page::Experiment => vocabulary.reference().to_owned(),
        Page::Sweep => config::sweep::reference(&vocabulary),
        Page::Clusters => config::clusters::reference(&vocabulary),
    };
    verbatim("schema", || json!({ "schema": schema() }), text)
}

/// `ddprun schema optimizer`: the keys of one table, and of those in it, with the kinds that it
/// chooses among; `ddprun schema optimizer sgd`, also with a dot between: the options of one of
/// them.
pub(crate) fn schema_of(
    table: &str,
    kind: Option<&str>,
    as_json: bool,
    kinds: &Kinds,
) -> Result<ExitCode, ErrorPage> {
    let vocabulary = kinds.vocabulary();
    let of_dot = || {
        let (table, kind) = table.rsplit_once('.')?;
        let is_kind = vocabulary.kind(table, kind).is_ok();
        is_kind.then_some((table, kind))
    };
    if let Some((table, kind)) = kind.map(|kind| (table, kind)).or_else(of_dot) {
        return schema_of_kind(table, kind, as_json, &vocabulary);
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
        let page = format!("error: `{table}` is not a table of an experiment\n  do: {help}");
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let text = found.join("\n").trim_end().to_owned() + "\n";
    let whole = config::json_schema(&vocabulary);
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
    let what = if names.is_empty() {
        format!("`{table}` has no kinds to choose from")
    } else {
        format!("`{table}` has no `{kind}`")
    };
    let help = match closest(kind, names.iter().copied()) {
        Some(near) => format!("did you mean `ddprun schema {table} {near}`?"),
        None => format!("see `ddprun schema {table}` for what it has"),
    };
    Err(ErrorPage::new(ExitCode::Refused, format!("error: {what}\n  do: {help}")))
}
