//! `ddprun explain`: what an exit code or a message means, and what to do about it.
//!
//! The entries here are also the page `docs/errors.md`, which `ddprun explain --markdown` prints. A
//! class of errors is found by the words of its message, so that each stands in one place with the
//! code that carries it; a test looks for those words in the sources.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::cli::args::ExplainArgs;
use crate::cli::output::{answers, verbatim};
use crate::config::closest;
use crate::terminal::wrapped;
use crate::user_error::{ErrorPage, ExitCode};

/// Columns of the text.
const WIDTH: usize = 80;

/// An exit code and the errors that end with it.
struct Entry {
    code: ExitCode,
    /// Name, which `explain` takes as well.
    name: &'static str,
    meaning: &'static str,
    errors: &'static [Class],
}

/// Errors with one cause and one remedy.
struct Class {
    /// Name, the same in all versions.
    name: &'static str,
    /// Words of the message that are always the same.
    says: &'static str,
    /// A message.
    example: &'static str,
    cause: &'static str,
    remedy: &'static str,
}

const CODES: [Entry; 12] = [
    Entry {
        code: ExitCode::Ok,
        name: "ok",
        meaning: "The command did what it was asked to do, or nothing was left to do.",
        errors: &[],
    },
    Entry {
        code: ExitCode::Refused,
        name: "refused",
        meaning: "The experiment or the command line is wrong. Nothing was started, so nothing has \
                  to be cleaned up.",
        errors: REFUSED,
    },
    Entry {
        code: ExitCode::Data,
        name: "data",
        meaning: "The data are not there, cannot be read, or are not what the experiment says.",
        errors: DATA,
    },
    Entry {
        code: ExitCode::Numeric,
        name: "numeric",
        meaning: "A loss or a gradient is NaN, infinite or far too large. The step was not applied, \
                  and checkpoints from before it are good.",
        errors: NUMERIC,
    },
    Entry {
        code: ExitCode::Peer,
        name: "peer",
        meaning: "A rank died or hung, the ranks could not connect, or a collective failed. \
                  `ddprun resume` continues from the newest checkpoint.",
        errors: PEER,
    },
    Entry {
        code: ExitCode::Storage,
        name: "storage",
        meaning: "A file cannot be written, read, locked or fetched. Checkpoints that were complete \
                  stay complete.",
        errors: STORAGE,
    },
    Entry {
        code: ExitCode::Checkpoint,
        name: "checkpoint",
        meaning: "A checkpoint or a file of weights is missing, damaged, or does not fit.",
        errors: CHECKPOINT,
    },
    Entry {
        code: ExitCode::Resource,
        name: "resource",
        meaning: "The machine or a GPU ran out of memory, threads or file descriptors.",
        errors: RESOURCE,
    },
    Entry {
        code: ExitCode::Expectation,
        name: "expectation",
        meaning: "Everything ran to its end, and a result is not what was asked for.",
        errors: EXPECTATION,
    },
    Entry {
        code: ExitCode::Bug,
        name: "bug",
        meaning: "ddprun, or a component of your own program, has a bug.",
        errors: BUG,
    },
    Entry {
        code: ExitCode::Preempted,
        name: "preempted",
        meaning: "SIGTERM, SIGUSR1 or SIGHUP stopped the run, as a scheduler does. The state was \
                  saved if a step was done: `ddprun resume` continues, with bitwise identical \
                  results.",
        errors: &[],
    },
    Entry {
        code: ExitCode::Interrupted,
        name: "interrupted",
        meaning: "Ctrl-C stopped the run. After one Ctrl-C the state was saved, and `ddprun resume` \
                  continues; after a second one it continues from the checkpoint before.",
        errors: &[],
    },
];

