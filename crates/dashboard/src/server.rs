//! The server: a thread for each connection, and one that looks at the files once a second while a
//! browser shows the page.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::access::Access;
use crate::catalog::RunCatalog;
use crate::http::{self, Request, Response};
use crate::prometheus;
use crate::routes;
use crate::transport::Key;

/// Time between two looks at the files.
const PERIOD: Duration = Duration::from_secs(1);
/// Time after the last request until the page counts as closed.
const ATTENTION: Duration = Duration::from_secs(5);
/// Time after the last answer in which nothing is read that can wait.
const REST: Duration = Duration::from_millis(400);
/// Silence after which a stream of events sends a comment.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Runs that are read between two requests at the start, and the number of runs after which the
/// page is first notified; then after twice as many each time.
const PORTION: usize = 4;
const FIRST_RUNS: usize = 16;
/// Most connections in each [`Stage`] at once.
const MAX_CONNECTIONS: usize = 32;
/// Time for a browser to take a few bytes.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to check whether a browser is still connected.
const GLANCE: Duration = Duration::from_millis(1);

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens there.
    #[error("port {port} of `{host}` is in use")]
    PortInUse {
        /// Where.
        host: String,
        port: u16,
    },
    /// The system does not let us listen.
    #[error("cannot listen on `{host}`, port {port}")]
    Listen {
        /// Where.
        host: String,
        port: u16,
        #[source]
        reason: io::Error,
    },
    /// The system provides no randomness, or no thread.
    #[error("cannot start the server")]
    System(#[from] io::Error),
}

/// A server that listens and does not yet answer.
pub struct Server {
    listener: TcpListener,
    host: String,
    port: u16,
    access: Access,
}

/// State shared by all connections.
struct Shared {
    access: Access,
    catalog: Mutex<RunCatalog>,
    /// Counts changes.
    news: Mutex<u64>,
    changed: Condvar,
    /// When a browser last showed the page, and when it last asked.
    last_watched: Mutex<Instant>,
    last_asked: Mutex<Instant>,
    connections: Mutex<Connections>,
}

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not asked yet; anybody can open one.
    Asking,
    /// It is being answered, within a deadline.
    Answered,
    /// It receives changes until the browser leaves.
    Listening,
}

/// All connections that are open, the oldest first.
#[derive(Default)]
struct Connections {
    next: u64,
    open: Vec<(u64, Stage, TcpStream)>,
}

impl Connections {
    /// Adds a new connection. Returns its number.
    fn add(&mut self, stream: &TcpStream) -> io::Result<u64> {
        let number = self.next;
        self.next += 1;
        self.open.push((number, Stage::Asking, stream.try_clone()?));
        self.make_room(Stage::Asking);
        Ok(number)
    }

    /// Moves a connection to another stage. Returns false if there is no room.
    fn enter(&mut self, number: u64, stage: Stage) -> bool {
        if stage == Stage::Answered && self.count(stage) >= MAX_CONNECTIONS {
            return false;
        }
        if let Some(own) = self.open.iter_mut().find(|(other, ..)| *other == number) {
            own.1 = stage;
        }
        self.make_room(stage);
        true
    }

    /// Closes the oldest connections of a stage if there are too many: clients that send no
    /// request, or no longer listen, keep nobody out.
    fn make_room(&mut self, stage: Stage) {
        while self.count(stage) > MAX_CONNECTIONS {
            let Some(oldest) = self.open.iter().position(|(_, other, _)| *other == stage) else {
                return;
            };
            // Its thread finds it closed.
            let _ = self.open.remove(oldest).2.shutdown(Shutdown::Both);
        }
    }

    fn count(&self, stage: Stage) -> usize {
        self.open.iter().filter(|(_, other, _)| *other == stage).count()
    }

    fn remove(&mut self, number: u64) {
        self.open.retain(|(other, ..)| *other != number);
    }
}

impl Server {
    /// Takes a port of `host`, 0 for any. Whoever has `token`, or else a new one, is let in.
    pub fn listen(host: &str, port: u16, token: Option<&Key>) -> Result<Self, Error> {
        let host = host.trim_matches(['[', ']']).to_owned();
        let listener = TcpListener::bind((host.as_str(), port)).map_err(|reason| {
            let host = host.clone();
            match reason.kind() {
                io::ErrorKind::AddrInUse => Error::PortInUse { host, port },
                _ => Error::Listen { host, port, reason },
            }
        })?;
        let port = listener.local_addr()?.port();
        let access = Access::new(&host, port, token)?;
        Ok(Self { listener, host, port, access })
    }

    /// The address to open in the browser.
    pub fn address(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("http://{host}:{}/?token={}", self.port, self.access.token())
    }

