//! Mixup (Zhang et al. 2017) and `CutMix` (Yun et al. 2019): pairs of training images become
//! mixtures of both, and so do their labels, as timm's `Mixup`.
//!
//! The partner of a sample is its neighbour in the order of its step, and what is drawn follows
//! from seed, epoch and step: a step is the same on any number of ranks, and in passes of any size.
//! A partner in another pass is loaded for its neighbour alone.

use crate::plan::{MixupMode, MixupPlan};
use crate::rng::{Key, Purpose, Stream};
use crate::transform::Area;

/// The mixture of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mixture {
    /// Both stay what they are.
    Unmixed,
    /// The share of a sample's own image; the rest is its partner's.
    Blend(f64),
    /// The area in which each has its partner's pixels.
    Cut(Area),
}

/// Key of a step's randomness.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepKey {
    pub(super) seed: u64,
    pub(super) epoch: u64,
    pub(super) step: u64,
}

impl Mixture {
    /// The mixture of `pair` in a step, for images of (height, width) `size`.
    pub(super) fn of_pair(
        plan: &MixupPlan,
        place: StepKey,
        [a, b]: [u32; 2],
        size: (usize, usize),
    ) -> Self {
        let key = Key::new(place.seed, Purpose::Mixup, place.epoch, place.step);
        let key = match plan.mode {
            MixupMode::Batch => key,
            MixupMode::Pair => key.with(a.min(b).into()),
        };
        Self::draw(plan, size, &mut key.stream())
    }

    fn draw(plan: &MixupPlan, size: (usize, usize), stream: &mut Stream) -> Self {
        if stream.uniform() >= plan.prob {
            return Self::Unmixed;
        }
        let switches = stream.uniform() < plan.switch_prob;
        let is_cut = plan.cutmix_alpha > 0.0 && (switches || plan.mixup_alpha <= 0.0);
        let alpha = if is_cut { plan.cutmix_alpha } else { plan.mixup_alpha };
        let share = stream.beta(alpha);
        if !is_cut {
            return Self::Blend(share);
        }
        let center = [size.0, size.1].map(|side| stream.below(side as u64) as usize);
        Self::Cut(cut_area(size, share, center))
    }

    /// The share of a sample's own label, for images of (height, width).
    fn share(self, (height, width): (usize, usize)) -> f64 {
        match self {
            Self::Unmixed => 1.0,
            Self::Blend(share) => share,
            Self::Cut(area) => 1.0 - (area.height * area.width) as f64 / (height * width) as f64,
        }
    }

    /// Mixes two images of (channels, height, width) `shape` with each other, and their
    /// probabilities of classes.
    pub(super) fn apply(self, [a, b]: [Sample<'_>; 2], shape: [usize; 3]) {
        let [_, height, width] = shape;
        match self {
            Self::Unmixed => return,
            Self::Blend(share) => blend(a.image, b.image, share),
            Self::Cut(area) => swap(a.image, b.image, area, shape),
        }
        blend(a.target, b.target, self.share((height, width)));
    }
}

/// An image and its target, to be mixed with another.
pub(super) struct Sample<'a> {
    pub(super) image: &'a mut [f32],
    /// A probability of each class.
    pub(super) target: &'a mut [f32],
}

/// Blends two images: each becomes its share of itself and the rest of the other.
fn blend(a: &mut [f32], b: &mut [f32], share: f64) {
    let own = share as f32;
    let other = (1.0 - share) as f32;
    for (a, b) in a.iter_mut().zip(b) {
        (*a, *b) = (*a * own + *b * other, *b * own + *a * other);
    }
}

/// Swaps the values of two images in the area.
fn swap(a: &mut [f32], b: &mut [f32], area: Area, [_, height, width]: [usize; 3]) {
    let planes = a.chunks_exact_mut(height * width).zip(b.chunks_exact_mut(height * width));
    for (a, b) in planes {
        for row in area.top..area.top + area.height {
            let start = row * width + area.left;
            a[start..start + area.width].swap_with_slice(&mut b[start..start + area.width]);
        }
    }
}

