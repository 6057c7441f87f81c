use std::path::PathBuf;

use serde_json::json;

use super::vocabulary;
use crate::config::kind::Choice;
use crate::config::schema::Mode;
use crate::config::sweep::*;
use crate::config::values::Interval;
use crate::config::{Loaded, Problems};
use crate::sweep::{Asha, LrRange, Median};

const BASE: &str = r#"schema = 1
[model]
name = "mlp"
hidden = [8]
[data]
name = "shapes"
dir = "data/shapes"
classes = 3
[train]
epochs = 2
batch_size = 8
[optimizer]
name = "sgd"
lr = 0.1
"#;

/// A sweep of one learning rate, with room for more keys of `[sweep]` and more parameters.
fn file(keys: &str, parameters: &str) -> String {
    format!("schema = 1\nbase = \"base.toml\"\n[sweep]\n{keys}\n[sweep.parameters]\n{parameters}\n")
}

const LR: &str = "\"optimizer.lr\" = { values = [0.1, 0.01] }";

fn load_in(text: &str, words: &[&str]) -> Result<(Sweep, Loaded), Problems> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        path
    };
    write("base.toml", BASE);
    let path = write("tune.toml", text);
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    load(&path, &words, vocabulary())
}

#[track_caller]
fn good(text: &str, words: &[&str]) -> Sweep {
    match load_in(text, words) {
        Ok((sweep, _)) => sweep,
        Err(problems) => panic!("{}", problems.page(false, 100)),
    }
}

/// Refused with these words, and with a caret in line `line` of the file (0: of a word of the
/// command line).
#[track_caller]
fn refused(text: &str, words: &[&str], line: usize, expected: &[&str]) {
    let problems = load_in(text, words).expect_err("it should be refused");
    let page = problems.page(false, 200);
    for word in expected {
        assert!(page.contains(word), "`{word}` is not in:\n{page}");
    }
    let place = if line > 0 { format!("tune.toml:{line}:") } else { "command line:1:".to_owned() };
    assert!(page.contains(&place), "{place} is not in:\n{page}");
}

#[test]
fn a_sweep_file_is_read_with_its_defaults() {
    let sweep = good(&file("", LR), &[]);
    assert_eq!(sweep.name, "tune");
    assert!(sweep.base.ends_with("base.toml"));
    let search = &sweep.search;
    assert_eq!((search.method.name.as_str(), search.metric.as_str()), ("grid", "val/loss"));
    assert_eq!((search.goal, search.seed, search.pruner.name.as_str()), (Mode::Min, 42, "none"));
    assert_eq!((sweep.trials, sweep.max_failures), (None, 3));
    let values = vec![json!(0.1), json!(0.01)];
    assert_eq!(search.parameters[0].domain, Domain::Categorical { values });
}

#[test]
fn parameters_keep_their_order_and_may_be_written_as_tables() {
    let text = file("trials = 3\nmethod = \"tpe\"\nmetric = \"val/accuracy\"", "")
        + "[sweep.parameters.train.batch_size]\nvalues = [4, 8]\n\
           [sweep.parameters.\"optimizer.lr\"]\ndistribution = \"log_uniform\"\nmin = 1e-4\nmax = 1\n\
           [sweep.pruner]\nname = \"asha\"\nmin_resource = \"2 epochs\"\n";
    let search = good(&text, &[]).search;
    let keys: Vec<&str> = search.parameters.iter().map(|p| p.key.as_str()).collect();
    assert_eq!(keys, ["train.batch_size", "optimizer.lr"]);
    assert_eq!(search.parameters[1].domain, Domain::LogUniform { min: 1e-4, max: 1.0 });
    assert_eq!(search.goal, Mode::Max);
    let (min_resource, max_resource) = (Interval::Epochs(2), None);
    assert_eq!(
        search.pruner,
        Choice::of(&Asha { min_resource, max_resource, reduction_factor: 3 })
    );
}

#[test]
fn a_range_in_the_words_of_other_programs_is_written_in_ours() {
    for (range, ours) in [
        (
            "low = 1e-3, high = 1.0, log = true",
            "distribution = \"log_uniform\", min = 0.001, max = 1.0",
        ),
        ("lower = 0.0, upper = 1.0", "distribution = \"uniform\", min = 0.0, max = 1.0"),
        ("low = 1, high = 8", "distribution = \"int_uniform\", min = 1, max = 8"),
        (
            "low = 0.0, high = 1.0, step = 0.25",
            "distribution = \"q_uniform\", min = 0.0, max = 1.0, q = 0.25",
        ),
        ("distribution = \"uniform\", low = 0.1, max = 1.0", "min = 0.1, max = 1.0"),
    ] {
        let text = file("", &format!("\"optimizer.lr\" = {{ {range} }}"));
        let words = ["is not a key of a range: its bounds are `min` and `max`", ours];
        refused(&text, &[], 6, &words);
        let problems = load_in(&text, &[]).unwrap_err().page(false, 200);
        assert!(problems.contains("1 problem;"), "{problems}");
    }
}