const REFUSED: &[Class] = &[
    Class {
        name: "unknown-key",
        says: "is not a key of",
        example: "`train.epoch`: is not a key of an experiment",
        cause: "A key of the file, of a `DDPRUN_` variable or of the command line is misspelt, or \
                stands in the wrong table.",
        remedy: "Take the key that the message suggests. `ddprun schema` prints all keys, `ddprun \
                 schema train` those of one table.",
    },
    Class {
        name: "wrong-value",
        says: "must be",
        example: "`train.epochs`: must be a whole number, not `\"two\"`",
        cause: "The value has the wrong type, or is out of range.",
        remedy: "Write a value of the kind that the message names; `ddprun schema` shows types, \
                 ranges and defaults.",
    },
    Class {
        name: "missing-key",
        says: "is not set, but",
        example: "`data.train_dir` is not set, but `data.name = \"image_folder\"` needs it",
        cause: "A component needs a key that has no default.",
        remedy: "Set it. `ddprun schema data image_folder` shows which keys a component needs.",
    },
    Class {
        name: "batch-does-not-divide",
        says: "is not a multiple of",
        example: "`train.global_batch_size`: 8 is not a multiple of 4 samples x 3 ranks = 12",
        cause: "The global batch is not a whole number of micro-batches on every rank.",
        remedy: "Take the nearest size that the message names, or change `train.batch_size` or the \
                 number of ranks.",
    },
    Class {
        name: "unknown-command",
        says: "is neither a file nor a command",
        example: "`trian` is neither a file nor a command",
        cause: "The first word is no command of ddprun, and there is no file of that name.",
        remedy: "`ddprun --help` lists the commands. An experiment is a TOML file.",
    },
    Class {
        name: "left-out",
        says: "this build of ddprun is without",
        example: "this build of ddprun is without `speech`",
        cause: "The program was built without a feature that the experiment or the command needs.",
        remedy: "Build it with `--features NAME`, as the message says; docs/install.md lists the \
                 features.",
    },
    Class {
        name: "no-gpu-build",
        says: "but this ddprun was built without `cuda`",
        example: "`distributed.devices`: lists GPUs, but this ddprun was built without `cuda`",
        cause: "The default build computes on CPUs.",
        remedy: "Build with `--features cuda` (docs/gpu.md), or give a number of ranks instead of a \
                 list of GPUs.",
    },
    Class {
        name: "no-run",
        says: "there is no run",
        example: "there is no run `quikstart` under `logs`",
        cause: "No run of that name or id lies below `logs` of this folder.",
        remedy: "`ddprun ls` lists the runs. Start the command in the folder that contains `logs`, \
                 or give the path of the run's folder.",
    },
    Class {
        name: "ambiguous-run",
        says: "is ambiguous",
        example: "`2026112` is ambiguous: 2 runs match:",
        cause: "Several runs begin with the id that you gave.",
        remedy: "Give more of the id, or the run's folder.",
    },
    Class {
        name: "in-use",
        says: "is in use by",
        example: "`logs/quickstart/20261123-020712-3b39b` is in use by process 4242 on gpu-07",
        cause: "Another process trains this run, or works on this sweep.",
        remedy: "Wait for it, or stop it: Ctrl-C there, or `ddprun cancel` for a job.",
    },
    Class {
        name: "no-cluster",
        says: "no cluster is called",
        example: "no cluster is called `lab`",
        cause: "No file that describes clusters has this name.",
        remedy: "Add `[cluster.NAME]` to `ddprun.toml` beside the experiment; `ddprun schema \
                 --clusters` prints the keys.",
    },
    Class {
        name: "locked-on-resume",
        says: "these keys cannot change on resume",
        example: "these keys cannot change on resume:",
        cause: "A resumed run gives the results of an uninterrupted one, so keys that affect what \
                was computed already are fixed.",
        remedy: "Start a new run from this one's weights: `ddprun x.toml \
                 model.pretrained=run:NAME/latest optimizer.lr=0.01`.",
    },
    Class {
        name: "another-sweep",
        says: "holds another sweep",
        example: "`logs/tune` holds another sweep:",
        cause: "The sweep's file or its base has changed since its first trial.",
        remedy: "Add `--extend` to keep the trials and go on with the new search, or choose another \
                 `sweep.name`.",
    },
    Class {
        name: "empty-search",
        says: "no values satisfy the constraints",
        example: "no values satisfy the constraints",
        cause: "`sweep.constraints` exclude every combination of the parameters.",
        remedy: "Loosen a constraint, or widen the range of a parameter in it.",
    },
    Class {
        name: "exists-already",
        says: "exists already",
        example: "`preds.csv` exists already",
        cause: "ddprun does not replace files that you may want to keep.",
        remedy: "Choose another name, or add `--overwrite`.",
    },
    Class {
        name: "pickle",
        says: "is a pickle, as `torch.save` writes it",
        example: "`resnet50.pth` is a pickle, as `torch.save` writes it, not a safetensors file",
        cause: "Pickles can run code when they are read, so ddprun reads safetensors alone.",
        remedy: "Convert the file once, with the line of Python that the message shows.",
    },
    Class {
        name: "not-on-the-hub",
        says: "or it is private",
        example: "there is no `me/small` on https://huggingface.co, or it is private",
        cause: "The repository is misspelt, or it needs a token.",
        remedy: "Check the name. For a private or gated repository set `HF_TOKEN`, or run `hf auth \
                 login`.",
    },
    Class {
        name: "gated",
        says: "is gated: its owner gives access to those who accept its conditions",
        example: "`me/small` is gated: its owner gives access to those who accept its conditions",
        cause: "The owner of the repository asks for consent first.",
        remedy: "Accept the conditions on the page of the repository, then set `HF_TOKEN` or run `hf \
                 auth login`.",
    },
    Class {
        name: "offline",
        says: "and `HF_HUB_OFFLINE` forbids fetching it",
        example: "`hf:me/small` is not in the cache `/home/ann/.cache/huggingface/hub`, and \
                  `HF_HUB_OFFLINE` forbids fetching it",
        cause: "The file was never fetched to this machine, and the network is switched off.",
        remedy: "Unset `HF_HUB_OFFLINE`, or run `ddprun plan` where there is a network and copy the \
                 cache.",
    },
    Class {
        name: "unused-parameters",
        says: "parameters received no gradient",
        example: "parameters received no gradient at step 1 on rank 0: head.weight",
        cause: "The loss does not depend on these parameters, usually because a model of your own \
                does not use them.",
        remedy: "Use or freeze them. Where a forward pass may skip parameters on purpose, set \
                 `distributed.find_unused_parameters = true`.",
    },
];

