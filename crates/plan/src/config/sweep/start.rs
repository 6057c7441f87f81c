//! `[[sweep.start]]`: settings that are tried first.

use crate::config::Loaded;
use crate::config::keys::{join, path_of};
use crate::config::problem::Problems;
use crate::config::reader::Reader;
use crate::config::sweep::{Json, Parameter, Sweep, Values};

/// Checks that each setting is one that the search could draw, but for what it leaves out, and that
/// the experiment takes it, as `load` tells.
pub(super) fn check(
    reader: &mut Reader,
    sweep: &Sweep,
    load: impl Fn(&Values) -> Result<Loaded, Problems>,
) {
    for (index, values) in sweep.search.start.iter().enumerate() {
        let table = join(&path_of("sweep.start"), &index.to_string());
        let n_before = reader.problems.len();
        for (key, value) in values {
            let place = written_at(reader, &table, key);
            match misfit(&sweep.search.parameters, values, key, value) {
                Some(Misfit::Unknown) => {
                    let help = "add it to `sweep.parameters`, or to the base for all trials";
                    reader.wrong_help(
                        &place,
                        format!("`{key}` is not a parameter of the search"),
                        help,
                    );
                }
                Some(Misfit::Outside) => {
                    let what = format!("{value} is not in the search space of `{key}`");
                    reader.wrong_help(&place, what, "widen the space, or choose a value in it");
                }
                Some(Misfit::Inactive) => {
                    let what = format!("`{key}` has no meaning here: its `when` does not hold");
                    reader.wrong_help(&place, what, "remove it, or set what it depends on");
                }
                None => {}
            }
        }
        if reader.problems.len() > n_before {
            continue;
        }
        let problems = load(values).err();
        for problem in problems.iter().flat_map(Problems::iter) {
            let is_own = values.iter().any(|(key, _)| key == problem.key());
            let place =
                if is_own { written_at(reader, &table, problem.key()) } else { table.clone() };
            let what = format!("with these values, `{}` {}", problem.key(), problem.what());
            let blamed =
                reader.problem(&place, what).maybe_help(problem.remedy().map(str::to_owned));
            reader.problems.push(blamed);
        }
    }
}

/// Where a key of a setting stands: in quotes, or as tables.
fn written_at(reader: &Reader, table: &[String], key: &str) -> Vec<String> {
    let quoted = join(table, key);
    if reader.get(&quoted).is_some() {
        return quoted;
    }
    table.iter().cloned().chain(path_of(key)).collect()
}

/// Why the search could not draw a value.
enum Misfit {
    Unknown,
    Outside,
    Inactive,
}

fn misfit(parameters: &[Parameter], values: &Values, key: &str, value: &Json) -> Option<Misfit> {
    let mut entries = parameters.iter().filter(|parameter| parameter.key == key).peekable();
    if entries.peek().is_none() {
        return Some(Misfit::Unknown);
    }
    let mut active = entries.filter(|parameter| parameter.is_active(values)).peekable();
    if active.peek().is_none() {
        return Some(Misfit::Inactive);
    }
    (!active.any(|parameter| parameter.domain.contains(value))).then_some(Misfit::Outside)
}
