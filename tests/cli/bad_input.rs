//! Experiments, data and folders that cannot be used: said at once, with the place and the remedy.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::experiments::BASE;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, spawn};
use crate::skipped::skipped;

/// Refused before any folder was made or any process started.
fn refuses(lab: &Lab, args: &[&str]) -> Ended {
    let before = children(&lab.path(""));
    let ended = lab.run_to(2, args);
    assert_eq!(children(&lab.path("")), before, "a refused experiment leaves nothing on disk");
    assert!(!ended.stderr.contains('\u{1b}'), "no colours in a file");
    lab.is_clean();
    ended
}

/// Refused for what is in `data/`, before a run folder was made.
fn refuses_data(lab: &Lab, args: &[&str]) -> Ended {
    let ended = lab.run_to(3, args);
    assert!(!lab.path("logs").exists() && !lab.path("checkpoints").exists());
    lab.is_clean();
    ended
}

#[test]
fn a_name_that_leaves_the_runs_folder_is_refused_and_nothing_is_made() {
    let lab = Lab::new();
    let long = "a".repeat(129);
    let names =
        ["../../x", "..", ".", "", "/tmp/x", "~", "~root", "a/b", "$HOME", "a b", "ä", &long];
    for name in names {
        let ended = refuses(&lab, &["small.toml", &format!("experiment.name={name:?}")]);
        ended.says(&["`experiment.name`", "cannot name a folder"]);
    }
    for name in [r#""a\nb""#, r#""\u001b[2J""#, r#""..\u202e""#] {
        lab.write("small.toml", BASE.replace("\"small\"", name));
        refuses(&lab, &["small.toml"]).says(&["cannot name a folder"]);
    }
}

#[test]
fn a_misspelt_command_is_not_taken_for_an_experiment() {
    let lab = Lab::new();
    let says =
        "error: `resum` is neither a file nor a command\n  do: did you mean `ddprun resume`?";
    refuses(&lab, &["resum"]).says(&[says]);
    refuses(&lab, &["sweeep", "small.toml"]).says(&["did you mean `ddprun sweep`?"]);
    refuses(&lab, &["work"]).says(&["`work` is neither a file nor a command"]);
    fs::write(lab.path("plam"), BASE).unwrap();
    lab.run_to(0, &["plam", "train.epochs=1"]);
}

#[test]
fn nothing_that_an_experiment_or_a_path_says_acts_on_the_terminal() {
    let lab = Lab::new();
    lab.write("raw.toml", "[experiment]\nname = \"a\x1b[31mb\" # \x1b[2J\u{202e}\n");
    refuses(&lab, &["raw.toml"]).says(&["name = \"a?[31mb\" # ?[2J???"]);
    lab.write("key.toml", format!("\"\\u001b[31mkey\" = 1\n{BASE}"));
    refuses(&lab, &["key.toml"]).says(&["\\u{1b}[31mkey"]);
    let elsewhere = "[logging]\ndir = \"/proc/\\u001b[31mx\"";
    lab.write("small.toml", BASE.replace("[logging]", elsewhere));
    for (code, args) in [
        (6, ["small.toml", "train.epochs=1"]),
        (2, ["resume", "\x1b[31mx"]),
        (2, ["report", "\x1b[31mx"]),
    ] {
        let ended = lab.run(&args);
        assert!(ended.stderr.contains("\\u{1b}[31mx"), "{args:?}: {}", ended.stderr);
        assert!(!(ended.stderr + &ended.stdout).contains('\x1b'), "{args:?}");
        assert_eq!(ended.code, code, "{args:?}");
    }
}

#[test]
fn a_misspelt_key_is_shown_with_its_line_and_the_right_name() {
    let lab = Lab::new();
    lab.write("small.toml", BASE.replace("lr = 1e-3", "lrr = 1e-3"));
    let line = BASE.lines().position(|line| line.starts_with("lr =")).unwrap() + 1;
    let place = format!("small.toml:{line}:1");
    let ended = refuses(&lab, &["small.toml"]);
    ended.says(&["`optimizer.lrr`", &place, "^^^", "did you mean `lr`?", "nothing was started"]);
}

