//! The header line of a table, whatever its columns are for.

use std::collections::BTreeMap;
use std::path::Path;

use crate::data::error::is_number;
use crate::data::sources::tables::column::BadCell;
use crate::data::sources::tables::csv_rows::delimiter;

/// Refuses two columns of one name.
///
/// # Errors
///
/// The places of both.
pub(in crate::data) fn unique(header: &[String]) -> Result<(), BadCell> {
    let mut seen = BTreeMap::new();
    let twice =
        header.iter().enumerate().find_map(|(at, name)| Some((seen.insert(name, at)?, at, name)));
    let Some((first, second, name)) = twice else { return Ok(()) };
    let help = if is_number(name) {
        "has it no header line? Write the names of its columns into the first line"
    } else {
        "give each column a name of its own"
    };
    let what = format!("columns {} and {} are both called `{name}`", first + 1, second + 1);
    Err(BadCell { what, help: Some(help.to_owned()) })
}

/// What to do about the table at `path` whose header is one cell in which another sign separates
/// the names.
pub(in crate::data) fn separator(path: &Path, header: &[String]) -> Option<String> {
    let [only] = header else { return None };
    let others = [(b'\t', "tabs"), (b';', "`;`"), (b'|', "`|`"), (b',', "commas")];
    let is_there = |byte: u8| byte != delimiter(path) && only.as_bytes().contains(&byte);
    let (byte, by) = others.into_iter().find(|(byte, _)| is_there(*byte))?;
    Some(match byte {
        b'\t' => "separated by tabs? Call the file `.tsv`".to_owned(),
        b',' => "separated by commas? Call the file `.csv`".to_owned(),
        _ => format!(
            "separated by {by}? Save it with commas between the cells and points in the numbers"
        ),
    })
}
