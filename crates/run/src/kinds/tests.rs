use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use crate::config::kind::Entry;
use crate::config::values::{Auto, Interval};
use crate::config::{
    Loaded, Problems, Source, Vocabulary, changed_keys, load, load_in, load_text, refuse_unsafe,
    resolved,
};

use super::Kinds;
use crate::user_error::{ErrorPage, ExitCode};

mod left_out;
mod lists;
mod losses;
mod misspelt;
mod optimizer;
mod paths;
mod split;
mod stored;
mod sweep;

const GOOD: &str = r#"schema = 1

[model]
name = "resnet18"

[data]
name = "image_folder"
train_dir = "data/train"
val_dir = "data/val"

[[data.transforms.train]]
name = "random_resized_crop"
size = 224

[[data.transforms.val]]
name = "resize"
size = [224, 224]

[train]
epochs = 50
batch_size = 32

[optimizer]
name = "sgd"
lr = 0.1
momentum = 0.9
"#;

/// Made once: its thousand pages of keys take longer than most tests.
fn vocabulary() -> &'static Vocabulary {
    static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| Kinds::default().vocabulary());
    &VOCABULARY
}

fn read(text: &str, overrides: &[&str]) -> Result<Loaded, Problems> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    load_text(Path::new("exp.toml"), text, &overrides, vocabulary())
}

#[track_caller]
fn good(text: &str, overrides: &[&str]) -> Loaded {
    read(text, overrides).unwrap_or_else(|problems| panic!("{}", problems.page(false, 90)))
}

#[track_caller]
fn page(text: &str, overrides: &[&str]) -> String {
    read(text, overrides).expect_err("problems").page(false, 80)
}

/// `GOOD` with `from` replaced.
#[track_caller]
fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    GOOD.replacen(from, to, 1)
}

/// Every problem as "key: what", in order.
#[track_caller]
fn told(text: &str, overrides: &[&str]) -> Vec<String> {
    read(text, overrides).expect_err("problems").iter().map(ToString::to_string).collect()
}

#[test]
fn a_good_file_is_read_over_the_defaults() {
    let loaded = good(GOOD, &[]);
    let experiment = &loaded.experiment;
    assert_eq!(loaded.name(), "exp");
    assert_eq!(experiment.data.name, "image_folder");
    assert_eq!(experiment.train.batch_size, Auto::Given(32));
    assert_eq!(experiment.train.global_batch_size, Auto::Auto);
    assert_eq!(experiment.validation.every, Interval::Epochs(1));
    assert_eq!(experiment.optimizer.options["weight_decay"], 0.0);
    let source = |key: &str| loaded.sources[key].to_string();
    assert_eq!(source("train.epochs"), "exp.toml");
    assert_eq!(source("train.precision"), "built-in defaults");
    assert_eq!(source("data.transforms.train"), "exp.toml");
    assert_eq!(source("experiment.name"), "the file's name");
    assert!(!loaded.sources.contains_key("optimizer.weight_decay"));
}

#[test]
fn each_layer_wins_over_the_weaker_ones() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        path
    };
    write(
        "_base/first.toml",
        "[train]\nepochs = 1\nsteps = 1\nclip_grad_norm = 1.0\n[model]\nname = 'mlp'\n",
    );
    write(
        "_base/second.toml",
        "extends = 'first.toml'\n[train]\nsteps = 2\nbatch_size = 2\n[logging]\nsinks = ['csv', \
         'curves']\n",
    );
    let path = write(
        "exp.toml",
        "extends = ['_base/second.toml']\n[train]\nbatch_size = 3\nclip_grad_value = 3.0\n\
         [data]\nname = 'mnist'\ndir = 'x'\n[logging]\nsinks = ['jsonl']\n",
    );
    let overrides = ["train.clip_grad_value=4".to_owned(), "optimizer.name=adam".to_owned()];
    let loaded = load(&path, &overrides, vocabulary()).unwrap();
    let train = &loaded.experiment.train;
    assert_eq!((train.epochs, train.steps), (Some(1), Some(2)));
    assert_eq!(train.batch_size, Auto::Given(3));
    assert_eq!((train.clip_grad_norm, train.clip_grad_value), (Some(1.0), Some(4.0)));
    assert_eq!(loaded.experiment.optimizer.name, "adam");
    assert_eq!(
        loaded.experiment.logging.sinks,
        [Entry::named("jsonl")],
        "lists are replaced whole"
    );

    let file = |key: &str| match &loaded.sources[key] {
        Source::File(path) => path.file_name().unwrap().to_string_lossy().into_owned(),
        other => other.to_string(),
    };
    assert_eq!(file("train.epochs"), "first.toml");
    assert_eq!(file("train.steps"), "second.toml");
    assert_eq!(file("train.batch_size"), "exp.toml");
    assert_eq!(file("train.clip_grad_value"), "command line");
    assert_eq!(file("train.precision"), "built-in defaults");
}

