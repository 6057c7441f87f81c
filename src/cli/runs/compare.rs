//! `ddprun compare`: in what runs differ, and what that has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::runs::table::{WIDTH, aligned, cut};
use crate::cli::runs_args::CompareArgs;
use crate::cli::{answer, refuse_existing};
use crate::files;
use crate::kinds::Kinds;
use crate::plan::Mode;
use crate::record::text::{metric, shortened};
use crate::record::{Environment, is_json, read_environment, to_stderr};
use crate::report::overlay::{self, Overlay};
use crate::report::{self, Unit};
use crate::runs::{self, Error, Scalars, Summary};
use crate::user_error::{ErrorPage, ExitCode, with_causes};

/// Name of the picture in the first run's folder.
const PNG: &str = "compare.png";
/// Columns of a value that is shown.
const MAX_VALUE: usize = 24;
/// Series of steps, which have no last or best value worth a line.
const OF_STEPS: [&str; 4] = ["lr", "grad_norm", "loss_scale", "samples_per_second"];
/// Epochs from which on curves go by epochs.
const MIN_EPOCHS: u64 = 3;

/// Runs whose names have room above a panel.
const MAX_NAMED: usize = 3;

/// A run and everything that is compared of it.
struct Compared {
    summary: Summary,
    config: toml::Table,
    environment: BTreeMap<String, String>,
    scalars: Scalars,
}

/// A key or metric, and what each run has.
type Rows<T> = Vec<(String, Vec<Option<T>>)>;

/// Last and best value.
#[derive(Clone, Copy)]
struct Values {
    last: f64,
    best: Option<f64>,
}

/// `ddprun compare RUN RUN...`
pub(crate) fn compare(args: &CompareArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    if let Some(out) = &args.out {
        refuse_name(out)?;
        refuse_existing(out, args.overwrite)?;
    }
    let folders = folders(&args.runs)?;
    let runs = folders.iter().map(|folder| read(folder)).collect::<Result<Vec<_>, _>>();
    let runs = runs.map_err(|error| ErrorPage::of(ExitCode::Checkpoint, &error))?;
    let settings = settings(&runs);
    let environment = environment(&runs);
    let metrics = metrics(&runs, kinds);
    let path = args.out.clone().unwrap_or_else(|| folders[0].join(PNG));
    let picture = match &args.out {
        Some(asked) => drawn_as_asked(&runs, asked)?,
        None => draw(&runs, &path).unwrap_or_else(|error| not_drawn(&error)),
    };
    if is_json() {
        let values = |rows: &Rows<String>| -> Vec<Value> {
            rows.iter().map(|(key, values)| json!({ "key": key, "values": values })).collect()
        };
        let measured = |values: &Option<Values>| {
            values.map(|values| json!({ "last": values.last, "best": values.best }))
        };
        let metrics = metrics.iter().map(|(name, values)| {
            json!({ "metric": name, "values": values.iter().map(measured).collect::<Vec<_>>() })
        });
        let whole = json!({
            "runs": runs.iter().map(|run| &run.summary).collect::<Vec<_>>(),
            "configuration": json_differences(&runs),
            "metrics": metrics.collect::<Vec<_>>(),
            "environment": values(&environment),
            "curves": picture.then(|| path.to_string_lossy()),
        });
        return answer("comparison", || whole, String::new);
    }
    let text = || page(&runs, &settings, &metrics, &environment);
    let code = answer("comparison", || Value::Null, text)?;
    if picture {
        to_stderr(&format!("curves: {}", path.display()));
    }
    Ok(code)
}

/// The picture that was asked for, in a folder that is made for it; whether there was anything.
fn drawn_as_asked(runs: &[Compared], path: &Path) -> Result<bool, ErrorPage> {
    let made = files::create_parent(path).map_err(report::Error::from);
    let drawn = made.and_then(|()| draw(runs, path));
    drawn.map_err(|error| ErrorPage::of(ExitCode::Storage, &error))
}

