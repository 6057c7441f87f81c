//! Predictions over HTTP.
//!
//! ```text
//! request ─a thread each─▶ file ─queue─▶ the model, with all that wait at once ─rows─▶ JSON
//! ```
//!
//! ```text
//! GET  /            the model: run, checkpoint, classes
//! GET  /health      200 as long as it answers
//! POST /predict     body: a file, as `ddprun predict` reads them; its name is `?name=photo.jpg`, or
//!                   its ending follows from `Content-Type`. JSON objects are rows of a table.
//! ```

use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json, json};
use tempfile::TempDir;

use crate::files;
use crate::http::{self, Request, Response};
use crate::plan::Plan;
use crate::predict::error::Error;
use crate::predict::predictor::{Predictions, Predictor};
use crate::predict::request_body::{Body, BodyError};
use crate::predict::row::Value;
use crate::user_error::ExitCode;

/// Connections at once.
const MAX_CONNECTIONS: usize = 64;
/// Time to wait where no connection can be taken: out of descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for the last answers to be taken.
const GRACE: Duration = Duration::from_secs(2);

const UNAVAILABLE: &str = "503 Service Unavailable";
const BAD_REQUEST: &str = "400 Bad Request";

/// A server that listens and does not answer yet.
pub(crate) struct Service {
    listener: TcpListener,
    shared: Arc<Shared>,
    /// Folder of the files that are being predicted.
    spool: TempDir,
}

/// State of all threads that read requests.
struct Shared {
    /// The answer to `GET /`.
    about: Json,
    /// Bytes that a body may have.
    max_body: u64,
    /// What `Authorization: Bearer` must say, if anything.
    token: Option<String>,
    /// Name of the data set of the run.
    data: String,
    spool: PathBuf,
    connections: AtomicUsize,
}

/// What the model is told.
enum Message {
    Predict(Waiting),
    Stop,
}

/// A file to predict.
struct Waiting {
    path: PathBuf,
    answer: Sender<Result<Predicted, String>>,
}

/// The answer to a file.
struct Predicted {
    body: Json,
    /// True if every row has an error.
    has_failed: bool,
}

/// Stops a service from another thread.
pub(crate) struct Stopper(SyncSender<Message>);

impl Stopper {
    /// Ends the service after the requests that wait.
    pub(crate) fn stop(&self) {
        // A service that has ended needs no more.
        let _ = self.0.send(Message::Stop);
    }
}

impl Service {
    /// Listens on `host` and `port` (0: any that is free) for predictions of `plan`.
    ///
    /// # Errors
    ///
    /// The address is in use or not ours, or there is no room for temporary files.
    pub(crate) fn listen(
        (host, port): (&str, u16),
        plan: &Plan,
        about: Json,
        max_body: u64,
        token: Option<String>,
    ) -> Result<Self, Error> {
        let listener = TcpListener::bind((host.trim_matches(['[', ']']), port)).map_err(|error| {
            let what = format!("cannot listen on `{host}`, port {port}: {error}");
            let help = "stop the other program, or choose another port with `--port` (0: any that \
                is free)";
            Error::new(ExitCode::Refused, what).with_help(help)
        })?;
        let spool =
            tempfile::Builder::new().prefix("ddprun-service-").tempdir().map_err(|error| {
                Error::new(ExitCode::Storage, format!("cannot make a temporary folder: {error}"))
            })?;
        let shared = Shared {
            about,
            max_body,
            token,
            data: plan.data.source.kind.name.clone(),
            spool: spool.path().to_owned(),
            connections: AtomicUsize::new(0),
        };
        Ok(Self { listener, shared: Arc::new(shared), spool })
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |address| address.port())
    }

    /// Answers until it is stopped; `started` is given what stops it. Threads that still wait for
    /// slow clients are left behind.
    pub(crate) fn run(
        self,
        predictor: &mut Predictor,
        top: Option<usize>,
        started: impl FnOnce(Stopper),
    ) {
        let Self { listener, shared, spool } = self;
        let (queue, waiting) = sync_channel(MAX_CONNECTIONS);
        started(Stopper(queue.clone()));
        let own = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &own, &queue));
        let batch = predictor.plan().val_batch_size.count().max(1);
        let mut is_open = true;
        while is_open {
            let group;
            (group, is_open) = next_group(&waiting, batch);
            if !group.is_empty() {
                answer_together(predictor, &group, top, spool.path());
            }
        }
        drop(waiting);
        let until = Instant::now() + GRACE;
        while shared.connections.load(Ordering::Acquire) > 0 && Instant::now() < until {
            thread::sleep(PAUSE / 10);
        }
    }
}

/// The requests that wait, at most `most`, and false if there will be no more.
fn next_group(waiting: &Receiver<Message>, most: usize) -> (Vec<Waiting>, bool) {
    let mut group = Vec::new();
    for message in waiting.recv().into_iter().chain(waiting.try_iter()) {
        match message {
            Message::Predict(next) => group.push(next),
            Message::Stop => return (group, false),
        }
        if group.len() == most {
            break;
        }
    }
    let is_open = !group.is_empty();
    (group, is_open)
}

/// Takes connections, each in a thread of its own.
fn accept(listener: &TcpListener, shared: &Arc<Shared>, queue: &SyncSender<Message>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            thread::sleep(PAUSE);
            continue;
        };
        if shared.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            let _ = refused(UNAVAILABLE, "too many connections; try again").send(&mut stream);
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let open = Open(Arc::clone(shared));
        let queue = queue.clone();
        let spawned = thread::Builder::new().name("request".into()).spawn(move || {
            // A client that goes away in the middle is no failure.
            drop(converse(&mut stream, &open.0, &queue));
            drop(open);
        });
        if spawned.is_err() {
            thread::sleep(PAUSE);
        }
    }
}

