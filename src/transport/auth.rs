//! A shared key -> who is at the other end of a connection, and which bytes are theirs. Pure.
//!
//! ```text
//! client ── "ddprun machines", version ‖ purpose ‖ nonce A ──▶ server      64 bytes
//! client ◀── nonce B ‖ MAC(key, "server" ‖ all so far) ─────── server      64 bytes
//! client ── MAC(key, "client" ‖ all so far) ─────────────────▶ server      32 bytes
//! ```
//!
//! Both nonces are fresh, so no recorded handshake proves anything again; the roles differ, so none can be sent
//! back to where it came from. The MAC is BLAKE3's keyed hash. Each direction then has a key of its own and a
//! counter under each MAC: bytes cannot be changed, left out, repeated or put in, but they can be read.

use std::fs::File;
use std::io::{self, Read};

/// Bytes of the first two messages of a handshake.
pub(crate) const OPENING: usize = 64;
/// Bytes of a MAC, a nonce and a key.
pub(crate) const TAG: usize = 32;
/// What the first message begins with. The last byte is the version.
const MAGIC: &[u8; 16] = b"ddprun machines\x01";
/// Where the first message holds its purpose and its nonce.
const PURPOSE: std::ops::Range<usize> = 16..32;

/// A secret of 32 bytes. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; TAG]);

impl Key {
    /// 32 bytes of the system's randomness.
    ///
    /// # Errors
    ///
    /// The system gives none.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; TAG];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The key with these bytes.
    pub fn new(bytes: [u8; TAG]) -> Self {
        Self(bytes)
    }

    /// The bytes, for whoever hands the key on.
    pub fn bytes(&self) -> &[u8; TAG] {
        &self.0
    }

    /// The key for `use_` of `parts`; different uses and parts give keys that tell nothing of each other. `parts` but the
    /// last have fixed lengths.
    pub(crate) fn derive(&self, use_: &str, parts: &[&[u8]]) -> Self {
        Self(*self.hash(use_, parts).as_bytes())
    }

    fn hash(&self, use_: &str, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(use_.len() as u64).to_le_bytes()).update(use_.as_bytes());
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

/// What a connection is for; its opener says it, and proves that it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The parent of this node to that of node 0.
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

/// The keys of a connection whose ends have proved themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// For what this end sends.
    pub send: Key,
    /// For what it receives.
    pub receive: Key,
}

/// One end of a handshake, after both openings are known.
struct Proof<'a> {
    key: &'a Key,
    /// The first message, and the nonce of the second.
    said: [&'a [u8]; 2],
}

impl Proof<'_> {
    fn tag(&self, role: &str) -> blake3::Hash {
        self.key.hash(role, &self.said)
    }

    /// Whether `tag` proves `role`; takes the same time wherever it differs.
    fn holds(&self, role: &str, tag: &[u8]) -> bool {
        tag.try_into().is_ok_and(|tag: [u8; TAG]| self.tag(role) == blake3::Hash::from_bytes(tag))
    }

    fn session(&self, is_client: bool) -> Session {
        let [up, down] = ["to server", "to client"].map(|use_| self.key.derive(use_, &self.said));
        if is_client {
            Session { send: up, receive: down }
        } else {
            Session { send: down, receive: up }
        }
    }
}

/// The client's first message.
pub(crate) fn open(purpose: Purpose, nonce: &Key) -> [u8; OPENING] {
    let mut message = [0; OPENING];
    message[..16].copy_from_slice(MAGIC);
    message[PURPOSE].copy_from_slice(&purpose.encode());
    message[32..].copy_from_slice(&nonce.0);
    message
}

/// The server's answer; `None` if the client speaks another language.
pub(crate) fn answer(key: &Key, opening: &[u8; OPENING], nonce: &Key) -> Option<[u8; OPENING]> {
    if !opening.starts_with(MAGIC) {
        return None;
    }
    let mut message = [0; OPENING];
    message[..TAG].copy_from_slice(&nonce.0);
    let tag = Proof { key, said: [opening, &nonce.0] }.tag("server");
    message[TAG..].copy_from_slice(tag.as_bytes());
    Some(message)
}

/// The client's proof; `None` if the server has not proved itself.
pub(crate) fn prove(
    key: &Key,
    opening: &[u8; OPENING],
    answer: &[u8; OPENING],
) -> Option<([u8; TAG], Session)> {
    let proof = Proof { key, said: [opening, &answer[..TAG]] };
    let is_proved = proof.holds("server", &answer[TAG..]);
    is_proved.then(|| (*proof.tag("client").as_bytes(), proof.session(true)))
}