/// Says why there is no picture beside the tables, which do not need it.
fn not_drawn(error: &report::Error) -> bool {
    let why = with_causes(error);
    to_stderr(&format!(
        "warning: the curves could not be drawn\n  why: {why}\n  do: name another place with \
         `--out FILE.png`"
    ));
    false
}

/// Refuses a picture whose name says another form.
fn refuse_name(path: &Path) -> Result<(), ErrorPage> {
    if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("png")) {
        return Ok(());
    }
    let meant = path.with_extension("png");
    let page = format!(
        "error: `{}` would hold a PNG picture\n  do: write `{}`",
        path.display(),
        meant.display()
    );
    Err(ErrorPage::new(ExitCode::Refused, page))
}

/// The runs that are meant, each once.
fn folders(words: &[String]) -> Result<Vec<PathBuf>, ErrorPage> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for word in words {
        let folder = runs::best_run(Some(word))?;
        if folders.contains(&folder) {
            let page = format!(
                "error: `{word}` names `{}`, which is compared already\n  \
                 do: name another run; `ddprun ls` lists them",
                folder.display()
            );
            return Err(ErrorPage::new(ExitCode::Refused, page));
        }
        folders.push(folder);
    }
    Ok(folders)
}

fn read(folder: &Path) -> Result<Compared, Error> {
    let environment = read_environment(folder)?.pop();
    Ok(Compared {
        summary: runs::summary(folder)?,
        config: runs::config(folder)?,
        environment: environment.map(of_machine).unwrap_or_default(),
        scalars: Scalars::read(folder)?,
    })
}

/// What a result can depend on beside the experiment.
fn of_machine(start: Environment) -> BTreeMap<String, String> {
    let own = ["time", "command_line", "folder"];
    let Ok(Value::Object(fields)) = serde_json::to_value(start) else { return BTreeMap::new() };
    let known =
        fields.into_iter().filter(|(key, value)| !own.contains(&&**key) && !value.is_null());
    known.map(|(key, value)| (key, word(&value))).collect()
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Keys of the experiments whose values differ.
fn settings(runs: &[Compared]) -> Rows<String> {
    let shown = |value: toml::Value| match value {
        toml::Value::String(text) => text,
        toml::Value::Float(number) => format!("{number:?}"),
        other => other.to_string(),
    };
    let found = runs::differences(&configs(runs)).into_iter();
    found.map(|it| (it.key, it.values.into_iter().map(|it| it.map(shown)).collect())).collect()
}

/// Tags say what the user thinks of a run, and are told with it.
fn configs(runs: &[Compared]) -> Vec<toml::Table> {
    let mut configs: Vec<toml::Table> = runs.iter().map(|run| run.config.clone()).collect();
    for config in &mut configs {
        if let Some(toml::Value::Table(identity)) = config.get_mut("experiment") {
            identity.remove("tags");
        }
    }
    configs
}

fn json_differences(runs: &[Compared]) -> Vec<Value> {
    let found = runs::differences(&configs(runs)).into_iter();
    found.map(|it| json!({ "key": it.key, "values": it.values })).collect()
}

/// What differs of the machines and programs, the number and kind of ranks first.
fn environment(runs: &[Compared]) -> Rows<String> {
    let ranks = |run: &Compared| Some(run.summary.devices.len().to_string());
    let devices = |run: &Compared| {
        let kinds: BTreeSet<&str> = run.summary.devices.iter().map(String::as_str).collect();
        Some(kinds.into_iter().collect::<Vec<_>>().join(", "))
    };
    let mut rows: Rows<String> = vec![
        ("ranks".to_owned(), runs.iter().map(ranks).collect()),
        ("device".to_owned(), runs.iter().map(devices).collect()),
    ];
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.environment.keys()).collect();
    rows.extend(keys.into_iter().map(|key| {
        (key.clone(), runs.iter().map(|run| run.environment.get(key).cloned()).collect())
    }));
    rows.retain(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]));
    rows
}

