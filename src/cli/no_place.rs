//! Why a rank cannot join its group -> exit code and words.

use std::fmt;
use std::io;

use crate::cli::refusal::Refusal;
use crate::launch::exit_code as exit;
use crate::launch::{JoinError, RendezvousError};

/// The refusal of a rank that does not find its group.
pub(crate) fn no_place<E: fmt::Display>(error: &JoinError<E>) -> Refusal {
    let code = match error {
        JoinError::Prepare(_)
        | JoinError::NotARank
        | JoinError::SeveralMachines { .. }
        | JoinError::OtherWorld { .. }
        | JoinError::Mpi(_) => exit::REFUSED,
        // Rank 0 says why.
        JoinError::Rendezvous(RendezvousError::Refused(why)) => why.exit_code,
        JoinError::Inherited { source, .. } if is_lack(source) => exit::RESOURCE,
        JoinError::Inherited { .. } | JoinError::Rendezvous(_) => exit::PEER,
    };
    let why = match error {
        JoinError::Inherited { source, .. } => format!("\n  why: {source}"),
        JoinError::Rendezvous(RendezvousError::Missing { .. }) => {
            "\n  do: look in the output of the launcher and of the other ranks for why they did \
             not start, or wait longer with a larger `distributed.timeout`"
                .to_owned()
        }
        JoinError::Mpi(error) => format!("\n  do: {}", error.help()),
        _ => String::new(),
    };
    if code == exit::OK {
        // There is nothing to do.
        return Refusal::new(code, error.to_string());
    }
    Refusal::new(code, format!("error: {error}{why}"))
}

/// Whether the system has no thread, descriptor or memory left for us.
fn is_lack(error: &io::Error) -> bool {
    let lacks = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE];
    error.raw_os_error().is_some_and(|errno| lacks.contains(&errno))
}