#[test]
fn a_sweep_has_limits_and_settings_to_start_with() {
    let text = |method: &str, start: &str| {
        let head = format!("trials = 3\nmethod = \"{method}\"\ntime = \"90m\"\nuntil = 0.9");
        let lr = "{ distribution = \"log_uniform\", min = 1e-4, max = 1 }";
        file(&head, &format!("\"train.batch_size\" = [4, 8]\n\"optimizer.lr\" = {lr}")) + start
    };
    let start = "[[sweep.start]]\noptimizer.lr = 0.05\n[[sweep.start]]\n\"train.batch_size\" = 4\n";
    let sweep = good(&text("gp", start), &[]);
    assert_eq!(sweep.time, Some(std::time::Duration::from_mins(90)));
    assert_eq!((sweep.until, sweep.search.start.len()), (Some(0.9), 2));
    assert_eq!(sweep.search.start[0], [("optimizer.lr".to_owned(), json!(0.05))]);
    // The line of the caret, counted from the last.
    for (start, above, expected) in [
        ("optimizer.lr = 2.0\n", 0, "2.0 is not in the search space of `optimizer.lr`"),
        ("\"train.batch_size\" = 5\n", 0, "5 is not in the search space"),
        ("train.epochs = 5\n", 0, "`train.epochs` is not a parameter of the search"),
        ("", 0, "changes nothing"),
        (
            "optimizer.lr = 0.1\n[[sweep.start]]\noptimizer.lr = 0.10\n",
            1,
            "has the settings of trial 1",
        ),
    ] {
        let whole = text("tpe", &format!("[[sweep.start]]\n{start}"));
        refused(&whole, &[], whole.lines().count() - above, &[expected]);
    }
    let fixed = file("method = \"grid\"", LR) + start;
    refused(&fixed, &[], fixed.lines().count() - 3, &["`method = \"grid\"` does not use it"]);
    refused(&text("tpe", ""), &["sweep.time=0s"], 0, &["must be more than 0"]);
}

#[test]
fn repeats_need_as_many_folds_or_seeds_as_are_listed() {
    let head = "method = \"tpe\"\ntrials = 9\nrepeats = 3\npatience = 5";
    let with = |parameter: &str| file(head, &format!("{LR}\n{parameter}"));
    let sweep = good(&with(""), &[]);
    assert_eq!((sweep.search.repeats, sweep.patience), (Some(3), Some(5)));
    assert_eq!(good(&with("\"experiment.seed\" = [1, 2, 3, 4]"), &[]).search.repeats, Some(3));
    refused(
        &with("\"experiment.seed\" = [1, 2]"),
        &[],
        6,
        &["is 3, but there are only 2 values of `experiment.seed`", "`repeats = 2`"],
    );
    let drawn = "{ distribution = \"int_uniform\", min = 0, max = 1e9 }";
    let drawn = with(&format!("\"experiment.seed\" = {drawn}"));
    refused(&drawn, &[], 6, &["has too many values to count"]);
    let tied = "{ values = [1, 2, 3], when = { \"optimizer.lr\" = 0.1 } }";
    let tied = with(&format!("\"experiment.seed\" = {tied}"));
    refused(&tied, &[], 6, &["which is tied to other keys"]);
    let list = "schema = 1\nbase = \"base.toml\"\n[sweep]\nmethod = \"list\"\nrepeats = 2\n\
                [[sweep.list]]\nexperiment.seed = 1\n";
    refused(list, &[], 5, &["`sweep.list` sets `experiment.seed`"]);
    refused(&with(""), &["sweep.repeats=1"], 0, &["2"]);
    refused(&with(""), &["sweep.patience=0"], 0, &["1"]);
    let range = "schema = 1\nbase = \"base.toml\"\n[sweep]\nmethod = \"lr_range\"\nrepeats = 2\n";
    refused(range, &[], 5, &["does not use it"]);
}

