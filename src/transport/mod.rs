//! What moves bytes between processes, on one machine and between several.
//!
//! ```text
//! one machine        Channel (messages over a Unix socket), shared_memory
//! several machines   token ─▶ handshake ─▶ SessionKeys ─▶ Channel or Peer, whose messages are sealed
//! ```

mod shared_memory;
mod waker;
pub(crate) mod auth;
pub(crate) mod record;
mod noise;
mod token;
pub(crate) mod build_id;
pub(crate) mod channel;
pub(crate) mod handshake;
pub(crate) mod acceptor;
pub(crate) mod peer;
pub(crate) mod peer_connections;

pub(crate) use auth::Key;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use noise::is_believed;
pub(crate) use peer::Peer;
pub(crate) use shared_memory::missing_call;
pub use shared_memory::shared_memory;
pub(crate) use token::{new_token, read_token};
pub(crate) use waker::Waker;
