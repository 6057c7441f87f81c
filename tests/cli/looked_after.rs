//! The verbs that look after runs: `ls`, `compare`, `tag`, `logs`, `rm`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::experiments::BASE;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Running, spawn, until};

/// A run that ends only when it is stopped.
const ENDLESS: [&str; 4] = [
    "train.epochs=1000000",
    "validation.every=never",
    "logging.every=10 steps",
    "logging.sinks=[jsonl]",
];

/// What `ls --json` says, a line each.
fn listed(lab: &Lab, more: &[&str]) -> Vec<Value> {
    let text = lab.run_to(0, &[&["ls", "--json"], more].concat()).stdout;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The only run with this name.
fn of_name(lab: &Lab, name: &str) -> Value {
    let mut found = listed(lab, &[name]);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn named(name: &str) -> String {
    format!("experiment.name={name}")
}

/// An endless run of this name in the middle of its steps.
fn endless(lab: &Lab, name: &str) -> Running {
    let mut running = lab.start(&[&["small.toml", &named(name)], &ENDLESS[..]].concat());
    let folder = lab.path("logs").join(name);
    let has_stepped = || {
        let run = children(&folder).pop();
        let events = run.and_then(|run| fs::read_to_string(run.join("events.jsonl")).ok());
        events.is_some_and(|events| events.contains("step_done"))
    };
    until("a step", || running.is_over() || has_stepped());
    assert!(!running.is_over(), "{}", running.stderr());
    running
}

fn folder(lab: &Lab, kind: &str, name: &str) -> PathBuf {
    children(&lab.path(kind).join(name)).pop().unwrap()
}

#[test]
fn ls_tells_how_each_run_stands() {
    let lab = Lab::new();
    lab.run_to(2, &["ls"])
        .says(&["there is no run under `logs`", "train one with `ddprun EXPERIMENT.toml`"]);
    lab.run_to(0, &["small.toml", "experiment.tags=[\"baseline\", \"mlp\"]"]);
    lab.run_to(4, &["small.toml", &named("diverged"), "fault.divergence_threshold=0.01"]);
    let stopped = endless(&lab, "stopped");
    stopped.signal(Signal::TERM);
    stopped.wait().has_code(75);
    let killed = endless(&lab, "killed");
    killed.signal(Signal::KILL);
    killed.wait();
    let running = endless(&lab, "running");

    let state = |name: &str| of_name(&lab, name)["state"].as_str().unwrap().to_owned();
    let states = ["small", "diverged", "stopped", "killed", "running"].map(state);
    assert_eq!(states, ["finished", "failed", "stopped", "killed", "running"]);
    let small = of_name(&lab, "small");
    assert_eq!((small["step"].as_u64(), small["total_steps"].as_u64()), (Some(12), Some(12)));
    assert_eq!((small["epoch"].as_u64(), small["epochs"].as_u64()), (Some(2), Some(2)));
    assert_eq!(small["tags"], serde_json::json!(["baseline", "mlp"]));
    assert!(small["best"]["value"].is_f64() && small["seconds"].as_f64().unwrap() > 0.0);
    assert!(of_name(&lab, "diverged")["reason"].as_str().unwrap().contains("exit 4"));

    let page = lab.run_to(0, &["ls"]).stdout;
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    assert!(page.lines().next().unwrap().starts_with("run "), "{page}");
    let told = ["tags: baseline, mlp", "failed at step", "pid "];
    for words in ["  progress  ", "  2/2  "].into_iter().chain(told) {
        assert!(page.contains(words), "{page}");
    }
    let names: Vec<String> =
        listed(&lab, &[]).iter().map(|run| run["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["small", "diverged", "stopped", "killed", "running"], "by their start");
    assert_eq!(listed(&lab, &["--tag", "mlp"]).len(), 1);
    assert_eq!(listed(&lab, &["--state", "killed", "--state", "running"]).len(), 2);
    lab.run_to(2, &["ls", "--sort", "val/nonsense"]).says(&["no run has measured", "val/loss"]);
    assert_eq!(listed(&lab, &["--sort", "val/loss"])[0]["name"], "small");

    lab.run_to(2, &["ls", "runing"]).says(&["did you mean `running`?"]);
    lab.run_to(2, &["rm", "running"]).says(&["is in use by pid "]);
    running.signal(Signal::INT);
    running.wait().has_code(130);
    // With it goes the file that it was writing.
    lab.run_to(0, &["rm", "killed"]);
    lab.is_clean();
}

#[test]
fn a_folder_of_data_does_not_hide_the_runs_of_its_name() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    lab.write("small/cat/1.png", "");
    let run = lab.run_folder();
    let id = run.file_name().unwrap().to_str().unwrap();
    let by_id = format!("run:{id}");
    for word in ["small", "run:small", "logs/small", id, by_id.as_str()] {
        let found = listed(&lab, &[word]);
        assert_eq!(found.iter().map(|run| &run["id"]).collect::<Vec<_>>(), [id], "{word}");
    }
    lab.run_to(2, &["ls", "./small"]).says(&["there is no run under `./small`"]);
    lab.run_to(2, &["ls", "run:smal"]).says(&["did you mean `small`?"]);
    lab.run_to(0, &["report", "run:small"]);
    lab.run_to(0, &["tag", "run:small", "+a"]);
    lab.run_to(0, &["rm", "run:small"]);
    assert!(!run.exists() && lab.path("small/cat/1.png").is_file());
    lab.is_clean();
}

#[test]
fn a_torn_a_newer_and_an_empty_run_do_not_hide_the_others() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let run = lab.run_folder();
    let events = fs::read(run.join("events.jsonl")).unwrap();
    fs::write(run.join("events.jsonl"), &events[..events.len() - 40]).unwrap();
    lab.write("logs/new/20270101-000000-0000/resolved.toml", "schema = 1");
    lab.write("logs/new/20270101-000000-0000/run.json", "{\"format\": 99}");
    lab.write("logs/empty/20270101-000000-0001/resolved.toml", "");
    lab.write("logs/no-run/notes.txt", "");
    lab.write("logs/evil/20270101-\u{1b}[2J/resolved.toml", "");
    let found = listed(&lab, &[]);
    let kinds: Vec<&str> = found.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["run", "run", "run", "unreadable"]);
    assert!(found[3]["reason"].as_str().unwrap().contains("has format 99"));
    let ended = lab.run_to(0, &["ls"]);
    ended.says(&["by a newer ddprun: it has format 99, and this ddprun reads formats up to 1"]);
    lab.run_to(0, &["ls", "logs/new"]).says(&["no run can be read"]);
    lab.run_to(0, &["ls", "--tag", "absent"]).says(&["no run matches"]);
    lab.run_to(2, &["ls", "nowhere"]).says(&["there is no run or folder `nowhere`"]);
    assert!(!ended.stdout.contains('\u{1b}'), "{}", ended.stdout);
}

#[test]
fn two_hundred_runs_are_listed_at_once() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let run = lab.run_folder();
    for copy in 0..200 {
        let to = lab.path(&format!("logs/small/20200101-000000-{copy:04}"));
        fs::create_dir_all(&to).unwrap();
        for file in children(&run).into_iter().filter(|file| file.is_file()) {
            fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
    let began = std::time::Instant::now();
    assert_eq!(listed(&lab, &[]).len(), 201);
    // A second for the optimised program, which is ten times as fast.
    assert!(began.elapsed().as_secs_f64() < 10.0, "{:?}", began.elapsed());
}

#[test]
fn tags_are_changed_while_a_run_trains_and_stay_when_it_is_resumed() {
    let lab = Lab::with(&BASE.replace("seed = 7", "seed = 7\ntags = [\"old\", \"mlp\"]"));
    let running = endless(&lab, "small");
    let said = lab.run_to(0, &["tag", "small", "+baseline", "-old"]).stdout;
    assert!(said.ends_with(": baseline, mlp\n"), "{said}");
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    let past = lab.steps().pop().unwrap();
    let step: u64 = past.to_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap();
    let epochs = format!("train.epochs={}", step / 6 + 1);
    lab.run_to(0, &["resume", &epochs, "experiment.tags=[\"old\", \"again\"]"]);
    let said = lab.run_to(0, &["tag", "small"]).stdout;
    assert!(said.ends_with(": again, baseline\n"), "{said}");
    lab.run_to(2, &["tag", "small", "plain"])
        .says(&["write `+plain` to add it, or `-plain` to remove it"]);
    lab.run_to(2, &["tag", "small", "+two words"]).says(&["`two words` is not a tag"]);
    lab.run_to(2, &["tag", "smal", "+a"]).says(&["did you mean `small`?"]);
    lab.run_to(2, &["plan", "small.toml", "experiment.tags=[\"a b\"]"])
        .says(&["`a b` cannot be a tag"]);
    lab.is_clean();
}

#[test]
fn what_cannot_be_written_comes_with_what_can_be_done_there() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let run = lab.run_folder();
    // Folders where files should be stand for a disk that takes nothing.
    fs::remove_file(run.join(".lock")).unwrap();
    fs::create_dir(run.join(".lock")).unwrap();
    let resumed = lab.run_to(6, &["resume"]);
    resumed.says(&["do: make the folders of this run writable", "`model.pretrained`"]);
    lab.run_to(6, &["rm", "small"]).says(&["do: make the folders of this run"]);
    fs::create_dir(run.join("tags.json")).unwrap();
    lab.run_to(6, &["tag", "small", "+a"]).says(&["do: make the folder of this run"]);
    lab.write("t.csv", "a,b\n1,2\n2,3\n3,4\n4,5\n5,6\n7,8\n8,9\n9,1\n1,1\n2,2\n");
    let refused = lab.run_to(6, &["init", "t.csv", "nowhere/x.toml"]);
    refused.says(&["do: name a file in a folder that is there"]);
}

/// Whether `ddprun logs` heeds Ctrl-C by now: its handler of SIGTERM is set after those of SIGINT.
fn heeds_ctrl_c(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 14) != 0)
}

