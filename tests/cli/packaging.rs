//! What packages ddprun for others: the action of GitHub, the recipe of conda, the formula of
//! Homebrew. Their services are not asked.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use test_support::skipped;

use crate::harness::experiments::on_data;
use crate::harness::lab::{BINARY, Lab};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A file of the repository.
fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

fn yaml(name: &str) -> Value {
    serde_saphyr::from_str(&read(name)).unwrap()
}

/// What a command ended with, and what it said.
fn said(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// The archive of this version for `arch`, with a program that is the tested one.
fn archive(lab: &Lab, arch: &str) -> String {
    let name = format!("ddprun-{VERSION}-{arch}-unknown-linux-gnu");
    let program =
        lab.write(&format!("{name}/bin/ddprun"), format!("#!/bin/sh\nexec {BINARY} \"$@\"\n"));
    let mut make_runnable = Command::new("chmod");
    assert!(make_runnable.arg("+x").arg(program).status().unwrap().success());
    let mut tar = lab.command("tar", &["-czf", &format!("{name}.tar.gz"), &name]);
    assert!(said(&mut tar).0);
    format!("{name}.tar.gz")
}

/// Runs a step of the action as GitHub does, with these values for its expressions.
fn step(lab: &Lab, step: &Value, values: &[(&str, &str)]) -> (bool, String) {
    let mut command =
        lab.command("bash", &["-eo", "pipefail", "-c", step["run"].as_str().unwrap()]);
    for (name, expression) in step["env"].as_object().unwrap() {
        let expression = expression.as_str().unwrap();
        let inside = expression.trim_start_matches("${{ ").trim_end_matches(" }}");
        let (_, value) = values.iter().find(|(known, _)| *known == inside).unwrap();
        command.env(name, value);
    }
    let path = std::env::var("PATH").unwrap();
    let folders = [lab.path("stand-ins"), lab.path("temporary/ddprun/bin")];
    let folders = folders.map(|folder| folder.display().to_string()).join(":");
    command.env("PATH", format!("{folders}:{path}"));
    command.env("RUNNER_TEMP", lab.path("temporary")).env("GITHUB_PATH", lab.path("github-path"));
    said(&mut command)
}

#[test]
fn the_action_of_github_installs_a_release_and_runs_its_words() {
    let action = yaml("action.yml");
    assert_eq!(action["runs"]["using"], "composite");
    let steps = action["runs"]["steps"].as_array().unwrap();
    let [install, run] = &steps[..] else { panic!("{steps:?}") };
    let lab = Lab::with(&on_data("name = \"shapes\""));
    let arch = std::env::consts::ARCH;
    let archive = archive(&lab, arch);
    // `gh` with what it was asked for, and the archive in the place of a download.
    let gh = lab.write(
        "stand-ins/gh",
        format!("#!/bin/sh\necho \"$@\" > asked\nwhile [ \"$1\" != --dir ]; do shift; done\ncp {archive} \"$2\"\n"),
    );
    assert!(Command::new("chmod").arg("+x").arg(gh).status().unwrap().success());
    let values = |args: &'static str, version: &'static str| {
        [
            ("github.token", "a-token"),
            ("github.action_repository", "owner/name"),
            ("github.action_ref", "v1.2.3"),
            ("inputs.version", version),
            ("inputs.args", args),
        ]
    };
    let (is_well, words) = step(&lab, install, &values("", ""));
    assert!(is_well && words.contains(&format!("ddprun {VERSION}")), "{words}");
    let asked = fs::read_to_string(lab.path("asked")).unwrap();
    assert!(asked.starts_with("release download v1.2.3 --repo owner/name --dir "), "{asked}");
    let pattern = format!("--pattern ddprun-*-{arch}-unknown-linux-gnu.tar.gz");
    assert!(asked.contains(&pattern), "{asked}");
    let on_path = fs::read_to_string(lab.path("github-path")).unwrap();
    assert_eq!(on_path.trim(), lab.path("temporary/ddprun/bin").display().to_string());
    assert!(step(&lab, install, &values("", "0.9.0")).0);
    let asked = fs::read_to_string(lab.path("asked")).unwrap();
    assert!(asked.starts_with("release download v0.9.0 "), "{asked}");

    let (is_well, words) = step(&lab, run, &values("check *.toml", ""));
    assert!(is_well && words.contains("1 file checked, no problems"), "{words}");
    lab.write("bad.toml", read("experiments/quickstart.toml").replace("[train]", "[trains]"));
    let (is_well, words) = step(&lab, run, &values("check *.toml", ""));
    assert!(!is_well && words.contains("1 problem in 1 of 2 files: bad.toml"), "{words}");
    for name in action["inputs"].as_object().unwrap().keys() {
        assert!(read("action.yml").contains(&format!("inputs.{name}")), "`{name}` is not used");
        assert!(
            read("docs/install.md").contains(&format!("`{name}`")),
            "`{name}` is not described"
        );
    }
}

#[test]
fn the_recipe_of_conda_is_for_this_version_and_names_files_that_are_there() {
    let recipe = yaml("packaging/conda/recipe.yaml");
    assert_eq!(recipe["context"]["version"], VERSION);
    assert_eq!(recipe["about"]["license"], env!("CARGO_PKG_LICENSE"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = recipe["source"]["path"].as_str().unwrap();
    let source = root.join("packaging/conda").join(source).canonicalize().unwrap();
    assert_eq!(source, root.canonicalize().unwrap());
    let script = recipe["build"]["script"].as_array().unwrap();
    let script: Vec<&str> = script.iter().map(|line| line.as_str().unwrap()).collect();
    for file in recipe["about"]["license_file"].as_array().unwrap() {
        let file = file.as_str().unwrap();
        let is_made = script.iter().any(|line| line.ends_with(&format!("--output {file}")));
        assert!(is_made || root.join(file).is_file(), "{file}");
    }
    // It needs the builder that pip does.
    let pyproject: toml::Table = read("pyproject.toml").parse().unwrap();
    let needed = pyproject["build-system"]["requires"][0].as_str().unwrap();
    let host = recipe["requirements"]["host"].as_array().unwrap();
    assert!(host.iter().any(|it| it.as_str().unwrap().replace(' ', "") == needed), "{host:?}");
    // What it does with the program, and its tests.
    let lab = Lab::new();
    let prefix = lab.path("prefix");
    let mut lines: Vec<&str> = script.into_iter().filter(|line| line.contains("$PREFIX")).collect();
    let tests = recipe["tests"].as_array().unwrap().iter().filter_map(|it| it["script"].as_array());
    lines.extend(tests.flatten().map(|line| line.as_str().unwrap()));
    let mut command = lab.command("bash", &["-euxc", &lines.join("\n")]);
    lab.write("prefix/bin/.keep", "");
    std::os::unix::fs::symlink(BINARY, prefix.join("bin/ddprun")).unwrap();
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", prefix.join("bin").display()));
    command.env("PREFIX", &prefix);
    let (is_well, words) = said(&mut command);
    assert!(is_well, "{words}");
    for made in ["man/man1/ddprun.1", "bash-completion/completions/ddprun"] {
        assert!(prefix.join("share").join(made).is_file(), "{made}");
    }
}

#[test]
fn the_formula_of_homebrew_names_the_archives_of_a_release_with_their_sums() {
    let lab = Lab::new();
    let archives = ["x86_64", "aarch64"].map(|arch| archive(&lab, arch));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/homebrew-formula");
    let url = format!("https://github.com/owner/name/releases/download/v{VERSION}");
    let write = |words: &[&str]| said(&mut lab.command(script.to_str().unwrap(), words));
    let (is_well, formula) = write(&[&url, &archives[0], &archives[1]]);
    assert!(is_well, "{formula}");
    assert!(formula.contains("homepage \"https://github.com/owner/name\""), "{formula}");
    assert!(formula.contains(&format!("version \"{VERSION}\"")), "{formula}");
    for (archive, block) in archives.iter().zip(["on_intel", "on_arm"]) {
        let (_, sum) = said(&mut lab.command("sha256sum", &[archive]));
        let sum = sum.split(' ').next().unwrap();
        let lines =
            format!("  {block} do\n    url \"{url}/{archive}\"\n    sha256 \"{sum}\"\n  end\n");
        assert!(formula.contains(&lines), "{lines}: {formula}");
    }
    // What it installs is what `just package` puts into an archive.
    for folder in ["bash-completion/completions", "zsh/site-functions", "fish/vendor_completions.d"]
    {
        assert!(formula.contains(&format!("\"share/{folder}/")), "{folder}: {formula}");
    }
    let refused = [
        (write(&["https://example.org/x", &archives[0]]), "is no release"),
        (write(&[&url, "ddprun-1-riscv64-unknown-linux-gnu.tar.gz"]), "is no archive of"),
        (write(&[&url]), "usage:"),
    ];
    for ((is_well, words), reason) in refused {
        assert!(!is_well && words.contains(reason), "{words}");
    }
    if Command::new("ruby").arg("--version").output().is_err() {
        return skipped::skipped("`ruby`");
    }
    lab.write("ddprun.rb", formula);
    let (is_well, words) = said(&mut lab.command("ruby", &["-c", "ddprun.rb"]));
    assert!(is_well, "{words}");
}
