//! Tables: their target column, and its task.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::closest;
use crate::data::{self, Date, Frequency, TargetCells};
use crate::init::columns::{self, ColumnContent, Columns, NumberFormat, Table, formatted, given};
use crate::init::image_table::{self, listed};
use crate::init::names::{count, named};
use crate::init::recognised::{
    InitRequest, RecognisedData, TableTask, Task, VAL_FRACTION, path, unusable,
};
use crate::init::{names, numbered};
use crate::user_error::ErrorPage;

/// Names that a target usually has.
const TARGETS: [&str; 26] = [
    "target",
    "label",
    "labels",
    "class",
    "y",
    "outcome",
    "price",
    "saleprice",
    "quality",
    "species",
    "diagnosis",
    "survived",
    "churn",
    "exited",
    "attrition",
    "fraud",
    "is_fraud",
    "default",
    "charges",
    "salary",
    "income",
    "medv",
    "response",
    "output",
    "rating",
    "sentiment",
];

/// Letters of a header that are shown.
const SHOWN: usize = 60;

/// The files of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    pub(super) train: &'a Path,
    pub(super) val: Option<&'a Path>,
    pub(super) test: Option<&'a Path>,
}

impl<'a> Files<'a> {
    /// One file, of which rows are held back to validate on.
    pub(super) fn one(train: &'a Path) -> Self {
        Self { train, val: None, test: None }
    }
}

/// A csv file of series in time: one whose first column holds ascending dates and whose others hold
/// numbers, or whose columns have numbers for names.
pub(super) fn series(file: &Path) -> Result<Option<RecognisedData>, ErrorPage> {
    let text = text(file)?;
    let (names, first) = head(file, &text);
    let name = names.first().map(String::as_str).unwrap_or_default();
    // Other tables are read once only.
    let may_be_dated = data::is_dated(name, first.get(0));
    if !may_be_dated && name.parse::<u64>().is_err() {
        return Ok(None);
    }
    let Table { names, rows, .. } = cells(file, &text);
    let dates = if may_be_dated {
        dates_of(&names, &rows)
    } else {
        let are_ids = numbered::are_names(&names, &rows) && !numbered::count_up(&names);
        are_ids.then(SeriesDates::default)
    };
    let Some(SeriesDates { frequency }) = dates else { return Ok(None) };
    let season = frequency.as_ref().map_or(1, Frequency::season);
    let (seq_len, pred_len) = window(rows.len(), season);
    let options =
        [("file", path(file)), ("seq_len", seq_len.into()), ("pred_len", pred_len.into())];
    let frequency = frequency.map(|frequency| frequency.to_string());
    let task = Task::Series { rows: rows.len(), frequency };
    Ok(Some(RecognisedData::new("csv_forecast", &options, task)))
}

/// Past and future time steps, both of which fit into each part of the rows, the smallest of which
/// is a tenth: two seasons, of which one is predicted, or more.
fn window(rows: usize, season: usize) -> (usize, usize) {
    let season = if season <= 96 { season } else { 1 };
    let future = (rows / 40).clamp(1, 96).max(season.min(rows / 10));
    let past = (rows / 10).clamp(2, 336).max((2 * season).min(rows / 4));
    (past, future)
}

/// The dates of a series, if it has some.
#[derive(Debug, Default)]
struct SeriesDates {
    /// `None` = irregular.
    frequency: Option<Frequency>,
}

