//! Samples that are drawn by their classes, taken in part, or held back.

use serde_json::Value;

use crate::harness::bits::undisturbed;
use crate::harness::experiments::BASE;
use crate::harness::lab::Lab;

/// A table of 120 rows, of which ten are of a rare class: 96 train, 12 validate, 12 test.
fn table(data: &str) -> Lab {
    let lab = Lab::new();
    let row = |i: u32| format!("{i},{},{},{}\n", i % 7, i * i % 11, u32::from(i % 12 == 5));
    lab.write("all.csv", "id,a,b,y\n".to_owned() + &(0..120).map(row).collect::<String>());
    let from = BASE.find("name = \"shapes\"").unwrap();
    let to = BASE.find("num_workers").unwrap();
    let csv = "name = \"csv\"\ntrain_file = \"all.csv\"\ntarget = \"y\"\nignore = [\"id\"]\n";
    lab.write("small.toml", BASE[..from].to_owned() + csv + data + "\n" + &BASE[to..]);
    lab
}

const HELD: &str = "val_fraction = 0.1\ntest_fraction = 0.1\n";

/// Half of the rows that are not held back, by classes that are drawn alike.
pub(crate) fn balanced() -> Lab {
    table(&(HELD.to_owned() + "sampler = \"balanced\"\nfraction = 0.5"))
}

#[test]
fn samples_that_are_drawn_and_held_back_are_counted_and_tested() {
    let whole = balanced();
    let page = whole.run_to(0, &["plan", "small.toml"]).stdout;
    assert!(page.contains("48 to train on, 12 to validate, 12 to test"), "{page}");
    whole.run_to(0, &["small.toml", "distributed.shards=2"]);
    let said = |name: &str| whole.events().into_iter().find(|event| event["event"] == name);
    let partitioned = said("partitioned").unwrap();
    assert_eq!(partitioned["samples"], 48);
    assert!(partitioned["repeated"].as_u64().unwrap() > 5, "{partitioned}");
    let tested = said("tested").unwrap();
    assert!(tested["metrics"]["test/accuracy"].is_number() && tested["samples"] == 12, "{tested}");
}

#[test]
fn what_does_not_go_together_is_refused_with_its_key() {
    let lab = table("");
    let check = |changes: &[&str], words: &[&str]| {
        lab.run_to(2, &[&["plan", "small.toml"], changes].concat()).says(words);
    };
    check(&[], &["`data.val_file`: is missing: give it, or hold out samples"]);
    check(&["data.folds=5", "data.fold=5"], &["`data.fold`: is 5, but the last of 5 parts is 4"]);
    let held = "data.val_fraction=0.2";
    check(&[held, "data.sampler=weighted"], &["needs `data.class_weights`"]);
    check(
        &[held, "data.sampler=weighted", "data.class_weights=[1.0]"],
        &["`data.class_weights`: has 1 weight, but the classes are 0, 1"],
    );
    check(&[held, "data.limit=5", "data.fraction=0.5"], &["both set the number of samples"]);
    check(&[held, "data.limit=0"], &["`data.limit`"]);
    check(
        &[held, "loss.name=mse", "data.sampler=balanced"],
        &["`data.sampler`: draws by classes, but samples of `csv` have none"],
    );
    check(
        &[held, "expect.\"test/loss\"={at_most=9.0}"],
        &["`test/loss` is never measured: there is nothing to test on"],
    );
    lab.is_clean();
}

#[test]
fn folds_are_a_sweep_with_a_mean_and_a_spread_and_each_trial_is_tested() {
    let lab = table("folds = 3\ntest_fraction = 0.1");
    let page = lab.run_to(0, &["plan", "small.toml", "data.fold=2"]).stdout;
    assert!(page.contains("fold 2 of 3 validates, 0.1 held back to"), "{page}");
    assert!(page.contains("72 to train on, 36 to validate, 12 to test"), "{page}");
    let words = ["sweep", "small.toml", "data.fold=0,1,2", "train.epochs=1", "--json"];
    let printed = lab.run_to(0, &words).stdout;
    let swept: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    let trials = swept["trials"].as_array().unwrap();
    let reached: Vec<f64> = trials.iter().map(|trial| trial["value"].as_f64().unwrap()).collect();
    let mean = reached.iter().sum::<f64>() / 3.0;
    let over = &swept["repeats"][0];
    assert_eq!((reached.len(), &over["trials"]), (3, &Value::from(3)));
    assert!((over["mean"].as_f64().unwrap() - mean).abs() < 1e-12, "{swept}");
    let squares: f64 = reached.iter().map(|value| (value - mean).powi(2)).sum();
    assert!((over["sd"].as_f64().unwrap() - (squares / 2.0).sqrt()).abs() < 1e-12, "{swept}");
    let report = lab.run_to(0, &["report", "small-sweep"]).stdout;
    assert!(report.contains("over `data.fold`:"), "{report}");
    let of = |part: &[&str]| -> Value {
        let words = [&["eval", "small-sweep", "--json"], part].concat();
        serde_json::from_str(&lab.run_to(0, &words).stdout).unwrap()
    };
    let names = |found: &Value| -> Vec<String> {
        found["metrics"].as_object().unwrap().keys().cloned().collect()
    };
    assert!(names(&of(&["--part", "test"])).iter().all(|name| name.starts_with("test/")));
    assert!(names(&of(&["--part", "val"])).iter().all(|name| name.starts_with("val/")));
    let all = names(&of(&[]));
    assert!(["val/loss", "test/loss"].iter().all(|name| all.iter().any(|known| known == name)));
    lab.is_clean();
}

