//! A shared key -> proof of who is at the other end of a connection, and a fresh key for each of
//! its directions. Pure.
//!
//! ```text
//! client ── PROTOCOL ‖ e ───────────────▶ server      64 bytes
//! client ◀── PROTOCOL ‖ e, ee, psk ────── server      64 bytes
//! client ── the purpose, sealed ────────▶ server      32 bytes
//! ```
//!
//! This is `NNpsk2` of Noise (<https://noiseprotocol.org/noise.html>), by snow, and its first
//! transport message. The server proves first that it holds the key, so that a client with another
//! one knows at once; the third message proves it of the client. Both ends draw a key pair for each
//! connection: nothing can be replayed, and who learns the shared key later cannot read what was
//! recorded.

use snow::{Builder, HandshakeState};

use crate::transport::auth::{KEY_BYTES, Key, PURPOSE_BYTES, Purpose};
use crate::transport::record::{SessionKeys, TAG_BYTES};

/// Bytes of each of the first two messages.
pub(crate) const HELLO_BYTES: usize = PROTOCOL.len() + KEY_BYTES + TAG_BYTES;
/// Bytes of the third.
pub(crate) const PROOF_BYTES: usize = PURPOSE_BYTES + TAG_BYTES;
/// The beginning of the first two messages. The last byte is the version.
pub(crate) const PROTOCOL: &[u8; 16] = b"ddprun machines\x02";
/// The functions, in Noise's words.
const PATTERN: &str = "Noise_NNpsk2_25519_AESGCM_SHA256";
/// Position of the shared key: at the end of the second message.
const PSK_AT: u8 = 2;

/// Protocol and version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// This one.
    Ours,
    /// An older or newer program's.
    OtherVersion,
    /// Something else listens or connects here.
    Unknown,
}

impl Protocol {
    /// Reads the protocol of the first message of either end.
    pub(crate) fn of(message: &[u8]) -> Self {
        let name = &PROTOCOL[..PROTOCOL.len() - 1];
        match message {
            _ if message.starts_with(PROTOCOL) => Self::Ours,
            _ if message.starts_with(name) => Self::OtherVersion,
            _ => Self::Unknown,
        }
    }
}

/// The end that opened the connection, once it has sent its first message.
pub(crate) struct Client(HandshakeState);

impl Client {
    /// The client, and its first message.
    pub(crate) fn new(key: &Key) -> Result<(Self, [u8; HELLO_BYTES]), snow::Error> {
        let mut noise = builder(key)?.build_initiator()?;
        let hello = hello(&mut noise)?;
        Ok((Self(noise), hello))
    }

    /// The last message and the keys; an error if the server does not hold the key.
    pub(crate) fn prove(
        mut self,
        answer: &[u8; HELLO_BYTES],
        purpose: Purpose,
    ) -> Result<([u8; PROOF_BYTES], SessionKeys), snow::Error> {
        self.0.read_message(&answer[PROTOCOL.len()..], &mut [])?;
        let (up, down) = raw_split(&mut self.0);
        let mut proof = [0; PROOF_BYTES];
        self.0.into_transport_mode()?.write_message(&purpose.encode(), &mut proof)?;
        Ok((proof, SessionKeys::new(up, down)))
    }
}

/// The end that accepted the connection, once it has sent its answer.
pub(crate) struct Server(HandshakeState);

impl Server {
    /// The server, and its answer to a client's first message; an error if that was changed.
    pub(crate) fn new(
        key: &Key,
        hello_of_client: &[u8; HELLO_BYTES],
    ) -> Result<(Self, [u8; HELLO_BYTES]), snow::Error> {
        let mut noise = builder(key)?.build_responder()?;
        noise.read_message(&hello_of_client[PROTOCOL.len()..], &mut [])?;
        let answer = hello(&mut noise)?;
        Ok((Self(noise), answer))
    }

    /// The client's purpose, and the keys; `None` if it does not hold the key.
    pub(crate) fn verify(mut self, proof: &[u8; PROOF_BYTES]) -> Option<(Purpose, SessionKeys)> {
        let (up, down) = raw_split(&mut self.0);
        let mut purpose = [0; PROOF_BYTES];
        let length = self.0.into_transport_mode().ok()?.read_message(proof, &mut purpose).ok()?;
        let purpose = Purpose::decode(purpose.get(..length)?)?;
        Some((purpose, SessionKeys::new(down, up)))
    }
}

fn builder(key: &Key) -> Result<Builder<'_>, snow::Error> {
    Builder::new(PATTERN.parse()?).prologue(PROTOCOL)?.psk(PSK_AT, key.bytes())
}

/// The next message of an end: one without a payload.
fn hello(noise: &mut HandshakeState) -> Result<[u8; HELLO_BYTES], snow::Error> {
    let mut message = [0; HELLO_BYTES];
    let (protocol, of_noise) = message.split_at_mut(PROTOCOL.len());
    protocol.copy_from_slice(PROTOCOL);
    noise.write_message(&[], of_noise)?;
    Ok(message)
}

/// The keys from client to server and from server to client.
fn raw_split(noise: &mut HandshakeState) -> (Key, Key) {
    let (mut up, mut down) = noise.dangerously_get_raw_split();
    (Key::take(&mut up), Key::take(&mut down))
}

/// True if a server takes `bytes` for the first and third message of a client, or a client takes
/// them for a server's answer. They were made without the key.
#[cfg(any(test, feature = "fuzzing"))]
pub fn is_believed(bytes: &[u8]) -> bool {
    let mut all = [0; HELLO_BYTES + PROOF_BYTES];
    all.iter_mut().zip(bytes).for_each(|(into, byte)| *into = *byte);
    let (Some(hello), Some(proof)) = (all.first_chunk(), all.last_chunk()) else { return false };
    let key = Key::new([7; KEY_BYTES]);
    let server = Server::new(&key, hello).ok().and_then(|(server, _)| server.verify(proof));
    let client = Client::new(&key).and_then(|(client, _)| client.prove(hello, Purpose::Node(1)));
    Protocol::of(hello) == Protocol::Ours && (server.is_some() || client.is_ok())
}

#[cfg(test)]
mod tests;
