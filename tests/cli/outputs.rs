//! What a run leaves: its folder, history, curves, logs and lines, and what the other verbs make of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rustix::process::Signal;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::{Lab, children};
use crate::harness::running::flowing;

/// [`BASE`] with a ResNet and curves.
fn small_resnet() -> String {
    BASE.replace("name = \"mlp\"\nhidden = [16]", "name = \"resnet8\"")
        .replace("sinks = [\"jsonl\", \"csv\"]", "sinks = [\"jsonl\", \"csv\", \"curves\"]")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    children(folder).iter().map(name).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn a_run_leaves_exactly_the_documented_files() {
    let lab = Lab::with(&small_resnet());
    lab.run_to(0, &["small.toml"]);
    let logs = ["experiment.toml", "resolved.toml", "run.json", "data.json", ".lock"];
    let logs = [&logs[..], &["environment.json"]].concat();
    let records = ["events.jsonl", "metrics.csv", "epochs.jsonl", "training_history.json"];
    let rest = ["curves.png", "curves.svg", "rank-0.log", "rank-1.log"];
    assert_eq!(names(&lab.run_folder()), set(&[&logs[..], &records, &rest].concat()));
    let links = ["latest", "best", "checkpoint_latest", "checkpoint_best"];
    let checkpoints = names(&lab.checkpoints());
    assert!(set(&links).is_subset(&checkpoints), "{checkpoints:?}");
    for step in checkpoints.difference(&set(&links)) {
        assert!(step.starts_with("step-"), "{step}");
        let files = ["MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json"];
        assert_eq!(names(&lab.checkpoints().join(step)), set(&files));
    }
    let asked = fs::read(lab.run_folder().join("experiment.toml")).unwrap();
    assert!(asked == fs::read(lab.path("small.toml")).unwrap(), "experiment.toml is as written");
    assert_eq!(names(&lab.path("")), set(&["small.toml", "data", "logs", "checkpoints"]));
    lab.is_clean();
}

#[test]
fn the_history_has_the_shape_that_plotting_scripts_read() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let text = fs::read_to_string(lab.run_folder().join("training_history.json")).unwrap();
    let history: Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<&String> = history.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["train_loss", "train_acc", "val_loss", "val_acc", "learning_rate"]);
    for (key, numbers) in history.as_object().unwrap() {
        let numbers: Vec<f64> =
            numbers.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
        assert_eq!(numbers.len(), 2, "{key}: one number per epoch");
        assert!(!key.ends_with("_acc") || numbers.iter().all(|acc| (1.0..=100.0).contains(acc)));
    }
    // The indentation of Python's `json.dump(history, file, indent=4)`.
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines[1]), ("{", "    \"train_loss\": ["));
    assert_eq!(lines[2].find(|c: char| c != ' '), Some(8), "{}", lines[2]);
    assert_eq!((lines[4], *lines.last().unwrap()), ("    ],", "}"));
}

#[test]
fn the_curves_are_pictures_with_labelled_axes() {
    let lab = Lab::with(&small_resnet());
    lab.run_to(0, &["small.toml"]);
    let png = lab.run_folder().join("curves.png");
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
    let picture = image::open(&png).unwrap().to_rgb8();
    let (width, height) = picture.dimensions();
    assert!((800..=4000).contains(&width) && (300..=3000).contains(&height), "{width}x{height}");
    let colors: BTreeSet<[u8; 3]> = picture.pixels().map(|pixel| pixel.0).collect();
    assert!(colors.len() > 20, "only {} colours", colors.len());
    let svg = fs::read_to_string(lab.run_folder().join("curves.svg")).unwrap();
    for label in ["epoch", "loss", "accuracy (%)", "train", "val", "small"] {
        assert!(svg.contains(&format!("\n{label}")), "`{label}` is missing");
    }
}

#[test]
fn what_is_no_terminal_gets_plain_lines() {
    let lab = Lab::new();
    let ended = lab.run_to(0, &["small.toml"]);
    ended.says(&["Use device (DDP): cpu, rank 0/2\n", "Use device (DDP): cpu, rank 1/2\n"]);
    ended.says(&["8 = 4 x 1 pass x 2 ranks; lr 0.001\n", "6 steps per epoch = 48 samples / 8"]);
    ended.says(&[
        "best val/loss ",
        "samples/s",
        "data ",
        "communication ",
        "training_history.json",
    ]);
    for (control, name) in [('\u{1b}', "escape code"), ('\r', "carriage return")] {
        assert!(!ended.stderr.contains(control), "{name} in\n{}", ended.stderr);
    }
    assert_eq!(ended.stdout, "", "stdout is data");
    let log = fs::read_to_string(lab.run_folder().join("rank-1.log")).unwrap();
    assert!(log.contains("Use device (DDP): cpu, rank 1/2") && log.contains("step 12/12"), "{log}");
}

