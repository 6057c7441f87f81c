//! Runs on other numbers of ranks, and runs that are killed, stopped or cut into parts and go on:
//! each ends with the bits of the undisturbed run.
//!
//! A row is an experiment, changes of all its runs, changes of the undisturbed run alone, and what
//! is done to the others. The same where other programs start the ranks, and on several machines:
//! `launchers`, `mpi`, `slurm`, `clusters`, `meetings`.

use std::collections::BTreeSet;

use ddprun::optim::Optimizers;
use rustix::process::{Signal, kill_process, kill_process_group};

use crate::deep_images::scans;
use crate::drawn;
use crate::endings::impatient;
use crate::harness::bits::{bits, must_be_whole, undisturbed};
use crate::harness::experiments::{SLOW, saving};
use crate::harness::lab::{Lab, SAVED, children};
use crate::harness::running::{Ended, Running, pid_of, spawn};
use crate::hf_dataset::pets;
use crate::media::{chats, graph, speech};
use crate::policies::seeing;
use crate::python_data::{has_python, points};
use crate::recipes::{batch_norms, forecasts, images, labels, mixed, numbers, speed_run};
use crate::webdataset::tars;
use crate::{averaged, tables, watched};

/// Phases that every rank goes through in a step or before the first one.
pub(crate) const OF_EVERY_RANK: [&str; 12] = [
    "join=kill@{},*",
    "joining=kill@{},0",
    "sample=kill@{},*,0,30",
    "loading_data=kill@{},6",
    "forward=kill@{},6",
    "backward=kill@{},6",
    "reducing=kill@{},6",
    "collective=kill@{},6",
    "optimizer=kill@{},6",
    "evaluating=kill@{},6",
    "finishing=kill@{},12",
    "exit=kill@{},12",
];

/// Phases of rank 0 alone: it writes checkpoints and records.
pub(crate) const OF_RANK_0: [&str; 14] = [
    "saving=kill@0,4",
    "checkpoint.write=kill@0,*,0,1",
    "checkpoint.write=kill@0,*,0,5",
    "checkpoint.manifest=kill@0,*,0,2",
    "checkpoint.sync=kill@0,*,0,2",
    "checkpoint.rename=kill@0,*,0,2",
    "checkpoint.renamed=kill@0,*,0,1",
    "checkpoint.renamed=kill@0,*,0,2",
    "checkpoint.link=kill@0,*,0,1",
    "checkpoint.link=kill@0,*,0,5",
    "checkpoint.rotate=kill@0,*,0,2",
    "remove=kill@0,*,0,1",
    "epoch=kill@0,6",
    "exit=kill@0,12",
];

/// Times that a run is tried again which was over before its signal came, as on a busy machine.
const TRIES: usize = 5;
/// Steps of an epoch of [`SLOW`].
const EPOCH: u64 = 12;

struct Row<'a> {
    experiment: &'a dyn Fn() -> Lab,
    /// Changes of all runs.
    changes: &'a [&'a [&'a str]],
    /// Changes of the undisturbed run.
    undisturbed: &'a [&'a str],
    /// The starts of each of the other runs.
    disturbed: &'a [&'a [Start<'a>]],
}

/// A start of a run, and how it ends.
#[derive(Clone, Copy, Debug)]
struct Start<'a> {
    is_resume: bool,
    changes: &'a [&'a str],
    fail_points: &'a str,
    /// Whether each checkpoint is on the disk before the next step, however slow that is.
    is_saved: bool,
    sent: Option<Sent>,
    code: i32,
    says: &'a [&'a str],
    /// The run was evaluated at other steps than the undisturbed one: only weights are compared.
    has_only_weights: bool,
}

/// A signal from outside.
#[derive(Clone, Copy, Debug)]
struct Sent {
    signal: Signal,
    to: Target,
    /// Steps of this start until then; a checkpoint is on the disk, too.
    after: u64,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Parent,
    Rank1,
    All,
}

