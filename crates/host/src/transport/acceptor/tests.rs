//! Clients without the key, beside one that has it.

use std::io::{Read, Write};
use std::net::SocketAddr;

use super::*;
use crate::transport::auth::KEY_BYTES;
use crate::transport::handshake::{HANDSHAKE_TIMEOUT, HandshakeError, initiate};
use crate::transport::noise::{Client, HELLO_BYTES, PROTOCOL};

const TIMEOUT: Duration = Duration::from_mins(1);

fn key(byte: u8) -> Key {
    Key::new([byte; KEY_BYTES])
}

/// An acceptor for the holders of `key(1)`, and the warnings that it gave.
struct Server {
    acceptor: Acceptor,
    address: SocketAddr,
    warnings: Vec<String>,
}

impl Server {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = Acceptor::open(&listener, &key(1)).unwrap();
        Self { acceptor, address, warnings: Vec::new() }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// The next connection, or `None` after a warning.
    fn next(&mut self) -> Option<AuthenticatedConnection> {
        let before = self.warnings.len();
        let until = Instant::now() + TIMEOUT;
        let warnings = &mut self.warnings;
        while Instant::now() < until && warnings.len() == before {
            let moment = Instant::now() + Duration::from_millis(5);
            let next = self.acceptor.accept(moment, &mut |text| warnings.push(text.to_owned()));
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// A client with the key is accepted.
    fn accepts_the_key(&mut self) {
        let mut client = self.connect();
        let keys = initiate(&mut client, &key(1), Purpose::Node(3)).unwrap();
        let accepted = self.next().unwrap_or_else(|| panic!("{:?}", self.warnings));
        assert_eq!(accepted.purpose, Purpose::Node(3));
        assert!(keys.fit(&accepted.keys));
    }
}

/// Bytes that the server sends until it closes the connection.
fn bytes_until_closed(stream: &mut TcpStream) -> usize {
    let mut bytes = Vec::new();
    // A connection that is reset is closed, too.
    let _ = stream.read_to_end(&mut bytes);
    bytes.len()
}

#[test]
fn a_client_with_the_key_is_accepted_also_after_one_with_another_key_was_refused() {
    let mut server = Server::new();
    server.accepts_the_key();
    let refused = initiate(&mut server.connect(), &key(2), Purpose::Node(1));
    assert!(matches!(refused, Err(HandshakeError::Unauthenticated)), "{refused:?}");
    assert!(server.next().is_none());
    server.accepts_the_key();
}

#[test]
fn a_replayed_handshake_is_refused() {
    let mut server = Server::new();
    // What a listener between two honest ends would have seen.
    let (client, hello) = Client::new(&key(1)).unwrap();
    let mut honest = server.connect();
    honest.write_all(&hello).unwrap();
    let mut answer = [0; HELLO_BYTES];
    honest.read_exact(&mut answer).unwrap();
    let (proof, _) = client.prove(&answer, Purpose::Node(3)).unwrap();
    honest.write_all(&proof).unwrap();
    assert!(server.next().is_some());
    for _ in 0..3 {
        let mut replay = server.connect();
        replay.write_all(&[&hello[..], &proof].concat()).unwrap();
        assert_eq!(bytes_until_closed(&mut replay), HELLO_BYTES);
    }
    assert!(server.next().is_none());
    let warning = &server.warnings[0];
    assert!(warning.contains("does not prove that it has the token"), "{warning}");
    server.accepts_the_key();
}

#[test]
fn garbage_instead_of_a_handshake_gets_no_answer() {
    let mut server = Server::new();
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: 127.0.0.1:29500\r\nAccept: */*\r\n\r\n................"[..],
        &[0xff; 4096],
    ] {
        let mut stream = server.connect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(garbage);
        assert_eq!(bytes_until_closed(&mut stream), 0);
    }
    assert!(server.next().is_none());
    assert!(server.warnings[0].contains("does not speak"), "{:?}", server.warnings);
    server.accepts_the_key();
}

#[test]
fn each_end_is_told_that_the_other_is_another_version() {
    let mut server = Server::new();
    let mut older = server.connect();
    older.write_all(&[&b"ddprun machines\x01"[..], &[7; 48]].concat()).unwrap();
    let mut answer = Vec::new();
    older.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, PROTOCOL);
    assert!(server.next().is_none());
    assert!(server.warnings[0].contains("is another version of ddprun"), "{:?}", server.warnings);
    // A newer server answers a client of ours in the same way.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let newer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        stream.write_all(b"ddprun machines\x03").unwrap();
    });
    let refused = initiate(&mut client, &key(1), Purpose::Node(1));
    assert!(matches!(refused, Err(HandshakeError::OtherVersion)), "{refused:?}");
    newer.join().unwrap();
    server.accepts_the_key();
}

#[test]
fn silent_clients_block_no_other_and_are_closed_in_time() {
    let mut server = Server::new();
    let mut silent: Vec<TcpStream> =
        (0..MAX_PENDING_PER_ADDRESS - 1).map(|_| server.connect()).collect();
    for stream in &mut silent {
        // As a slow loris does: a byte, and then nothing for long.
        stream.write_all(b"d").unwrap();
    }
    let began = Instant::now();
    server.accepts_the_key();
    assert!(began.elapsed() < HANDSHAKE_TIMEOUT, "{:?}", began.elapsed());
    assert!(silent.iter_mut().all(|stream| bytes_until_closed(stream) == 0));
    assert!(server.next().is_none());
    let warnings = &server.warnings;
    assert!(warnings.iter().any(|text| text.contains("within 5 seconds")), "{warnings:?}");
}

#[test]
fn too_many_connections_are_closed_at_once_and_reported_once_a_second() {
    let mut server = Server::new();
    let pending: Vec<TcpStream> = (0..MAX_PENDING_PER_ADDRESS).map(|_| server.connect()).collect();
    for _ in 0..100 {
        assert_eq!(bytes_until_closed(&mut server.connect()), 0);
    }
    while server.next().is_none() && server.warnings.len() < 2 {}
    assert!(server.warnings[0].contains("too many"), "{:?}", server.warnings);
    assert!(server.warnings.len() <= 8, "{:?}", server.warnings);
    drop(pending);
    // Slots are free again once the pending clients are gone.
    let until = Instant::now() + TIMEOUT;
    while initiate(&mut server.connect(), &key(1), Purpose::Node(3)).is_err() {
        assert!(Instant::now() < until);
    }
}

#[test]
fn a_connection_made_between_two_acceptors_is_accepted_by_the_second() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let first = Acceptor::open(&listener, &key(1)).unwrap();
    drop(first);
    let early = std::thread::spawn(move || {
        let until = Instant::now() + TIMEOUT;
        loop {
            let mut stream = TcpStream::connect(address).unwrap();
            match initiate(&mut stream, &key(2), Purpose::Ranks { from: 2, to: 0 }) {
                Ok(keys) => return keys,
                Err(error) => assert!(Instant::now() < until, "{error:?}"),
            }
        }
    });
    let mut second = Acceptor::open(&listener, &key(2)).unwrap();
    let accepted = second.accept(Instant::now() + TIMEOUT, &mut |_| ()).unwrap();
    assert_eq!(accepted.purpose, Purpose::Ranks { from: 2, to: 0 });
    assert!(early.join().unwrap().fit(&accepted.keys));
}
