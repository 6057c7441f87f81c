//! The transforms that come with ddprun, and what a list of them leads to.

use crate::config::kind::Choice;
use crate::config::values::Shape2;
use crate::data::transform::{
    CenterCrop, ColorJitter, Images, Normalize, RandomCrop, RandomHorizontalFlip,
    RandomResizedCrop, RandomRotation, Resize, Transforms,
};
use crate::plan::{TransformFacts, Unfit};

impl Default for Transforms {
    /// Those that come with ddprun.
    fn default() -> Self {
        let mut all = Self::empty();
        all.add::<Resize>();
        all.add::<CenterCrop>();
        all.add::<RandomCrop>();
        all.add::<RandomResizedCrop>();
        all.add::<RandomHorizontalFlip>();
        all.add::<RandomRotation>();
        all.add::<ColorJitter>();
        all.add::<Normalize>();
        all
    }
}

impl Transforms {
    /// The transforms `asked` for such images, with those that are always there, and the size that they lead to.
    ///
    /// # Errors
    ///
    /// The place in the list of one that does not fit, and why.
    pub fn facts(
        &self,
        asked: &[Choice],
        images: &Images,
    ) -> Result<TransformFacts, (usize, Unfit)> {
        let (mut size, mut ends_in_values) = (images.size, false);
        for (index, choice) in asked.iter().enumerate() {
            let unknown = |what: String| Unfit { key: "name", what, help: None };
            let transform =
                self.build(choice).map_err(|error| (index, unknown(error.to_string())))?;
            let images = Images { size, ..*images };
            size = transform.size(&images).map_err(|unfit| (index, unfit))?;
            ends_in_values = transform.values(0).is_some();
        }
        let mut list = asked.to_vec();
        if let Some((height, width)) = images.size.filter(|_| images.channels == 3) {
            // Generated images have this size already; said so that their reader can rely on it.
            list.insert(0, Choice::of(&Resize { size: Shape2::Both([height, width]) }));
        }
        if !ends_in_values {
            list.push(Choice::of(&Normalize::identity()));
        }
        Ok(TransformFacts { list, size })
    }
}
