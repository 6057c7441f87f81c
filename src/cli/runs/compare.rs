//! `ddprun compare`: in what runs differ, and what that has changed.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::runs::table::{WIDTH, aligned};
use crate::cli::runs_args::CompareArgs;
use crate::cli::{answer, refuse_existing};
use crate::files;
use crate::kinds::Kinds;
use crate::record::text::{cut, metric, shortened};
use crate::record::{is_json, to_stderr};
use crate::report;
use crate::runs::{Comparison, LastAndBest, Rows, Summary, distinct_runs, find_sweep, named_run};
use crate::sweep;
use crate::user_error::{ErrorPage, ExitCode, with_causes};

/// Name of the picture in the first run's folder.
const PNG: &str = "compare.png";
/// Columns of a value that is shown.
const MAX_VALUE: usize = 24;

/// `ddprun compare RUN RUN...`
pub(crate) fn compare(args: &CompareArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    if let Some(out) = &args.out {
        refuse_name(out)?;
        refuse_existing(out, args.overwrite)?;
    }
    if let [word] = &args.runs[..] {
        return compare_trials(word, args, kinds);
    }
    let folders = distinct_runs(&args.runs)?;
    let compared = Comparison::read(&folders, &kinds.vocabulary());
    let compared = compared.map_err(|error| ErrorPage::of(ExitCode::Checkpoint, &error))?;
    let path = args.out.clone().unwrap_or_else(|| folders[0].join(PNG));
    let picture = match &args.out {
        Some(out) => draw_into(out, &compared)?,
        None => compared.draw(&path).unwrap_or_else(|error| not_drawn(&error)),
    };
    let curves: Option<PathBuf> = picture.then_some(path);
    if is_json() {
        return answer("comparison", || object(&compared, curves.as_deref()), String::new);
    }
    let code = answer("comparison", || Value::Null, || page(&compared))?;
    if let Some(path) = curves {
        to_stderr(&format!("curves: {}", path.display()));
    }
    Ok(code)
}

/// `ddprun compare SWEEP`: the parameters by which its best trials differ from the others.
fn compare_trials(word: &str, args: &CompareArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let Some(folder) = find_sweep(Path::new(word)) else {
        named_run(Some(word))?;
        let what = format!("`{word}` is one run: there is nothing to compare it with");
        return Err(ErrorPage::refused(what, "name another run, too; `ddprun ls` lists them"));
    };
    if args.out.is_some() {
        let help = "leave out `--out`: the pictures of a sweep are in its folder";
        return Err(ErrorPage::refused("the trials of a sweep are compared by a table", help));
    }
    let status = sweep::status(&folder)?;
    let Some(contrast) = status.contrast(&kinds.pruners) else {
        let what = format!("`{}` has too few trials that have ended and differ", folder.display());
        return Err(ErrorPage::refused(what, format!("see them with `ddprun report {word}`")));
    };
    answer("sweep_comparison", || contrast.json(), || contrast.page())
}

fn object(compared: &Comparison, curves: Option<&Path>) -> Value {
    let configuration = compared.configuration.iter();
    let configuration =
        configuration.map(|it| json!({ "key": it.key, "values": it.values })).collect::<Vec<_>>();
    let measured = |values: &Option<LastAndBest>| {
        values.map(|values| json!({ "last": values.last, "best": values.best }))
    };
    let metrics = compared.metrics.iter().map(|(name, values)| {
        json!({ "metric": name, "values": values.iter().map(measured).collect::<Vec<_>>() })
    });
    let environment = compared.environment.iter();
    let environment = environment.map(|(key, values)| json!({ "key": key, "values": values }));
    json!({
        "runs": compared.runs.iter().map(|run| &run.summary).collect::<Vec<_>>(),
        "configuration": configuration,
        "metrics": metrics.collect::<Vec<_>>(),
        "environment": environment.collect::<Vec<_>>(),
        "curves": curves.map(Path::to_string_lossy),
    })
}

/// Draws the picture into a folder that is made for it. Returns false if there is nothing to draw.
fn draw_into(path: &Path, compared: &Comparison) -> Result<bool, ErrorPage> {
    let made = files::create_parent(path).map_err(report::Error::from);
    let drawn = made.and_then(|()| compared.draw(path));
    drawn.map_err(|error| ErrorPage::of(ExitCode::Storage, &error))
}

/// Warns that there is no picture beside the tables, which do not need it.
fn not_drawn(error: &report::Error) -> bool {
    let why = with_causes(error);
    to_stderr(&format!(
        "warning: the curves could not be drawn\n  why: {why}\n  do: name another place with \
         `--out FILE.png`"
    ));
    false
}

/// Refuses a picture with the extension of another format.
fn refuse_name(path: &Path) -> Result<(), ErrorPage> {
    if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("png")) {
        return Ok(());
    }
    let meant = path.with_extension("png");
    let what = format!("`{}` would hold a PNG picture", path.display());
    Err(ErrorPage::refused(what, format!("write `{}`", meant.display())))
}

/// Rows of the settings that differ, as text.
fn settings(compared: &Comparison) -> Rows<String> {
    let shown = |value: &toml::Value| match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Float(number) => format!("{number:?}"),
        other => other.to_string(),
    };
    let rows = compared.configuration.iter().map(|difference| {
        let values = difference.values.iter().map(|value| value.as_ref().map(shown));
        (difference.key.clone(), values.collect())
    });
    rows.collect()
}

fn page(compared: &Comparison) -> String {
    let Comparison { runs, metrics, environment, .. } = compared;
    let mut rows = vec![["", "run", "name", "state", "tags"].map(str::to_owned).to_vec()];
    rows.extend(runs.iter().enumerate().map(|(at, run)| {
        let Summary { id, name, state, tags, .. } = &run.summary;
        let state = state.word().to_owned();
        vec![(at + 1).to_string(), id.clone(), cut(name, 20), state, cut(&tags.join(", "), 20)]
    }));
    let numbers: Vec<String> = (1..=runs.len()).map(|at| at.to_string()).collect();
    let mut text = aligned(&rows, 5);
    text += &section("settings that differ", &settings(compared), &numbers);
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