#[test]
fn an_experiment_takes_hydras_spaces_and_keys_of_the_sweep_from_the_command_line() {
    let words = [
        "optimizer.lr=tag(log, interval(1e-3, 1))",
        "train.batch_size=choice(4,8)",
        "train.epochs=3",
        "sweep.method=random",
        "sweep.trials=5",
        "sweep.pruner=median",
    ];
    let sweep = good(BASE, &words);
    assert_eq!((sweep.name.as_str(), sweep.trials), ("tune-sweep", Some(5)));
    // A range test and a sweep cannot share a folder.
    assert_eq!(good(BASE, &["sweep.method=lr_range"]).name, "tune-lr-range");
    assert_eq!(sweep.changes, ["train.epochs=3"]);
    assert_eq!(sweep.search.method.name, "random");
    assert_eq!(sweep.search.parameters[0].domain, Domain::LogUniform { min: 1e-3, max: 1.0 });
    assert_eq!(sweep.search.pruner, Choice::of(&Median::default()));
    // A space of the command line takes the place of the file's.
    let sweep = good(&file("", LR), &["optimizer.lr=0.5,0.25,0.125"]);
    assert_eq!(sweep.search.parameters.len(), 1);
    assert_eq!(sweep.search.parameters[0].domain.points(9).unwrap().len(), 3);
}

#[test]
fn conditions_choose_between_two_entries_of_one_key() {
    let parameters = "\"optimizer.name\" = [\"sgd\", \"adamw\"]\n\
        \"optimizer.lr\" = [{ values = [0.1], when = { \"optimizer.name\" = \"sgd\" } }, \
        { values = [0.001, 0.01], when = { optimizer.name = \"adamw\" } }]\n\
        \"optimizer.momentum\" = { values = [0.9], when = { \"optimizer.name\" = [\"sgd\"] } }";
    let search = good(&file("", parameters), &[]).search;
    assert_eq!(search.parameters.len(), 4);
    let values = in_order(&search.parameters, |p| p.domain.extremes().pop());
    let keys: Vec<&str> = values.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["optimizer.name", "optimizer.lr"], "adamw has no momentum: {values:?}");
    assert_eq!(values[1].1, json!(0.01));
}

#[test]
fn an_empty_space_and_an_empty_list_of_values_are_refused() {
    refused(
        "schema = 1\nbase = \"base.toml\"\n[sweep]\n",
        &[],
        3,
        &["is empty: there is nothing to try"],
    );
    refused(&file("", "\"optimizer.lr\" = { values = [] }"), &[], 6, &["is empty"]);
    refused(&file("", "\"optimizer.lr\" = { values = [1.0, 1.0] }"), &[], 6, &["is listed twice"]);
    refused(&file("", "\"optimizer.lr\" = {}"), &[], 6, &["neither `values` nor `distribution`"]);
}

#[test]
fn a_parameter_that_is_no_key_of_an_experiment_is_refused_with_the_right_name() {
    refused(
        &file("", "\"optimizer.lrr\" = [0.1]"),
        &[],
        6,
        &["`optimizer.lrr`", "did you mean `optimizer.lr`?"],
    );
    refused(&file("", "\"optimizer\" = [0.1]"), &[], 6, &["is a table"]);
    refused(&file("", "\"distributed.devices\" = [1, 2]"), &[], 6, &["`sweep.devices_per_trial`"]);
    refused(BASE, &["optimizer.lrr=0.1,0.2"], 0, &["did you mean `optimizer.lr`?"]);
    let list = ["`data.transforms.train` must be a list of tables"];
    refused(BASE, &["data.transforms.train.size=8,9"], 0, &list);
    let numbers = file("", "\"data.transforms.train\" = [8, 9]");
    refused(&numbers, &[], 6, &["belongs to a list"]);
    let absent = ["`data.transforms.train` has "];
    refused(BASE, &["data.transforms.train[0].size=8,9"], 0, &absent);
}

/// The base with two transforms, as a file of its own beside the sweep.
fn with_transforms(parameters: &str) -> Result<Sweep, Problems> {
    let folder = tempfile::tempdir().unwrap();
    let transforms = "[[data.transforms.train]]\nname = \"random_crop\"\nsize = 8\npadding = 1\n\
                      [[data.transforms.train]]\nname = \"random_horizontal_flip\"\n";
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        path
    };
    write("base.toml", &format!("{BASE}{transforms}"));
    load(&write("tune.toml", &file("", parameters)), &[], vocabulary()).map(|(sweep, _)| sweep)
}

