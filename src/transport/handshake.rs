//! A fresh TCP connection -> one whose ends have proved that they hold the same key, or none.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::transport::auth::{self, Key, OPENING, Purpose, Session, TAG};

/// Longest time that a handshake may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Unmet {
    /// The other end left, or did not answer.
    Io(io::Error),
    /// It did not prove that it holds the key.
    Unproved,
}

/// Introduces this end, which has opened the connection.
pub(crate) fn handshake(
    stream: &mut TcpStream,
    key: &Key,
    purpose: Purpose,
) -> Result<Session, Unmet> {
    let until = Instant::now() + PATIENCE;
    let opening = auth::open(purpose, &Key::random().map_err(Unmet::Io)?);
    send(stream, &opening).map_err(Unmet::Io)?;
    let mut answer = [0; OPENING];
    receive(stream, &mut answer, until).map_err(Unmet::Io)?;
    let (proof, session) = auth::prove(key, &opening, &answer).ok_or(Unmet::Unproved)?;
    send(stream, &proof).map_err(Unmet::Io)?;
    Ok(session)
}

/// Hears out whoever has opened the connection: 96 bytes at most, of which none means anything before the last 32 have
/// proved the others. The error says why it is refused.
pub(crate) fn admit(stream: &mut TcpStream, key: &Key) -> Result<(Purpose, Session), &'static str> {
    let until = Instant::now() + PATIENCE;
    let mut opening = [0; OPENING];
    receive(stream, &mut opening, until).map_err(|error| silence(&error))?;
    let nonce = Key::random().map_err(|_| "the system gives no randomness")?;
    let answer = auth::answer(key, &opening, &nonce)
        .ok_or("it does not speak this version of ddprun's protocol")?;
    send(stream, &answer).map_err(|error| silence(&error))?;
    let mut proof = [0; TAG];
    receive(stream, &mut proof, until).map_err(|error| silence(&error))?;
    auth::accept(key, &opening, &answer, &proof)
        .ok_or("it does not prove that it has the token of this run")
}

fn silence(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::TimedOut => "it did not authenticate within 5 seconds",
        _ => "it left before it had authenticated",
    }
}

fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(bytes)
}

/// Fills `bytes`; whoever sends a byte now and then does not gain time.
fn receive(stream: &mut TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<()> {
    let mut here = 0;
    while here < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[here..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => here += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
