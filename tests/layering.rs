//! The house rules that a text scan can check: a module uses only modules declared above it in `src/lib.rs`,
//! nothing is left to do, and no file is a novel.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Lines at which a file must be cut.
const LONGEST: usize = 600;

/// Every source file: its path below `src`, and its text.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut open = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(&root).unwrap().to_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    assert!(found.len() > 20, "the sources were not found");
    found
}

/// Modules in reading order.
fn modules() -> Vec<String> {
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let declared = |line: &str| {
        let name = line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')?;
        Some(name.to_owned())
    };
    lib.lines().filter_map(declared).collect()
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

/// Rooms named in a line of code as `crate::room`.
fn used(line: &str) -> Vec<String> {
    let word = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    code(line)
        .split("crate::")
        .skip(1)
        .flat_map(|rest| match rest.strip_prefix('{') {
            // `use crate::{a::X, b}`: every first word after a brace or a comma of the outer level.
            Some(group) => {
                let mut depth = 0;
                group
                    .split(|c| {
                        depth += i32::from(c == '{') - i32::from(c == '}');
                        c == ',' && depth == 0
                    })
                    .map(|part| word(part.trim()))
                    .collect()
            }
            None => vec![word(rest)],
        })
        .collect()
}

#[test]
fn a_module_uses_only_modules_declared_above_it() {
    let modules = modules();
    let position = |name: &str| modules.iter().position(|module| module == name);
    let mut broken = Vec::new();
    for (path, text) in sources() {
        let first = path.iter().next().unwrap().to_string_lossy().into_owned();
        let Some(own) = position(first.trim_end_matches(".rs")) else {
            assert!(["lib.rs", "main.rs"].contains(&first.as_str()), "{first} is not in lib.rs");
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            for room in used(line) {
                if position(&room).is_some_and(|other| other > own) {
                    broken.push(format!("{}:{}: `{room}` is below", path.display(), number + 1));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn nothing_is_left_to_do() {
    let forbidden = ["TODO", "FIXME", "todo!", "dbg!"];
    for (path, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            let found = forbidden.iter().find(|word| line.contains(*word));
            assert!(found.is_none(), "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

#[test]
fn no_file_is_longer_than_one_sitting() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= LONGEST, "{} has {lines} lines, at most {LONGEST}", path.display());
    }
}

#[test]
fn the_scan_sees_every_way_to_name_a_room() {
    assert_eq!(used("use crate::plan::{Plan, Facts};"), ["plan"]);
    assert_eq!(used("use crate::{plan, units::{Rank, Bytes}, data};"), ["plan", "units", "data"]);
    assert_eq!(used("let x: crate::data::Batch = crate::nn::f(); // crate::cli"), ["data", "nn"]);
    assert_eq!(used("/// [`crate::cli`]"), Vec::<String>::new());
}
