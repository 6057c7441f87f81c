//! The page of `ddprun serve` and `ddprun report --html`, clicked through in a real browser by
//! `tests/browser/page.py`; and what the two commands refuse.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::harness::lab::{BINARY, Lab};
use crate::skipped;

/// A Python that has playwright, if there is a browser for it.
fn python() -> Option<String> {
    let runs = |browser: &&str| {
        Command::new(browser).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    if ["chromium", "chromium-browser", "google-chrome"].iter().any(runs) {
        return skipped::python("playwright");
    }
    skipped::skipped("`chromium`");
    None
}

#[test]
fn the_page_works_in_a_browser_live_and_from_one_file() {
    let Some(python) = python() else { return };
    let lab = Lab::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/page.py");
    let mut command = Command::new(python);
    command.args([script, BINARY, lab.path("page").to_str().unwrap()]);
    // One second is what the optimised program is held to, on a machine that does nothing else.
    command.env("FIRST_PICTURE_SECONDS", "10").env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.ends_with("the page works\n"), "{said}");
}

#[test]
fn a_page_keeps_its_token_from_start_to_start() {
    let lab = Lab::new();
    let token = |folder: &str, cache: &str| {
        std::fs::create_dir_all(lab.path(folder)).unwrap();
        let mut command = Command::new(BINARY);
        command.arg("serve").arg(lab.path(folder)).args(["--port", "0"]);
        command.env("DDPRUN_CACHE", cache).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        line.trim().split_once("token=").unwrap().1.to_owned()
    };
    let cache = lab.path("cache");
    let kept = cache.to_str().unwrap();
    let first = token("runs", kept);
    assert_eq!(first.len(), 64);
    assert_eq!(token("runs", kept), first);
    assert_ne!(token("other", kept), first, "one folder does not open another");
    let mode = cache.join("secret").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its user can read what it is made from");
    assert_ne!(
        token("runs", "off"),
        token("runs", "off"),
        "without a cache each start has its own"
    );
}

#[test]
fn what_cannot_be_served_or_reported_is_said_in_words() {
    let lab = Lab::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    std::fs::create_dir(lab.path("empty")).unwrap();
    let refusals: [(&[&str], &str); 5] = [
        (&["serve", "nowhere"], "error: there is no folder `nowhere`"),
        (&["serve", "empty", "--port", &port], "of `127.0.0.1` is in use"),
        (&["serve", "empty", "--host", "0.0.0.0"], "add `--allow-remote`"),
        (&["serve", "empty", "--host", "192.0.2.1", "--allow-remote"], "cannot listen on"),
        (&["report", "empty", "--html", "x.html"], "error: there is no run below `empty`"),
    ];
    for (words, expected) in refusals {
        let ended = lab.run_to(2, words);
        assert!(ended.stderr.contains(expected), "{words:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("  do: "), "{words:?}: {}", ended.stderr);
    }
    assert!(!lab.path("x.html").exists());
    lab.run_to(0, &["small.toml"]);
    lab.run_to(0, &["report", "--html", "pages/of/x.html"]);
    assert!(lab.path("pages/of/x.html").is_file());
}
