//! A server on this machine that answers as the Hugging Face hub does: its API, redirects of large
//! files to another host, ranges, and its errors. Faults are put in its way by hand.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::digest;
use sha1::Digest as _;

/// Files of this many bytes and more are kept on the other host.
const LARGE: usize = 1000;

/// A fault that replaces or spoils an answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, with these headers (`retry-after: 0`).
    Status(u16, &'static str),
    /// The connection closes after this many bytes of the body.
    Cut(usize),
    /// The first byte of the body is another.
    Damaged,
    /// The answer to a range is the whole file.
    IgnoresRange,
    /// Nothing comes for this long.
    Silent(Duration),
}

/// A request that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path below the server's address.
    pub path: String,
    /// Value of the header `Range`.
    pub range: Option<String>,
    /// Value of the header `Authorization`.
    pub authorization: Option<String>,
}

#[derive(Default)]
struct State {
    /// Files by repository (`timm/x`, `datasets/a/b`), then by path.
    repos: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Repositories that need this token.
    private: BTreeMap<String, String>,
    gated: Vec<String>,
    /// Faults by the end of the path of a request, each met once.
    faults: VecDeque<(String, Fault)>,
    requests: Vec<Request>,
    files_host: String,
}

/// The server, until the process ends.
#[derive(Clone)]
pub struct HubServer {
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl HubServer {
    /// Starts the server, and the host of its large files, on free ports.
    ///
    /// # Panics
    ///
    /// No port is free.
    #[expect(clippy::new_without_default, clippy::unwrap_used, reason = "for tests")]
    pub fn new() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let [hub, files] = [false, true].map(|is_files_host| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = state.clone();
                    std::thread::spawn(move || drop(serve(&stream, &state, is_files_host)));
                }
            });
            port
        });
        // Another name, so that it is another host.
        locked(&state).files_host = format!("http://localhost:{files}");
        Self { endpoint: format!("http://127.0.0.1:{hub}"), state }
    }

    /// Publishes a repository, such as `timm/x` or `datasets/a/b`, and returns its commit; files of
    /// `plain` lie at `<endpoint>/plain/<file>`.
    pub fn publish(&self, repo: &str, files: &[(&str, &[u8])]) -> String {
        let files =
            files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec())).collect();
        let commit = commit(repo, &files);
        locked(&self.state).repos.insert(repo.to_owned(), files);
        commit
    }

    /// Publishes another revision of a repository, such as `refs/convert/parquet`, and returns its
    /// commit.
    pub fn publish_at(&self, repo: &str, revision: &str, files: &[(&str, &[u8])]) -> String {
        self.publish(&format!("{repo}@{revision}"), files)
    }

    /// Shows `repo` only to those who send `token`.
    pub fn make_private(&self, repo: &str, token: &str) {
        locked(&self.state).private.insert(repo.to_owned(), token.to_owned());
    }

    /// Asks for consent before `repo` is shown.
    pub fn gate(&self, repo: &str) {
        locked(&self.state).gated.push(repo.to_owned());
    }

    /// The next request whose path ends with `path` meets `fault`.
    pub fn put(&self, path: &str, fault: Fault) {
        locked(&self.state).faults.push_back((path.to_owned(), fault));
    }

    /// All requests until now, which are forgotten.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut locked(&self.state).requests)
    }
}

/// Hash that the hub announces for a file of these bytes.
pub fn etag(bytes: &[u8]) -> String {
    if bytes.len() >= LARGE {
        return hex(digest::digest(&digest::SHA256, bytes).as_ref());
    }
    let mut hash = sha1::Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hex(&hash.finalize())
}