/// The dates of a table whose first column holds them, if it is a series: its other columns hold
/// numbers, and its dates ascend regularly. Dates that descend, and those of a column called `date`
/// that are irregular or of a format with several meanings, make a series that is refused with the
/// reason, or warned of.
fn dates_of(names: &[String], rows: &[csv::StringRecord]) -> Option<SeriesDates> {
    let is_number = |cell: &&&str| cell.parse::<f64>().is_ok();
    let are_numbers = (1..names.len()).all(|column| {
        let cells: Vec<&str> = rows.iter().filter_map(|row| row.get(column)).collect();
        // One in twenty may be a slip, which is refused with its line.
        let given = cells.iter().filter(|cell| !columns::is_empty(cell)).count();
        20 * cells.iter().filter(is_number).count() >= 19 * given
    });
    if !are_numbers || names.len() < 2 {
        return None;
    }
    let cells = rows.iter().filter_map(|row| row.get(0)).zip(2..);
    let is_called_date = names[0].eq_ignore_ascii_case("date");
    let irregular = is_called_date.then(SeriesDates::default);
    let Some(mut dates) = data::dates(cells) else { return irregular };
    let order = |pair: &[Date]| pair[0].instant().cmp(&pair[1].instant());
    let first = dates.windows(2).map(order).next()?;
    if first.is_eq() || dates.windows(2).any(|pair| order(pair) != first) {
        return None;
    }
    if first.is_gt() {
        dates.reverse();
    }
    let frequency = Frequency::infer(&dates);
    match frequency {
        Some(frequency) => Some(SeriesDates { frequency: Some(frequency) }),
        None => irregular,
    }
}

/// A csv file to train on, for which rows are held back to validate on where there is no other.
pub(super) fn csv(files: Files<'_>, request: InitRequest<'_>) -> Result<RecognisedData, ErrorPage> {
    let table = cells(files.train, &text(files.train)?);
    if let Some(help) = data::other_separator(files.train, &table.names) {
        let header: String = table.names.concat().chars().take(SHOWN).collect();
        return Err(unusable(files.train, &format!("has one column only, `{header}`"), &help));
    }
    let are_numbers =
        !table.names.is_empty() && table.names.iter().all(|name| name.parse::<f64>().is_ok());
    if are_numbers && !numbered::are_names(&table.names, &table.rows) {
        let help = "name the columns in a first line; numbers count as names only if they \
                    cannot be values";
        return Err(unusable(files.train, "has no header line", help));
    }
    if table.rows.is_empty() {
        let help = "write a first line with the names of the columns, and a row in each line below";
        return Err(unusable(files.train, "has no rows", help));
    }
    let lists_images = image_table::lists_images(files.train, &table);
    let use_rows = |other: &Path| match text(other) {
        Ok(text) if lists_images => {
            let folder =
                image_table::own_folder(other, &cells(other, &text), (files.train, &table));
            let images = folder.map_or("IMAGES".to_owned(), |folder| folder.display().to_string());
            format!("its images are to be predicted: `ddprun predict RUN {images}`")
        }
        _ => format!("its rows are to be predicted: `ddprun predict RUN {}`", other.display()),
    };
    let (parts, mut notes) =
        parts(files, request, |file| Ok(cells(file, &text(file)?).names), use_rows)?;
    if let Some(images) = listed(files.train, &table, &parts, request)? {
        return Ok(images.noting(notes));
    }
    image_table::refuse_unfound(files.train, &table)?;
    let target = Target::of(files.train, &table, request)?;
    let mut columns = Columns::of(&table, target.at);
    for (file, part) in other_parts(files, &parts, |file| Ok(cells(file, &text(file)?)))? {
        columns.check_part(&file, &part);
    }
    if let Some(refusal) = columns.without_features(files.train, &target.name) {
        return Err(refusal);
    }
    let mut options = parts;
    options.push(("target", target.name.clone().into()));
    options.extend(columns.options());
    options.push(("standardize_target", true.into()));
    notes.splice(0..0, target.notes.iter().cloned().chain(columns.notes(&target.name)));
    notes.extend(date_beside_time(&table).map(|note| ("note", note)));
    Ok(RecognisedData::new("csv", &options, target.task()).noting(notes))
}

/// A note if the date and the time of rows are in two columns: a forecast needs one.
fn date_beside_time(table: &Table) -> Option<String> {
    let find = |is_so: &dyn Fn(usize) -> bool| (0..table.names.len()).find(|&at| is_so(at));
    let date =
        find(&|at| matches!(ColumnContent::of("", &given(table, at)), ColumnContent::Dates(_)))?;
    let time = find(&|at| {
        let cells = given(table, at);
        !cells.is_empty() && cells.iter().all(|(_, cell)| columns::is_time_of_day(cell))
    })?;
    let (date, time) = (&table.names[date], &table.names[time]);
    Some(format!(
        "`{date}` and `{time}` tell when each row is: to forecast what comes next, join them into a \
         first column, as in `2024-01-31 10:00`; in Python, with the table as `t`: \
         `t.insert(0, \"date\", t.pop(\"{date}\") + \" \" + t.pop(\"{time}\"))`"
    ))
}

