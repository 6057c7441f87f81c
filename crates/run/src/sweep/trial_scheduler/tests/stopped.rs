//! Trials of a sweep that is being stopped.

use super::*;

/// Two trials at once: the first fails by itself, the other one when it is asked to stop, as a run
/// whose restart is called off.
struct CalledOff;

impl Trainer for CalledOff {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        Silent.check(changes)
    }

    fn train(&self, job: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
        let began = Instant::now();
        while job.folders.id != id(1) && !job.waker.take() {
            assert!(began.elapsed() < Duration::from_mins(1), "nothing stops it");
            std::thread::sleep(Duration::from_millis(5));
        }
        Outcome::Failed { error: "rank 1 was killed".to_owned(), cause: Cause::Other }
    }
}

#[test]
fn a_trial_that_fails_while_the_sweep_is_stopped_is_resumed() {
    let mut lab = Lab::new("random", 2);
    (lab.sweep.concurrent_trials, lab.sweep.max_failures) = (Auto::Given(2), 0);
    let (ended, trials) = lab.run(&CalledOff);
    assert_eq!(ended, Ended::TooManyFailures);
    assert_eq!([trials[0].state, trials[1].state], [State::Failed, State::Running]);
    lab.sweep.max_failures = 1;
    let fake = fake(|_, _| Outcome::Done);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials[1].state), (Ended::Done { failed: 1 }, State::Finished));
    assert_eq!(fake.seen.lock().unwrap()[..], [(true, trials[1].values[0].1.as_f64().unwrap())]);
}