#[test]
fn a_misspelt_key_of_the_command_line_is_blamed_on_the_command_line() {
    let ended = refuses(&Lab::new(), &["small.toml", "train.epoch=3"]);
    ended.says(&["`train.epoch`", "command line", "did you mean `train.epochs`?"]);
}

#[test]
fn a_value_of_the_wrong_type_is_shown_with_what_it_must_be() {
    let lab = Lab::new();
    lab.write("small.toml", BASE.replace("epochs = 2", "epochs = \"two\""));
    let ended = refuses(&lab, &["small.toml"]);
    ended.says(&["`train.epochs`", "must be a whole number", "not `\"two\"`", "small.toml:"]);
}

#[test]
fn all_problems_are_shown_at_once() {
    let lab = Lab::new();
    let text = BASE.replace("seed = 7", "sed = 7").replace("\"adamw\"", "\"adamx\"");
    lab.write("small.toml", text.replace("epochs = 2", "epochs = -1"));
    let ended = refuses(&lab, &["small.toml", "data.num_workers=many"]);
    ended.says(&["`experiment.sed`", "`optimizer.name`", "`train.epochs`", "`data.num_workers`"]);
    ended.says(&["4 problems; nothing was started"]);
}

#[test]
fn a_file_that_is_no_toml_is_shown_where_it_breaks() {
    let lab = Lab::new();
    lab.write("small.toml", BASE.replace("lr = 1e-3", "lr = = 1e-3"));
    refuses(&lab, &["small.toml"]).says(&["small.toml:27:", "nothing was started"]);
}

#[test]
fn an_experiment_file_that_does_not_exist_is_named() {
    refuses(&Lab::new(), &["absent.toml"]).says(&["`absent.toml` cannot be read", "No such file"]);
}

#[test]
fn a_batch_larger_than_the_data_set_is_refused_with_both_numbers() {
    let ended =
        refuses(&Lab::new(), &["small.toml", "train.batch_size=32", "train.global_batch_size=64"]);
    ended.says(&["a step takes 64 samples", "only 48", "data.drop_last = false"]);
}

#[test]
fn a_world_that_does_not_divide_the_batch_is_told_the_nearest_batch_that_fits() {
    let ended = refuses(&Lab::new(), &["small.toml", "distributed.devices=3"]);
    ended.says(&[
        "8 is not a multiple of 4 samples x 3 ranks = 12",
        "use the nearest `global_batch_size`: 12",
    ]);
}

#[test]
fn a_world_that_does_not_divide_the_shards_is_told_the_worlds_that_do() {
    let args = ["small.toml", "distributed.shards=4", "distributed.devices=3"];
    let given = ["train.batch_size=auto", "train.global_batch_size=24"];
    let ended = refuses(&Lab::new(), &[&args[..], &given[..]].concat());
    ended.says(&["`distributed.shards`", "4", "3 ranks"]);
}

#[test]
fn a_backend_that_was_not_built_in_is_named_with_the_one_that_works() {
    let lab = Lab::new();
    lab.write("small.toml", BASE.replace("devices = 2", "devices = 2\nbackend = \"nccl\""));
    let ended = refuses(&lab, &["small.toml"]);
    ended.says(&["`distributed.backend`", "without `nccl`", "small.toml:", "backend = \"shm\""]);
    lab.write("small.toml", BASE.replace("devices = 2", "devices = [0, 3]"));
    let ended = refuses(&lab, &["small.toml"]);
    let rebuild = "cargo build --release --features cuda";
    ended.says(&["`distributed.devices`", "without `cuda`", "small.toml:", "[0, 3]", rebuild]);
}