/// Like [`csv`], for JSON lines.
pub(super) fn jsonl(
    files: Files<'_>,
    request: InitRequest<'_>,
) -> Result<RecognisedData, ErrorPage> {
    let (objects, table) = lines(&text(files.train)?);
    if table.names.is_empty() {
        return Err(unusable(files.train, "holds no JSON object", "write one object in each line"));
    }
    let use_rows = |other: &Path| {
        format!("its lines are to be predicted: `ddprun predict RUN {}`", other.display())
    };
    let (parts, mut notes) =
        parts(files, request, |file| Ok(lines(&text(file)?).1.names), use_rows)?;
    // Only numbers, words and truth values can be predicted.
    let answers = |name: &str| objects.iter().filter_map(|object| object.get(name)).all(is_plain);
    let plain: Vec<&String> = table.names.iter().filter(|name| answers(name)).collect();
    let chosen = request.target.filter(|name| table.place(name).is_some());
    if let Some(name) = chosen.filter(|name| !plain.iter().any(|plain| plain == name)) {
        let help = format!("name a key with numbers or words: {}", named(&plain));
        return Err(ErrorPage::refused(format!("`{name}` holds arrays or objects"), help));
    }
    let keys = table.only(&plain);
    let target = Target::of(files.train, &keys, request)?;
    let at = table.place(&target.name).unwrap_or_default();
    let mut columns = Columns::of(&table, at);
    for name in table.names.iter().filter(|name| **name != target.name) {
        if let Some(why) = unusable_key(name, &objects) {
            columns.leave_out(name, why);
        }
    }
    for (file, part) in other_parts(files, &parts, |file| Ok(lines(&text(file)?).1))? {
        columns.check_part(&file, &part);
    }
    let is_input = |name: &&String| **name != target.name && !columns.ignores(name);
    let inputs: Vec<String> = table.names.iter().filter(is_input).cloned().collect();
    if inputs.is_empty()
        && let Some(refusal) = columns.without_features(files.train, &target.name)
    {
        return Err(refusal);
    }
    let mut options = parts;
    options.push(("inputs", inputs.clone().into()));
    options.push(("target", target.name.clone().into()));
    // What is no input needs no declaration.
    let columns_of_inputs = columns.among(&inputs);
    options.extend(columns_of_inputs.options().into_iter().filter(|(key, _)| *key == "features"));
    options.push(("standardize_target", true.into()));
    notes.splice(0..0, target.notes.iter().cloned().chain(columns.notes(&target.name)));
    Ok(RecognisedData::new("jsonl", &options, target.task()).noting(notes))
}