#[test]
fn an_entry_of_a_list_is_a_parameter_and_its_values_are_checked() {
    let page = |parameters: &str| with_transforms(parameters).unwrap_err().page(false, 200);
    let key = "data.transforms.train[0].size";
    let sweep = with_transforms(&format!("\"{key}\" = [8, 6]")).unwrap();
    assert_eq!(sweep.search.parameters[0].key, key);
    for (parameter, expected) in [
        (format!("\"{key}\" = [8, -6]"), "tune.toml:6:"),
        (format!("\"{key}\" = [8, \"big\"]"), "tune.toml:6:"),
        ("\"data.transforms.train[0].sise\" = [8, 6]".to_owned(), "sise"),
        (
            "\"data.transforms.train[2].size\" = [8, 6]".to_owned(),
            "its entries are `data.transforms.train[0]` to `data.transforms.train[1]`",
        ),
    ] {
        let page = page(&parameter);
        assert!(page.contains(expected) && page.contains(" problem"), "{parameter}:\n{page}");
    }
    // The whole list is a value, too.
    let lists = "\"data.transforms.train\" = [[{ name = \"random_horizontal_flip\" }], []]";
    let sweep = with_transforms(lists).unwrap();
    assert_eq!(sweep.search.parameters[0].domain.extremes()[1], json!([]));
}

#[test]
fn whole_tables_are_values_of_a_parameter() {
    let tables = "\"optimizer\" = [{ name = \"sgd\", lr = 0.1, momentum = 0.9 }, \
                  { name = \"adamw\", lr = 1e-3 }]";
    let sweep = good(&file("", tables), &[]);
    let parameter = &sweep.search.parameters[0];
    let sgd = json!({ "name": "sgd", "lr": 0.1, "momentum": 0.9 });
    assert_eq!((parameter.key.as_str(), &parameter.domain.extremes()[0]), ("optimizer", &sgd));
    let wrong = tables.replace("lr = 1e-3", "momentum = 0.5");
    refused(&file("", &wrong), &[], 6, &["momentum", "adamw"]);
    refused(&file("", &format!("{tables}\n{LR}")), &[], 7, &["is part of `optimizer`"]);
    let when = "\"train.epochs\" = { values = [1, 2], when = { \"optimizer.name\" = \"sgd\" } }";
    refused(&file("", &format!("{tables}\n{when}")), &[], 7, &["whose values are whole tables"]);
    let own = "\"experiment\" = [{ name = \"a\" }, { name = \"b\" }]";
    refused(&file("", own), &[], 6, &["is set by the sweep itself"]);
    let start = format!(
        "{}[[sweep.start]]\noptimizer = {{ name = \"adamw\", lr = 1e-3 }}\n",
        file("trials = 2\nmethod = \"tpe\"", tables)
    );
    assert_eq!(good(&start, &[]).search.start[0][0].0, "optimizer");
}

#[test]
fn a_condition_on_the_base_decides_once_for_all_trials() {
    let with =
        |when: &str| format!("{LR}\n\"train.epochs\" = {{ values = [1, 2], when = {when} }}");
    let keys = |text: &str, words: &[&str]| -> Vec<String> {
        good(text, words).search.parameters.into_iter().map(|one| one.key).collect()
    };
    let holds = file("", &with("{ \"optimizer.name\" = [\"sgd\", \"lion\"] }"));
    assert_eq!(keys(&holds, &[]), ["optimizer.lr", "train.epochs"]);
    assert_eq!(keys(&holds, &["optimizer.name=adamw"]), ["optimizer.lr"]);
    let absent = file("", &with("{ \"train.clip_grad_norm\" = \"off\" }"));
    assert_eq!(keys(&absent, &[]), ["optimizer.lr", "train.epochs"]);
    refused(&file("", &with("{ \"optimizer.name\" = \"sdg\" }")), &[], 7, &["is never \"sdg\""]);
    refused(&file("", &with("{ \"optimizer.nam\" = \"sgd\" }")), &[], 7, &["is not a parameter"]);
    let alone = "\"train.epochs\" = { values = [1], when = { \"optimizer.name\" = \"adamw\" } }";
    refused(&file("", alone), &[], 5, &["leaves nothing to try"]);
}

#[test]
fn a_value_that_the_experiment_cannot_have_is_refused_where_it_stands() {
    refused(&file("", "\"optimizer.lr\" = { values = [0.1, -1.0] }"), &[], 6, &["from 0 to 1e6"]);
    refused(&file("", "\"optimizer.name\" = [\"sgd\", \"sgdd\"]"), &[], 6, &["sgd"]);
    let both = "\"optimizer.name\" = [\"sgd\", \"adamw\"]\n\"optimizer.momentum\" = [0.9]";
    let help = "when = { \"optimizer.name\" = [\"sgd\", \"rmsprop\", \"muon\"] }";
    refused(&file("", both), &[], 7, &["belongs to `sgd`", help]);
}