#[test]
fn more_ranks_than_a_machine_can_have_are_refused_before_anything_starts() {
    let lab = Lab::new();
    lab.write("small.toml", BASE.replace("devices = 2", "devices = 65"));
    for args in [&["small.toml"][..], &["plan", "small.toml"]] {
        let ended = refuses(&lab, args);
        ended.says(&["`distributed.devices`", "gives 65 ranks", "small.toml:", "devices = 65"]);
    }
}

#[test]
fn half_of_a_launchers_variables_is_refused_by_name() {
    let lab = Lab::new();
    let mut command = lab.ddprun(&["small.toml"]);
    command.env("RANK", "0");
    let ended = spawn(command).wait();
    ended.has_code(2);
    ended.says(&["has `RANK`, but not `WORLD_SIZE`"]);
    lab.is_clean();
}

/// A lab whose two-class photos are whole.
fn photos() -> Lab {
    let lab = Lab::new();
    lab.write_photos();
    lab
}

#[test]
fn a_data_folder_that_does_not_exist_is_named_with_what_it_should_hold() {
    let lab = photos();
    fs::remove_dir_all(lab.path("data/val")).unwrap();
    let ended = refuses_data(&lab, &["photos.toml"]);
    let what = "`data.val_dir`: the validation folder `data/val` does not exist";
    ended.says(&[what, "photos.toml:", "help: ", "class"]);
    lab.write_photos();
    let ended = refuses_data(&lab, &["photos.toml", "data.train_dir=data/trian"]);
    ended.says(&["command line:1:16", "did you mean `data/train`?"]);
}

#[test]
fn a_class_folder_without_an_image_is_named() {
    let lab = photos();
    fs::create_dir(lab.path("data/train/green")).unwrap();
    fs::create_dir(lab.path("data/val/green")).unwrap();
    let ended = refuses_data(&lab, &["photos.toml"]);
    ended.says(&["class folder `data/train/green` contains no images", "do: "]);
}

#[test]
fn class_lists_that_differ_are_shown() {
    let lab = photos();
    lab.write_image("data/train/green/1.png", [0, 200, 0]);
    lab.write_image("data/val/gren/1.png", [0, 200, 0]);
    let ended = refuses_data(&lab, &["photos.toml"]);
    ended.says(&[
        "class folders differ",
        "only in `data/train`: `green`",
        "only in `data/val`: `gren`",
    ]);
}

/// The image `name` becomes `content`, and the run ends with the file's name.
fn stops_at(name: &str, content: impl AsRef<[u8]>) {
    let lab = photos();
    let path = lab.path("data/train/red").join(name);
    fs::write(&path, content).unwrap();
    let ended = lab.run_to(3, &["photos.toml"]);
    ended.says(&["error: ", "where: rank ", "saved: ", "do:  ", "on_bad_sample"]);
    ended.says(&[&format!("data/train/red/{name}")]);
    lab.is_clean();
}

#[test]
fn an_empty_image_file_stops_the_run_and_is_named() {
    stops_at("3.png", b"");
}

#[test]
fn a_truncated_image_stops_the_run_and_is_named() {
    let lab = photos();
    let whole = fs::read(lab.path("data/train/red/5.png")).unwrap();
    stops_at("5.png", &whole[..whole.len() / 2]);
}

#[test]
fn a_text_file_with_the_name_of_an_image_stops_the_run_and_is_named() {
    stops_at("6.jpg", b"this is no image");
}

