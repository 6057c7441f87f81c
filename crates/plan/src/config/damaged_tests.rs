//! Experiment files that are damaged: every one is understood or refused in words, none is a crash.

use std::path::Path;

use crate::config::{Vocabulary, load_text};
use test_support::mutated;

/// Files whose parts the damaged ones are made of.
fn originals() -> Vec<Vec<u8>> {
    let small = "[model]\nname = \"mlp\"\nhidden = [8, 0x10]\n[data]\nname = \"shapes\"\nclasses = 4\n\
        [train]\nepochs = 3\nbatch_size = 4\n[optimizer]\nlr = 1e-2\n\
        [expect]\n\"val/loss\" = { at_most = 1.5e3 }\n";
    let strange = "[[data.transforms.val]]\nname = 'x'\n\"a.b\".c = \"\"\"\n\\u00e9\"\"\"\nt = 1979-05-27\n\
        [distributed]\nbucket_cap = \"1MiB\"\ntimeout = \"10m\"\nshards = -1\n";
    let page = Vocabulary::open().reference().to_owned();
    vec![small.into(), strange.into(), page.into()]
}

#[test]
fn a_damaged_experiment_is_understood_or_refused() {
    let vocabulary = Vocabulary::open();
    let (mut understood, mut refused) = (0, 0);
    let whole = originals().swap_remove(0);
    for bytes in mutated::inputs(&originals(), 600, 74).chain([whole]) {
        let text = String::from_utf8_lossy(&bytes);
        match load_text(Path::new("damaged.toml"), &text, &[], &vocabulary) {
            Ok(_) => understood += 1,
            Err(problems) => {
                assert!(!problems.page(false, 100).is_empty());
                refused += 1;
            }
        }
    }
    assert!(understood > 1 && refused > 300, "{understood} understood, {refused} refused");
}

#[test]
fn a_damaged_change_is_understood_or_refused() {
    let vocabulary = Vocabulary::open();
    let base = String::from_utf8_lossy(&originals()[0]).into_owned();
    let words = ["train.batch_size=64", "~scheduler.warmup", "model.hidden=[8,[9]]", "a.b={c=1}"];
    let words: Vec<Vec<u8>> = words.iter().map(|&word| word.into()).collect();
    let mut refused = 0;
    for bytes in mutated::inputs(&words, 400, 75) {
        let change = String::from_utf8_lossy(&bytes).into_owned();
        refused +=
            u32::from(load_text(Path::new("x.toml"), &base, &[change], &vocabulary).is_err());
    }
    assert!(refused > 200, "{refused} refused");
}