#[test]
fn logs_are_followed_until_the_run_ends() {
    let lab = Lab::new();
    let running = endless(&lab, "small");
    let following = lab.start(&["logs", "-f"]);
    let interrupted = lab.start(&["logs", "-f", "small", "--rank", "1"]);
    until("a handler of Ctrl-C", || heeds_ctrl_c(interrupted.pid()));
    interrupted.signal(Signal::INT);
    assert_eq!(interrupted.wait().code, 130);
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    let ended = following.wait();
    ended.has_code(0);
    ended.says(&[" stopped after step ", "state saved"]);
    assert!(ended.stdout.contains("stopped (state saved)"), "{}", ended.stdout);

    let log = lab.run_folder().join("rank-0.log");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, format!("{text}half a li\x1bne")).unwrap();
    let said = lab.run_to(0, &["logs"]).stdout;
    assert_eq!(said, format!("{text}half a li\\u{{1b}}ne\n"));
    lab.run_to(2, &["logs", "--rank", "7"])
        .says(&["there is no log of rank 7", "a log here: 0, 1"]);
    lab.is_clean();
}

#[test]
fn rm_removes_a_run_and_its_checkpoints_and_nothing_else() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    lab.run_to(0, &["small.toml", &named("other"), "train.epochs=1"]);
    let (run, checkpoints) = (lab.run_folder(), lab.checkpoints());
    let kept = lab.write("elsewhere/precious.txt", "here");
    std::os::unix::fs::symlink(lab.path("elsewhere"), run.join("link")).unwrap();
    let said = lab.run_to(0, &["rm", "--dry-run", "small"]).stdout;
    assert!(said.contains("would remove") && said.contains("would free"), "{said}");
    assert!(run.exists() && checkpoints.exists());

    let warm = format!("model.pretrained={}/best/model.safetensors", checkpoints.display());
    lab.run_to(0, &["small.toml", &named("warm"), "train.epochs=1", &warm]);
    lab.run_to(2, &["rm", "small"]).says(&["started from", "remove that run, too"]);
    let said = lab.run_to(0, &["rm", "small", "warm"]).stdout;
    assert_eq!(said.matches("removed ").count(), 4, "{said}");
    assert!(said.contains("freed "), "{said}");
    for gone in ["logs/small", "checkpoints/small", "logs/warm", "checkpoints/warm"] {
        assert!(!lab.path(gone).exists(), "{gone}");
    }
    assert!(kept.is_file(), "links are not followed");
    assert_eq!(of_name(&lab, "other")["state"], "finished");

    lab.run_to(0, &["small.toml", &named("other"), "train.epochs=1"]);
    for word in ["other", "./logs/other", "logs/other/"] {
        lab.run_to(2, &["rm", word]).says(&[&format!("`{word}` has 2 runs"), "by its id"]);
    }
    let mut inside = lab.ddprun(&["rm", "."]);
    inside.current_dir(lab.path("logs/other"));
    spawn(inside).wait().says(&["`.` has 2 runs"]);
    lab.run_to(2, &["rm", "elsewhere"]).says(&["there is no run `elsewhere`"]);
    let first = listed(&lab, &[])[0]["id"].as_str().unwrap().to_owned();
    fs::remove_dir_all(lab.path("checkpoints/other").join(&first)).unwrap();
    lab.run_to(0, &["rm", &first]);
    assert_eq!(children(&lab.path("logs/other")).len(), 1);
    std::os::unix::fs::symlink(folder(&lab, "logs", "other"), lab.path("logs/other/link")).unwrap();
    lab.run_to(2, &["rm", "logs/other/link"]).says(&["is a link"]);
    lab.is_clean();
}