#[test]
fn files_that_extend_each_other_or_are_missing_are_problems() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.toml");
    let mut file = fs::File::create(&path).unwrap();
    std::io::Write::write_all(&mut file, b"extends = ['a.toml', 'b.toml', 3]\n").unwrap();
    let problems = load(&path, &[], vocabulary()).unwrap_err();
    let told: Vec<&str> = problems.iter().map(crate::config::Problem::what).collect();
    assert_eq!(told[0], "leads back to a file that extends this one");
    assert!(told[1].contains("b.toml` cannot be read"), "{told:?}");
    assert_eq!(told[2], "must be a file's name, or a list of them");
    assert_eq!(told.len(), 3);
}

#[test]
fn overrides_set_and_remove() {
    let loaded = good(
        GOOD,
        &["train.steps=10", "~train.epochs", "logging.sinks=[csv]", "optimizer.momentum=null"],
    );
    let experiment = &loaded.experiment;
    assert_eq!((experiment.train.epochs, experiment.train.steps), (None, Some(10)));
    assert_eq!(experiment.logging.sinks, [Entry::named("csv")]);
    assert_eq!(experiment.optimizer.options["momentum"], 0.0);
    assert_eq!(loaded.sources["train.steps"], Source::CommandLine("train.steps=10".to_owned()));
}

#[test]
fn another_kind_in_a_stronger_layer_takes_its_own_keys_only() {
    let adam = good(GOOD, &["optimizer.name=adam"]);
    assert!(!adam.experiment.optimizer.options.contains_key("momentum"));
    assert_eq!(adam.experiment.optimizer.lr, 0.1);
    let sgd = good(GOOD, &["optimizer.name=sgd"]);
    assert_eq!(sgd.experiment.optimizer.options["momentum"], 0.9);
    let both = told(GOOD, &["optimizer.name=adam", "optimizer.momentum=0.5"]);
    assert_eq!(
        both,
        ["`optimizer.momentum`: belongs to `sgd`, `rmsprop` or `muon`, but `name` is `adam`"]
    );
}

#[test]
fn one_look_shows_everything_that_is_wrong() {
    let text = r#"
[model]
name = "resnet81"

[data]
name = "image_folder"
train_dir = "data/train"
num_workers = 1000000000

[train]
epoch = 50
batch_size = "large"
precision = "fp8"

[optimizer]
name = "sgd"
lr = -0.1
betas = [0.9, 0.999]

[scheduler]
warmup = 5

[logging]
sinks = ["jsonl", "excel"]
"#;
    insta::assert_snapshot!(
        "everything",
        page(text, &["train.clip_grad_norm=abc", "optimiser.lr=1"])
    );
}

#[test]
fn a_misspelt_key_points_at_the_key() {
    insta::assert_snapshot!(page(&with("epochs = 50", "epoch = 50"), &[]));
}

#[test]
fn a_key_in_the_wrong_table_is_told_its_table() {
    insta::assert_snapshot!(page(&with("lr = 0.1", "lr = 0.1\nepochs = 3"), &[]));
}

/// The remedy of the first problem of these overrides.
#[track_caller]
fn remedy(text: &str, overrides: &[&str], expected: &str) {
    let problems = read(text, overrides).unwrap_err();
    let remedy = problems.iter().find_map(crate::config::Problem::remedy);
    assert_eq!(remedy, Some(expected), "{problems}");
}

#[test]
fn an_override_is_told_the_whole_key_that_was_meant() {
    let check = |word: &str, expected: &str| remedy(GOOD, &[word], expected);
    check("optimizer=adamw", "did you mean `optimizer.name=adamw`?");
    check("trian.epochs=3", "did you mean `train.epochs`?");
    check("train.epohcs=3", "did you mean `train.epochs`?");
    check("trian.epohcs=3", "did you mean `train.epochs`?");
    check("~trian.epohcs", "did you mean `train.epochs`?");
    check("trian.banana=3", "did you mean `train`?");
    check("epochs=3", "did you mean `train.epochs`?");
    check("train=3", "begin it with `[train]`");
    let both = read(GOOD, &["trian.epohcs=3"]).unwrap_err();
    assert_eq!(both.iter().count(), 1, "{both}");
}

