//! Conversations, manifests of speech and policies that see pictures, where features meet: four
//! ranks, a rank that is killed, a parent that is killed.

use crate::lab::Lab;
use crate::media::{chats, speech};
use crate::policies::seeing;
use crate::resume::{Bits, bits, must_be_whole};
use crate::running::{Ended, spawn};

/// Four shards, a checkpoint at each step, and so many epochs or steps.
const EACH: [&str; 4] = [
    "distributed.shards=4",
    "checkpoint.every=1 step",
    "validation.every=1 step",
    "logging.every=1 step",
];

/// What `points` do to a run, whose checkpoints are on the disk before the next step.
fn disturbed(lab: &Lab, points: &str, args: &[&str]) -> Ended {
    let mut command = lab.ddprun(&[&["small.toml"], args, &EACH[..]].concat());
    command.env("DDPRUN_FP", format!("checkpoint.queued=wait@*,*,*; {points}"));
    spawn(command).wait()
}

/// A run on one rank, and the same disturbed in several ways.
fn ends_alike_however_it_is_disturbed(make: fn() -> Lab, more: &[&str]) {
    let whole = make();
    whole.run_to(0, &[&["small.toml", "distributed.devices=1"], more, &EACH[..]].concat());
    let expected = bits(&whole);
    let check = |lab: &Lab, expected: &Bits| {
        bits(lab).must_be(expected);
        must_be_whole(lab);
        lab.is_clean();
    };
    let four = make();
    four.run_to(0, &[&["small.toml", "distributed.devices=4"], more, &EACH[..]].concat());
    check(&four, &expected);

    let restarted = make();
    let again = [&["--max-restarts", "1", "distributed.devices=2"], more].concat();
    let ended = disturbed(&restarted, "backward=kill@1,3", &again);
    ended.has_code(0);
    ended.says(&["rank 1 was killed by SIGKILL"]);
    check(&restarted, &expected);

    let resumed = make();
    let two = [&["distributed.devices=2"], more].concat();
    disturbed(&resumed, "backward=kill(parent)@0,3", &two).has_code(-9);
    resumed.run_to(0, &["resume", "distributed.devices=4"]).says(&["resumed after step 2"]);
    check(&resumed, &expected);
}

#[test]
fn conversations_have_the_same_bits_on_four_ranks_and_after_kills() {
    ends_alike_however_it_is_disturbed(chats, &[]);
}

#[test]
fn manifests_of_speech_have_the_same_bits_on_four_ranks_and_after_kills() {
    ends_alike_however_it_is_disturbed(speech, &["train.batch_size=1", "train.epochs=4"]);
}

#[test]
fn a_policy_that_sees_pictures_has_the_same_bits_on_four_ranks_and_after_kills() {
    let make = || Lab::with(&seeing());
    ends_alike_however_it_is_disturbed(make, &["train.batch_size=2", "train.steps=4"]);
}
