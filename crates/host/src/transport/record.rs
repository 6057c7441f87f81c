//! Bytes of one direction of a connection -> sealed records: encrypted, and each with a tag that
//! shows a change. Pure.
//!
//! They are the transport messages of Noise: AES-256-GCM by ring, with the number of the record as
//! nonce. A record that is changed, repeated, left out, moved or inserted does not open, as it has
//! another number or another key.

use std::io::{self, ErrorKind};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use crate::transport::auth::{KEY_BYTES, Key, SentKey};

/// Bytes by which a record is longer than its contents.
pub const TAG_BYTES: usize = 16;
/// Number of the first record; the message before it is the last of the handshake.
const FIRST: u64 = 1;
/// Records under one key, which the next one replaces. It is far from where AES-GCM with a counter
/// is weak, and no number returns under the same key.
const RECORDS_PER_KEY: u64 = 1 << 16;

/// The keys of an authenticated connection. They cannot be copied, and are used up by
/// [`SessionKeys::open`]: two senders with one key would both seal a record of the same number, and
/// AES-GCM protects neither of two such records.
#[derive(Debug, Serialize, Deserialize)]
pub struct SessionKeys {
    send: SentKey,
    receive: SentKey,
}

impl SessionKeys {
    /// Keys for sending and for receiving.
    pub fn new(send: Key, receive: Key) -> Self {
        Self { send: SentKey(send), receive: SentKey(receive) }
    }

    /// The keys that seal the records of this end, and open those that it receives.
    pub fn open(self) -> io::Result<[RecordKey; 2]> {
        Ok([RecordKey::new(self.send.0)?, RecordKey::new(self.receive.0)?])
    }

    /// True if `others` are the keys of the other end.
    #[cfg(test)]
    pub(crate) fn fit(&self, others: &Self) -> bool {
        self.send.0 == others.receive.0 && self.receive.0 == others.send.0
    }
}

/// The key of one direction, and the number of its next record.
pub struct RecordKey {
    key: LessSafeKey,
    next: u64,
}

impl RecordKey {
    #[expect(clippy::needless_pass_by_value, reason = "a key is used once")]
    fn new(key: Key) -> io::Result<Self> {
        Ok(Self { key: cipher(key.bytes())?, next: FIRST })
    }

    /// Encrypts the next record in place, and returns its tag.
    pub fn seal(&mut self, bytes: &mut [u8]) -> io::Result<[u8; TAG_BYTES]> {
        let sealed = self.key.seal_in_place_separate_tag(nonce(self.next), Aad::empty(), bytes);
        let tag = sealed.ok().and_then(|tag| tag.as_ref().try_into().ok());
        let tag = tag.ok_or_else(|| io::Error::other("a message could not be encrypted"))?;
        self.advance()?;
        Ok(tag)
    }

    /// Decrypts the next record in place.
    ///
    /// # Errors
    ///
    /// It is not the next record that the other end sealed. `bytes` then have no meaning.
    pub fn open(&mut self, bytes: &mut [u8], tag: [u8; TAG_BYTES]) -> io::Result<()> {
        self.peek(bytes, tag)?;
        self.advance()
    }

    /// Decrypts as [`RecordKey::open`], but does not advance to the next record.
    pub fn peek(&self, bytes: &mut [u8], tag: [u8; TAG_BYTES]) -> io::Result<()> {
        let nonce = nonce(self.next);
        let aad = Aad::empty();
        let opened = self.key.open_in_place_separate_tag(nonce, aad, tag.into(), bytes, 0..);
        opened.map(drop).map_err(|_| {
            let text = "a message was altered, replayed or inserted in transit";
            io::Error::new(ErrorKind::InvalidData, text)
        })
    }

    fn advance(&mut self) -> io::Result<()> {
        self.next += 1;
        if self.next.is_multiple_of(RECORDS_PER_KEY) {
            self.rekey()?;
        }
        Ok(())
    }

    /// The function REKEY of Noise. The former key cannot be computed from the new one.
    fn rekey(&mut self) -> io::Result<()> {
        let mut key = [0; KEY_BYTES];
        let sealed = self.key.seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut key);
        // Its tag is not needed.
        let refused = |_| io::Error::other("the key of a connection could not be changed");
        sealed.map(drop).map_err(refused)?;
        let new = cipher(&key);
        key.zeroize();
        self.key = new?;
        Ok(())
    }
}

fn cipher(key: &[u8; KEY_BYTES]) -> io::Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_256_GCM, key);
    key.map(LessSafeKey::new).map_err(|_| io::Error::other("AES-256-GCM cannot be used"))
}

/// Four zero bytes and the number, as Noise defines it for AES-GCM.
fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - size_of::<u64>()..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests;
