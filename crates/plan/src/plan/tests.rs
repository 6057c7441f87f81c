//! Plans of whole experiments: numbers, pages and problems.

use std::path::Path;

use crate::config::{Loaded, Problems, Vocabulary, load_text, refuse_unsafe, resolved};
use crate::plan::{
    BackendPlan, BatchPlan, Bf16Instructions, Costs, DataFacts, Facts, Interval, Memory, Modality,
    ModelFacts, ModelPlan, Plan, Precision, SourcePlan, json, page,
};
use train_numbers::units::{Bytes, WorldSize};

mod gpus;
mod groups;
mod kinds;

pub(super) const ANIMALS: &str = r#"[model]
name = "resnet18"

[data]
name = "image_folder"
train_dir = "data/train"
val_dir = "data/val"

[[data.transforms.train]]
name = "random_resized_crop"
size = 224

[[data.transforms.train]]
name = "random_horizontal_flip"

[[data.transforms.val]]
name = "resize"
size = 256

[[data.transforms.val]]
name = "center_crop"
size = 224

[[data.transforms.val]]
name = "normalize"
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]

[train]
epochs = 50
batch_size = 32
precision = "bf16"

[optimizer]
lr = 0.1
momentum = 0.9
weight_decay = 1e-4

[lr_scaling]
rule = "linear"

[scheduler]
name = "cosine"
warmup = "5 epochs"

[distributed]
devices = 4
"#;

const PRICES: &str = r#"[model]
name = "mlp"

[data]
name = "csv"
train_file = "train.csv"
val_file = "val.csv"
target = "price"

[train]
steps = 1000
global_batch_size = 64

[loss]
name = "mse"

[optimizer]
name = "adamw"
"#;

/// Outputs that have nothing to be compared with are refused where they are asked for.
#[test]
fn outputs_are_those_of_the_target() {
    let facts = |target: &[usize], n_targets| {
        let data =
            DataFacts { classes: Vec::new(), n_targets, target: target.to_vec(), ..animals().data };
        Facts { data, ..animals() }
    };
    let told = |asked: &str, facts: &Facts| {
        told(ANIMALS, &["loss.name=mse", "checkpoint.monitor=val/mse", asked], facts).join("\n")
    };
    let said = told("model.num_classes=3", &facts(&[], 0));
    assert!(said.contains("`model.num_classes`: is 3, but a sample has 1 target"), "{said}");
    let said = told("model.num_classes=7", &facts(&[24, 2], 0));
    assert!(said.contains("is 7, but a sample has 2 targets"), "{said}");
    let said = told("model.num_classes=1", &facts(&[2], 2));
    assert!(said.contains("is 1, but a sample has 2 targets"), "{said}");
    let one = ["loss.name=mse", "checkpoint.monitor=val/mse", "model.num_classes=1"];
    assert_eq!(good(ANIMALS, &one, &facts(&[], 0)).model.outputs, 1);
}

pub(super) fn costs(plan: &Plan, activations: Option<Bytes>) -> Costs {
    let flops = activations.map(|_| 1_819_066_368);
    Costs { memory: Memory::of(plan, activations), flops, is_estimated: false }
}

pub(super) fn read(text: &str, overrides: &[&str]) -> Loaded {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let vocabulary = Vocabulary::open();
    load_text(Path::new("animals.toml"), text, &overrides, &vocabulary)
        .unwrap_or_else(|problems| panic!("{}", problems.page(false, 80)))
}

pub(super) fn animals() -> Facts {
    let source = SourcePlan {
        line: "data/train and data/val".to_owned(),
        ..SourcePlan::new("image_folder", Modality::Images)
    };
    let classes = ["ant", "bee", "cat", "dog"].map(str::to_owned).to_vec();
    let data = DataFacts {
        source,
        n_train: 1650,
        n_val: 400,
        classes,
        sample: None,
        ..DataFacts::default()
    };
    let bf16 = Some(Bf16Instructions::Amx);
    Facts { cores: 8, bf16, bf16_is_faster: true, ..Facts::of(data) }
}