/// The column to predict.
struct Target {
    at: usize,
    name: String,
    classify: bool,
    /// True if the data set would infer the same task.
    is_usual: bool,
    notes: Vec<(&'static str, String)>,
}

impl Target {
    /// Finds the target: the column of `--target`, one with a usual name, or the last that could be
    /// it.
    fn of(file: &Path, table: &Table, request: InitRequest<'_>) -> Result<Self, ErrorPage> {
        let (at, why) = place(file, table, request)?;
        let name = table.names[at].clone();
        let mut cells = given(table, at);
        if let ColumnContent::Numbers(bad) = ColumnContent::of("", &cells) {
            cells.retain(|(_, cell)| bad.iter().all(|bad| bad.word != *cell));
        }
        let unlabelled = table.rows.len() - cells.len();
        let mut found = TargetCells::default();
        for (_, cell) in &cells {
            found.push(cell);
        }
        let usual = found.are_classes();
        let word = cells.iter().find(|(_, cell)| cell.parse::<f64>().is_err());
        let fraction =
            cells.iter().find(|(_, cell)| cell.parse().is_ok_and(|n: f64| n.fract() != 0.0));
        let classify = match (request.task, word, fraction) {
            (None, ..) => usual,
            (Some(TableTask::Regression), Some((line, word)), _) => {
                let what = format!(
                    "`--task regression` needs numbers, but `{name}` is `{word}` in line {line}"
                );
                return Err(ErrorPage::refused(
                    what,
                    "use `--task classification`, or another `--target`",
                ));
            }
            (Some(TableTask::Classification), None, Some((line, number))) => {
                let what = format!(
                    "`--task classification` needs words or whole numbers, but `{name}` is \
                     `{number}` in line {line}"
                );
                return Err(ErrorPage::refused(
                    what,
                    "use `--task regression`, or another `--target`",
                ));
            }
            (Some(task), ..) => task == TableTask::Classification,
        };
        let distinct: BTreeSet<&str> = cells.iter().map(|(_, cell)| *cell).collect();
        let n = count(distinct.len());
        let what = match (classify, word.is_some(), request.task.is_some()) {
            (true, true, _) => format!("its {n} words are classes"),
            (true, false, false) => format!(
                "its {n} whole numbers are taken for classes (`--task regression` for numbers)"
            ),
            (true, false, true) => format!("its {n} whole numbers are classes"),
            (false, ..) => "its values are numbers".to_owned(),
        };
        let mut notes = vec![("target", format!("`{name}`, {why}; {what}"))];
        if unlabelled > 0 {
            let labelled: BTreeSet<u64> = cells.iter().map(|(line, _)| *line).collect();
            let line = table.lines.iter().find(|line| !labelled.contains(*line)).unwrap_or(&0);
            let rows = if unlabelled == 1 { "row" } else { "rows" };
            let n = count(unlabelled);
            notes.push(("left out", format!("{n} {rows} without a target, such as line {line}")));
        }
        Ok(Self { at, name, classify, is_usual: classify == usual, notes })
    }