#[test]
fn rm_leaves_what_no_checkpoint_consists_of_and_what_is_outside_of_the_project() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let (run, checkpoints) = (lab.run_folder(), lab.checkpoints());
    let id = run.file_name().unwrap().to_str().unwrap().to_owned();
    let description = fs::read_to_string(run.join("run.json")).unwrap();
    let own = format!("checkpoints/small/{id}");
    let elsewhere = tempfile::tempdir().unwrap();
    let theirs = elsewhere.path().join(&id);
    fs::create_dir_all(theirs.join("step-00000001")).unwrap();
    fs::write(theirs.join("step-00000001/model.safetensors"), "weights").unwrap();
    let up = format!("../{}/{id}", elsewhere.path().file_name().unwrap().to_str().unwrap());
    for other in [theirs.to_str().unwrap(), &up] {
        assert!(lab.path(other).is_dir());
        fs::write(run.join("run.json"), description.replace(&own, other)).unwrap();
        lab.run_to(2, &["rm", "small"]).says(&["outside of the project `", "by hand"]);
        assert!(run.exists() && theirs.join("step-00000001/model.safetensors").exists());
    }

    // Photographs in a folder of the project that the description names.
    let photos = lab.write(&format!("photos/{id}/beach.jpg"), "sea");
    fs::write(run.join("run.json"), description.replace(&own, &format!("photos/{id}"))).unwrap();
    let said = lab.run_to(0, &["rm", "--dry-run", "small"]);
    said.says(&["stays: it also holds `beach.jpg`, which no checkpoint consists of"]);
    fs::write(run.join("run.json"), &description).unwrap();
    let notes = checkpoints.join("step-00000006/notes.txt");
    fs::write(&notes, "my thesis").unwrap();
    lab.run_to(0, &["rm", "small"]).says(&["stays: it also holds `step-00000006/notes.txt`"]);
    assert!(notes.exists() && photos.exists() && !run.exists());
    assert_eq!(children(&checkpoints).len(), 1, "the rest is gone");
    lab.is_clean();
}

