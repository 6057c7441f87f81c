//! Strangers at a acceptor that also lets somebody in.

use std::io::{Read, Write};
use std::net::SocketAddr;

use super::*;
use crate::transport::auth::{self, OPENING, TAG};
use crate::transport::handshake::{PATIENCE, Unmet, handshake};

const LONG: Duration = Duration::from_mins(1);

fn key(byte: u8) -> Key {
    Key::new([byte; TAG])
}

/// A acceptor for the holders of `key(1)`, and what was said at it.
struct House {
    acceptor: Acceptor,
    address: SocketAddr,
    said: Vec<String>,
}

impl House {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Self { acceptor: Acceptor::open(&listener, &key(1)).unwrap(), address, said: Vec::new() }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// Whoever comes next, or says something that is refused.
    fn next(&mut self) -> Option<Guest> {
        let heard = self.said.len();
        let until = Instant::now() + LONG;
        let said = &mut self.said;
        while Instant::now() < until && said.len() == heard {
            let moment = Instant::now() + Duration::from_millis(5);
            if let Some(guest) = self.acceptor.wait(moment, &mut |text| said.push(text.to_owned()))
            {
                return Some(guest);
            }
        }
        None
    }

    /// Somebody with the key gets in.
    fn is_open(&mut self) {
        let mut friend = self.connect();
        let session = handshake(&mut friend, &key(1), Purpose::Node(3)).unwrap();
        let guest = self.next().unwrap_or_else(|| panic!("{:?}", self.said));
        assert_eq!(guest.purpose, Purpose::Node(3));
        assert_eq!(
            (&session.send, &session.receive),
            (&guest.session.receive, &guest.session.send)
        );
    }
}

/// What a stranger is answered until the connection is closed.
fn answered(stream: &mut TcpStream) -> usize {
    let mut bytes = Vec::new();
    // Being cut off in the middle is an end, too.
    let _ = stream.read_to_end(&mut bytes);
    bytes.len()
}

#[test]
fn who_has_the_key_gets_in_and_who_has_another_does_not_and_the_door_stays_open() {
    let mut house = House::new();
    house.is_open();
    let unmet = handshake(&mut house.connect(), &key(2), Purpose::Node(1));
    assert!(matches!(unmet, Err(Unmet::Unproved)), "{unmet:?}");
    assert!(house.next().is_none());
    house.is_open();
}

#[test]
fn a_replayed_handshake_is_refused() {
    let mut house = House::new();
    // What somebody between two honest ends would have seen.
    let opening = auth::open(Purpose::Node(3), &key(9));
    let mut honest = house.connect();
    honest.write_all(&opening).unwrap();
    let mut answer = [0; OPENING];
    honest.read_exact(&mut answer).unwrap();
    let (proof, _) = auth::prove(&key(1), &opening, &answer).unwrap();
    honest.write_all(&proof).unwrap();
    assert!(house.next().is_some());
    for _ in 0..3 {
        let mut replay = house.connect();
        replay.write_all(&[&opening[..], &proof].concat()).unwrap();
        assert_eq!(answered(&mut replay), OPENING);
    }
    assert!(house.next().is_none());
    assert!(house.said[0].contains("does not prove that it has the token"), "{:?}", house.said);
    house.is_open();
}

#[test]
fn what_is_no_handshake_is_closed_without_an_answer() {
    let mut house = House::new();
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: 127.0.0.1:29500\r\nAccept: */*\r\n\r\n................"[..],
        &[0xff; 4096],
    ] {
        let mut stream = house.connect();
        // The other end may close before it has taken everything.
        let _ = stream.write_all(garbage);
        assert_eq!(answered(&mut stream), 0);
    }
    assert!(house.next().is_none());
    assert!(house.said[0].contains("does not speak"), "{:?}", house.said);
    house.is_open();
}

#[test]
fn strangers_who_say_nothing_hold_up_nobody_and_are_closed_in_time() {
    let mut house = House::new();
    let mut silent: Vec<TcpStream> = (0..MOST_OF_ONE - 1).map(|_| house.connect()).collect();
    for stream in &mut silent {
        // As a slow loris does: a byte, and then nothing for long.
        stream.write_all(b"d").unwrap();
    }
    let began = Instant::now();
    house.is_open();
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(silent.iter_mut().all(|stream| answered(stream) == 0));
    assert!(house.next().is_none());
    assert!(house.said.iter().any(|text| text.contains("within 5 seconds")), "{:?}", house.said);
}

#[test]
fn too_many_strangers_are_closed_at_once_and_told_once_a_second() {
    let mut house = House::new();
    let waiting: Vec<TcpStream> = (0..MOST_OF_ONE).map(|_| house.connect()).collect();
    for _ in 0..100 {
        assert_eq!(answered(&mut house.connect()), 0);
    }
    while house.next().is_none() && house.said.len() < 2 {}
    assert!(house.said[0].contains("too many"), "{:?}", house.said);
    assert!(house.said.len() <= 8, "{:?}", house.said);
    drop(waiting);
    // Places are free again once those who waited are gone.
    let until = Instant::now() + LONG;
    while handshake(&mut house.connect(), &key(1), Purpose::Node(3)).is_err() {
        assert!(Instant::now() < until);
    }
}

#[test]
fn what_connects_while_the_door_changes_is_heard_at_the_next() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let first = Acceptor::open(&listener, &key(1)).unwrap();
    drop(first);
    let early = std::thread::spawn(move || {
        let until = Instant::now() + LONG;
        loop {
            let mut stream = TcpStream::connect(address).unwrap();
            match handshake(&mut stream, &key(2), Purpose::Ranks { from: 2, to: 0 }) {
                Ok(session) => return session,
                Err(unmet) => assert!(Instant::now() < until, "{unmet:?}"),
            }
        }
    });
    let mut second = Acceptor::open(&listener, &key(2)).unwrap();
    let guest = second.wait(Instant::now() + LONG, &mut |_| ()).unwrap();
    assert_eq!(guest.purpose, Purpose::Ranks { from: 2, to: 0 });
    assert!(early.join().unwrap().send == guest.session.receive);
}
