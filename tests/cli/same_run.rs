//! A run goes on as what it was: the same data, its own checkpoints, and from wherever it is
//! called.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, kill_process, kill_process_group};

use crate::harness::bits::{bits, must_be_whole};
use crate::harness::experiments::BASE;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, pid_of, spawn, until};

/// A finished run of four steps on 16 images of two colours.
fn photos() -> Lab {
    let lab = Lab::new();
    lab.write_photos();
    lab.run_to(0, &["photos.toml"]);
    lab
}

/// Files directly in a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = children(folder).into_iter().filter(|path| path.is_file());
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// The run is refused for its data, with these words, and nothing of it is touched.
fn refuses_data(lab: &Lab, words: &[&str]) {
    let before = files(&lab.run_folder());
    let refused = lab.run_to(3, &["resume", "train.epochs=4"]);
    refused.says(&["the data changed since the run was planned", "--accept-changed-data"]);
    refused.says(words);
    assert!(files(&lab.run_folder()) == before, "{}", refused.stderr);
    lab.is_clean();
}

fn rename(lab: &Lab, from: &str, to: &str) {
    for split in ["train", "val"] {
        let at = |class: &str| lab.path(&format!("data/{split}/{class}"));
        fs::rename(at(from), at(to)).unwrap();
    }
}

#[test]
fn images_that_are_not_those_of_the_run_are_refused_by_name() {
    let lab = photos();
    let first = files(&lab.run_folder());
    rename(&lab, "blue", "zebra");
    refuses_data(&lab, &["class `blue` (label 0) is gone", "class `red` is now label 0, was 1"]);
    rename(&lab, "red", "blue");
    rename(&lab, "zebra", "red");
    refuses_data(&lab, &["train: 16 files have changed, e.g. `blue/0.png`"]);
    rename(&lab, "red", "zebra");
    rename(&lab, "blue", "red");
    rename(&lab, "zebra", "blue");
    let image = lab.path("data/train/red/3.png");
    let whole = fs::read(&image).unwrap();
    fs::remove_file(&image).unwrap();
    refuses_data(&lab, &["train: 15 samples, was 16", "1 file is missing, e.g. `red/3.png`"]);
    fs::write(&image, whole).unwrap();
    // With the data as they were it goes on, and writes nothing about itself that is there already.
    lab.run_to(0, &["resume"]);
    let described = |name: &str| {
        name.rsplit('.').next() == Some("toml") || name == "run.json" || name == "data.json"
    };
    let about = |all: BTreeMap<PathBuf, Vec<u8>>| -> Vec<(PathBuf, Vec<u8>)> {
        let is_about = |path: &Path| described(path.file_name().unwrap().to_str().unwrap());
        all.into_iter().filter(|(path, _)| is_about(path)).collect()
    };
    assert!(about(files(&lab.run_folder())) == about(first));
    assert!(!lab.run_folder().join("run.2.json").exists());
    lab.is_clean();
}

#[test]
fn accepted_data_are_those_of_the_run_from_then_on_as_far_as_its_model_can() {
    let lab = photos();
    fs::remove_file(lab.path("data/train/red/3.png")).unwrap();
    let accepted = lab.run_to(0, &["resume", "--accept-changed-data", "train.epochs=8"]);
    accepted.says(&["accepted: train: 15 samples, was 16", "steps per epoch: 2 -> 1"]);
    accepted.says(&["completed after step 8"]);
    let run = lab.run_folder();
    let plan = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(run.join(name)).unwrap()).unwrap()
    };
    assert_eq!(plan("run.json")["plan"]["data"]["n_train"], 16);
    assert_eq!(plan("run.2.json")["plan"]["data"]["n_train"], 15);
    lab.run_to(0, &["eval"]);
    lab.run_to(0, &["report"]);
    lab.run_to(0, &["resume"]).says(&["all 8 steps are done"]);
    for (split, n) in [("train", 8), ("val", 4)] {
        for index in 0..n {
            lab.write_image(&format!("data/{split}/green/{index}.png"), [0, 200, 0]);
        }
    }
    let refused = lab.run_to(3, &["resume", "--accept-changed-data"]);
    refused.says(&[
        "class `green` (label 1) is new",
        "has 2 outputs, but the data needs 3 outputs",
        "do: ",
    ]);
    lab.is_clean();
}