#[test]
fn generated_images_validate_and_the_others_test() {
    let lab = Lab::new();
    let held = ["small.toml", "data.val_fraction=0.25", "train.epochs=1"];
    let page = lab.run_to(0, &[&["plan"], &held[..]].concat()).stdout;
    lab.run_to(0, &held);
    let said = |name: &str| lab.events().into_iter().find(|event| event["event"] == name);
    let tested = said("tested").unwrap();
    assert!(page.contains(&format!(", {} to test", tested["samples"])), "{page}");
    lab.run_to(2, &["eval", "--part", "train"]);
    let without = Lab::new();
    without.run_to(0, &["small.toml", "train.epochs=1"]);
    without.run_to(2, &["eval", "--part", "test"]).says(&["`shapes` has no part to test on"]);
}

#[test]
fn answers_are_averaged_over_views_of_images_alone() {
    let lab = Lab::new();
    let sized =
        "data.transforms.val=[{name=\"resize\",size=[16,20]},{name=\"center_crop\",size=16}]";
    lab.run_to(0, &["small.toml", "train.epochs=1", sized]);
    let loss = |how: &[&str]| -> f64 {
        let ended = lab.run_to(0, &[&["eval", "--json"], how].concat());
        let found: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
        found["metrics"]["val/loss"].as_f64().unwrap()
    };
    let [one, moved, five, ten, drawn] =
        ["hflip", "hflip_translate", "five_crop", "ten_crop", "draws=3"]
            .map(|how| loss(&["--tta", how]));
    assert!(five != ten && one != five && one != moved);
    assert!([one, moved, five, ten, drawn].iter().all(|x| x.is_finite()));
    // Nothing is random in the training transforms: all draws are the image itself, in 16 x 16.
    assert!((loss(&["--tta", "draws=2"]) - drawn).abs() < 1e-5);
    lab.run_to(2, &["eval", "--tta", "rotate"])
        .says(&["must be hflip, hflip_translate, five_crop, ten_crop"]);
    let plain = Lab::new();
    plain.run_to(0, &["small.toml", "train.epochs=1"]);
    plain.run_to(2, &["eval", "--tta", "ten_crop"]).says(&["needs a `center_crop`", "do: "]);
    let numbers = table(HELD);
    numbers.run_to(0, &["small.toml", "train.epochs=1"]);
    numbers
        .run_to(2, &["eval", "--tta", "hflip"])
        .says(&["`--tta hflip` is for images, but `csv` holds rows of a table"]);
}

#[test]
fn mixed_images_need_a_loss_that_takes_them_and_may_be_swept_over() {
    let lab = Lab::new();
    let mixes = "data.mixup.mixup_alpha=0.8";
    let refused = lab.run_to(2, &["plan", "small.toml", mixes, "loss.name=focal"]);
    refused.says(&["`data.mixup.mixup_alpha`", "data.mixup.mixup_alpha=0.8"]);
    lab.run_to(2, &["plan", "small.toml", "data.aug_repeats=2", "data.sampler=torch"])
        .says(&["`data.aug_repeats`: needs `data.sampler = \"shards\"`"]);
    let words = ["sweep", "small.toml", "train.epochs=1", "--json"];
    let spaces = ["train.batch_size=2,4", "data.mixup.mixup_alpha=0,0.8"];
    let ended = lab.run_to(0, &[&words[..], &spaces].concat());
    let swept: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    let value = |size: u64, alpha: f64| {
        let of = |trial: &&Value| {
            trial["values"]["train.batch_size"].as_u64() == Some(size)
                && trial["values"]["data.mixup.mixup_alpha"].as_f64() == Some(alpha)
        };
        swept["trials"].as_array().unwrap().iter().find(of).unwrap()["value"].as_f64().unwrap()
    };
    // The global batch is the same, and so is what is mixed in it.
    for alpha in [0.0, 0.8] {
        assert!((value(2, alpha) - value(4, alpha)).abs() < 1e-4, "{swept}");
    }
    assert!((value(2, 0.0) - value(2, 0.8)).abs() > 1e-3, "{swept}");
}

/// Each image thrice, cut and mixed at random.
pub(crate) const REPEATED: [&str; 4] = [
    "data.aug_repeats=3",
    "data.mixup.mixup_alpha=0.8",
    "distributed.shards=2",
    "data.transforms.train=[{name=\"random_crop\",size=16,padding=2}]",
];

#[test]
fn repeated_images_are_counted() {
    let lab = Lab::new();
    lab.run_to(0, &[&["small.toml"], &REPEATED[..]].concat());
    let said = lab.events().into_iter().find(|event| event["event"] == "partitioned").unwrap();
    assert_eq!((&said["samples"], &said["repeated"]), (&48.into(), &32.into()));
}

#[test]
fn images_mixed_by_pairs_are_others() {
    let mixed = ["data.mixup.mixup_alpha=0.8", "data.mixup.cutmix_alpha=1"];
    let pairs = [&mixed[..], &["data.mixup.mode=pair"]].concat();
    let [one, other] = [&mixed[..], &pairs].map(|changes| undisturbed(&Lab::new(), changes));
    assert!(one != other);
}
