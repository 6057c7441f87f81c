//! One request and its answer over a connection: each answer closes the connection.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a request's head.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
/// Time for a client to send a whole request without a body: it takes a moment.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a body, and for a whole answer, over a slow line.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// Time for a client to notice that the rest of its request is not wanted.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes that are read and written at once: small enough to look at the time in between.
const PIECE: usize = 64 << 10;

/// A request of a browser or another program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST` ...
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    /// The header `Host`.
    pub host: String,
    /// The header `Cookie`.
    pub cookie: String,
    /// The header `Authorization`.
    pub authorization: String,
    /// The header `Content-Type`.
    pub content_type: String,
    /// The header `Accept-Encoding`.
    pub accept_encoding: String,
    pub body: Vec<u8>,
}

impl Request {
    /// True if the header `Authorization` contains the token: `Bearer TOKEN`.
    pub fn has_bearer(&self, token: &str) -> bool {
        let given = self.authorization.split_once(' ');
        let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        given.is_some_and(|(_, given)| is_token(given.trim(), token))
    }

    /// True if the client takes an answer that is compressed by gzip.
    pub fn takes_gzip(&self) -> bool {
        self.accept_encoding.split(',').any(|coding| {
            let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
            let weight = weight.trim().strip_prefix("q=").and_then(|it| it.parse::<f32>().ok());
            name.trim().eq_ignore_ascii_case("gzip") && weight.is_some_and(|it| it > 0.0)
        })
    }
}