#[test]
fn a_layer_is_told_what_its_kind_takes() {
    let layers = |layer: &str| format!("model={{name=graph, layers=[{layer}]}}");
    remedy(GOOD, &[&layers("{name=flatten, banana=1}")], "remove it: `flatten` takes no keys");
    remedy(
        GOOD,
        &[&layers("{name=dropout, p=0.1, lr=1}")],
        "use one of the keys of `dropout`: `p`",
    );
    remedy(GOOD, &[&layers("{name=dropout, p=0.1, strid=1}")], "did you mean `stride`?");
}

#[test]
fn a_number_in_quotes_is_told_to_lose_them() {
    insta::assert_snapshot!(page(&with("epochs = 50", "epochs = \"50\""), &[]));
}

#[test]
fn a_wrong_word_names_the_right_ones() {
    insta::assert_snapshot!(page(&with("name = \"sgd\"", "name = \"sdg\""), &[]));
}

#[test]
fn a_number_where_a_word_belongs_names_the_words() {
    insta::assert_snapshot!(page(&with("name = \"sgd\"\n", "name = 2\n"), &[]));
}

#[test]
fn an_override_is_drawn_as_it_was_typed() {
    insta::assert_snapshot!(page(GOOD, &["train.time=ten minutes"]));
}

#[test]
fn a_missing_required_key_points_at_what_requires_it() {
    insta::assert_snapshot!(page(&with("train_dir = \"data/train\"\n", ""), &[]));
}

#[test]
fn a_missing_table_has_no_place_to_point_at() {
    insta::assert_snapshot!(page(&with("[model]\nname = \"resnet18\"\n", ""), &[]));
}

#[test]
fn text_that_is_not_toml_points_at_the_slip() {
    insta::assert_snapshot!(page(&with("epochs = 50", "epochs = "), &[]));
}

#[test]
fn a_transform_is_checked_key_by_key() {
    let text = with(
        "name = \"resize\"\nsize = [224, 224]",
        "name = \"normalize\"\nstd = [0.2, 0]\np = 0.5",
    );
    insta::assert_snapshot!("transform", page(&text, &[]));
}

#[track_caller]
fn check(overrides: &[&str], expected: &[&str]) {
    assert_eq!(told(GOOD, overrides), expected, "{overrides:?}");
}

#[test]
fn what_pytorch_takes_at_the_end_of_a_range_is_taken() {
    for word in [
        "optimizer.lr=0",
        "optimizer.momentum=0",
        "optimizer.momentum=1",
        "optimizer.dampening=1",
        "optimizer.weight_decay=0",
        "ema.decay=0",
        "ema.decay=1",
    ] {
        good(GOOD, &[word]);
    }
    good(GOOD, &["optimizer.name=adam", "~optimizer.momentum", "optimizer.eps=0"]);
    check(
        &["optimizer.name=adam", "~optimizer.momentum", "optimizer.betas=[0.9,1]"],
        &["`optimizer.betas[1]`: must be at least 0 and less than 1, not 1.0"],
    );
    // Elsewhere 0 means no clipping, in PyTorch no gradient.
    check(
        &["train.clip_grad_norm=0"],
        &["`train.clip_grad_norm`: must be greater than 0 and finite, not 0.0"],
    );
}

#[test]
fn the_mode_of_a_backbone_needs_a_frozen_one() {
    good(GOOD, &["model.freeze_backbone=true", "model.backbone_mode=eval"]);
    check(
        &["model.backbone_mode=eval"],
        &["`model.backbone_mode`: only applies with `freeze_backbone = true`"],
    );
}

