//! Names of the Hugging Face hub in an experiment, against a server on this machine.

use std::fs;
use std::time::Duration;

use test_support::hub_server::{Fault, HubServer, etag};

use crate::harness::experiments::BASE;
use crate::harness::lab::Lab;
use crate::harness::running::{Ended, flowing, spawn};

/// A lab with trained weights, and a hub that has them as `me/small`.
struct Scene {
    lab: Lab,
    hub: HubServer,
    weights: Vec<u8>,
    commit: String,
}

impl Scene {
    fn new() -> Self {
        let lab = Lab::new();
        lab.run_to(0, &["small.toml", "train.epochs=1"]);
        let best = lab.checkpoints().join("best");
        lab.run_to(0, &["checkpoint", "export", best.to_str().unwrap(), "weights.safetensors"]);
        let weights = fs::read(lab.path("weights.safetensors")).unwrap();
        let hub = HubServer::new();
        let commit =
            hub.publish("me/small", &[("README.md", b"hi"), ("model.safetensors", &weights)]);
        let named = BASE.replace("hidden = [16]", "hidden = [16]\npretrained = \"hf:me/small\"");
        lab.write("named.toml", named.replace("name = \"small\"", "name = \"named\""));
        hub.take_requests();
        Self { lab, hub, weights, commit }
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.lab.ddprun(args);
        command.env("HF_ENDPOINT", &self.hub.endpoint).env_remove("HF_HUB_OFFLINE");
        command
    }

    #[track_caller]
    fn run_to(&self, code: i32, args: &[&str]) -> Ended {
        let ended = spawn(self.command(args)).wait();
        ended.has_code(code);
        ended
    }

    fn paths_of_requests(&self) -> Vec<String> {
        self.hub.take_requests().into_iter().map(|request| request.path).collect()
    }
}

#[test]
fn weights_by_name_are_fetched_once_by_one_process_and_start_the_run() {
    let scene = Scene::new();
    let given = scene.run_to(0, &["small.toml", "model.pretrained=weights.safetensors"]);
    let named = scene.run_to(0, &["named.toml"]);
    // Same weights, same seed: the same numbers.
    let last = |ended: &Ended| {
        let line = ended.stderr.lines().find(|line| line.contains("step 12/12  loss"));
        let line = line.unwrap_or_else(|| panic!("{}", ended.stderr)).to_owned();
        line.split("  lr").next().unwrap().to_owned()
    };
    assert_eq!(last(&named), last(&given));
    let commit = &scene.commit;
    named.says(&[&format!("fetching hf:me/small@{commit}/model.safetensors (")]);
    let fetched = scene.paths_of_requests();
    assert_eq!(
        fetched.iter().filter(|path| *path == "/me/small/model.safetensors").count(),
        1,
        "{fetched:?}"
    );
    assert!(!fetched.iter().any(|path| path.ends_with("README.md")), "{fetched:?}");
    // Now it is here; and without a network, too.
    let again = scene.run_to(0, &["named.toml"]);
    assert!(!again.stderr.contains("fetching"), "{}", again.stderr);
    scene.hub.take_requests();
    let offline = spawn({
        let mut command = scene.command(&["named.toml"]);
        command.env("HF_HUB_OFFLINE", "1");
        command
    });
    offline.wait().has_code(0);
    assert_eq!(scene.paths_of_requests(), [""; 0]);
    // What is stored means this commit for ever.
    let folder = crate::harness::lab::children(&scene.lab.path("logs/named")).remove(0);
    let resolved = fs::read_to_string(folder.join("resolved.toml")).unwrap();
    assert!(
        resolved.contains(&format!("models--me--small/snapshots/{commit}/model.safetensors")),
        "{resolved}"
    );
    scene.lab.run_to(0, &["resume", "named", "train.epochs=3"]);
}

#[test]
fn plan_and_sweep_and_eval_take_names() {
    let scene = Scene::new();
    scene.run_to(0, &["plan", "named.toml"]);
    assert!(scene.paths_of_requests().contains(&"/me/small/model.safetensors".to_owned()));
    scene.run_to(0, &["eval", "--weights", "hf:me/small", "small.toml"]);
    scene.lab.write(
        "tune.toml",
        "schema = 1\nbase = \"named.toml\"\n[sweep]\nmetric = \"val/loss\"\ndevices_per_trial = 2\n\
         concurrent_trials = 1\n[sweep.parameters]\n\"optimizer.lr\" = [1e-3, 1e-2]\n",
    );
    scene.paths_of_requests();
    scene.run_to(0, &["sweep", "tune.toml"]);
    let asked = scene.paths_of_requests();
    assert_eq!(asked.iter().filter(|path| path.contains("/revision/")).count(), 1, "{asked:?}");
}

