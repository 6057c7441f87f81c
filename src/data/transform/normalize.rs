//! `ToTensor` and `Normalize` in one pass: interleaved bytes -> f32 planes.

use crate::data::error::Error;
use crate::data::transform::{Pixels, unusable};

/// Value of each byte, per channel.
#[derive(Debug)]
pub(super) struct Normalizer {
    tables: Vec<[f32; 256]>,
}

impl Normalizer {
    /// `(x / 255 - mean) / std`, computed in f32 as torchvision does.
    ///
    /// # Errors
    ///
    /// The lists hold neither one number nor one per channel, or a deviation is not positive.
    pub(super) fn new(mean: &[f64], std: &[f64], channels: usize) -> Result<Self, Error> {
        for (name, list) in [("mean", mean), ("std", std)] {
            if list.len() != 1 && list.len() != channels {
                let n = list.len();
                return Err(unusable(&format!(
                    "`{name}` of `normalize` has {n} numbers, but images have {channels} channels"
                )));
            }
        }
        if let Some(bad) = std.iter().find(|&&std| std <= 0.0 || !std.is_finite()) {
            return Err(unusable(&format!("`std` of `normalize` holds {bad}")));
        }
        let of = |list: &[f64], channel: usize| list[channel % list.len()] as f32;
        let table = |channel| {
            let (mean, std) = (of(mean, channel), of(std, channel));
            std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std)
        };
        Ok(Self { tables: (0..channels).map(table).collect() })
    }

    /// Appends `image` to `values`, as (channels, height, width).
    pub(super) fn append(&self, image: &Pixels, values: &mut Vec<f32>) {
        for (channel, table) in self.tables.iter().enumerate() {
            let pixels = image.data.chunks_exact(image.channels);
            values.extend(pixels.map(|pixel| table[usize::from(pixel[channel])]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_normalised_planes() {
        let image =
            Pixels { channels: 3, height: 1, width: 2, data: vec![0, 128, 255, 51, 102, 204] };
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let mut values = Vec::new();
        Normalizer::new(&mean, &std, 3).unwrap().append(&image, &mut values);
        // (x / 255 - mean) / std by hand, planes first.
        let expected = [-2.117_904, -1.244_541_5, 0.205_182_1, -0.25, 2.64, 1.751_111];
        assert_eq!(values.len(), 6);
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-5, "{values:?}");
        }
    }

    #[test]
    fn lists_that_do_not_fit_the_channels_are_refused() {
        assert!(Normalizer::new(&[0.0, 0.0, 0.0], &[1.0], 1).is_err());
        assert!(Normalizer::new(&[0.0], &[0.0], 1).is_err());
    }
}
