//! The parents of several machines: they meet once, connect their ranks, and then tell each other how it goes.
//!
//! ```text
//! node k ──Hello {plan}──▶ node 0      each after a handshake that proves the token (`seal`)
//! node k ◀─Welcome {run}── node 0      once all are here; or Refused
//! node k ─────────────────▶ node i     for i < k: a connection from each of k's ranks to each of i's
//! node k ◀─Beat, Failed, Ended─▶ node 0
//! ```
//!
//! Nobody listens any more once the ranks are connected.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::launch::Failure;
use crate::launch::error_report::clock;
use crate::launch::parent::verdict::Ended;
use crate::plan::RunFolders;
use crate::transport::Peer;
use crate::transport::auth::Key;
use crate::transport::channel::{Channel, poll};
use crate::units::Rank;

/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// Longest silence of another node, unless `distributed.timeout` is shorter.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest time between two looks that counts as watched.
const BLINK: Duration = Duration::from_secs(2);
/// Longest wait for the others' last words: after a failure, and after a good end.
const LAST_WORDS: [Duration; 2] = [Duration::from_secs(5), Duration::from_mins(1)];
/// Longest wait until all have heard why the run ended: what is unread when a connection is closed may be lost.
const PARTING: Duration = Duration::from_secs(2);
/// Longest time for words to a node that does not listen.
const PATIENCE: Duration = Duration::from_secs(1);

/// This machine's part in a run over several.
#[derive(Clone, Debug)]
pub struct Place {
    /// Number of this machine; 0 has rank 0.
    pub node: u32,
    /// Number of machines.
    pub nodes: u32,
    /// Node 0: a name or an address.
    pub master: String,
    /// Its port.
    pub port: u16,
    /// What all nodes know and nobody else.
    pub token: Key,
}

/// What parents say to each other while their ranks run.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launch) enum Word {
    /// This node lives.
    Beat,
    /// Its ranks have failed; `is_consequence`: of what another node should know.
    Failed { failure: Box<Failure>, is_consequence: bool },
    /// Its ranks have done what they should.
    Ended,
}

/// Another node, as its parent is known here.
pub(in crate::launch) struct Neighbour {
    pub(in crate::launch) node: u32,
    /// In words: name and address.
    pub(in crate::launch) name: String,
    pub(in crate::launch) channel: Channel,
    /// When it was last heard, in watched time.
    heard: Duration,
    has_ended: bool,
    failed: Option<(Box<Failure>, bool)>,
}

impl Neighbour {
    pub(in crate::launch) fn new(node: u32, name: String, channel: Channel) -> Self {
        Self { node, name, channel, heard: Duration::ZERO, has_ended: false, failed: None }
    }

    fn is_settled(&self) -> bool {
        self.has_ended || self.failed.is_some()
    }
}

/// The other nodes of a run: all of them for node 0, node 0 for the others.
pub struct Nodes {
    node: u32,
    ranks_per_node: u32,
    neighbours: Vec<Neighbour>,
    /// For each rank of this node, those that it talks to.
    peers: Vec<Vec<Peer>>,
    run: RunFolders,
    silence: Duration,
    /// Time in which this process itself ran.
    watched: Duration,
    looked: Duration,
    beaten: Duration,
}

impl Nodes {
    pub(in crate::launch) fn new(
        (node, ranks_per_node): (u32, u32),
        neighbours: Vec<Neighbour>,
        peers: Vec<Vec<Peer>>,
        run: RunFolders,
        timeout: Duration,
    ) -> Self {
        let (watched, looked, silence) = (Duration::ZERO, clock(), timeout.min(SILENCE));
        let beaten = Duration::ZERO;
        Self { node, ranks_per_node, neighbours, peers, run, silence, watched, looked, beaten }
    }

