//! Samples that are drawn by their classes, taken in part, or held back.

use crate::experiments::BASE;
use crate::lab::Lab;
use crate::resume::bits;

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

#[test]
fn draws_are_the_same_at_any_number_of_ranks_and_after_a_resume() {
    let drawn = HELD.to_owned() + "sampler = \"balanced\"\nfraction = 0.5";
    let whole = table(&drawn);
    let page = whole.run_to(0, &["plan", "small.toml"]).stdout;
    assert!(page.contains("48 to train on, 12 to validate, 12 to test"), "{page}");
    whole.run_to(0, &["small.toml", "distributed.shards=2"]);
    let said = |name: &str| whole.events().into_iter().find(|event| event["event"] == name);
    let partitioned = said("partitioned").unwrap();
    assert_eq!(partitioned["samples"], 48);
    assert!(partitioned["repeated"].as_u64().unwrap() > 5, "{partitioned}");
    let tested = said("tested").unwrap();
    assert!(tested["metrics"]["test/accuracy"].is_number() && tested["samples"] == 12, "{tested}");
    // The same again on one rank, in two parts.
    let parts = table(&drawn);
    let one = ["distributed.shards=2", "distributed.devices=1"];
    parts.run_to(0, &[&["small.toml", "train.epochs=1"], &one[..]].concat());
    parts.run_to(0, &["resume", "train.epochs=2"]);
    bits(&parts).must_be(&bits(&whole));
    parts.is_clean();
}

#[test]
fn what_does_not_go_together_is_refused_with_its_key() {
    let lab = table("");
    let check = |changes: &[&str], words: &[&str]| {
        lab.run_to(2, &[&["plan", "small.toml"], changes].concat()).says(words);
    };
    check(&[], &["`data.val_file`: is missing: give it, or hold samples back"]);
    check(&["data.folds=5", "data.fold=5"], &["`data.fold`: is 5, but the last of 5 parts is 4"]);
    let held = "data.val_fraction=0.2";
    check(&[held, "data.sampler=weighted"], &["needs `data.class_weights`"]);
    check(
        &[held, "data.sampler=weighted", "data.class_weights=[1.0]"],
        &["`data.class_weights`: has 1 weights, but the classes are 0, 1"],
    );
    check(&[held, "data.limit=5", "data.fraction=0.5"], &["both say how many samples"]);
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