fn digits() -> Facts {
    let source =
        SourcePlan { line: "data/mnist".to_owned(), ..SourcePlan::new("mnist", Modality::Images) };
    let classes = (0..10).map(|digit| digit.to_string()).collect();
    let data = DataFacts {
        source,
        n_train: 60_000,
        n_val: 10_000,
        classes,
        sample: Some(vec![1, 28, 28]),
        ..DataFacts::default()
    };
    Facts { cores: 8, ..Facts::of(data) }
}

fn prices() -> Facts {
    let source = SourcePlan {
        line: "train.csv and val.csv, target `price`".to_owned(),
        ..SourcePlan::new("csv", Modality::Table)
    };
    let data = DataFacts {
        source,
        n_train: 640,
        n_val: 64,
        classes: Vec::new(),
        sample: Some(vec![13]),
        ..DataFacts::default()
    };
    Facts { cores: 2, ..Facts::of(data) }
}

/// A model of two linear layers and a norm.
#[expect(clippy::unnecessary_wraps, reason = "the shape of the callback")]
fn describe(model: &ModelPlan) -> Result<ModelFacts, String> {
    let features: usize = model.input.iter().product();
    let tensor = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
    Ok(ModelFacts {
        parameters: vec![
            tensor("fc1.weight", &[100, features]),
            tensor("fc1.bias", &[100]),
            tensor("fc2.weight", &[model.outputs, 100]),
            tensor("fc2.bias", &[model.outputs]),
        ],
        buffers: vec![tensor("bn.running_mean", &[100]), tensor("bn.running_var", &[100])],
        has_blocks: true,
        ..ModelFacts::default()
    })
}

fn plan(text: &str, overrides: &[&str], facts: &Facts) -> Result<Plan, Problems> {
    Plan::new(&read(text, overrides), facts, &describe)
}

/// A plan to change.
pub(super) fn small() -> Plan {
    good(PRICES, &[], &prices())
}

#[track_caller]
pub(super) fn good(text: &str, overrides: &[&str], facts: &Facts) -> Plan {
    plan(text, overrides, facts).unwrap_or_else(|problems| panic!("{}", problems.page(false, 80)))
}

/// Every problem as "key: what (remedy)", in order.
#[track_caller]
fn told(text: &str, overrides: &[&str], facts: &Facts) -> Vec<String> {
    let problems = plan(text, overrides, facts).expect_err("problems");
    let told = |problem: &crate::config::Problem| match problem.remedy() {
        Some(remedy) => format!("{problem} ({remedy})"),
        None => problem.to_string(),
    };
    problems.iter().map(told).collect()
}

#[test]
fn images_end_with_one_shape() {
    let plan = good(ANIMALS, &[], &animals());
    assert_eq!(plan.model.input, [3, 224, 224]);
    let digits = digits();
    let mnist = "[model]\nname = 'mlp'\n[data]\nname = 'mnist'\ndir = \
                 'data/mnist'\n[train]\nepochs = 1\nbatch_size = 64\n";
    assert_eq!(good(mnist, &[], &digits).model.input, [1, 28, 28]);
    let shapes = mnist.replace("'mnist'\ndir = 'data/mnist'", "'shapes'\nimage_size = 48");
    let mut generated = animals();
    generated.data.sample = Some(vec![3, 48, 48]);
    assert_eq!(good(&shapes, &[], &generated).model.input, [3, 48, 48]);
}

#[test]
fn a_loss_below_zero_cannot_be_expected() {
    let told = told(PRICES, &["expect.\"val/loss\".at_most=-1"], &prices());
    assert!(told.len() == 1 && told[0].contains("is never less"), "{told:?}");
    assert!(plan(PRICES, &["expect.\"val/loss\".at_most=0.5"], &prices()).is_ok());
}

#[test]
fn the_page_tells_what_would_happen_and_why() {
    let loaded = read(ANIMALS, &["train.epochs=60"]);
    let plan = Plan::new(&loaded, &animals(), &describe).unwrap();
    insta::assert_snapshot!(
        "page",
        page(&plan, &loaded, &animals(), &costs(&plan, Some(Bytes(3 << 30))))
    );
}

#[test]
fn the_page_of_a_regression_on_one_rank() {
    let loaded =
        read(PRICES, &["early_stopping.patience=5", "train.time=2h", "model.hidden=[64,32]"]);
    let plan = Plan::new(&loaded, &prices(), &describe).unwrap();
    let page = page(&plan, &loaded, &prices(), &costs(&plan, None));
    insta::assert_snapshot!("page_regression", page.split_once("\n\ncommand line:").unwrap().0);
}