/// Every metric of evaluations and epochs: its last value, and its best if that has a meaning.
fn metrics(runs: &[Compared], kinds: &Kinds) -> Rows<Values> {
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.scalars.series.keys()).collect();
    let is_compared = |name: &&&String| {
        let by_epoch = names.iter().any(|other| ***other == format!("{name}_epoch"));
        !OF_STEPS.contains(&name.as_str()) && !by_epoch
    };
    let names: Vec<&String> = names.iter().filter(is_compared).copied().collect();
    let vocabulary = kinds.vocabulary();
    let row = |name: &String| {
        let of = |run: &Compared| {
            let points = run.scalars.series.get(name)?;
            let mode = vocabulary.mode_of(name.trim_end_matches("_epoch"));
            let values = points.iter().map(|point| point.value).filter(|value| value.is_finite());
            let best = match mode {
                Some(Mode::Min) => values.min_by(f64::total_cmp),
                Some(Mode::Max) => values.max_by(f64::total_cmp),
                None => None,
            };
            Some(Values { last: points.last()?.value, best })
        };
        (name.clone(), runs.iter().map(of).collect())
    };
    names.into_iter().map(row).collect()
}

fn page(
    runs: &[Compared],
    settings: &Rows<String>,
    metrics: &Rows<Values>,
    environment: &Rows<String>,
) -> String {
    let mut rows = vec![["", "run", "name", "state", "tags"].map(str::to_owned).to_vec()];
    rows.extend(runs.iter().enumerate().map(|(at, Compared { summary, .. })| {
        let Summary { id, name, state, tags, .. } = summary;
        let state = state.word().to_owned();
        vec![(at + 1).to_string(), id.clone(), cut(name, 20), state, cut(&tags.join(", "), 20)]
    }));
    let numbers: Vec<String> = (1..=runs.len()).map(|at| at.to_string()).collect();
    let mut text = aligned(&rows, 5);
    text += &section("settings that differ", settings, &numbers);
    let heads: Vec<String> =
        numbers.iter().flat_map(|run| [format!("{run} last"), format!("{run} best")]).collect();
    let measured = metrics.iter().map(|(name, values)| {
        let cells = values.iter().flat_map(|values| {
            let shown = |value: f64| metric(name.trim_end_matches("_epoch"), value);
            [values.map(|it| shown(it.last)), values.and_then(|it| it.best).map(shown)]
        });
        (name.clone(), cells.collect())
    });
    text += &section("metrics", &measured.collect(), &heads);
    text + &section("machines and programs that differ", environment, &numbers)
}

/// A table under its heading.
fn section(heading: &str, rows: &Rows<String>, heads: &[String]) -> String {
    if rows.is_empty() {
        return format!("\n{heading}: none\n");
    }
    let mut table =
        vec![std::iter::once(heading.to_owned()).chain(heads.iter().cloned()).collect()];
    table.extend(rows.iter().map(|(key, values)| {
        let cell = |value: &Option<String>| {
            value.as_deref().map_or("-".to_owned(), |it| shortened(it, MAX_VALUE))
        };
        std::iter::once(key.clone()).chain(values.iter().map(cell)).collect::<Vec<String>>()
    }));
    format!("\n{}", side_by_side(table))
}