#[test]
fn one_cell_of_a_table_is_enough() {
    let lab = Lab::new();
    let row = |i: u32| format!("{},{},{}\n", i % 7, i * i % 11, i % 2);
    let table = |n: u32| "a,b,y\n".to_owned() + &(0..n).map(row).collect::<String>();
    lab.write("train.csv", table(32));
    lab.write("val.csv", table(8));
    let from = BASE.find("name = \"shapes\"").unwrap();
    let to = BASE.find("num_workers").unwrap();
    let data =
        "name = \"csv\"\ntrain_file = \"train.csv\"\nval_file = \"val.csv\"\ntarget = \"y\"\n";
    lab.write("small.toml", BASE[..from].to_owned() + data + &BASE[to..]);
    lab.run_to(0, &["small.toml"]);
    lab.write("train.csv", table(32).replacen("1,1,1", "1,2,1", 1));
    refuses_data(&lab, &["train: the contents of `train.csv` changed"]);
    lab.write("train.csv", table(24));
    refuses_data(&lab, &["train: 24 samples, was 32", "`train.csv` has "]);
    lab.write("train.csv", table(32));
    lab.run_to(0, &["resume", "train.epochs=3"]).says(&["completed after step 12"]);
    lab.is_clean();
}

#[test]
fn a_run_of_an_earlier_version_is_compared_by_what_is_known_of_it() {
    let lab = photos();
    let kept = lab.run_folder().join("data.json");
    fs::remove_file(&kept).unwrap();
    let image = lab.path("data/train/red/3.png");
    let whole = fs::read(&image).unwrap();
    fs::remove_file(&image).unwrap();
    lab.run_to(3, &["resume"]).says(&["train: 15 samples, was 16"]);
    fs::write(&image, whole).unwrap();
    lab.run_to(0, &["resume"]).says(&["note: ", "by counts and classes only"]);
    assert!(kept.exists(), "from now on it is compared in full");
    lab.is_clean();
}

#[test]
fn a_group_that_is_started_again_does_not_go_on_with_other_images() {
    let lab = Lab::new();
    lab.write_photos();
    let words = ["photos.toml", "train.epochs=1000000", "checkpoint.every=2 steps"];
    let mut running = lab.start(&[&words[..], &["--max-restarts", "1"]].concat());
    lab.wait_for_step_and_save(&mut running, 3);
    // In one step, as the ranks go on reading.
    let image = lab.write_image("green.png", [0, 200, 0]);
    fs::rename(image, lab.path("data/train/red/0.png")).unwrap();
    kill_process(pid_of(running.ranks()[1]), Signal::KILL).unwrap();
    let ended = running.wait();
    ended.has_code(3);
    ended.says(&["the data changed since the run was planned", "`red/0.png` changed"]);
    lab.is_clean();
}

/// A sweep of [`Lab::write_photos`] over these learning rates.
fn photo_sweep(rates: &str) -> Lab {
    let lab = Lab::new();
    lab.write_photos();
    let sweep = format!(
        "metric = \"val/loss\"\ndevices_per_trial = 2\nconcurrent_trials = 1\n\
         [sweep.parameters]\n\"optimizer.lr\" = {rates}\n"
    );
    lab.write("tune.toml", format!("schema = 1\nbase = \"photos.toml\"\n[sweep]\n{sweep}"));
    lab
}

#[test]
fn a_trial_of_a_sweep_does_not_go_on_with_other_images() {
    let lab = photo_sweep("[1e-3]");
    let words = ["sweep", "tune.toml", "train.epochs=1000000", "checkpoint.every=2 steps"];
    let mut running = lab.start(&words);
    let metrics = lab.path("logs/tune/trial-0001/metrics.csv");
    let saved = lab.path("checkpoints/tune/trial-0001/latest");
    let goes = || fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 12);
    until("some steps and a checkpoint", || running.is_over() || goes() && saved.exists());
    kill_process_group(pid_of(running.pid()), Signal::KILL).unwrap();
    running.wait();
    lab.wait_for_all();
    fs::remove_file(lab.path("data/train/red/0.png")).unwrap();
    lab.run_to(3, &words).says(&["train: 15 samples, was 16"]);
    let journal = fs::read_to_string(lab.path("logs/tune/journal.jsonl")).unwrap();
    assert!(!journal.contains("\"ended\""), "it can go on with its own images: {journal}");
}

#[test]
fn no_trial_on_other_images_joins_those_of_a_sweep() {
    let lab = photo_sweep("[1e-3, 1e-2]");
    let (words, one) = (["sweep", "tune.toml"], ["sweep", "tune.toml", "sweep.trials=1"]);
    lab.run_to(0, &one);
    let image = lab.path("data/train/red/3.png");
    let whole = fs::read(&image).unwrap();
    fs::remove_file(&image).unwrap();
    let refused = lab.run_to(3, &words);
    refused.says(&[
        "the data changed since `logs/tune/trial-0001` was trained",
        "another `sweep.name`",
    ]);
    refused.says(&["train: 15 samples, was 16", "1 file is missing, e.g. `red/3.png`"]);
    // Where nothing is left to train, what there is is shown.
    lab.run_to(0, &one);
    fs::write(&image, whole).unwrap();
    lab.run_to(0, &words).says(&["[2 of 2]"]);
    lab.is_clean();
}

