//! Names of the hub to files in the cache, against a server that imitates it, with its faults.

#![expect(clippy::unwrap_used, reason = "a test binary: a failed helper is a failed test")]

use std::path::Path;
use std::time::Duration;

use ddprun_host::user_error::{ExitCode, UserError};
use ddprun_hub::{Cache, Config, Error, Hub, HubName, KnownSet, Progress, RepoKind};
use tempfile::TempDir;
use test_support::hub_server::{Fault, HubServer, etag};

const CONFIG: &[u8] = b"{\"architecture\": \"resnet18\"}";

struct Scene {
    server: HubServer,
    home: TempDir,
    weights: Vec<u8>,
    commit: String,
}

impl Scene {
    fn new() -> Self {
        let server = HubServer::new();
        let weights: Vec<u8> = (0..200_000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let commit = server
            .publish("timm/small", &[("config.json", CONFIG), ("model.safetensors", &weights)]);
        Self { server, home: tempfile::tempdir().unwrap(), weights, commit }
    }

    fn hub(&self) -> Hub {
        self.hub_with(None, false)
    }

    fn hub_with(&self, token: Option<&str>, is_offline: bool) -> Hub {
        let config = Config::from_env(&|name| match name {
            "HF_HOME" => Some(self.home.path().into()),
            "HF_ENDPOINT" => Some((&self.server.endpoint).into()),
            "HF_TOKEN" => token.map(Into::into),
            "HF_HUB_OFFLINE" => is_offline.then(|| "1".into()),
            _ => None,
        });
        Hub::new(config).unwrap()
    }

    fn repo(&self) -> std::path::PathBuf {
        self.home.path().join("hub/models--timm--small")
    }
}

fn fetch(hub: &Hub, name: &str, file: &str) -> Result<std::path::PathBuf, Error> {
    hub.fetch(&hub.snapshot(&parsed(name))?, file, &mut |_| true)
}

fn parsed(name: &str) -> HubName {
    HubName::parse(name, RepoKind::Model).unwrap().unwrap()
}

#[test]
fn files_lie_where_python_looks_for_them_and_are_fetched_once() {
    let scene = Scene::new();
    let hub = scene.hub_with(Some("secret"), false);
    let snapshot = hub.snapshot(&parsed("hf:timm/small")).unwrap();
    assert_eq!(snapshot.files, ["config.json", "model.safetensors"]);
    assert_eq!(snapshot.name.to_string(), format!("hf:timm/small@{}", scene.commit));
    let mut seen = Vec::new();
    let path = hub
        .fetch(&snapshot, "model.safetensors", &mut |progress| {
            if let Progress::Fetching { done, size, .. } = progress {
                seen.push((done, size));
            }
            true
        })
        .unwrap();
    let size = scene.weights.len() as u64;
    assert!(seen.len() > 1 && seen.last() == Some(&(size, size)), "{seen:?}");
    assert_eq!(std::fs::read(&path).unwrap(), scene.weights);
    // As `huggingface_hub` lays them out.
    let commit = &scene.commit;
    assert_eq!(path, scene.repo().join("snapshots").join(commit).join("model.safetensors"));
    assert_eq!(std::fs::read_to_string(scene.repo().join("refs/main")).unwrap(), *commit);
    let link = std::fs::read_link(&path).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(etag(&scene.weights)));
    // Other hosts are not told the token.
    let requests = scene.server.take_requests();
    let told = |request: &test_support::hub_server::Request| request.authorization.is_some();
    let elsewhere: Vec<_> =
        requests.iter().filter(|request| request.path == "/timm/small/model.safetensors").collect();
    assert_eq!(elsewhere.len(), 1);
    assert!(!told(elsewhere[0]));
    assert!(requests.iter().any(told));
    // What is here is not asked for.
    hub.fetch(&snapshot, "model.safetensors", &mut |_| true).unwrap();
    assert_eq!(scene.server.take_requests(), []);
}

#[test]
fn a_broken_connection_is_taken_up_where_it_broke() {
    let scene = Scene::new();
    scene.server.put("small/model.safetensors", Fault::Cut(70_000));
    scene.server.put("small/model.safetensors", Fault::Cut(0));
    let path = fetch(&scene.hub(), "hf:timm/small", "model.safetensors").unwrap();
    assert_eq!(std::fs::read(path).unwrap(), scene.weights);
    let ranges: Vec<_> =
        scene.server.take_requests().into_iter().filter_map(|request| request.range).collect();
    assert!(ranges.contains(&"bytes=70000-".to_owned()), "{ranges:?}");
}