#[test]
fn every_number_has_its_range() {
    check(&["train.epochs=0"], &["`train.epochs`: must be at least 1, not 0"]);
    check(&["train.epochs=-1"], &["`train.epochs`: must be at least 1, not -1"]);
    check(
        &["train.epochs=1.5"],
        &["`train.epochs`: must be a whole number of at least 1, not 1.5"],
    );
    check(&["checkpoint.keep_best=-1"], &["`checkpoint.keep_best`: must be at least 0, not -1"]);
    check(&["train.batch_size=-1"], &["`train.batch_size`: must be at least 1, not -1"]);
    check(&["~train.batch_size"], &["`train.batch_size`: no batch size is given"]);
    check(&["train.batch_size=0"], &["`train.batch_size`: must be at least 1, not 0"]);
    check(
        &["train.batch_size=1000000000000"],
        &["`train.batch_size`: must be at most 16777216, not 1000000000000"],
    );
    check(&["optimizer.lr=nan"], &["`optimizer.lr`: must be from 0 to 1e6, not nan"]);
    check(&["optimizer.lr=inf"], &["`optimizer.lr`: must be from 0 to 1e6, not inf"]);
    check(&["optimizer.lr=1e308"], &["`optimizer.lr`: must be from 0 to 1e6, not 1e308"]);
    check(&["optimizer.momentum=1.5"], &["`optimizer.momentum`: must be from 0 to 1, not 1.5"]);
    check(&["experiment.seed=-1"], &["`experiment.seed`: must be at least 0, not -1"]);
    check(&["ema.decay=1.1"], &["`ema.decay`: must be from 0 to 1, not 1.1"]);
    check(
        &["ema.power=0.75"],
        &["`ema.power`: needs `ema.decay`, the limit up to which the decay grows"],
    );
    check(&["lookahead.k=0"], &["`lookahead.k`: must be at least 1, not 0"]);
    check(&["lookahead.power=3"], &["`lookahead.power`: needs `lookahead.k`"]);
    check(
        &["lookahead.k=5", "swa.start=1 epoch"],
        &["`lookahead.k`: cannot be combined with `swa.start`: both average the weights"],
    );
    check(&["swa.lr=0.05"], &["`swa.lr`: needs `swa.start`"]);
    check(&["swa.start=1 epoch", "swa.anneal_epochs=5"], &["`swa.anneal_epochs`: needs `swa.lr`"]);
    check(&["swa.start=1 epoch", "swa.every=never"], &["`swa.every`: must be epochs or steps"]);
    check(
        &["swa.start=1 epoch", "ema.decay=0.9"],
        &["`swa.start`: cannot be combined with `ema.decay`: both average the weights"],
    );
    check(
        &["swa.start=1 epoch", "swa.lr=0.05", "scheduler.name=plateau"],
        &["`swa.lr`: `plateau` sets the learning rate by a metric: none is known to anneal from"],
    );
    check(
        &["distributed.devices=2000"],
        &["`distributed.devices`: must be from 1 to 1024, not 2000"],
    );
    check(
        &["distributed.timeout=0s"],
        &["`distributed.timeout`: must be more than 0 and at most one week"],
    );
    check(
        &["expect.val/loss={}"],
        &["`expect.\"val/loss\"`: has neither `at_least` nor `at_most`"],
    );
    check(
        &["expect.val/accuracy.at_least=85"],
        &["`expect.\"val/accuracy\"`: must be from 0 to 1"],
    );
}

#[test]
fn every_word_names_something() {
    check(
        &["checkpoint.monitor=val/acuracy"],
        &["`checkpoint.monitor`: `val/acuracy` is not a metric"],
    );
    check(
        &["data.sampler={name=\"weighted\"}"],
        &["`data.sampler`: must be `shards`, `torch`, `balanced` or `weighted`, not a table"],
    );
    check(&["experiment.name=../../x"], &["`experiment.name`: `../../x` cannot name a folder"]);
    check(&["experiment.name=-x"], &["`experiment.name`: `-x` cannot name a folder"]);
    check(&["experiment.name=.hidden"], &["`experiment.name`: `.hidden` cannot name a folder"]);
    check(&["checkpoint.dir=~/runs"], &["`checkpoint.dir`: `~` and `$` are not expanded"]);
    check(&["schema=2"], &["`schema`: this ddprun reads schema 1, the file is schema 2"]);
    check(&["~train.epohcs"], &["`train.epohcs`: is not a key of an experiment"]);
    check(
        &["model.strict=false"],
        &["`model.strict`: must be `true` or `\"except_head\"`, not `false`"],
    );
    check(&["extends=base.toml"], &["`extends`: works only in a file"]);
}

#[test]
fn a_comma_behind_a_value_and_a_change_without_one_are_told() {
    let comma = page(&with("lr = 0.1\n", "lr = 0.1,\n"), &[]);
    assert!(comma.contains("help: remove the comma"), "{comma}");
    for text in ["train.epochs=", "experiment.name= "] {
        let empty = page(GOOD, &[text]);
        assert!(empty.contains("has no value") && empty.contains("^^^"), "{empty}");
    }
}

