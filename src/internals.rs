//! Internals for this project's own tests, benchmarks and fuzz targets, which no embedding program
//! needs: they may change at any time.

/// Checkpoints on disk.
pub mod checkpoint {
    pub use crate::checkpoint::{
        Destination, Importance, Snapshot, Writer, all, averaged_model, merged, model, newest,
        open, peft, peft_config, restore, restore_newest, save, tensors, verify,
    };
}

/// Sums over ranks.
pub mod collective {
    pub use crate::collective::{
        Collective, Error, GradientBuffer, Op, alone, compressed, open_shm, tree_sum,
    };

    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::transport::record::SessionKeys;
    use crate::transport::{Key, Peer};
    use crate::units::{Rank, WorldSize};

    /// Rank `rank` of two that share no memory, but a connection.
    pub fn one_of_two(
        rank: Rank,
        stream: UnixStream,
        timeout: Duration,
    ) -> Result<Arc<dyn Collective>, Error> {
        let world = WorldSize::new(2).unwrap_or(WorldSize::ONE);
        let other = Rank(1 - rank.0);
        let peer = Peer { rank: other, address: "here".into(), socket: stream.into(), keys: None };
        crate::collective::open_tcp(rank, world, vec![peer], timeout)
    }

    /// Rank `rank` of two on different machines, whose messages are sealed if there are keys: for
    /// what rank 0 sends and for what rank 1 sends.
    pub fn one_of_two_machines(
        rank: Rank,
        stream: TcpStream,
        keys: Option<[[u8; 32]; 2]>,
        timeout: Duration,
    ) -> Result<Arc<dyn Collective>, Error> {
        let world = WorldSize::new(2).unwrap_or(WorldSize::ONE);
        let keys = keys.map(|keys| {
            let [send, receive] = if rank.is_first() { keys } else { [keys[1], keys[0]] };
            SessionKeys::new(Key::new(send), Key::new(receive))
        });
        // As real connections are.
        let _ = stream.set_nodelay(true);
        let other = Rank(1 - rank.0);
        let peer = Peer { rank: other, address: "there".into(), socket: stream.into(), keys };
        crate::collective::open_tcp(rank, world, vec![peer], timeout)
    }
}

/// Files that are whole or absent.
pub mod files {
    pub use crate::files::write_atomic;
}

/// Readers of foreign bytes, by name.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::fuzzing::{TARGETS, Target};
}

/// Ranks as processes.
pub mod launch {
    pub use crate::launch::{
        Blame, Console, Ended, Exit, Failure, LauncherEvent, Link, Membership, Phase, PreparedRun,
        Program, Start, Stop, join, rank_env, run,
    };
}

/// Batches on their way to a GPU.
#[cfg(feature = "cuda")]
pub mod prefetch {
    pub use crate::worker::gpu_prefetch::{Batches, batches_of};
}

/// Memory that processes share.
pub mod transport {
    pub use crate::transport::shared_memory;
}
