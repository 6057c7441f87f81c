//! Samples held back from training.

use super::{GOOD, good, page, told, with};

/// `GOOD` without a folder to validate on, with these changes.
fn alone() -> String {
    with("val_dir = \"data/val\"\n", "")
}

#[test]
fn of_two_keys_the_one_that_was_not_typed_is_to_be_omitted() {
    let said = page(GOOD, &["data.val_fraction=0.2"]);
    assert!(said.contains("on the command line `~data.val_dir` does"), "{said}");
    let both = with("val_dir = ", "val_fraction = 0.2\nval_dir = ");
    let said = page(&both, &[]);
    assert!(said.contains("on the command line `~data.val_fraction` does"), "{said}");
}

#[test]
fn what_is_held_back_goes_with_the_data_set() {
    good(&alone(), &["data.val_fraction=0.2", "data.test_fraction=0.1"]);
    good(&alone(), &["data.folds=5", "data.fold=4"]);
    good(GOOD, &["data.test_fraction=0.1"]);
    let check = |text: &str, changes: &[&str], expected: &str| {
        assert_eq!(told(text, changes), [expected], "{changes:?}");
    };
    check(
        &alone(),
        &[],
        "`data.val_dir`: is missing: give it, or hold out samples with `val_fraction` or `folds`",
    );
    check(
        GOOD,
        &["data.val_fraction=0.2"],
        "`data.val_fraction`: cannot be combined with `data.val_dir`",
    );
    check(GOOD, &["data.folds=3"], "`data.folds`: cannot be combined with `data.val_dir`");
    check(GOOD, &["data.fold=1"], "`data.fold`: needs `data.folds`, the number of parts");
    check(
        GOOD,
        &["data.test_dir=x", "data.test_fraction=0.1"],
        "`data.test_fraction`: cannot be combined with `data.test_dir`",
    );
    check(
        &alone(),
        &["data.val_fraction=0.5", "data.test_fraction=0.5"],
        "`data.val_fraction`: leaves nothing to train on, with `data.test_fraction`",
    );
    check(
        &alone(),
        &["data.folds=5", "data.fold=5"],
        "`data.fold`: is 5, but the last of 5 parts is 4",
    );
    check(
        &alone(),
        &["data.val_fraction=1.5"],
        "`data.val_fraction`: must be between 0 and 1, not 1.5",
    );
}

#[test]
fn each_data_set_says_what_it_can_hold_back() {
    let of = |data: &str| {
        let from = GOOD.find("name = \"image_folder\"").unwrap();
        let (to, rest) = (GOOD.find("[[data").unwrap(), GOOD.find("[train]").unwrap());
        assert!(from < to);
        format!("{}{data}\n{}", &GOOD[..from], &GOOD[rest..])
    };
    let mnist = of("name = \"mnist\"\ndir = \"data/mnist\"");
    good(&mnist, &["data.folds=5", "expect.\"test/loss\"={at_most=1}"]);
    assert_eq!(
        told(&mnist, &["data.val_fraction=0.1", "data.test_fraction=0.1"]),
        ["`data.test_fraction`: cannot be combined with `data.val_fraction`: `mnist` then \
             tests on its validation part"]
    );
    let forecast = of("name = \"csv_forecast\"\nfile = \"x.csv\"\nseq_len = 8\npred_len = 2");
    assert_eq!(
        told(&forecast, &["data.val_fraction=0.1"]),
        ["`data.val_fraction`: `csv_forecast` has parts of its own: nothing can be held out"]
    );
    let text = of("name = \"tokens\"\nfile = \"x.txt\"\nseq_len = 8");
    good(&text, &["data.val_fraction=0.1", "data.test_fraction=0.1"]);
    assert_eq!(
        told(&text, &["data.folds=5"]),
        ["`data.folds`: `tokens` is cut in its order: give `val_fraction`"]
    );
    let table = of("name = \"csv\"\ntrain_file = \"x\"\nval_file = \"y\"\ntarget = \"z\"");
    assert_eq!(
        told(&table, &["data.group=patient"]),
        ["`data.group`: needs `val_fraction`, `test_fraction` or `folds`: nothing is held out"]
    );
    let asked = of("name = \"instructions\"\nfile = \"x\"\ntokenizer = \"y\"\nseq_len = 8");
    good(&asked, &["data.folds=5"]);
    assert_eq!(
        told(&asked, &["data.val_ratio=0.2", "data.folds=5"]),
        ["`data.folds`: cannot be combined with `data.val_ratio`"]
    );
}

#[test]
fn a_slip_is_underlined() {
    let text = with("val_dir = \"data/val\"", "val_dir = \"data/val\"\nval_fraction = 0.2");
    assert!(
        page(&text, &[]).contains("val_fraction = 0.2\n   |                ^^^"),
        "{}",
        page(&text, &[])
    );
}
