//! The house rules that a text scan can check: a module uses only modules declared above it in its
//! package's `lib.rs`, and in [`ORDERED_ROOMS`] also within its room; nothing is left to do.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Columns of a line, as `rustfmt.toml` has them for code.
const MAX_COLUMNS: usize = 100;

/// Rooms within which a module uses only modules declared above it, by their package.
const ORDERED_ROOMS: [(&str, &str); 8] = [
    ("crates/host/src", "transport"),
    ("crates/train/src", "collective"),
    ("crates/run/src", "launch"),
    ("crates/data/src", ""),
    ("crates/trajectories/src", ""),
    ("crates/run/src", "session"),
    ("crates/speech/src", ""),
    ("src", "cli"),
];

/// Packages of the workspace, by the folder of their sources: the program first.
fn packages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap();
    let mut found: Vec<_> = crates.map(|entry| entry.unwrap().path().join("src")).collect();
    found.sort();
    found.insert(0, root.join("src"));
    found
}

/// Every source file of a package: its path below `root`, and its text.
fn sources(root: &Path) -> Vec<(PathBuf, String)> {
    let mut open = vec![root.to_owned()];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    assert!(found.len() > 2, "the sources were not found");
    found
}

/// The path of a source file below the repository.
fn below_root(path: &Path) -> String {
    path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_string_lossy().into_owned()
}

/// Source files of all packages, by their path.
fn all_sources() -> impl Iterator<Item = (PathBuf, String)> {
    packages().into_iter().flat_map(|root| {
        sources(&root).into_iter().map(move |(path, text)| (root.join(path), text))
    })
}

/// Modules in reading order, those that a line of `lib.rs` takes from another package among them.
fn modules(lib: &str) -> Vec<String> {
    lib.lines().flat_map(declared).collect()
}