    fn task(&self) -> Task {
        Task::Table { classify: self.classify, is_usual: self.is_usual }
    }
}

/// The index of the column to predict, and the reason for it.
fn place(
    file: &Path,
    table: &Table,
    request: InitRequest<'_>,
) -> Result<(usize, &'static str), ErrorPage> {
    let names = &table.names;
    if let Some(name) = request.target {
        let Some(at) = table.place(name) else {
            let what = format!("`{}` has no column `{name}`", file.display());
            let help = match closest(name, names.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `--target {near}`?"),
                None => format!("name one of {}", named(names)),
            };
            return Err(ErrorPage::refused(what, help));
        };
        let cells = given(table, at);
        if let (ColumnContent::Nothing(why), Some(_)) =
            (ColumnContent::of(name, &cells), formatted(&cells))
        {
            return Err(unusable(
                file,
                &format!("cannot have the target `{name}`: {why}"),
                "write plain numbers, or name another column with `--target`",
            ));
        }
        return Ok((at, "as asked for"));
    }
    let holds = |at: usize| ColumnContent::of(&names[at], &given(table, at));
    let is_usual = |name: &String| TARGETS.iter().any(|usual| name.eq_ignore_ascii_case(usual));
    // A target that is written in a way that is not read is not passed over for another one.
    let mut unread = names.iter().enumerate().filter(|(_, name)| is_usual(name));
    let unread = unread.find_map(|(at, name)| {
        let cells = given(table, at);
        Some((name, formatted(&cells)?)).filter(|_| matches!(holds(at), ColumnContent::Nothing(_)))
    });
    if let Some((name, NumberFormat { line, cell, what, plain })) = unread {
        let what = format!("has numbers with {what} in `{name}`: `{cell}` in line {line}");
        let help = format!("write {plain}, or name another column with `--target`");
        return Err(unusable(file, &what, &help));
    }
    // Dates and names of rows are never predicted.
    let could_be = |&at: &usize| match holds(at) {
        ColumnContent::Numbers(_) => !is_counter(&names[at], &given(table, at)),
        ColumnContent::Categories => true,
        ColumnContent::Dates(_) | ColumnContent::Nothing(_) => false,
    };
    let usual = |target: &&str| {
        let at = names.iter().position(|name| name.eq_ignore_ascii_case(target))?;
        could_be(&at).then_some(at)
    };
    if let Some(at) = TARGETS.iter().find_map(usual) {
        return Ok((at, "by its name"));
    }
    let varies = |at: &usize| {
        let mut cells = table.cells(*at).map(|(_, cell)| cell);
        cells.next().is_some_and(|first| cells.any(|cell| cell != first))
    };
    let last = (0..names.len()).rev().filter(varies).find(could_be);
    let last = last.ok_or_else(|| {
        let help = "name it with `--target`; dates, columns of one value and names of rows are not \
                    taken for one";
        unusable(file, "has no column that could be the target", help)
    })?;
    Ok((last, "the last column that varies (`--target` names another)"))
}

/// True if a column numbers the rows.
fn is_counter(name: &str, cells: &[(u64, &str)]) -> bool {
    let numbers: Vec<i64> = cells.iter().filter_map(|(_, cell)| cell.parse().ok()).collect();
    let counts = numbers.len() == cells.len() && numbers.windows(2).all(|two| two[1] == two[0] + 1);
    counts && cells.len() > 2 && (name.is_empty() || name.to_lowercase().contains("id"))
}

/// Options of the files to train, validate and test on, and conclusions.
type PartOptions = (Vec<(&'static str, Value)>, Vec<(&'static str, String)>);

/// The parts of a table. A file to test on without the target holds rows to predict.
fn parts(
    files: Files<'_>,
    request: InitRequest<'_>,
    names: impl Fn(&Path) -> Result<Vec<String>, ErrorPage>,
    use_rows: impl Fn(&Path) -> String,
) -> Result<PartOptions, ErrorPage> {
    let mut options = vec![("train_file", path(files.train))];
    let own = names(files.train)?;
    let mut notes = Vec::new();
    let file = |file: &Path| names::name(file);
    let mut complete = |key: &'static str, other: Option<&Path>| -> Result<bool, ErrorPage> {
        let Some(other) = other else { return Ok(false) };
        let theirs = names(other)?;
        let lacking: Vec<&str> =
            own.iter().filter(|name| !theirs.contains(name)).map(String::as_str).collect();
        if lacking.is_empty() {
            options.push((key, path(other)));
            return Ok(true);
        }
        let use_it = if request.target.is_some_and(|target| lacking.contains(&target))
            || lacking.len() == 1
        {
            use_rows(other)
        } else {
            "it is not used".to_owned()
        };
        notes.push(("left out", format!("`{}` has no {}: {use_it}", file(other), named(&lacking))));
        Ok(false)
    };
    let has_val = complete("val_file", files.val)?;
    let has_test = complete("test_file", files.test)?;
    let val = if let Some(val) = files.val.filter(|_| has_val) {
        format!("`{}`", file(val))
    } else {
        options.push(("val_fraction", VAL_FRACTION.into()));
        format!("{:.0} % of the rows, drawn at random", VAL_FRACTION * 100.0)
    };
    notes.insert(0, ("validate on", val));
    if let Some(test) = files.test.filter(|_| has_test) {
        notes.insert(1, ("test on", format!("`{}`, once, at the end", file(test))));
    }
    Ok((options, notes))
}

/// Reads the other parts that are used, by their names.
fn other_parts(
    files: Files<'_>,
    options: &[(&'static str, Value)],
    read: impl Fn(&Path) -> Result<Table, ErrorPage>,
) -> Result<Vec<(String, Table)>, ErrorPage> {
    let all = [("val_file", files.val), ("test_file", files.test)];
    let used = all.into_iter().filter(|(key, _)| options.iter().any(|(option, _)| option == key));
    used.filter_map(|(_, file)| file).map(|file| Ok((names::name(file), read(file)?))).collect()
}

/// The first line of a table, and the row below it.
fn head(file: &Path, text: &str) -> (Vec<String>, csv::StringRecord) {
    let mut reader = reader(file, text);
    let names = reader.headers().cloned().unwrap_or_default();
    let first = reader.records().flatten().next().unwrap_or_default();
    (names.iter().map(str::to_owned).collect(), first)
}

fn reader<'a>(file: &Path, text: &'a str) -> csv::Reader<&'a [u8]> {
    csv::ReaderBuilder::new()
        .delimiter(data::delimiter(file))
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(text.trim_start_matches('\u{feff}').as_bytes())
}

