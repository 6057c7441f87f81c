//! Against Pillow's own values (`tests/golden/resize.py`).

use serde_json::Value;

use super::*;

/// The pictures that the generator makes, too.
fn picture(channels: usize, [height, width]: [usize; 2]) -> Vec<u8> {
    let value = |y: usize, x: usize, c: usize| {
        let h = ((y * width + x) * channels + c) as u32;
        (h.wrapping_mul(2_654_435_761) >> 24) as u8
    };
    let rows = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
    rows.flat_map(|(y, x)| (0..channels).map(move |c| value(y, x, c))).collect()
}

/// Sum of (place + 1) * value modulo 2^32.
fn checksum(values: impl Iterator<Item = u32>) -> u32 {
    (1_u32..).zip(values).fold(0, |sum, (place, value)| sum.wrapping_add(place.wrapping_mul(value)))
}

fn sides(value: &Value) -> [usize; 2] {
    [0, 1].map(|at| value[at].as_u64().unwrap() as usize)
}

#[test]
fn every_value_is_pillows_over_odd_sizes_for_each_filter() {
    let golden = include_str!("../../../tests/golden/resize.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    let filters = [
        ("nearest", Filter::Nearest),
        ("bilinear", Filter::Bilinear),
        ("bicubic", Filter::Bicubic),
        ("lanczos", Filter::Lanczos),
    ];
    let cases = golden.as_array().unwrap();
    assert!(cases.len() > 100);
    for case in cases {
        let (from, to) = (sides(&case["from"]), sides(&case["to"]));
        let channels = case["channels"].as_u64().unwrap() as usize;
        let area = Area { left: 0, top: 0, width: from[1], height: from[0] };
        let values = picture(channels, from);
        for (name, filter) in filters {
            let length = to[0] * to[1] * channels;
            let found = if case["bits"] == 16 {
                let values: Vec<u16> = values.iter().map(|&v| u16::from(v) * 251).collect();
                let mut out = vec![7; length];
                let image = Image { values: &values, channels, width: from[1] };
                resize_u16(image, area, filter, &mut out, to);
                checksum(out.into_iter().map(u32::from))
            } else {
                let mut out = vec![7; length];
                let image = Image { values: &values, channels, width: from[1] };
                resize(image, area, filter, &mut out, to);
                checksum(out.into_iter().map(u32::from))
            };
            assert_eq!(u64::from(found), case[name].as_u64().unwrap(), "{name} {case}");
        }
    }
}

#[test]
fn an_area_is_resized_as_if_it_were_cut_out_first() {
    let (values, channels) = (picture(3, [23, 31]), 3);
    let area = Area { left: 5, top: 4, width: 17, height: 13 };
    let cut: Vec<u8> =
        (4..17).flat_map(|y| values[(y * 31 + 5) * 3..][..17 * 3].to_vec()).collect();
    let whole = Area { left: 0, top: 0, ..area };
    for filter in [Filter::Nearest, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
        for to in [[7, 9], [13, 9], [7, 17], [13, 17], [40, 50]] {
            let (mut found, mut expected) =
                (vec![0; to[0] * to[1] * 3], vec![1; to[0] * to[1] * 3]);
            resize(Image { values: &values, channels, width: 31 }, area, filter, &mut found, to);
            resize(Image { values: &cut, channels, width: 17 }, whole, filter, &mut expected, to);
            assert_eq!(found, expected, "{filter:?} {to:?}");
        }
    }
}
