//! Passes that are recorded once and replayed from then on, and the proof that a replay does what
//! the pass does.
//!
//! Nothing that a recording holds may differ from pass to pass: a learning rate, a dropout mask or
//! a batch that was recorded with the launches would be replayed for ever. So the first replays are
//! run beside the pass itself, from the same state, and the bits of all that they leave are
//! compared. A recording that differs, or fails, is not replayed again.

/// Passes before the recording: libraries choose their algorithms, and memory finds its place.
const WARM_UP: u32 = 3;
/// Replays that are compared with the pass. The second has another batch and another step than the
/// recording and the first.
const PROOFS: u32 = 2;

/// Passes of a step whose launches differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Gradients replace what was in the buckets.
    First,
    /// Gradients are added to what is in the buckets.
    Later,
}

/// The kind of the next pass, by the parameters that have a gradient already; `None` where only
/// some do.
pub(super) fn kind_of_pass(written: &[bool]) -> Option<Kind> {
    let count = written.iter().filter(|&&written| written).count();
    match count {
        0 => Some(Kind::First),
        _ if count == written.len() => Some(Kind::Later),
        _ => None,
    }
}

/// Runs passes, and can record one.
pub(super) trait Recorder {
    /// A recorded pass.
    type Recording;
    /// Everything that a pass changes, its results included.
    type State: PartialEq;
    /// Error of a pass.
    type Error: std::fmt::Display;

    /// Runs the pass.
    fn run(&mut self) -> Result<(), Self::Error>;

    /// Records the pass without running it.
    fn record(&mut self) -> Result<Self::Recording, Self::Error>;

    /// Runs what was recorded, for the pass at hand.
    fn replay(&mut self, recording: &Self::Recording) -> Result<(), Self::Error>;

    /// Returns everything that passes change.
    fn state(&mut self) -> Result<Self::State, Self::Error>;

    /// Puts it back.
    fn restore(&mut self, state: &Self::State) -> Result<(), Self::Error>;
}

/// Progress of a recording.
#[derive(Debug)]
pub(super) enum Capture<R> {
    /// Passes that are still run before the recording.
    WarmingUp(u32),
    /// Replays that are still to be compared.
    Proving(R, u32),
    /// Replays are believed.
    Proved(R),
    /// Nothing is recorded, and nothing will be.
    Off,
}

/// News after a pass.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CaptureEvent {
    /// Nothing.
    None,
    /// From now on the recording is replayed.
    Proved,
    /// From now on no recording is replayed, for this reason.
    GivenUp(String),
}

impl<R> Capture<R> {
    pub(super) fn new() -> Self {
        Self::WarmingUp(WARM_UP)
    }

    /// Runs the pass at hand, by itself or by replaying its recording.
    ///
    /// # Errors
    ///
    /// The error of the pass itself. An error of the recording or of a replay becomes news, and the
    /// pass is run without them; but a proved replay that fails leaves an unknown state.
    pub(super) fn pass<C: Recorder<Recording = R>>(
        &mut self,
        recorder: &mut C,
    ) -> Result<CaptureEvent, C::Error> {
        match std::mem::replace(self, Self::Off) {
            Self::Off => recorder.run()?,
            Self::WarmingUp(0) => match recorder.record() {
                Ok(recording) => return self.prove(recorder, recording, PROOFS),
                Err(why) => {
                    recorder.run()?;
                    let why = format!("it cannot be recorded: {why}");
                    return Ok(CaptureEvent::GivenUp(why));
                }
            },
            Self::WarmingUp(left) => {
                *self = Self::WarmingUp(left - 1);
                recorder.run()?;
            }
            Self::Proving(recording, left) => return self.prove(recorder, recording, left),
            Self::Proved(recording) => {
                recorder.replay(&recording)?;
                *self = Self::Proved(recording);
            }
        }
        Ok(CaptureEvent::None)
    }

