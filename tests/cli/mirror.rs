//! `checkpoint.mirror` and `ddprun resume --from`: runs whose machine is lost, mirrors that are slow,
//! full or gone, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, kill_process, kill_process_group};

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::{BASE, SLOW, saving};
use crate::harness::lab::{BINARY, Lab, SAVED, children, flip_a_bit};
use crate::harness::running::{Ended, pid_of, spawn, until};
use crate::launchers::Torchrun;
use crate::machines::end;
use crate::skipped::skipped;

/// The key with a folder of the lab.
const FOLDER: &str = "checkpoint.mirror=mirror";
/// The key with a command that makes `away` the same as the folder, as `rclone sync` does.
const COMMAND: &str = "checkpoint.mirror=\"mkdir -p away && rm -rf away/new && cp -a {folder} \
                       away/new && rm -rf away/{name} && mv away/new away/{name}\"";
/// The command that brings it back.
const FETCH: &str = "cp -a away/small/. {folder}/";

/// A lab with a folder for a mirror.
fn lab(experiment: &str) -> Lab {
    let lab = Lab::with(experiment);
    fs::create_dir(lab.path("mirror")).unwrap();
    lab
}

/// The disk of the machine is lost, and nothing of it runs any more.
fn lose(lab: &Lab) {
    lab.wait_for_all();
    for folder in ["logs", "checkpoints", "data"] {
        fs::remove_dir_all(lab.path(folder)).unwrap();
    }
}