#[test]
fn the_page_for_programs_holds_plan_keys_and_sources() {
    let loaded = read(ANIMALS, &["train.epochs=60"]);
    let plan = Plan::new(&loaded, &animals(), &describe).unwrap();
    let json = json(&plan, &loaded, &animals(), &costs(&plan, None));
    assert_eq!(json["keys"]["train.epochs"]["value"], 60);
    assert_eq!(json["keys"]["train.epochs"]["source"]["command_line"], "train.epochs=60");
    assert_eq!(json["keys"]["train.precision"]["source"]["file"], "animals.toml");
    assert_eq!(json["keys"]["data.shuffle"]["source"], "defaults");
    assert_eq!(json["memory"]["weights"], 4 * plan.model.n_parameters);
    assert_eq!(serde_json::from_value::<Plan>(json["plan"].clone()).unwrap(), plan);
}

#[test]
fn the_first_lines_state_the_arithmetic() {
    let plan = good(ANIMALS, &[], &animals());
    assert_eq!(
        plan.arithmetic(),
        [
            "128 = 32 x 1 pass x 4 ranks; lr 0.05 = 0.1 x 128/256 (linear)",
            "12 steps per epoch = 1650 samples / 128, 114 left out; 600 steps = 50 epochs",
        ]
    );
    let plan = good(
        ANIMALS,
        &[
            "distributed.shards=4",
            "distributed.devices=2",
            "lr_scaling.rule=sqrt",
            "data.drop_last=false",
        ],
        &animals(),
    );
    assert_eq!(
        plan.arithmetic(),
        [
            "128 = 32 x 2 passes x 2 ranks; lr 0.0707107 = 0.1 x sqrt(128/256) (sqrt)",
            "13 steps per epoch = 1650 samples / 128, the last of 114; 650 steps = 50 epochs",
            "4 shards of 32 samples: the same bits on 1, 2, 4 ranks",
        ]
    );
}

#[test]
fn whatever_was_not_said_is_pytorchs() {
    let plan = good(PRICES, &[], &prices());
    assert_eq!(plan.optimizer.lr, 1e-3);
    assert_eq!((plan.loss.kind.name.as_str(), plan.model.outputs), ("mse", 1));
}

#[test]
fn schedules_count_intervals_after_the_warm_up() {
    let rule = |overrides: &[&str]| {
        let schedule = good(ANIMALS, overrides, &animals()).schedule;
        (schedule.warmup_steps, schedule.interval, schedule.intervals)
    };
    // 12 steps per epoch.
    assert_eq!(rule(&[]), (60, 12, Some(45)));
    assert_eq!(rule(&["scheduler.interval=step"]), (60, 1, Some(540)));
    assert_eq!(rule(&["scheduler.warmup=30 steps"]), (30, 12, Some(48)));
    assert_eq!(rule(&["scheduler.warmup=never"]), (0, 12, Some(50)));
    assert_eq!(rule(&["scheduler.name=one_cycle"]), (60, 1, Some(540)));
    assert_eq!(rule(&["~train.epochs", "train.time=1h"]), (60, 12, None));
}

#[test]
fn the_first_limit_ends_the_run() {
    let total = |overrides: &[&str]| good(ANIMALS, overrides, &animals()).length.total_steps;
    assert_eq!(total(&["train.steps=100"]), 100);
    assert_eq!(total(&["train.steps=100000"]), 600);
    let timed =
        good(ANIMALS, &["~train.epochs", "train.time=1h", "scheduler.name=constant"], &animals());
    assert!(!timed.length.is_bounded());
    assert_eq!(
        timed.arithmetic()[1],
        "12 steps per epoch = 1650 samples / 128, 114 left out; at most 1h"
    );
}

