//! Transport of bytes between processes, on one machine and between several.
//!
//! ```text
//! one machine        Channel (messages over a Unix socket), shared_memory
//! several machines   token ─▶ handshake ─▶ SessionKeys ─▶ Channel or Peer, whose messages are sealed
//! ```

mod anonymous_files;
pub mod auth;
pub mod record;
mod noise;
mod token;
pub mod channel;
pub mod handshake;
pub mod acceptor;
pub mod peer_connections;

pub use anonymous_files::{Waker, missing_call, shared_memory};
pub use auth::Key;
pub use handshake::build_id;
#[cfg(any(test, feature = "fuzzing"))]
pub use noise::is_believed;
pub use peer_connections::{Peer, PeerDescription};
pub use token::{new_token, read_token, token_text};
