//! Several views of each image, for test-time augmentation.

use std::sync::Arc;

use crate::dataset::{Dataset, Splits, Target};
use crate::error::{Error, SampleError};
use crate::plan::{DataPlan, TestTimeAugmentation};
use crate::rng::{Key, Purpose};
use crate::sources::source::{DataSource, SurveyRequest};
use crate::survey;
use crate::transform::{CROPS, Transforms, with_center_crop_at};

/// The epoch that no run reaches: keeps these draws from those of training.
const EVALUATION: u64 = u64::MAX;

/// Opens the data that `plan` describes, with several views of each sample to validate and to test
/// on where `how` asks for them.
pub fn open(
    source: &dyn DataSource,
    plan: &DataPlan,
    how: Option<TestTimeAugmentation>,
    request: &SurveyRequest<'_>,
    transforms: &Transforms,
) -> Result<Splits, Error> {
    match how.filter(|how| how.has_views()) {
        None => survey::open(source, plan, request, transforms),
        Some(TestTimeAugmentation::Draws(n)) => {
            let val_transforms = plan.train_transforms.clone();
            let plan = DataPlan { val_transforms, ..plan.clone() };
            let opened = survey::open(source, &plan, request, transforms)?;
            Ok(views(&vec![opened; n as usize], Some(request.seed)))
        }
        Some(_) => {
            let crop = |at| {
                let transforms = with_center_crop_at(at, transforms);
                survey::open(source, plan, request, &transforms)
            };
            Ok(views(&(0..CROPS).map(crop).collect::<Result<Vec<_>, _>>()?, None))
        }
    }
}

/// Joins `opened` as views of the same samples.
fn views(opened: &[Splits], seed: Option<u64>) -> Splits {
    let view = |part: fn(&Splits) -> Option<Arc<dyn Dataset>>| -> Option<Arc<dyn Dataset>> {
        let each: Vec<_> = opened.iter().filter_map(part).collect();
        let shape = [&[each.len()], each.first()?.shape()].concat();
        Some(Arc::new(Views { each, seed, shape }))
    };
    let first = &opened[0];
    Splits {
        val: view(|splits| Some(splits.val.clone())).unwrap_or_else(|| first.val.clone()),
        test: view(|splits| splits.test.clone()),
        ..first.clone()
    }
}

/// Samples of several images each.
struct Views {
    each: Vec<Arc<dyn Dataset>>,
    /// Seed of the draws, if the views differ in them.
    seed: Option<u64>,
    /// (views, channels, height, width)
    shape: Vec<usize>,
}

impl Dataset for Views {
    fn len(&self) -> usize {
        self.each[0].len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn target_shape(&self) -> &[usize] {
        self.each[0].target_shape()
    }

    fn classifies(&self) -> bool {
        self.each[0].classifies()
    }

    fn label(&self, index: usize) -> Option<u32> {
        self.each[0].label(index)
    }

    fn name(&self, index: usize) -> String {
        self.each[0].name(index)
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let key = self.seed.map(|seed| Key::new(seed, Purpose::Augment, EVALUATION, index as u64));
        let load = |(draw, view): (u64, &Arc<dyn Dataset>)| {
            view.load(index, key.map(|key| key.with(draw)), values)
        };
        let targets = (0..).zip(&self.each).map(load).collect::<Result<Vec<_>, _>>()?;
        Ok(targets[0].clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample is its index and what its key draws.
    struct Drawn;

    impl Dataset for Drawn {
        fn len(&self) -> usize {
            3
        }

        fn shape(&self) -> &[usize] {
            &[2]
        }

        fn classifies(&self) -> bool {
            true
        }

        fn name(&self, index: usize) -> String {
            index.to_string()
        }

        fn load(
            &self,
            index: usize,
            key: Option<Key>,
            values: &mut Vec<f32>,
        ) -> Result<Target, SampleError> {
            values.extend([index as f32, key.map_or(-1.0, |key| key.uniform(0) as f32)]);
            Ok(Target::Class(index as u32))
        }
    }

    #[test]
    fn a_sample_holds_its_views_one_after_the_other() {
        let data: Arc<dyn Dataset> = Arc::new(Drawn);
        let opened = Splits { train: data.clone(), val: data, test: None, classes: vec![] };
        let loaded = |seed| {
            let views = views(&vec![opened.clone(); 3], seed).val;
            assert_eq!(views.shape(), [3, 2]);
            let mut values = Vec::new();
            assert_eq!(views.load(2, None, &mut values).unwrap(), Target::Class(2));
            values
        };
        assert_eq!(loaded(None), [2.0, -1.0, 2.0, -1.0, 2.0, -1.0]);
        let drawn = loaded(Some(7));
        assert_eq!(drawn, loaded(Some(7)));
        assert!(drawn[1] != drawn[3] && drawn[3] != drawn[5]);
    }
}