#[test]
fn tables_of_data_are_fetched_by_name() {
    let scene = Scene::new();
    let rows = (0..200).fold(String::new(), |rows, i| {
        rows + &format!("{},{},{}\n", i % 7, i % 5, ["a", "b"][i % 2])
    });
    scene
        .hub
        .publish("datasets/me/table", &[("train.csv", format!("x,y,label\n{rows}").as_bytes())]);
    let table = "name = \"csv\"\ntrain_file = \"hf:me/table/train.csv\"\ntarget = \"label\"\nval_fraction = 0.2";
    let kept = BASE.lines().filter(|line| {
        !["dir =", "classes", "train_per", "val_per", "image_size"]
            .iter()
            .any(|key| line.starts_with(key))
    });
    let experiment = kept.collect::<Vec<_>>().join("\n").replace("name = \"shapes\"", table);
    scene.lab.write("table.toml", experiment);
    scene.run_to(0, &["table.toml"]);
    let whole = scene.run_to(2, &["table.toml", "data.train_file=hf:me/table"]);
    whole.says(&[
        "`data.train_file`",
        "many files, of which one is meant",
        "`hf:datasets/me/table/train.csv`",
    ]);
}

#[test]
fn a_name_that_leads_nowhere_is_drawn_on_its_key() {
    let scene = Scene::new();
    scene.run_to(0, &["plan", "named.toml"]);
    let page = |code, change: &str| {
        let ended = scene.run_to(code, &["named.toml", &format!("model.pretrained={change}")]);
        flowing(&ended.stderr).replace(&scene.hub.endpoint, "HUB")
    };
    let misspelt = page(2, "hf:me/smal");
    assert!(misspelt.contains("there is no `hf:me/smal` on HUB, or it is private"), "{misspelt}");
    assert!(
        misspelt.contains("did you mean `hf:me/small`?") && misspelt.contains("command line"),
        "{misspelt}"
    );
    assert!(page(2, "hf:small").contains("`hf:small` is not a name on the hub"));
    scene.hub.publish("me/pickled", &[("pytorch_model.bin", b"x")]);
    let pickled = page(2, "hf:me/pickled");
    assert!(pickled.contains("has no weights as safetensors"), "{pickled}");
    assert!(pickled.contains("it has pytorch_model.bin"), "{pickled}");
    scene.hub.gate("me/pickled");
    assert!(page(2, "hf:me/pickled").contains("is gated"));
    let refused = scene.run_to(2, &["small.toml", "checkpoint.dir=hf:me/small"]);
    refused.says(&["`checkpoint.dir`", "which nothing is written to"]);
    let gone = spawn({
        let mut command = scene.command(&["named.toml", "model.pretrained=hf:you/other"]);
        command.env("HF_ENDPOINT", "http://127.0.0.1:9");
        command
    });
    let gone = gone.wait();
    gone.has_code(6);
    gone.says(&[
        "`hf:you/other` cannot be fetched: http://127.0.0.1:9 does not answer",
        "HTTPS_PROXY",
    ]);
    assert_eq!(crate::harness::lab::children(&scene.lab.path("logs")).len(), 1, "no run began");
}

#[test]
fn an_interrupted_fetch_is_continued_by_the_next_start() {
    let scene = Scene::new();
    let half = scene.weights.len() / 2;
    scene.hub.put("me/small/model.safetensors", Fault::Cut(half));
    scene.hub.put("me/small/model.safetensors", Fault::Silent(Duration::from_secs(10)));
    let running = spawn(scene.command(&["named.toml"]));
    let incomplete = scene
        .lab
        .path("hf/hub/models--me--small/blobs")
        .join(format!("{}.incomplete", etag(&scene.weights)));
    crate::harness::running::until("half of the file is here", || {
        fs::metadata(&incomplete).is_ok_and(|found| found.len() == half as u64)
    });
    running.signal(rustix::process::Signal::INT);
    running.wait().has_code(130);
    assert!(incomplete.exists());
    scene.hub.take_requests();
    scene.run_to(0, &["named.toml"]);
    let ranges: Vec<_> =
        scene.hub.take_requests().into_iter().filter_map(|request| request.range).collect();
    // The hub is asked, and then the host that it redirects to.
    assert_eq!(ranges, [format!("bytes={half}-"), format!("bytes={half}-")]);
}

