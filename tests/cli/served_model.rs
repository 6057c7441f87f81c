//! `ddprun serve-model`: the rows of `ddprun predict` over HTTP, also for clients that are many,
//! slow, wrong or gone.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::lab::Lab;
use crate::harness::running::{Running, until};

/// A running `ddprun serve-model`.
struct Service {
    running: Running,
    port: u16,
}

impl Service {
    fn start(lab: &Lab, words: &[&str]) -> Self {
        let running = lab.start(&[&["serve-model", "--port", "0"], words].concat());
        until("an address", || running.stdout().contains('\n'));
        let port = running.stdout().trim().rsplit_once(':').unwrap().1.parse().unwrap();
        Self { running, port }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
        stream
    }

    /// Status and body of the answer.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, Value) {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        answer(&mut stream)
    }

    fn post(&self, file: &Path, name: &str) -> (u16, Value) {
        self.ask("POST", &format!("/predict?name={name}"), "", &fs::read(file).unwrap())
    }

    /// Ends the service, which leaves no file behind.
    fn end(self) {
        self.running.signal(Signal::TERM);
        let ended = self.running.wait();
        ended.has_code(0);
    }
}

fn answer(stream: &mut TcpStream) -> (u16, Value) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("{text}")))
}

/// A lab with a trained run on generated images, and some of its pictures.
fn trained() -> (Lab, Vec<std::path::PathBuf>) {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let folder = lab.generated().join("val");
    let classes = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut pictures: Vec<_> = classes
        .flat_map(|class| fs::read_dir(class).unwrap().map(|entry| entry.unwrap().path()))
        .collect();
    pictures.sort();
    (lab, pictures)
}