#[test]
fn bad_images_are_replaced_or_left_out_and_named_whichever_rank_met_them() {
    let lab = photos();
    let whole = fs::read(lab.path("data/train/red/5.png")).unwrap();
    lab.write("data/train/red/3.png", b"");
    lab.write("data/train/red/5.png", &whole[..whole.len() / 2]);
    // Rank 0 evaluates the first chunk of four, the blue ones; rank 1 the other.
    lab.write("data/val/red/2.png", b"");
    let args = ["photos.toml", "data.on_bad_sample=skip", "data.max_bad_fraction=0.125"];
    let ended = lab.run_to(0, &args);
    ended.says(&["2 of 16 training samples cannot be read and were replaced in epoch 1"]);
    ended.says(&["data/train/red/3.png", "data/train/red/5.png", "completed after step 4"]);
    ended.says(&["1 of 8 validation samples cannot be read and were left out", "val/red/2.png"]);
    let events = lab.events();
    let of = |name: &str| -> Vec<_> { events.iter().filter(|e| e["event"] == name).collect() };
    let counts: Vec<_> = of("unreadable")
        .iter()
        .map(|e| (e["split"].as_str().unwrap(), e["unreadable"].as_u64().unwrap()))
        .collect();
    let epoch = [("training", 2), ("validation", 1)];
    assert_eq!(counts, [epoch, epoch].concat());
    assert!(
        of("unreadable")
            .iter()
            .all(|e| e["first"].as_array().unwrap().len() as u64 == e["unreadable"])
    );
    assert!(of("evaluated").iter().all(|evaluated| evaluated["samples"] == 7), "{events:#?}");
    let ended = lab.run_to(0, &["eval"]);
    ended.says(&["1 of 8 validation samples cannot be read"]);
    let report = lab.run_to(0, &["report"]);
    assert!(report.stdout.contains("2 of 16 training samples cannot be read"), "{}", report.stdout);
    lab.is_clean();
}

#[test]
fn more_bad_images_than_are_tolerated_end_the_run_with_their_number() {
    let lab = photos();
    for name in ["3.png", "5.png"] {
        lab.write(&format!("data/train/red/{name}"), b"");
    }
    let args = ["photos.toml", "data.on_bad_sample=skip"];
    let ended = lab.run_to(3, &args);
    ended.says(&["2 of 16 training samples cannot be read", "`data.max_bad_fraction` = 0.1"]);
    ended.says(&["data/train/red/3.png", "do: ", "raise `data.max_bad_fraction`"]);
    lab.is_clean();
    // Nothing that was computed before depends on it.
    lab.run_to(0, &["photos.toml", "data.on_bad_sample=skip", "data.max_bad_fraction=0.2"]);
}

#[test]
fn an_evaluation_of_which_nothing_can_be_read_is_an_error_and_never_a_metric() {
    let lab = photos();
    for class in ["blue", "red"] {
        for index in 0..4 {
            lab.write(&format!("data/val/{class}/{index}.png"), b"");
        }
    }
    let args = ["photos.toml", "data.on_bad_sample=skip", "data.max_bad_fraction=1.0"];
    let ended = lab.run_to(3, &args);
    ended.says(&["none of the 8 validation samples can be read", "data/val/blue/0.png", "do: "]);
    assert!(lab.events().iter().all(|event| event["event"] != "evaluated"));
    lab.is_clean();
}

#[test]
fn skipped_images_have_the_same_substitutes_at_any_world_size() {
    let models = ["1", "2"].map(|devices| {
        let lab = photos();
        lab.write("data/train/red/3.png", b"");
        let devices = format!("distributed.devices={devices}");
        let shards = ["distributed.shards=2", "train.batch_size=auto"];
        let args = ["photos.toml", "data.on_bad_sample=skip", &devices];
        lab.run_to(0, &[&args[..], &shards[..]].concat());
        fs::read(lab.checkpoints().join("latest/model.safetensors")).unwrap()
    });
    assert!(models[0] == models[1]);
}

#[test]
fn folders_that_cannot_be_made_are_named_before_anything_is_trained() {
    for key in ["logging.dir", "checkpoint.dir"] {
        let lab = Lab::new();
        let below = [format!("{key}=small.toml/below"), format!("{key}=/proc/below")];
        for change in below {
            let ended = lab.run_to(6, &["small.toml", &change]);
            ended.says(&["cannot create the folder", "below/small", "why: ", "do: ", key]);
            assert!(!ended.stderr.contains("Use device"), "{}", ended.stderr);
            lab.is_clean();
        }
    }
}