/// A run of the experiment.
const fn run<'a>(changes: &'a [&'a str]) -> Start<'a> {
    Start {
        is_resume: false,
        changes,
        fail_points: "",
        is_saved: false,
        sent: None,
        code: 0,
        says: &[],
        has_only_weights: false,
    }
}

/// `ddprun resume`, with changes of its own alone.
const fn resume<'a>(changes: &'a [&'a str]) -> Start<'a> {
    Start { is_resume: true, ..run(changes) }
}

impl<'a> Start<'a> {
    const fn fails_at(self, fail_points: &'a str) -> Self {
        Self { fail_points, ..self }
    }

    /// As [`Start::fails_at`], with each checkpoint on the disk before the next step.
    const fn fails_saved_at(self, fail_points: &'a str) -> Self {
        Self { fail_points, is_saved: true, ..self }
    }

    const fn gets(self, signal: Signal, to: Target, after: u64) -> Self {
        Self { sent: Some(Sent { signal, to, after }), ..self }
    }

    const fn ends_with(self, code: i32) -> Self {
        Self { code, ..self }
    }

    const fn says(self, says: &'a [&'a str]) -> Self {
        Self { says, ..self }
    }

    const fn has_only_weights(self) -> Self {
        Self { has_only_weights: true, ..self }
    }

    /// Its end; `None` if it was over before its signal came.
    fn play(&self, lab: &Lab, changes: &[&str]) -> Option<Ended> {
        let begin =
            if self.is_resume { vec!["resume"] } else { [&["small.toml"], changes].concat() };
        let mut command = lab.ddprun(&[&begin, self.changes].concat());
        let saved = if self.is_saved { SAVED } else { "" };
        let points = [saved, self.fail_points].into_iter().filter(|points| !points.is_empty());
        command.env("DDPRUN_FP", points.collect::<Vec<_>>().join("; ")).env("RUST_BACKTRACE", "0");
        let done = lab.last_step();
        let mut running = spawn(command);
        let Some(sent) = self.sent else { return Some(running.wait()) };
        lab.wait_for_step_and_save(&mut running, done + sent.after);
        sent.to.send(sent.signal, &running);
        let ended = running.wait();
        // What saves shall do so in the middle of an epoch.
        let is_late = sent.signal != Signal::KILL && lab.last_step().is_multiple_of(EPOCH);
        (ended.code != 0 && !is_late).then_some(ended)
    }
}

impl Target {
    fn send(self, signal: Signal, running: &Running) {
        let pid = match self {
            Self::Parent => return running.signal(signal),
            Self::All => return kill_process_group(pid_of(running.pid()), signal).unwrap(),
            Self::Rank1 => running.ranks().get(1).copied(),
        };
        // It may be gone already.
        let _ = pid.map(|pid| kill_process(pid_of(pid), signal));
    }
}

impl Row<'_> {
    #[expect(clippy::print_stdout, reason = "a test that fails shows which starts these were")]
    fn holds(&self) {
        let is_python = (self.experiment)().path("dataset.py").exists();
        if is_python && !has_python() {
            return;
        }
        let changes = self.changes.concat();
        let expected = undisturbed(&(self.experiment)(), &[&changes, self.undisturbed].concat());
        for starts in self.disturbed {
            println!("{starts:?}");
            let lab = self.disturbed(starts, &changes);
            if starts.iter().any(|start| start.has_only_weights) {
                bits(&lab).must_have_the_weights_of(&expected);
            } else {
                bits(&lab).must_be(&expected);
            }
            must_be_whole(&lab);
            lab.is_clean();
        }
    }

    /// Plays all starts of a run.
    fn disturbed(&self, starts: &[Start], changes: &[&str]) -> Lab {
        'again: for _ in 0..TRIES {
            let lab = (self.experiment)();
            for start in starts {
                let before = saved(&lab);
                let Some(ended) = start.play(&lab, changes) else { continue 'again };
                ended.has_code(start.code);
                ended.says(start.says);
                if ended.code < 0 {
                    lab.wait_for_all();
                }
                if start.is_resume && ended.stderr.contains("already ") {
                    assert_eq!(saved(&lab), before, "nothing was left to do");
                }
            }
            return lab;
        }
        panic!("{TRIES} runs were over before their signal came");
    }
}

/// Everything in the folders of checkpoints.
fn saved(lab: &Lab) -> BTreeSet<std::path::PathBuf> {
    children(&lab.path("checkpoints/small")).iter().flat_map(|run| children(run)).collect()
}

/// Makes a test of each row.
macro_rules! same_bits {
    ($($name:ident => $experiment:expr, $changes:expr, $undisturbed:expr, $disturbed:expr;)*) => {
        $(#[test]
        fn $name() {
            Row {
                experiment: &$experiment,
                changes: &$changes,
                undisturbed: &$undisturbed,
                disturbed: &$disturbed,
            }
            .holds();
        })*
    };
}

