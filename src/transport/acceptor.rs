//! A listening socket -> those who proved that they hold the key. Strangers cost little and hold up nobody: each has
//! a thread, five seconds and 96 bytes; there are 64 at most, 16 of one address; and of one address at most one
//! refusal a second is told.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::transport::auth::{Key, Purpose, Session};
use crate::transport::channel::poll;
use crate::transport::handshake::admit;

/// Connections that are heard at a time.
const MOST: usize = 64;
/// Those of one address.
const MOST_OF_ONE: usize = 16;
/// Time between two words about refusals of one address.
const QUIET: Duration = Duration::from_secs(1);
/// Addresses whose last refusal is remembered.
const REMEMBERED: usize = 1024;

/// Somebody who proved that they hold the key.
pub(crate) struct Guest {
    pub(crate) stream: TcpStream,
    pub(crate) address: IpAddr,
    pub(crate) purpose: Purpose,
    pub(crate) session: Session,
}

enum Knock {
    Guest(Box<Guest>),
    Refused(IpAddr, &'static str),
}

/// Hears whoever connects, until it is dropped; what is connected then and not heard yet waits for the next acceptor.
pub(crate) struct Acceptor {
    knocks: Receiver<Knock>,
    refusals: BTreeMap<IpAddr, Instant>,
    /// Ends the thread when it is closed.
    _waker: UnixStream,
}

impl Acceptor {
    pub(crate) fn open(listener: &TcpListener, key: &Key) -> io::Result<Self> {
        let listener = listener.try_clone()?;
        listener.set_nonblocking(true)?;
        let (waker, sleeper) = UnixStream::pair()?;
        let (sender, knocks) = sync_channel(MOST);
        let key = key.clone();
        std::thread::Builder::new()
            .name("acceptor".to_owned())
            .spawn(move || keep(&listener, &sleeper, &key, &sender))?;
        Ok(Self { knocks, refusals: BTreeMap::new(), _waker: waker })
    }

    /// The next guest, or `None` if nobody comes until then. `say` hears of those who were refused.
    pub(crate) fn wait(&mut self, until: Instant, say: &mut dyn FnMut(&str)) -> Option<Guest> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.knocks.recv_timeout(left) {
                Ok(Knock::Guest(guest)) => return Some(*guest),
                Ok(Knock::Refused(address, why)) if self.is_news(address) => {
                    say(&format!("warning: a connection from {address} was refused: {why}"));
                }
                Ok(Knock::Refused(..)) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn is_news(&mut self, address: IpAddr) -> bool {
        let now = Instant::now();
        if self.refusals.len() >= REMEMBERED {
            self.refusals.retain(|_, at| now.duration_since(*at) < QUIET);
        }
        let is_news = self.refusals.get(&address).is_none_or(|at| now.duration_since(*at) >= QUIET);
        if is_news && self.refusals.len() < REMEMBERED {
            self.refusals.insert(address, now);
        }
        is_news
    }
}

/// Accepts until the other end of `sleeper` is closed.
fn keep(listener: &TcpListener, sleeper: &UnixStream, key: &Key, sender: &SyncSender<Knock>) {
    let hall = Arc::new(Hall::default());
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(sleeper, PollFlags::IN)];
        if poll(&mut fds, None).is_err() || !fds[1].revents().is_empty() {
            return;
        }
        // It may have left again; without descriptors it waits in the system's queue, and so do we for a moment.
        let Ok((stream, address)) = listener.accept() else {
            let _ =
                poll(&mut [PollFd::new(sleeper, PollFlags::IN)], Some(Duration::from_millis(1)));
            continue;
        };
        let address = address.ip();
        let Some(place) = Hall::enter(&hall, address) else {
            let _ = sender
                .try_send(Knock::Refused(address, "too many connections are being authenticated"));
            continue;
        };
        let (key, sender) = (key.clone(), sender.clone());
        // Without a thread the connection is closed, and its opener tries again.
        let _ = std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || hear(stream, place, &key, &sender));
    }
}

fn hear(mut stream: TcpStream, place: Seat, key: &Key, sender: &SyncSender<Knock>) {
    let address = place.address;
    let heard = stream.set_nonblocking(false).map_err(|_| "the system refuses to read from it");
    match heard.and_then(|()| admit(&mut stream, key)) {
        Ok((purpose, session)) => {
            // An error means that the acceptor is closed.
            let _ =
                sender.send(Knock::Guest(Box::new(Guest { stream, address, purpose, session })));
        }
        // A word that finds no room is one of very many.
        Err(why) => drop(sender.try_send(Knock::Refused(address, why))),
    }
    drop(place);
}

/// Those who are being heard, by address.
#[derive(Default)]
struct Hall(Mutex<BTreeMap<IpAddr, usize>>);

/// A place among them, until it is dropped.
struct Seat {
    hall: Arc<Hall>,
    address: IpAddr,
}

impl Hall {
    fn enter(hall: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let mut all = hall.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_this = all.get(&address).copied().unwrap_or(0);
        if of_this >= MOST_OF_ONE || all.values().sum::<usize>() >= MOST {
            return None;
        }
        all.insert(address, of_this + 1);
        Some(Seat { hall: Arc::clone(hall), address })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = self.hall.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&self.address) {
            Some(n @ 2..) => *n -= 1,
            _ => drop(all.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests;
