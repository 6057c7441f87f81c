//! Messages over a stream socket: JSON after its length. Between machines each of the two is a
//! sealed record, so no length is believed before it is authenticated.
//!
//! Sockets are non-blocking: a receiver that stops reading does not block the sender, which buffers
//! what is unsent. A message may hold a key: what buffers hold of it is wiped.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::SendFlags;
use rustix::time::Timespec;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::{Zeroize, Zeroizing};

use crate::transport::record::{RecordKey, SessionKeys, TAG_BYTES};

/// Largest message that is accepted: far larger than a plan with very many class names.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// One end of a connection.
pub struct Channel {
    socket: OwnedFd,
    /// Keys for sending and for receiving; absent within a machine.
    keys: Option<[RecordKey; 2]>,
    inbox: Vec<u8>,
    /// Bytes of the next message, if its length was received.
    announced: Option<usize>,
    outbox: Vec<u8>,
    /// True if the other end has sent all that it will.
    is_closed: bool,
    /// True if the other end reads nothing more. Messages that it sent before may still be here.
    has_lost_reader: bool,
}

impl Channel {
    pub fn new(socket: impl Into<OwnedFd>) -> io::Result<Self> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            keys: None,
            inbox: Vec::new(),
            announced: None,
            outbox: Vec::new(),
            is_closed: false,
            has_lost_reader: false,
        })
    }

    /// A connection whose messages are sealed with these keys.
    pub fn authenticated(socket: impl Into<OwnedFd>, keys: SessionKeys) -> io::Result<Self> {
        Ok(Self { keys: Some(keys.open()?), ..Self::new(socket)? })
    }

    /// True if the other end is gone, and all that it sent has been read from the socket.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// True if messages wait to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.outbox.is_empty() && !self.has_lost_reader
    }

    /// Queues a message and sends what can be sent now.
    pub fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let body = Zeroizing::new(serde_json::to_vec(message)?);
        let length =
            u32::try_from(body.len()).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
        self.outbox.reserve(size_of::<u32>() + body.len() + 2 * TAG_BYTES);
        self.queue(&length.to_le_bytes())?;
        self.queue(&body)?;
        self.flush()
    }

    /// Queues bytes that the other end takes as one.
    fn queue(&mut self, bytes: &[u8]) -> io::Result<()> {
        let from = self.outbox.len();
        self.outbox.extend_from_slice(bytes);
        if let Some([key, _]) = &mut self.keys {
            let tag = key.seal(&mut self.outbox[from..])?;
            self.outbox.extend_from_slice(&tag);
        }
        Ok(())
    }

    /// Sends what can be sent now. A peer that is gone is not an error here: once what it sent has
    /// been received, [`Channel::is_closed`] says so.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.has_unsent() {
            match rustix::net::send(&self.socket, &self.outbox, SendFlags::NOSIGNAL)
                .map_err(io::Error::from)
            {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => self.has_lost_reader = true,
                Err(error) => return Err(error),
            }
        }
        if self.outbox.is_empty() {
            self.outbox.zeroize();
        }
        Ok(())
    }

    /// Sends everything within `timeout`.
    pub fn send_all<T: Serialize>(&mut self, message: &T, timeout: Duration) -> io::Result<()> {
        self.send(message)?;
        let began = Instant::now();
        while self.has_unsent() {
            self.wait(PollFlags::OUT, began, timeout)?;
            self.flush()?;
        }
        Ok(())
    }

    /// All messages that have arrived.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Vec<T>> {
        self.read_available()?;
        std::iter::from_fn(|| self.next_message().transpose()).collect()
    }

    /// The next message, or `TimedOut`, or `UnexpectedEof` if the other end is gone.
    pub fn receive_one<T: DeserializeOwned>(&mut self, timeout: Duration) -> io::Result<T> {
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
        let mut buffer = Zeroizing::new([0; 16 << 10]);
        while !self.is_closed {
            match rustix::io::read(&self.socket, &mut buffer[..]).map_err(io::Error::from) {
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
        if self.announced.is_none() {
            let Some(header) = self.take(size_of::<u32>())? else { return Ok(None) };
            let length =
                header.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
            if length > MAX_MESSAGE_BYTES {
                let text = format!("a message of {length} bytes is announced");
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
            self.announced = Some(length);
        }
        let Some(length) = self.announced else { return Ok(None) };
        let Some(body) = self.take(length)? else { return Ok(None) };
        self.announced = None;
        Ok(Some(serde_json::from_slice(&body)?))
    }

    /// The next `n` bytes that the other end queued as one, if all have arrived.
    fn take(&mut self, n: usize) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        let tag_bytes = if self.keys.is_some() { TAG_BYTES } else { 0 };
        if self.inbox.len() < n + tag_bytes {
            return Ok(None);
        }
        let mut bytes = Zeroizing::new(self.inbox[..n + tag_bytes].to_vec());
        drop(self.inbox.drain(..n + tag_bytes));
        if self.inbox.is_empty() {
            self.inbox.zeroize();
        }
        if let (Some([_, key]), Some(&tag)) = (&mut self.keys, bytes.last_chunk()) {
            bytes.truncate(n);
            key.open(&mut bytes, tag)?;
        }
        Ok(Some(bytes))
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
pub fn poll(fds: &mut [PollFd<'_>], time: Option<Duration>) -> io::Result<()> {
    let time = time.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    });
    match rustix::event::poll(fds, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// True if this error means that the other end or its machine is gone.
pub fn is_gone(error: &io::Error) -> bool {
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
    use crate::transport::auth::{KEY_BYTES, Key};

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
    fn messages_sent_before_the_end_are_received_also_after_an_answer_that_came_too_late() {
        let (mut from, mut to) = ends();
        from.send(&7).unwrap();
        drop(from);
        to.send(&"are you there?").unwrap();
        assert!(!to.has_unsent(), "a message is kept for a peer that is gone");
        assert_eq!(to.receive::<u32>().unwrap(), [7]);
        assert!(to.is_closed());
    }

    #[test]
    fn messages_sent_before_the_end_are_received_also_if_an_answer_was_not_read() {
        let (mut from, mut to) = ends();
        to.send(&"are you there?").unwrap();
        from.send(&7).unwrap();
        drop(from);
        assert_eq!(to.receive::<u32>().unwrap(), [7]);
        assert!(to.is_closed());
    }

    /// Two ends over which messages are sealed.
    fn sealed_ends() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        let keys = |of: [u8; 2]| {
            let [send, receive] = of.map(|byte| Key::new([byte; KEY_BYTES]));
            SessionKeys::new(send, receive)
        };
        let from = Channel::authenticated(a, keys([1, 2])).unwrap();
        (from, Channel::authenticated(b, keys([2, 1])).unwrap())
    }

    /// Messages that the other end receives for "second" if its bytes are changed in transit.
    fn received_after(tamper: impl FnOnce(&mut Vec<u8>)) -> io::Result<Vec<String>> {
        let (mut from, mut to) = sealed_ends();
        from.send(&"first").unwrap();
        assert_eq!(to.receive::<String>().unwrap(), ["first"]);
        let body = b"\"second\"";
        from.queue(&(body.len() as u32).to_le_bytes()).unwrap();
        from.queue(body).unwrap();
        assert!(!from.outbox.windows(6).any(|bytes| bytes == b"second"), "it can be read");
        tamper(&mut from.outbox);
        from.flush().unwrap();
        drop(from);
        to.receive()
    }

    /// Bytes of "second" on the wire: its length, itself, and their tags.
    const WIRE: usize = 4 + TAG_BYTES + 8 + TAG_BYTES;

    #[test]
    fn no_bit_of_a_sealed_message_can_be_changed_and_its_length_neither() {
        assert_eq!(received_after(|bytes| assert_eq!(bytes.len(), WIRE)).unwrap(), ["second"]);
        for bit in 0..8 * WIRE {
            let error = received_after(|bytes| bytes[bit / 8] ^= 1 << (bit % 8)).unwrap_err();
            assert!(error.to_string().contains("altered, replayed or inserted"), "{bit}: {error}");
        }
    }

    #[test]
    fn a_sealed_message_that_is_repeated_or_dropped_or_inserted_is_refused() {
        let changes: [fn(&mut Vec<u8>); 4] = [
            |bytes| bytes.extend(bytes.clone()),
            |bytes| drop(bytes.drain(..4 + TAG_BYTES)),
            |bytes| bytes.rotate_left(4 + TAG_BYTES),
            |bytes| drop(bytes.splice(..0, [0; 4 + TAG_BYTES])),
        ];
        for change in changes {
            let error = received_after(change).unwrap_err();
            assert!(error.to_string().contains("altered, replayed or inserted"), "{error}");
        }
        for length in 0..WIRE {
            assert!(received_after(|bytes| bytes.truncate(length)).unwrap().is_empty());
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
