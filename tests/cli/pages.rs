//! The pages themselves: links, paths, names and lengths.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ddprun::config::kind::Choice;
use ddprun::kinds::Kinds;

use crate::docs::{blocks, project, read};
use crate::harness::lab::children;

/// All pages, as paths from the project's folder.
fn pages() -> Vec<String> {
    let mut found: Vec<String> = ["", "docs", "docs/learn"]
        .iter()
        .flat_map(|folder| children(&project(folder)))
        .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
        .map(|path| path.strip_prefix(project("")).unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    assert!(found.len() > 15, "the pages were not found: {found:?}");
    found
}

#[test]
fn the_readme_begins_with_two_commands() {
    let first = blocks(&read("README.md")).swap_remove(0).text;
    assert_eq!(first, "cargo run --release -- experiments/quickstart.toml\ncargo test\n");
}

#[test]
fn every_page_links_to_files_and_sections_that_exist() {
    for page in pages() {
        let text = read(&page);
        let folder = project(&page).parent().unwrap().to_owned();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { project(&page) } else { folder.join(file) };
            assert!(target.exists(), "{page} links to `{link}`");
            let is_there = section.is_empty() || sections(&target).any(|name| name == section);
            assert!(is_there, "{page} links to `{link}`, which has no such section");
        }
    }
}

/// The names by which links reach the headings of a page.
fn sections(page: &Path) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(page).unwrap();
    let headings: Vec<String> =
        text.lines().filter(|line| line.starts_with('#')).map(anchor).collect();
    headings.into_iter()
}

/// `## Where to go next` -> `where-to-go-next`
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    words.chars().filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect()
}

#[test]
fn every_page_is_in_the_index() {
    let index = read("docs/README.md");
    for page in pages().iter().filter(|page| *page != "docs/README.md") {
        let link =
            page.strip_prefix("docs/").map_or(format!("(../{page})"), |name| format!("({name})"));
        assert!(index.contains(&link), "docs/README.md does not link to {page}");
    }
}

#[test]
fn every_action_of_a_workflow_is_pinned_by_its_commit() {
    let mut n_actions = 0;
    for path in children(&project(".github/workflows")) {
        let text = fs::read_to_string(&path).unwrap();
        serde_saphyr::from_str::<serde_json::Value>(&text).unwrap();
        for line in text.lines() {
            let Some((_, action)) = line.split_once("uses: ") else { continue };
            let (place, version) = action.split_once(" # v").unwrap_or_else(|| panic!("{line}"));
            let (_, commit) = place.split_once('@').unwrap();
            let is_commit = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
            assert!(is_commit && version.starts_with(|c: char| c.is_ascii_digit()), "{line}");
            n_actions += 1;
        }
    }
    assert!(n_actions > 5, "{n_actions}");
}

/// Paths of the code that a page names: from the project's folder, or from `src`.
fn named_paths(page: &str) -> impl Iterator<Item = &str> {
    page.split('`').skip(1).step_by(2).filter(|words| {
        let is_path = words.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        let folders = [
            "src/",
            "crates/",
            "tests/",
            "benches/",
            "examples/",
            "experiments/",
            "docs/",
            "fuzz/",
        ];
        let is_ours = folders.iter().any(|folder| words.starts_with(folder));
        let is_source = Path::new(words).extension().is_some_and(|kind| kind == "rs");
        is_path && (is_ours || words.contains('/') && is_source)
    })
}

#[test]
fn every_path_of_the_code_that_a_page_names_exists() {
    let mut n_paths = 0;
    for page in pages().iter().filter(|page| *page != "CHANGELOG.md") {
        let text = read(page);
        for path in named_paths(&text) {
            let is_there = project(path).exists() || project("src").join(path).exists();
            assert!(is_there, "{page} names `{path}`");
            n_paths += 1;
        }
    }
    assert!(n_paths > 50, "{n_paths}");
}

/// The prose of a page: its lines outside fenced blocks, with links as their words.
fn prose(page: &str) -> Vec<String> {
    let mut is_open = false;
    let mut found = Vec::new();
    for line in page.lines() {
        let is_fence = line.starts_with("```");
        is_open ^= is_fence;
        if !is_open && !is_fence {
            found.push(line.split("](").enumerate().fold(String::new(), |text, (index, part)| {
                let words = if index == 0 {
                    part
                } else {
                    part.split_once(')').map_or("", |(_, rest)| rest)
                };
                text + words
            }));
        }
    }
    found
}

#[test]
#[ignore = "prose, which `just prose` looks at"]
fn pages_have_short_cells_and_short_paragraphs() {
    assert!(read("README.md").lines().count() <= 120);
    let n_words = |text: &str| text.split_whitespace().count();
    for page in pages() {
        for line in prose(&read(&page)) {
            let cells =
                line.strip_prefix('|').map(|row| row.split('|').map(n_words).max().unwrap());
            let (words, limit) = cells.map_or((n_words(&line), 80), |words| (words, 15));
            assert!(words < limit, "{page}: {words} words in `{line}`");
        }
    }
}