    /// Answers questions about the runs below `folder` until the process ends; `ready` is called
    /// when the first can be answered, with whether there are any runs.
    pub fn start(self, folder: &Path, ready: impl FnOnce(bool, &str)) -> Result<(), Error> {
        let mut catalog = RunCatalog::new(folder);
        catalog.look();
        ready(!catalog.is_empty(), &self.address());
        let shared = Arc::new(Shared {
            access: self.access,
            catalog: Mutex::new(catalog),
            news: Mutex::new(1),
            changed: Condvar::new(),
            last_watched: Mutex::new(Instant::now()),
            last_asked: Mutex::new(Instant::now()),
            connections: Mutex::default(),
        });
        let watching = Arc::clone(&shared);
        thread::Builder::new().name("watch".into()).spawn(move || watch(&watching))?;
        let listener = self.listener;
        thread::Builder::new().name("accept".into()).spawn(move || accept(&listener, &shared))?;
        Ok(())
    }
}

/// A thread that panicked has left what can be looked at again.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn tell(&self) {
        *lock(&self.news) += 1;
        self.changed.notify_all();
    }

    fn is_watched(&self) -> bool {
        lock(&self.last_watched).elapsed() < ATTENTION
    }

    fn note_watching(&self) {
        *lock(&self.last_watched) = Instant::now();
    }
}

/// Looks at the files as long as the process lives; between two looks reads long ones.
fn watch(shared: &Shared) {
    let mut told = Instant::now();
    let mut has_read = false;
    loop {
        read_unread(shared);
        if shared.is_watched() && lock(&shared.catalog).look_after(PERIOD) {
            shared.tell();
        }
        // Questions come first.
        let is_quiet = lock(&shared.last_asked).elapsed() > REST;
        let is_reading = is_quiet && lock(&shared.catalog).read_one_long().is_some();
        has_read |= is_reading;
        // What was a sketch has become exact.
        if has_read && (is_quiet && !is_reading || told.elapsed() > 5 * PERIOD) {
            (has_read, told) = (false, Instant::now());
            shared.tell();
        }
        thread::sleep(if is_reading { Duration::from_millis(2) } else { PERIOD / 10 });
    }
}

/// Reads the runs that were not yet read; the first are shown while the others are read.
fn read_unread(shared: &Shared) {
    let mut read = 0;
    let mut next = FIRST_RUNS;
    while lock(&shared.catalog).read_some(PORTION).is_some() {
        read += PORTION;
        if read >= next {
            next = 2 * read;
            shared.tell();
        }
        thread::sleep(Duration::from_millis(2));
    }
    if read > 0 {
        shared.tell();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            // Out of descriptors, say: those who are there will give some back.
            thread::sleep(PERIOD / 10);
            continue;
        };
        // Out of descriptors: this one cannot be answered.
        let Ok(number) = lock(&shared.connections).add(&stream) else { continue };
        let own = Arc::clone(shared);
        let spawned = thread::Builder::new().name("connection".into()).spawn(move || {
            let _open = Open { shared: &own, number };
            // A browser that goes away in the middle is no failure.
            drop(converse(&mut stream, &own, number));
        });
        if spawned.is_err() {
            lock(&shared.connections).remove(number);
        }
    }
}

/// A connection for as long as it is open, however it ends.
struct Open<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        lock(&self.shared.connections).remove(self.number);
    }
}

fn converse(stream: &mut TcpStream, shared: &Shared, number: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let request = match http::read(stream, 0)? {
        Ok(request) => request,
        Err(refusal) => return refusal.send(stream),
    };
    if let Some(refusal) = routes::admission(&shared.access, &request) {
        return refusal.send(stream);
    }
    if request.path == "/api/events" {
        lock(&shared.connections).enter(number, Stage::Listening);
        return events(stream, shared);
    }
    if !lock(&shared.connections).enter(number, Stage::Answered) {
        let refusal = Response::refused("503 Service Unavailable", "too many at once");
        return refusal.send(stream);
    }
    let answer =
        if request.path == routes::METRICS { scrape(shared) } else { answer(shared, &request) };
    routes::compressed(&request, answer).send(stream)
}

/// Answers a scrape. However many clients scrape, the files are looked at once per [`PERIOD`]; a
/// scrape does not count as watching the page.
fn scrape(shared: &Shared) -> Response {
    let mut catalog = lock(&shared.catalog);
    let has_changed = catalog.look_after(PERIOD);
    let text = prometheus::exposition(&catalog.census());
    drop(catalog);
    if has_changed {
        // Those who watch the page would not find the change any more.
        shared.tell();
    }
    Response::of(prometheus::CONTENT_TYPE, text)
}

fn answer(shared: &Shared, request: &Request) -> Response {
    let was_watched = shared.is_watched();
    shared.note_watching();
    *lock(&shared.last_asked) = Instant::now();
    let mut catalog = lock(&shared.catalog);
    if !was_watched {
        catalog.look();
    }
    let answer = routes::answer(&catalog, request);
    *lock(&shared.last_asked) = Instant::now();
    answer
}