const DATA: &[Class] = &[
    Class {
        name: "missing-data",
        says: "does not exist",
        example: "`data.train_dir`: the training folder `data/train` does not exist",
        cause: "The path is wrong, is relative to another folder, or the data were never fetched.",
        remedy: "Correct the path; it is relative to the folder in which you start ddprun. For a \
                 well-known set add `download = true` to `[data]`.",
    },
    Class {
        name: "no-classes",
        says: "contains no class folders",
        example: "`data/photos` contains no class folders",
        cause: "`image_folder` expects one folder of images for each class.",
        remedy: "Sort the images into folders, or list them in a table (`image_table`).",
    },
    Class {
        name: "no-column",
        says: "has no column",
        example: "`houses.csv` has no column `prize`; its columns are `rooms`, `city`, `price`",
        cause: "A key names a column that the table does not have.",
        remedy: "Correct the name in the experiment, or the header of the table.",
    },
    Class {
        name: "no-key",
        says: "has no key",
        example: "line 4 of `houses.jsonl` has no key `rooms`; its keys are `area`, `price`",
        cause: "A line of JSON lacks a key that the experiment names.",
        remedy: "Correct the name in the experiment, or the file.",
    },
    Class {
        name: "columns-differ",
        says: "have different columns",
        example: "`train.csv` and `val.csv` have different columns: `rooms`, `price` and `price`",
        cause: "The tables to train and to validate on are not alike.",
        remedy: "Make one of the other, or leave the second out and set `data.val_fraction`.",
    },
    Class {
        name: "class-folders-differ",
        says: "class folders differ",
        example: "class folders differ: only in `data/train`: `cat`",
        cause: "The folders to train and to validate on have other classes.",
        remedy: "Rename, remove or add folders until both have the same names.",
    },
    Class {
        name: "bad-cell",
        says: ", line {line}: {what}",
        example: "`houses.csv`, line 7: `abc` in column `rooms` is not a number",
        cause: "A cell or a line cannot be used as the experiment asks.",
        remedy: "Correct the line. Words go into `data.features.categorical`; cells that mean \
                 \"missing\" into `data.missing_values`.",
    },
    Class {
        name: "unreadable-sample",
        says: "cannot decode",
        example: "cannot decode `data/photos/cat/17.jpg`: ...",
        cause: "The file is damaged, or is no image.",
        remedy: "Remove or replace it. With `data.on_bad_sample = \"skip\"` a run goes on without \
                 such samples, up to `data.max_bad_fraction`.",
    },
    Class {
        name: "git-lfs-pointer",
        says: "it is a git-lfs pointer, not the file itself",
        example: "cannot decode `data/cat/1.jpg`: it is a git-lfs pointer, not the file itself",
        cause: "The repository was cloned without its large files.",
        remedy: "Run `git lfs pull` in it.",
    },
    Class {
        name: "data-changed",
        says: "the data changed since the run was planned",
        example: "the data changed since the run was planned:",
        cause: "Files, classes or counts differ from those that the run began with.",
        remedy: "Put the data back, or accept them with `ddprun resume --accept-changed-data`, if \
                 they still fit the model.",
    },
    Class {
        name: "nothing-to-learn",
        says: "so there is no loss to measure",
        example: "all labels of the validation samples are ignored (-100), so there is no loss to \
                  measure",
        cause: "`seq_len` cuts the answers off, or the chat template marks nothing as an answer.",
        remedy: "Raise `data.seq_len`; `ddprun plan` warns of conversations that it cuts.",
    },
];

