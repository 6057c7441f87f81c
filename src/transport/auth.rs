//! The secrets and the words of connections between machines.

use std::fs::File;
use std::io::{self, Read};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// Bytes of a purpose.
pub(crate) const PURPOSE_BYTES: usize = 16;

/// A secret of 32 bytes. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// 32 bytes of the system's randomness.
    ///
    /// # Errors
    ///
    /// The system gives none.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The key with these bytes.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, to pass the key on.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The key for the use `label` and the context `parts`, all of fixed length but the last.
    /// Different labels and parts give independent keys.
    pub(crate) fn derive(&self, label: &str, parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(label.len() as u64).to_le_bytes()).update(label.as_bytes());
        for part in parts {
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// What a connection is for, as its opener says at the end of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// From the parent of this node to that of node 0.
    Node(u32),
    /// Rank to rank.
    Ranks { from: u32, to: u32 },
}

impl Purpose {
    pub(crate) fn encode(self) -> [u8; PURPOSE_BYTES] {
        let (kind, a, b) = match self {
            Self::Node(node) => (1_u32, node, 0),
            Self::Ranks { from, to } => (2, from, to),
        };
        let mut bytes = [0; PURPOSE_BYTES];
        for (at, number) in [kind, a, b].into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(4 * at..)?.first_chunk()?));
        match number(0)? {
            1 => Some(Self::Node(number(1)?)),
            2 => Some(Self::Ranks { from: number(1)?, to: number(2)? }),
            _ => None,
        }
    }
}

/// The keys of an authenticated connection: see [`crate::transport::record`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionKeys {
    /// For what this end sends.
    pub send: Key,
    /// For what it receives.
    pub receive: Key,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown_and_other_labels_and_parts_give_others() {
        let key = Key::new([0x61; KEY_BYTES]);
        assert_eq!(format!("{key:?}"), "Key");
        let derived = [
            key.derive("one", &[b"a"]),
            key.derive("one", &[b"b"]),
            key.derive("two", &[b"a"]),
            key.clone(),
        ];
        for (at, one) in derived.iter().enumerate() {
            assert!(derived[..at].iter().all(|other| other != one), "{at}");
        }
    }

    #[test]
    fn a_purpose_is_read_as_it_was_written_and_others_are_not() {
        for purpose in [Purpose::Node(3), Purpose::Ranks { from: 3, to: 70_000 }] {
            assert_eq!(Purpose::decode(&purpose.encode()), Some(purpose));
        }
        assert_eq!(Purpose::decode(&[0; PURPOSE_BYTES]), None);
        assert_eq!(Purpose::decode(&[1, 0, 0]), None);
    }
}
