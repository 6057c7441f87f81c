//! A shared key -> proof of who is at the other end of a connection, and MACs of what it sends.
//! Pure.
//!
//! ```text
//! client ── "ddprun machines", version ‖ purpose ‖ nonce A ──▶ server      64 bytes
//! client ◀── nonce B ‖ MAC(key, "server" ‖ all so far) ─────── server      64 bytes
//! client ── MAC(key, "client" ‖ all so far) ─────────────────▶ server      32 bytes
//! ```
//!
//! Both nonces are fresh, so a recorded handshake cannot be replayed; the roles differ, so a proof
//! cannot be reflected. The MAC is BLAKE3's keyed hash. Each direction then has a key of its own
//! and a counter under each MAC: bytes cannot be changed, dropped, repeated or inserted. They are
//! not encrypted.

use std::fs::File;
use std::io::{self, Read};

/// Bytes of the first two messages of a handshake.
pub(crate) const HELLO_BYTES: usize = 64;
/// Bytes of a MAC, a nonce and a key.
pub(crate) const MAC_BYTES: usize = 32;
/// The beginning of the first message. The last byte is the version.
const PROTOCOL: &[u8; 16] = b"ddprun machines\x01";
/// Where the first message holds its purpose.
const PURPOSE_RANGE: std::ops::Range<usize> = 16..32;

/// A secret of 32 bytes. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; MAC_BYTES]);

impl Key {
    /// 32 bytes of the system's randomness.
    ///
    /// # Errors
    ///
    /// The system gives none.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; MAC_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The key with these bytes.
    pub fn new(bytes: [u8; MAC_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, to pass the key on.
    pub fn bytes(&self) -> &[u8; MAC_BYTES] {
        &self.0
    }

    /// The key for the use `label` and the context `parts`, all of fixed length but the last.
    /// Different labels and parts give independent keys.
    pub(crate) fn derive(&self, label: &str, parts: &[&[u8]]) -> Self {
        Self(*self.hash(label, parts).as_bytes())
    }

    fn hash(&self, label: &str, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(label.len() as u64).to_le_bytes()).update(label.as_bytes());
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// What a connection is for, as its opener says. Authenticated by the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// From the parent of this node to that of node 0.
    Node(u32),
    /// Rank to rank.
    Ranks { from: u32, to: u32 },
}

impl Purpose {
    fn encode(self) -> [u8; 16] {
        let (kind, a, b) = match self {
            Self::Node(node) => (1_u32, node, 0),
            Self::Ranks { from, to } => (2, from, to),
        };
        let mut bytes = [0; 16];
        for (at, number) in [kind, a, b].into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(4 * at..)?.first_chunk()?));
        match number(0)? {
            1 => Some(Self::Node(number(1)?)),
            2 => Some(Self::Ranks { from: number(1)?, to: number(2)? }),
            _ => None,
        }
    }
}

/// The keys of an authenticated connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionKeys {
    /// For what this end sends.
    pub send: Key,
    /// For what it receives.
    pub receive: Key,
}

/// One end of a handshake, once both nonces are known.
struct Proof<'a> {
    key: &'a Key,
    /// The first message, and the nonce of the second.
    transcript: [&'a [u8]; 2],
}

impl Proof<'_> {
    fn tag(&self, role: &str) -> blake3::Hash {
        self.key.hash(role, &self.transcript)
    }

    /// Whether `tag` proves `role`, in constant time.
    fn verify(&self, role: &str, tag: &[u8]) -> bool {
        tag.try_into()
            .is_ok_and(|tag: [u8; MAC_BYTES]| self.tag(role) == blake3::Hash::from_bytes(tag))
    }

    fn session(&self, is_client: bool) -> SessionKeys {
        let [up, down] =
            ["to server", "to client"].map(|label| self.key.derive(label, &self.transcript));
        if is_client {
            SessionKeys { send: up, receive: down }
        } else {
            SessionKeys { send: down, receive: up }
        }
    }
}

/// The client's first message.
pub(crate) fn client_hello(purpose: Purpose, nonce: &Key) -> [u8; HELLO_BYTES] {
    let mut message = [0; HELLO_BYTES];
    message[..16].copy_from_slice(PROTOCOL);
    message[PURPOSE_RANGE].copy_from_slice(&purpose.encode());
    message[32..].copy_from_slice(&nonce.0);
    message
}

/// The server's answer; `None` if the client speaks another protocol.
pub(crate) fn server_hello(
    key: &Key,
    hello: &[u8; HELLO_BYTES],
    nonce: &Key,
) -> Option<[u8; HELLO_BYTES]> {
    if !hello.starts_with(PROTOCOL) {
        return None;
    }
    let mut message = [0; HELLO_BYTES];
    message[..MAC_BYTES].copy_from_slice(&nonce.0);
    let tag = Proof { key, transcript: [hello, &nonce.0] }.tag("server");
    message[MAC_BYTES..].copy_from_slice(tag.as_bytes());
    Some(message)
}

/// The client's proof; `None` if the server did not prove that it holds the key.
pub(crate) fn client_proof(
    key: &Key,
    hello: &[u8; HELLO_BYTES],
    answer: &[u8; HELLO_BYTES],
) -> Option<([u8; MAC_BYTES], SessionKeys)> {
    let proof = Proof { key, transcript: [hello, &answer[..MAC_BYTES]] };
    let is_server = proof.verify("server", &answer[MAC_BYTES..]);
    is_server.then(|| (*proof.tag("client").as_bytes(), proof.session(true)))
}