const NUMERIC: &[Class] = &[
    Class {
        name: "not-finite",
        says: "is not finite at step",
        example: "the loss is not finite at step 12",
        cause: "The learning rate is too high, a sample holds NaN, or fp16 overflowed.",
        remedy: "Lower `optimizer.lr`, set `train.clip_grad_norm = 1.0` or a longer \
                 `scheduler.warmup`, and try `train.precision=fp32`. docs/runs.md has the whole \
                 list.",
    },
    Class {
        name: "evaluation-not-finite",
        says: "loss is not finite after step",
        example: "the validation loss is not finite after step 300",
        cause: "The weights grew too large, or a sample to validate on holds NaN.",
        remedy: "Start again with a lower `optimizer.lr`; if it was so from the first evaluation, \
                 look at those samples.",
    },
    Class {
        name: "diverged",
        says: "greater than `fault.divergence_threshold`",
        example: "the loss of step 40 is 1.2e3, greater than `fault.divergence_threshold` = 100",
        cause: "The loss passed the limit that the experiment sets.",
        remedy: "Lower `optimizer.lr`, or raise the limit if such losses are normal at the start.",
    },
    Class {
        name: "loss-scale",
        says: "the loss scale fell below",
        example: "the loss scale fell below 1 at step 90: gradients overflow at any scale",
        cause: "Gradients overflow in fp16 again and again.",
        remedy: "Train in bf16 or fp32, or lower `optimizer.lr`.",
    },
];