/// The rectangle that is 1 - `share` of an image of (height, width) before it is cut off at the
/// borders.
fn cut_area((height, width): (usize, usize), share: f64, [y, x]: [usize; 2]) -> Area {
    let ratio = (1.0 - share).sqrt();
    let along = |side: usize, center: usize| {
        let length = (side as f64 * ratio) as usize;
        let start = center.saturating_sub(length / 2);
        (start, (center + length.div_ceil(2)).min(side) - start)
    };
    let ((top, height), (left, width)) = (along(height, y), along(width, x));
    Area { top, left, height, width }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn golden() -> Value {
        serde_json::from_str(include_str!("../../../../tests/golden/mixup.json")).unwrap()
    }

    fn numbers(value: &Value) -> Vec<f32> {
        value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
    }

    fn whole(value: &Value) -> Vec<usize> {
        value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
    }

    const PLAN: MixupPlan = MixupPlan {
        mixup_alpha: 0.8,
        cutmix_alpha: 1.0,
        prob: 1.0,
        switch_prob: 0.5,
        mode: MixupMode::Batch,
        off_epoch: None,
        classes: 5,
    };

    #[test]
    fn areas_are_timms() {
        for case in golden()["areas"].as_array().unwrap() {
            let (of, center) = (whole(&case["of"]), whole(&case["center"]));
            let size = (of[0], of[1]);
            let area = cut_area(size, case["share"].as_f64().unwrap(), [center[0], center[1]]);
            let (bottom, right) = (area.top + area.height, area.left + area.width);
            assert_eq!([area.top, bottom, area.left, right], *whole(&case["area"]), "{case}");
            let left = Mixture::Cut(area).share(size) - case["left"].as_f64().unwrap();
            assert!(left.abs() < 1e-12, "{case}");
        }
    }

    #[test]
    fn mixtures_are_timms() {
        let golden = golden();
        let cut = cut_area((5, 7), 0.4, [3, 1]);
        for (name, mixture) in [("blend", Mixture::Blend(0.3)), ("cut", Mixture::Cut(cut))] {
            let (mut images, mut targets) = (numbers(&golden["images"]), vec![0.0; 10]);
            (targets[1], targets[5 + 3]) = (1.0, 1.0);
            let (a, b) = images.split_at_mut(3 * 5 * 7);
            let (p, q) = targets.split_at_mut(5);
            let pair = [Sample { image: a, target: p }, Sample { image: b, target: q }];
            mixture.apply(pair, [3, 5, 7]);
            assert_eq!(images, numbers(&golden[name]["inputs"]), "{name}");
            let expected = numbers(&golden[name]["targets"]);
            let close = targets.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(close, "{name}: {targets:?} instead of {expected:?}");
        }
    }

    fn drawn(plan: &MixupPlan, step: u64) -> Mixture {
        Mixture::of_pair(plan, StepKey { seed: 3, epoch: 0, step }, [4, 5], (32, 32))
    }

    #[test]
    fn the_switch_and_the_probability_are_kept() {
        let counts = |plan: &MixupPlan| {
            let mut counts = [0; 3];
            for step in 0..1000 {
                let kind = match drawn(plan, step) {
                    Mixture::Unmixed => 0,
                    Mixture::Blend(_) => 1,
                    Mixture::Cut(_) => 2,
                };
                counts[kind] += 1;
            }
            counts
        };
        let [left, blended, cut] = counts(&MixupPlan { prob: 0.8, switch_prob: 0.25, ..PLAN });
        assert!((160..240).contains(&left) && (540..660).contains(&blended), "{left} {blended}");
        assert_eq!(left + blended + cut, 1000);
        assert_eq!(counts(&MixupPlan { cutmix_alpha: 0.0, ..PLAN }), [0, 1000, 0]);
        assert_eq!(counts(&MixupPlan { mixup_alpha: 0.0, switch_prob: 0.0, ..PLAN }), [0, 0, 1000]);
    }

    #[test]
    fn pairs_draw_alike_in_a_batch_and_apart_in_mode_pair() {
        let of = |mode, pair| {
            let place = StepKey { seed: 3, epoch: 2, step: 7 };
            Mixture::of_pair(&MixupPlan { mode, ..PLAN }, place, pair, (32, 32))
        };
        assert_eq!(of(MixupMode::Batch, [1, 2]), of(MixupMode::Batch, [8, 9]));
        assert_ne!(of(MixupMode::Pair, [1, 2]), of(MixupMode::Pair, [8, 9]));
        assert_eq!(of(MixupMode::Pair, [9, 8]), of(MixupMode::Pair, [8, 9]));
        assert_ne!(drawn(&PLAN, 0), drawn(&PLAN, 1));
    }
}
