//! The transforms that come with ddprun, and what a list of them leads to.

use crate::config::kind::Choice;
use crate::config::values::Shape2;
use crate::plan::{PixelDtype, PixelStats, TransformFacts, Unfit};
use crate::registry::Registered;
use crate::transform::family::TransformFamily;
use crate::transform::{
    AlternatingHorizontalFlip, CenterCrop, ColorJitter, GaussianBlur, Grayscale, Images, Normalize,
    RandAugment, RandomAdjustSharpness, RandomAffine, RandomAutocontrast, RandomCrop,
    RandomEqualize, RandomErasing, RandomGrayscale, RandomHorizontalFlip, RandomInvert,
    RandomPosterize, RandomResizedCrop, RandomRotation, RandomSolarize, RandomVerticalFlip, Resize,
    Transform, Transforms, TrivialAugmentWide,
};

/// Images after a transform.
pub(super) fn after_one(transform: &dyn Transform, images: &Images) -> Result<Images, Unfit> {
    if images.dtype == PixelDtype::Uint16 && !transform.takes_uint16() {
        let what = "is defined for images of 8 bits, not for `pixel_dtype = \"uint16\"`".to_owned();
        let help = "leave it out, or crop, flip, rotate and erase instead";
        return Err(Unfit { key: "name", what, help: Some(help) });
    }
    let size = transform.size(images)?;
    Ok(Images { channels: transform.channels(images.channels), size, ..*images })
}

impl Registered for TransformFamily {
    fn registered() -> Transforms {
        let mut all = Transforms::empty();
        all.add::<Resize>();
        all.add::<CenterCrop>();
        all.add::<RandomCrop>();
        all.add::<RandomResizedCrop>();
        all.add::<RandomHorizontalFlip>();
        all.add::<AlternatingHorizontalFlip>();
        all.add::<RandomRotation>();
        all.add::<ColorJitter>();
        all.add::<RandomVerticalFlip>();
        all.add::<RandomAffine>();
        all.add::<Grayscale>();
        all.add::<RandomGrayscale>();
        all.add::<GaussianBlur>();
        all.add::<RandomAdjustSharpness>();
        all.add::<RandomAutocontrast>();
        all.add::<RandomEqualize>();
        all.add::<RandomInvert>();
        all.add::<RandomPosterize>();
        all.add::<RandomSolarize>();
        all.add::<RandAugment>();
        all.add::<TrivialAugmentWide>();
        all.add::<Normalize>();
        all.add::<RandomErasing>();
        all
    }
}

/// The transforms `asked` for such images, with those that are always there, and the size that
/// they lead to. Where none normalizes, `pixels` do.
pub fn facts(
    transforms: &Transforms,
    asked: &[Choice],
    images: &Images,
    pixels: Option<&PixelStats>,
) -> Result<TransformFacts, (usize, Unfit)> {
    let mut after = *images;
    let mut n_pixels = 0;
    let mut ends_in_values = false;
    let mut values = None;
    let mut random = Vec::new();
    for (index, choice) in asked.iter().enumerate() {
        let unknown = |what: String| Unfit { key: "name", what, help: None };
        let transform =
            transforms.build(choice).map_err(|error| (index, unknown(error.to_string())))?;
        after = after_one(&*transform, &after).map_err(|unfit| (index, unfit))?;
        if transform.is_random() {
            random.push(choice.name.clone());
        }
        if !transform.changes_values() {
            (n_pixels, ends_in_values) = (index + 1, transform.value(0, 0.0).is_some());
            let of = |channel, value| transform.value(channel, value).map(f64::from);
            let pair = |channel| Some([of(channel, 0.0)?, of(channel, 1.0)?]);
            values = (0..after.channels).map(pair).collect();
        }
    }
    let mut list = asked.to_vec();
    if !ends_in_values {
        let of = |pixels: &PixelStats| Normalize::by(&pixels.of_channels(after.channels));
        let normalize = pixels.map_or_else(Normalize::identity, of);
        list.insert(n_pixels, Choice::of(&normalize));
    }
    if let Some((height, width)) = images.size
        && images.channels == 3
    {
        // Generated images have this size already; said so that their reader can rely on it.
        list.insert(0, Choice::of(&Resize::to(Shape2::Both([height, width]))));
    }
    Ok(TransformFacts { list, channels: after.channels, size: after.size, values, random })
}