#[test]
fn well_known_data_are_fetched_and_checked() {
    let lab = Lab::new();
    let hub = HubServer::new();
    let file = "file = \"data/ETTh1.csv\"\nseq_len = 24\npred_len = 8\ndownload = true";
    lab.write("series.toml", read_experiment(file));
    let run = |code: i32, args: &[&str]| {
        let mut command = lab.ddprun(args);
        command.env_remove("HF_HUB_OFFLINE");
        command.env("DDPRUN_DATA_MIRROR", format!("{}/plain", hub.endpoint));
        let ended = spawn(command).wait();
        ended.has_code(code);
        ended
    };
    run(6, &["series.toml"]).says(&["`data.file`", "answered 404 for `ETTh1.csv`"]);
    hub.publish("plain", &[("ETTh1.csv", b"date,a\n")]);
    run(6, &["series.toml"]).says(&["`data.file`", "other bytes than", "ETTh1.csv"]);
    assert!(!lab.path("data/ETTh1.csv").exists());
    let other = run(3, &["series.toml", "data.file=data/mine.csv"]);
    other.says(&["`data/mine.csv` does not exist, and no download of it is known", "`ETTh1.csv`"]);
    let Some(real) = test_support::skipped::shared("data/forecast/ETTh1.csv") else { return };
    hub.publish("plain", &[("ETTh1.csv", &fs::read(&real).unwrap())]);
    run(0, &["series.toml"]).says(&["fetching data/ETTh1.csv (2.47 MiB)"]);
    assert_eq!(fs::read(lab.path("data/ETTh1.csv")).unwrap(), fs::read(&real).unwrap());
    assert_eq!(
        crate::harness::lab::children(&lab.path("data")).len(),
        1,
        "nothing is left beside it"
    );
    hub.take_requests();
    run(0, &["series.toml"]);
    assert_eq!(hub.take_requests(), []);
    // Trials of a sweep, and a run that goes on, download what is gone, too.
    lab.write(
        "tune.toml",
        "schema = 1\nbase = \"series.toml\"\n[sweep]\nmetric = \"val/loss\"\ndevices_per_trial = 2\n\
         concurrent_trials = 1\n[sweep.parameters]\n\"optimizer.lr\" = [1e-3, 1e-2]\n",
    );
    fs::remove_file(lab.path("data/ETTh1.csv")).unwrap();
    run(0, &["sweep", "tune.toml"]);
    assert_eq!(hub.take_requests().len(), 1);
    fs::remove_file(lab.path("data/ETTh1.csv")).unwrap();
    run(0, &["resume", "series", "train.steps=3"]);
    assert_eq!(hub.take_requests().len(), 1);
}