const PEER: &[Class] = &[
    Class {
        name: "rank-died",
        says: "was killed by",
        example: "rank 1 was killed by SIGKILL",
        cause: "Something ended the process of a rank: the kernel when memory ran out, an \
                administrator, or a crash in a driver.",
        remedy: "Look at the end of `rank-N.log` and at `dmesg`, then `ddprun resume`. With \
                 `fault.max_restarts = 3` the ranks restart by themselves.",
    },
    Class {
        name: "rank-hangs",
        says: "has not {what} for",
        example: "rank 1 (pid 4242) has not made progress for 300.0 s",
        cause: "A rank is frozen, starved of cores, or waits for a disk, a network or a GPU.",
        remedy: "The message names the phase in which it hangs. If steps are this slow, raise \
                 `distributed.timeout`.",
    },
    Class {
        name: "timed-out",
        says: "timed out waiting for",
        example: "timed out waiting for rank 3 (in call 812) after 300.0 s in all_reduce",
        cause: "A rank did not come to a collective before `distributed.timeout`.",
        remedy: "Look at the log of the rank that is named; it says what that rank was doing.",
    },
    Class {
        name: "machine-missing",
        says: "node {node} waited {:.0} s, but {missing} did not come",
        example: "node 0 waited 600 s, but node 1 did not come",
        cause: "A machine was not started, has another address for node 0, or cannot reach it.",
        remedy: "Start all machines with the same `--rdzv-endpoint`, and open the port in firewalls.",
    },
    Class {
        name: "wrong-token",
        says: "does not prove that it has the token of this run",
        example: "the process listening at 10.0.0.1:29500 does not prove that it has the token of \
                  this run",
        cause: "The token files of the machines differ, or another program uses the port.",
        remedy: "Copy node 0's token file to this machine, or choose another port.",
    },
    Class {
        name: "connection-lost",
        says: "the connection to rank",
        example: "the connection to rank 4 on gpu-07 ended in all_reduce: connection reset by peer",
        cause: "The process or machine of that rank is gone, or the network between them.",
        remedy: "Look at that rank's log, then start `ddprun resume RUN` on all machines.",
    },
    Class {
        name: "results-differ",
        says: "differ from those of the other ranks",
        example: "after step 100 the parameters of rank 1 differ from those of the other ranks",
        cause: "A machine computes wrongly, or a component of your own draws numbers that depend on \
                the rank.",
        remedy: "Find the machine with `ddprun doctor`, and leave it out.",
    },
    Class {
        name: "nccl",
        says: "NCCL: {what}",
        example: "NCCL: unhandled system error",
        cause: "The GPUs could not exchange gradients.",
        remedy: "Set `NCCL_DEBUG=INFO` and read the rank logs; `distributed.backend = \"shm\"` works \
                 without NCCL on one machine.",
    },
];

const STORAGE: &[Class] = &[
    Class {
        name: "cannot-write",
        says: "cannot {operation} `{}`",
        example: "cannot write `checkpoints/quickstart/.../model.safetensors`: No space left on \
                  device",
        cause: "The disk is full, the folder may not be written, or a quota is used up.",
        remedy: "Make room, or move the folder and leave a link (`ln -s`) in its place; then \
                 `ddprun resume`.",
    },
    Class {
        name: "no-locks",
        says: "cannot {operation} `{}`",
        example: "cannot lock `logs/quickstart/20261123-020712-3b39b`: No locks available",
        cause: "The file system has no locks, without which two processes could write one run.",
        remedy: "Mount it with locks, or choose another folder with `logging.dir`.",
    },
    Class {
        name: "hub-unreachable",
        says: "does not answer",
        example: "`hf:me/small` cannot be fetched: https://huggingface.co does not answer: ...",
        cause: "There is no network here, or a proxy is needed.",
        remedy: "Set `HTTPS_PROXY`, or `HF_ENDPOINT` for a mirror; or run `ddprun plan` where there \
                 is a network and copy the cache.",
    },
    Class {
        name: "wrong-bytes",
        says: "with other bytes than the hub announced",
        example: "`model.safetensors` arrived twice with other bytes than the hub announced: ...",
        cause: "A proxy or a mirror changes or cuts files.",
        remedy: "Fetch it past that proxy, or from another mirror.",
    },
];