/// True if `given` is the token. In constant time: hashes are compared, and as a whole.
pub fn is_token(given: &str, token: &str) -> bool {
    blake3::hash(given.as_bytes()) == blake3::hash(token.as_bytes())
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Response {
    /// Number and words: `200 OK`.
    pub status: &'static str,
    /// Media type of the body.
    pub kind: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// A page, a script, a picture ...
    pub fn of(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: "200 OK", kind, headers: Vec::new(), body: body.into() }
    }

    /// A value as JSON.
    pub fn json(value: &impl serde::Serialize) -> Self {
        Self::of("application/json", serde_json::to_vec(value).unwrap_or_default())
    }

    /// A refusal in words.
    pub fn refused(status: &'static str, words: &str) -> Self {
        Self { status, ..Self::of("text/plain; charset=utf-8", words) }
    }

    /// The answer with one more header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sends the answer.
    ///
    /// # Errors
    ///
    /// The client is gone, or takes the answer too slowly.
    pub fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let length = self.body.len();
        let mut bytes = self.head(&format!("Content-Length: {length}\r\n")).into_bytes();
        bytes.extend_from_slice(&self.body);
        write_until(Instant::now() + BODY_TIMEOUT, stream, &bytes)
    }

    /// The head alone, for a stream that lasts as long as the connection.
    pub fn head(&self, length: &str) -> String {
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
///
/// # Errors
///
/// The client is gone, or time is up.
pub fn write_until(until: Instant, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
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

/// Reads a request whose body has at most `max_body` bytes; for an invalid one, returns the answer
/// to it.
///
/// # Errors
///
/// The client is gone, or sends too slowly.
pub fn read(stream: &mut TcpStream, max_body: u64) -> io::Result<Result<Request, Response>> {
    let Head { mut request, length, is_asking, mut begun } =
        match read_head(Instant::now() + HEAD_TIMEOUT, stream)? {
            Ok(head) => head,
            Err(refusal) => return Ok(Err(refusal)),
        };
    if length > max_body {
        let words = format!("a body of {length} bytes is too large: at most {max_body}");
        return Ok(Err(Response::refused("413 Content Too Large", &words)));
    }
    let until = Instant::now() + BODY_TIMEOUT;
    if is_asking && (begun.len() as u64) < length {
        write_until(until, stream, b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut piece = vec![0; PIECE];
    while (begun.len() as u64) < length {
        begun.extend_from_slice(read_piece(until, stream, &mut piece)?);
    }
    begun.truncate(length as usize);
    request.body = begun;
    Ok(Ok(request))
}

/// Ends a connection whose request was not read whole: what is still sent is discarded for a moment,
/// or the client would find its connection reset before it has read the answer.
pub fn discard_rest(stream: &mut TcpStream) {
    let until = Instant::now() + LINGER;
    let mut piece = vec![0; PIECE];
    if stream.shutdown(Shutdown::Write).is_ok() {
        while read_piece(until, stream, &mut piece).is_ok() {}
    }
}

/// What is there to read, at least a byte.
fn read_piece<'a>(
    until: Instant,
    stream: &mut TcpStream,
    piece: &'a mut [u8],
) -> io::Result<&'a [u8]> {
    loop {
        stream.set_read_timeout(left(until)?)?;
        match stream.read(piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => return Ok(&piece[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A request before its body.
#[derive(Debug)]
struct Head {
    request: Request,
    /// Bytes of the body.
    length: u64,
    /// True if the client waits to be told that it may send the body.
    is_asking: bool,
    /// What has come of the body.
    begun: Vec<u8>,
}

/// The deadline is that of the whole head: a byte now and then does not keep a connection.
fn read_head(until: Instant, stream: &mut TcpStream) -> io::Result<Result<Head, Response>> {
    let mut head = Vec::new();
    let mut piece = [0; 2048];
    loop {
        head.extend_from_slice(read_piece(until, stream, &mut piece)?);
        if let Some(request) = parse(&head) {
            return Ok(request);
        }
        if head.len() > MAX_HEAD {
            return Ok(Err(Response::refused("431 Request Header Fields Too Large", "too long")));
        }
    }
}

/// `None` if the head is incomplete.
fn parse(bytes: &[u8]) -> Option<Result<Head, Response>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let end = match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(end)) => end,
        Err(_) => return Some(Err(Response::refused("400 Bad Request", "this is no request"))),
    };
    let header = |name: &str| {
        let mut all = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(name));
        let value = all.next().map(|it| String::from_utf8_lossy(it.value).into_owned());
        // Two of them could be read in two ways.
        if all.next().is_some() { String::new() } else { value.unwrap_or_default() }
    };
    let has = |name: &str| request.headers.iter().any(|it| it.name.eq_ignore_ascii_case(name));
    let length =
        if has("Content-Length") { header("Content-Length").trim().parse() } else { Ok(0) };
    let Some(length) = length.ok().filter(|_| !has("Transfer-Encoding")) else {
        let words = "send the body in one piece, with its Content-Length";
        return Some(Err(Response::refused("411 Length Required", words)));
    };
    let (path, query) = request.path?.split_once('?').unwrap_or((request.path?, ""));
    let words = query.split('&').filter_map(|pair| pair.split_once('='));
    let is_asking = header("Expect").eq_ignore_ascii_case("100-continue");
    let request = Request {
        method: request.method?.to_owned(),
        path: decoded(path),
        query: words.map(|(key, value)| (decoded(key), decoded(value))).collect(),
        host: header("Host"),
        cookie: header("Cookie"),
        authorization: header("Authorization"),
        content_type: header("Content-Type"),
        accept_encoding: header("Accept-Encoding"),
        body: Vec::new(),
    };
    Some(Ok(Head { request, length, is_asking, begun: bytes[end..].to_vec() }))
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
        let request = parse(text).unwrap().unwrap().request;
        assert_eq!((request.path.as_str(), request.query["id"].as_str()), ("/api/run", "a/b c"));
        assert_eq!((request.host.as_str(), request.query["x"].as_str()), ("localhost:80", "%zz"));
        assert_eq!(request.cookie, "a=b");
        assert!(parse(&text[..40]).is_none(), "it goes on");
    }

    #[test]
    fn gzip_is_for_those_who_name_it() {
        let takes = |accept_encoding: &str| {
            let accept_encoding = accept_encoding.to_owned();
            Request { accept_encoding, ..Request::default() }.takes_gzip()
        };
        assert!(takes("gzip") && takes("br, GZIP;q=0.5") && takes("deflate,gzip"));
        assert!(!takes("") && !takes("br") && !takes("gzip;q=0") && !takes("gzipped"));
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
        let error = read_head(began + Duration::from_millis(100), &mut stream).unwrap_err();
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
        assert!(status(b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n").starts_with("411"));
        let chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n";
        assert!(status(chunked).starts_with("411"));
        assert!(status(b"\x16\x03\x01\x02\x00\x01\r\n\r\n").starts_with("400"));
        let two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n";
        assert_eq!(parse(two).unwrap().unwrap().request.host, "");
    }

    #[test]
    fn a_body_comes_whole_however_it_is_cut() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let body: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
        let sent = body.clone();
        let asking = std::thread::spawn(move || {
            let head = "POST /x HTTP/1.1\r\nContent-Length: 200000\r\nExpect: 100-continue\r\n\r\n";
            client.write_all(head.as_bytes()).unwrap();
            let mut answer = [0; 25];
            client.read_exact(&mut answer).unwrap();
            client.write_all(&sent).unwrap();
            answer
        });
        let request = read(&mut stream, 200_000).unwrap().unwrap();
        assert_eq!(&asking.join().unwrap(), b"HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/x"));
        assert!(request.body == body);
    }

    #[test]
    fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        client.write_all(b"POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n").unwrap();
        assert!(read(&mut stream, 10).unwrap().unwrap_err().status.starts_with("413"));
    }
}
