//! `--json` on every verb: what clap knows is walked, so that a new verb needs a line here, and every
//! line of stdout is an object.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::lab::{Lab, children};
use crate::harness::running::until;

/// For each verb its exit code, the words behind it, and the types of the objects that it prints;
/// in the order in which they are tried.
const LINES: [(&str, i32, &str, &[&str]); 33] = [
    ("", 0, "small.toml", &["event"]),
    ("plan", 0, "small.toml", &["plan"]),
    ("check", 0, "small.toml ddprun.toml", &["checked"]),
    ("try", 0, "small.toml", &["tried", "try", "works"]),
    ("eval", 0, "small", &["evaluation"]),
    ("predict", 0, "small IMAGE", &["prediction", "predicted"]),
    ("serve-model", 0, "small --port 0", &["service"]),
    ("sample", 2, "small", &["error"]),
    ("checkpoint verify", 0, "small", &["checkpoint"]),
    ("checkpoint show", 0, "small", &["checkpoint"]),
    ("checkpoint export", 0, "small out/model.safetensors", &["file"]),
    ("report", 0, "small", &["report"]),
    ("ls", 0, "", &["run"]),
    ("tag", 0, "small +good", &["tags"]),
    ("logs", 0, "small", &["log"]),
    ("resume", 0, "small train.epochs=3", &["event"]),
    ("sweep", 0, "small.toml optimizer.lr=0.1,0.01 train.epochs=1", &["event", "sweep"]),
    ("sweep ask", 0, ASKED, &["ask"]),
    ("sweep tell", 0, "asked 1 0.5", &["tell"]),
    ("compare", 0, "small small-sweep", &["comparison"]),
    ("doctor", 0, "small.toml --steps 1", &["doctor", "identical", "trained"]),
    ("submit", 0, "small.toml --on lab --print", &["script"]),
    ("jobs", 0, "", &[]),
    ("cancel", 2, "4711", &["error"]),
    ("rm", 0, "small --dry-run", &["freed", "removed"]),
    ("init", 0, "", &["experiment"]),
    ("serve", 0, "logs --port 0", &["page"]),
    ("token", 0, "", &["token"]),
    ("schema", 0, "optimizer", &["schema"]),
    ("explain", 0, "8", &["explanation"]),
    ("completions", 0, "bash", &["completions"]),
    ("man-pages", 0, "man", &["man_pages"]),
    ("plan", 2, "small.toml train.epoch=3", &["error"]),
];

/// What a trial is asked of.
const ASKED: &str = "small.toml optimizer.lr=0.1,0.2 sweep.method=random sweep.trials=2 \
                     sweep.name=asked train.epochs=1";

/// The objects on stdout.
fn objects(stdout: &str) -> Vec<Value> {
    let objects: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    for object in &objects {
        assert_eq!(object["format"], 1, "{object}");
        assert!(object["type"].is_string(), "{object}");
    }
    objects
}

fn types(objects: &[Value]) -> BTreeSet<&str> {
    objects.iter().map(|object| object["type"].as_str().unwrap()).collect()
}