#[test]
fn each_resume_that_changes_something_has_files_of_its_own_and_later_commands_see_them() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let before = files(&lab.run_folder());
    lab.run_to(0, &["resume", "train.epochs=3"]).says(&["completed after step 18"]);
    lab.run_to(0, &["resume"]).says(&["all 18 steps are done"]);
    lab.run_to(0, &["resume", "train.epochs=4", "distributed.devices=1"]);
    lab.run_to(0, &["resume"]).says(&["all 24 steps are done"]);
    let run = lab.run_folder();
    for name in ["resolved.toml", "run.json", "data.json", "experiment.toml"] {
        assert!(fs::read(run.join(name)).unwrap() == before[&run.join(name)], "{name}");
    }
    let epochs = |name: &str| {
        let text = fs::read_to_string(run.join(name)).unwrap();
        text.lines().find(|line| line.starts_with("epochs = ")).unwrap().to_owned()
    };
    let all = ["resolved.toml", "resolved.2.toml", "resolved.3.toml"].map(epochs);
    assert_eq!(all, ["epochs = 2", "epochs = 3", "epochs = 4"]);
    assert!(!run.join("resolved.4.toml").exists() && !run.join("data.2.json").exists());
    lab.run_to(0, &["eval"]);
    lab.run_to(0, &["report"]);
    lab.is_clean();
}

#[test]
fn a_run_whose_checkpoints_are_gone_begins_anew_only_if_it_is_asked_to() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let before = bits(&lab);
    let records = files(&lab.run_folder());
    lab.run_to(2, &["resume", "--from-scratch"]).says(&["this run has checkpoints in `", "do: "]);
    let folder = lab.checkpoints();
    let elsewhere = lab.path("elsewhere");
    fs::rename(&folder, &elsewhere).unwrap();
    let where_to = format!("there is no checkpoint in `checkpoints/small/{}", name_of(&folder));
    lab.run_to(7, &["resume"]).says(&[&where_to, "--from-scratch"]);
    fs::create_dir(&folder).unwrap();
    lab.run_to(7, &["resume"]).says(&[&where_to, "this run had saved some"]);
    // Without events it is unknown whether there was one.
    let (events, hidden) = (lab.run_folder().join("events.jsonl"), lab.path("events.jsonl"));
    fs::rename(&events, &hidden).unwrap();
    lab.run_to(7, &["resume"]).says(&[&where_to, "this run may have saved some"]);
    fs::rename(&hidden, &events).unwrap();
    for (path, bytes) in &records {
        assert!(fs::read(path).unwrap() == *bytes, "{}", path.display());
    }
    let anew = lab.run_to(0, &["resume", "--from-scratch"]);
    anew.says(&["restarting from step 0", "before-1`", "completed after step 12"]);
    let aside = lab.run_folder().join("before-1");
    for name in ["metrics.csv", "training_history.json"] {
        assert!(fs::read(aside.join(name)).unwrap() == records[&lab.run_folder().join(name)]);
    }
    bits(&lab).must_be(&before);
    lab.is_clean();
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// A run with two checkpoints whose folder `change` has copied in some way.
fn copied(change: impl Fn(&Path)) -> Lab {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "checkpoint.keep_last=2", "checkpoint.every=6 steps"]);
    let step = |lab: &Lab| lab.run_to(0, &["eval"]).stdout.lines().next().unwrap().to_owned();
    let best = step(&lab);
    change(&lab.checkpoints());
    assert_eq!(step(&lab), best, "the best one is the best one without its link");
    lab.run_to(0, &["resume", "train.epochs=3"]).says(&["completed after step 18"]);
    must_be_whole(&lab);
    let folder = lab.checkpoints();
    for name in ["latest", "best", "checkpoint_latest", "checkpoint_best"] {
        let target = fs::read_link(folder.join(name)).unwrap();
        assert!(folder.join(target).join("MANIFEST.json").is_file(), "{name}");
    }
    assert_eq!(fs::read_link(folder.join("latest")).unwrap(), Path::new("step-00000018"));
    let straight = Lab::new();
    let length = ["small.toml", "train.epochs=3", "checkpoint.keep_last=2"];
    straight.run_to(0, &[&length[..], &["checkpoint.every=6 steps"]].concat());
    bits(&lab).must_be(&bits(&straight));
    lab.is_clean();
    lab
}

