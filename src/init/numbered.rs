//! Tables whose columns have numbers for names, such as those of sensors.

use std::collections::BTreeSet;

/// True if a first line of numbers names the columns and is no row: they count the columns, or are
/// whole and distinct above decimals, and outside of the range of each.
pub(super) fn are_names(first: &[String], rows: &[csv::StringRecord]) -> bool {
    let numbers: Vec<u64> = first.iter().filter_map(|name| name.parse().ok()).collect();
    let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
    if first.len() < 2 || distinct.len() < first.len() {
        return false;
    }
    let columns: Vec<Vec<f64>> = (0..first.len()).map(|column| values(column, rows)).collect();
    if count_up(first) && !could_be_rows(first.len(), rows) {
        return true;
    }
    let mut below = numbers.iter().zip(&columns);
    columns.iter().all(|values| has_decimals(values))
        && (count_up(first) || below.all(|(&number, values)| is_outside(number as f64, values)))
}

/// The numbers of a column.
fn values(column: usize, rows: &[csv::StringRecord]) -> Vec<f64> {
    let cells = rows.iter().filter_map(|row| row.get(column));
    cells.filter_map(|cell| cell.parse().ok()).filter(|value: &f64| value.is_finite()).collect()
}

/// True if a first row that counts the `n` columns could be one of these rows: they are few whole
/// numbers, or ranks of as many things.
fn could_be_rows(n: usize, rows: &[csv::StringRecord]) -> bool {
    const MANY: usize = 5;
    let are = |is_so: &dyn Fn(usize) -> bool| {
        rows.iter().flatten().all(|cell| cell.parse::<usize>().is_ok_and(is_so))
    };
    if n < MANY { are(&|_| true) } else { are(&|number| number <= n) }
}

fn has_decimals(values: &[f64]) -> bool {
    values.iter().any(|value| value.fract() != 0.0)
}

fn is_outside(number: f64, values: &[f64]) -> bool {
    values.iter().all(|&value| value < number) || values.iter().all(|&value| value > number)
}

/// True if the numbers only count the columns, as pandas does for columns without names.
pub(super) fn count_up(first: &[String]) -> bool {
    let is_from = |begin: usize| {
        first.iter().zip(begin..).all(|(name, number)| name.parse::<usize>() == Ok(number))
    };
    is_from(0) || is_from(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(first: &[&str]) -> Vec<String> {
        first.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn whole_numbers_that_cannot_be_values_are_names() {
        let check = |first: [&str; 2], rows: [[&str; 2]; 2]| {
            are_names(&names(&first), &rows.map(|row| csv::StringRecord::from(row.to_vec())))
        };
        let speeds = [["64.375", "67.5"], ["62.5", "68.25"]];
        assert!(check(["773869", "767541"], speeds));
        assert!(!check(["63", "767541"], speeds), "a speed like others");
        assert!(!check(["773869", "773869"], speeds), "not distinct");
        assert!(!check(["773869.5", "767541"], speeds), "not whole");
        assert!(!check(["773869", "767541"], [["64", "67.5"], ["62", "68.25"]]), "no decimals");
        assert!(!check(["773869", "767541"], [["nan", "67.5"], ["inf", "68.25"]]), "no numbers");
        assert!(check(["0", "1"], [["-0.5", "0.5"], ["0.5", "1.5"]]), "counted");
        assert!(check(["0", "1"], [["-3", "7"], ["4", "-1"]]), "counted above whole numbers");
        assert!(check(["0", "1"], [["0.5", "a"], ["1.5", "b"]]), "counted above words");
        assert!(!check(["0", "1"], [["1", "0"], ["0", "0"]]), "may be a row itself");
        assert!(!check(["1", "2"], [["3", "4"], ["5", "6"]]), "may be a row itself");
        let wide = |row: &str| {
            let row = || csv::StringRecord::from(row.split(' ').collect::<Vec<_>>());
            are_names(&names(&["0", "1", "2", "3", "4"]), &[row(), row()])
        };
        assert!(wide("0 255 17 3 1"), "pixels");
        assert!(!wide("4 2 3 1 0"), "places");
    }

    #[test]
    fn columns_are_counted_from_0_or_1() {
        assert!(count_up(&names(&["0", "1", "2"])) && count_up(&names(&["1", "2"])));
        assert!(!count_up(&names(&["1", "3"])) && !count_up(&names(&["a", "b"])));
    }
}