/// Names of the checkpoints in a folder, oldest first.
fn steps(folder: &Path) -> Vec<String> {
    let names = children(folder).into_iter().map(|path| name_of(&path));
    let mut steps: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    steps.sort();
    steps
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// The checkpoints of the only run in a mirror.
fn mirrored(root: &Path) -> PathBuf {
    let mut runs = children(&root.join("checkpoints/small"));
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

/// The mirror has what the run has, and nothing else.
fn is_mirrored(lab: &Lab, root: &Path) {
    let here: Vec<String> = lab.steps().iter().map(|path| name_of(path)).collect();
    assert_eq!(steps(&mirrored(root)), here);
    let verified = lab.run_to(0, &["checkpoint", "verify", mirrored(root).to_str().unwrap()]);
    assert_eq!(verified.stdout.matches(": intact").count(), here.len(), "{}", verified.stdout);
    let logs = root.join("logs/small").join(name_of(&lab.run_folder()));
    for name in ["events.jsonl", "metrics.csv", "resolved.toml"] {
        let [here, there] = [&lab.run_folder(), &logs].map(|folder| fs::read(folder.join(name)));
        assert!(here.unwrap() == there.unwrap(), "{name}");
    }
}

/// Waits until the mirror has a checkpoint.
fn has_a_mirrored_checkpoint(lab: &Lab, root: &str) {
    let checkpoints = lab.path(root).join("checkpoints/small");
    until("a mirrored checkpoint", || {
        children(&checkpoints).first().is_some_and(|run| !steps(run).is_empty())
    });
}

/// Starts a run with this mirror, and kills it and all its ranks when it is at step 30.
fn lost_at_30(lab: &Lab, mirror: &str, root: &str) {
    let mut running = lab.start(&["small.toml", mirror]);
    lab.wait_for_step(&mut running, 30);
    has_a_mirrored_checkpoint(lab, root);
    kill_process_group(pid_of(running.pid()), Signal::KILL).unwrap();
    running.wait().has_code(-9);
    lose(lab);
}

/// Starts a run that hangs in the step after `step`, and kills it once that is in the folder
/// `mirror`.
fn killed_after(lab: &Lab, step: u64, args: &[&str]) {
    let mut command = lab.ddprun(args);
    command.env("DDPRUN_FP", format!("{SAVED}; backward=hang@0,{}", step + 1));
    let running = spawn(command);
    let checkpoints = lab.path("mirror/checkpoints/small");
    let name = format!("step-{step:08}");
    until("a mirrored checkpoint", || {
        children(&checkpoints).first().is_some_and(|run| run.join(&name).exists())
    });
    kill_process_group(pid_of(running.pid()), Signal::KILL).unwrap();
    running.wait().has_code(-9);
    lab.wait_for_all();
}

#[test]
fn a_run_whose_machine_is_lost_goes_on_from_a_folder_as_if_nothing_had_happened() {
    let lab = lab(SLOW);
    lost_at_30(&lab, FOLDER, "mirror");
    let ended = lab.run_to(0, &["resume", "small", "--from", "mirror"]);
    ended.says(&["taken from `mirror`: small/", "resumed after step", "completed after step 60"]);
    ended.says(&["mirrored: step 60 in `mirror`"]);
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    is_mirrored(&lab, &lab.path("mirror"));
    lab.is_clean();
}

#[test]
fn a_run_whose_machine_is_lost_goes_on_from_a_command_as_if_nothing_had_happened() {
    let lab = Lab::with(SLOW);
    lost_at_30(&lab, COMMAND, "away/small");
    let ended = lab.run_to(0, &["resume", "--from", FETCH]);
    ended.says(&["taken from `cp -a away/small/. {folder}/`: small/", "completed after step 60"]);
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    is_mirrored(&lab, &lab.path("away/small"));
    lab.is_clean();
}

#[test]
fn under_another_launcher_rank_0_writes_the_mirror_and_brings_the_run_back() {
    let lab = lab(SLOW);
    let ranks = Torchrun::new(None).start(&lab, 0, &["small.toml", FOLDER]);
    has_a_mirrored_checkpoint(&lab, "mirror");
    for rank in &ranks {
        kill_process(pid_of(rank.pid()), Signal::KILL).unwrap();
    }
    end(ranks);
    lose(&lab);
    let words = ["resume", "small", "--from", "mirror"];
    for ended in end(Torchrun::new(None).start(&lab, 0, &words)) {
        ended.has_code(0);
    }
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    is_mirrored(&lab, &lab.path("mirror"));
    lab.is_clean();
}

#[test]
fn a_kill_at_any_moment_leaves_a_mirror_that_goes_on_exactly() {
    let straight = undisturbed(&Lab::with(&saving(2)), &[]);
    for (mirror, root, from) in [(FOLDER, "mirror", "mirror"), (COMMAND, "away/small", FETCH)] {
        for point in ["mirror.records", "mirror.checkpoints", "checkpoint.copied"] {
            if mirror == COMMAND && point == "checkpoint.copied" {
                // It has links.
                continue;
            }
            let lab = lab(&saving(2));
            let points = format!("{SAVED}; {point}=kill@parent,*,*,3");
            let killed = lab.run_with(&points, &["small.toml", mirror]);
            assert_eq!(killed.code, -9, "{point}: {}", killed.stderr);
            lose(&lab);
            let kept = mirrored(&lab.path(root));
            let newest = steps(&kept).pop().unwrap();
            lab.run_to(0, &["checkpoint", "verify", kept.join(newest).to_str().unwrap()]);
            lab.run_to(0, &["resume", "small", "--from", from]);
            bits(&lab).must_be(&straight);
            is_mirrored(&lab, &lab.path(root));
            lab.is_clean();
        }
    }
}

#[test]
fn a_kill_while_a_run_is_brought_back_leaves_none_or_one_that_goes_on() {
    let lab = lab(&saving(2));
    killed_after(&lab, 8, &["small.toml", FOLDER]);
    lose(&lab);
    for hit in [1, 2] {
        let points = format!("checkpoint.copied=kill@parent,*,*,{hit}");
        let killed = lab.run_with(&points, &["resume", "small", "--from", "mirror"]);
        assert_eq!(killed.code, -9, "{}", killed.stderr);
        for path in lab.steps() {
            lab.run_to(0, &["checkpoint", "verify", path.to_str().unwrap()]);
        }
    }
    lab.run_to(0, &["resume", "small", "--from", "mirror"]);
    bits(&lab).must_be(&undisturbed(&Lab::with(&saving(2)), &[]));
    lab.is_clean();
}

#[test]
fn a_mirror_that_fills_up_costs_no_step_and_is_told_once_and_at_the_end() {
    let lab = lab(BASE);
    // A checkpoint and its records fit, a second one beside them does not.
    let script = "mount -t tmpfs -o size=300k none mirror || exit 99\n\
        \"$@\"; code=$?\n\
        \"$1\" checkpoint verify mirror/checkpoints/small/*/ >verified.txt 2>&1\nexit $code";
    let args = ["-Urm", "sh", "-c", script, "sh", BINARY, "small.toml", FOLDER];
    let mut command = lab.command("unshare", &[&args[..], &["checkpoint.every=2 steps"]].concat());
    command.env("LC_ALL", "C").env("DDPRUN_FP", SAVED);
    let is_there = Command::new("unshare").arg("--version").output().is_ok();
    let ended = is_there.then(|| spawn(command).wait());
    let Some(ended) = ended.filter(|ended| ended.code != 99) else {
        skipped("no mounts of its own (`unshare -Urm`)");
        return;
    };
    ended.has_code(0);
    ended.says(&["completed after step 12"]);
    ended.says(&["the mirror `mirror` is not written: cannot", "No space left"]);
    ended.says(&["the mirror `mirror` is not complete: it has step 2 of step 12: cannot"]);
    assert_eq!(ended.stderr.matches("is not written").count(), 1, "{}", ended.stderr);
    let verified = fs::read_to_string(lab.path("verified.txt")).unwrap();
    assert_eq!(verified.matches(": intact").count(), 1, "{verified}");
    lab.is_clean();
}

#[test]
fn a_mirror_that_goes_away_or_never_ends_changes_nothing_but_what_is_told() {
    let lab = lab(SLOW);
    let mut command = lab.ddprun(&["small.toml", FOLDER]);
    command.env("DDPRUN_FP", "backward=sleep(30)@*,*,*");
    let running = spawn(command);
    has_a_mirrored_checkpoint(&lab, "mirror");
    fs::rename(lab.path("mirror"), lab.path("unplugged")).unwrap();
    let ended = running.wait();
    ended.has_code(0);
    ended.says(&["`mirror` is not there any more", "completed after step 60"]);
    assert!(!lab.path("mirror").exists(), "it is not made on the disk below");
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));

    let lab = Lab::new();
    let hangs = ["checkpoint.mirror=\"echo {folder}; sleep 600\"", "checkpoint.mirror_timeout=1s"];
    let ended = lab.run_to(0, &[&["small.toml"], &hangs[..]].concat());
    ended.says(&[
        "the mirror `echo {folder}; sleep 600` is not complete: it has nothing of step 12",
    ]);
    ended.says(&["not done within 1 s (`checkpoint.mirror_timeout`)"]);
    bits(&lab).must_be(&undisturbed(&Lab::with(BASE), &[]));
    lab.is_clean();
}