#[test]
fn an_experiment_whose_data_are_absent_falls_back_on_the_one_that_it_names() {
    let lab = Lab::with(BASE);
    let folders = "name = \"image_folder\"\ntrain_dir = \"photos/train\"\nval_dir = \"photos/val\"";
    let photos =
        |rest: &str| format!("schema = 1\nextends = \"small.toml\"\n{rest}\n[data]\n{folders}\n");
    lab.write("photos.toml", photos("fallback = \"series.toml\""));
    // Nor can the data of the next one be downloaded: no server listens there.
    let series =
        read_experiment("file = \"ETTh1.csv\"\nseq_len = 24\npred_len = 8\ndownload = true");
    lab.write("series.toml", series.replacen('\n', "\nfallback = \"small.toml\"\n", 1));
    let run = |code: i32, args: &[&str]| {
        let mut command = lab.ddprun(args);
        command.env_remove("HF_HUB_OFFLINE").env("DDPRUN_DATA_MIRROR", "http://127.0.0.1:9");
        let ended = spawn(command).wait();
        ended.has_code(code);
        ended
    };
    let said =
        ["`photos/train` does not exist; taking `series.toml` instead", "`small.toml` instead"];
    run(0, &["plan", "photos.toml"]).says(&said);
    run(0, &["photos.toml", "train.epochs=1"]).says(&said);
    let resolved = fs::read_to_string(lab.run_folder().join("resolved.toml")).unwrap();
    assert!(!resolved.contains("fallback") && resolved.contains("shapes"), "{resolved}");
    let resumed = run(0, &["resume", "small", "train.epochs=2"]);
    assert!(!resumed.stderr.contains("instead"), "{}", resumed.stderr);
    run(0, &["sweep", "photos.toml", "optimizer.lr=1e-3,1e-2", "train.epochs=1"]).says(&said);
    lab.write(
        "tune.toml",
        "schema = 1\nbase = \"photos.toml\"\n[sweep.parameters]\n\"optimizer.lr\" = [1e-3, 1e-2]\n",
    );
    run(2, &["sweep", "tune.toml"]).says(&["name `series.toml` as `base`"]);
    // Whoever names the data wants those, and other keys of `[data]` name none.
    let named = run(3, &["photos.toml", "data.train_dir=mine"]);
    assert!(!named.stderr.contains("instead"), "{}", named.stderr);
    run(0, &["plan", "photos.toml", "data.num_workers=2"]).says(&said);
    // A fallback that is not there is found where it is not needed, too.
    lab.write("gone.toml", BASE.replacen('\n', "\nfallback = \"no.toml\"\n", 1));
    run(2, &["gone.toml"]).says(&["`fallback`", "`no.toml` does not exist"]);
    run(2, &["small.toml", "fallback=series.toml"]).says(&["`fallback`", "works only in a file"]);
    // A circle without data is refused, by a sweep, too.
    lab.write("a.toml", photos("fallback = \"b.toml\""));
    lab.write("b.toml", photos("fallback = \"a.toml\""));
    let circle = ["`fallback`", "leads back to an experiment whose data are missing"];
    run(2, &["plan", "a.toml"]).says(&circle);
    run(2, &["sweep", "a.toml", "optimizer.lr=1e-3,1e-2"]).says(&circle);
    // It stands in for the file that names it, not for one that extends that.
    lab.write("more.toml", "extends = \"photos.toml\"\n");
    let alone = run(3, &["more.toml"]);
    assert!(!alone.stderr.contains("instead"), "{}", alone.stderr);
}

#[test]
fn an_experiment_whose_hub_cannot_be_reached_falls_back_on_the_one_that_it_names() {
    let lab = Lab::with(BASE);
    let hub = HubServer::new();
    let rows =
        (0..40).fold(String::new(), |rows, i| rows + &format!("{i},{}\n", ["a", "b"][i % 2]));
    hub.publish("datasets/me/table", &[("train.csv", format!("x,label\n{rows}").as_bytes())]);
    let table = |name: &str| {
        let data = format!("name = \"csv\"\ntrain_file = \"{name}\"\ntarget = \"label\"");
        let rest = "val_fraction = 0.5\n[model]\nname = \"mlp\"\nhidden = [4]\n[train]\nepochs = 1\n\
                    batch_size = 4\n[distributed]\ndevices = 1\n";
        format!("schema = 1\nfallback = \"small.toml\"\n[data]\n{data}\n{rest}")
    };
    lab.write("table.toml", table("hf:me/table/train.csv"));
    lab.write("nowhere.toml", table("hf:me/table/tarin.csv"));
    let plan = |code: i32, file: &str, endpoint: &str, offline: &str| {
        let mut command = lab.ddprun(&["plan", file]);
        command.env("HF_ENDPOINT", endpoint).env("HF_HUB_OFFLINE", offline);
        let ended = spawn(command).wait();
        ended.has_code(code);
        ended
    };
    let dead = "http://127.0.0.1:9";
    plan(0, "table.toml", dead, "0").says(&["taking `small.toml` instead"]);
    plan(0, "table.toml", dead, "1").says(&["taking `small.toml` instead"]);
    let nowhere = plan(2, "nowhere.toml", &hub.endpoint, "0");
    nowhere.says(&["`data.train_file`", "train.csv`?"]);
    assert!(!nowhere.stderr.contains("instead"), "{}", nowhere.stderr);
    let reached = plan(0, "table.toml", &hub.endpoint, "0");
    assert!(!reached.stderr.contains("instead"), "{}", reached.stderr);
    // What the cache has needs no hub.
    let cached = plan(0, "table.toml", dead, "1");
    assert!(!cached.stderr.contains("instead"), "{}", cached.stderr);
}

/// A small experiment on a series, with these keys of `[data]`.
fn read_experiment(data: &str) -> String {
    format!(
        "schema = 1\n[model]\nname = \"dlinear\"\n[data]\nname = \"csv_forecast\"\n{data}\n\
         [train]\nsteps = 2\nbatch_size = 4\n[optimizer]\nname = \"adamw\"\nlr = 1e-3\n\
         [distributed]\ndevices = 2\n"
    )
}