/// A table with its header line.
fn cells(file: &Path, text: &str) -> Table {
    let mut reader = reader(file, text);
    let first = reader.headers().cloned().unwrap_or_default();
    let rows: Vec<csv::StringRecord> = reader.records().flatten().collect();
    let line = |row: &csv::StringRecord| row.position().map_or(0, csv::Position::line);
    let lines = rows.iter().map(line).collect();
    Table { names: first.iter().map(str::to_owned).collect(), rows, lines }
}

/// Lines of JSON: the objects, and as a table with a column for each key.
fn lines(text: &str) -> (Vec<Map<String, Value>>, Table) {
    let numbered = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (lines, objects): (Vec<u64>, Vec<Map<String, Value>>) = numbered
        .filter_map(|(at, line)| Some((at, data::json_object(line.as_bytes()).ok()?)))
        .unzip();
    let mut names: Vec<String> = Vec::new();
    for key in objects.iter().flat_map(Map::keys) {
        if !names.contains(key) {
            names.push(key.clone());
        }
    }
    let row =
        |object: &Map<String, Value>| names.iter().map(|name| word(object.get(name))).collect();
    let rows = objects.iter().map(row).collect();
    (objects, Table { names, rows, lines })
}

/// A value of JSON as the cell of a table; an array stands for a number.
fn word(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(word)) => word.clone(),
        Some(Value::Array(_)) => "0".to_owned(),
        Some(value) => value.to_string(),
    }
}

/// A number, a word, a truth value or nothing.
fn is_plain(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}

/// Why a key of JSON lines cannot be an input, by the values themselves.
fn unusable_key(name: &str, objects: &[Map<String, Value>]) -> Option<&'static str> {
    let values = || objects.iter().filter_map(|object| object.get(name));
    if values().any(Value::is_object) {
        return Some("it holds objects; write each of their keys as a key of the line");
    }
    let arrays: Vec<&Vec<Value>> = values().filter_map(Value::as_array).collect();
    let first = arrays.first()?;
    let is_usable = |array: &&Vec<Value>| {
        !array.is_empty() && array.len() == first.len() && array.iter().all(Value::is_number)
    };
    if arrays.len() < objects.len() {
        return Some("it is an array in some lines only");
    }
    (!arrays.iter().all(is_usable)).then_some("its arrays are not numbers of one length")
}

