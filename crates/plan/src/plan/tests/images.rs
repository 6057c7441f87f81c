//! What images become before they reach a model.

use super::*;

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
