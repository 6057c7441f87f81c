//! Rows of words -> lines that no terminal cuts.

use crate::record::text::escape;

/// Columns of a terminal that everybody has.
pub(crate) const WIDTH: usize = 80;
/// Spaces between two columns.
const GAP: usize = 2;

/// The rows side by side: the first `names` columns begin below each other, the others end so.
/// Columns for which there is no room go below, with the first column repeated.
pub(crate) fn aligned(rows: &[Vec<String>], names: usize) -> String {
    aligned_to(rows, names, WIDTH)
}

/// Like [`aligned`], in lines of at most `most` columns.
pub(crate) fn aligned_to(rows: &[Vec<String>], names: usize, most: usize) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()).collect();
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length = |column: usize| {
        rows.iter().filter_map(move |row| row.get(column)).map(|cell| cell.chars().count())
    };
    let widths: Vec<usize> = (0..n).map(|column| length(column).max().unwrap_or(0)).collect();
    let parts = parts(&widths, most);
    let line = |row: &Vec<String>, part: &[usize]| {
        let cell = |&column: &usize| match row.get(column) {
            Some(cell) if column < names => format!("{cell:<0$}", widths[column]),
            cell => format!("{:>1$}", cell.map_or("", String::as_str), widths[column]),
        };
        let cells: Vec<String> = part.iter().map(cell).collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_owned() + "\n"
    };
    let part = |part: &Vec<usize>| rows.iter().map(|row| line(row, part)).collect::<String>();
    parts.iter().map(part).collect::<Vec<_>>().join("\n")
}

/// Columns that fit beside each other, each part with the first.
fn parts(widths: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
    let mut used = 0;
    for (column, width) in widths.iter().enumerate() {
        if column > 1 && used + GAP + width > most {
            parts.push(vec![0]);
            used = widths[0];
        }
        used += width + if column == 0 { 0 } else { GAP };
        if let Some(part) = parts.last_mut() {
            part.push(column);
        }
    }
    parts
}

/// A cell on one line.
fn shown(cell: &str) -> String {
    escape(&cell.replace('\n', " ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|&cell| cell.to_owned()).collect()).collect()
    }

    #[test]
    fn names_begin_and_numbers_end_below_each_other() {
        let text = aligned(&rows(&[&["run", "state", "loss"], &["a", "killed", "1.50"]]), 2);
        assert_eq!(text, "run  state   loss\na    killed  1.50\n");
        assert_eq!(aligned(&rows(&[&["a\x1b[2J", "b\nc"]]), 2), "a\\u{1b}[2J  b c\n");
        assert_eq!(aligned(&[], 1), "\n".repeat(0));
    }

    #[test]
    fn what_is_too_wide_goes_below() {
        let wide = "x".repeat(40);
        let text = aligned(&rows(&[&["key", &wide, &wide], &["a", "1", "2"]]), 1);
        assert_eq!(text.lines().count(), 5);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("key")).count(), 2);
    }
}
