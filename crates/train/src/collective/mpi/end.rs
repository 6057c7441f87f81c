//! The message by which a rank tells all others why the group has ended.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::collective::Error;
use crate::collective::mpi::world::{World, world};
use crate::units::Rank;

const TAG: c_int = 2;
/// Length of the message: the rank that ended the group, and its reason.
const BYTES: usize = 1024;
/// Time that other ranks have to report why their group ended, before this one ends them.
const GRACE: Duration = Duration::from_secs(2);
/// Longest time to tell other ranks that the group has ended.
const TELL_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two polls.
const NAP: Duration = Duration::from_micros(100);

/// Tells all ranks why the group has ended, as far as they can be reached in a short time.
pub(super) fn notify(world: &World, error: &Error) {
    world.has_notified.store(true, Ordering::SeqCst);
    let (by, reason) = error.abort_reason(world.rank);
    let send = |other| world.library().send(written(by, &reason), other, TAG).ok();
    let mut sent: Vec<_> = others(world).filter_map(send).collect();
    let until = Instant::now() + TELL_TIMEOUT;
    while !sent.is_empty() && Instant::now() < until {
        let library = world.library();
        sent.retain_mut(|transfer| matches!(transfer.poll(&library), Ok(false)));
        drop(library);
        std::thread::sleep(NAP);
    }
}

/// Returns the reason for which another rank has ended the group, if one was sent.
pub(super) fn received(world: &World) -> Result<Option<Error>, String> {
    for other in others(world) {
        if world.library().message(other, TAG)?.is_some() {
            return receive(world, other).map(Some);
        }
    }
    Ok(None)
}

fn receive(world: &World, from: usize) -> Result<Error, String> {
    let mut transfer = world.library().receive(Vec::new(), BYTES, from, TAG)?;
    let until = Instant::now() + TELL_TIMEOUT;
    while Instant::now() < until {
        if !matches!(transfer.poll(&world.library()), Ok(false)) {
            break;
        }
        std::thread::sleep(NAP);
    }
    let silent = || {
        let reason = "its reason did not arrive".to_owned();
        Error::Aborted { by: Rank(from as u32), reason }
    };
    Ok(transfer.finish().map_or_else(silent, |bytes| read(&bytes)))
}

/// Ends all ranks with this code, where this process has started MPI: the last thing that a rank
/// does that has failed, so that no other waits for ever.
pub fn abort(code: u8) {
    let Some(world) = world() else { return };
    if !world.has_notified.load(Ordering::SeqCst) {
        let reason = format!("it failed, with exit code {code}");
        notify(world, &Error::Aborted { by: world.rank, reason });
    }
    // The others shall say so before they are ended.
    std::thread::sleep(GRACE);
    world.library().abort(code);
}

/// All ranks but this one.
fn others(world: &World) -> impl Iterator<Item = usize> {
    let me = world.rank.index();
    (0..world.size.count()).filter(move |other| *other != me)
}

fn written(by: Rank, reason: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = by.0.to_le_bytes().into_iter().chain(reason.bytes()).collect();
    bytes.resize(BYTES, 0);
    bytes
}

fn read(bytes: &[u8]) -> Error {
    let (by, reason) = bytes.split_at_checked(4).unwrap_or_default();
    let by = Rank(by.try_into().map_or(0, u32::from_le_bytes));
    let reason = String::from_utf8_lossy(reason).trim_end_matches('\0').to_owned();
    Error::Aborted { by, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_read() {
        let told = read(&written(Rank(3), "the disk is full"));
        assert_eq!(told.to_string(), "rank 3 ended the group: the disk is full");
        assert_eq!(written(Rank(0), &"x".repeat(5000)).len(), BYTES);
    }
}