#[test]
fn ctrl_c_ends_the_wait_for_a_mirror() {
    let lab = Lab::new();
    let hangs = "checkpoint.mirror=\"echo {folder}; sleep 600\"";
    let running = lab.start(&["small.toml", "train.epochs=1", hangs]);
    until("the end of the run", || running.stderr().contains("waiting for the mirror"));
    kill_process(pid_of(running.pid()), Signal::INT).unwrap();
    let ended = running.wait();
    ended.has_code(0);
    ended.says(&["is not complete: it has nothing of step 6: ended by Ctrl-C"]);
    lab.is_clean();
}

#[test]
fn of_a_run_that_is_at_both_places_the_newer_one_goes_on_and_is_named() {
    let lab = lab(&saving(2));
    killed_after(&lab, 6, &["small.toml", FOLDER]);
    let copy = |from: &str, to: &str| {
        let mut command = Command::new("cp");
        assert!(
            command.arg("-a").arg(lab.path(from)).arg(lab.path(to)).status().unwrap().success()
        );
    };
    for folder in ["logs", "checkpoints"] {
        copy(folder, &format!("older-{folder}"));
    }
    // Here it is further than there.
    lab.run_to(0, &["resume", "small", "~checkpoint.mirror"]);
    let both = lab.run_to(0, &["resume", "small", "--from", "mirror"]);
    both.says(&["is here with step 12, and `mirror` has step 6: nothing is taken from there"]);
    both.says(&["already complete: all 12 steps are done"]);
    // There it is further than here.
    lab.run_to(0, &["resume", "small", FOLDER, "train.epochs=3"]);
    for folder in ["logs", "checkpoints"] {
        fs::remove_dir_all(lab.path(folder)).unwrap();
        copy(&format!("older-{folder}"), folder);
    }
    let older = lab.run_to(0, &["resume", "small", "train.steps=8"]);
    older.says(&["note: the mirror `mirror` has step 18 of this run, which is at step", "here"]);
    assert_eq!(steps(&mirrored(&lab.path("mirror"))).pop().unwrap(), "step-00000018");
    let newer = lab.run_to(0, &["resume", "small", "--from", "mirror"]);
    newer.says(&["is here with step 8; `mirror` has step 18", "all 18 steps are done"]);
    bits(&lab).must_be(&undisturbed(&Lab::with(&saving(3)), &[]));
    lab.is_clean();
}