/// A connection for as long as it is open, however it ends.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

fn converse(
    stream: &mut TcpStream,
    shared: &Shared,
    queue: &SyncSender<Message>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match http::read(stream, shared.max_body)? {
        Ok(request) => shared.answer(request, queue).send(stream),
        Err(refusal) => {
            refused(refusal.status, &String::from_utf8_lossy(&refusal.body)).send(stream)?;
            http::discard_rest(stream);
            Ok(())
        }
    }
}

/// A refusal as JSON.
fn refused(status: &'static str, why: &str) -> Response {
    Response { status, ..Response::json(&json!({ "error": why })) }
}

/// Predicts all files of `group` at once, or each alone where one of them spoils the others.
fn answer_together(predictor: &mut Predictor, group: &[Waiting], top: Option<usize>, spool: &Path) {
    let paths: Vec<&Path> = group.iter().map(|one| one.path.as_path()).collect();
    match predictor.rows(&paths, top) {
        Ok(found) => {
            for one in group {
                // A client that is gone needs no answer.
                let _ = one.answer.send(Ok(Predicted::of(&found, &one.path, spool)));
            }
        }
        Err(error) if group.len() == 1 => {
            let what = without_folder(&error.to_string(), &group[0].path);
            let _ = group[0].answer.send(Err(what));
        }
        Err(_) => {
            for at in 0..group.len() {
                answer_together(predictor, &group[at..=at], top, spool);
            }
        }
    }
}

impl Predicted {
    /// The rows of one file, under the name that the client gave it.
    fn of(found: &Predictions, path: &Path, spool: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let shown = path.display().to_string();
        let rows = || found.iter().filter(|row| row["path"].to_string() == shown);
        let has_failed = rows().all(|row| row["error"] != Value::Nothing);
        let objects = rows().map(|row| {
            let mut object = row.to_json();
            object.insert("path".to_owned(), json!(name));
            Json::Object(object)
        });
        let mut body = Map::from_iter([("predictions".to_owned(), objects.collect())]);
        let spool = spool.display().to_string();
        let is_own = |note: &&String| note.contains(&shown) || !note.contains(&spool);
        let notes: Vec<String> =
            found.notes.iter().filter(is_own).map(|note| without_folder(note, path)).collect();
        if !notes.is_empty() {
            body.insert("notes".to_owned(), json!(notes));
        }
        Self { body: Json::Object(body), has_failed }
    }
}

/// `words` with the name of the file at `path` instead of its path, which is no matter of the client.
fn without_folder(words: &str, path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    words.replace(&path.display().to_string(), &name)
}

impl Shared {
    fn answer(&self, request: Request, queue: &SyncSender<Message>) -> Response {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/health") => Response::json(&json!({ "status": "ok" })),
            _ if !self.admits(&request) => {
                refused("401 Unauthorized", "send the token: `Authorization: Bearer TOKEN`")
                    .with("WWW-Authenticate", "Bearer")
            }
            ("GET", "/") => Response::json(&self.about),
            ("POST", "/predict") => self.predict(request, queue).unwrap_or_else(|refusal| refusal),
            (_, "/" | "/health" | "/predict") => {
                refused("405 Method Not Allowed", "there are GET /, GET /health and POST /predict")
            }
            _ => refused("404 Not Found", "there are GET /, GET /health and POST /predict"),
        }
    }

    fn admits(&self, request: &Request) -> bool {
        self.token.as_ref().is_none_or(|token| request.has_bearer(token))
    }

    fn predict(&self, request: Request, queue: &SyncSender<Message>) -> Result<Response, Response> {
        let name = request.query.get("name").map(String::as_str);
        let body = Body::of(name, &request.content_type, request.body, &self.data);
        let Body { name, bytes } = body.map_err(|error| match error {
            BodyError::Unnamed | BodyError::Form => {
                refused("415 Unsupported Media Type", &error.to_string())
            }
            _ => refused(BAD_REQUEST, &error.to_string()),
        })?;
        let file = self.spooled(&name, &bytes).map_err(|error| {
            let why = format!("the file cannot be kept for the model: {error}");
            refused("507 Insufficient Storage", &why)
        })?;
        let (answer, answered) = channel();
        let message = Message::Predict(Waiting { path: file.path().join(&name), answer });
        let ending = || refused(UNAVAILABLE, "the service is ending");
        queue.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => refused(UNAVAILABLE, "too many requests wait; try again"),
            TrySendError::Disconnected(_) => ending(),
        })?;
        match answered.recv() {
            Ok(Ok(Predicted { body, has_failed: false })) => Ok(Response::json(&body)),
            Ok(Ok(Predicted { body, .. })) => {
                Ok(Response { status: "422 Unprocessable Content", ..Response::json(&body) })
            }
            Ok(Err(why)) => Err(refused(BAD_REQUEST, &why)),
            Err(_) => Err(ending()),
        }
    }

    /// A folder of its own with the file, which goes with the value.
    fn spooled(&self, name: &str, bytes: &[u8]) -> io::Result<TempDir> {
        let folder = tempfile::tempdir_in(&self.spool)?;
        files::write_scratch(&folder.path().join(name), bytes).map_err(io::Error::other)?;
        Ok(folder)
    }
}