/// The keys that the reference lists, as `train.epochs`, and their tables.
fn keys() -> BTreeSet<String> {
    let mut table = String::new();
    let mut found = BTreeSet::new();
    let vocabulary = Kinds::default().vocabulary();
    let reference = vocabulary.reference();
    for line in reference.lines().map(|line| line.trim_start_matches("# ")) {
        if let Some(name) = line.strip_prefix('[') {
            name.trim_matches(['[', ']']).clone_into(&mut table);
        } else if let Some((key, _)) = line.split_once(" = ") {
            found.insert(format!("{table}.{key}"));
        }
    }
    found
}

#[test]
fn every_key_that_the_page_about_other_tools_names_exists() {
    let (page, keys) = (read("docs/migrating.md"), keys());
    let ours: String = page.lines().filter_map(|line| line.split('|').nth(2)).collect();
    let quoted = ours.split('`').skip(1).step_by(2);
    let names = quoted.map(|words| words.split(" = ").next().unwrap().trim_start_matches('~'));
    let named: Vec<&str> =
        names.filter(|name| name.contains('.') && !name.contains([' ', '/'])).collect();
    assert!(named.len() > 50, "{named:?}");
    for name in named {
        assert!(keys.contains(name), "{name}: {keys:?}");
    }
}

/// All Rust sources below these folders, in one text.
fn sources(folders: &[&str]) -> String {
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| project(folder)).collect();
    let mut text = String::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(children(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    text
}

#[test]
fn every_test_that_the_page_about_reliability_names_exists() {
    let page = read("docs/reliability.md");
    let sources = sources(&["src", "crates", "tests"]);
    let quoted = page.split('`').skip(1).step_by(2);
    let names: BTreeSet<&str> =
        quoted.filter(|words| words.contains("::") && !words.contains(' ')).collect();
    assert!(names.len() > 50, "{names:?}");
    for name in names {
        let last = name.rsplit("::").next().unwrap();
        let is_item = [format!("fn {last}("), format!("mod {last};"), format!("mod {last} {{")];
        // A row of `same_bits` is a test, too.
        let is_row = [format!("    {last} =>"), format!("    {last}\n        =>")];
        let is_there = |kind: &String| sources.contains(kind);
        assert!(is_item.iter().chain(&is_row).any(is_there), "`{name}` is nowhere");
    }
    let commands = page.lines().filter_map(|line| line.strip_prefix("cargo test --test cli "));
    for command in commands {
        let module = command.split_whitespace().next().unwrap();
        assert!(project(&format!("tests/cli/{module}.rs")).exists(), "{command}");
    }
}

#[test]
fn every_type_of_the_glossary_exists() {
    let page = read("CONTRIBUTING.md");
    let types = page.split_once("Types of ddprun:").unwrap().1;
    let sources = sources(&["src", "crates"]);
    let cells = types.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let names: Vec<&str> = cells.flat_map(|cell| cell.split(", ")).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names.iter().map(|name| name.trim_matches('`')) {
        let kinds = ["struct", "enum", "trait"].map(|kind| format!("{kind} {name}"));
        let ends = [" ", "(", "<", ";"];
        let is_there =
            |kind: &String| ends.iter().any(|end| sources.contains(&(kind.clone() + end)));
        assert!(kinds.iter().any(is_there), "`{name}` is nowhere");
    }
}

/// The rows of `docs/support.md`: what the registered models take and can do.
fn support() -> String {
    let kinds = Kinds::default();
    let yes = |is: bool| if is { "yes" } else { "no" };
    let row = |name: &'static str| {
        let model = kinds.models.build(&Choice::named(name)).unwrap();
        let takes: Vec<&str> = model.takes().iter().map(|modality| modality.words()).collect();
        let takes = if takes.is_empty() { "any" } else { &takes.join(", ") };
        let library = model.library().map_or("its own", |library| library.words());
        format!(
            "{takes} | {library} | {} | {} | {}",
            yes(model.has_blocks()),
            yes(!model.draws_on_cpu()),
            yes(model.keeps_texts_apart()),
        )
    };
    // Sizes of a model that can do the same share a row.
    let mut rows: Vec<(String, String)> = Vec::new();
    for name in kinds.models.names() {
        let cells = row(name);
        match rows.last_mut() {
            Some((names, last)) if kinds.models.is_variant(name) && *last == cells => {
                *names += &format!(", `{name}`");
            }
            _ => rows.push((format!("`{name}`"), cells)),
        }
    }
    let lines: Vec<String> =
        rows.iter().map(|(names, cells)| format!("| {names} | {cells} |\n")).collect();
    lines.concat()
}

#[test]
fn the_page_of_supported_models_is_what_the_registry_says() {
    let (page, rows) = (read("docs/support.md"), support());
    assert!(page.contains(&rows), "docs/support.md must have these rows:\n{rows}");
}

#[test]
fn the_glossary_is_in_order_and_has_a_sentence_for_each_term() {
    let page = read("docs/glossary.md");
    let terms = page.lines().filter_map(|line| line.strip_prefix("**")?.split_once("**: "));
    let terms: Vec<(&str, &str)> = terms.collect();
    assert!(terms.len() > 40, "{terms:?}");
    assert!(terms.iter().map(|(term, _)| term.to_lowercase()).is_sorted(), "{terms:?}");
    for (term, sentence) in terms {
        assert!(sentence.ends_with('.') && sentence.split(' ').count() <= 40, "{term}: {sentence}");
    }
}
