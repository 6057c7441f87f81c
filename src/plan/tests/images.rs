//! What images become before they reach a model.

use super::*;

#[test]
fn images_end_with_one_shape_and_are_always_normalized() {
    let plan = good(ANIMALS, &[], &animals());
    assert_eq!(plan.model.input, [3, 224, 224]);
    let identity = TransformPlan::Normalize { mean: vec![0.0], std: vec![1.0] };
    assert_eq!(plan.data.train_transforms.last(), Some(&identity));
    assert!(matches!(
        plan.data.val_transforms[..],
        [
            TransformPlan::ResizeShorter { size: 256 },
            TransformPlan::CenterCrop { height: 224, width: 224 },
            TransformPlan::Normalize { .. },
        ]
    ));
    let digits = digits();
    let mnist = "[model]\nname = 'mlp'\n[data]\nname = 'mnist'\ndir = 'data/mnist'\n[train]\nepochs = 1\nbatch_size = 64\n";
    assert_eq!(good(mnist, &[], &digits).model.input, [1, 28, 28]);
    let shapes = mnist.replace("'mnist'\ndir = 'data/mnist'", "'shapes'\nimage_size = 48");
    assert_eq!(good(&shapes, &[], &animals()).model.input, [3, 48, 48]);
}

#[test]
fn the_shorter_side_is_resized_as_torchvision_does() {
    use crate::plan::transforms::shorter;
    assert_eq!(shorter((300, 400), 256), (256, 341));
    assert_eq!(shorter((400, 300), 256), (341, 256));
    assert_eq!(shorter((28, 28), 32), (32, 32));
}
