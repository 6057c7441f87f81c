//! The header line of a table, whatever its columns are for.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;

use crate::error::is_number;
use crate::sources::tables::column::BadCell;
use crate::sources::tables::csv_rows::delimiter;

/// Refuses two columns of one name.
pub(crate) fn unique(header: &[String]) -> Result<(), BadCell> {
    let mut seen = BTreeMap::new();
    let twice =
        header.iter().enumerate().find_map(|(at, name)| Some((seen.insert(name, at)?, at, name)));
    let Some((first, second, name)) = twice else { return Ok(()) };
    let help = if is_number(name) {
        "write the column names into the first line, if the header line is missing"
    } else {
        "give each column a name of its own"
    };
    let what = format!("columns {} and {} are both called `{name}`", first + 1, second + 1);
    Err(BadCell { what, help: Some(help.to_owned()) })
}

/// Refuses a row that has not as many cells as the header, with what to do if it has more, and if
/// it has fewer.
pub(crate) fn fits(
    cells: usize,
    header: &[String],
    [more, fewer]: [&str; 2],
) -> Result<(), BadCell> {
    let help = match cells.cmp(&header.len()) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => more,
        Ordering::Less => fewer,
    };
    Err(BadCell { what: ragged(cells, header), help: Some(help.to_owned()) })
}

/// That a row has not as many cells as the header.
pub(crate) fn ragged(cells: usize, header: &[String]) -> String {
    format!("{cells} cells, but the header has {}", header.len())
}

/// Remedy for the table at `path` whose header is one cell in which another sign separates the
/// names.
pub fn other_separator(path: &Path, header: &[String]) -> Option<String> {
    let [only] = header else { return None };
    let others = [(b'\t', "tabs"), (b';', "`;`"), (b'|', "`|`"), (b',', "commas")];
    let is_there = |byte: u8| byte != delimiter(path) && only.as_bytes().contains(&byte);
    let (byte, by) = others.into_iter().find(|(byte, _)| is_there(*byte))?;
    Some(match byte {
        b'\t' => "separated by tabs? Call the file `.tsv`".to_owned(),
        b',' => "separated by commas? Call the file `.csv`".to_owned(),
        byte => format!(
            "separated by {by}? Save it with commas between the cells and points in the numbers; in \
             Python, `pandas.read_csv(\"{0}\", sep=\"{1}\"{2}).to_csv(\"{0}\", index=False)`",
            path.display(),
            char::from(byte),
            if byte == b';' { ", decimal=\",\"" } else { "" },
        ),
    })
}