#[test]
fn every_impossible_combination_is_named() {
    check(&["~train.epochs"], &["`train.epochs`: nothing says how long to train"]);
    check(
        &["train.precision=bf16", "loss_scale.init=2"],
        &["`loss_scale.init`: bf16 uses no loss scale; only `precision = \"fp16\"` does"],
    );
    check(
        &["validation.every=never", "early_stopping.patience=3"],
        &["`early_stopping.monitor`: `val/loss` is never measured: `validation.every` is \
           \"never\""],
    );
    check(
        &["~train.epochs", "train.time=1h", "scheduler.name=cosine"],
        &["`scheduler.name`: needs a fixed number of steps, but only `train.time` ends the run"],
    );
    check(
        &["scheduler.name=multi_step"],
        &["`scheduler.milestones`: `multi_step` needs `milestones`"],
    );
    check(
        &["optimizer.nesterov=true", "~optimizer.momentum"],
        &["`optimizer.nesterov`: needs a momentum and no dampening"],
    );
}

#[test]
fn a_wrong_value_has_no_consequences() {
    // Neither "nothing says how long" nor "image_folder needs train_dir" nor "betas belongs to
    // adam".
    let text = with("epochs = 50", "epochs = \"many\"")
        .replace("train_dir = \"data/train\"", "train_dir = 3")
        .replace("name = \"sgd\"", "name = \"adma\"");
    assert_eq!(
        told(&text, &[]),
        [
            "`data.train_dir`: must be text in quotes, not 3",
            "`train.epochs`: must be a whole number of at least 1, not `\"many\"`",
            "`optimizer.name`: no optimizer is called `adma`",
        ]
    );
}

#[test]
fn tables_and_lists_of_the_wrong_shape_are_named() {
    let check = |text: &str, expected: &str| {
        let told = told(
            &format!("{text}\n{GOOD}")
                .replace("[[data.transforms.val]]\nname = \"resize\"\nsize = [224, 224]\n", ""),
            &[],
        );
        assert!(told.iter().any(|problem| problem == expected), "{told:?}");
    };
    check("logging = 3", "`logging`: must be a table");
    check("validation = []", "`validation`: must be a table");
    check("fault = [[1, 2]]", "`fault`: must be a table");
    let loaded = told(&with("[[data.transforms.val]]", "[data.transforms.val]"), &[]);
    assert_eq!(loaded, ["`data.transforms.val`: must be a list of tables"]);
    let lists = told(GOOD, &["data.transforms.val=[[resize, 224]]"]);
    assert_eq!(lists, ["`data.transforms.val[0]`: must be a table"]);
}

#[test]
fn a_flood_of_problems_is_cut() {
    let mut text = GOOD.to_owned();
    for index in 0..20_000 {
        writeln!(text, "unknown_{index} = {index}").unwrap();
    }
    let problems = read(&text, &[]).unwrap_err();
    let last = problems.iter().last().unwrap().to_string();
    assert_eq!(
        (problems.iter().count(), last.as_str()),
        (61, "19940 more keys of exp.toml are unknown")
    );
    let hidden = format!("model.hidden=[{}]", vec!["'x'"; 20_000].join(","));
    assert!(read(GOOD, &["model.name=mlp", &hidden]).unwrap_err().iter().count() >= 10);
}

#[test]
fn the_environment_is_a_layer_between_file_and_command_line() {
    let environment = [
        ("train__batch_size".to_owned(), "64".to_owned()),
        ("train__steps".to_owned(), "5".to_owned()),
    ];
    let build = |environment: &[(String, String)], overrides: &[String]| {
        load_in(Path::new("exp.toml"), GOOD, environment, overrides, vocabulary())
    };
    let loaded = build(&environment, &["train.steps=6".to_owned()]).unwrap();
    assert_eq!(loaded.experiment.train.batch_size, Auto::Given(64));
    assert_eq!(loaded.experiment.train.steps, Some(6));
    let from = Source::Environment("DDPRUN_TRAIN__BATCH_SIZE".to_owned());
    assert_eq!(loaded.sources["train.batch_size"], from);

    let wrong = [("train__batch_siz".to_owned(), "64".to_owned())];
    insta::assert_snapshot!(build(&wrong, &[]).unwrap_err().page(false, 80));
}

