//! `ddprun eval --tta`: test-time augmentation, views of an image over which predictions are
//! averaged.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most draws of the training transforms.
const MAX_DRAWS: u32 = 1000;

/// Views of an image over which an evaluation averages predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestTimeAugmentation {
    /// The image and its mirror image.
    Hflip,
    /// Both images, and both moved by a pixel up and to the left, and down and to the right, with
    /// reflected borders. The moved ones count half.
    HflipTranslate,
    /// The four corners and the centre of the image, as torchvision's `FiveCrop`.
    FiveCrop,
    /// The five crops and their mirror images, as torchvision's `TenCrop`.
    TenCrop,
    /// A number of draws of the training transforms.
    Draws(u32),
}

impl TestTimeAugmentation {
    /// True if mirror images are among the views.
    pub fn mirrors(self) -> bool {
        matches!(self, Self::Hflip | Self::HflipTranslate | Self::TenCrop)
    }

    /// True if each image is cropped several times.
    pub fn crops(self) -> bool {
        matches!(self, Self::FiveCrop | Self::TenCrop)
    }

    /// True if each sample holds several images.
    pub fn has_views(self) -> bool {
        matches!(self, Self::FiveCrop | Self::TenCrop | Self::Draws(_))
    }
}

impl fmt::Display for TestTimeAugmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hflip => f.write_str("hflip"),
            Self::HflipTranslate => f.write_str("hflip_translate"),
            Self::FiveCrop => f.write_str("five_crop"),
            Self::TenCrop => f.write_str("ten_crop"),
            Self::Draws(n) => write!(f, "draws={n}"),
        }
    }
}

impl FromStr for TestTimeAugmentation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let draws = || {
            let n: u32 = text.strip_prefix("draws=")?.parse().ok()?;
            (1..=MAX_DRAWS).contains(&n).then_some(Self::Draws(n))
        };
        match text {
            "hflip" => Ok(Self::Hflip),
            "hflip_translate" => Ok(Self::HflipTranslate),
            "five_crop" => Ok(Self::FiveCrop),
            "ten_crop" => Ok(Self::TenCrop),
            _ => draws().ok_or_else(|| {
                format!(
                    "must be hflip, hflip_translate, five_crop, ten_crop or draws=N with N from 1 to {MAX_DRAWS}"
                )
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for text in ["hflip", "hflip_translate", "five_crop", "ten_crop", "draws=8"] {
            assert_eq!(text.parse::<TestTimeAugmentation>().unwrap().to_string(), text);
        }
        for text in ["draws", "draws=0", "draws=x", "vflip"] {
            assert_refused(
                text.parse::<TestTimeAugmentation>(),
                "must be hflip, hflip_translate, five_crop",
            );
        }
    }
}
