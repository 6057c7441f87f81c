//! The secrets and the words of connections between machines.

use std::fs::File;
use std::io::{self, Read};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroize;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of a purpose.
pub const PURPOSE_BYTES: usize = 16;

/// A secret of 32 bytes. It is never shown, and its memory is wiped when it is dropped. It is on
/// the heap, as a value that moves leaves copies behind.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Box<[u8; KEY_BYTES]>);

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Key {
    /// 32 bytes of the system's randomness.
    pub fn random() -> io::Result<Self> {
        let mut key = Self(Box::new([0; KEY_BYTES]));
        File::open("/dev/urandom")?.read_exact(&mut *key.0)?;
        Ok(key)
    }

    /// The key with these bytes, of which the caller's copy stays.
    pub fn new(mut bytes: [u8; KEY_BYTES]) -> Self {
        let mut key = Self(Box::new([0; KEY_BYTES]));
        key.0.copy_from_slice(&bytes);
        bytes.zeroize();
        key
    }

    /// Takes the key from these bytes, and wipes them.
    pub fn take(bytes: &mut [u8; KEY_BYTES]) -> Self {
        let key = Self::new(*bytes);
        bytes.zeroize();
        key
    }

    /// The bytes, to pass the key on.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The key for the use `label` and the context `parts`, all of fixed length but the last.
    /// Different labels and parts give independent keys.
    #[must_use]
    pub fn derive(&self, label: &str, parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(label.len() as u64).to_le_bytes()).update(label.as_bytes());
        for part in parts {
            hasher.update(part);
        }
        let mut hash = hasher.finalize();
        hasher.zeroize();
        let key = Self::new(*hash.as_bytes());
        hash.zeroize();
        key
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// A key as a message holds it, to a rank of ours or to another machine.
#[derive(Clone, Debug)]
pub struct SentKey(pub Key);

impl Serialize for SentKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SentKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut bytes = <[u8; KEY_BYTES]>::deserialize(deserializer)?;
        Ok(Self(Key::take(&mut bytes)))
    }
}

/// Purpose of a connection, sent by its opener at the end of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// From the parent of this node to that of node 0.
    Node(u32),
    /// Rank to rank.
    Ranks { from: u32, to: u32 },
}

impl Purpose {
    pub fn encode(self) -> [u8; PURPOSE_BYTES] {
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

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(4 * at..)?.first_chunk()?));
        match number(0)? {
            1 => Some(Self::Node(number(1)?)),
            2 => Some(Self::Ranks { from: number(1)?, to: number(2)? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::transport::record::SessionKeys;

    /// Bytes at the end of a key that are searched for.
    const END: usize = 16;

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

    /// Counts copies of the end of a key, each byte inverted, in the memory that this process may
    /// write. The allocator overwrites the beginning of memory that is given back.
    fn found(inverted: &[u8; END]) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let memory = File::open("/proc/self/mem").unwrap();
        let writable = maps.lines().filter(|line| line.contains(" rw"));
        let mut pages = vec![0; 1 << 20];
        let mut found = 0;
        for line in writable {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let [mut at, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            while at < end {
                let now = pages.len().min((end - at) as usize);
                // Memory that another thread has just given back cannot be read.
                let Ok(n) = memory.read_at(&mut pages[..now], at) else { break };
                // A key begins where the allocator aligns it.
                for place in (0..(n + 1).saturating_sub(END)).step_by(8) {
                    let mut bytes = pages[place..place + END].iter().zip(inverted);
                    found += usize::from(bytes.all(|(byte, inverted)| *byte == !*inverted));
                }
                if n == 0 {
                    break;
                }
                at += n as u64;
            }
            pages.fill(0);
        }
        found
    }

    #[test]
    fn the_memory_of_a_key_is_wiped_when_it_is_dropped() {
        // In a process of its own: other tests' memory takes minutes to search.
        if !std::env::args().any(|argument| argument == "--exact") {
            let name = std::thread::current().name().unwrap().to_owned();
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let output = alone.args(["--exact", &name]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            return assert!(said.contains("1 passed"), "{said}");
        }
        // Inverted, so that the copies to compare with are not found.
        let inverted =
            |key: &Key| -> [u8; END] { std::array::from_fn(|i| !key.bytes()[KEY_BYTES - END + i]) };
        let random = Key::random().unwrap();
        let derived = random.derive("a test", &[b"a"]);
        let session = SessionKeys::new(derived.clone(), random.clone());
        let all = [inverted(&random), inverted(&derived)];
        for inverted in &all {
            assert!(found(inverted) >= 2, "each is there, and in the session");
        }
        drop((random, derived, session));
        for inverted in &all {
            assert_eq!(found(inverted), 0);
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
