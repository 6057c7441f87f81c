//! Signals that arrive before a run or a sweep listens to them, while the experiment is read and
//! planned: nothing is to be saved, so they end the program, with a word and the exit code of what
//! was stopped.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use signal_hook::{SigId, flag, low_level};

use crate::user_error::ExitCode;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Save and leave: the process may start again later.
    Preemption,
    /// Ctrl-C.
    Interruption,
}

/// What signals do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody listens to them here.
    Idle,
    /// They end the program.
    Ending,
    /// They wait until what is being made is whole.
    Waiting,
    /// A run or a sweep listens to them.
    Over,
}

struct Early {
    stage: Stage,
    /// Those that wait.
    arrived: Vec<Kind>,
    /// What each signal sets as it arrives: the thread that reads them may be late.
    flags: Vec<(Kind, SigId, Arc<AtomicBool>)>,
    /// The command that starts what was made.
    remedy: Option<String>,
    say: fn(&str),
}

static EARLY: Mutex<Early> = Mutex::new(Early {
    stage: Stage::Idle,
    arrived: Vec::new(),
    flags: Vec::new(),
    remedy: None,
    say: |_| (),
});

fn early() -> MutexGuard<'static, Early> {
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on each of `signals` ends the program, which `say`s so, until a run or a sweep listens.
///
/// # Errors
///
/// The system has no thread or descriptor left; signals then end the process without a word.
pub(super) fn listen(signals: impl Iterator<Item = i32>, say: fn(&str)) -> io::Result<()> {
    let all: Vec<i32> = signals.collect();
    let mut signals = Signals::new(&all)?;
    for signal in all {
        let flag = Arc::new(AtomicBool::new(false));
        let id = flag::register(signal, Arc::clone(&flag))?;
        early().flags.push((kind_of(signal), id, flag));
    }
    (early().stage, early().say) = (Stage::Ending, say);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let kind = kind_of(signal);
            let mut early = early();
            match early.stage {
                Stage::Ending => early.end(kind),
                Stage::Waiting => early.arrived.push(kind),
                Stage::Idle | Stage::Over => return,
            }
        }
    })?;
    Ok(())
}

fn kind_of(signal: i32) -> Kind {
    if signal == SIGINT { Kind::Interruption } else { Kind::Preemption }
}

impl Early {
    /// What has arrived, also where nobody has read it yet.
    fn pending(&self) -> Option<Kind> {
        let flagged = self.flags.iter().find(|(_, _, flag)| flag.load(Ordering::SeqCst));
        self.arrived.first().copied().or(flagged.map(|(kind, _, _)| *kind))
    }

    #[expect(clippy::disallowed_methods, reason = "a signal ends the program wherever it is")]
    fn end(&self, kind: Kind) -> ! {
        let next = self.remedy.as_ref().map(|remedy| format!("; `{remedy}` starts it"));
        (self.say)(&format!("stopped before the first step{}", next.unwrap_or_default()));
        std::process::exit(i32::from(u8::from(match kind {
            Kind::Preemption => ExitCode::Preempted,
            Kind::Interruption => ExitCode::Interrupted,
        })))
    }
}

/// Signals wait as long as it lives. One that has arrived then ends the program.
pub(crate) struct Uninterrupted(());

/// Has signals wait while something is made that must be whole, or not be there at all.
pub(crate) fn uninterrupted() -> Uninterrupted {
    let mut early = early();
    if early.stage == Stage::Ending {
        if let Some(kind) = early.pending() {
            early.end(kind);
        }
        early.stage = Stage::Waiting;
    }
    Uninterrupted(())
}

impl Uninterrupted {
    /// Whether the program ends when this is dropped: what was made may go.
    #[expect(clippy::unused_self, reason = "only what is not interrupted may ask")]
    pub(crate) fn ends(&self) -> bool {
        let early = early();
        early.stage == Stage::Waiting && early.pending().is_some()
    }

    /// What was made is whole and stays; this command starts it.
    #[expect(clippy::unused_self, reason = "it is over with this")]
    pub(crate) fn complete(self, remedy: String) {
        early().remedy = Some(remedy);
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        let mut early = early();
        if early.stage == Stage::Waiting {
            early.stage = Stage::Ending;
            if let Some(kind) = early.pending() {
                early.end(kind);
            }
        }
    }
}

/// Says that a run or a sweep listens from now on; whether such a signal has arrived before, also
/// one that nobody has read yet.
pub(super) fn take_over(kind: Kind) -> bool {
    let mut early = early();
    early.stage = match early.stage {
        Stage::Idle => Stage::Idle,
        _ => Stage::Over,
    };
    let mut has_arrived = early.arrived.contains(&kind);
    early.flags.retain(|(other, id, flag)| {
        let is_other = *other != kind;
        if !is_other {
            low_level::unregister(*id);
            has_arrived |= flag.load(Ordering::SeqCst);
        }
        is_other
    });
    has_arrived
}
