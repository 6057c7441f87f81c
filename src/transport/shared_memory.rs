//! The memory that the ranks of a machine share: an anonymous file that is freed with its last
//! descriptor.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::units::Bytes;

/// A zeroed anonymous file of `size` bytes, closed on exec. Its size is sealed, so touching a
/// mapping of it never raises SIGBUS. Pages are allocated at their first use.
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