#[test]
fn what_a_killed_rm_leaves_is_listed_and_goes_with_the_next_one() {
    let lab = Lab::new();
    for name in ["small", "other"] {
        lab.run_to(0, &["small.toml", &named(name), "train.epochs=1"]);
    }
    lab.run_with("remove=kill@*", &["rm", "small"]).has_code(-9);
    let left = lab.temporaries();
    assert_eq!(left.len(), 1, "{left:?}");
    let name = left[0].file_name().unwrap().to_str().unwrap();
    let said = ["checkpoints/small/", name, "is left of an interrupted `ddprun rm`"];
    lab.run_to(0, &["ls"]).says(&said);
    let dry = lab.run_to(0, &["rm", "--leftovers", "--dry-run"]).stdout;
    assert!(dry.contains(name) && lab.temporaries() == left, "{dry}");
    let done = lab.run_to(0, &["rm", "other"]).stdout;
    assert!(done.contains(name), "{done}");
    lab.is_clean();
    assert!(lab.run_to(0, &["rm", "--leftovers"]).stdout.contains("freed 0"));
}

#[test]
fn two_rm_of_the_same_runs_at_once_both_end_well() {
    let lab = Lab::new();
    let names: Vec<String> = (0..6).map(|i| format!("run{i}")).collect();
    for name in &names {
        lab.run_to(0, &["small.toml", &named(name), "train.epochs=1"]);
    }
    for name in &names {
        let both = [(); 2].map(|()| spawn(lab.ddprun(&["rm", name])));
        let codes = both.map(|rm| rm.wait().code);
        // The second finds the run, the lock of the first, or nothing any more.
        assert!(codes.contains(&0), "{codes:?}");
        assert!(codes.iter().all(|code| [0, 2].contains(code)), "{codes:?}");
        assert!(!lab.path(&format!("logs/{name}")).exists());
    }
    lab.is_clean();
}

#[test]
fn events_that_standard_output_does_not_take_are_not_lost_without_a_word() {
    let lab = Lab::new();
    let mut command = lab.ddprun(&["--json", "small.toml", "train.epochs=1"]);
    command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let ended = command.output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{said}");
    assert_eq!(said.matches("standard output cannot be written").count(), 1, "{said}");
    assert!(said.contains("only in `events.jsonl`"), "{said}");
}

