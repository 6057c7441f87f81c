//! Parameter groups: what belongs to which, and patterns that match nothing.

use super::{ANIMALS, animals, costs, describe, good, plan, read, told};
use crate::plan::{ModelFacts, ModelPlan, Plan, page};

/// The animals with these groups at the end of `[optimizer]`.
fn with(groups: &str) -> String {
    format!("{ANIMALS}\n{groups}")
}

#[test]
fn the_page_lists_the_groups() {
    let text = with(
        "[[optimizer.groups]]\nmatch = \"fc1.weight\"\nlr_factor = 0.1\nunfreeze_at_epoch = 3\n\
         [[optimizer.groups]]\nmatch = \"fc1\"\nfrozen = true\n",
    );
    let loaded = read(&text, &["optimizer.no_decay=[bias]"]);
    let plan = Plan::new(&loaded, &animals(), &describe).unwrap();
    let page = page(&plan, &loaded, &animals(), &costs(&plan, None));
    let start = page.find("group  ").unwrap_or_else(|| panic!("{page}"));
    insta::assert_snapshot!("groups", page[start..].split_once("\n\n").unwrap().0);
}

#[test]
fn a_parameter_belongs_to_the_first_group_that_matches_it() {
    let plan = good(
        &with(
            "[[optimizer.groups]]\nmatch = \"*.bias\"\nweight_decay = 0.5\n\
             [[optimizer.groups]]\nmatch = \"fc2\"\nlr_factor = 10.0\n",
        ),
        &["optimizer.no_decay=[norm, bias]"],
        &animals(),
    );
    let of = |index: usize| {
        let group = plan.optimizer.group(index).unwrap();
        (group.name.as_str(), group.lr_factor, group.weight_decay)
    };
    assert_eq!([of(0), of(1)], [("others", 1.0, 1e-4), ("*.bias", 1.0, 0.5)]);
    assert_eq!([of(2), of(3)], [("fc2", 10.0, 1e-4), ("*.bias", 1.0, 0.5)]);
}

#[test]
fn matrices_of_hidden_layers_are_apart_from_all_else_where_the_rule_says_so() {
    let muon = &["optimizer.name=muon", "~optimizer.momentum"];
    let loaded = read(ANIMALS, muon);
    let with_head = |model: &ModelPlan| {
        describe(model).map(|facts| ModelFacts { head: vec!["fc2.".to_owned()], ..facts })
    };
    let plan = Plan::new(&loaded, &animals(), &with_head).unwrap();
    let groups: Vec<_> = plan.optimizer.groups.iter().collect();
    let of = |i: usize| (groups[i].name.as_str(), groups[i].is_matrix, groups[i].lr_factor);
    assert_eq!([of(0), of(1)], [("matrices", true, 1.0), ("others", false, 0.1)]);
    assert_eq!(groups[0].n_state + groups[1].n_state, 15_052_800 + 2 * (100 + 400 + 4));
    let without = |model: &ModelPlan| {
        with_head(model)
            .map(|facts| ModelFacts { embeddings: vec!["fc1.weight".to_owned()], ..facts })
    };
    let problems = Plan::new(&loaded, &animals(), &without).expect_err("a problem");
    assert_eq!(
        problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["`optimizer.name`: `muon` updates matrices of hidden layers, but `resnet18` trains none"]
    );
}

#[test]
fn frozen_parameters_take_no_memory_beside_their_values() {
    let frozen = with("[[optimizer.groups]]\nmatch = \"fc1\"\nfrozen = true\n");
    let memory = |text: &str| costs(&good(text, &[], &animals()), None).memory;
    let (all, some) = (memory(ANIMALS), memory(&frozen));
    assert_eq!(all.weights, some.weights);
    assert!(some.gradients.0 * 10 < all.gradients.0 && some.optimizer.0 * 10 < all.optimizer.0);
}

#[test]
fn a_pattern_that_matches_nothing_is_drawn_with_the_nearest_name() {
    let text = with("[[optimizer.groups]]\nmatch = \"fc3.wieght\"\nlr_factor = 0.1\n");
    let problems = plan(&text, &[], &animals()).expect_err("a problem");
    insta::assert_snapshot!("unmatched", problems.page(false, 80));
}

/// A stem, two blocks, a norm and a head.
fn in_blocks(model: &ModelPlan) -> Result<ModelFacts, String> {
    let names = ["stem.0.weight", "blocks.0.weight", "blocks.1.weight", "norm.weight", "fc.weight"];
    let parameters = names.map(|name| (name.to_owned(), vec![4])).into();
    describe(model).map(|facts| ModelFacts { parameters, head: vec!["fc.".to_owned()], ..facts })
}