#[test]
fn a_value_is_blamed_on_its_own_parameter_however_many_others_there_are() {
    let lr = "\"optimizer.lr\" = [0.1, 0.2]\n";
    let momentum = |values: &str| {
        file("", &format!("{lr}\"optimizer.momentum\" = {values}\n\"train.epochs\" = [1, 2]"))
    };
    let (first, second) = ("tune.toml:7:25", "tune.toml:7:30");
    refused(&momentum("[1.5, 0.9]"), &[], 7, &["`optimizer.momentum`", first, "1 problem;"]);
    refused(&momentum("[0.9, 1.5]"), &[], 7, &["`optimizer.momentum`", second, "1 problem;"]);
    let three = momentum("[9.5, 1.5]").replace("[1, 2]", "[0, 1]");
    refused(&three, &[], 7, &[first, second, "`train.epochs`", "tune.toml:8:", "3 problems;"]);
    // What only follows from it, too: `nesterov` is wrong, because of a momentum.
    let words = ["`optimizer.momentum`: with 0.0, `optimizer.nesterov` needs", first, "1 problem;"];
    let others = ["optimizer.nesterov=true", "optimizer.momentum=0.5"];
    refused(&momentum("[0.0, 0.9]"), &others, 7, &words);
}

#[test]
fn of_a_list_on_the_command_line_the_wrong_value_is_underlined() {
    let check = |word: &str, place: &str, what: &str| {
        refused(BASE, &[word], 0, &[&format!("command line:1:{place}\n"), what, "1 problem;"]);
    };
    check("optimizer.lr=0.1,-1", "18", "not -1.0");
    check("optimizer.lr= choice(0.1, -1)", "27", "not -1.0");
    check("optimizer.name=sgd,sgdd", "20", "did you mean `sgd`?");
    check("train.batch_size=8,8,4", "20", "is listed twice");
    check("optimizer.lr=interval(2,1)", "23", "must be less than `max`");
}

#[test]
fn of_two_values_each_of_which_is_enough_neither_a_third_is_blamed() {
    let parameters =
        "\"optimizer.lr\" = [0.1]\n\"optimizer.momentum\" = [0.0]\n\"optimizer.dampening\" = [0.5]";
    let others = ["optimizer.nesterov=true", "optimizer.momentum=0.5"];
    let words =
        ["with `optimizer.momentum=0.0` or `optimizer.dampening=0.5`, `optimizer.nesterov`"];
    refused(&file("", parameters), &others, 7, &words);
}

#[test]
fn conflicting_conditions_are_refused() {
    let when = |first: &str, second: &str| {
        let parameters = format!(
            "\"optimizer.name\" = {{ values = [\"sgd\"]{first} }}\n\
             \"optimizer.momentum\" = {{ values = [0.9], when = {second} }}"
        );
        file("", &parameters)
    };
    refused(&when("", "{ \"optimizer.name\" = \"adam\" }"), &[], 7, &["is never \"adam\""]);
    refused(
        &when("", "{ \"optimizer.nam\" = \"sgd\" }"),
        &[],
        7,
        &["did you mean `optimizer.name`?"],
    );
    refused(&when("", "{ \"optimizer.momentum\" = 0.9 }"), &[], 7, &["the parameter itself"]);
    let circle =
        when(", when = { \"optimizer.momentum\" = 0.9 }", "{ \"optimizer.name\" = \"sgd\" }");
    refused(&circle, &[], 6, &["depends on this parameter itself"]);
    let twice = "\"optimizer.lr\" = [{ values = [0.1] }, { values = [0.2] }]";
    refused(&file("", twice), &[], 6, &["is given twice"]);
}

#[test]
fn a_metric_that_the_run_never_reports_is_refused() {
    refused(&file("metric = \"val/acuracy\"", LR), &[], 4, &["did you mean `val/accuracy`?"]);
    refused(&file("metric = \"test/accuracy\"", LR), &[], 4, &["select on a validation metric"]);
    refused(&file("metric = \"train/loss\"", LR), &[], 4, &["select on a validation metric"]);
    let never = file("metric = \"val/loss\"", LR);
    refused(&never, &["validation.every=never"], 4, &["is never measured"]);
    refused(&file("metric = \"val/loss\"\ngoal = \"max\"", LR), &[], 5, &["keep the worst"]);
}