/// Says a number whenever anything has changed, as long as the browser listens.
fn events(stream: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let say = |stream: &mut TcpStream, text: &str| {
        http::write_until(Instant::now() + EVENT_TIMEOUT, stream, text.as_bytes())
    };
    say(stream, &Response::of("text/event-stream", "").head(""))?;
    let mut known = *lock(&shared.news);
    let mut spoke = Instant::now();
    say(stream, ": here\n\n")?;
    stream.set_read_timeout(Some(GLANCE))?;
    while is_there(stream) {
        shared.note_watching();
        let news = lock(&shared.news);
        let woken = shared.changed.wait_timeout_while(news, PERIOD, |news| *news == known);
        let now = *woken.unwrap_or_else(PoisonError::into_inner).0;
        if now != known {
            (known, spoke) = (now, Instant::now());
            say(stream, &format!("data: {now}\n\n"))?;
        } else if spoke.elapsed() > HEARTBEAT {
            spoke = Instant::now();
            say(stream, ": still here\n\n")?;
        }
    }
    Ok(())
}

/// Returns true if the other end of a connection is open. A closed one is noticed here long before
/// a write to it fails.
fn is_there(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(n) => n > 0,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// A server of an empty folder, and what its owner sends to be let in.
    fn started() -> (tempfile::TempDir, u16, String) {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::listen("127.0.0.1", 0, None).unwrap();
        let (port, cookie) = (server.port, server.access.cookie());
        let cookie = cookie.split(';').next().unwrap().to_owned();
        server.start(folder.path(), |_, _| {}).unwrap();
        (folder, port, cookie)
    }

    fn connect(port: u16) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn ask(port: u16, cookie: &str, path: &str) -> TcpStream {
        let mut stream = connect(port);
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    /// The first line of the answer.
    fn status(stream: &mut TcpStream) -> String {
        let mut bytes = [0; 15];
        stream.read_exact(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn those_who_ask_nothing_do_not_keep_the_owner_out() {
        let (_folder, port, cookie) = started();
        let mut silent: Vec<TcpStream> = (0..3 * MAX_CONNECTIONS).map(|_| connect(port)).collect();
        let mut owner = ask(port, &cookie, "/api/overview");
        assert_eq!(status(&mut owner), "HTTP/1.1 200 OK");
        let first = silent[0].read(&mut [0; 8]);
        assert!(matches!(first, Ok(0)) || first.is_err(), "the oldest has given way: {first:?}");
    }

    #[test]
    fn streams_of_browsers_that_are_gone_give_back_their_places() {
        let (_folder, port, cookie) = started();
        // They are stopped, and still connected.
        let listening: Vec<TcpStream> = (0..2 * MAX_CONNECTIONS)
            .map(|_| {
                let mut stream = ask(port, &cookie, "/api/events");
                assert_eq!(status(&mut stream), "HTTP/1.1 200 OK");
                stream
            })
            .collect();
        let mut owner = ask(port, &cookie, "/api/events");
        assert_eq!(status(&mut owner), "HTTP/1.1 200 OK");
        let mut owner = ask(port, &cookie, "/api/overview");
        assert_eq!(status(&mut owner), "HTTP/1.1 200 OK");
        drop(listening);
    }

    #[test]
    fn a_browser_that_closes_its_connection_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let browser = connect(listener.local_addr().unwrap().port());
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(GLANCE)).unwrap();
        assert!(is_there(&stream));
        drop(browser);
        let gone = Instant::now();
        while is_there(&stream) {
            assert!(gone.elapsed() < Duration::from_secs(10));
        }
    }

    #[test]
    fn the_oldest_of_those_who_wait_gives_way_and_answers_are_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut all = Connections::default();
        let mut streams = Vec::new();
        for _ in 0..=MAX_CONNECTIONS {
            streams.push(connect(port));
            let (stream, _) = listener.accept().unwrap();
            all.add(&stream).unwrap();
        }
        assert_eq!(all.count(Stage::Asking), MAX_CONNECTIONS);
        assert!(!all.open.iter().any(|(number, ..)| *number == 0), "the first is gone");
        let numbers: Vec<u64> = all.open.iter().map(|(number, ..)| *number).collect();
        assert!(numbers.iter().all(|number| all.enter(*number, Stage::Answered)));
        let (stream, _) = {
            streams.push(connect(port));
            listener.accept().unwrap()
        };
        let late = all.add(&stream).unwrap();
        assert!(!all.enter(late, Stage::Answered), "answers that go on are not cut");
        all.remove(numbers[0]);
        assert!(all.enter(late, Stage::Answered));
    }
}