#[test]
fn amp_is_bf16_on_a_cpu_on_which_that_is_faster_and_only_fp16_has_a_scaler() {
    let precision = |word: &str| {
        let plan = good(ANIMALS, &[&format!("train.precision={word}")], &animals());
        (plan.precision, plan.scaler.is_some())
    };
    let [avx512, amx] = [Some(Bf16Instructions::Avx512), Some(Bf16Instructions::Amx)];
    let on = |word: &str, bf16| {
        let facts = Facts { bf16, bf16_is_faster: bf16 == amx, ..animals() };
        let plan = good(ANIMALS, &[&format!("train.precision={word}")], &facts);
        let warns = plan.warnings(&facts, &Memory::of(&plan, None)).concat().contains("bf16");
        (plan.precision, plan.bf16_instructions, warns)
    };
    assert_eq!(on("amp", amx), (Precision::Bf16, amx, false));
    assert_eq!(on("amp", avx512), (Precision::Fp32, None, false));
    assert_eq!(on("bf16", avx512), (Precision::Bf16, avx512, false));
    assert_eq!(on("bf16", None), (Precision::Bf16, None, true));
    assert_eq!(on("fp32", amx), (Precision::Fp32, None, false));
    assert_eq!(precision("amp"), (Precision::Bf16, false));
    assert_eq!(on("amp", None), (Precision::Fp32, None, false));
    assert_eq!(precision("bf16"), (Precision::Bf16, false));
    assert_eq!(precision("fp32"), (Precision::Fp32, false));
    assert_eq!(precision("fp16"), (Precision::Fp16, true));
}

#[test]
fn threads_and_loaders_share_the_cores() {
    let counts = |overrides: &[&str]| {
        let plan = good(ANIMALS, overrides, &animals());
        (plan.distributed.threads_per_rank, plan.data.num_workers)
    };
    assert_eq!(counts(&["distributed.devices=1"]), (8, 4));
    assert_eq!(counts(&["distributed.devices=4"]), (2, 2));
    assert_eq!(counts(&["distributed.devices=16", "train.batch_size=4"]), (1, 1));
    assert_eq!(counts(&["data.num_workers=0", "distributed.threads_per_rank=3"]), (3, 0));
    let crowded = good(ANIMALS, &["distributed.devices=16", "train.batch_size=4"], &animals());
    let memory = Memory::of(&crowded, None);
    assert_eq!(crowded.warnings(&animals(), &memory), ["16 ranks share 8 cores"]);
    let small = Facts { memory: Some(Bytes(1 << 30)), cores: 16, ..animals() };
    let warnings = crowded.warnings(&small, &memory);
    assert!(warnings[0].starts_with("16 ranks need at least "), "{warnings:?}");
    assert!(warnings[0].ends_with(" of memory, but this machine has 1.00 GiB"), "{warnings:?}");
    let rare = ["train.batch_size=600", "data.drop_last=false"];
    let rare = good(ANIMALS, &rare, &animals());
    let expected = "a step takes 2400 samples, but there are only 1650 to train on: each epoch is \
                    one smaller step";
    assert_eq!(rare.warnings(&animals(), &memory), [expected]);
    let launched = Facts { launched_world: WorldSize::new(4), ..animals() };
    let restarts = ["fault.max_restarts=2", "fault.on_oom=shrink_batch"];
    let warnings = good(ANIMALS, &restarts, &launched).warnings(&launched, &memory);
    let what = "no effect under another launcher, which restarts ranks itself";
    assert_eq!(warnings, [format!("`fault.max_restarts` and `fault.on_oom` have {what}")]);
}

#[test]
fn one_rank_is_alone_and_several_share_a_mapping_that_fits_the_model() {
    let alone = good(ANIMALS, &["distributed.devices=1", "distributed.backend=shm"], &animals());
    assert_eq!(alone.distributed.backend, BackendPlan::alone());
    let four = good(ANIMALS, &[], &animals());
    let parameters = [100 * 3 * 224 * 224, 128, 448, 64];
    let gradients: u64 = parameters.iter().map(|n: &u64| 4 * n).sum();
    let mapping = Bytes((64 << 10) + 4 * ((1 << 20) + gradients));
    assert_eq!(four.distributed.backend, BackendPlan::sharing("shm", Some(mapping)));
    assert_eq!(four.distributed.devices, ["cpu"; 4]);
}

#[test]
fn a_foreign_launcher_decides_the_ranks() {
    let launched = Facts { launched_world: WorldSize::new(2), ..animals() };
    let text = ANIMALS.replace("devices = 4", "");
    assert_eq!(good(&text, &[], &launched).world_size().get(), 2);
    let overridden = good(ANIMALS, &[], &launched);
    assert_eq!((overridden.world_size().get(), overridden.distributed.devices.len()), (2, 2));
}

