//! Which leaders talk to each other in calls that move little, where there are many machines: a
//! tree of eight children each, so that messages grow with the number of machines, and steps with
//! its logarithm. Pure.

use std::ops::Range;

/// So many machines need no tree: each talks to each, in one step.
pub(super) const FEW: usize = 8;
const CHILDREN: usize = 8;

/// The leader above that of machine `place`.
pub(super) fn parent(place: usize) -> Option<usize> {
    place.checked_sub(1).map(|before| before / CHILDREN)
}

/// The leaders below that of machine `place`, of so many.
pub(super) fn children(place: usize, machines: usize) -> Range<usize> {
    let first = CHILDREN * place + 1;
    first.min(machines)..(first + CHILDREN).min(machines)
}

/// Steps from the leader of machine `place` to the first.
pub(super) fn depth(place: usize) -> u32 {
    std::iter::successors(parent(place), |place| parent(*place)).count() as u32
}

/// Steps from the leader of machine `place` to the farthest below it.
pub(super) fn height(place: usize, machines: usize) -> u32 {
    let mut first = children(place, machines);
    let mut height = 0;
    while !first.is_empty() {
        height += 1;
        first = children(first.start, machines);
    }
    height
}

/// What some machines have told, each with its number, as one message.
pub(super) fn pack(told: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (place, of_machine) in told {
        bytes.extend((*place as u64).to_le_bytes());
        bytes.extend((of_machine.len() as u64).to_le_bytes());
        bytes.extend(of_machine);
    }
    bytes
}

/// What [`pack`] has packed.
pub(super) fn unpack(mut bytes: &[u8]) -> Option<Vec<(usize, Vec<u8>)>> {
    let mut told = Vec::new();
    while !bytes.is_empty() {
        let (place, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (one, rest) = rest.split_at_checked(length)?;
        told.push((usize::try_from(u64::from_le_bytes(*place)).ok()?, one.to_vec()));
        bytes = rest;
    }
    Some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_but_the_first_has_one_above_it_that_knows_it() {
        for machines in 1..300 {
            for place in 0..machines {
                let above = parent(place);
                assert_eq!(above.is_none(), place == 0);
                assert!(above.is_none_or(|above| children(above, machines).contains(&place)));
            }
            let below: usize = (0..machines).map(|place| children(place, machines).len()).sum();
            assert_eq!(below, machines - 1);
            let deepest = (0..machines).map(depth).max();
            assert_eq!(deepest, Some(height(0, machines)), "{machines} machines");
        }
        assert_eq!([9, 10, 73, 74, 1024].map(|machines| height(0, machines)), [1, 2, 2, 3, 4]);
    }

    #[test]
    fn what_is_packed_is_unpacked_and_what_is_cut_is_not() {
        let told = vec![(3, b"abc".to_vec()), (0, vec![]), (1024, vec![7; 20])];
        let bytes = pack(&told);
        assert_eq!(unpack(&bytes), Some(told));
        assert_eq!(unpack(&bytes[..bytes.len() - 1]), None);
        assert_eq!(unpack(&[]), Some(vec![]));
    }
}