fn commit(repo: &str, files: &BTreeMap<String, Vec<u8>>) -> String {
    let all: String =
        files.iter().fold(String::new(), |all, (path, bytes)| all + path + &etag(bytes) + "\n");
    hex(&sha1::Sha1::digest(format!("{repo}\n{all}")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer of the hub.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn error(status: u16, code: &str) -> Self {
        Self { status, headers: vec![("x-error-code", code.to_owned())], body: Vec::new() }
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>, is_files_host: bool) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method, path, range: None, authorization: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    let (answer, fault) = {
        let mut state = locked(state);
        state.requests.push(request.clone());
        let fault = state.faults.iter().position(|(path, _)| request.path.ends_with(path));
        let fault = fault.and_then(|index| state.faults.remove(index)).map(|(_, fault)| fault);
        let answer = if is_files_host { state.large(&request) } else { state.answer(&request) };
        (answer, fault)
    };
    send(stream, &request, answer, fault.as_ref())
}

fn send(
    mut stream: &TcpStream,
    request: &Request,
    mut answer: Answer,
    fault: Option<&Fault>,
) -> std::io::Result<()> {
    if let (Some(range), false) = (&request.range, matches!(fault, Some(Fault::IgnoresRange)))
        && answer.status == 200
        && let Some(from) =
            range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')?.parse().ok())
    {
        answer.body.drain(..usize::min(from, answer.body.len()));
        answer.status = 206;
    }
    let mut cut = None;
    match fault {
        Some(&Fault::Status(status, headers)) => {
            answer = Answer { status, headers: Vec::new(), body: Vec::new() };
            answer
                .headers
                .extend(headers.split_once(": ").map(|(name, value)| (name, value.to_owned())));
        }
        Some(Fault::Damaged) => answer.body.iter_mut().take(1).for_each(|byte| *byte ^= 1),
        Some(Fault::Silent(time)) => std::thread::sleep(*time),
        Some(Fault::Cut(length)) => cut = Some(*length.min(&answer.body.len())),
        Some(Fault::IgnoresRange) | None => {}
    }
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", answer.status);
    head.push_str(&format!("content-length: {}\r\n", answer.body.len()));
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    if request.method == "GET" {
        stream.write_all(&answer.body[..cut.unwrap_or(answer.body.len())])?;
    }
    stream.flush()
}

impl State {
    fn answer(&self, request: &Request) -> Answer {
        let path = request.path.trim_start_matches('/');
        let api = path.strip_prefix("api/").and_then(|path| path.split_once("/revision/"));
        if let Some((repo, revision)) = api {
            let repo = repo.strip_prefix("models/").unwrap_or(repo);
            return self.of_repo(repo, revision, request, |files, commit| {
                let names: Vec<String> =
                    files.keys().map(|name| format!("{{\"rfilename\": \"{name}\"}}")).collect();
                let body =
                    format!("{{\"sha\": \"{commit}\", \"siblings\": [{}]}}", names.join(", "));
                Answer { status: 200, headers: Vec::new(), body: body.into_bytes() }
            });
        }
        // Files of other hosts.
        let plain = path.strip_prefix("plain/").and_then(|path| self.repos.get("plain")?.get(path));
        if let Some(bytes) = plain {
            return Answer { status: 200, headers: Vec::new(), body: bytes.clone() };
        }
        let Some((repo, rest)) = path.split_once("/resolve/") else {
            return Answer::error(404, "");
        };
        let Some((revision, file)) = rest.split_once('/') else { return Answer::error(404, "") };
        self.of_repo(repo, revision, request, |files, commit| {
            let Some(bytes) = files.get(file) else { return Answer::error(404, "EntryNotFound") };
            let mut headers = vec![("x-repo-commit", commit.to_owned())];
            if bytes.len() < LARGE {
                headers.push(("etag", format!("\"{}\"", etag(bytes))));
                return Answer { status: 200, headers, body: bytes.clone() };
            }
            headers.push(("x-linked-etag", format!("\"{}\"", etag(bytes))));
            headers.push(("x-linked-size", bytes.len().to_string()));
            let key = self.key(repo, revision);
            headers.push(("location", format!("{}/{key}/{file}", self.files_host)));
            Answer { status: 302, headers, body: Vec::new() }
        })
    }

    /// The answer of `make` about a repository that may be shown and has the revision, or an error.
    fn of_repo(
        &self,
        repo: &str,
        revision: &str,
        request: &Request,
        make: impl FnOnce(&BTreeMap<String, Vec<u8>>, &str) -> Answer,
    ) -> Answer {
        let token =
            request.authorization.as_deref().and_then(|value| value.strip_prefix("Bearer "));
        if !self.repos.contains_key(repo) {
            return Answer::error(401, "RepoNotFound");
        }
        if self.gated.iter().any(|gated| gated == repo) {
            return Answer::error(403, "GatedRepo");
        }
        match (self.private.get(repo), token) {
            (Some(right), Some(given)) if right != given => {
                let mut answer = Answer::error(401, "");
                answer.headers.push((
                    "x-error-message",
                    "Invalid credentials in Authorization header".to_owned(),
                ));
                return answer;
            }
            (Some(_), None) => return Answer::error(401, "RepoNotFound"),
            _ => {}
        }
        let key = self.key(repo, revision);
        match self.repos.get(&key) {
            Some(files) => make(files, &commit(&key, files)),
            None => Answer::error(404, "RevisionNotFound"),
        }
    }

    /// Name of the files of a repository at a branch or commit.
    fn key(&self, repo: &str, revision: &str) -> String {
        let revision = revision.replace("%2F", "/");
        let of_repo = self.repos.iter().filter(|(key, _)| {
            key.strip_prefix(repo).is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
        });
        let mut at_commit = of_repo.filter(|(key, files)| commit(key, files) == revision);
        match at_commit.next() {
            Some((key, _)) => key.clone(),
            None if revision == "main" => repo.to_owned(),
            None => format!("{repo}@{revision}"),
        }
    }

    /// The bytes of a large file.
    fn large(&self, request: &Request) -> Answer {
        let path = request.path.trim_start_matches('/');
        let mut files = self.repos.iter().filter_map(|(repo, files)| {
            files.get(path.strip_prefix(repo.as_str())?.strip_prefix('/')?)
        });
        match files.next() {
            Some(bytes) => Answer { status: 200, headers: Vec::new(), body: bytes.clone() },
            None => Answer::error(404, ""),
        }
    }
}
