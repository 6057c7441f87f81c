//! Where each rank of an MPI launcher runs -> whether those of a machine can share memory.

use serde::{Deserialize, Serialize};

use crate::launch::error_report::host;
use crate::launch::rank::env::Foreign;
use crate::units::{Rank, WorldSize};

/// What a rank knows about its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Whereabouts {
    local_rank: Rank,
    local_world: WorldSize,
    /// Equal on ranks that can reach each other by a socket in memory.
    machine: String,
}

impl Whereabouts {
    /// Of this process, which its launcher has given this place.
    pub(super) fn of(foreign: &Foreign) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let machine = format!("{}/{}/{}", host(), boot.trim(), network.display());
        let Foreign { local_rank, local_world, .. } = *foreign;
        Self { local_rank, local_world, machine }
    }
}

/// Whether the ranks, `all` in their order, are numbered machine by machine, as many on each, by
/// what the launcher told each of them; and those of a machine find that they are on the same one.
pub(super) fn are_by_machine(all: &[Whereabouts]) -> bool {
    let Some(count) = all.first().map(|first| first.local_world.count()) else { return false };
    let is_in_place = |(rank, own): (usize, &Whereabouts)| {
        own.local_world.count() == count
            && own.local_rank.index() == rank % count
            && own.machine == all[rank - rank % count].machine
    };
    count > 1 && all.len().is_multiple_of(count) && all.iter().enumerate().all(is_in_place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks by their number on their machine, those of it, and its name.
    fn are(all: &[(u32, u32, &str)]) -> bool {
        let place = |&(local_rank, local_world, machine): &(u32, u32, &str)| Whereabouts {
            local_rank: Rank(local_rank),
            local_world: WorldSize::new(local_world).unwrap(),
            machine: machine.to_owned(),
        };
        are_by_machine(&all.iter().map(place).collect::<Vec<_>>())
    }

    #[test]
    fn ranks_share_memory_if_all_machines_have_as_many_in_order() {
        assert!(are(&[(0, 2, "a"), (1, 2, "a"), (0, 2, "b"), (1, 2, "b")]));
        assert!(are(&[(0, 3, "a"), (1, 3, "a"), (2, 3, "a")]));
        assert!(!are(&[(0, 2, "a"), (0, 2, "b"), (1, 2, "a"), (1, 2, "b")]), "by turns");
        assert!(!are(&[(0, 2, "a"), (1, 2, "a"), (0, 1, "b")]), "fewer on the last");
        assert!(!are(&[(0, 2, "a"), (1, 2, "c"), (0, 2, "b"), (1, 2, "b")]), "of two machines");
        assert!(!are(&[(0, 1, "a"), (0, 1, "b")]), "one on each");
        assert!(!are(&[]));
    }
}
