//! Transport of bytes between processes, on one machine and between several.
//!
//! ```text
//! one machine        Channel (messages over a Unix socket), shared_memory
//! several machines   token ─▶ handshake ─▶ SessionKeys ─▶ Channel or Peer, whose messages are sealed
//! ```

mod shared_memory;
mod waker;
pub mod auth;
pub mod record;
mod noise;
mod token;
pub mod build_id;
pub mod channel;
pub mod handshake;
pub mod acceptor;
pub mod peer;
pub mod peer_connections;

pub use auth::Key;
#[cfg(any(test, feature = "fuzzing"))]
pub use noise::is_believed;
pub use peer::Peer;
pub use shared_memory::missing_call;
pub use shared_memory::shared_memory;
pub use token::{new_token, read_token};
pub use waker::Waker;