#[test]
fn what_a_killed_process_left_is_continued_by_the_next_one() {
    let scene = Scene::new();
    let hub = scene.hub();
    let snapshot = hub.snapshot(&parsed("hf:timm/small")).unwrap();
    let stopped = hub.fetch(
        &snapshot,
        "model.safetensors",
        &mut |progress| !matches!(progress, Progress::Fetching { done, .. } if done >= 60_000),
    );
    assert!(matches!(stopped, Err(Error::Stopped { .. })), "{stopped:?}");
    let incomplete =
        scene.repo().join("blobs").join(format!("{}.incomplete", etag(&scene.weights)));
    let kept = std::fs::metadata(&incomplete).unwrap().len();
    assert!(kept >= 60_000);
    assert!(!snapshot.folder.join("model.safetensors").exists());
    scene.server.take_requests();
    let path = hub.fetch(&snapshot, "model.safetensors", &mut |_| true).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), scene.weights);
    assert!(
        scene
            .server
            .take_requests()
            .iter()
            .any(|request| request.range == Some(format!("bytes={kept}-")))
    );
    assert!(!incomplete.exists());
}

#[test]
fn a_server_without_ranges_begins_again() {
    let scene = Scene::new();
    scene.server.put("small/model.safetensors", Fault::Cut(70_000));
    scene.server.put("small/model.safetensors", Fault::IgnoresRange);
    let path = fetch(&scene.hub(), "hf:timm/small", "model.safetensors").unwrap();
    assert_eq!(std::fs::read(path).unwrap(), scene.weights);
}

#[test]
fn wrong_bytes_are_fetched_again_and_refused_the_second_time() {
    let scene = Scene::new();
    let hub = scene.hub();
    scene.server.put("small/model.safetensors", Fault::Damaged);
    assert!(fetch(&hub, "hf:timm/small", "model.safetensors").is_ok());
    for _ in 0..2 {
        scene.server.put("/config.json", Fault::Damaged);
    }
    // The first request for a file asks for its hash alone.
    scene.server.put("/config.json", Fault::Damaged);
    let refused = fetch(&hub, "hf:timm/small", "config.json").unwrap_err();
    assert!(
        matches!(&refused, Error::Corrupt { expected, .. } if *expected == etag(CONFIG)),
        "{refused:?}"
    );
    assert!(
        refused.to_string().starts_with("`config.json` arrived twice with other bytes"),
        "{refused}"
    );
    let blobs: Vec<_> = std::fs::read_dir(scene.repo().join("blobs")).unwrap().flatten().collect();
    assert_eq!(blobs.len(), 1, "{blobs:?}");
}

#[test]
fn a_damaged_beginning_of_an_earlier_download_is_thrown_away() {
    let scene = Scene::new();
    let blobs = scene.repo().join("blobs");
    ddprun_host::files::create_folder(&blobs).unwrap();
    for bytes in [vec![0; 5000], vec![0; 900_000]] {
        ddprun_host::files::write_atomic(
            &blobs.join(format!("{}.incomplete", etag(&scene.weights))),
            &bytes,
        )
        .unwrap();
        let path = fetch(&scene.hub(), "hf:timm/small", "model.safetensors").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), scene.weights);
        ddprun_host::files::remove_file(&path).unwrap();
        ddprun_host::files::remove_file(&blobs.join(etag(&scene.weights))).unwrap();
    }
}

#[test]
fn two_processes_fetch_a_file_once() {
    let scene = Scene::new();
    scene.server.put("small/model.safetensors", Fault::Silent(Duration::from_millis(400)));
    let fetch = || fetch(&scene.hub(), "hf:timm/small", "model.safetensors").unwrap();
    let [first, second] = std::thread::scope(|scope| {
        [scope.spawn(fetch), scope.spawn(fetch)].map(|it| it.join().unwrap())
    });
    assert_eq!(first, second);
    let requests = scene.server.take_requests();
    let fetched =
        requests.iter().filter(|request| request.path == "/timm/small/model.safetensors").count();
    assert_eq!(fetched, 1);
}

#[test]
fn two_processes_download_a_data_set_once() {
    let Some(real) = test_support::skipped::shared("data/forecast/ETTh1.csv") else { return };
    let scene = Scene::new();
    scene.server.publish("plain", &[("ETTh1.csv", &std::fs::read(&real).unwrap())]);
    let path = scene.home.path().join("ETTh1.csv");
    let (set, _) = KnownSet::at(&path).unwrap();
    let mirror = Some(format!("{}/plain", scene.server.endpoint));
    let config = Config { mirror, ..Config::from_env(&|_| None) };
    scene.server.put("plain/ETTh1.csv", Fault::Silent(Duration::from_millis(600)));
    let download = || Hub::new(config.clone()).unwrap().fetch_set(set, &path, &mut |_| true);
    std::thread::scope(|scope| {
        for process in [(); 3].map(|()| scope.spawn(download)) {
            process.join().unwrap().unwrap();
        }
    });
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&real).unwrap());
    let requests = scene.server.take_requests();
    assert_eq!(requests.iter().filter(|request| request.path == "/plain/ETTh1.csv").count(), 1);
}