/// What the server learns from the client's proof; `None` if it is none.
pub(crate) fn accept(
    key: &Key,
    opening: &[u8; OPENING],
    answer: &[u8; OPENING],
    tag: &[u8; TAG],
) -> Option<(Purpose, Session)> {
    let proof = Proof { key, said: [opening, &answer[..TAG]] };
    if !proof.holds("client", tag) {
        return None;
    }
    Some((Purpose::decode(&opening[PURPOSE])?, proof.session(false)))
}

/// MACs of one direction of a connection, each over the number of those before it.
#[derive(Clone, Debug)]
pub(crate) struct Seal {
    key: Key,
    count: u64,
}

impl Seal {
    pub(crate) fn new(key: Key) -> Self {
        Self { key, count: 0 }
    }

    /// The MAC of the next bytes.
    pub(crate) fn tag(&mut self, bytes: &[u8]) -> [u8; TAG] {
        *self.next(bytes).as_bytes()
    }

    /// Whether `tag` is the MAC of the next bytes.
    pub(crate) fn holds(&mut self, bytes: &[u8], tag: &[u8; TAG]) -> bool {
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
        Key([byte; TAG])
    }

    /// A handshake between these keys, with something done to each message on its way.
    fn shake(
        [client, server]: [u8; 2],
        mut on_the_way: impl FnMut(usize, &mut [u8]),
    ) -> Option<(Session, Purpose, Session)> {
        let purpose = Purpose::Ranks { from: 3, to: 70_000 };
        let mut first = open(purpose, &key(7));
        let sent = first;
        on_the_way(0, &mut first);
        let second = answer(&key(server), &first, &key(8))?;
        let mut received = second;
        on_the_way(1, &mut received);
        let (mut third, mine) = prove(&key(client), &sent, &received)?;
        on_the_way(2, &mut third);
        let (said, theirs) = accept(&key(server), &first, &second, &third)?;
        Some((mine, said, theirs))
    }

    #[test]
    fn two_ends_with_one_key_agree_on_purpose_and_keys_of_both_directions() {
        let (client, purpose, server) = shake([1, 1], |_, _| ()).unwrap();
        assert_eq!(purpose, Purpose::Ranks { from: 3, to: 70_000 });
        assert_eq!((&client.send, &client.receive), (&server.receive, &server.send));
        assert!(client.send != client.receive);
    }

    #[test]
    fn another_key_is_refused_by_the_client_before_it_proves_anything() {
        assert!(shake([1, 2], |at, _| assert!(at < 2)).is_none());
    }

    #[test]
    fn no_bit_of_a_handshake_can_be_changed() {
        for (message, length) in [(0, OPENING), (1, OPENING), (2, TAG)] {
            for bit in 0..8 * length {
                let flip = |at: usize, bytes: &mut [u8]| {
                    if at == message {
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                };
                assert!(shake([1, 1], flip).is_none(), "bit {bit} of message {message}");
            }
        }
    }

    #[test]
    fn a_recorded_handshake_proves_nothing_to_a_server_with_another_nonce() {
        let first = open(Purpose::Node(1), &key(7));
        let then = answer(&key(1), &first, &key(8)).unwrap();
        let (recorded, _) = prove(&key(1), &first, &then).unwrap();
        let now = answer(&key(1), &first, &key(9)).unwrap();
        assert!(accept(&key(1), &first, &now, &recorded).is_none());
    }

    #[test]
    fn a_proof_that_is_sent_back_proves_nothing() {
        let first = open(Purpose::Node(1), &key(7));
        let second = answer(&key(1), &first, &key(8)).unwrap();
        let reflected: [u8; TAG] = second[TAG..].try_into().unwrap();
        assert!(accept(&key(1), &first, &second, &reflected).is_none());
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", key(0x61)), "Key");
    }

    proptest! {
        #[test]
        fn sealed_bytes_hold_once_in_their_order_and_unchanged(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..6),
            bit in any::<prop::sample::Index>(),
        ) {
            let (mut from, mut to) = (Seal::new(key(5)), Seal::new(key(5)));
            let sealed: Vec<_> = bodies.iter().map(|body| (body, from.tag(body))).collect();
            for (body, tag) in &sealed {
                let mut changed = *tag;
                let bit = bit.index(8 * TAG);
                changed[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(!to.clone().holds(body, &changed));
                prop_assert!(to.holds(body, tag));
                // The same again is another number.
                prop_assert!(!to.clone().holds(body, tag));
            }
        }
    }
}