    /// Number of this machine.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// The ranks of this machine.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let first = self.node * self.ranks_per_node;
        (first..first + self.ranks_per_node).map(Rank)
    }

    /// The connections of this machine's ranks, which are theirs from now on.
    pub(in crate::launch) fn take_peers(&mut self) -> Vec<Vec<Peer>> {
        std::mem::take(&mut self.peers)
    }

    /// What to wait for.
    pub(in crate::launch) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let open = self.neighbours.iter().filter(|neighbour| !neighbour.channel.is_closed());
        open.map(|neighbour| {
            let unsent = neighbour.channel.has_unsent();
            let out = if unsent { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(&neighbour.channel, PollFlags::IN | out)
        })
    }

    /// Shows that this node lives, hears the others, and says whether one of them has failed. To be called more often
    /// than there are beats.
    pub(in crate::launch) fn look(&mut self) -> bool {
        let now = clock();
        self.watched += now.saturating_sub(self.looked).min(BLINK);
        self.looked = now;
        if self.watched >= self.beaten + BEAT {
            self.beaten = self.watched;
            self.tell(&Word::Beat);
        }
        let (run, watched, silence) = (&self.run, self.watched, self.silence);
        for neighbour in &mut self.neighbours {
            let _ = neighbour.channel.flush();
            let lost = hear(neighbour, watched, silence);
            if let Some(why) = lost.filter(|_| !neighbour.is_settled()) {
                let first = Rank(neighbour.node * self.ranks_per_node);
                let lost = Failure::of_node(run, (neighbour.node, first), &neighbour.name, why);
                neighbour.failed = Some((lost, false));
            }
        }
        self.neighbours.iter().any(|neighbour| neighbour.failed.is_some())
    }

    /// Tells the others how this node's group has ended, and says how the run has: with the first failure of any node
    /// that is not another's consequence.
    pub(in crate::launch) fn conclude(
        &mut self,
        own: Result<Ended, (Box<Failure>, bool)>,
    ) -> Result<Ended, Box<Failure>> {
        let is_first = self.node == 0;
        match own {
            // The user here does not want to wait.
            Ok(ended @ Ended::Interrupted { saved: false }) => {
                self.tell(&Word::Ended);
                Ok(ended)
            }
            Ok(ended) => {
                if !is_first {
                    self.tell(&Word::Ended);
                }
                self.wait(LAST_WORDS[1], |nodes| {
                    nodes.neighbours.iter().all(Neighbour::is_settled)
                });
                match self.cause() {
                    Some((cause, _)) => Err(self.pass_on(cause)),
                    None if is_first => {
                        self.tell(&Word::Ended);
                        Ok(ended)
                    }
                    None => Ok(ended),
                }
            }
            Err((failure, false)) => {
                self.tell(&Word::Failed { failure: failure.clone(), is_consequence: false });
                self.part();
                Err(failure)
            }
            Err((failure, true)) => {
                if !is_first && self.cause().is_none() {
                    let failure = failure.clone();
                    self.tell(&Word::Failed { failure, is_consequence: true });
                }
                let knows = |nodes: &Self| nodes.cause().is_some_and(|(_, is_cause)| is_cause);
                self.wait(LAST_WORDS[0], knows);
                match self.cause() {
                    Some((cause, true)) => Err(self.pass_on(cause)),
                    _ => Err(self.pass_on(failure)),
                }
            }
        }
    }

    /// As it is told on other nodes than its own.
    fn pass_on(&mut self, cause: Box<Failure>) -> Box<Failure> {
        if self.node == 0 {
            self.tell(&Word::Failed { failure: cause.clone(), is_consequence: false });
            self.part();
        }
        let code = if cause.node == Some(self.node) { cause.code } else { 5 };
        Box::new(Failure { code, ..*cause })
    }

    /// Waits until the others have heard the last words: node 0 answers, and then waits for those whom it has answered.
    fn part(&mut self) {
        let is_first = self.node == 0;
        self.wait(PARTING, |nodes| {
            let has_heard = |neighbour: &Neighbour| {
                neighbour.channel.is_closed() || (!is_first && neighbour.is_settled())
            };
            nodes.neighbours.iter().all(has_heard)
        });
    }

    /// The failure of another node, one that is no consequence if there is one, and whether it is such.
    fn cause(&self) -> Option<(Box<Failure>, bool)> {
        let failed = || self.neighbours.iter().filter_map(|neighbour| neighbour.failed.as_ref());
        let cause =
            failed().find(|(_, is_consequence)| !is_consequence).or_else(|| failed().next());
        cause.map(|(failure, is_consequence)| (failure.clone(), !is_consequence))
    }

    /// Waits for words of the others, at most for `time`.
    fn wait(&mut self, time: Duration, is_enough: impl Fn(&Self) -> bool) {
        let until = clock() + time;
        loop {
            self.look();
            let left = until.saturating_sub(clock());
            if is_enough(self) || left.is_zero() {
                return;
            }
            let mut fds: Vec<PollFd<'_>> = self.fds().collect();
            // Any return only means to look again.
            let _ = poll(&mut fds, Some(left.min(BEAT)));
        }
    }

    fn tell(&mut self, word: &Word) {
        for neighbour in &mut self.neighbours {
            // A node that cannot be told is gone, or will be found silent.
            let _ = match word {
                Word::Beat => neighbour.channel.send(word),
                Word::Failed { .. } | Word::Ended => neighbour.channel.send_all(word, PATIENCE),
            };
        }
    }
}

/// Takes in what a node said, and says why it is lost, if it is.
fn hear(neighbour: &mut Neighbour, watched: Duration, silence: Duration) -> Option<String> {
    let words = match neighbour.channel.receive::<Word>() {
        Ok(words) => words,
        Err(error) => return Some(format!("what it sent cannot be trusted: {error}")),
    };
    if !words.is_empty() {
        neighbour.heard = watched;
    }
    for word in words {
        match word {
            Word::Beat => {}
            Word::Ended => neighbour.has_ended = true,
            Word::Failed { failure, is_consequence } => {
                // A later word may know the cause.
                if !is_consequence || neighbour.failed.is_none() {
                    neighbour.failed = Some((failure, is_consequence));
                }
            }
        }
    }
    if neighbour.channel.is_closed() {
        let why = "its connection ended: its ddprun was killed, or its machine or network failed";
        return Some(why.to_owned());
    }
    let silent = watched.saturating_sub(neighbour.heard);
    (silent >= silence)
        .then(|| format!("nothing was heard from it for {:.0} s", silent.as_secs_f64()))
}
