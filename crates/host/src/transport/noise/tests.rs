//! Handshakes whose messages are changed, repeated and turned around in transit.

use super::*;

fn key(byte: u8) -> Key {
    Key::new([byte; KEY_BYTES])
}

const PURPOSE: Purpose = Purpose::Ranks { from: 3, to: 70_000 };

/// A handshake between the holders of these keys, whose messages may be changed in transit. A
/// refusal says by whom.
fn run_handshake(
    [of_client, of_server]: [u8; 2],
    mut in_transit: impl FnMut(usize, &mut [u8]),
) -> Result<(SessionKeys, Purpose, SessionKeys), &'static str> {
    let (client, mut first) = Client::new(&key(of_client)).unwrap();
    in_transit(0, &mut first);
    let server = key(of_server);
    let is_ours = Protocol::of(&first) == Protocol::Ours;
    let answered = is_ours.then(|| Server::new(&server, &first).ok()).flatten();
    let (server, mut second) = answered.ok_or("the server, before it answers")?;
    in_transit(1, &mut second);
    let is_ours = Protocol::of(&second) == Protocol::Ours;
    let proved = is_ours.then(|| client.prove(&second, PURPOSE).ok()).flatten();
    let (mut third, mine) = proved.ok_or("the client")?;
    in_transit(2, &mut third);
    let (purpose, theirs) = server.verify(&third).ok_or("the server")?;
    Ok((mine, purpose, theirs))
}

#[test]
fn two_ends_with_one_key_agree_on_purpose_and_keys_of_both_directions() {
    let (client, purpose, server) = run_handshake([1, 1], |_, _| ()).unwrap();
    assert_eq!(purpose, PURPOSE);
    assert!(client.fit(&server));
    assert!(!client.fit(&client), "each direction has a key of its own");
    let (.., again) = run_handshake([1, 1], |_, _| ()).unwrap();
    assert!(!client.fit(&again), "each connection has keys of its own");
}

#[test]
fn another_key_is_refused_by_the_client_before_it_proves_anything() {
    assert_eq!(run_handshake([1, 2], |_, _| ()).unwrap_err(), "the client");
}

#[test]
fn no_bit_of_a_handshake_can_be_changed() {
    const REFUSED_BY: [&str; 3] = ["the server, before it answers", "the client", "the server"];
    for (message, length) in [(0, HELLO_BYTES), (1, HELLO_BYTES), (2, PROOF_BYTES)] {
        for bit in 0..8 * length {
            let flip = |at: usize, bytes: &mut [u8]| {
                if at == message {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            };
            let by = run_handshake([1, 1], flip).unwrap_err();
            assert_eq!(by, REFUSED_BY[message], "bit {bit} of message {message}");
        }
    }
}

#[test]
fn the_purpose_cannot_be_read() {
    let mut seen = Vec::new();
    run_handshake([1, 1], |_, bytes| seen.extend_from_slice(bytes)).unwrap();
    assert!(!seen.windows(PURPOSE_BYTES).any(|bytes| bytes == PURPOSE.encode()));
}

#[test]
fn a_recorded_handshake_is_refused_by_the_next_server() {
    let (client, first) = Client::new(&key(1)).unwrap();
    let (_, then) = Server::new(&key(1), &first).unwrap();
    let (recorded, _) = client.prove(&then, PURPOSE).unwrap();
    let (server, _) = Server::new(&key(1), &first).unwrap();
    assert!(server.verify(&recorded).is_none());
}

#[test]
fn a_reflected_message_is_refused() {
    let (client, first) = Client::new(&key(1)).unwrap();
    assert!(matches!(client.prove(&first, PURPOSE), Err(snow::Error::Decrypt)));
    let (server, answer) = Server::new(&key(1), &first).unwrap();
    assert!(server.verify(answer.last_chunk().unwrap()).is_none());
}

#[test]
fn the_protocol_tells_other_versions_from_other_programs() {
    let older = [&b"ddprun machines\x01"[..], &[0; 48]].concat();
    for (message, right) in [
        (&PROTOCOL[..], Protocol::Ours),
        (&older, Protocol::OtherVersion),
        (b"ddprun machine\x02", Protocol::Unknown),
        (b"GET / HTTP/1.1\r\n", Protocol::Unknown),
        (b"", Protocol::Unknown),
    ] {
        assert_eq!(Protocol::of(message), right);
    }
}