#[test]
fn zero_trials_and_a_method_without_an_end_are_refused() {
    refused(&file("trials = 0", LR), &[], 4, &["must be at least 1, not 0"]);
    refused(&file("method = \"random\"", LR), &[], 4, &["`random` needs `sweep.trials`"]);
    let line = "\"optimizer.lr\" = { distribution = \"uniform\", min = 0.1, max = 1.0 }";
    refused(&file("", line), &[], 6, &["too many values for a grid"]);
    let wide = "\"experiment.seed\" = { distribution = \"int_uniform\", min = 1, max = 90000 }\n";
    refused(&file("", &(wide.to_owned() + LR)), &[], 5, &["180000 combinations"]);
}

#[test]
fn a_sweep_of_the_command_line_is_told_words_of_the_command_line() {
    let interval = "optimizer.lr=interval(0.1,1)";
    refused(BASE, &[interval], 0, &["too many values for a grid", "`sweep.method=random`"]);
    refused(BASE, &[interval, "sweep.method=random"], 0, &["add it: `sweep.trials=24`"]);
    let log = ["no function `loguniform`", "write `tag(log, interval(1e-4,1))`", "1 problem;"];
    refused(BASE, &["optimizer.lr=loguniform(1e-4,1)"], 0, &log);
}

#[test]
fn a_number_of_ranks_that_no_trial_would_have_is_refused() {
    let words = ["`distributed.devices`", "is set by the sweep", "use `sweep.devices_per_trial`"];
    refused(&file("", LR), &["distributed.devices=4"], 0, &words);
    refused(BASE, &["optimizer.lr=0.1,0.2", "+distributed.devices=[0, 1]"], 0, &words);
}

#[test]
fn numbers_in_the_wrong_order_or_without_a_logarithm_are_refused() {
    let with = |table: &str| file("", &format!("\"optimizer.lr\" = {{ {table} }}"));
    refused(&with("distribution = \"uniform\", min = 2, max = 1"), &[], 6, &["less than `max`"]);
    refused(&with("distribution = \"log_uniform\", min = 0, max = 1"), &[], 6, &["no logarithm"]);
    refused(&with("distribution = \"uniform\", min = 0.1"), &[], 6, &["needs `max`"]);
    refused(&with("distribution = \"q_uniform\", min = 0.1, max = 1"), &[], 6, &["needs `q`"]);
    refused(
        &with("distribution = \"loguniform\", min = 0.1, max = 1"),
        &[],
        6,
        &["did you mean `log_uniform`?"],
    );
    refused(&with("values = [1.0], min = 0.5"), &[], 6, &["has no meaning for `categorical`"]);
}

#[test]
fn every_other_slip_of_the_file_is_shown_where_it_is() {
    refused(&file("metod = \"grid\"", LR), &[], 4, &["did you mean `method`?"]);
    refused(&file("method = \"gird\"", LR), &[], 4, &["did you mean `grid`?"]);
    refused(&file("constraints = [\"a.b <= 3\"]", LR), &[], 4, &["`a.b` is not a key"]);
    refused(&file("constraints = [\"train.epochs = 3\"]", LR), &[], 4, &["unexpected `=`"]);
    refused(&file("constraints = [\"µ <= 3\"]", LR), &[], 4, &["unexpected character `µ`"]);
    refused(&file("pruner = \"asah\"", LR), &[], 4, &["did you mean `asha`?"]);
    refused(&file("", LR).replace("base.toml", "bas.toml"), &[], 2, &["base.toml`?"]);
    refused(&file("name = \"../x\"", LR), &[], 4, &["cannot name a folder"]);
    refused(&file("method = \"list\"", ""), &[], 4, &["`list` has nothing to try"]);
    let text = file("", LR) + "[sweep.pruner]\nname = \"asha\"\nmax_resource = \"1 epoch\"\n";
    refused(&text, &[], 9, &["more than `min_resource`"]);
}

#[test]
fn a_list_holds_trials_as_they_are() {
    let text = "schema = 1\nbase = \"base.toml\"\n[sweep]\nmethod = \"list\"\n\
        [[sweep.list]]\n\"optimizer.lr\" = 0.5\ntrain.batch_size = 4\n[[sweep.list]]\noptimizer.lr = 0.25\n";
    let search = good(text, &[]).search;
    assert_eq!(search.list.len(), 2);
    assert_eq!(search.list[1], [("optimizer.lr".to_owned(), json!(0.25))]);
}

