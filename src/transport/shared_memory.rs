//! The memory that the ranks of a machine share: an anonymous file that ends with its last holder.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::units::Bytes;

/// A zeroed anonymous file of `size` bytes, closed on exec, that can be neither shortened nor grown: whoever
/// has mapped it is never killed for touching it. Pages exist from their first use on.
///
/// # Errors
///
/// The system refuses: no descriptors left, or the size is beyond its limits.
pub fn shared_memory(size: Bytes) -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("ddprun", flags)?;
    rustix::fs::ftruncate(&fd, size.0)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}