#[test]
fn answers_are_the_rows_of_predict_for_one_client_and_for_many_at_once() {
    let (lab, pictures) = trained();
    let folder = lab.generated().join("val");
    lab.run_to(0, &["predict", folder.to_str().unwrap(), "-o", "all.jsonl"]);
    let rows: Vec<Value> = fs::read_to_string(lab.path("all.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected = |picture: &Path| {
        let path = picture.to_str().unwrap();
        let mut row = rows.iter().find(|row| row["path"] == path).unwrap().clone();
        row["path"] = json!("cat 1.png");
        json!({ "predictions": [row] })
    };
    let service = Service::start(&lab, &["small"]);
    let (status, about) = service.ask("GET", "/", "", b"");
    assert_eq!((status, about["data"].as_str()), (200, Some("shapes")), "{about}");
    assert_eq!(about["classes"].as_array().unwrap().len(), 3, "{about}");
    assert_eq!(service.ask("GET", "/health", "", b""), (200, json!({ "status": "ok" })));
    assert_eq!(service.post(&pictures[0], "cat%201.png"), (200, expected(&pictures[0])));
    std::thread::scope(|scope| {
        let asking: Vec<_> = pictures
            .iter()
            .map(|picture| scope.spawn(|| service.post(picture, "cat%201.png")))
            .collect();
        for (asking, picture) in asking.into_iter().zip(&pictures) {
            assert_eq!(asking.join().unwrap(), (200, expected(picture)), "{}", picture.display());
        }
    });
    service.end();
    lab.is_clean();
}

#[test]
fn what_is_wrong_is_answered_in_words_and_spoils_no_other_request() {
    let (lab, pictures) = trained();
    let service = Service::start(&lab, &["small", "--top", "1", "--max-body", "1"]);
    let why =
        |(status, answer): (u16, Value)| (status, answer["error"].as_str().unwrap().to_owned());
    let post =
        |path: &str, headers: &str, body: &[u8]| why(service.ask("POST", path, headers, body));
    let (status, error) = post("/predict", "", b"x");
    assert!(status == 415 && error.contains("Content-Type"), "{status} {error}");
    let (status, error) = post("/predict?name=../x.png", "", b"x");
    assert_eq!((status, &*error), (400, "`../x.png` is not the plain name of a file"));
    let (status, error) = post("/predict?name=x.png", "", b"");
    assert_eq!((status, &*error), (400, "the body is empty"));
    assert_eq!(why(service.ask("GET", "/predict", "", b"")).0, 405);
    assert_eq!(why(service.ask("GET", "/nowhere", "", b"")).0, 404);
    let (status, error) = post("/predict?name=x.png", "", &vec![0; (1 << 20) + 1]);
    assert!(status == 413 && error.contains("1048577 bytes"), "{status} {error}");
    // A picture that cannot be read has a row with the reason, as in `ddprun predict`.
    let broken: Vec<u8> = fs::read(&pictures[0]).unwrap().into_iter().take(60).collect();
    let (status, row) = service.ask("POST", "/predict?name=x.png", "", &broken);
    assert_eq!((status, &row["predictions"][0]["path"]), (422, &json!("x.png")), "{row}");
    let error = row["predictions"][0]["error"].as_str().unwrap();
    assert!(!error.contains("ddprun-service"), "no path of the server: {error}");
    // A client that sends half a request, and one that leaves before its answer.
    let mut slow = service.connect();
    slow.write_all(b"POST /predict?name=x.png HTTP/1.1\r\nContent-Length: 1000\r\n\r\nabc")
        .unwrap();
    let mut leaving = service.connect();
    let body = fs::read(&pictures[1]).unwrap();
    let head =
        format!("POST /predict?name=x.png HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
    leaving.write_all(&[head.as_bytes(), &body].concat()).unwrap();
    leaving.shutdown(Shutdown::Both).unwrap();
    let (status, good) = service.post(&pictures[0], "good.png");
    assert_eq!(status, 200);
    assert_eq!(good["predictions"].as_array().unwrap().len(), 1, "{good}");
    let columns: Vec<&String> = good["predictions"][0].as_object().unwrap().keys().collect();
    assert_eq!(columns, ["path", "class", "probability", "error"]);
    // The slow client does not hold up the end.
    let ending = Instant::now();
    service.end();
    assert!(ending.elapsed() < Duration::from_secs(20), "{:?}", ending.elapsed());
    drop(slow);
    lab.is_clean();
}

#[test]
fn rows_of_a_table_come_as_json_or_as_a_file() {
    let lab = Lab::new();
    let mut table = String::from("size,kind,price\n");
    for at in 0..40 {
        table += &format!("{at},{},{}\n", ["a", "b"][at % 2], 3 * at + 1);
    }
    lab.write("table.csv", &table);
    let experiment = "[model]\nname = \"mlp\"\nhidden = [4]\n[data]\nname = \"csv\"\n\
        train_file = \"table.csv\"\ntarget = \"price\"\nval_fraction = 0.2\n\
        [data.features]\ncategorical = [\"kind\"]\n[train]\nepochs = 1\n\
        batch_size = 8\n[loss]\nname = \"mse\"\n[optimizer]\nname = \"adamw\"\nlr = 1e-2\n\
        [distributed]\ndevices = 1\n";
    lab.write("table.toml", experiment);
    lab.run_to(0, &["table.toml"]);
    lab.write("rows.csv", "size,kind\n3,a\n5,\"b\"\n");
    lab.run_to(0, &["predict", "rows.csv", "-o", "rows.jsonl"]);
    let expected: Vec<Value> = fs::read_to_string(lab.path("rows.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let service = Service::start(&lab, &[]);
    let same = |(status, answer): (u16, Value)| {
        assert_eq!(status, 200, "{answer}");
        let rows = answer["predictions"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "{answer}");
        for (found, expected) in rows.iter().zip(&expected) {
            assert_eq!(found["price"], expected["price"]);
            assert_eq!(found["row"], expected["row"]);
        }
    };
    let json = "Content-Type: application/json\r\n";
    let rows = br#"[{"size": 3, "kind": "a"}, {"kind": "b", "size": 5}]"#;
    same(service.ask("POST", "/predict", json, rows));
    same(service.post(&lab.path("rows.csv"), "rows.csv"));
    let (status, answer) = service.ask("POST", "/predict", json, br#"{"size": 3}"#);
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("kind"), "the column is named: {answer}");
    service.end();
    lab.is_clean();
}

#[test]
fn a_service_is_for_those_who_may_ask_and_for_models_that_predict() {
    let (lab, pictures) = trained();
    let refused = lab.run_to(2, &["serve-model", "--host", "0.0.0.0"]);
    assert!(refused.stderr.contains("add `--allow-remote`"), "{}", refused.stderr);
    let unknown = lab.run_to(2, &["serve-model", "smal"]);
    assert!(unknown.stderr.contains("`small`"), "{}", unknown.stderr);
    lab.run_to(0, &["token", "token.txt"]);
    let token = fs::read_to_string(lab.path("token.txt")).unwrap();
    let service = Service::start(&lab, &["--token-file", "token.txt"]);
    let body = fs::read(&pictures[0]).unwrap();
    let ask = |header: &str| service.ask("POST", "/predict?name=a.png", header, &body).0;
    assert_eq!(ask(""), 401);
    assert_eq!(ask("Authorization: Bearer wrong\r\n"), 401);
    assert_eq!(ask(&format!("Authorization: Bearer {}\r\n", token.trim())), 200);
    let port = service.port.to_string();
    let taken = lab.run_to(2, &["serve-model", "--port", &port]);
    assert!(taken.stderr.contains("cannot listen"), "{}", taken.stderr);
    service.end();
    lab.is_clean();
}