#[test]
fn the_resolved_file_is_the_same_experiment() {
    let overrides = [
        "model.options.zero_init_residual=true",
        "train.time=90m",
        "distributed.bucket_cap=1MB",
        "expect.val/loss.at_most=1",
        "data.num_workers=3",
        "model.strict=except_head",
        "experiment.name=r",
        "optimizer.lr=3e-4",
    ];
    let before = good(GOOD, &overrides).experiment;
    let text = resolved(&before).unwrap();
    let again = good(&text, &[]).experiment;
    assert_eq!(before, again, "{text}");
    assert!(changed_keys(&before, &again).is_empty());
    insta::assert_snapshot!("resolved", text);
}

#[test]
fn only_safe_keys_may_change_on_resume() {
    let old = good(GOOD, &[]).experiment;
    let changed =
        |overrides: &[&str]| refuse_unsafe(&old, &good(GOOD, overrides).experiment, vocabulary());
    let safe = changed(&[
        "train.epochs=60",
        "data.num_workers=2",
        "logging.every=5 steps",
        "checkpoint.keep_last=3",
        "early_stopping.patience=3",
        "expect.val/loss.at_most=2",
        "distributed.timeout=1m",
    ]);
    assert_eq!(safe.unwrap().len(), 7);
    let refused = changed(&[
        "train.epochs=60",
        "optimizer.lr=0.2",
        "optimizer.name=adam",
        "~data.transforms.val",
        "data.transforms.val=[{name=resize,size=64}]",
    ]);
    let refused: Vec<String> = refused.unwrap_err().iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(refused.join("\n"));
}

#[test]
fn several_values_for_one_key_name_the_command_that_tries_them() {
    let shown = |word: &str| page(GOOD, &[word]).split_whitespace().collect::<Vec<_>>().join(" ");
    for word in ["optimizer.lr=0.1,0.2", "optimizer.name=sgd,adamw"] {
        assert!(shown(word).contains(&format!("run `ddprun sweep exp.toml {word}`")), "{word}");
    }
    let spaced = shown("train.batch_size=choice(16,32)");
    assert!(spaced.contains("exp.toml 'train.batch_size=choice(16,32)'`"), "{spaced}");
    assert!(!shown("optimizer.lr=-0.1").contains("ddprun sweep"));
    assert!(shown("logging.sinks=jsonl,csv").contains("shell: 'logging.sinks=[jsonl,csv]'"));
}

#[test]
fn the_list_of_keys_grows_only_on_purpose() {
    insta::assert_snapshot!("keys", vocabulary().keys().join("\n"));
}

#[test]
fn each_problem_of_an_experiment_is_an_object_with_its_place() {
    let vocabulary = Kinds::default().vocabulary();
    let text = "schema = 1\n[train]\nepochs = 3\n  batch_sise = 4\n[model]\nname = \"mlp\"\n\
                [data]\nname = \"mnist\"\n";
    let problems = load_text(Path::new("x.toml"), text, &[], &vocabulary);
    let problems = problems.unwrap_err();
    let found = ErrorPage::of_problems(ExitCode::Refused, problems.clone()).objects();
    assert_eq!(found.len(), problems.iter().count());
    let wrong = found.iter().find(|object| object["key"] == "train.batch_sise").unwrap();
    assert_eq!(
        (&wrong["file"], &wrong["line"], &wrong["column"]),
        (&serde_json::json!("x.toml"), &serde_json::json!(4), &serde_json::json!(3))
    );
    assert!(wrong["help"].as_str().unwrap().contains("batch_size"), "{wrong}");
    assert_eq!(wrong["code"], 2);
}

#[test]
fn data_that_cannot_be_used_say_their_line() {
    let what = "`x` is no number".to_owned();
    let error = crate::data::Error::Line { path: "a.csv".into(), line: 7, what };
    let found = ErrorPage::from(error).objects().remove(0);
    assert_eq!(
        (&found["file"], &found["line"]),
        (&serde_json::json!("a.csv"), &serde_json::json!(7))
    );
}

#[test]
fn what_waits_for_evaluations_that_never_come_is_refused() {
    let never = "validation.every=never";
    let what =
        "`train/loss` is checked when the model is validated, but `validation.every` is \"never\"";
    check(
        &[never, "early_stopping.patience=3", "early_stopping.monitor=train/loss"],
        &[&format!("`early_stopping.monitor`: {what}")],
    );
    check(
        &[never, "scheduler.name=plateau", "scheduler.monitor=train/loss"],
        &[&format!("`scheduler.monitor`: {what}")],
    );
    check(&[never, "expect.train/loss.at_most=1"], &[&format!("`expect.\"train/loss\"`: {what}")]);
    // What the plan itself asks for, so that a resumed run has it.
    good(GOOD, &[never, "checkpoint.monitor=train/loss"]);
}