#[test]
fn a_busy_server_is_waited_for() {
    let scene = Scene::new();
    scene.server.put("/revision/main", Fault::Status(429, "retry-after: 0"));
    scene.server.put("/revision/main", Fault::Status(503, ""));
    scene.server.put("/config.json", Fault::Status(500, ""));
    assert!(fetch(&scene.hub(), "hf:timm/small", "config.json").is_ok());
    scene.server.put("/revision/main", Fault::Status(429, "retry-after: 3600"));
    let snapshot = scene.hub().snapshot(&parsed("hf:timm/small")).unwrap();
    assert!(snapshot.unasked.unwrap().contains("429"), "the cache has it");
}

#[test]
fn names_that_lead_nowhere_say_why() {
    let scene = Scene::new();
    fetch(&scene.hub(), "hf:timm/small", "config.json").unwrap();
    let refused = |token: Option<&str>, name: &str, file: &str| {
        let error = fetch(&scene.hub_with(token, false), name, file).unwrap_err();
        (
            error.to_string().replace(&scene.server.endpoint, "HUB"),
            error.help().unwrap_or_default().replace(&scene.server.endpoint, "HUB"),
            error.exit_code(),
        )
    };
    let (what, help, code) = refused(None, "hf:timm/smal", "config.json");
    assert_eq!(what, "there is no `hf:timm/smal` on HUB, or it is private");
    assert_eq!(
        help,
        "did you mean `hf:timm/small`? If it is private, set `HF_TOKEN` or run `hf auth login`"
    );
    assert_eq!(code, ExitCode::Refused);
    let (what, help, _) = refused(None, "hf:timm/small", "model.safetensor");
    assert_eq!(what, "`hf:timm/small` has no file `model.safetensor`");
    assert_eq!(help, "did you mean `model.safetensors`?");
    let (what, ..) = refused(None, "hf:timm/small@v9", "config.json");
    assert_eq!(what, "`hf:timm/small` has no revision `v9`");
    scene.server.publish("me/private", &[("config.json", CONFIG)]);
    scene.server.make_private("me/private", "right");
    let (what, ..) = refused(None, "hf:me/private", "config.json");
    assert_eq!(what, "there is no `hf:me/private` on HUB, or it is private");
    let (what, help, _) = refused(Some("wrong"), "hf:me/private", "config.json");
    assert_eq!(what, "HUB does not accept the token of HF_TOKEN");
    assert!(help.contains("make a new token"), "{help}");
    assert!(fetch(&scene.hub_with(Some("right"), false), "hf:me/private", "config.json").is_ok());
    scene.server.gate("timm/small");
    let (what, help, _) = refused(None, "hf:timm/small", "config.json");
    assert!(what.starts_with("`hf:timm/small` is gated"), "{what}");
    assert_eq!(help, "accept them on HUB/timm/small, then set `HF_TOKEN` or run `hf auth login`");
}

#[test]
fn without_a_network_the_cache_answers() {
    let scene = Scene::new();
    fetch(&scene.hub(), "hf:timm/small", "config.json").unwrap();
    scene.server.take_requests();
    let offline = scene.hub_with(None, true);
    let path = fetch(&offline, "hf:timm/small", "config.json").unwrap();
    assert_eq!(std::fs::read(path).unwrap(), CONFIG);
    let missing = fetch(&offline, "hf:timm/smaller", "config.json").unwrap_err();
    assert!(missing.help().unwrap().contains("the cache has `hf:timm/small`"), "{missing:?}");
    assert_eq!(scene.server.take_requests(), []);
    // A hub that does not answer.
    let unused_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cache = Cache::new(scene.home.path().join("hub"));
    let silent = Hub::new(Config {
        endpoint: format!("http://{unused_port}"),
        cache: scene.home.path().join("hub"),
        token: None,
        is_offline: false,
        mirror: None,
        certificates: None,
    })
    .unwrap();
    let snapshot = silent.snapshot(&parsed("hf:timm/small")).unwrap();
    assert!(snapshot.unasked.as_ref().unwrap().contains("does not answer"), "{snapshot:?}");
    assert_eq!(cache.commit(&parsed("hf:timm/small")), Some(scene.commit.clone()));
    let error = silent.snapshot(&parsed("hf:timm/other")).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(error.exit_code(), ExitCode::Storage);
    // A commit never changes, so there is no warning.
    let pinned = silent.snapshot(&parsed(&format!("hf:timm/small@{}", scene.commit))).unwrap();
    assert_eq!(pinned.unasked, None);
}

#[test]
fn a_full_disk_is_named_and_what_arrived_is_kept_for_later() {
    let scene = Scene::new();
    let full = Path::new("/dev/full");
    if !full.exists() {
        return test_support::skipped::skipped("no /dev/full");
    }
    let blobs = scene.repo().join("blobs");
    ddprun_host::files::create_folder(&blobs).unwrap();
    std::os::unix::fs::symlink(full, blobs.join(format!("{}.incomplete", etag(&scene.weights))))
        .unwrap();
    let error = fetch(&scene.hub(), "hf:timm/small", "model.safetensors").unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Storage);
    assert!(
        error.help().unwrap().contains("HF_HUB_CACHE")
            || error.help().unwrap().contains("make room"),
        "{error:?}"
    );
}
