//! Data sets in Python: what their code may do, what is refused, and that no process of theirs
//! outlives its rank.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::harness::bits::bits;
use crate::harness::experiments::on_data;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, Running, pid_of, spawn, until};
use crate::skipped::skipped;

/// Two ranks learn two classes of points, each with noise of its own in each epoch.
fn points_toml() -> String {
    on_data(
        r#"name = "python"
file = "dataset.py"
object = "Points"
options = { n = 48 }
val_options = { n = 12 }
num_workers = 1"#,
    )
}

const CODE: &str = r#"import os
import random
import sys
import time

NOISE = random.random()


class Points:
    classes = list({"left", "right"})

    def __init__(self, n, trouble="none", at=5):
        self.targets = [index % 2 for index in range(n)]
        self.centres = [random.gauss(0, 1) for _ in range(n)]
        self.trouble, self.at = trouble, at

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        label = self.targets[index]
        centre = self.centres[index] + 3 * label
        numbers = [centre + NOISE * random.gauss(0, 1) for _ in range(4)]
        if index == self.at:
            numbers = getattr(self, self.trouble)(numbers)
        return numbers, label

    def none(self, numbers):
        return numbers

    def raises(self, numbers):
        raise ValueError("the points are out")

    def longer(self, numbers):
        return numbers + [0.0]

    def infinite(self, numbers):
        return numbers[:3] + [float("inf")]

    def prints(self, numbers):
        print("hello from the code")
        os.write(1, b"and from a library")
        sys.stdin.read()
        return numbers

    def ends(self, numbers):
        os._exit(3)

    def hangs(self, numbers):
        while True:
            time.sleep(0.01)

    def spins(self, numbers):
        while True:
            pass


def numbers(n):
    return [([index / n, 1.0], index / n) for index in range(n)]


def pairs(n):
    return [([index / n], [index / n, index]) for index in range(n)]


def unknown_classes(n):
    return [([index / n], index % 2) for index in range(n)]


def images(n):
    return [([[[index / n] * 8] * 8], index / n) for index in range(n)]
"#;

/// True with the `python3` that data sets are run by; else notes that it is missing.
pub(crate) fn has_python() -> bool {
    let tried = Command::new("python3").args(["-c", ""]).output();
    let has_it = tried.is_ok_and(|output| output.status.success());
    if !has_it {
        skipped("python3");
    }
    has_it
}

/// Points, and the experiment that learns them.
pub(crate) fn points() -> Lab {
    let lab = Lab::with(&points_toml());
    lab.write("dataset.py", CODE);
    lab
}

/// Changes by which one sample of the training makes trouble.
fn trouble(kind: &str) -> [String; 2] {
    [format!("data.options.trouble={kind}"), "data.val_options.trouble=none".to_owned()]
}

/// Runs an experiment whose sample 5 makes trouble.
fn run_with(lab: &Lab, kind: &str, code: i32, changes: &[&str]) -> Ended {
    let trouble = trouble(kind);
    let words = trouble.iter().map(String::as_str).chain(changes.iter().copied());
    lab.run_to(code, &["small.toml"].into_iter().chain(words).collect::<Vec<_>>())
}

/// Refused before any folder was made.
fn refuses(lab: &Lab, code: i32, args: &[&str]) -> Ended {
    let ended = lab.run_to(code, args);
    assert!(!lab.path("logs").exists() && !lab.path("checkpoints").exists());
    lab.wait_for_all();
    lab.is_clean();
    ended
}

/// The Python processes of a lab.
fn workers(lab: &Lab) -> BTreeMap<u32, String> {
    let all = lab.processes().into_iter();
    all.filter(|(_, command)| command.contains("dataset.py") && command.contains("-c")).collect()
}