fn slow() -> Lab {
    Lab::with(SLOW)
}

/// A small run with a checkpoint at every second step, so that some are rotated away.
fn small() -> Lab {
    Lab::with(&saving(2))
}

/// As [`small`], of 60 steps.
fn long() -> Lab {
    Lab::with(&saving(10))
}

const ONE: &str = "distributed.devices=1";
const TWO: &str = "distributed.devices=2";
const FOUR: &str = "distributed.devices=4";

/// Four shards, and a checkpoint at each step.
const EACH: [&str; 4] = [
    "distributed.shards=4",
    "checkpoint.every=1 step",
    "validation.every=1 step",
    "logging.every=1 step",
];
/// Half precision and smaller passes.
const HALF: [&str; 2] = ["train.precision=bf16", "train.batch_size=1"];

/// Four ranks; a rank that dies and is replaced; a parent that dies, and then more ranks.
const CROSSED: [&[Start]; 3] = [
    &[run(&[FOUR])],
    &[run(&["--max-restarts=1", TWO])
        .fails_saved_at("forward=kill@1,3")
        .says(&["rank 1 was killed by SIGKILL"])],
    &[
        run(&[TWO]).fails_saved_at("forward=kill(parent)@0,3").ends_with(-9),
        resume(&[FOUR]).says(&["resumed after step 2"]),
    ],
];

const GOES_ON: [&str; 2] = ["resumed after step ", "completed after step 60"];
const AFTER_14: [&str; 2] = ["resumed after step 14", "completed after step 60"];