#[test]
fn a_learning_rate_range_test_needs_no_metric_and_takes_no_parameters() {
    let text = "schema = 1\nbase = \"base.toml\"\n[sweep]\nmethod = \"lr_range\"\n";
    let range = LrRange { min: 1e-6, max: 10.0, steps: 100 };
    assert_eq!(good(text, &[]).search.method, Choice::of(&range));
    refused(
        &file("method = \"lr_range\"", LR),
        &[],
        5,
        &["`method = \"lr_range\"` does not use it", "help: remove it"],
    );
    let backwards = text.to_owned() + "[sweep.lr_range]\nmin = 1.0\nmax = 0.1\n";
    refused(&backwards, &[], 6, &["less than the last rate"]);
}

#[test]
fn a_path_of_the_base_is_relative_to_the_sweep() {
    assert_eq!(
        good(&file("", LR), &[]).base.file_name(),
        Some(PathBuf::from("base.toml").as_os_str())
    );
}

#[test]
fn options_of_methods_and_pruners_are_checked_as_those_of_other_kinds() {
    let of_pruner = |options: &str| file("", LR) + "[sweep.pruner]\n" + options;
    let median = of_pruner("name = \"median\"\nreduction_factor = 4\n");
    refused(&median, &[], 9, &["belongs to `asha`, but `name` is `median`"]);
    let misspelt = of_pruner("name = \"asha\"\nreduction_facto = 4\n");
    refused(&misspelt, &[], 9, &["did you mean `reduction_factor`?"]);
    let range = of_pruner("name = \"asha\"\nreduction_factor = 1\n");
    refused(&range, &[], 9, &["must be from 2 to 100, not 1"]);
    let kind = of_pruner("name = \"asha\"\nreduction_factor = \"3\"\n");
    refused(&kind, &[], 9, &["must be a whole number", "without quotes: 3"]);
    let never = of_pruner("name = \"asha\"\nmin_resource = \"never\"\n");
    refused(&never, &[], 9, &["must be a count with its unit"]);
    let range_test = "schema = 1\nbase = \"base.toml\"\n[sweep]\nmethod = \"lr_range\"\n\
                      [sweep.lr_range]\nsteps = 5\nmix = 1.0\n";
    refused(range_test, &[], 6, &["must be at least 10, not 5", "did you mean `min`?"]);
}

#[test]
fn a_number_that_is_not_finite_is_refused_wherever_it_is_written() {
    let inf = "must be a finite number, not inf";
    refused(&file("", "\"optimizer.lr\" = [0.1, inf]"), &[], 6, &["`optimizer.lr`", inf]);
    refused(&file("", "\"optimizer.lr\" = { values = [nan] }"), &[], 6, &["not NaN"]);
    refused(&file("", "\"optimizer.betas\" = [[0.9, -inf]]"), &[], 6, &["not -inf"]);
    refused(BASE, &["optimizer.lr=nan,0.1"], 0, &["command line:1:14\n", "not NaN", "1 problem;"]);
    refused(BASE, &["optimizer.lr=choice(0.1,inf)"], 0, &[inf]);
    refused(BASE, &["model.hidden=[8],[inf]"], 0, &[inf]);
    refused(BASE, &["train.batch_size=4,8", "optimizer.lr=inf"], 0, &["from 0 to 1e6"]);
    let list = "schema = 1\nbase = \"base.toml\"\n[sweep]\nmethod = \"list\"\n[[sweep.list]]\n";
    refused(&(list.to_owned() + "\"optimizer.lr\" = inf\n"), &[], 6, &[inf, "1 problem;"]);
    let bound = "\"optimizer.lr\" = { distribution = \"uniform\", min = 0.1, max = inf }";
    refused(&file("", bound), &[], 6, &["must be a number"]);
    let when = "\"train.epochs\" = [1, 2]\n\
                \"optimizer.lr\" = { values = [0.1], when = { \"train.epochs\" = inf } }";
    refused(&file("", when), &[], 7, &["must hold finite numbers, not inf"]);
}

