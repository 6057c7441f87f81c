//! Messages over a stream socket: JSON after its length and, between machines, before its MAC.
//!
//! Sockets are non-blocking: a receiver that stops reading does not block the sender, which buffers
//! what is unsent.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::SendFlags;
use rustix::time::Timespec;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::transport::auth::{MAC_BYTES, MessageAuth, SessionKeys};

/// Largest message that is accepted: far larger than a plan with very many class names.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// One end of a connection.
pub(crate) struct Channel {
    socket: OwnedFd,
    /// Of what is sent and of what is received; absent within a machine.
    auth: Option<[MessageAuth; 2]>,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    is_closed: bool,
}

impl Channel {
    pub(crate) fn new(socket: impl Into<OwnedFd>) -> io::Result<Self> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, auth: None, inbox: Vec::new(), outbox: Vec::new(), is_closed: false })
    }

    /// A connection whose messages are authenticated by these keys.
    pub(crate) fn authenticated(socket: impl Into<OwnedFd>, keys: SessionKeys) -> io::Result<Self> {
        let auth = Some([MessageAuth::new(keys.send), MessageAuth::new(keys.receive)]);
        Ok(Self { auth, ..Self::new(socket)? })
    }

    /// Whether the other end is gone. What it sent before can still be received.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether messages wait to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty() && !self.is_closed
    }

    /// Queues a message and sends what can be sent now.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let length =
            u32::try_from(body.len()).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
        self.outbox.extend_from_slice(&length.to_le_bytes());
        self.outbox.extend_from_slice(&body);
        if let Some([auth, _]) = &mut self.auth {
            self.outbox.extend_from_slice(&auth.tag(&body));
        }
        self.flush()
    }

    /// Sends what can be sent now. A peer that is gone is not an error here: see
    /// [`Channel::is_closed`].
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.has_unsent() {
            match rustix::net::send(&self.socket, &self.outbox, SendFlags::NOSIGNAL)
                .map_err(io::Error::from)
            {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => self.is_closed = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends everything within `timeout`.
    pub(crate) fn send_all<T: Serialize>(
        &mut self,
        message: &T,
        timeout: Duration,
    ) -> io::Result<()> {
        self.send(message)?;
        let began = Instant::now();
        while self.has_unsent() {
            self.wait(PollFlags::OUT, began, timeout)?;
            self.flush()?;
        }
        Ok(())
    }

    /// All messages that have arrived.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Vec<T>> {
        self.read_available()?;
        std::iter::from_fn(|| self.next_message().transpose()).collect()
    }

    /// The next message, or `TimedOut`, or `UnexpectedEof` if the other end is gone.
    pub(crate) fn receive_one<T: DeserializeOwned>(&mut self, timeout: Duration) -> io::Result<T> {
        let began = Instant::now();
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(message);
            }
            if self.is_closed {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.wait(PollFlags::IN, began, timeout)?;
            self.read_available()?;
        }
    }

    fn read_available(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        while !self.is_closed {
            match rustix::io::read(&self.socket, &mut buffer).map_err(io::Error::from) {
                Ok(0) => self.is_closed = true,
                Ok(n) => self.inbox.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => self.is_closed = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn next_message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(header) = self.inbox.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_MESSAGE_BYTES {
            let text = format!("a message of {length} bytes is announced");
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        let end = 4 + length + if self.auth.is_some() { MAC_BYTES } else { 0 };
        let Some((body, tag)) =
            self.inbox.get(4..end).and_then(|rest| rest.split_at_checked(length))
        else {
            return Ok(None);
        };
        if let Some([_, auth]) = &mut self.auth
            && !tag.try_into().is_ok_and(|tag| auth.verify(body, tag))
        {
            let text = "a message was altered, replayed or inserted in transit";
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        let message = serde_json::from_slice(body)?;
        self.inbox.drain(..end);
        Ok(Some(message))
    }

    fn wait(&self, flags: PollFlags, began: Instant, timeout: Duration) -> io::Result<()> {
        let left = timeout.checked_sub(began.elapsed()).ok_or(ErrorKind::TimedOut)?;
        poll(&mut [PollFd::new(&self.socket, flags)], Some(left))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits for one of `fds`, at most for `time`. A signal may end the wait early.
pub(crate) fn poll(fds: &mut [PollFd<'_>], time: Option<Duration>) -> io::Result<()> {
    let time = time.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    });
    match rustix::event::poll(fds, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether this error means that the other end or its machine is gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    use ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable,
        TimedOut,
    };
    matches!(
        error.kind(),
        BrokenPipe
            | ConnectionReset
            | ConnectionAborted
            | HostUnreachable
            | NetworkUnreachable
            | TimedOut
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::transport::auth::Key;

    fn ends() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::new(a).unwrap(), Channel::new(b).unwrap())
    }

    #[test]
    fn messages_larger_than_the_socket_arrive_whole_and_in_order() {
        let (mut from, mut to) = ends();
        let large = "x".repeat(3 << 20);
        from.send(&large).unwrap();
        from.send(&"second").unwrap();
        assert!(from.has_unsent());
        let mut got: Vec<String> = Vec::new();
        while got.len() < 2 {
            got.extend(to.receive::<String>().unwrap());
            from.flush().unwrap();
        }
        assert_eq!((got[0].len(), got[1].as_str()), (3 << 20, "second"));
    }

    #[test]
    fn messages_sent_before_the_end_are_still_received() {
        let (mut from, mut to) = ends();
        from.send(&7).unwrap();
        drop(from);
        assert_eq!(to.receive::<u32>().unwrap(), [7]);
        assert!(to.is_closed());
        let error = to.receive_one::<u32>(Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_authenticated_message_that_was_changed_or_repeated_is_refused() {
        let changed = |bytes: &mut Vec<u8>| bytes[5] ^= 1;
        let repeated = |bytes: &mut Vec<u8>| bytes.extend(bytes.clone());
        for tamper in [changed, repeated] {
            let (a, b) = UnixStream::pair().unwrap();
            let keys = |send, receive| SessionKeys {
                send: Key::new([send; MAC_BYTES]),
                receive: Key::new([receive; MAC_BYTES]),
            };
            let mut from = Channel::authenticated(a, keys(1, 2)).unwrap();
            let mut to = Channel::authenticated(b, keys(2, 1)).unwrap();
            from.send(&"first").unwrap();
            assert_eq!(to.receive::<String>().unwrap(), ["first"]);
            // What `send` would have put on the wire.
            let body = b"\"second\"";
            let tag = from.auth.as_mut().unwrap()[0].tag(body);
            from.outbox = [&(body.len() as u32).to_le_bytes()[..], body, &tag].concat();
            tamper(&mut from.outbox);
            from.flush().unwrap();
            let error = to.receive::<String>().unwrap_err();
            assert!(error.to_string().contains("altered, replayed or inserted"), "{error}");
        }
    }

    #[test]
    fn a_huge_length_is_refused_and_a_silent_peer_times_out() {
        let (mut from, mut to) = ends();
        let silent = to.receive_one::<u32>(Duration::from_millis(10)).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        from.outbox = vec![0xff; 8];
        from.flush().unwrap();
        assert_eq!(to.receive::<u32>().unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