const CHECKPOINT: &[Class] = &[
    Class {
        name: "damaged",
        says: "is damaged",
        example: "checkpoint `checkpoints/quickstart/.../step-00000300` is damaged: ...",
        cause: "Bytes on the disk have changed since the checkpoint was written.",
        remedy: "Use the intact checkpoint that the message names, or put a whole copy back. \
                 `ddprun checkpoint verify` checks all of them.",
    },
    Class {
        name: "no-checkpoint",
        says: "no usable checkpoint in",
        example: "no usable checkpoint in `checkpoints/quickstart/20261123-020712-3b39b`",
        cause: "The checkpoints were removed, or all of them are damaged.",
        remedy: "Put them back, with `ddprun resume --from` if the run has a mirror. Otherwise \
                 restart it with `ddprun resume --from-scratch`.",
    },
    Class {
        name: "misfit",
        says: "does not fit this experiment",
        example: "`checkpoints/quickstart/.../step-00000300` does not fit this experiment: ...",
        cause: "The checkpoint is of another model or optimizer.",
        remedy: "Resume without changes to the model, or start a new run with `model.pretrained`.",
    },
    Class {
        name: "weights-misfit",
        says: "cannot start from given weights",
        example: "cannot start from given weights: ...",
        cause: "`model.pretrained` or `model.lora.adapters` has other names or shapes than the model.",
        remedy: "Set `model.strict = \"except_head\"` where only the classes differ; else choose the \
                 model that the weights are of.",
    },
    Class {
        name: "newer-format",
        says: "was written by a newer ddprun",
        example: "`run.json` was written by a newer ddprun: it has format 2, ...",
        cause: "The run was made by a later version.",
        remedy: "Use that version, or a later one.",
    },
];

const RESOURCE: &[Class] = &[
    Class {
        name: "out-of-memory",
        says: "ran out of memory",
        example: "rank 0 ran out of memory",
        cause: "The model, its optimizer state and the activations of a micro-batch need more memory \
                than there is.",
        remedy: "Reduce `train.batch_size`; with a fixed `train.global_batch_size` results stay \
                 comparable. `fault.on_oom = \"shrink_batch\"` does it by itself, and `ddprun plan` \
                 shows what a rank needs.",
    },
    Class {
        name: "no-threads",
        says: "cannot start",
        example: "cannot start loader thread 3 of 8: Resource temporarily unavailable",
        cause: "The limit of processes or of file descriptors is reached.",
        remedy: "Lower `data.num_workers`, or raise the limits (`ulimit -u`, `ulimit -n`).",
    },
];

const EXPECTATION: &[Class] = &[
    Class {
        name: "expectation-missed",
        says: "a metric missed its `[expect]` value",
        example: "a metric missed its `[expect]` value (exit code 9)",
        cause: "The run is complete, but a metric is outside of the range in `[expect]`.",
        remedy: "`ddprun report` shows the metrics; the run and its checkpoints can be used.",
    },
    Class {
        name: "trials-failed",
        says: "more trials failed than `sweep.max_failures` allows",
        example: "more trials failed than `sweep.max_failures` allows",
        cause: "Trials of a sweep ended with errors.",
        remedy: "Look at `console.log` and `failure.json` of a failed trial, then repeat the command \
                 with `--retry-failed`.",
    },
    Class {
        name: "doctor-differs",
        says: "differ bitwise, first in",
        example: "1 rank and 2 ranks differ bitwise, first in ...",
        cause: "`ddprun doctor` got different results: an operation of the model adds, or draws \
                numbers, in an order that depends on the rank.",
        remedy: "In a model of your own, use `ddprun::ops` and `ddprun::rng`. If it is a built-in \
                 one, report it.",
    },
];

const BUG: &[Class] = &[Class {
    name: "panicked",
    says: "ddprun has a bug",
    example: "ddprun has a bug: ...",
    cause: "The program came into a state that it excludes.",
    remedy: "Report it with the message, the command and the log of the rank. In a program of your \
             own, look at the component that the message names first.",
}];

/// Explains an exit code or an error.
pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode, ErrorPage> {
    if args.markdown {
        let object = || json!({ "page": markdown() });
        return verbatim("explanations", object, markdown);
    }
    let words = args.words.join(" ");
    let found = find(&words)?;
    let objects = || {
        let of_found = |code: &(&Entry, Vec<&Class>)| ("explanation", object(code.0, &code.1));
        found.iter().map(of_found).collect()
    };
    answers(objects, || if words.is_empty() { list() } else { found.iter().map(text).collect() })
}

