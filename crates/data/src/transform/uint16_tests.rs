//! Images of 16 bits, as torchvision and Pillow read and transform them (`tests/golden/uint16.py`).

use serde_json::Value;

use crate::config::kind::{Choice, Kind};
use crate::config::values::Shape2;
use crate::images::decode::decode;
use crate::transform::affine::{affine, rotation};
use crate::transform::{
    Area, CenterCrop, ColorJitter, Decoded, Grayscale, Images, Normalize, Pipeline, PixelDtype,
    Pixels, RandomHorizontalFlip, RandomVerticalFlip, Resize, Transforms, facts,
};

fn recorded(table: &str) -> Value {
    let all: Value =
        serde_json::from_str(include_str!("../../../../tests/golden/uint16.json")).unwrap();
    all[table].clone()
}

fn numbers(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The generator's picture.
fn picture(channels: usize, height: usize, width: usize) -> Pixels {
    let mut values = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let value = |c: usize| (2777 * x + 4099 * y + 12345 * c + 611 * x * y) as u16;
            values.extend((0..channels).map(value));
        }
    }
    Pixels::of_uint16(channels, [height, width], &values)
}

/// The values of `image` after a list of transforms.
fn values(image: Pixels, list: &[Choice]) -> Vec<f32> {
    let size = Some((image.height as u32, image.width as u32));
    let images = Images { dtype: PixelDtype::Uint16, ..Images::new(image.channels, size) };
    let pipeline = Pipeline::new(list, &Transforms::default(), images).unwrap();
    let mut values = Vec::new();
    pipeline.run(Decoded::whole(image), None, &mut values).unwrap();
    values
}

#[track_caller]
fn check(found: &[f32], expected: &Value, within: f32, what: &str) {
    let expected = numbers(expected);
    let n = found.len().min(expected.len());
    // Grey of torchvision is three equal channels where the files are.
    assert!(n > 0 && expected.len().is_multiple_of(n), "{what}: {} values", found.len());
    let differing = found.iter().zip(&expected).filter(|(a, b)| (*a - *b).abs() > within);
    assert_eq!(differing.collect::<Vec<_>>(), [], "{what}");
}

#[test]
fn files_have_the_values_that_torchvision_reads() {
    for (name, file) in recorded("files").as_object().unwrap() {
        let hex = file["bytes"].as_str().unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let read = |dtype| decode(bytes.clone(), dtype, Area::whole).unwrap();
        let image = read(PixelDtype::Uint16);
        assert_eq!((image.size, image.pixels.channels), ((5, 7), 3), "{name}");
        check(&values(image.pixels, &[]), &file["values"], 1e-7, name);
        assert_eq!(read(PixelDtype::Uint8).pixels.data.len(), 3 * 5 * 7, "{name}");
    }
}

#[test]
fn transforms_give_torchvisions_values() {
    let golden = recorded("transforms");
    let size = Shape2::Both;
    let imagenet = Normalize::new(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]);
    let value = 1.0 / 65535.0;
    let cases = [
        ("resize", Choice::of(&Resize::to(size([7, 9]))), 3, 2.0 * value),
        ("resize_grey", Choice::of(&Resize::to(size([20, 24]))), 1, 2.0 * value),
        ("center_crop", Choice::of(&CenterCrop { size: size([6, 20]) }), 3, 1e-7),
        ("horizontal_flip", Choice::of(&RandomHorizontalFlip { p: 1.0 }), 3, 1e-7),
        ("vertical_flip", Choice::of(&RandomVerticalFlip { p: 1.0 }), 3, 1e-7),
        // torchvision's weights have four digits, Pillow's more.
        ("grayscale", Choice::of(&Grayscale::default()), 3, 2e-4),
        ("normalize", Choice::of(&imagenet), 3, 2e-6),
    ];
    for (name, choice, channels, within) in cases {
        check(&values(picture(channels, 12, 17), &[choice]), &golden[name], within, name);
    }
    let turned = affine(&picture(1, 12, 17), rotation(30.0, 17, 12));
    check(&values(turned, &[]), &golden["rotate"], 1e-7, "rotate");
}

#[test]
fn transforms_of_colours_are_refused() {
    let images = Images { dtype: PixelDtype::Uint16, ..Images::new(3, Some((4, 4))) };
    let list = [Choice::of(&ColorJitter::default())];
    let (at, unfit) = facts(&Transforms::default(), &list, &images, None).unwrap_err();
    assert_eq!((at, unfit.key), (0, "name"));
    assert!(unfit.what.contains("images of 8 bits"), "{}", unfit.what);
    let refused = Pipeline::new(&list, &Transforms::default(), images).unwrap_err();
    assert!(refused.to_string().contains(ColorJitter::NAME), "{refused}");
}
