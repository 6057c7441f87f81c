//! The server: a thread for each connection, and one that looks at the files once a second while a
//! browser shows the page.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::access::Access;
use super::http::{self, Request, Response};
use super::routes;
use super::watched::Watched;

/// Time between two looks at the files.
const PERIOD: Duration = Duration::from_secs(1);
/// Time after the last question from which on no browser shows the page.
const ATTENTION: Duration = Duration::from_secs(5);
/// Time after the last answer in which nothing is read that can wait.
const REST: Duration = Duration::from_millis(400);
/// Time after which a silent stream of events says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Runs that are read between two questions, at the start, and after how many the page is told
/// first; then after twice as many each time.
const PORTION: usize = 4;
const FIRST_RUNS: usize = 16;
/// Connections at once.
const MAX_CONNECTIONS: usize = 64;

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Another process listens there.
    #[error("port {port} of `{host}` is in use")]
    PortInUse {
        /// Where.
        host: String,
        /// The port.
        port: u16,
    },
    /// The system does not let us listen.
    #[error("cannot listen on `{host}`, port {port}")]
    Listen {
        /// Where.
        host: String,
        /// The port.
        port: u16,
        /// Why not.
        #[source]
        reason: io::Error,
    },
    /// The system provides no randomness, or no thread.
    #[error("cannot start the server")]
    System(#[from] io::Error),
}

/// A server that listens and does not yet answer.
pub(crate) struct Server {
    listener: TcpListener,
    host: String,
    port: u16,
    access: Access,
}

/// What all connections share.
struct Shared {
    access: Access,
    watched: Mutex<Watched>,
    /// Counts changes.
    news: Mutex<u64>,
    changed: Condvar,
    /// When a browser last showed the page, and when it last asked.
    last_watched: Mutex<Instant>,
    last_asked: Mutex<Instant>,
    connections: AtomicUsize,
}

impl Server {
    /// Takes a port of `host`, 0 for any.
    ///
    /// # Errors
    ///
    /// The port is in use or forbidden, or there is no such host.
    pub(crate) fn listen(host: &str, port: u16) -> Result<Self, Error> {
        let host = host.trim_matches(['[', ']']).to_owned();
        let listener = TcpListener::bind((host.as_str(), port)).map_err(|reason| {
            let host = host.clone();
            match reason.kind() {
                io::ErrorKind::AddrInUse => Error::PortInUse { host, port },
                _ => Error::Listen { host, port, reason },
            }
        })?;
        let port = listener.local_addr()?.port();
        let access = Access::new(&host, port)?;
        Ok(Self { listener, host, port, access })
    }

    /// What to open in the browser.
    pub(crate) fn address(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("http://{host}:{}/?token={}", self.port, self.access.token())
    }

    /// Answers questions about the runs below `folder` until the process ends; `ready` is called
    /// when the first can be answered, with whether there are any runs.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn start(self, folder: &Path, ready: impl FnOnce(bool, &str)) -> Result<(), Error> {
        let mut watched = Watched::new(folder);
        watched.look();
        ready(!watched.is_empty(), &self.address());
        let shared = Arc::new(Shared {
            access: self.access,
            watched: Mutex::new(watched),
            news: Mutex::new(1),
            changed: Condvar::new(),
            last_watched: Mutex::new(Instant::now()),
            last_asked: Mutex::new(Instant::now()),
            connections: AtomicUsize::new(0),
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
    let (mut looked, mut told) = (Instant::now(), Instant::now());
    let mut has_read = false;
    loop {
        read_unread(shared);
        if looked.elapsed() >= PERIOD && shared.is_watched() {
            let has_changed = lock(&shared.watched).look();
            looked = Instant::now();
            if has_changed {
                shared.tell();
            }
        }
        // Questions come first.
        let is_quiet = lock(&shared.last_asked).elapsed() > REST;
        let is_reading = is_quiet && lock(&shared.watched).read_one_long().is_some();
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
    let (mut read, mut next) = (0, FIRST_RUNS);
    while lock(&shared.watched).read_some(PORTION).is_some() {
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
        let open = shared.connections.fetch_add(1, Ordering::Relaxed);
        if open >= MAX_CONNECTIONS {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            drop(
                Response::refused("503 Service Unavailable", "too many at once").send(&mut stream),
            );
            continue;
        }
        let own = Arc::clone(shared);
        let spawned = thread::Builder::new().name("connection".into()).spawn(move || {
            let _open = Open(&own.connections);
            // A browser that goes away in the middle is no failure.
            drop(converse(&mut stream, &own));
        });
        if spawned.is_err() {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Counts a connection for as long as it is open, however it ends.
struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn converse(stream: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let request = match http::read(stream)? {
        Ok(request) => request,
        Err(refusal) => return refusal.send(stream),
    };
    if let Some(refusal) = routes::admission(&shared.access, &request) {
        return refusal.send(stream);
    }
    if request.path == "/api/events" {
        return events(stream, shared);
    }
    answer(shared, &request).send(stream)
}

fn answer(shared: &Shared, request: &Request) -> Response {
    let was_watched = shared.is_watched();
    shared.note_watching();
    *lock(&shared.last_asked) = Instant::now();
    let mut watched = lock(&shared.watched);
    if !was_watched {
        watched.look();
    }
    let answer = routes::answer(&watched, request);
    *lock(&shared.last_asked) = Instant::now();
    answer
}

/// Says a number whenever anything has changed, as long as the browser listens.
fn events(stream: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    stream.write_all(Response::of("text/event-stream", "").head("").as_bytes())?;
    let (mut known, mut spoke) = (*lock(&shared.news), Instant::now());
    stream.write_all(b": here\n\n")?;
    loop {
        shared.note_watching();
        let news = lock(&shared.news);
        let woken = shared.changed.wait_timeout_while(news, PERIOD, |news| *news == known);
        let now = *woken.unwrap_or_else(PoisonError::into_inner).0;
        if now != known {
            (known, spoke) = (now, Instant::now());
            stream.write_all(format!("data: {now}\n\n").as_bytes())?;
        } else if spoke.elapsed() > HEARTBEAT {
            spoke = Instant::now();
            stream.write_all(b": still here\n\n")?;
        }
    }
}