/// The table; of two runs in lines that hold both: where a terminal has no room, values lose their
/// middle, and keys that are too long stand on lines of their own.
fn side_by_side(mut table: Vec<Vec<String>>) -> String {
    /// Columns of values of two runs: last and best of each.
    const OF_TWO: usize = 4;
    /// Columns that a value keeps.
    const LEAST: usize = 12;
    let widest = |column: usize| {
        table.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..table[0].len()).map_while(widest).collect();
    let (n, gaps) = (widths.len() - 1, 2 * (widths.len() - 1));
    if n > OF_TWO || widths.iter().sum::<usize>() + gaps <= WIDTH {
        return aligned(&table, 1);
    }
    let longest = widths[1..].iter().copied().max().unwrap_or(0);
    let most = WIDTH - gaps - n * LEAST.min(longest);
    let mut text = String::new();
    if widths[0] <= most {
        let each = (WIDTH - gaps - widths[0]) / n;
        for cell in table.iter_mut().flat_map(|row| &mut row[1..]) {
            *cell = shortened(cell, each);
        }
        return aligned(&table, 1);
    }
    let each = (WIDTH - gaps) / n;
    for row in table {
        let cells = row[1..].iter().map(|cell| format!("  {:>each$}", shortened(cell, each)));
        text += &format!("{}\n{}\n", shortened(&row[0], WIDTH), cells.collect::<String>());
    }
    text
}

/// Draws the loss, and what the first run monitors or its accuracy; whether there was anything.
fn draw(runs: &[Compared], path: &Path) -> Result<bool, report::Error> {
    let has = |name: &str| runs.iter().any(|run| run.scalars.series.contains_key(name));
    let losses = ["val/loss", "train/loss"].into_iter().find(|name| has(name));
    let monitor = runs[0].summary.monitor.as_deref();
    let others = monitor.into_iter().chain(["val/accuracy", "train/accuracy"]);
    let second = others.into_iter().find(|name| has(name) && Some(*name) != losses);
    let names: Vec<&str> = losses.into_iter().chain(second).collect();
    if names.is_empty() {
        return Ok(false);
    }
    let by_epoch = runs.iter().all(|run| {
        let scalars = &run.scalars;
        scalars.steps_per_epoch > 0 && run.summary.step >= MIN_EPOCHS * scalars.steps_per_epoch
    });
    let unit = if by_epoch { Unit::Epoch } else { Unit::Step };
    let overlay = |name: &&str| Overlay {
        metric: (*name).to_owned(),
        unit,
        lines: (0..runs.len()).map(|at| line(at, runs, name, unit)).collect(),
    };
    let overlays: Vec<Overlay> = names.iter().map(overlay).collect();
    let ids: Vec<&str> = runs.iter().map(|run| run.summary.id.as_str()).collect();
    overlay::write(&overlays, &cut(&ids.join(" · "), 90), path)?;
    Ok(true)
}

/// A run's points under its number, and its name where there is room for all of them.
fn line(at: usize, runs: &[Compared], name: &str, unit: Unit) -> (String, Vec<(f64, f64)>) {
    let run = &runs[at];
    let words = format!("{} {}", at + 1, cut(&run.summary.name, 12));
    let legend = if runs.len() > MAX_NAMED { (at + 1).to_string() } else { words };
    let per_epoch = if unit == Unit::Epoch { run.scalars.steps_per_epoch } else { 1 };
    let points = run.scalars.series.get(name).into_iter().flatten();
    let points = points.map(|point| (point.step as f64 / per_epoch as f64, point.value));
    (legend, points.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_stand_side_by_side_in_a_terminal_of_80_columns() {
        let table = |key: &str, value: &str| {
            let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
            side_by_side(vec![row(["settings", "1", "2"]), row([key, value, "short"])])
        };
        let fits = |text: &str| text.lines().all(|line| line.chars().count() <= WIDTH);
        assert_eq!(table("a", "b"), "settings  1      2\na         b  short\n");
        let (long, path) = ("k".repeat(48), "checkpoints/of/a/run.safetensors");
        let cut = table(&long, path);
        assert!(fits(&cut) && cut.lines().count() == 2, "{cut}");
        assert!(cut.contains("check") && cut.contains("ors") && cut.ends_with("short\n"), "{cut}");
        let own = table(&"k".repeat(70), path);
        assert!(fits(&own) && own.contains(path) && own.lines().count() == 4, "{own}");
    }
}