#[test]
fn a_plan_tells_what_the_code_gives_and_trains_nothing() {
    if !has_python() {
        return;
    }
    let lab = points();
    let page = lab.run_to(0, &["plan", "small.toml"]).stdout;
    for words in
        ["dataset.py: Points(n = 48), Python 3.", "48 to train on, 12 to validate, 2 classes"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert_eq!(children(&lab.path("")).len(), 2, "{:?}", children(&lab.path("")));
    lab.is_clean();
}

#[test]
fn samples_are_held_out_by_class_and_folds_validate_all() {
    if !has_python() {
        return;
    }
    let lab = points();
    let held = ["~data.val_options", "data.val_fraction=0.25", "data.test_fraction=0.25"];
    let page = lab.run_to(0, &[&["plan", "small.toml"][..], &held].concat()).stdout;
    assert!(page.contains("24 to train on, 12 to validate, 12 to test"), "{page}");
    lab.run_to(0, &[&["small.toml"][..], &held].concat());
    let folds = ["~data.val_options", "data.folds=3", "data.fold=2", "experiment.name=folds"];
    lab.run_to(0, &[&["small.toml"][..], &folds].concat()).says(&["completed after step 8"]);
    lab.run_to(0, &["eval", "small", "--part", "test"]);
    lab.is_clean();
}

#[test]
fn arguments_of_the_code_are_parameters_of_a_sweep() {
    if !has_python() {
        return;
    }
    let lab = points();
    let words = ["sweep", "small.toml", "train.epochs=1", "data.options.n=32,48"];
    lab.run_to(0, &words).says(&["2 trials", "data.options.n=32"]);
    let unknown = ["sweep", "small.toml", "train.epochs=1", "data.options.m=1,2", "sweep.name=m"];
    lab.run_to(2, &unknown).says(&["unexpected keyword argument 'm'"]);
    lab.is_clean();
}

#[test]
fn numbers_are_learnt_without_a_change_of_the_loss() {
    if !has_python() {
        return;
    }
    let lab = points();
    for object in ["numbers", "pairs"] {
        let words = [format!("data.object={object}"), format!("experiment.name={object}")];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        lab.run_to(0, &[&["small.toml"][..], &words].concat());
    }
    let whole = fs::read_to_string(children(&lab.path("logs/pairs"))[0].join("resolved.toml"));
    assert!(whole.unwrap().contains("name = \"mse\""));
    let refused = refuses(&points(), 2, &["small.toml", "data.object=images", "model.name=lstm"]);
    refused.says(&["`model.name`", "takes", "but the data is images"]);
}

#[test]
fn what_the_code_prints_and_reads_does_no_harm() {
    if !has_python() {
        return;
    }
    let lab = points();
    run_with(&lab, "prints", 0, &["distributed.devices=1"]).says(&["hello from the code"]);
    let silent = points();
    silent.run_to(0, &["small.toml", "distributed.devices=1"]);
    bits(&lab).must_be(&bits(&silent));
    let page = lab.run_to(0, &["plan", "small.toml", "data.options.at=0", &trouble("prints")[0]]);
    assert!(!page.stdout.contains("hello") && page.stderr.contains("hello"), "{page:?}");
    lab.is_clean();
}

#[test]
fn an_exception_ends_the_run_with_its_traceback_or_is_passed_over() {
    if !has_python() {
        return;
    }
    let lab = points();
    let ended = run_with(&lab, "raises", 3, &[]);
    ended.says(&[
        "sample 5: `Points[5]` raised ValueError: the points are out (dataset.py, line ",
        "Traceback (most recent call last):",
        "in raises",
        "correct the code, or set `data.on_bad_sample = \"skip\"`",
    ]);
    lab.wait_for_all();
    lab.is_clean();
    let skip = ["data.on_bad_sample=skip", "data.max_bad_fraction=0.1", "experiment.name=skip"];
    run_with(&lab, "raises", 0, &skip).says(&["completed after step 12"]);
    let log = fs::read_to_string(children(&lab.path("logs/skip"))[0].join("events.jsonl"));
    let log = log.unwrap();
    assert!(log.contains("`Points[5]` raised ValueError: the points are out"), "{log}");
    let first = ["plan", "small.toml", "data.options.at=0", "data.options.trouble=raises"];
    let ended = refuses(&points(), 2, &first);
    ended.says(&["`data.object`: `Points[0]` raised ValueError", "small.toml:14:", "in raises"]);
}

#[test]
fn a_sample_of_another_form_is_named_with_both() {
    if !has_python() {
        return;
    }
    let lab = points();
    run_with(&lab, "longer", 3, &[]).says(&[
        "sample 5: `Points[5]` is [5] list with a class, but the first sample is [4] list with a class",
    ]);
    let finite = "`Points[5]` has an input that is not finite: number 3 is inf";
    run_with(&lab, "infinite", 3, &["experiment.name=finite"]).says(&[finite]);
}

#[test]
fn a_process_that_dies_or_does_not_answer_is_named_even_if_bad_samples_are_skipped() {
    if !has_python() {
        return;
    }
    let lab = points();
    let skip = "data.on_bad_sample=skip";
    run_with(&lab, "ends", 3, &[skip])
        .says(&["sample 5: `Points[5]` was lost: Python (process ", "ended by exit status: 3"]);
    // A rank that waits for an answer with a deadline does not stall.
    let patient = ["data.timeout=3s", "fault.stall_timeout=1s"];
    for (kind, [first, second]) in [("hangs", patient), ("spins", ["data.timeout=3s", skip])] {
        let name = format!("experiment.name={kind}");
        let ended = run_with(&lab, kind, 3, &[first, second, &name]);
        ended.says(&[
            "sample 5: `Points[5]` has kept Python (process ",
            "busy for 3s",
            "it is here (most recent call first):",
            &format!("in {kind}"),
            "raise `data.timeout`",
        ]);
    }
    lab.wait_for_all();
    lab.is_clean();
    let first = ["plan", "small.toml", "data.options.at=0", "data.options.trouble=hangs"];
    let ended =
        refuses(&lab_of(&points_toml(), CODE), 2, &[&first[..], &["data.timeout=0.2s"]].concat());
    ended.says(&["`Points[0]` has kept Python"]);
}

/// An experiment and its code.
fn lab_of(experiment: &str, code: &str) -> Lab {
    let lab = Lab::with(experiment);
    lab.write("dataset.py", code);
    lab
}

/// A run that has been started and whose ranks wait for Python.
fn waiting(lab: &Lab, kind: &str) -> Running {
    let [first, second] = trouble(kind);
    let running = lab.start(&["small.toml", &first, &second]);
    until("Python processes", || {
        let ranks = running.ranks();
        ranks.len() == 2 && workers(lab).len() >= 2
    });
    running
}

#[test]
fn no_process_outlives_a_rank_or_a_parent_that_was_killed() {
    if !has_python() {
        return;
    }
    for kind in ["hangs", "spins"] {
        let lab = points();
        let running = waiting(&lab, kind);
        let ranks = running.ranks();
        kill_process(pid_of(ranks[1]), Signal::KILL).unwrap();
        let ended = running.wait();
        ended.says(&["rank 1 was killed by SIGKILL"]);
        lab.wait_for_all();
        lab.is_clean();
    }
    let lab = points();
    let running = waiting(&lab, "spins");
    running.signal(Signal::KILL);
    running.wait();
    lab.wait_for_all();
    lab.is_clean();
}

#[test]
fn a_process_that_was_killed_is_named() {
    if !has_python() {
        return;
    }
    let lab = points();
    let running = waiting(&lab, "hangs");
    let children = |pid: u32| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    // Threads of the ranks start them.
    assert!(children(running.pid()).is_ok());
    for pid in workers(&lab).into_keys() {
        let _ = kill_process(pid_of(pid), Signal::KILL);
    }
    running.wait().says(&["was lost: Python (process ", "ended by signal: 9 (SIGKILL)"]);
    lab.wait_for_all();
    lab.is_clean();
}

#[test]
fn a_python_or_file_or_object_that_cannot_be_used_is_found_before_anything_starts() {
    if !has_python() {
        return;
    }
    let lab = points();
    let line = |key: &str| {
        let at = points_toml().lines().position(|line| line.starts_with(key)).unwrap() + 1;
        format!("small.toml:{at}:")
    };
    refuses(&lab, 2, &["small.toml", "data.python=no-python"]).says(&[
        "`data.python`",
        "cannot start `no-python`: No such file",
        "name it with",
    ]);
    let mut command = lab.ddprun(&["small.toml"]);
    let nothing = lab.path("nothing");
    fs::create_dir(&nothing).unwrap();
    command.env("PATH", nothing);
    let ended = spawn(command).wait();
    ended.has_code(2);
    ended.says(&["`data.name`", &line("name = \"python\""), "cannot start `python3`"]);
    refuses(&lab, 2, &["small.toml", "data.python=/bin/true"])
        .says(&["`data.python`", "ended by exit status: 0 before it was ready"]);
    refuses(&lab, 3, &["small.toml", "data.file=datasets.py"])
        .says(&["`data.file`", "`datasets.py` does not exist"]);
    let object = lab_of(&points_toml().replace("\"Points\"", "\"Point\""), CODE);
    let ended = refuses(&object, 2, &["small.toml"]);
    ended.says(&["`data.object`", &line("object"), "did you mean `Points`?"]);
    let options = lab_of(&points_toml().replace("n = 48", "n = 48, m = 1"), CODE);
    let ended = refuses(&options, 2, &["small.toml"]);
    ended.says(&["`data.options`", &line("options"), "unexpected keyword argument 'm'"]);
    let val = lab_of(&points_toml().replace("n = 12", "n = 12, m = 1"), CODE);
    refuses(&val, 2, &["small.toml"]).says(&["`data.val_options`", &line("val_options")]);
    let broken = lab_of(&points_toml(), "import os\nclass Points\n");
    let ended = refuses(&broken, 2, &["small.toml"]);
    ended.says(&[
        "`data.file`",
        &line("file"),
        "SyntaxError",
        "dataset.py, line 2",
        "class Points",
    ]);
    let missing = lab_of(&points_toml(), "import not_there\n");
    let ended = refuses(&missing, 2, &["small.toml"]);
    ended.says(&["`data.file`", "No module named 'not_there'", "dataset.py, line 1"]);
    let ended = refuses(&lab, 2, &["small.toml", "data.object=unknown_classes"]);
    ended.says(&["`unknown_classes` does not tell how many", "give it an attribute `classes`"]);
    refuses(&lab, 2, &["small.toml", "data.options.n=0"]).says(&["gives no train samples"]);
    refuses(&lab, 2, &["small.toml", "data.timeout=0s"]).says(&["`data.timeout`", "more than 0"]);
    refuses(&lab, 2, &["small.toml", "data.options.at=[nan]"])
        .says(&["`data.options", "must hold no number that is not finite"]);
    let flips = "data.transforms.train=[{ name = \"random_horizontal_flip\" }]";
    refuses(&lab, 2, &["small.toml", flips]).says(&["change images, but `python` holds arrays"]);
    lab.run_to(0, &["check", "small.toml"]);
}

#[test]
fn a_resumed_run_refuses_other_code_and_another_fingerprint() {
    if !has_python() {
        return;
    }
    let lab = points();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let more = ["resume", "small", "train.epochs=2"];
    lab.write("dataset.py", CODE.replace("3 * label", "4 * label"));
    lab.run_to(3, &more).says(&["the contents of `dataset.py` changed"]);
    lab.write("dataset.py", CODE);
    lab.run_to(0, &more).says(&["resumed after step 6"]);
    let own = |version: u32| {
        let own = format!(
            "    def fingerprint(self):\n        return open('version').read() + '{version}'\n"
        );
        CODE.replace("    def none", &(own + "\n    def none"))
    };
    let lab = lab_of(&points_toml(), &own(1));
    lab.write("version", "a");
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    lab.write("version", "b");
    lab.run_to(3, &more).says(&["the data set's own fingerprint is \"b1b1\", was \"a1a1\""]);
    lab.write("version", "a");
    lab.run_to(0, &[&more[..], &["data.timeout=2m"]].concat()).says(&["completed after step 12"]);
}