/// The values of the first parameter.
fn values_of_first(text: &str, words: &[&str]) -> Vec<Json> {
    match good(text, words).search.parameters.remove(0).domain {
        Domain::Categorical { values } => values,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_without_a_default_can_be_off_in_some_trials() {
    let clip = "\"train.clip_grad_norm\" = ";
    for word in ["\"off\"", "\"null\""] {
        let text = file("", &format!("{clip}[1.0, {word}]"));
        assert_eq!(values_of_first(&text, &[]), [json!(1.0), json!(null)], "{word}");
    }
    for word in ["null,1.0", "off,1.0", "choice(null, 1.0)"] {
        let word = format!("train.clip_grad_norm={word}");
        assert_eq!(values_of_first(BASE, &[&word]), [json!(null), json!(1.0)], "{word}");
    }
    assert_eq!(change_of("train.clip_grad_norm", &json!(null)), "train.clip_grad_norm=null");
    // What the base sets is taken away.
    let search = good(&file("", &format!("{clip}[2.0, \"off\"]")), &["train.clip_grad_norm=5"]);
    let (_, base) = load_in(&file("", LR), &["train.clip_grad_norm=5"]).unwrap();
    assert_eq!(base.experiment.train.clip_grad_norm, Some(5.0));
    assert_eq!(search.search.parameters.len(), 1);
    // A path is text, and is off where there is none by default.
    let weights = "\"model.pretrained\" = [\"a.safetensors\", \"off\"]";
    let weights = values_of_first(&file("", weights), &[]);
    assert_eq!(weights, [json!("a.safetensors"), json!(null)]);
    // In a condition, and in a list of trials.
    let when = format!(
        "{clip}[1.0, \"off\"]\n\
         \"optimizer.lr\" = {{ values = [0.1], when = {{ \"train.clip_grad_norm\" = \"off\" }} }}"
    );
    let search = good(&file("", &when), &[]).search;
    let values = in_order(&search.parameters, |p| p.domain.extremes().pop());
    assert_eq!(values.len(), 2, "{values:?}");
    let list = "schema = 1\nbase = \"base.toml\"\n[sweep]\nmethod = \"list\"\n\
                [[sweep.list]]\n\"train.clip_grad_norm\" = \"off\"\n\"train.epochs\" = 3\n";
    assert_eq!(good(list, &[]).search.list[0][0].1, json!(null));
}

#[test]
fn a_key_with_a_default_is_never_off_and_a_word_of_its_own_stays() {
    let momentum = "\"optimizer.momentum\" = [0.9, \"off\"]";
    let words = ["`off` would be the default, 0.0: `optimizer.momentum` is never off"];
    refused(&file("", momentum), &[], 6, &words);
    refused(BASE, &["train.epochs=null,3"], 0, &["`train.epochs`"]);
    let rule = values_of_first(&file("", "\"lr_scaling.rule\" = [\"none\", \"linear\"]"), &[]);
    assert_eq!(rule, [json!("none"), json!("linear")]);
}

#[test]
fn a_trial_that_is_listed_twice_is_refused_however_it_is_written() {
    let list = |second: &str| {
        format!(
            "schema = 1\nbase = \"base.toml\"\n[sweep]\nmethod = \"list\"\n\
             [[sweep.list]]\n\"train.epochs\" = 3\n[[sweep.list]]\n{second}\n"
        )
    };
    let words = ["has the settings of trial 1", "another `experiment.seed`"];
    refused(&list("\"train.epochs\" = 3"), &[], 7, &words);
    refused(&list("\"train.epochs\" = 3\n\"optimizer.lr\" = 0.10"), &[], 7, &words);
    good(&list("\"train.epochs\" = 3\n\"experiment.seed\" = 7"), &[]);
    let twice = "\"optimizer.lr\" = { values = [1, 1.0] }";
    refused(&file("", twice), &[], 6, &["is listed twice"]);
}

#[test]
fn a_pruner_and_its_options_may_come_from_several_places() {
    let three = Asha { min_resource: Interval::Epochs(3), ..Asha::default() };
    let option = "sweep.pruner.min_resource=3 epochs";
    let lr = "optimizer.lr=0.1,0.2";
    let pruner = |text: &str, words: &[&str]| good(text, words).search.pruner;
    assert_eq!(pruner(BASE, &[lr, "sweep.pruner=asha", option]), Choice::of(&three));
    assert_eq!(pruner(BASE, &[lr, option, "sweep.pruner=asha"]), Choice::of(&three));
    assert_eq!(pruner(BASE, &[lr, "sweep.pruner.name=asha", option]), Choice::of(&three));
    assert_eq!(pruner(&file("pruner = \"asha\"", LR), &[option]), Choice::of(&three));
    let table = file("", LR) + "[sweep.pruner]\nname = \"asha\"\nreduction_factor = 4\n";
    let four = Asha { reduction_factor: 4, ..three };
    assert_eq!(pruner(&table, &[option]), Choice::of(&four));
    // Another kind does without the options of the first, and keeps what both have.
    let median = Median { min_resource: Interval::Epochs(3), ..Median::default() };
    assert_eq!(pruner(&table, &["sweep.pruner=median", option]), Choice::of(&median));
    assert_eq!(pruner(&table, &["sweep.pruner=none"]).name, "none");
    refused(BASE, &[lr, "sweep.pruner=asah", option], 0, &["did you mean `asha`?"]);
    refused(BASE, &[lr, option], 0, &["has no name"]);
}
