//! The commands of the pages that look at runs, predict, export and submit: each is run on small
//! runs that have the names which the pages use. What trains is planned by `docs`.

use std::fs;
use std::path::Path;
use std::process::Command;

use ddprun::config;
use ddprun::kinds::Kinds;
use image::{Rgb, RgbImage};

use crate::docs::{Documented, blocks, documented, project, read};
use crate::harness::lab::{Lab, children};

/// Commands that only a job, another run, more trials or a browser gives a meaning.
const PARSED: [&str; 5] = ["serve", "cancel", "sample", "logs -f 4711", "compare sweep_quickstart"];

/// What makes a run of the quickstart take a second.
const TINY: [&str; 6] = [
    "data.train_per_class=8",
    "data.val_per_class=2",
    "data.dir=data/tiny",
    "distributed.threads_per_rank=1",
    "train.steps=1",
    "~expect",
];

/// A folder with runs called `quickstart` and `photos` and a sweep, with what the pages name beside
/// them.
fn lab() -> Lab {
    let lab = Lab::new();
    for path in children(&project("experiments")) {
        if path.extension().is_some_and(|end| end == "toml") {
            let name = format!("experiments/{}", path.file_name().unwrap().to_str().unwrap());
            lab.write(&name, read(&name));
        }
    }
    let quickstart = "experiments/quickstart.toml";
    lab.run_to(0, &[&[quickstart][..], &TINY].concat());
    let sweep = ["sweep.name=sweep_quickstart", "optimizer.lr=0.1,0.2"];
    lab.run_to(0, &[&["sweep", quickstart][..], &sweep, &TINY].concat());
    let draw = |path: String, red: u8| {
        let path = lab.write(&path, "");
        RgbImage::from_pixel(16, 16, Rgb([red, 90, 9])).save(path).unwrap();
    };
    for (part, n) in [("photos/train", 8), ("photos/val", 4), ("other", 2)] {
        for (class, red) in [("ants", 40), ("bees", 200)] {
            (0..n).for_each(|i| draw(format!("data/{part}/{class}/{i}.png"), red + i));
        }
    }
    for path in ["photos/a.png", "a.jpg", "cat.jpg"] {
        draw(path.to_owned(), 7);
    }
    lab.run_to(0, &["init", "data/photos"]);
    lab.run_to(0, &["photos.toml", "train.steps=1", "train.precision=fp32"]);
    lab.run_to(0, &["checkpoint", "export", "photos", "model.safetensors"]);
    // The pages export another run there.
    for name in ["preprocessing.json", "preprocessor_config.json"] {
        drop(fs::remove_file(lab.path(name)));
    }
    lab.write("x.toml", fs::read(lab.path("photos.toml")).unwrap());
    let clusters = blocks(&read("docs/clusters.md")).into_iter();
    let clusters = clusters.filter(|block| block.text.starts_with("[cluster."));
    let place = lab.path("mirror");
    fs::create_dir(&place).unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-a").args(["logs", "checkpoints"].map(|folder| lab.path(folder))).arg(place);
    assert!(copy.status().unwrap().success());
    lab.write("ddprun.toml", clusters.map(|block| block.text).collect::<String>());
    lab
}

/// The words of a command as they are run here; `None` of one that is only parsed.
fn adapted(lab: &Lab, command: &Documented) -> Option<Vec<String>> {
    let id = |name: &str| {
        let folder =
            children(&lab.path(&format!("logs/{name}"))).into_iter().find(|path| path.is_dir());
        folder.unwrap().file_name().unwrap().to_str().unwrap().to_owned()
    };
    let own = |word: &String| match word.as_str() {
        "20261123-0207" => id("quickstart"),
        "20261123-0311" => id("photos"),
        "RUN" => "quickstart".to_owned(),
        _ => word.clone(),
    };
    let mut words: Vec<String> = command.words.iter().map(own).collect();
    let from = words.iter().position(|word| word == "--from");
    if let Some(at) = from.filter(|_| words[0] == "resume") {
        match words[at + 1].as_str() {
            "rclone" => words.splice(at + 1.., ["cp -a mirror/. {folder}".to_owned()]),
            _ => words.splice(at + 1..=at + 1, ["mirror".to_owned()]),
        };
    }
    let line = words.join(" ");
    // Runs that take minutes.
    let is_long = ["airbench94", "chat-tiny", "lora-tiny", "dpo-tiny"];
    if PARSED.iter().any(|start| line.starts_with(start))
        || is_long.iter().any(|name| line.contains(name))
    {
        return None;
    }
    match words[0].as_str() {
        "submit" if !words.contains(&"--print".to_owned()) => words.push("--print".to_owned()),
        "logs" => words.retain(|word| word != "-f"),
        "predict" => {
            let ranks = command.flag(&["--nproc-per-node"]);
            words
                .extend(ranks.into_iter().flat_map(|n| ["--nproc-per-node", n].map(str::to_owned)));
            words.push("--overwrite".to_owned());
        }
        "resume" => {
            words.retain(|word| !word.starts_with("train.epochs"));
            let saved = children(&lab.path("checkpoints")).len();
            words.push(format!("train.steps={}", 2 + saved));
        }
        "init" | "token" => {
            let made = ["quickstart.toml", "photos.toml", "run.token"];
            for name in made {
                drop(fs::remove_file(lab.path(name)));
            }
        }
        _ => {}
    }
    Some(words)
}

#[test]
fn every_command_of_the_pages_that_needs_no_training_runs() {
    let lab = lab();
    let vocabulary = Kinds::default().vocabulary();
    let mut n_run = 0;
    for command in documented() {
        let words = &command.words;
        let is_training =
            words.iter().any(|word| Path::new(word).extension().is_some_and(|it| it == "toml"))
                && !["sweep", "submit", "eval", "check"].contains(&words[0].as_str());
        let has_place = words.iter().any(|word| word.contains('<'));
        if is_training || has_place || words[0].starts_with('-') || words[0].contains('=') {
            continue;
        }
        let is_whole = words[0] == "sweep" && !["--status", "ask", "tell"].contains(&&*words[1]);
        if is_whole {
            let file = lab.path(&words[1]);
            let own = words[2..].iter().take_while(|word| *word != "--from");
            let words: Vec<String> = own.filter(|word| !word.starts_with("--")).cloned().collect();
            if let Err(problems) = config::sweep::load(&file, &words, &vocabulary) {
                panic!("{command:?}:\n{}", problems.page(false, 100));
            }
            continue;
        }
        match adapted(&lab, &command) {
            Some(words) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let ended = lab.run(&words);
                assert_eq!(ended.code, 0, "{words:?}\n{}\n{}", ended.stdout, ended.stderr);
                n_run += 1;
            }
            None => drop(lab.run_to(0, &[words[0].as_str(), "--help"])),
        }
    }
    assert!(n_run > 35, "{n_run} commands were run");
    lab.is_clean();
}