/// A run in parts that optimizer state, or gradients too, was divided into; a rank dies after the
/// checkpoint of step 14.
const fn divided<'a>(changes: &'a [&'a str]) -> Start<'a> {
    run(changes)
        .fails_saved_at("backward=kill@1,20")
        .ends_with(5)
        .says(&["optimizer state in 2 parts: rank 0 keeps "])
}

/// A run whose second rank is lost, and is back at the next checkpoint.
const fn elastic<'a>(changes: &'a [&'a str]) -> Start<'a> {
    run(changes).fails_saved_at("backward=kill@1,5").says(&[
        "1 rank instead of 2, from the newest checkpoint: rank 1 was killed",
        "2 ranks instead of 1, from the newest checkpoint: a checkpoint is on disk",
    ])
}

/// A run that is finished, and then made longer.
const SHORT: [&str; 2] = ["train.steps=5", "~train.epochs"];
const IN_FULL: [&str; 2] = ["train.epochs=2", "~train.steps"];

/// Averages of all states; statistics over all ranks; the average of the last weights.
const AVERAGES: [&str; 2] = ["ema.decay=0.9", "ema.use_buffers=true"];
const JOINT: &str = "distributed.sync_batchnorm=true";
const SWA: [&str; 4] =
    ["swa.start=1 epoch", "swa.every=1 step", "swa.lr=0.01", "swa.anneal_epochs=1"];
const UNUSED: &str = "distributed.find_unused_parameters=true";
const ZERO_1: &str = "distributed.zero_stage=1";
const ZERO_2: &str = "distributed.zero_stage=2";

/// So many steps of one rate.
const CONSTANT: [&str; 3] = ["~train.epochs", "scheduler.warmup=never", "scheduler.name=constant"];
/// Stopped in the first epoch, and gone on with another number of ranks.
const IN_TWO_PARTS: [&[Start]; 1] =
    [&[run(&["train.steps=10"]), resume(&["train.steps=24", ONE]).has_only_weights()]];

const SHORT_SCANS: [&str; 4] =
    ["distributed.shards=2", "train.epochs=3", "train.batch_size=2", "train.global_batch_size=4"];

const MIXUP: [&str; 4] = [
    "distributed.shards=2",
    "data.drop_last=false",
    "data.mixup.mixup_alpha=0.8",
    "data.mixup.cutmix_alpha=1",
];

// Worlds and threads.
same_bits! {
    every_world_size_and_number_of_threads_gives_the_same_bits => slow, [], [], [
        &[run(&[ONE, "data.num_workers=0", "distributed.threads_per_rank=2"])],
        &[run(&[ONE, "data.num_workers=3", "distributed.threads_per_rank=1"])],
        &[run(&[TWO, "data.num_workers=0", "distributed.threads_per_rank=1"])],
        &[run(&[FOUR, "data.num_workers=1", "distributed.threads_per_rank=1"])],
        &[run(&[FOUR, "data.num_workers=3", "distributed.threads_per_rank=2"])],
    ];
    a_last_step_with_fewer_samples_than_ranks_trains_on_any_number_of_them
        => crate::endings::few, [], [ONE], [
            &[run(&[TWO]).says(&["completed after step 4"])],
            &[run(&[FOUR]).says(&["completed after step 4"])],
        ];
    scans_are_learnt_alike_on_one_rank_and_on_two
        => scans, [&SHORT_SCANS], [ONE], [&[run(&[TWO])]];
    speech_of_manifests_is_learnt_alike_on_one_rank_and_on_two
        => speech, [], [ONE, "data.num_workers=0"], [&[run(&[TWO, "data.num_workers=2"])]];
    a_graph_learns_from_recordings_alike_on_one_rank_and_on_two
        => graph, [], [ONE], [&[run(&[TWO])]];
    shards_of_images_are_learnt_alike_on_one_rank_and_on_four_and_after_kills
        => pets, [&EACH, &["train.batch_size=2"]], [ONE], CROSSED;
    tar_shards_are_learnt_alike_on_one_rank_and_on_four_and_after_kills
        => tars, [&EACH, &["train.batch_size=2"]], [ONE], CROSSED;
    python_code_is_learnt_from_alike_on_one_rank_and_on_four_and_after_kills
        => points, [&EACH, &["train.batch_size=2"]], [ONE, "data.num_workers=0"], CROSSED;
    chats_are_learnt_alike_on_one_rank_and_on_two => chats, [], [ONE], [&[run(&[TWO])]];
}

// Signals from outside.
same_bits! {
    a_run_stopped_by_sigterm_goes_on_as_if_nothing_had_happened => slow, [], [], [
        &[
            run(&[]).gets(Signal::TERM, Target::Parent, 17).ends_with(75),
            resume(&[]).says(&GOES_ON),
        ],
    ];
    a_run_stopped_by_ctrl_c_goes_on_as_if_nothing_had_happened => slow, [], [], [
        &[run(&[]).gets(Signal::INT, Target::All, 17).ends_with(130), resume(&[]).says(&GOES_ON)],
    ];
    a_run_whose_processes_were_all_killed_goes_on_as_if_nothing_had_happened => slow, [], [], [
        &[run(&[]).gets(Signal::KILL, Target::All, 17).ends_with(-9), resume(&[]).says(&GOES_ON)],
    ];
    a_run_that_lost_a_rank_goes_on_with_the_other_alone => slow, [], [], [
        &[
            run(&[]).gets(Signal::KILL, Target::Rank1, 17).ends_with(5),
            resume(&[ONE]).says(&GOES_ON),
        ],
    ];
    a_run_that_is_stopped_twice_goes_on_with_more_ranks_and_threads => slow, [], [], [&[
        run(&[]).gets(Signal::TERM, Target::Parent, 17).ends_with(75),
        resume(&[FOUR, "data.num_workers=3"]).gets(Signal::KILL, Target::All, 5).ends_with(-9),
        resume(&[TWO]).says(&GOES_ON),
    ]];
}

// A rank, or the parent, that dies at a certain point.
same_bits! {
    a_group_that_is_started_again_ends_with_the_weights_of_an_undisturbed_one => slow, [], [], [
        &[run(&["--max-restarts=1"]).fails_saved_at("backward=kill@1,16").says(&[
            "restart 1 of 1, from the newest checkpoint: rank 1 was killed by SIGKILL",
            "resumed after step 14",
        ])],
    ];
    a_run_that_was_killed_before_its_first_checkpoint_starts_again => slow, [], [], [&[
        run(&["checkpoint.every=never", "checkpoint.keep_best=0"])
            .fails_at("forward=kill(parent)@0,4")
            .ends_with(-9),
        resume(&["checkpoint.every=60 steps", "checkpoint.keep_best=1"]),
    ]];
    a_run_killed_before_the_links_of_its_last_checkpoint_were_moved_has_them_after_a_resume
        => small, [], [], [&[
            run(&[]).fails_at("checkpoint.renamed=kill(parent)@0,12").ends_with(-9),
            resume(&[]),
        ]];
    a_parent_killed_before_its_ranks_speak_leaves_no_process_and_a_run_that_begins_anew_on_resume
        => small, [], [], [
            &[run(&[]).fails_at("spawn=kill@parent,*,*,1").ends_with(-9), resume(&[])],
            &[run(&[]).fails_at("spawn=kill@parent,*,*,2").ends_with(-9), resume(&[])],
            &[run(&[]).fails_at("join=kill(parent)@0,*").ends_with(-9), resume(&[])],
        ];
    a_rank_that_dies_twice_is_replaced_twice => small, [], [], [
        &[run(&["--max-restarts=3"])
            .fails_at("backward=kill@1,5; joining=kill@0,0,1; checkpoint.rename=kill@0,*,2,1")
            .says(&["restart 1 of 3", "restart 2 of 3", "restart 3 of 3"])],
    ];
    a_signal_during_an_evaluation_breaks_it_off_and_the_next_start_makes_it
        => Lab::new, [&["distributed.shards=2"]], [], [
            &[run(&[TWO]).fails_at(IN_EVALUATION).ends_with(75).says(&BROKEN_OFF), resume(&[])],
            &[run(&[ONE]).fails_at(IN_EVALUATION).ends_with(75).says(&BROKEN_OFF), resume(&[])],
        ];
    a_run_that_loses_a_rank_goes_on_with_fewer_and_has_it_again_after_a_checkpoint
        => long, [], [], [&[elastic(&["--nproc-per-node=1:2"])]];
    a_turned_bit_reaches_no_checkpoint_and_a_restart_undoes_it => watched::lab, [], [], [
        // Only before a checkpoint is compared.
        &[run(&["--max-restarts=1", "fault.compare_weights=never"])
            .fails_at("weights=flip@1,5")
            .says(&["restart 1 of 1", "after step 6 the weights of rank 1 differ"])],
    ];
    a_turned_bit_of_the_optimizer_reaches_no_checkpoint_either => watched::lab, [], [], [
        &[run(&["--max-restarts=1"])
            .fails_at("optimizer_state=flip@0,6")
            .says(&["restart 1 of 1", "after step 6 the optimizer state of rank 1 differ"])],
    ];
    a_turned_bit_of_the_averages_reaches_no_checkpoint_either
        => watched::lab, [&["ema.decay=0.9"]], [], [
            &[run(&["--max-restarts=1"])
                .fails_at("averages=flip@0,6")
                .says(&["restart 1 of 1", "after step 6 the averaged weights of rank 1 differ"])],
        ];
    a_rank_killed_while_the_statistics_of_an_average_are_taken_changes_nothing
        => averaged::lab, [], [], [
            &[run(&["--max-restarts=1"])
                .fails_at("update_bn=kill@0,*,0,1")
                .says(&["restart 1 of 1"])],
            &[run(&["--max-restarts=1"])
                .fails_at("update_bn=kill@1,*,0,9")
                .says(&["restart 1 of 1"])],
            &[run(&[ONE])],
        ];
    a_rank_killed_while_an_early_stopped_run_ends_changes_nothing => impatient, [], [], [
        &[run(&["--max-restarts=1"]).fails_at("saving=kill@0,18").says(&STOPPED_AFTER_RESTART)],
        &[run(&["--max-restarts=1"])
            .fails_at("checkpoint.renamed=kill@0,18")
            .says(&STOPPED_AFTER_RESTART)],
        &[run(&["--max-restarts=1"]).fails_at("finishing=kill@1,18").says(&STOPPED_AFTER_RESTART)],
    ];
}

const IN_EVALUATION: &str = "evaluating=term(parent)@0,6,0,1; validate=sleep(400)@*,6";
const BROKEN_OFF: [&str; 2] = [
    "the evaluation is broken off; it is made when the run continues",
    "(state saved) after step 6",
];
const STOPPED_AFTER_RESTART: [&str; 2] =
    ["restart 1 of 1", "stopped early (no improvement) after step 18"];
const STOPPED_ALREADY: [&str; 2] =
    ["already stopped early after step 18; raise", "stopped early (no improvement) after step 18"];

/// The rank dies at the point, and the group is started again.
fn is_replaced(start: Start, rank: usize) {
    let said = format!("newest checkpoint: rank {rank} was killed");
    let words = ["restart 1 of 1", &said];
    let start = start.says(&words);
    Row { experiment: &small, changes: &[], undisturbed: &[], disturbed: &[&[start]] }.holds();
}

#[test]
fn a_rank_killed_in_any_phase_is_replaced_and_no_bit_differs() {
    for point in OF_EVERY_RANK {
        for rank in 0..2 {
            let point = point.replace("{}", &rank.to_string());
            is_replaced(run(&["--max-restarts=1"]).fails_at(&point), rank);
        }
    }
}

#[test]
fn a_rank_0_killed_at_any_moment_of_a_checkpoint_is_replaced_and_no_bit_differs() {
    for point in OF_RANK_0 {
        is_replaced(run(&["--max-restarts=1"]).fails_saved_at(point), 0);
    }
}

// Runs that are over, and go on.
same_bits! {
    resuming_a_finished_run_changes_nothing_and_says_so => Lab::new, [], [], [&[
        run(&[]),
        resume(&[]).says(&["resumed after step 12", "already complete: all 12 steps are done"]),
    ]];
    a_run_that_stopped_early_ends_in_the_same_way_however_often_it_is_resumed
        => impatient, [], [], [
            &[run(&[ONE]), resume(&[]).says(&STOPPED_ALREADY), resume(&[]).says(&STOPPED_ALREADY)],
            &[run(&[TWO]), resume(&[]).says(&STOPPED_ALREADY), resume(&[]).says(&STOPPED_ALREADY)],
            &[run(&[FOUR]), resume(&[]).says(&STOPPED_ALREADY), resume(&[]).says(&STOPPED_ALREADY)],
        ];
    more_patience_has_an_early_stopped_run_go_on
        => impatient, [], ["early_stopping.patience=4"], [&[
            run(&[]),
            resume(&["early_stopping.patience=4"])
                .says(&["resumed after step 18", "stopped early (no improvement) after step 30"]),
        ]];
    bf16_resumes_to_the_bit
        => slow, [&CONSTANT, &["train.precision=bf16"]], ["train.steps=24"], IN_TWO_PARTS;
    fp16_resumes_to_the_bit
        => slow, [&CONSTANT, &["train.precision=fp16"]], ["train.steps=24"], IN_TWO_PARTS;
    mixed_images_have_the_same_bits_on_one_rank_and_after_a_resume => Lab::new, [&MIXUP], [], [
        &[run(&[ONE])],
        &[run(&SHORT), resume(&IN_FULL).has_only_weights()],
    ];
    repeated_images_are_the_same_at_any_number_of_ranks_and_after_a_resume
        => Lab::new, [&drawn::REPEATED], [], [
            &[run(&[ONE, "train.epochs=1"]), resume(&["train.epochs=2"])],
        ];
    draws_are_the_same_at_any_number_of_ranks_and_after_a_resume
        => drawn::balanced, [&["distributed.shards=2"]], [], [
            &[run(&[ONE, "train.epochs=1"]), resume(&["train.epochs=2"])],
        ];
    a_table_trains_to_the_same_bits_at_any_world_size_and_after_a_resume
        => tables::lab, [], [ONE], [
            &[run(&[TWO, "train.epochs=2"]), resume(&["train.epochs=4"])],
        ];
    a_policy_that_sees_pictures_is_the_same_on_one_rank_after_a_resume
        => seeing, [&EACH, &["train.batch_size=2"]], [], [
            &[run(&[ONE, "train.steps=2"]), resume(&["train.steps=3"])],
        ];
}

// Recipes in which many features meet.
same_bits! {
    conversations_have_the_same_bits_on_four_ranks_and_after_kills
        => chats, [&EACH], [ONE], CROSSED;
    conversations_of_many_lengths_have_the_same_bits_on_one_two_and_four_ranks
        => chats, [&EACH, &["train.batch_size=2", "train.global_batch_size=8"]], [ONE], [
            &[run(&[TWO])],
            &[run(&[FOUR])],
        ];
    packed_conversations_have_the_same_bits_on_four_ranks_and_after_kills
        => chats, [&EACH, &["data.packing=true", "data.seq_len=80"]], [ONE], CROSSED;
    manifests_of_speech_have_the_same_bits_on_four_ranks_and_after_kills
        => speech, [&EACH, &["train.batch_size=1", "train.epochs=4"]], [ONE], CROSSED;
    a_policy_that_sees_pictures_has_the_same_bits_on_four_ranks_and_after_kills
        => seeing, [&EACH, &["train.batch_size=2", "train.steps=4"]], [ONE], CROSSED;
    a_speed_run_has_the_same_bits_on_four_ranks_and_after_kills
        => speed_run, [&EACH], [ONE], CROSSED;
    a_speed_run_in_bf16_has_the_same_bits_on_four_ranks_and_after_kills
        => speed_run, [&EACH, &HALF], [ONE], CROSSED;
    a_recipe_of_images_has_the_same_bits_on_four_ranks_and_after_kills
        => images, [&EACH, &[JOINT]], [ONE], CROSSED;
    a_recipe_of_images_in_bf16_has_the_same_bits_on_four_ranks_and_after_kills
        => images, [&EACH, &[JOINT], &HALF], [ONE], CROSSED;
    a_recipe_of_mixed_images_has_the_same_bits_on_four_ranks_and_after_kills
        => mixed, [&EACH], [ONE], CROSSED;
    a_recipe_of_mixed_images_in_bf16_has_the_same_bits_on_four_ranks_and_after_kills
        => mixed, [&EACH, &HALF], [ONE], CROSSED;
    a_recipe_of_labels_has_the_same_bits_on_four_ranks_and_after_kills
        => labels, [&EACH], [ONE], CROSSED;
    a_recipe_of_labels_in_bf16_has_the_same_bits_on_four_ranks_and_after_kills
        => labels, [&EACH, &HALF], [ONE], CROSSED;
}

#[test]
fn every_optimizer_resumes_in_bf16_to_the_same_bits_on_one_rank_and_on_two() {
    const CUT: Start = run(&[]).fails_saved_at("forward=kill(parent)@0,3").ends_with(-9);
    const ON_ONE: [Start; 2] =
        [Start { changes: &[ONE], ..CUT }, resume(&[]).says(&["resumed after step 2"])];
    const ON_TWO: [Start; 2] =
        [Start { changes: &[TWO], ..CUT }, resume(&[]).says(&["resumed after step 2"])];
    for optimizer in Optimizers::default().names() {
        println!("{optimizer}");
        Row {
            experiment: &|| numbers(optimizer),
            changes: &[&EACH],
            undisturbed: &[ONE],
            disturbed: &[&ON_ONE, &ON_TWO],
        }
        .holds();
    }
}

// Optimizer state, and gradients, in parts: the bits are those of plain DDP. A world of one divides
// nothing.
same_bits! {
    a_sharded_run_that_is_killed_at_two_ranks_goes_on_at_one_and_four_to_the_bits_of_plain_ddp
        => slow, [], [], [
            &[divided(&[ZERO_1, COMPARED]), resume(&[ONE]).says(&AFTER_14)],
            &[divided(&[ZERO_1, COMPARED]), resume(&[FOUR]).says(&AFTER_14)],
            &[divided(&[ZERO_2, COMPARED]), resume(&[FOUR, ZERO_1]).says(&AFTER_14)],
            &[
                divided(&[ZERO_2, COMPARED]),
                resume(&[TWO, "distributed.zero_stage=0"]).says(&AFTER_14),
            ],
        ];
    a_sharded_run_that_loses_a_rank_goes_on_with_fewer_to_the_bits_of_plain_ddp
        => long, [], [], [&[elastic(&["--nproc-per-node=1:2", ZERO_2])]];
    a_sharded_run_with_averages_that_loses_a_rank_goes_on_with_fewer
        => long, [&["ema.decay=0.9"]], [], [&[elastic(&["--nproc-per-node=1:2", ZERO_2])]];
    sharded_averages_and_joint_statistics_have_the_bits_of_plain_ddp
        => batch_norms, [&EACH, &[ZERO_2, JOINT], &AVERAGES], [ONE], CROSSED;
    a_sharded_swa_with_joint_statistics_has_the_bits_of_plain_ddp
        => batch_norms, [&EACH, &[ZERO_1, JOINT], &SWA], [ONE], CROSSED;
    a_sharded_swa_has_the_bits_of_plain_ddp
        => batch_norms, [&EACH, &[ZERO_2], &SWA], [ONE], CROSSED;
    sharded_forecasts_with_an_unused_parameter_have_the_bits_of_plain_ddp
        => forecasts, [&EACH, &[ZERO_2, UNUSED, "ema.decay=0.9"]], [ONE], CROSSED;
    sharded_forecasts_with_slow_weights_have_the_bits_of_plain_ddp
        => forecasts,
        [&EACH, &[ZERO_1, UNUSED, "lookahead.k=2", "lookahead.alpha=0.5"]], [ONE], CROSSED;
}

const COMPARED: &str = "fault.compare_weights=5 steps";
