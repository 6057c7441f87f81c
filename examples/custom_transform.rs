//! Your own transform of images: registered by your program, chosen in TOML, its options checked as
//! ddprun's own are.
//!
//! ```text
//! cargo run --release --example custom_transform -- examples/custom_transform.toml
//! cargo run --release --example custom_transform -- plan examples/custom_transform.toml 'data.transforms.train=[{name=salt_and_pepper,shar=0.1}]'
//! ```
//!
//! The second command is refused: `did you mean share?`

use std::process::ExitCode;

use ddprun::config::kind::Kind;
use ddprun::data::transform::{Area, Pixels, Transform};
use ddprun::kinds::Kinds;
use ddprun::rng::Stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// black and white pixels at random places, as a broken sensor gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SaltAndPepper {
    /// share of the pixels that are replaced, half of them by black and half by white.
    #[schemars(range(min = 0.0, max = 1.0))]
    share: f64,
}

impl Default for SaltAndPepper {
    fn default() -> Self {
        Self { share: 0.05 }
    }
}

impl Kind for SaltAndPepper {
    const NAME: &'static str = "salt_and_pepper";
}

impl Transform for SaltAndPepper {
    fn is_random(&self) -> bool {
        true
    }

    /// The stream belongs to this sample in this epoch: the pixels are the same at any world size.
    fn apply(
        &self,
        mut image: Pixels,
        _: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String> {
        let Some(stream) = stream else { return Ok(image) }; // nothing is random in evaluations
        for pixel in image.data.chunks_exact_mut(image.channels) {
            let draw = stream.uniform();
            if draw < self.share {
                pixel.fill(if draw < self.share / 2.0 { 0 } else { 255 });
            }
        }
        Ok(image)
    }
}

/// ddprun's kinds, and this one.
pub(crate) fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.transforms.add::<SaltAndPepper>();
    kinds
}

fn main() -> ExitCode {
    ddprun::cli::run(std::env::args_os(), &kinds())
}