/// Modules that a line of `lib.rs` declares or takes from another package.
fn declared(line: &str) -> Vec<String> {
    let line = line.trim_start_matches("pub ");
    let own = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
    let taken = line.strip_prefix("use ").and_then(|rest| rest.strip_suffix(';'));
    let of_package =
        |(package, _): &(&str, &str)| OTHERS.contains(&format!("{package}::").as_str());
    match (own, taken.and_then(|path| path.split_once("::")).filter(of_package)) {
        (Some(name), _) => vec![name.to_owned()],
        (None, Some((_, names))) => {
            let names = names.trim_matches(['{', '}']).split(", ");
            names.map(str::to_owned).collect()
        }
        (None, None) => Vec::new(),
    }
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

/// Packages whose modules stand in the order of the program's own.
const OTHERS: [&str; 11] = [
    "candle_train::",
    "ddprun_cluster::",
    "ddprun_dashboard::",
    "ddprun_data::",
    "ddprun_host::",
    "ddprun_plan::",
    "ddprun_run::",
    "ddprun_speech::",
    "ddprun_train::",
    "ddprun_trajectories::",
    "train_numbers::",
];

/// Rooms named in a line of code as `crate::room`, or by the name of their package.
fn used(line: &str) -> Vec<String> {
    let word = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    OTHERS
        .iter()
        .fold(code(line).to_owned(), |line, package| line.replace(package, "crate::"))
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

/// Uses of a package's modules by modules that are declared above them.
fn upward(root: &Path) -> Vec<String> {
    let modules = modules(&fs::read_to_string(root.join("lib.rs")).unwrap());
    let position = |name: &str| modules.iter().position(|module| module == name);
    let mut broken = Vec::new();
    for (path, text) in sources(root) {
        let first = path.iter().next().unwrap().to_string_lossy().into_owned();
        let Some(own) = position(first.trim_end_matches(".rs")) else {
            assert!(["lib.rs", "main.rs"].contains(&first.as_str()), "{first} is not in lib.rs");
            continue;
        };
        for (number, line) in untested(&path, &text).lines().enumerate() {
            for room in used(line) {
                if position(&room).is_some_and(|other| other > own) {
                    let path = root.join(&path);
                    broken.push(format!("{}:{}: `{room}` is below", path.display(), number + 1));
                }
            }
        }
    }
    broken
}

#[test]
fn a_module_uses_only_modules_declared_above_it() {
    let broken: Vec<_> = packages().iter().flat_map(|root| upward(root)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// What it needs of the world comes in as `Facts`.
#[test]
fn plan_looks_at_nothing_but_its_arguments() {
    let world = ["std::fs", "std::net", "std::env", "std::process", "Instant::now", "SystemTime"];
    let is_plan = |path: &Path| path.to_string_lossy().contains("src/plan/");
    for (path, text) in all_sources().filter(|(path, _)| is_plan(path)) {
        let found = world.iter().find(|word| text.lines().any(|line| code(line).contains(*word)));
        assert!(found.is_none(), "{} uses {}", path.display(), found.unwrap());
    }
}

/// A file of the repository.
fn source(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The file that declares the modules of a folder: `mod.rs`, or `lib.rs` of a package.
fn facade(package: &Path, module: &[String]) -> Option<String> {
    let name = if module.is_empty() { "lib.rs" } else { "mod.rs" };
    fs::read_to_string(package.join(module.join("/")).join(name)).ok()
}

/// The modules that a file declares, in order.
fn declared_in(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let (_, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
        let is_module = !line.contains("use ") && !line.starts_with("//");
        is_module.then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// The module path of a source file: `["launch", "parent", "watch"]`.
fn module_path(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| part != "mod").collect()
}

/// Paths of modules and items in `use` declarations and expressions of a room: `["launch",
/// "parent", "watch", "Watch"]`.
fn used_paths(text: &str) -> Vec<Vec<String>> {
    let code = text.lines().map(code).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let path: String = rest.chars().take_while(|c| is_path(*c)).collect();
        let names: Vec<String> =
            path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        match rest[path.len()..].strip_prefix('{') {
            // `use crate::launch::{Nodes, parent::Start}`
            Some(group) => found.extend(group.split('}').next().unwrap().split(',').map(|name| {
                let inner = name.trim().split("::").filter(|name| !["", "self"].contains(name));
                names.iter().cloned().chain(inner.map(str::to_owned)).collect()
            })),
            None => found.push(names),
        }
    }
    found
}

/// The path of an item that the `mod.rs` of its folder re-exports: that of the module that defines
/// it. One of another package stays as it is.
fn resolved(package: &Path, path: &[String]) -> Vec<String> {
    let mut path = path.to_vec();
    let mut depth = 0;
    while depth < path.len() {
        let Some(facade) = facade(package, &path[..depth]) else { break };
        let name = path[depth].clone();
        if !declared_in(&facade).contains(&name) {
            let module = exporter(&facade, &name);
            if module.is_none() && depth == 0 {
                break;
            }
            let module = module.unwrap_or_else(|| {
                unreachable!("`{}` is neither a module nor re-exported", path.join("::"))
            });
            path.splice(depth..depth, module);
        }
        depth += 1;
    }
    path
}

/// The module from which a `mod.rs` re-exports `name`.
fn exporter(facade: &str, name: &str) -> Option<Vec<String>> {
    let exports = facade.split(';').filter_map(|statement| statement.split_once("use "));
    for (_, export) in exports {
        let Some((module, names)) = export.rsplit_once("::") else { continue };
        let mut names = names.trim_matches(['{', '}']).split(',').map(str::trim);
        if names.any(|export| export == name || export.ends_with(&format!(" as {name}"))) {
            return Some(module.split("::").map(str::to_owned).collect());
        }
    }
    None
}

/// The module that `own` uses although it is declared below, if `path` leads there.
fn below(package: &Path, own: &[String], path: &[String]) -> Option<String> {
    let path = resolved(package, path);
    let common = own.iter().zip(&path).take_while(|(own, other)| own == other).count();
    let order = declared_in(&facade(package, &path[..common]).unwrap());
    let position = |name: Option<&String>| order.iter().position(|module| Some(module) == name);
    let (own, other) = (position(own.get(common))?, position(path.get(common))?);
    (other > own).then(|| path.join("::"))
}

/// A file without its tests, which may use anything.
fn untested(path: &Path, text: &str) -> String {
    if path.to_string_lossy().ends_with("tests.rs") {
        return String::new();
    }
    let are_tests = |(at, _): &(usize, &str)| {
        text[*at..].lines().nth(1).is_some_and(|line| line.ends_with("mod tests {"))
    };
    let end = text.match_indices("#[cfg(test)]\n").find(are_tests);
    text[..end.map_or(text.len(), |(at, _)| at)].to_owned()
}

#[test]
fn within_an_ordered_room_a_module_uses_only_modules_declared_above_it() {
    let mut broken = Vec::new();
    for (package, room) in ORDERED_ROOMS {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(package);
        let is_inside = |path: &Path| room.is_empty() || path.starts_with(room);
        for (path, text) in sources(&root).into_iter().filter(|(path, _)| is_inside(path)) {
            let own = module_path(&path);
            let is_of_room = |used: &Vec<String>| room.is_empty() || used.first() == own.first();
            let used = used_paths(&untested(&path, &text)).into_iter().filter(is_of_room);
            let used = used.filter(|used| !used.is_empty());
            for other in used.filter_map(|used| below(&root, &own, &used)) {
                broken.push(format!("{package}/{}: `{other}` is declared below", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// What is done in a few places alone: words of it, where it may stand, and why.
const RESERVED: [(&[&str], &[&str], &str); 3] = [
    (
        &[
            "fs::write(",
            "fs::rename(",
            "fs::create_dir",
            "fs::create_dir_all",
            "fs::remove_dir",
            "fs::remove_dir_all",
            "fs::remove_file",
            "fs::copy(",
            "fs::hard_link(",
            "File::create",
            "File::create_new",
            "fs::symlink(",
            ".create(true)",
            ".create_new(true)",
        ],
        // The last opens what a rank says on its way to the terminal.
        &[
            "crates/host/src/files.rs",
            "crates/host/src/files/",
            "crates/host/src/failpoint/",
            "crates/run/src/launch/parent/spawn.rs",
        ],
        "only `files` writes: each file is complete or absent",
    ),
    (
        &["env::var", "env::var_os", "env::vars", "env::vars_os", "env::set_var"],
        &[
            "src/cli/",
            "crates/run/src/launch/",
            "crates/host/src/failpoint/",
            "crates/host/src/files/user_cache.rs",
        ],
        "only `cli` and `launch` read the environment, beside the user's cache folder",
    ),
    (
        &["io::stdout()", "io::stderr()"],
        &["src/cli/", "crates/run/src/record/", "crates/run/src/sweep/view.rs"],
        "only `record`, `sweep::view` and `cli` print",
    ),
];

/// Whether a line has this word, and not as a part of another one.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let after = &line[at + word.len()..];
        let goes_on = word.ends_with(is_part) && after.starts_with(is_part);
        !goes_on && !line[..at].ends_with(is_part)
    })
}

#[test]
fn what_is_reserved_to_a_room_is_done_in_no_other() {
    let mut broken = Vec::new();
    // These know no `files`: one writes kernels into a cache, the other notes of tests.
    let others = ["crates/candle-train/", "crates/test-support/"];
    for (path, text) in all_sources() {
        let (name, text) = (below_root(&path), untested(&path, &text));
        if others.iter().any(|other| name.starts_with(other)) {
            continue;
        }
        for (words, places, rule) in RESERVED {
            if name.contains("tests/") || places.iter().any(|place| name.starts_with(place)) {
                continue;
            }
            let does = |line: &&str| words.iter().any(|word| has_word(code(line), word));
            broken.extend(text.lines().filter(does).map(|line| format!("{name}: {line} ({rule})")));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn nothing_is_left_to_do() {
    let forbidden = ["TODO", "FIXME", "todo!", "dbg!"];
    for (path, text) in all_sources() {
        for (number, line) in text.lines().enumerate() {
            let found = forbidden.iter().find(|word| line.contains(*word));
            assert!(found.is_none(), "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

/// The text of a comment that fills the line, without its slashes.
fn comment(line: &str) -> Option<&str> {
    Some(line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).trim_start())
}

#[test]
#[ignore = "prose, which `just prose` looks at"]
fn no_comment_is_wider_than_a_line_of_code() {
    for (path, text) in all_sources() {
        // Tables, addresses, diagrams and examples are not wrapped.
        let mut is_verbatim = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = comment(line) else { continue };
            is_verbatim ^= comment.starts_with("```");
            let is_wide = line.chars().count() > MAX_COLUMNS && !comment.starts_with(['|', '<']);
            assert!(!is_wide || is_verbatim, "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

/// Prefixes of the functions of CUDA's libraries.
const CUDA: [&str; 6] = ["cu", "cublas", "cudnn", "curand", "nccl", "nvrtc"];

/// Functions of CUDA's libraries that a line of code calls by their own names.
fn cuda_calls(line: &str) -> Vec<&str> {
    let before_brackets = code(line).match_indices('(').map(|(at, _)| &line[..at]);
    let words = before_brackets
        .filter_map(|text| text.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next());
    let is_cuda = |word: &&str| {
        let mut rest = CUDA.iter().filter_map(|prefix| word.strip_prefix(prefix));
        rest.any(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    words.filter(is_cuda).collect()
}

/// Without it the program does not link, which nothing but a build with the feature `cuda` tells.
#[test]
fn every_function_of_cuda_that_is_called_is_defined_where_the_libraries_are_opened() {
    let defined = source("crates/candle-train/src/cuda_libraries/functions.rs");
    let defined: Vec<&str> = defined.split_whitespace().collect();
    let mut calls = 0;
    for (path, text) in all_sources() {
        for call in text.lines().flat_map(cuda_calls) {
            assert!(defined.contains(&call), "{} calls {call}", path.display());
            calls += 1;
        }
    }
    assert!(calls > 10, "the calls were not found");
}

#[test]
fn the_scan_sees_calls_of_cuda() {
    let line = "    unsafe { sys::cuInit(custom(0), cublasSetWorkspace_v2(x)) } // cuGone()";
    assert_eq!(cuda_calls(line), ["cuInit", "cublasSetWorkspace_v2"]);
}

#[test]
fn modules_of_other_packages_have_their_place_in_the_order() {
    let lib = "pub use train_numbers::{rng, units};\nmod files;\nuse candle_train::nn;\npub mod cli;\n\
               pub use files::Lines;";
    assert_eq!(modules(lib), ["rng", "units", "files", "nn", "cli"]);
}

#[test]
fn the_scan_sees_every_way_to_name_a_room() {
    assert_eq!(used("use crate::plan::{Plan, Facts};"), ["plan"]);
    assert_eq!(used("use crate::{plan, units::{Rank, Bytes}, data};"), ["plan", "units", "data"]);
    assert_eq!(used("let x: crate::data::Batch = crate::nn::f(); // crate::cli"), ["data", "nn"]);
    assert_eq!(used("use candle_train::ops;"), ["ops"]);
    assert_eq!(used("/// [`crate::cli`]"), Vec::<String>::new());
}

#[test]
fn the_scan_sees_every_way_to_name_a_module_of_a_room() {
    let paths = |text: &str| -> Vec<String> {
        used_paths(text).iter().map(|path| path.join("::")).collect()
    };
    assert_eq!(paths("use crate::a::b::C;"), ["a::b::C"]);
    assert_eq!(paths("use crate::a::{\n    self, B, c::D,\n};"), ["a", "a::B", "a::c::D", "a"]);
    assert_eq!(paths("let x = crate::a::f(); // crate::b"), ["a::f"]);
    assert_eq!(module_path(Path::new("launch/parent/mod.rs")), ["launch", "parent"]);
    assert_eq!(declared_in("mod a;\npub(in crate::b) mod c;\npub use d::E;"), ["a", "c"]);
}