/// A run of 12 steps whose machine is lost after its end.
fn lost_after_the_end() -> Lab {
    let lab = lab(BASE);
    lab.run_to(0, &["small.toml", FOLDER]);
    lose(&lab);
    lab
}

#[test]
fn a_damaged_checkpoint_of_a_mirror_is_named_and_the_one_before_it_is_brought() {
    let lab = lost_after_the_end();
    let folder = mirrored(&lab.path("mirror"));
    flip_a_bit(&folder.join("step-00000012/optimizer.safetensors"));
    let refused = lab.run_to(7, &["resume", "--from", "mirror", "--strict"]);
    refused.says(&["step-00000012", "is damaged", "omit `--strict`"]);
    assert!(!lab.path("logs").exists(), "nothing is brought");
    let resumed = lab.run_to(0, &["resume", "--from", "mirror"]);
    resumed.says(&["is damaged: `optimizer.safetensors`", "at step 6, 1 checkpoint"]);
    resumed.says(&["resumed after step 6\n", "mirrored: step 12"]);
    bits(&lab).must_be(&undisturbed(&Lab::with(BASE), &[]));
    is_mirrored(&lab, &lab.path("mirror"));
    for file in ["step-00000006/model.safetensors", "step-00000012/model.safetensors"] {
        flip_a_bit(&folder.join(file));
    }
    fs::remove_dir_all(lab.path("logs")).unwrap();
    fs::remove_dir_all(lab.path("checkpoints")).unwrap();
    lab.run_to(7, &["resume", "--from", "mirror"]).says(&["no usable checkpoint"]);
    assert!(!lab.path("logs").exists());
    lab.is_clean();
}

#[test]
fn a_run_that_began_with_the_weights_of_another_goes_on_without_that_one() {
    let lab = lab(BASE);
    lab.run_to(0, &["small.toml", "experiment.name=other"]);
    let words = ["small.toml", FOLDER, "model.pretrained=run:other", "checkpoint.every=2 steps"];
    killed_after(&lab, 8, &words);
    lose(&lab);
    lab.run_to(0, &["resume", "small", "--from", "mirror"]).says(&["completed after step 12"]);
    lab.is_clean();
}

#[test]
fn a_run_comes_back_to_folders_outside_of_its_project_which_may_be_gone() {
    let lab = lab(BASE);
    let project = lab.path("project");
    fs::create_dir(&project).unwrap();
    fs::rename(lab.path("small.toml"), project.join("small.toml")).unwrap();
    let key = |key: &str, folder: &str| format!("{key}={}", lab.path(folder).display());
    let folders = [
        key("checkpoint.mirror", "mirror"),
        key("logging.dir", "far/records"),
        key("checkpoint.dir", "far/weights"),
    ];
    let words: Vec<&str> =
        ["small.toml"].into_iter().chain(folders.iter().map(|it| &**it)).collect();
    let mut command = lab.ddprun(&words);
    command.current_dir(&project);
    spawn(command).wait().has_code(0);
    for folder in ["project", "far"] {
        fs::remove_dir_all(lab.path(folder)).unwrap();
    }
    let resumed = lab.run_to(0, &["resume", "small", "--from", "mirror", "train.epochs=3"]);
    resumed.says(&["resumed after step 12", "completed after step 18"]);
    let [run] = &children(&lab.path("far/weights/small"))[..] else { panic!() };
    assert_eq!(steps(run).pop().unwrap(), "step-00000018");
    lab.is_clean();
}