/// Copies the folder as `cp -rL` does, with folders where links were.
fn followed(folder: &Path) {
    let copy = folder.with_extension("copy");
    let mut command = Command::new("cp");
    assert!(command.arg("-rL").arg(folder).arg(&copy).status().unwrap().success());
    fs::remove_dir_all(folder).unwrap();
    fs::rename(&copy, folder).unwrap();
    assert!(!folder.join("latest").is_symlink());
}

#[test]
fn folders_in_the_place_of_links_are_the_checkpoints_that_they_are() {
    copied(followed);
    // The only copy of each may have the name of a link.
    copied(|folder| {
        followed(folder);
        for step in children(folder).iter().filter(|path| name_of(path).starts_with("step-")) {
            fs::remove_dir_all(step).unwrap();
        }
    });
}

#[test]
fn files_in_the_place_of_links_and_missing_links_are_made_anew() {
    copied(|folder| {
        for name in ["latest", "best", "checkpoint_latest", "checkpoint_best"] {
            let target = fs::read_link(folder.join(name)).unwrap();
            fs::remove_file(folder.join(name)).unwrap();
            match name {
                "latest" => fs::write(folder.join(name), target.to_str().unwrap()).unwrap(),
                "best" => fs::write(folder.join(name), b"").unwrap(),
                _ => {}
            }
        }
    });
}

/// The binary, called from another folder.
fn from(folder: &Path, lab: &Lab, code: i32, args: &[&str]) -> Ended {
    let mut command = lab.ddprun(args);
    command.current_dir(folder);
    let ended = spawn(command).wait();
    ended.has_code(code);
    ended
}

#[test]
fn a_run_is_found_from_any_folder_and_goes_on_where_its_project_is_now() {
    let lab = Lab::new();
    let elsewhere = tempfile::tempdir().unwrap();
    // A relative path among the data, and one to weights.
    lab.run_to(0, &["small.toml"]);
    let run = lab.run_folder();
    let named = run.to_str().unwrap();
    let step = lab.run_to(0, &["eval"]).stdout;
    assert_eq!(from(elsewhere.path(), &lab, 0, &["eval", named]).stdout, step);
    from(elsewhere.path(), &lab, 0, &["report", named]);
    from(elsewhere.path(), &lab, 0, &["checkpoint", "verify", named]);
    from(elsewhere.path(), &lab, 0, &["resume", named, "train.epochs=3"])
        .says(&["the paths of this run begin at `", "completed after step 18"]);
    assert!(children(elsewhere.path()).is_empty());
    from(elsewhere.path(), &lab, 0, &["checkpoint", "export", named, "weights.safetensors"]);
    assert!(elsewhere.path().join("weights.safetensors").exists());
    from(elsewhere.path(), &lab, 0, &["eval", named, "--out", "found"]);
    assert!(elsewhere.path().join("found/eval.json").exists() && !lab.path("found").exists());
    let before = bits(&lab);
    // A copy of the project is a project of its own.
    let copy = elsewhere.path().join("copy");
    let mut command = Command::new("cp");
    assert!(command.arg("-r").arg(lab.path("")).arg(&copy).status().unwrap().success());
    let its_run = copy.join(run.strip_prefix(lab.path("")).unwrap());
    let again = ["resume", its_run.to_str().unwrap(), "train.epochs=4"];
    from(&lab.path(""), &lab, 0, &again).says(&["completed after step 24"]);
    bits(&lab).must_be(&before);
    let link = copy.join(lab.checkpoints().strip_prefix(lab.path("")).unwrap()).join("latest");
    assert_eq!(fs::read_link(link).unwrap(), Path::new("step-00000024"));
    // What is missing has a name.
    fs::remove_dir_all(lab.path("checkpoints")).unwrap();
    from(elsewhere.path(), &lab, 7, &["resume", named]).says(&["no checkpoint in `checkpoints/"]);
    fs::remove_file(run.join("resolved.toml")).unwrap();
    fs::remove_file(run.join("resolved.2.toml")).unwrap();
    from(elsewhere.path(), &lab, 7, &["resume", named]).says(&["resolved.toml` cannot be read"]);
    fs::remove_file(run.join("run.json")).unwrap();
    from(elsewhere.path(), &lab, 7, &["resume", named]).says(&["run.json` cannot be used"]);
    lab.is_clean();
}

#[test]
fn the_beginning_of_an_id_is_enough_where_it_is_the_only_one() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let id = name_of(&lab.run_folder());
    lab.run_to(0, &["report", &id[..id.len() - 2]]);
    lab.run_to(0, &["small.toml"]);
    let refused = lab.run_to(2, &["resume", "20"]);
    refused.says(&["`20` is ambiguous: 2 runs match:", &id, "do: "]);
    lab.run_to(0, &["resume", &id]).says(&["all 12 steps are done"]);
    lab.is_clean();
}
