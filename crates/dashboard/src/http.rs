//! One request and its answer over a connection: only GET, without a body, and each answer closes
//! the connection.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of a request's head.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
/// Time for a browser to send a whole request: it takes a moment.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for it to take a whole answer, over a slow line.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// Bytes that are written at once: small enough to look at the time in between.
const PIECE: usize = 64 << 10;

/// A request of a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    /// The header `Host`.
    pub(crate) host: String,
    /// The header `Cookie`.
    pub(crate) cookie: String,
    /// The header `Authorization`.
    pub(crate) authorization: String,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// A page, a script, a picture ...
    pub(crate) fn of(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: "200 OK", kind, headers: Vec::new(), body: body.into() }
    }

    pub(crate) fn json(value: &impl serde::Serialize) -> Self {
        Self::of("application/json", serde_json::to_vec(value).unwrap_or_default())
    }

    /// A refusal in words.
    pub(crate) fn refused(status: &'static str, words: &str) -> Self {
        Self { status, ..Self::of("text/plain; charset=utf-8", words) }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let length = self.body.len();
        let mut bytes = self.head(&format!("Content-Length: {length}\r\n")).into_bytes();
        bytes.extend_from_slice(&self.body);
        write_until(Instant::now() + ANSWER_TIMEOUT, stream, &bytes)
    }

    /// The head alone, for a stream that lasts as long as the connection.
    pub(crate) fn head(&self, length: &str) -> String {
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\n{length}Connection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n{}\r\n",
            self.status,
            self.kind,
            headers.collect::<String>()
        )
    }
}

/// Time left; an error where there is none.
fn left(until: Instant) -> io::Result<Option<Duration>> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
}

/// Writes all of it, however slowly it is taken piece by piece.
pub(crate) fn write_until(until: Instant, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        stream.set_write_timeout(left(until)?)?;
        match stream.write(&rest[..rest.len().min(PIECE)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => rest = &rest[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a request; for an invalid one, returns the answer to it.
pub(crate) fn read(stream: &mut TcpStream) -> io::Result<Result<Request, Response>> {
    read_until(Instant::now() + REQUEST_TIMEOUT, stream)
}

/// The deadline is that of the whole request: a byte now and then does not keep a connection.
fn read_until(until: Instant, stream: &mut TcpStream) -> io::Result<Result<Request, Response>> {
    let mut head = Vec::new();
    let mut bytes = [0; 2048];
    loop {
        stream.set_read_timeout(left(until)?)?;
        let n = stream.read(&mut bytes)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&bytes[..n]);
        if let Some(request) = parse(&head) {
            return Ok(request);
        }
        if head.len() > MAX_HEAD {
            return Ok(Err(Response::refused("431 Request Header Fields Too Large", "too long")));
        }
    }
}

/// `None` if the head is incomplete.
fn parse(head: &[u8]) -> Option<Result<Request, Response>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(Err(Response::refused("400 Bad Request", "this is no request"))),
    }
    if request.method != Some("GET") {
        return Some(Err(Response::refused("405 Method Not Allowed", "only GET")));
    }
    let header = |name: &str| {
        let mut all = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(name));
        let value = all.next().map(|it| String::from_utf8_lossy(it.value).into_owned());
        // Two of them could be read in two ways.
        if all.next().is_some() { String::new() } else { value.unwrap_or_default() }
    };
    let (path, query) = request.path?.split_once('?').unwrap_or((request.path?, ""));
    let words = query.split('&').filter_map(|pair| pair.split_once('='));
    Some(Ok(Request {
        path: decoded(path),
        query: words.map(|(key, value)| (decoded(key), decoded(value))).collect(),
        host: header("host"),
        cookie: header("cookie"),
        authorization: header("authorization"),
    }))
}

/// `a%20b+c` as text.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, after.get(..2).and_then(hex)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_with_its_query_and_the_headers_that_count() {
        let text =
            b"GET /api/run?id=a%2Fb+c&x=%zz HTTP/1.1\r\nhOST: localhost:80\r\nCookie: a=b\r\n\r\n";
        let request = parse(text).unwrap().unwrap();
        assert_eq!((request.path.as_str(), request.query["id"].as_str()), ("/api/run", "a/b c"));
        assert_eq!((request.host.as_str(), request.query["x"].as_str()), ("localhost:80", "%zz"));
        assert_eq!(request.cookie, "a=b");
        assert!(parse(&text[..40]).is_none(), "it goes on");
    }

    #[test]
    fn a_request_has_a_deadline_and_not_each_of_its_bytes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let dripping = std::thread::spawn(move || {
            for byte in b"GET / HTTP/1.1\r\nHost: ".iter().chain(&[b'a'; 200]) {
                if slow.write_all(&[*byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            slow
        });
        let began = Instant::now();
        let error = read_until(began + Duration::from_millis(100), &mut stream).unwrap_err();
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        drop(stream);
        drop(dripping.join().unwrap());
    }

    #[test]
    fn an_answer_that_is_not_taken_ends_at_its_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let idle = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let until = Instant::now() + Duration::from_millis(100);
        let error = write_until(until, &mut stream, &vec![0; 64 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
        assert!(until.elapsed() < Duration::from_secs(1));
        drop(idle);
    }

    #[test]
    fn what_is_no_plain_question_is_refused() {
        let status = |text: &[u8]| parse(text).unwrap().unwrap_err().status;
        assert!(status(b"POST / HTTP/1.1\r\n\r\n").starts_with("405"));
        assert!(status(b"\x16\x03\x01\x02\x00\x01\r\n\r\n").starts_with("400"));
        let two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n";
        assert_eq!(parse(two).unwrap().unwrap().host, "");
    }
}