#[test]
fn more_ranks_than_a_machine_can_have_are_refused() {
    let too_many = "`distributed.devices`: gives 65 ranks, but a machine can have at most 64 \
        (use fewer ranks, with more threads each)";
    assert_eq!(told(ANIMALS, &["distributed.devices=65"], &animals()), [too_many]);
    let launched = Facts { launched_world: WorldSize::new(65), ..animals() };
    assert_eq!(told(ANIMALS, &[], &launched), [too_many]);
}

#[test]
fn numbers_that_cannot_be_together_are_told_with_a_remedy() {
    let check = |overrides: &[&str], expected: &[&str]| {
        assert_eq!(told(ANIMALS, overrides, &animals()), expected, "{overrides:?}");
    };
    check(
        &["train.global_batch_size=100"],
        &["`train.global_batch_size`: 100 is not a multiple of 32 samples x 4 ranks = 128 \
           (use the nearest `global_batch_size`: 128)"],
    );
    check(
        &["train.batch_size=600"],
        &["`train.batch_size`: a step takes 2400 samples, but there are only 1650 \
         (make the batch smaller, or keep the incomplete one: data.drop_last = false)"],
    );
    check(
        &["distributed.shards=8", "distributed.devices=3"],
        &["`distributed.shards`: 8 shards cannot be divided over 3 ranks (use a world \
           size of 1, 2, 4, 8 with 8 shards, or start a run with `distributed.shards = 12` for 3 \
           ranks)"],
    );
    check(
        &["scheduler.warmup=60 epochs"],
        &["`scheduler.warmup`: must be shorter than the run: it lasts 720 steps, the run has 600 \
           (shorten it, give a share (`\"5 %\"`), or leave it out: `~scheduler.warmup`)"],
    );
    check(&["scheduler.eta_min=0.1"], &["`scheduler.eta_min`: is refused"]);
    check(
        &["model.num_classes=3"],
        &["`model.num_classes`: is 3, but the data has 4 classes (omit it: \"auto\" is the \
           number of classes)"],
    );
    check(
        &["loss.name=mse"],
        &["`loss.name`: needs numbers, but the data has classes (use `cross_entropy`)"],
    );
    check(
        &["data.transforms.val=[{name=resize, size=[256, 256]}]"],
        &["`data.transforms.val`: gives images of 256x256, but training gives 224x224"],
    );
    check(
        &["model.name=graph", "model.layers=[{name=relu}]"],
        &["`model.layers[0].name`: gives an image of 3x224x224, but the data needs a vector of 4 \
           (end with `linear`: its `out_features` is what the data needs)"],
    );
    check(
        &["checkpoint.monitor=val/mse", "expect.\"val/mae\".at_most=1"],
        &[
            "`checkpoint.monitor`: `val/mse` is a regression metric, but the loss is a \
             classification loss (use one that fits: `val/loss`, `val/accuracy`)",
            "`expect.\"val/mae\"`: `val/mae` is a regression metric, but the loss is a \
             classification loss (use one that fits: `val/loss`, `val/accuracy`)",
        ],
    );
    check(
        &["checkpoint.monitor=val/accuracy", "checkpoint.mode=min"],
        &["`checkpoint.mode`: would keep the worst `val/accuracy` (set `mode = \"max\"`)"],
    );
    check(
        &["checkpoint.monitor=val/mse", "checkpoint.mode=max"],
        &["`checkpoint.monitor`: `val/mse` is a regression metric, but the loss is a \
           classification loss (use one that fits: `val/loss`, `val/accuracy`)"],
    );
    assert_eq!(
        told(PRICES, &["expect.\"val/accuracy\".at_least=0.5"], &prices()),
        ["`expect.\"val/accuracy\"`: `val/accuracy` is a classification metric, but the loss is \
          a regression loss (use one that fits: `val/loss`, `val/mse`, `val/mae`)"]
    );
    let classes = told(&PRICES.replace("[loss]\nname = \"mse\"\n", ""), &[], &prices());
    assert_eq!(
        classes,
        ["`loss.name`: needs classes, but the target holds numbers (use `mse` or `mae`)"]
    );
}