/// Every verb that clap knows and that does something, by the pages of the manual.
fn verbs(lab: &Lab) -> BTreeSet<String> {
    let pages: BTreeSet<String> = children(&lab.path("man"))
        .iter()
        .map(|page| page.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert!(pages.contains("ddprun-checkpoint-verify"), "{pages:?}");
    // The words of `man-pages` have dashes of their own.
    let is_group = |page: &String| page == "ddprun" || page == "ddprun-checkpoint";
    let verb = |page: &String| {
        let words = page.trim_start_matches("ddprun-");
        let in_group = ["checkpoint-", "sweep-"].iter().any(|group| words.starts_with(group));
        if in_group { words.replacen('-', " ", 1) } else { words.to_owned() }
    };
    let verbs = pages.iter().filter(|page| !is_group(page) && !page.ends_with("-help")).map(verb);
    verbs.collect()
}

fn served(lab: &Lab, words: &[&str]) -> String {
    let running = lab.start(words);
    until("an address", || running.stdout().contains('\n'));
    running.signal(Signal::TERM);
    let ended = running.wait();
    ended.has_code(0);
    ended.stdout
}

#[test]
fn every_verb_answers_in_json() {
    let lab = Lab::new();
    lab.write("ddprun.toml", "[cluster.lab]\nkind = 'local'\n");
    let mut said = BTreeMap::new();
    for (verb, code, words, expected) in LINES {
        let image = || {
            let class = children(&lab.generated().join("val")).remove(0);
            children(&class).remove(0).to_string_lossy().into_owned()
        };
        let words: Vec<String> = [verb, words]
            .iter()
            .flat_map(|words| words.split_whitespace())
            .map(|word| if word == "IMAGE" { image() } else { word.to_owned() })
            .chain(["--json".to_owned()])
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let stdout = match verb {
            "serve" | "serve-model" => served(&lab, &words),
            _ => lab.run_to(code, &words).stdout,
        };
        let objects = objects(&stdout);
        assert_eq!(types(&objects), expected.iter().copied().collect(), "{words:?}\n{stdout}");
        said.insert((verb, code), objects);
    }
    let tried: BTreeSet<String> =
        LINES.iter().map(|(verb, ..)| (*verb).to_owned()).filter(|verb| !verb.is_empty()).collect();
    assert_eq!(tried, verbs(&lab), "a verb is not tried here, or is gone");

    let events = |verb| said[&(verb, 0)].iter().map(|event| event["event"].as_str().unwrap());
    let mut trained = events("").collect::<Vec<_>>();
    assert_eq!((trained.remove(0), trained.pop()), ("started", Some("finished")));
    let written = fs::read_to_string(children(&lab.path("logs/small"))[0].join("events.jsonl"));
    let written = written.unwrap();
    let first = said[&("", 0)].iter().zip(written.lines());
    assert!(said[&("", 0)].len() > 12);
    for (object, line) in first {
        let mut object = object.clone();
        let mut line: Value = serde_json::from_str(line).unwrap();
        for own in ["format", "type"] {
            object.as_object_mut().unwrap().remove(own);
            line.as_object_mut().unwrap().remove(own);
        }
        assert_eq!(object, line, "as `events.jsonl` has it");
    }
    let sweep = said[&("sweep", 0)].iter().filter(|object| object["type"] == "event");
    let trials: BTreeSet<&str> = sweep.map(|event| event["trial"].as_str().unwrap()).collect();
    assert_eq!(trials, ["trial-0001", "trial-0002"].into());
    assert_eq!(said[&("sweep", 0)].last().unwrap()["type"], "sweep", "the result comes last");
    lab.is_clean();
}

#[test]
fn what_is_refused_is_an_object_with_its_place() {
    let lab = Lab::new();
    let error = |code: i32, words: &[&str]| {
        let ended = lab.run_to(code, words);
        assert!(!ended.stderr.is_empty(), "people read it, too");
        objects(&ended.stdout)
    };
    lab.write("wrong.toml", "schema = 1\n[train]\nepochs = \"a\"\n");
    let found = error(2, &["--json", "wrong.toml"]);
    let wrong = found.iter().find(|object| object["key"] == "train.epochs").unwrap();
    assert_eq!(
        (&wrong["code"], &wrong["line"], &wrong["column"]),
        (&2.into(), &3.into(), &10.into())
    );
    assert_eq!(wrong["file"], "wrong.toml");
    assert!(wrong["message"].is_string(), "{wrong}");

    let flag = error(2, &["plan", "small.toml", "--no-such-flag", "--json"]);
    assert!(flag[0]["message"].as_str().unwrap().contains("--no-such-flag"), "{flag:?}");
    let absent = error(2, &["eval", "absent", "--json"]);
    assert!(absent[0]["help"].is_string(), "{absent:?}");
    assert!(!lab.path("logs").exists());
}