/// The entries that are meant, each with its errors.
fn find(words: &str) -> Result<Vec<(&'static Entry, Vec<&'static Class>)>, ErrorPage> {
    let is_meant = |code: &&Entry| words == code.name || words == code.code.to_string();
    if let Some(code) = CODES.iter().find(is_meant) {
        return Ok(vec![(code, code.errors.iter().collect())]);
    }
    let said = words.to_lowercase();
    let fits = |class: &&Class| {
        class.name == said || is_in(class, &said) || class.example.to_lowercase().contains(&said)
    };
    let of_code =
        |code: &'static Entry| (code, code.errors.iter().filter(fits).collect::<Vec<_>>());
    let found: Vec<_> =
        CODES.iter().map(of_code).filter(|(_, errors)| !errors.is_empty()).collect();
    if found.is_empty() {
        let names = CODES.iter().flat_map(|code| code.errors).map(|class| class.name);
        let near = closest(&said, names.chain(CODES.iter().map(|code| code.name)));
        let help = match (near, words.parse::<u8>()) {
            (Some(name), _) => format!("did you mean `ddprun explain {name}`?"),
            (None, Ok(number @ 129..)) => format!(
                "the process was ended by signal {}, not by ddprun; `ddprun explain` lists the codes",
                number - 128
            ),
            (None, _) => "`ddprun explain` lists all codes and errors".to_owned(),
        };
        return Err(ErrorPage::refused(format!("no error is known by `{words}`"), help));
    }
    Ok(found)
}