/// Copies the files of a folder into another one of the laboratory.
fn copy_files(lab: &Lab, from: &Path, to: &str) {
    for file in children(from).into_iter().filter(|path| path.is_file()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        lab.write(&format!("{to}/{name}"), fs::read(&file).unwrap());
    }
}

#[test]
fn rm_of_a_copy_leaves_the_checkpoints_of_the_run() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let (run, checkpoints) = (lab.run_folder(), lab.checkpoints());
    let id = run.file_name().unwrap().to_str().unwrap();
    for copy in [format!("logs/backup/{id}"), "elsewhere/copy".to_owned()] {
        copy_files(&lab, &run, &copy);
        lab.run_to(0, &["rm", &copy]).says(&["is a copy of", "whose checkpoints stay"]);
        assert!(!lab.path(&copy).exists(), "{copy}");
        assert!(run.is_dir() && checkpoints.join("best/model.safetensors").is_file(), "{copy}");
    }
    lab.run_to(0, &["rm", "small"]);
    assert!(!run.exists() && !checkpoints.exists());
    lab.is_clean();
}

#[test]
fn a_sweep_and_a_run_do_not_share_a_name() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let run = lab.run_folder();
    let id = run.file_name().unwrap().to_str().unwrap();
    let sweeps = [
        &["optimizer.lr=0.1,0.01"][..],
        &["optimizer.lr=0.1,0.01", "--share"],
        &["sweep.method=lr_range"],
    ];
    for words in sweeps {
        let args = [&["sweep", "small.toml", "sweep.name=small"][..], words].concat();
        lab.run_to(2, &args).says(&[
            "already holds runs of an experiment",
            id,
            "another `sweep.name`",
        ]);
        assert_eq!(
            children(&lab.path("logs/small")),
            std::slice::from_ref(&run),
            "nothing was touched"
        );
    }
    lab.write("logs/tune/journal.jsonl", "");
    lab.run_to(2, &["small.toml", &named("tune")])
        .says(&["`logs/tune` holds a sweep", "another `experiment.name`"]);
    assert_eq!(children(&lab.path("logs/tune")).len(), 1);
    let status = |word: &str| lab.run_to(2, &["sweep", "--status", word]);
    status("tnue").says(&["there is no sweep in `tnue`", "did you mean `tune`?"]);
    status("nope").says(&["there is no sweep in `nope`", "`ddprun ls` lists the sweeps"]);
    status("small").says(&["see it with `ddprun report small`: `small` is a run"]);
    // As an earlier ddprun has left it.
    lab.write("logs/small/journal.jsonl", "");
    let kinds: Vec<Value> = listed(&lab, &[]).iter().map(|line| line["type"].clone()).collect();
    assert_eq!(kinds, ["run", "unreadable", "unreadable"]);
    lab.run_to(2, &["rm", "small"]).says(&["its folder also holds a run", id, "by its id"]);
    lab.run_to(0, &["rm", id]);
    assert!(!run.exists() && lab.path("logs/small/journal.jsonl").is_file());
    lab.run_to(0, &["rm", "small"]);
    assert!(!lab.path("logs/small").exists());
    lab.is_clean();
}

