//! Which gradient lies in which bucket.

use ddprun::engine::reducer::buckets::Layout;
use ddprun::model::Models;
use ddprun::units::Bytes;

use crate::support::plan;

/// (tensors, first and last name) of each bucket of a model with 1,000 classes, as PyTorch 2.6
/// builds them for reverse registration order.
#[track_caller]
fn check_buckets(model: &str, expected: &[(usize, &str, &str)]) {
    let mut plan = plan(model, &[3, 224, 224], 1).model;
    plan.outputs = 1000;
    plan.kind.set("stem", "imagenet");
    let facts = Models::default().describe(&plan).unwrap();
    let sizes: Vec<usize> =
        facts.parameters.iter().map(|(_, shape)| shape.iter().product()).collect();
    let order: Vec<usize> = (0..sizes.len()).rev().collect();
    let layout = Layout::new(&sizes, std::slice::from_ref(&order), Bytes(1 << 20), Bytes(25 << 20));
    let name = |index: &usize| facts.parameters[*index].0.as_str();
    let found: Vec<_> = layout
        .buckets
        .iter()
        .map(|bucket| (bucket.len(), name(&bucket[0]), name(bucket.last().unwrap())))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn resnets_have_pytorchs_buckets() {
    check_buckets(
        "resnet18",
        &[
            (2, "fc.bias", "fc.weight"),
            (12, "layer4.1.bn2.bias", "layer4.0.conv2.weight"),
            (48, "layer4.0.bn1.bias", "conv1.weight"),
        ],
    );
    check_buckets(
        "resnet50",
        &[
            (2, "fc.bias", "fc.weight"),
            (15, "layer4.2.bn3.bias", "layer4.1.conv2.weight"),
            (12, "layer4.1.bn1.bias", "layer4.0.conv2.weight"),
            (51, "layer4.0.bn1.bias", "layer3.0.downsample.0.weight"),
            (81, "layer3.0.bn3.bias", "conv1.weight"),
        ],
    );
}