/// The text of a table.
///
/// # Errors
///
/// It cannot be read, or is of another form: a workbook, a database, UTF-16.
fn text(file: &Path) -> Result<String, ErrorPage> {
    let bytes = data::read_table("the table", file, "a table of text")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Refuses a file whose first bytes say that it is no text: packed, or written by another program.
pub(super) fn refuse_other_form(file: &Path) -> Result<(), ErrorPage> {
    match data::read_table("the file", file, "a table of text") {
        Err(error @ data::Error::WithHelp { .. }) => Err(ErrorPage::from_error(&error)),
        _ => Ok(()),
    }
}

/// True if the csv file `file` lists existing images.
pub(super) fn lists_images(file: &Path) -> bool {
    text(file).is_ok_and(|text| image_table::lists_images(file, &cells(file, &text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::columns::tests::table;

    #[test]
    fn a_target_is_found_by_its_name_or_its_place() {
        let at = |names: &[&str]| {
            let rows = [vec!["1", "2000"], vec!["1", "2010"], vec!["1", "2005"]];
            place(Path::new("x.csv"), &table(names, rows), InitRequest::default())
                .ok()
                .map(|(at, _)| at)
        };
        assert_eq!(at(&["year", "price"]), Some(1));
        // The rows lack its cells.
        assert_eq!(at(&["x", "year", "constant"]), Some(1));
        assert_eq!(at(&["Price", "rooms"]), Some(0));
        assert_eq!(at(&["rooms", "year"]), Some(1));
        assert_eq!(at(&[]), None);
    }

    #[test]
    fn a_date_or_a_name_of_the_row_is_never_the_target() {
        let rows: Vec<(String, String, String)> = (0..30)
            .map(|i| {
                (format!("{}.5", i % 7), format!("n{i}"), format!("2024-01-{:02}", i % 28 + 1))
            })
            .collect();
        let rows = rows.iter().map(|(a, b, c)| vec![a.as_str(), b.as_str(), c.as_str()]);
        let table = table(&["load", "name", "time_hour"], rows);
        let of = |request| Target::of(Path::new("x.csv"), &table, request);
        let found = of(InitRequest::default()).ok().unwrap();
        assert_eq!((found.name.as_str(), found.classify), ("load", false));
        let page = |request| of(request).err().unwrap().to_string();
        let misspelt = page(InitRequest { target: Some("laod"), task: None });
        assert!(misspelt.contains("did you mean `--target load`?"), "{misspelt}");
        let task = Some(TableTask::Classification);
        let page = page(InitRequest { target: Some("load"), task });
        assert!(
            page.contains("needs words or whole numbers, but `load` is `0.5` in line 2"),
            "{page}"
        );
    }

    #[test]
    fn keys_of_objects_and_of_uneven_arrays_are_no_inputs() {
        let (objects, _) = lines(
            "{\"a\": {\"b\": 1}, \"c\": [1, 2], \"d\": [1], \"e\": 1}\n\n\
             {\"a\": 1, \"c\": [1, 2], \"d\": [1, 2], \"e\": [1]}",
        );
        let why = |name: &str| unusable_key(name, &objects);
        assert!(why("a").is_some_and(|why| why.starts_with("it holds objects")));
        assert_eq!((why("c"), why("x")), (None, None));
        assert!(why("d").is_some() && why("e").is_some());
    }

    #[test]
    fn a_table_of_numbers_with_ascending_dates_is_a_series() {
        let season = |name: &str, date: fn(usize) -> String, last: &str| {
            let names = [name, "load", "price"].map(str::to_owned);
            let row = |i| {
                let price = if i == 7 { last } else { "2" };
                csv::StringRecord::from(vec![date(i).as_str(), "1.5", price])
            };
            let rows: Vec<csv::StringRecord> = (0..60).map(row).collect();
            dates_of(&names, &rows).map(|dates| dates.frequency.map_or(1, |it| it.season()))
        };
        let hourly = |i: usize| format!("2024-01-{:02} {:02}:00", i / 24 + 1, i % 24);
        let irregular =
            |i: usize| format!("2024-01-{:02} {:02}:{:02}", i / 24 + 1, i % 24, i * i % 60);
        for name in ["timestamp", "", "ds", "date"] {
            assert_eq!(season(name, hourly, "2"), Some(24), "{name}");
        }
        assert_eq!(
            season("month", |i: usize| format!("{}-{:02}", 1949 + i / 12, i % 12 + 1), "2"),
            Some(12)
        );
        // A cell that is no number is refused with its line; a column of words makes it a table.
        assert_eq!(season("ds", hourly, "632.6*"), Some(24));
        assert_eq!(season("ds", irregular, "2"), None);
        assert_eq!(season("date", irregular, "2"), Some(1));
        assert_eq!(season("date", |i: usize| format!("2024-01-{:02}", i % 28 + 1), "2"), None);
        let names = ["ds", "city"].map(str::to_owned);
        let row = |i| csv::StringRecord::from(vec![hourly(i).as_str(), "Rome"]);
        assert!(dates_of(&names, &(0..60).map(row).collect::<Vec<_>>()).is_none());
    }

    #[test]
    fn windows_hold_two_seasons_and_fit_into_a_tenth_of_the_rows() {
        assert_eq!(window(14_400, 24), (336, 96));
        assert_eq!(window(144, 12), (24, 12));
        assert_eq!(window(60, 12), (15, 6));
        assert_eq!(window(100, 1), (10, 2));
        assert_eq!(window(10_000, 1440), (336, 96));
    }
}