    /// Runs the pass and its recording from the same state. The pass's own result stays in any
    /// case.
    fn prove<C: Recorder<Recording = R>>(
        &mut self,
        recorder: &mut C,
        recording: R,
        left: u32,
    ) -> Result<CaptureEvent, C::Error> {
        let before = recorder.state()?;
        recorder.run()?;
        let after = recorder.state()?;
        recorder.restore(&before)?;
        let why = match recorder.replay(&recording) {
            Err(why) => Some(format!("replay failed: {why}")),
            Ok(()) if recorder.state()? != after => {
                Some("replay produced different values".to_owned())
            }
            Ok(()) => None,
        };
        let Some(why) = why else {
            let last = left == 1;
            *self = if last { Self::Proved(recording) } else { Self::Proving(recording, left - 1) };
            return Ok(if last { CaptureEvent::Proved } else { CaptureEvent::None });
        };
        recorder.restore(&after)?;
        Ok(CaptureEvent::GivenUp(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// weight -= lr gradient, with what a pass of a real engine has: a batch and a rate that move,
    /// a running statistic.
    #[derive(Default)]
    struct FakeEngine {
        step: u32,
        weight: f32,
        statistic: f32,
        /// The pass's result.
        found: f32,
        /// The quantity that a wrong recording keeps from its own step.
        bakes: Option<Baked>,
        refuses: bool,
        breaks: Option<u32>,
        runs: u32,
        replays: u32,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Baked {
        Rate,
        Batch,
        Statistic,
        Found,
    }

    impl FakeEngine {
        fn rate(step: u32) -> f32 {
            0.1 / (1 + step) as f32
        }

        fn move_on(&mut self, recorded: u32) {
            let step = |what| if self.bakes == Some(what) { recorded } else { self.step };
            let (rate, batch) = (Self::rate(step(Baked::Rate)), step(Baked::Batch) as f32);
            let (statistic, found) = (step(Baked::Statistic) as f32, step(Baked::Found) as f32);
            self.weight -= rate * (self.weight + batch);
            self.statistic += 0.5 * (statistic - self.statistic);
            self.found = self.weight + found;
        }
    }

    impl Recorder for FakeEngine {
        type Recording = u32;
        type State = (f32, f32, f32);
        type Error = String;

        fn run(&mut self) -> Result<(), String> {
            self.runs += 1;
            self.move_on(self.step);
            Ok(())
        }

        fn record(&mut self) -> Result<u32, String> {
            if self.refuses { Err("no host may be read".to_owned()) } else { Ok(self.step) }
        }

        fn replay(&mut self, recording: &u32) -> Result<(), String> {
            self.replays += 1;
            if self.breaks == Some(self.replays) {
                self.weight = f32::NAN;
                return Err("the device is lost".to_owned());
            }
            self.move_on(*recording);
            Ok(())
        }

        fn state(&mut self) -> Result<Self::State, String> {
            Ok((self.weight, self.statistic, self.found))
        }

        fn restore(&mut self, state: &Self::State) -> Result<(), String> {
            (self.weight, self.statistic, self.found) = *state;
            Ok(())
        }
    }

    /// Ten passes: what each found, and all the news.
    fn train(engine: &mut FakeEngine) -> (Vec<f32>, Vec<CaptureEvent>) {
        let mut capture = Capture::new();
        let mut found = (Vec::new(), Vec::new());
        for step in 0..10 {
            engine.step = step;
            let news = capture.pass(engine).unwrap();
            found.0.push(engine.found);
            found.1.extend((news != CaptureEvent::None).then_some(news));
        }
        found
    }

    /// Results, weight and statistic of ten passes without any recording.
    fn expected() -> (Vec<f32>, f32, f32) {
        let mut engine = FakeEngine::default();
        let reports = (0..10)
            .map(|step| {
                engine.step = step;
                engine.run().unwrap();
                engine.found
            })
            .collect();
        (reports, engine.weight, engine.statistic)
    }

    #[test]
    fn a_recording_that_does_what_the_pass_does_takes_its_place() {
        let mut engine = FakeEngine::default();
        let (reports, news) = train(&mut engine);
        assert_eq!((reports, engine.weight, engine.statistic), expected());
        assert_eq!(news, [CaptureEvent::Proved]);
        assert_eq!((engine.runs, engine.replays), (WARM_UP + PROOFS, 10 - WARM_UP));
    }

    #[test]
    fn whatever_was_recorded_with_the_launches_is_found_out_and_the_run_is_not_changed_by_it() {
        for bakes in [Baked::Rate, Baked::Batch, Baked::Statistic, Baked::Found] {
            let mut engine = FakeEngine { bakes: Some(bakes), ..FakeEngine::default() };
            let (reports, news) = train(&mut engine);
            assert_eq!((reports, engine.weight, engine.statistic), expected());
            let [CaptureEvent::GivenUp(why)] = &news[..] else { panic!("{news:?}") };
            assert_eq!(why, "replay produced different values");
            // The first comparison is that of the recorded step itself, which cannot show it.
            assert_eq!(engine.replays, PROOFS);
        }
    }

    #[test]
    fn a_pass_that_cannot_be_recorded_or_replayed_is_run() {
        let mut refusing = FakeEngine { refuses: true, ..FakeEngine::default() };
        let (reports, news) = train(&mut refusing);
        assert_eq!(reports, expected().0);
        let told = "it cannot be recorded: no host may be read".to_owned();
        assert_eq!(news, [CaptureEvent::GivenUp(told)]);

        let mut breaking = FakeEngine { breaks: Some(1), ..FakeEngine::default() };
        let (reports, news) = train(&mut breaking);
        assert_eq!((reports, breaking.weight, breaking.statistic), expected());
        assert_eq!(news, [CaptureEvent::GivenUp("replay failed: the device is lost".to_owned())]);
    }

    #[test]
    fn the_first_pass_of_a_step_and_those_after_it_are_recorded_apart() {
        assert_eq!(kind_of_pass(&[false, false]), Some(Kind::First));
        assert_eq!(kind_of_pass(&[true, true]), Some(Kind::Later));
        assert_eq!(kind_of_pass(&[true, false]), None, "some gradients replace, others are added");
    }

    #[test]
    fn a_proved_replay_that_fails_is_an_error() {
        let mut engine = FakeEngine { breaks: Some(PROOFS + 1), ..FakeEngine::default() };
        let mut capture = Capture::new();
        let last = (0..10).map(|step| {
            engine.step = step;
            capture.pass(&mut engine)
        });
        assert_eq!(last.filter_map(Result::err).collect::<Vec<_>>(), ["the device is lost"]);
    }
}