/// The epochs before each parameter is trained, and whether it is trained at all.
fn starts(text: &str, changes: &[&str]) -> Vec<(f64, bool)> {
    let plan = Plan::new(&read(text, changes), &animals(), &in_blocks).unwrap();
    let epoch = plan.length.steps_per_epoch as f64;
    let group = |index| plan.optimizer.group(index).unwrap();
    let start = |index| (group(index).unfreezes_at as f64 / epoch, group(index).is_ever_trained());
    (0..5).map(start).collect()
}

#[test]
fn layers_are_unfrozen_one_by_one_from_the_head_down() {
    let gradual = ["optimizer.gradual_unfreezing=2 epochs"];
    let trained = |starts: [f64; 5]| starts.map(|start| (start, true)).to_vec();
    assert_eq!(starts(ANIMALS, &gradual), trained([6.0, 4.0, 2.0, 2.0, 0.0]));
    let never = ["optimizer.gradual_unfreezing=never", "optimizer.layer_decay=0.5"];
    assert_eq!(starts(ANIMALS, &never), trained([0.0; 5]));
    let own = with(
        "[[optimizer.groups]]\nmatch = \"stem\"\nunfreeze_at_epoch = 1\n\
         [[optimizer.groups]]\nmatch = \"blocks.0\"\nfrozen = true\n\
         [[optimizer.groups]]\nmatch = \"norm\"\nlr_factor = 0.1\n",
    );
    let expected = [(1.0, true), (0.0, false), (2.0, true), (2.0, true), (0.0, true)];
    assert_eq!(starts(&own, &gradual), expected);
}

#[test]
fn the_page_says_when_each_layer_is_unfrozen() {
    let check = |changes: &[&str], expected: [[&str; 2]; 4]| {
        let loaded = read(ANIMALS, changes);
        let plan = Plan::new(&loaded, &animals(), &in_blocks).unwrap();
        let page = page(&plan, &loaded, &animals(), &costs(&plan, None));
        for [layer, trained] in expected {
            let is_row = |line: &str| line.starts_with(layer) && line.contains(trained);
            assert!(page.lines().any(is_row), "{layer} {trained}: {page}");
        }
    };
    let short = ["optimizer.gradual_unfreezing=1 epoch", "train.epochs=3", "~scheduler.warmup"];
    let late = ["stem", " after 3 epochs, not reached "];
    let blocks = [["blocks.0", " after 2 epochs "], ["blocks.1", " after 1 epoch "]];
    check(&short, [late, blocks[0], blocks[1], ["head", " always "]]);
    let blocks = [["blocks.0", " after 14 steps "], ["blocks.1", " after 7 steps "]];
    let steps = [["stem", " after 21 steps "], blocks[0], blocks[1], ["head", " always "]];
    check(&["optimizer.gradual_unfreezing=7 steps"], steps);
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let one = |keys: &str| told(&with(&format!("[[optimizer.groups]]\n{keys}")), &[], &animals());
    assert_eq!(
        one("match = \"*\"\nfrozen = true\n"),
        ["`optimizer.groups`: leave nothing to train at first"]
    );
    assert_eq!(
        one("match = \"*\"\nfreeze_at_epoch = 2\n"),
        ["`optimizer.groups`: leave nothing to train after 2 epochs"]
    );
    let twice = "match = \"fc1\"\nlr_factor = 0.1\n\
                 [[optimizer.groups]]\nmatch = \"fc1.bias\"\nlr_factor = 0.2\n";
    assert_eq!(
        one(twice),
        ["`optimizer.groups[1].match`: matches only what `fc1` matches, which comes first (put \
          the narrower pattern first)"]
    );
    assert_eq!(
        told(ANIMALS, &["optimizer.layer_decay=0.75"], &animals()),
        ["`optimizer.layer_decay`: `resnet18` has no numbered layers, such as `blocks.0`, by \
          which the learning rate could decay (use `[[optimizer.groups]]` with `lr_factor`)"]
    );
    assert_eq!(
        told(ANIMALS, &["optimizer.gradual_unfreezing=1 epoch"], &animals()),
        ["`optimizer.gradual_unfreezing`: `resnet18` has no numbered layers, such as `blocks.0`, \
          to unfreeze one after another (use `[[optimizer.groups]]` with `unfreeze_at_epoch`)"]
    );
}