/// What the server learns from the client's proof; `None` if it proves nothing.
pub(crate) fn verify_client(
    key: &Key,
    hello: &[u8; HELLO_BYTES],
    answer: &[u8; HELLO_BYTES],
    tag: &[u8; MAC_BYTES],
) -> Option<(Purpose, SessionKeys)> {
    let proof = Proof { key, transcript: [hello, &answer[..MAC_BYTES]] };
    if !proof.verify("client", tag) {
        return None;
    }
    Some((Purpose::decode(&hello[PURPOSE_RANGE])?, proof.session(false)))
}

/// The MACs of one direction of a connection. Each covers the number of those before it.
#[derive(Clone, Debug)]
pub(crate) struct MessageAuth {
    key: Key,
    count: u64,
}

impl MessageAuth {
    pub(crate) fn new(key: Key) -> Self {
        Self { key, count: 0 }
    }

    /// The MAC of the next bytes.
    pub(crate) fn tag(&mut self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        *self.next(bytes).as_bytes()
    }

    /// Whether `tag` is the MAC of the next bytes.
    pub(crate) fn verify(&mut self, bytes: &[u8], tag: &[u8; MAC_BYTES]) -> bool {
        self.next(bytes) == blake3::Hash::from_bytes(*tag)
    }

    fn next(&mut self, bytes: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(&self.count.to_le_bytes()).update(bytes);
        self.count += 1;
        hasher.finalize()
    }
}

#[cfg(test)]
mod forgery_tests;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> Key {
        Key([byte; MAC_BYTES])
    }

    /// A handshake between the holders of these keys, whose messages may be changed in transit.
    fn run_handshake(
        [client, server]: [u8; 2],
        mut in_transit: impl FnMut(usize, &mut [u8]),
    ) -> Option<(SessionKeys, Purpose, SessionKeys)> {
        let mut first = client_hello(Purpose::Ranks { from: 3, to: 70_000 }, &key(7));
        let sent = first;
        in_transit(0, &mut first);
        let second = server_hello(&key(server), &first, &key(8))?;
        let mut received = second;
        in_transit(1, &mut received);
        let (mut third, mine) = client_proof(&key(client), &sent, &received)?;
        in_transit(2, &mut third);
        let (purpose, theirs) = verify_client(&key(server), &first, &second, &third)?;
        Some((mine, purpose, theirs))
    }

    #[test]
    fn two_ends_with_one_key_agree_on_purpose_and_keys_of_both_directions() {
        let (client, purpose, server) = run_handshake([1, 1], |_, _| ()).unwrap();
        assert_eq!(purpose, Purpose::Ranks { from: 3, to: 70_000 });
        assert_eq!((&client.send, &client.receive), (&server.receive, &server.send));
        assert!(client.send != client.receive);
    }

    #[test]
    fn another_key_is_refused_by_the_client_before_it_proves_anything() {
        assert!(run_handshake([1, 2], |at, _| assert!(at < 2)).is_none());
    }

    #[test]
    fn no_bit_of_a_handshake_can_be_changed() {
        for (message, length) in [(0, HELLO_BYTES), (1, HELLO_BYTES), (2, MAC_BYTES)] {
            for bit in 0..8 * length {
                let flip = |at: usize, bytes: &mut [u8]| {
                    if at == message {
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                };
                assert!(run_handshake([1, 1], flip).is_none(), "bit {bit} of message {message}");
            }
        }
    }

    #[test]
    fn a_recorded_handshake_is_refused_by_a_server_with_another_nonce() {
        let first = client_hello(Purpose::Node(1), &key(7));
        let then = server_hello(&key(1), &first, &key(8)).unwrap();
        let (recorded, _) = client_proof(&key(1), &first, &then).unwrap();
        let now = server_hello(&key(1), &first, &key(9)).unwrap();
        assert!(verify_client(&key(1), &first, &now, &recorded).is_none());
    }

    #[test]
    fn a_reflected_proof_is_refused() {
        let first = client_hello(Purpose::Node(1), &key(7));
        let second = server_hello(&key(1), &first, &key(8)).unwrap();
        let reflected: [u8; MAC_BYTES] = second[MAC_BYTES..].try_into().unwrap();
        assert!(verify_client(&key(1), &first, &second, &reflected).is_none());
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", key(0x61)), "Key");
    }

    proptest! {
        #[test]
        fn messages_verify_once_in_their_order_and_unchanged(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..6),
            bit in any::<prop::sample::Index>(),
        ) {
            let (mut from, mut to) = (MessageAuth::new(key(5)), MessageAuth::new(key(5)));
            let tagged: Vec<_> = bodies.iter().map(|body| (body, from.tag(body))).collect();
            for (body, tag) in &tagged {
                let mut changed = *tag;
                let bit = bit.index(8 * MAC_BYTES);
                changed[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(!to.clone().verify(body, &changed));
                prop_assert!(to.verify(body, tag));
                // A repeated message has another number.
                prop_assert!(!to.clone().verify(body, tag));
            }
        }
    }
}