#[test]
fn compare_shows_where_runs_differ_and_draws_their_curves() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", &named("one")]);
    let changes = ["optimizer.lr=1e-2", "distributed.devices=1", "experiment.tags=[\"fast\"]"];
    lab.run_to(0, &[&["small.toml", &named("two")], &changes[..]].concat());
    let ended = lab.run_to(0, &["compare", "one", "two"]);
    let page = &ended.stdout;
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    for words in ["optimizer.lr", "0.001", "0.01", "val/loss", "1 last", "2 best", "ranks", "fast"]
    {
        assert!(page.contains(words), "`{words}` is not in:\n{page}");
    }
    assert!(!page.contains("train.epochs") && !page.contains("experiment.tags"), "{page}");
    let picture = folder(&lab, "logs", "one").join("compare.png");
    ended.says(&["curves: ", "compare.png"]);
    assert!(fs::metadata(&picture).unwrap().len() > 5_000);

    let text = lab.run_to(0, &["compare", "one", "two", "--json", "--out", "x.png"]).stdout;
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["runs"].as_array().unwrap().len(), 2);
    let keys = value["configuration"].as_array().unwrap();
    let lr = keys.iter().find(|row| row["key"] == "optimizer.lr").unwrap();
    assert_eq!(lr["values"], serde_json::json!([0.001, 0.01]));
    assert!(lab.path("x.png").is_file());
    let mut no_text = lab.ddprun(&["compare", "one", "two", "--json", "--out"]);
    no_text.arg(OsStr::from_bytes(b"x\xff.png"));
    spawn(no_text).wait().has_code(0);
    lab.run_to(0, &["compare", "one", "two", "--out", "a/b/x.png"]);
    assert!(lab.path("a/b/x.png").is_file());
    let refused = lab.run_to(2, &["compare", "one", "two", "--out", "c/x.pdf"]);
    refused.says(&["`c/x.pdf` would hold a PNG picture", "do: write `c/x.png`"]);
    assert!(!lab.path("c").exists());
    // The test may run as root, whom no permission stops.
    fs::remove_file(&picture).unwrap();
    fs::create_dir_all(picture.join("in-the-way")).unwrap();
    let again = lab.run_to(0, &["compare", "one", "two"]);
    again.says(&["curves could not be drawn", "why: ", "--out FILE.png"]);
    assert_eq!(again.stdout, *page);
    let curves = folder(&lab, "logs", "one").join("curves.png");
    let _ = fs::remove_file(&curves);
    fs::create_dir_all(curves.join("in-the-way")).unwrap();
    let report = lab.run_to(0, &["report", "one"]);
    report.says(&["the run's curves are not up to date", "why: "]);
    assert!(report.stdout.contains("completed after step"), "{}", report.stdout);
    lab.run_to(2, &["compare", "one", "one"]).says(&["is compared already"]);
    lab.run_to(2, &["compare", "one"]);
    lab.is_clean();
}

/// Its logs are a copy, as of a colleague or for a try, and its checkpoints are the original's.
#[test]
fn a_copy_of_a_run_does_not_go_on_in_the_checkpoints_of_the_original() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let (run, before) = (lab.run_folder(), children(&lab.checkpoints()));
    let id = run.file_name().unwrap().to_str().unwrap();
    let copy = format!("logs/copy/{id}");
    copy_files(&lab, &run, &copy);
    let refused = lab.run_to(2, &["resume", &copy, "train.epochs=4"]);
    refused.says(&["is a copy of", "which owns the checkpoints in `checkpoints/small/", "do: "]);
    assert_eq!(children(&lab.checkpoints()), before);
    // A description from elsewhere may name any folder.
    fs::remove_dir_all(lab.path(&copy)).unwrap();
    lab.write("photos/beach.jpg", "sea");
    let described = fs::read_to_string(run.join("run.json")).unwrap();
    let own = format!("checkpoints/small/{id}");
    fs::write(run.join("run.json"), described.replace(&own, "photos")).unwrap();
    let refused = lab.run_to(2, &["resume", id, "--from-scratch"]);
    refused.says(&["names `photos` as its checkpoints, which is not a folder of this run"]);
    assert_eq!(children(&lab.path("photos")).len(), 1);
    lab.is_clean();
}

#[test]
fn links_pipes_and_holes_in_a_run_folder_neither_hang_its_readers_nor_lead_elsewhere() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let run = lab.run_folder();
    let diary = lab.write("diary.txt", "precious\n");
    for name in ["events.jsonl", "rank-0.log"] {
        let whole = fs::read(run.join(name)).unwrap();
        fs::remove_file(run.join(name)).unwrap();
        std::os::unix::fs::symlink(&diary, run.join(name)).unwrap();
        lab.run_to(6, &["resume", "train.epochs=2"]).says(&["it is a link", "do: remove it"]);
        assert_eq!(fs::read_to_string(&diary).unwrap(), "precious\n", "{name}");
        fs::remove_file(run.join(name)).unwrap();
        fs::write(run.join(name), whole).unwrap();
    }
    for name in ["environment.json", "metrics.csv", "events.jsonl", "resolved.toml"] {
        let (path, whole) = (run.join(name), fs::read(run.join(name)).unwrap());
        for is_pipe in [true, false] {
            fs::remove_file(&path).unwrap();
            if is_pipe {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                let pipe = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, mode, 0).unwrap();
            } else {
                fs::File::create(&path).unwrap().set_len(3 << 30).unwrap();
            }
            // Each ends, within the time that a test has.
            lab.run(&["ls"]);
            lab.run(&["report", "small"]);
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, whole).unwrap();
    }
    lab.run_to(0, &["resume", "train.epochs=2"]).says(&["completed after step 12"]);
    lab.is_clean();
}