/// True if these words, in small letters, are a message of `class`: the parts of [`Class::says`]
/// between its braces occur in them, one behind the other.
fn is_in(class: &Class, said: &str) -> bool {
    let says = class.says.to_lowercase();
    let mut fixed = says.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
    let mut rest = said;
    fixed.all(|part| match rest.split_once(part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

/// `words` behind `label`, in lines that begin where the words do.
fn labelled(label: &str, words: &str) -> String {
    let margin = label.len();
    let lines = wrapped(words, WIDTH - margin, 0);
    format!("{label}{}\n", lines.replace('\n', &format!("\n{}", " ".repeat(margin))))
}

/// All codes with the names of their errors.
fn list() -> String {
    let mut text = String::new();
    for code in &CODES {
        let names: Vec<&str> = code.errors.iter().map(|class| class.name).collect();
        let label = format!("{:>3}  {:<11}  ", code.code.to_string(), code.name);
        let line = if names.is_empty() { code.meaning.to_owned() } else { names.join(", ") };
        text += &labelled(&label, &line);
    }
    text + "\nddprun explain CODE, NAME or WORDS OF A MESSAGE\n"
}

/// A code and its errors, for people.
fn text((code, errors): &(&'static Entry, Vec<&'static Class>)) -> String {
    let head = format!("exit code {}, {}: {}", code.code, code.name, code.meaning);
    let mut text = labelled("", &head);
    for class in errors {
        let _ = write!(text, "\n{}\n", class.name);
        for (label, words) in
            [("error:", class.example), ("why:", class.cause), ("do:", class.remedy)]
        {
            text += &labelled(&format!("  {label:<7}"), words);
        }
    }
    text + "\n"
}

/// A code and its errors, for programs.
fn object(code: &Entry, errors: &[&Class]) -> Value {
    let errors: Vec<Value> = errors
        .iter()
        .map(|class| {
            json!({
                "name": class.name, "example": class.example,
                "cause": class.cause, "remedy": class.remedy,
            })
        })
        .collect();
    json!({
        "code": u8::from(code.code), "name": code.name,
        "meaning": code.meaning, "errors": errors,
    })
}

/// `docs/errors.md`
fn markdown() -> String {
    let mut page = "# Errors\n\n\
        Look up an exit code, or search this page for words of a message. `ddprun explain` prints \
        the same in the terminal, by code, by name or by words:\n\n\
        ```sh\n\
        ddprun explain 8\n\
        ddprun explain out-of-memory\n\
        ddprun explain the loss is not finite at step 12\n\
        ```\n\n\
        The exit code is also `code` in [JSON](json.md#errors), and codes and names stay the same \
        from version to version. This page is made by `ddprun explain --markdown`.\n\n\
        | exit code | name |\n|---|---|\n"
        .to_owned();
    for code in &CODES {
        let _ = writeln!(page, "| {0} | [{1}](#{0}-{1}) |", code.code, code.name);
    }
    for code in &CODES {
        let _ = write!(page, "\n## {} {}\n\n{}\n", code.code, code.name, code.meaning);
        let links = code.errors.iter().map(|class| format!("[{0}](#{0})", class.name));
        let links = links.collect::<Vec<_>>().join(", ");
        if !links.is_empty() {
            let _ = write!(page, "\nErrors: {links}.\n");
        }
        for class in code.errors {
            let Class { name, example, cause, remedy, .. } = class;
            let _ = write!(page, "\n### {name}\n\n```text\n{example}\n```\n\n{cause} {remedy}\n");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn project(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
    }

    fn classes() -> impl Iterator<Item = &'static Class> {
        CODES.iter().flat_map(|code| code.errors)
    }

    /// All Rust sources but this one, with the line breaks within texts taken out.
    fn sources() -> String {
        let mut open = vec![project("src"), project("crates")];
        let mut text = String::new();
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with(file!()) {
                text += &fs::read_to_string(path).unwrap();
            }
        }
        let lines: Vec<&str> = text.split("\\\n").map(str::trim_start).collect();
        lines.concat()
    }

    #[test]
    fn every_code_that_the_program_exits_with_is_explained() {
        let explained: Vec<ExitCode> = CODES.iter().map(|code| code.code).collect();
        let all = (0..=255).filter_map(ExitCode::of_process);
        let printed: Vec<ExitCode> = all.filter(|code| *code != ExitCode::Resized).collect();
        assert_eq!(explained, printed);
    }

    #[test]
    fn the_words_of_every_error_are_in_the_sources_and_its_names_are_its_own() {
        let sources = sources();
        for class in classes() {
            assert!(sources.contains(class.says), "no message contains `{}`", class.says);
        }
        let names: BTreeSet<&str> =
            classes().map(|class| class.name).chain(CODES.iter().map(|code| code.name)).collect();
        assert_eq!(names.len(), classes().count() + CODES.len());
    }

    #[test]
    fn every_message_leads_to_its_own_error() {
        for class in classes() {
            let found = find(class.example).unwrap();
            assert!(is_in(class, &class.example.to_lowercase()), "{}", class.example);
            let names: Vec<&str> =
                found.iter().flat_map(|(_, errors)| errors).map(|class| class.name).collect();
            assert!(names.contains(&class.name), "{}: {names:?}", class.example);
        }
    }

    #[test]
    fn codes_names_and_slips_are_found() {
        let named = |words: &str| {
            find(words).map(|found| found.iter().map(|(code, _)| code.name).collect::<Vec<_>>())
        };
        assert_eq!(named("8").unwrap(), ["resource"]);
        assert_eq!(named("resource").unwrap(), ["resource"]);
        assert_eq!(named("out-of-memory").unwrap(), ["resource"]);
        let help = |words: &str| named(words).unwrap_err().page().into_owned();
        assert!(help("out-of-memry").contains("`ddprun explain out-of-memory`"));
        assert!(help("137").contains("signal 9"));
        assert!(help("77").contains("lists all codes"));
    }

    #[test]
    fn the_page_is_what_is_explained() {
        let page = fs::read_to_string(project("docs/errors.md")).unwrap();
        let remedy = "write it again: ddprun explain --markdown > docs/errors.md";
        assert!(page == markdown(), "docs/errors.md differs from this file; {remedy}");
    }
}