#[test]
fn a_file_where_a_folder_is_to_be_is_refused_at_its_key() {
    let lab = Lab::new();
    for key in ["logging.dir", "checkpoint.dir"] {
        let ended = refuses(&lab, &["small.toml", &format!("{key}=small.toml")]);
        ended.says(&[&format!("`{key}`: `small.toml` is a file, not a folder"), "command line:1:"]);
    }
}

/// Runs the binary where `checkpoints` is a file system of `size`; `None` where that is not
/// allowed.
pub(crate) fn on_small_disk(lab: &Lab, size: &str, args: &[&str]) -> Option<Ended> {
    let script = "mount -t tmpfs -o size=$1 none checkpoints || exit 99\nshift\n\
        \"$@\"; code=$?\nls -A checkpoints/small/* | grep -v '^\\.lock' >left.txt\n\
        \"$1\" checkpoint verify checkpoints/small/*/ >verified.txt 2>&1\nexit $code";
    Command::new("unshare").arg("--version").output().ok()?;
    fs::create_dir_all(lab.path("checkpoints")).unwrap();
    let mut command = lab.ddprun(&[]);
    let program = command.get_program().to_owned();
    let mut shell = Command::new("unshare");
    shell.args(["-Urm", "sh", "-c", script, "sh", size]).arg(program).args(args);
    shell.current_dir(lab.path("")).envs(
        command.env("LC_ALL", "C").get_envs().filter_map(|(name, value)| Some((name, value?))),
    );
    let ended = spawn(shell).wait();
    (ended.code != 99 && Path::new(&lab.path("left.txt")).exists()).then_some(ended)
}

#[test]
fn a_disk_that_fills_up_leaves_the_checkpoints_before_it_untouched() {
    let lab = Lab::new();
    // A checkpoint is about 150 KB: two of them fit, a third beside them does not.
    let args = ["small.toml", "checkpoint.every=2 steps", "checkpoint.keep_last=9"];
    let Some(ended) = on_small_disk(&lab, "400k", &args) else {
        skipped("no file system of its own (`unshare -Urm`)");
        return;
    };
    ended.has_code(6);
    ended.says(&["error: cannot ", "checkpoints/small/", "No space left", "saved: step "]);
    ended.says(&["do:    make room", "ddprun resume"]);
    let left = fs::read_to_string(lab.path("left.txt")).unwrap();
    assert_eq!(left.matches("step-").count(), 2, "{left}");
    assert!(!left.contains("tmp"), "{left}");
    let newest = left.split_whitespace().rfind(|name| name.starts_with("step-")).unwrap();
    assert!(ended.stderr.contains(&format!("/{newest}`")), "{newest}: {}", ended.stderr);
    let verified = fs::read_to_string(lab.path("verified.txt")).unwrap();
    assert_eq!(verified.matches(": intact").count(), 2, "{verified}");
    lab.is_clean();
}

#[test]
fn a_variable_with_one_underscore_is_told_the_right_one() {
    let lab = Lab::new();
    let mut command = lab.ddprun(&["plan", "small.toml"]);
    command.env("DDPRUN_TRAIN_BATCH_SIZE", "8");
    let ended = spawn(command).wait();
    ended.has_code(2);
    ended.says(&["two underscores", "`DDPRUN_TRAIN__BATCH_SIZE`"]);
}

#[test]
fn the_mode_of_a_checkpoint_follows_from_its_metric() {
    let lab = Lab::new();
    let accuracy = ["plan", "small.toml", "checkpoint.monitor=val/accuracy"];
    lab.run_to(0, &accuracy);
    let ended = lab.run_to(2, &[&accuracy[..], &["checkpoint.mode=min"]].concat());
    ended.says(&["would keep the worst `val/accuracy`", "checkpoint.mode=min", "^^^"]);
}

#[test]
fn an_experiment_in_the_place_of_a_run_is_told_so() {
    let lab = Lab::new();
    let ended = lab.run_to(2, &["eval", "small.toml"]);
    ended.says(&["name a run of that experiment"]);
}
