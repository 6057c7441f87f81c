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

/// The request that a signal stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Save and leave: the process may start again later.
    Preemption,
    /// Ctrl-C.
    Interruption,
}

/// Effect of a signal at this point of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody listens to them here.
    Idle,
    /// They end the program.
    Ending,
    /// They wait until the files that are being made are complete.
    JoinWait,
    /// A run or a sweep listens to them.
    Over,
}

struct Early {
    stage: Stage,
    signals: Vec<ListenedSignal>,
    /// The command that starts the run that was made.
    remedy: Option<String>,
    say: fn(&str),
}

/// A signal whose handler sets a flag: the thread that reads signals may be late.
struct ListenedSignal {
    kind: Kind,
    id: SigId,
    has_arrived: Arc<AtomicBool>,
}

static EARLY: Mutex<Early> =
    Mutex::new(Early { stage: Stage::Idle, signals: Vec::new(), remedy: None, say: |_| () });

fn early() -> MutexGuard<'static, Early> {
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes each of `signals` end the program, after a line by `say`, until a run or a sweep listens.
///
/// # Errors
///
/// The system has no thread or descriptor left; signals then end the process without a word.
pub(super) fn listen(signals: impl Iterator<Item = i32>, say: fn(&str)) -> io::Result<()> {
    let all: Vec<i32> = signals.collect();
    let mut signals = Signals::new(&all)?;
    for signal in all {
        let has_arrived = Arc::new(AtomicBool::new(false));
        let id = flag::register(signal, Arc::clone(&has_arrived))?;
        early().signals.push(ListenedSignal { kind: kind_of(signal), id, has_arrived });
    }
    (early().stage, early().say) = (Stage::Ending, say);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let early = early();
            match early.stage {
                Stage::Ending => early.end(kind_of(signal)),
                // Its flag is looked at when the wait is over.
                Stage::JoinWait => {}
                Stage::Idle | Stage::Over => return,
            }
        }
    })?;
    Ok(())
}

impl ListenedSignal {
    fn has_arrived(&self) -> bool {
        self.has_arrived.load(Ordering::SeqCst)
    }
}

fn kind_of(signal: i32) -> Kind {
    if signal == SIGINT { Kind::Interruption } else { Kind::Preemption }
}

impl Early {
    /// A signal that has arrived, whether or not the thread has read it.
    fn pending(&self) -> Option<Kind> {
        self.signals.iter().find(|signal| signal.has_arrived()).map(|signal| signal.kind)
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

/// Makes signals wait while files are made that must be complete or absent.
pub(crate) fn uninterrupted() -> Uninterrupted {
    let mut early = early();
    if early.stage == Stage::Ending {
        if let Some(kind) = early.pending() {
            early.end(kind);
        }
        early.stage = Stage::JoinWait;
    }
    Uninterrupted(())
}

impl Uninterrupted {
    /// True if the program ends when this is dropped: files that were made may be removed.
    #[expect(clippy::unused_self, reason = "only what is not interrupted may ask")]
    pub(crate) fn ends(&self) -> bool {
        let early = early();
        early.stage == Stage::JoinWait && early.pending().is_some()
    }

    /// Ends the wait with files that are complete and stay; `remedy` is the command that uses them.
    #[expect(clippy::unused_self, reason = "it is over with this")]
    pub(crate) fn complete(self, remedy: String) {
        early().remedy = Some(remedy);
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        let mut early = early();
        if early.stage == Stage::JoinWait {
            early.stage = Stage::Ending;
            if let Some(kind) = early.pending() {
                early.end(kind);
            }
        }
    }
}

/// Hands signals of this kind over to a run or a sweep, and returns whether one has arrived before.
pub(super) fn take_over(kind: Kind) -> bool {
    let mut early = early();
    early.stage = match early.stage {
        Stage::Idle => Stage::Idle,
        _ => Stage::Over,
    };
    let all = std::mem::take(&mut early.signals).into_iter();
    let (handed_over, rest): (Vec<_>, Vec<_>) = all.partition(|signal| signal.kind == kind);
    early.signals = rest;
    for signal in &handed_over {
        low_level::unregister(signal.id);
    }
    handed_over.iter().any(ListenedSignal::has_arrived)
}