#[test]
fn the_plan_is_data_and_changes_nothing() {
    let lab = Lab::new();
    let ended = lab.run_to(0, &["plan", "small.toml", "--json", "train.epochs=3"]);
    let plan: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((plan["format"].as_u64(), plan["plan"]["n_train"].as_u64()), (Some(1), None));
    assert_eq!(plan["plan"]["length"]["total_steps"], 18);
    assert_eq!(plan["plan"]["model"]["n_parameters"], 3 * 16 * 16 * 16 + 16 + 16 * 3 + 3);
    assert!(plan["keys"].to_string().contains("command_line"), "{}", plan["keys"]);
    let page = lab.run_to(0, &["plan", "small.toml"]).stdout;
    for words in ["8 = 4 x 1 pass x 2 ranks", "12,355 parameters", "train.batch_size", "small.toml"]
    {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    assert_eq!(names(&lab.path("")), set(&["small.toml"]));
}

#[test]
fn an_evaluation_measures_what_was_measured_in_training() {
    let lab = Lab::with(SLOW);
    lab.run_to(0, &["small.toml"]);
    let metrics = |event: &Value| -> BTreeMap<String, f64> {
        let metrics = event["metrics"].as_object().unwrap().iter();
        let metrics = metrics.filter(|(name, _)| name.starts_with("val/"));
        metrics.map(|(name, value)| (name.clone(), value.as_f64().unwrap())).collect()
    };
    let said: BTreeMap<u64, _> = lab
        .events()
        .iter()
        .filter(|event| event["event"] == "evaluated")
        .map(|event| (event["step"].as_u64().unwrap(), metrics(event)))
        .collect();
    let best = said.iter().min_by(|a, b| a.1["val/loss"].total_cmp(&b.1["val/loss"])).unwrap();
    let measured = lab.run_to(0, &["eval", "small", "--json"]);
    let measured: Value = serde_json::from_str(&measured.stdout).unwrap();
    assert_eq!(measured["step"].as_u64(), Some(*best.0));
    // And more than in training.
    let same = |found: &Value, said: &BTreeMap<String, f64>| {
        let mut found = metrics(found);
        assert!(found.contains_key("val/f1"), "{found:?}");
        found.retain(|name, _| said.contains_key(name));
        assert_eq!(found, *said);
    };
    same(&measured, best.1);
    let latest = lab.run_to(0, &["eval", "--json", "--latest"]);
    let latest: Value = serde_json::from_str(&latest.stdout).unwrap();
    same(&latest, &said[&60]);
    lab.is_clean();
}

#[test]
fn a_report_shows_every_epoch() {
    let lab = Lab::with(&small_resnet());
    lab.run_to(0, &["small.toml"]);
    fs::remove_file(lab.run_folder().join("curves.png")).unwrap();
    let svg = || fs::read_to_string(lab.run_folder().join("curves.svg")).unwrap();
    let drawn_by_the_run = svg();
    let page = lab.run_to(0, &["report"]).stdout;
    for words in ["epoch  train loss", "val acc", "learning rate", "1  ", "completed after step 12"]
    {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    let rows = page.lines().skip_while(|line| !line.starts_with("epoch  ")).skip(1);
    let epochs: Vec<&str> = rows.filter_map(|row| row.split_whitespace().next()).collect();
    assert!(epochs == ["*1", "2"] || epochs == ["1", "*2"], "the best is marked:\n{page}");
    assert!(lab.run_folder().join("curves.png").is_file(), "curves are drawn again");
    assert!(svg() == drawn_by_the_run, "as the run drew them, under the same title");
    lab.run_to(2, &["report", "absent"]).says(&["absent", "do: "]);
}

#[test]
fn the_resolved_experiment_can_be_run_and_gives_the_same_bits() {
    let asked = Lab::with(SLOW);
    asked.run_to(0, &["small.toml", "train.epochs=2", "distributed.devices=4"]);
    let resolved = fs::read_to_string(asked.run_folder().join("resolved.toml")).unwrap();
    let again = Lab::with(&resolved);
    again.run_to(0, &["small.toml"]);
    let model = |lab: &Lab| fs::read(lab.checkpoints().join("latest/model.safetensors")).unwrap();
    assert!(model(&asked) == model(&again));
    let twice = fs::read_to_string(again.run_folder().join("resolved.toml")).unwrap();
    assert_eq!(twice, resolved, "resolving changes nothing more");
}

#[test]
fn exported_weights_have_torchvisions_names_and_the_checkpoints_values() {
    let lab = Lab::with(&small_resnet());
    lab.run_to(0, &["small.toml"]);
    let latest = lab.checkpoints().join("latest");
    let exported = lab.path("out/weights.safetensors");
    fs::create_dir(lab.path("out")).unwrap();
    let args = ["checkpoint", "export", latest.to_str().unwrap(), exported.to_str().unwrap()];
    lab.run_to(0, &args).says(&["wrote `"]);
    let (bytes, saved) = (fs::read(&exported).unwrap(), latest.join("model.safetensors"));
    let saved = fs::read(saved).unwrap();
    let (exported, saved) =
        (SafeTensors::deserialize(&bytes).unwrap(), SafeTensors::deserialize(&saved).unwrap());
    for (name, shape) in [
        ("conv1.weight", &[16, 3, 3, 3][..]),
        ("bn1.running_mean", &[16]),
        ("bn1.num_batches_tracked", &[]),
        ("layer1.0.conv1.weight", &[16, 16, 3, 3]),
        ("fc.weight", &[3, 64]),
        ("fc.bias", &[3]),
    ] {
        let tensor =
            exported.tensor(name).unwrap_or_else(|_| panic!("{name}: {:?}", exported.names()));
        assert_eq!(tensor.shape(), shape, "{name}");
        assert!(tensor.data() == saved.tensor(name).unwrap().data(), "{name}");
    }
    assert_eq!(exported.len(), saved.len());
    let written = ["preprocessing.json", "preprocessor_config.json", "weights.safetensors"];
    assert_eq!(names(&lab.path("out")), set(&written));
}

#[test]
fn a_run_on_one_machine_owns_no_internet_socket() {
    let lab = Lab::new();
    let mut running = lab.start(&["small.toml", "train.epochs=1000000", "logging.every=10 steps"]);
    lab.wait_for_step(&mut running, 20);
    let processes = lab.processes();
    assert_eq!(processes.len(), 3, "{processes:?}");
    let owned: BTreeSet<String> = processes
        .keys()
        .flat_map(|pid| children(Path::new(&format!("/proc/{pid}/fd"))))
        .filter_map(|fd| {
            Some(fs::read_link(fd).ok()?.to_str()?.strip_prefix("socket:[")?.to_owned())
        })
        .map(|inode| inode.trim_end_matches(']').to_owned())
        .collect();
    assert!(owned.len() >= 2, "the parent speaks to its ranks through sockets: {owned:?}");
    for kind in ["tcp", "tcp6", "udp", "udp6"] {
        let table = fs::read_to_string(format!("/proc/net/{kind}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let inode = line.split_whitespace().nth(9).unwrap();
            assert!(!owned.contains(inode), "{kind} socket of the run: {line}");
        }
    }
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.is_clean();
}

#[test]
fn a_report_says_how_the_run_ended() {
    let lab = Lab::new();
    let ending = || lab.run_to(0, &["report"]).stdout;
    let failed = lab.run_with("forward=kill@1,3", &["small.toml"]);
    failed.has_code(5);
    assert!(
        ending().contains("\nfailed at step 3 (forward, exit 5): rank 1 was killed"),
        "{}",
        ending()
    );
    lab.run_to(0, &["resume"]);
    assert!(ending().contains("\ncompleted after step 12 in "), "{}", ending());
    lab.run_to(0, &["resume"]).says(&["already complete: all 12 steps are done"]);
    assert!(ending().contains("\ncompleted after step 12 in "), "{}", ending());
    lab.run_to(0, &["resume", "train.epochs=3"]);
    let page = ending();
    assert!(page.contains("18 steps = 3 epochs") && !page.contains("= 2 epochs"), "{page}");
    assert!(page.contains("\ncompleted after step 18 in "), "{page}");
    let diverged = Lab::new();
    diverged.run_to(4, &["small.toml", "fault.divergence_threshold=0.01"]);
    let page = diverged.run_to(0, &["report"]).stdout;
    assert!(page.contains("\nfailed at step ") && page.contains(", exit 4): "), "{page}");
    let early = Lab::new();
    early.run_with("joining=kill@1,0", &["small.toml"]).has_code(5);
    let page = early.run_to(0, &["report"]).stdout;
    assert!(page.contains("\nfailed at step 0 (joining, exit 5): "), "{page}");
}

#[test]
fn the_history_of_a_run_that_was_killed_is_completed_by_its_report() {
    let lab = Lab::with(&BASE.replace("epochs = 2", "epochs = 100000"));
    let mut running = lab.start(&["small.toml"]);
    lab.wait_for_step(&mut running, 40);
    rustix::process::kill_process_group(
        crate::harness::running::pid_of(running.pid()),
        Signal::KILL,
    )
    .unwrap();
    running.wait();
    let read = |name: &str| fs::read_to_string(lab.run_folder().join(name)).unwrap();
    let epochs = read("epochs.jsonl").lines().count();
    assert!(epochs >= 3, "{epochs}");
    let page = lab.run_to(0, &["report"]).stdout;
    assert!(page.contains("\nkilled after step ") && page.contains("`ddprun resume 2"), "{page}");
    let history: Value = serde_json::from_str(&read("training_history.json")).unwrap();
    assert_eq!(history["train_loss"].as_array().unwrap().len(), epochs);
}

#[test]
fn a_run_by_steps_has_curves_and_a_table_by_steps() {
    let text = BASE.replace("epochs = 2", "steps = 5").replace("\"csv\"]", "\"csv\", \"curves\"]");
    let lab = Lab::with(&(text + "\n[validation]\nevery = \"1 step\"\n"));
    let ended = lab.run_to(0, &["small.toml"]);
    ended.says(&["5 steps, less than one epoch\n", "step 2/5  train loss ", "  val loss "]);
    let svg = fs::read_to_string(lab.run_folder().join("curves.svg")).unwrap();
    assert!(svg.contains("\nstep") && !svg.contains("\nepoch"), "by steps");
    let page = lab.run_to(0, &["report"]).stdout;
    assert!(
        page.contains("\nstep  train loss  train acc  val loss  val acc  learning rate\n"),
        "{page}"
    );
    let rows = page.lines().skip_while(|line| !line.starts_with("step  ")).count();
    assert_eq!(rows, 1 + 5, "{page}");
    let history = fs::read_to_string(lab.run_folder().join("training_history.json")).unwrap();
    let history: Value = serde_json::from_str(&history).unwrap();
    assert_eq!(history["val_loss"].as_array().unwrap().len(), 1, "one epoch, cut short");
}

#[test]
fn the_last_line_of_a_run_that_can_go_on_is_the_command() {
    let lab = Lab::with(SLOW);
    let mut running = lab.start(&["small.toml"]);
    lab.wait_for_step(&mut running, 3);
    running.signal(Signal::TERM);
    let command = |stderr: &str| {
        let last = stderr.trim_end().lines().last().unwrap().to_owned();
        last.strip_prefix("continue with: ddprun ").unwrap_or_else(|| panic!("{stderr}")).to_owned()
    };
    let ended = running.wait();
    ended.has_code(75);
    let resume = command(&ended.stderr);
    let endless = ["train.epochs=100000", "train.time=1s"];
    let out_of_time = lab.run_to(0, &resume.split(' ').chain(endless).collect::<Vec<_>>());
    out_of_time.says(&["time limit reached after step "]);
    assert_eq!(command(&out_of_time.stderr), format!("{resume} train.time=..."));
}

#[test]
fn an_export_and_a_page_replace_a_file_only_if_they_are_asked_to() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    lab.run_to(0, &["small.toml", "train.epochs=1", "experiment.name=other"]);
    let thesis = |name: &str| drop(lab.write(name, "my thesis"));
    let is_kept = |name: &str| fs::read(lab.path(name)).unwrap() == b"my thesis";
    for (args, file) in [
        (&["checkpoint", "export", "small", "out/w.safetensors"][..], "out/w.safetensors"),
        (&["checkpoint", "export", "small", "out/m.onnx"], "out/preprocessing.json"),
        (&["report", "--html", "page.html"], "page.html"),
        (&["compare", "small", "other", "--out", "curves.png"], "curves.png"),
    ] {
        thesis(file);
        let refused = lab.run_to(2, args);
        refused.says(&[file, "exists already", "`--overwrite`"]);
        assert!(is_kept(file), "{file}");
        // All of it, or nothing.
        assert!(!refused.stderr.contains("wrote"), "{}", refused.stderr);
        lab.run_to(0, &[args, &["--overwrite"]].concat());
        assert!(!is_kept(file), "{file}");
    }
    // What is beside it is the same for each export of a run.
    lab.run_to(0, &["checkpoint", "export", "small", "out/n.onnx"]);
    lab.is_clean();
}

#[test]
fn an_export_takes_a_run_and_refuses_what_is_none() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let id = lab.run_folder().file_name().unwrap().to_str().unwrap().to_owned();
    let latest = lab.checkpoints().join("latest/model.safetensors");
    for run in ["small", &id, lab.checkpoints().to_str().unwrap()] {
        let args = ["checkpoint", "export", run, "w.safetensors", "--latest", "--overwrite"];
        lab.run_to(0, &args);
        let (exported, saved) =
            (fs::read(lab.path("w.safetensors")).unwrap(), fs::read(&latest).unwrap());
        let names = |bytes: &[u8]| -> BTreeSet<String> {
            let tensors = SafeTensors::deserialize(bytes).unwrap();
            tensors.names().into_iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(&exported), names(&saved), "{run}");
        fs::remove_file(lab.path("w.safetensors")).unwrap();
        lab.run_to(0, &["checkpoint", "verify", run]);
        lab.run_to(0, &["checkpoint", "show", run]);
    }
    let refused = lab.run_to(2, &["checkpoint", "export", "small", "model.pt"]);
    refused.says(&["`model.pt` would hold safetensors", "do: write `model.safetensors`"]);
    assert!(!lab.path("model.pt").exists());
    let refused = lab.run_to(2, &["checkpoint", "export", "small", "model.tflite"]);
    refused.says(&["`model.tflite` would hold safetensors", "do: write `model.safetensors`, or"]);
    for (name, meant) in [("m.onnxx", "write `m.onnx`"), ("m.safetensor", "write `m.safetensors`")]
    {
        lab.run_to(2, &["checkpoint", "export", "small", name]).says(&[name, meant, "`--format`"]);
    }
    lab.run_to(2, &["checkpoint", "export", "small", "m.json"]).says(&["m.json.safetensors`"]);
    let before = fs::read(&latest).unwrap();
    for name in ["model.safetensors", "model.onnx"] {
        let inside = lab.checkpoints().join("latest").join(name);
        let refused = lab.run_to(2, &["checkpoint", "export", "small", inside.to_str().unwrap()]);
        refused.says(&["would lie in a checkpoint", "do: name a file in another folder"]);
    }
    assert_eq!(fs::read(&latest).unwrap(), before);
    lab.run_to(0, &["checkpoint", "verify", "small"]);
    for verb in [&["export", "nosuch", "x.onnx"][..], &["show", "nosuch"], &["verify", "nosuch"]] {
        let ended = lab.run_to(2, &[&["checkpoint"], verb].concat());
        ended.says(&["error: there is no run or checkpoint `nosuch`", "do: name a run"]);
    }
}

#[test]
fn never_is_never_unless_the_run_is_stopped_or_the_best_are_asked_for() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "checkpoint.every=never"]);
    assert!(lab.steps().is_empty());
    let page = lab.run_to(0, &["plan", "small.toml", "checkpoint.every=never"]).stdout;
    assert!(
        flowing(&page).contains("only when the run is stopped early; kept: newest 2 "),
        "{page}"
    );
    let best = ["small.toml", "checkpoint.every=never", "checkpoint.keep_best=1"];
    let page = lab.run_to(0, &[&["plan"][..], &best].concat()).stdout;
    let line = "only when the run is stopped early and at each new lowest val/loss; kept: newest 2, lowest val/loss 1 ";
    assert!(flowing(&page).contains(line), "{page}");
    let other = Lab::new();
    other.run_to(0, &best);
    assert!(!other.steps().is_empty());
}