#[test]
fn all_impossible_numbers_are_told_at_once_with_their_places() {
    let text = ANIMALS
        .replace("[[data.transforms.train]]\nname = \"random_resized_crop\"\nsize = 224\n\n", "")
        .replace("[train]\n", "[train]\nglobal_batch_size = 100\n")
        .replace("name = \"resnet18\"", "name = \"resnet18\"\nnum_classes = 2");
    insta::assert_snapshot!("problems", plan(&text, &[], &animals()).unwrap_err().page(false, 80));
}

#[test]
fn keeping_the_inputs_of_blocks_needs_blocks() {
    let loaded = read(ANIMALS, &["train.activation_checkpointing=true"]);
    let problems = Plan::new(&loaded, &animals(), &|model: &ModelPlan| {
        describe(model).map(|facts| ModelFacts { has_blocks: false, ..facts })
    });
    let told: Vec<String> = problems.unwrap_err().iter().map(ToString::to_string).collect();
    let expected = "`train.activation_checkpointing`: saves nothing: `resnet18` has no blocks \
                    whose inputs are kept";
    assert_eq!(told, [expected]);
}

#[test]
fn a_model_that_cannot_be_built_says_why_at_its_name() {
    let loaded = read(ANIMALS, &[]);
    let problems = Plan::new(&loaded, &animals(), &|_: &ModelPlan| {
        Err("needs images of at least 32x32".to_owned())
    });
    let problems = problems.unwrap_err();
    let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["`model.name`: needs images of at least 32x32"]);
    assert_eq!(
        problems.iter().next().and_then(crate::config::Problem::line),
        Some(("animals.toml", 2))
    );
}

#[test]
fn cadences_and_checkpoints_are_as_asked() {
    let plan = good(ANIMALS, &["validation.every=never", "checkpoint.every=100 steps"], &animals());
    assert_eq!(plan.validate_every, Interval::Never);
    assert_eq!(plan.checkpoint.every, Interval::Steps(100));
    assert_eq!(plan.checkpoint.monitor, "train/loss");
    assert_eq!(good(ANIMALS, &[], &animals()).checkpoint.monitor, "val/loss");
}

#[test]
fn a_pinned_experiment_has_the_same_batches_on_every_admitted_world() {
    let loaded = read(ANIMALS, &["train.gradient_accumulation_steps=2"]);
    let first = Plan::new(&loaded, &animals(), &describe).unwrap();
    let pinned = resolved(&first.pin(loaded.experiment.clone())).unwrap();
    for ranks in [1, 2, 4] {
        let devices = format!("distributed.devices={ranks}");
        let plan = good(&pinned, &[&devices], &animals());
        let numbers = |plan: &Plan| {
            (plan.batch.global, plan.batch.shards, plan.batch.size, plan.optimizer.lr)
        };
        assert_eq!(numbers(&plan), numbers(&first), "{ranks}");
        let old = read(&pinned, &[]).experiment;
        let new = read(&pinned, &[&devices]).experiment;
        assert!(refuse_unsafe(&old, &new, &Vocabulary::open()).is_ok());
    }
    let refused = plan(&pinned, &["distributed.devices=3"], &animals()).unwrap_err();
    assert!(refused.page(false, 100).contains("cannot be divided over 3 ranks"));
}

#[test]
fn smaller_groups_take_the_same_steps_and_smaller_passes_too() {
    let loaded = read(ANIMALS, &["distributed.min_world_size=1"]);
    let plan = Plan::new(&loaded, &animals(), &describe).unwrap();
    let smaller = plan.smaller(&loaded, &animals(), &describe).unwrap();
    let worlds: Vec<u32> = smaller.iter().map(|plan| plan.world_size().get()).collect();
    assert_eq!(worlds, [2, 1]);
    let same = |plan: &Plan| {
        let BatchPlan { global, shards, .. } = plan.batch;
        (global, shards, plan.length, plan.optimizer.clone(), plan.schedule.clone())
    };
    assert!(smaller.iter().all(|smaller| same(smaller) == same(&plan)));
    assert!(smaller.iter().all(|smaller| smaller.batch.size == plan.batch.size));
    let mut sizes = vec![plan.batch.size.get()];
    let mut passes = plan.clone();
    while let Some(next) = passes.in_smaller_passes() {
        let BatchPlan { size, accumulation, global, .. } = next.batch;
        assert_eq!(size.get() * accumulation.get() * next.world_size().get(), global.get());
        assert!(same(&next) == same(&plan) && next.val_batch_size <= size);
        sizes.push(size.get());
        passes = next;
    }
    assert_eq!(sizes, [32, 16, 8, 4, 2, 1]);
}

