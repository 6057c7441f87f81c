//! A fresh TCP connection -> one whose ends have proved that they hold the same key; and the
//! identity of a build, which both ends then compare.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::transport::auth::{Key, Purpose};
use crate::transport::noise::{Client, HELLO_BYTES, PROOF_BYTES, PROTOCOL, Protocol, Server};
use crate::transport::record::SessionKeys;

/// Longest time that a handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The other end left, or did not answer.
    Io(io::Error),
    /// It did not prove that it holds the key.
    Unauthenticated,
    /// It is ddprun, but of a version with another handshake.
    OtherVersion,
}

/// The handshake of the end that opened the connection.
pub fn initiate(
    stream: &mut TcpStream,
    key: &Key,
    purpose: Purpose,
) -> Result<SessionKeys, HandshakeError> {
    let until = Instant::now() + HANDSHAKE_TIMEOUT;
    let noise = |error: snow::Error| HandshakeError::Io(io::Error::other(error.to_string()));
    let (client, hello) = Client::new(key).map_err(noise)?;
    send(stream, &hello).map_err(HandshakeError::Io)?;
    let mut answer = [0; HELLO_BYTES];
    let (protocol, rest) = answer.split_at_mut(PROTOCOL.len());
    receive(stream, protocol, until).map_err(HandshakeError::Io)?;
    match Protocol::of(protocol) {
        Protocol::Ours => receive(stream, rest, until).map_err(HandshakeError::Io)?,
        Protocol::OtherVersion => return Err(HandshakeError::OtherVersion),
        Protocol::Unknown => return Err(HandshakeError::Unauthenticated),
    }
    let proved = client.prove(&answer, purpose).map_err(|_| HandshakeError::Unauthenticated);
    let (proof, keys) = proved?;
    send(stream, &proof).map_err(HandshakeError::Io)?;
    Ok(keys)
}

/// The handshake of the end that accepted the connection. It reads 96 bytes at most, and interprets
/// none of them but the protocol before the last 32 have authenticated the client. The error says
/// why the connection is refused.
pub fn respond(stream: &mut TcpStream, key: &Key) -> Result<(Purpose, SessionKeys), &'static str> {
    const UNPROVED: &str = "it does not prove that it has the token of this run";
    let until = Instant::now() + HANDSHAKE_TIMEOUT;
    let mut hello = [0; HELLO_BYTES];
    receive(stream, &mut hello, until).map_err(|error| io_reason(&error))?;
    match Protocol::of(&hello) {
        Protocol::Ours => {}
        Protocol::OtherVersion => {
            // So that it says the same to its user; it may be gone by now.
            let _ = send(stream, PROTOCOL);
            return Err("it is another version of ddprun");
        }
        Protocol::Unknown => return Err("it does not speak ddprun's protocol"),
    }
    let (server, answer) = Server::new(key, &hello).map_err(|_| UNPROVED)?;
    send(stream, &answer).map_err(|error| io_reason(&error))?;
    let mut proof = [0; PROOF_BYTES];
    receive(stream, &mut proof, until).map_err(|error| io_reason(&error))?;
    server.verify(&proof).ok_or(UNPROVED)
}

fn io_reason(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::TimedOut => "it did not authenticate within 5 seconds",
        _ => "it disconnected before authenticating",
    }
}

fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.write_all(bytes)
}

/// Fills `bytes`. The deadline is for all of them, so a client that trickles bytes gains no time.
fn receive(stream: &mut TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<()> {
    let mut received = 0;
    while received < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[received..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => received += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// "0.1.0 (build 3f9a2c81)": the version, and a hash of the program's file.
pub fn build_id() -> &'static str {
    static BUILD_ID: OnceLock<String> = OnceLock::new();
    BUILD_ID.get_or_init(|| {
        let hash = executable_hash().unwrap_or_else(|_| "unknown".to_owned());
        format!("{} (build {hash})", env!("CARGO_PKG_VERSION"))
    })
}

/// Hash of the file that this process runs, even if it was replaced since.
fn executable_hash() -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open("/proc/self/exe")?)?;
    Ok(hasher.finalize().to_hex()[..8].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_holds_the_version_and_the_hash_of_the_executable() {
        let id = build_id();
        assert!(id.starts_with(concat!(env!("CARGO_PKG_VERSION"), " (build ")), "{id}");
        assert_eq!(
            id,
            format!("{} (build {})", env!("CARGO_PKG_VERSION"), executable_hash().unwrap())
        );
    }
}
