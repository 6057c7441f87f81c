//! Tables of an evaluation beside its metrics, as text.

use std::fmt::Write;

use crate::record::text::loss;
use crate::terminal::escape_name;
use crate::worker::{ClassDetails, Details, TargetDetails, WorstSample};

/// Most classes that have a line each, and most that have a confusion matrix.
const MAX_CLASSES: usize = 100;
const MAX_MATRIX_CLASSES: usize = 12;
/// Letters of a class above a column of the matrix.
const MAX_HEAD_LENGTH: usize = 12;
/// Most pairs of classes that are taken for each other.
const MAX_PAIRS: usize = 10;

/// A table of the classes, the confusions between them, and the worst samples, each if there is
/// one.
pub(crate) fn of(details: &Details) -> String {
    let (classes, targets) = (classes(details), targets(details));
    let parts = [classes, targets, square(details), pairs(details), worst(details)];
    parts.iter().filter(|part| !part.is_empty()).flat_map(|part| ["\n", part]).collect()
}

/// Width of a column of names below `head`.
fn column<'a>(names: impl Iterator<Item = &'a String> + Clone, head: &str) -> usize {
    let widths = names.map(|name| escape_name(name).chars().count());
    widths.chain([head.chars().count()]).max().unwrap_or(0)
}

fn classes(Details { split, classes, .. }: &Details) -> String {
    if classes.is_empty() {
        return String::new();
    }
    let head = format!("{split}: class");
    let width = column(classes.iter().map(|class| &class.class), &head);
    let mut text = format!("{head:width$}  samples  precision  recall      f1   auroc      ap\n");
    for found in classes.iter().take(MAX_CLASSES) {
        let ClassDetails { class, samples, precision, recall, f1, .. } = found;
        let share =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
        let (auroc, ap) = (share(found.auroc), share(found.average_precision));
        let class = escape_name(class);
        let _ = writeln!(
            text,
            "{class:width$}  {samples:7}     {precision:.4}  {recall:.4}  {f1:.4}  {auroc:>6}  \
             {ap:>6}"
        );
    }
    if classes.len() > MAX_CLASSES {
        let _ = writeln!(text, "... and {} more: see --json", classes.len() - MAX_CLASSES);
    }
    text
}

/// Errors of each predicted number.
fn targets(Details { split, targets, .. }: &Details) -> String {
    if targets.is_empty() {
        return String::new();
    }
    let head = format!("{split}: target");
    let width = column(targets.iter().map(|target| &target.target), &head);
    let mut text = format!("{head:width$}         mae        rmse       r2\n");
    for TargetDetails { target, mae, rmse, r2 } in targets.iter().take(MAX_CLASSES) {
        let (target, mae, rmse) = (escape_name(target), loss(*mae), loss(*rmse));
        let _ = writeln!(text, "{target:width$}  {mae:>10}  {rmse:>10}  {r2:7.4}");
    }
    if targets.len() > MAX_CLASSES {
        let _ = writeln!(text, "... and {} more: see --json", targets.len() - MAX_CLASSES);
    }
    text
}

/// The whole confusion matrix of few classes.
fn square(Details { split, classes, confusion, .. }: &Details) -> String {
    if confusion.is_empty() || confusion.len() > MAX_MATRIX_CLASSES {
        return String::new();
    }
    let head = format!("{split}: true \\ predicted");
    let width = column(classes.iter().map(|class| &class.class), &head);
    let most = confusion.iter().flatten().max().copied().unwrap_or(0).to_string().len();
    let names: Vec<String> = classes.iter().map(|class| shortened(&class.class)).collect();
    let cells: Vec<usize> = names.iter().map(|name| name.chars().count().max(most)).collect();
    let mut text = format!("{head:width$}");
    for (name, cell) in names.iter().zip(&cells) {
        let _ = write!(text, "  {name:>cell$}");
    }
    text.push('\n');
    for (class, row) in classes.iter().zip(confusion) {
        let _ = write!(text, "{:width$}", escape_name(&class.class));
        for (n, cell) in row.iter().zip(&cells) {
            let _ = write!(text, "  {n:cell$}");
        }
        text.push('\n');
    }
    text
}

/// The name of a class as the head of a narrow column.
fn shortened(name: &str) -> String {
    let name = escape_name(name);
    if name.chars().count() <= MAX_HEAD_LENGTH {
        return name.into_owned();
    }
    let begin: String = name.chars().take(MAX_HEAD_LENGTH - 2).collect();
    begin + ".."
}

/// The classes that are taken for others most often.
fn pairs(Details { split, classes, confusion, .. }: &Details) -> String {
    let mut pairs: Vec<(u64, usize, usize)> = Vec::new();
    for (label, row) in confusion.iter().enumerate() {
        let wrong = row.iter().enumerate().filter(|(answer, n)| **n > 0 && *answer != label);
        pairs.extend(wrong.map(|(answer, n)| (*n, label, answer)));
    }
    if pairs.is_empty() || confusion.len() <= MAX_MATRIX_CLASSES {
        return String::new();
    }
    pairs.sort_by_key(|&(n, label, answer)| (std::cmp::Reverse(n), label, answer));
    let mut text = format!("{split}: most often taken for another\n");
    for (n, label, answer) in pairs.into_iter().take(MAX_PAIRS) {
        let [label, answer] =
            [label, answer].map(|class| escape_name(&classes[class].class).into_owned());
        let _ = writeln!(text, "{n:7}  {label} -> {answer}");
    }
    text
}

fn worst(Details { split, worst, .. }: &Details) -> String {
    if worst.is_empty() {
        return String::new();
    }
    let mut text = format!("{split}: largest losses\n");
    for WorstSample { sample, loss: value, class, answer } in worst {
        let classes = match (class, answer) {
            (Some(class), Some(answer)) => {
                format!("  {} -> {}", escape_name(class), escape_name(answer))
            }
            _ => String::new(),
        };
        let _ = writeln!(text, "{:>9}  {}{classes}", loss(*value), escape_name(sample));
    }
    text
}