#[test]
fn over_machines_smaller_groups_are_whole_machines_and_need_restarts() {
    let facts = Facts { nodes: 4, ..animals() };
    let fewer = |changes: &[&str]| {
        let elastic = ["distributed.min_world_size=1", "distributed.shards=auto"];
        let loaded = read(ANIMALS, &[&elastic, changes].concat());
        let smaller = Plan::new(&loaded, &facts, &describe)?.smaller(&loaded, &facts, &describe)?;
        let shape = |plan: &Plan| (plan.distributed.nodes, plan.world_size().get());
        Ok::<_, Problems>(smaller.iter().map(shape).collect::<Vec<_>>())
    };
    let restarts = "fault.max_restarts=1";
    assert_eq!(fewer(&["distributed.devices=1", restarts]).unwrap(), [(2, 2), (1, 1)]);
    assert_eq!(fewer(&["distributed.devices=2", restarts]).unwrap(), [(2, 4), (1, 2)]);
    let problems = fewer(&["distributed.devices=1"]).unwrap_err();
    let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(
        said.iter().any(|said| said.contains("needs restarts over several machines")),
        "{said:?}"
    );
}

#[test]
fn more_samples_than_can_be_numbered_are_refused() {
    let mut facts = animals();
    facts.data.n_train = 1 << 32;
    let problems = Plan::new(&read(ANIMALS, &[]), &facts, &describe).unwrap_err();
    let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|said| said.contains("4294967296 samples to train on")), "{said:?}");
}

proptest::proptest! {
    #[test]
    fn no_number_brings_the_planner_down(
        batch in 1u64..1 << 25, passes in 1u64..70_000, ranks in 1u64..1100, shards in 1u64..1100,
        epochs in 1u64..1 << 25, warmup in 0u64..1 << 41, cores in 1usize..200, n_train in 0usize..1 << 33,
    ) {
        let overrides: Vec<String> = [
            format!("train.batch_size={batch}"),
            format!("train.gradient_accumulation_steps={passes}"),
            format!("distributed.devices={ranks}"),
            format!("distributed.shards={shards}"),
            format!("train.epochs={epochs}"),
            format!("scheduler.warmup={warmup} epochs"),
        ]
        .to_vec();
        for kept in 0..overrides.len() {
            let vocabulary = Vocabulary::open();
            let Ok(loaded) = load_text(Path::new("a.toml"), ANIMALS, &overrides[kept..], &vocabulary) else { continue };
            let mut facts = animals();
            (facts.cores, facts.data.n_train) = (cores, n_train);
            match Plan::new(&loaded, &facts, &describe) {
                Ok(plan) => assert!(page(&plan, &loaded, &facts, &costs(&plan, None)).contains("batch")),
                Err(problems) => assert!(problems.iter().count() > 0),
            }
        }
    }
}

#[test]
fn a_pass_too_small_for_batch_norm_is_refused_where_it_is_asked_for() {
    let mut facts = prices();
    facts.data.n_train = 49;
    let describe = |model: &ModelPlan| {
        describe(model).map(|found| ModelFacts { least_rows: Some(1), ..found })
    };
    let page = |changes: &[&str]| {
        let changes = [&["distributed.devices=1"], changes].concat();
        match Plan::new(&read(PRICES, &changes), &facts, &describe) {
            Ok(_) => "accepted".to_owned(),
            Err(problems) => problems.page(false, 100),
        }
    };
    let whole = ["train.global_batch_size=16", "data.drop_last=true"];
    assert_eq!(page(&whole), "accepted");
    assert_eq!(page(&["train.global_batch_size=10", "data.drop_last=false"]), "accepted");
    insta::assert_snapshot!(page(&["train.global_batch_size=16", "data.drop_last=false"]));
    insta::assert_snapshot!(page(&["train.global_batch_size=1"]));
}