#[test]
fn a_mirror_holds_several_runs_and_what_is_not_there_is_named() {
    let lab = lost_after_the_end();
    let [first] = &children(&lab.path("mirror/logs/small"))[..] else { panic!() };
    let first = name_of(first);
    lab.run_to(0, &["small.toml", FOLDER, "train.epochs=1"]);
    lose(&lab);
    let newest = lab.run_to(0, &["resume", "small", "--from", "mirror"]);
    newest.says(&["at step 6", "all 6 steps are done"]);
    let refused = lab.run_to(2, &["resume", "large", "--from", "mirror"]);
    refused.says(&["there is no run `large` in `mirror`", "do: choose one of small/"]);
    lab.run_to(2, &["resume", "20", "--from", "mirror"]).says(&["`20` is ambiguous"]);
    lab.run_to(0, &["resume", &first, "--from", "mirror"]).says(&["all 12 steps are done"]);
    lab.run_to(2, &["resume", "--from", "mirrro"]).says(&["no folder `mirrro`", "do: mount it"]);
    lab.run_to(2, &["resume", "--from", "data"]).says(&["no run in `data`", "`checkpoint.mirror`"]);
    lab.run_to(2, &["resume", "--from", "s3://b/x"]).says(&["is a URL", "REMOTE:BUCKET/PATH"]);
    lab.run_to(2, &["resume", "--from", "cp {run} {folder}"]).says(&["no `{run}` here"]);
    let failed = lab.run_to(6, &["resume", "--from", "echo none; echo {folder} >&2; exit 3"]);
    failed.says(&["none", "the command of `--from` ended with exit status: 3"]);
    assert_eq!(failed.stdout, "");
    lab.is_clean();
}

/// The plan refuses this mirror.
fn refuses(lab: &Lab, code: i32, mirror: &str) -> Ended {
    lab.run_to(code, &["plan", "small.toml", &format!("checkpoint.mirror=\"{mirror}\"")])
}

#[test]
fn a_mirror_that_could_not_be_written_is_refused_by_the_plan() {
    let lab = lab(BASE);
    let url = refuses(&lab, 2, "s3://bucket/runs");
    url.says(&["is a URL, but must be a folder or a command", "aws s3 sync --delete {folder}"]);
    url.says(&["command line:1:"]);
    refuses(&lab, 2, "cp {foldr} /x").says(&["no `{foldr}` here", "`{folder}`?"]);
    refuses(&lab, 2, "cp -a . away/{run}").says(&["is a command without `{folder}`"]);
    refuses(&lab, 2, "mirrro").says(&["the folder `mirrro` does not exist", "mount it"]);
    refuses(&lab, 2, "small.toml").says(&["is a file, not a folder"]);
    refuses(&lab, 6, "/proc").says(&["`checkpoint.mirror`: cannot write into the folder `/proc`"]);
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    for own in [".", "logs", "checkpoints/small", "mirror/.."] {
        refuses(&lab, 2, own).says(&["is a place of the run itself", "another disk"]);
    }
    lab.run_to(2, &["resume", FOLDER.replace("=mirror", "=logs").as_str(), "train.epochs=2"])
        .says(&["is a place of the run itself"]);
    refuses(&lab, 0, "mirror");
    let sweep = ["sweep", "small.toml", "optimizer.lr=1e-3,1e-2", FOLDER];
    lab.run_to(2, &sweep).says(&["`checkpoint.mirror`: is for runs, not for the trials", "~"]);
    assert!(children(&lab.path("mirror")).is_empty(), "looking leaves nothing");
}
