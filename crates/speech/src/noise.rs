//! Speech augmented with noise or another speaker (`MultiSpeakerNoiseAugmentation` of NVIDIA
//! `NeMo`).

use crate::rng::Stream;

/// Share of the utterances that are augmented, and of each of them how much.
const AUGMENTED: f64 = 0.5;
const LENGTH: f64 = 0.5;
/// Share of the augmentations that are noise; the others are speakers.
const NOISE: f64 = 0.5;
/// Louder by so many decibels is the speech than noise, and than another speaker.
const OVER_NOISE: [f64; 2] = [-5.0, 20.0];
const OVER_SPEAKER: [f64; 2] = [-5.0, 5.0];
/// Share that a sample of generated noise keeps of the one before: more low than high frequencies.
const COLOUR: f64 = 0.9;

/// Sound that is mixed into an utterance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Augmentation {
    /// Nothing.
    None,
    Noise,
    /// Utterance of this index.
    Speaker(usize),
}

/// Draws what is mixed into an utterance of a set of `n`.
pub(crate) fn draw(draws: &mut Stream, n: usize) -> Augmentation {
    let is_augmented = draws.uniform() < AUGMENTED;
    let is_noise = draws.uniform() < NOISE;
    let other = draws.below(n as u64) as usize;
    match (is_augmented, is_noise) {
        (false, _) => Augmentation::None,
        (true, true) => Augmentation::Noise,
        (true, false) => Augmentation::Speaker(other),
    }
}

/// `n` samples of noise.
pub(crate) fn generated(draws: &mut Stream, n: usize) -> Vec<f32> {
    let mut last = 0.0;
    let next = |_| {
        last = COLOUR * last + draws.normal();
        last as f32
    };
    (0..n).map(next).collect()
}

/// Adds a part of `other`, repeated where it is too short, to half of `speech`, at a drawn
/// loudness.
pub(crate) fn mix(speech: &mut [f32], other: &[f32], kind: Augmentation, draws: &mut Stream) {
    let length = (speech.len() as f64 * LENGTH) as usize;
    let [low, high] = if kind == Augmentation::Noise { OVER_NOISE } else { OVER_SPEAKER };
    let decibels = draws.range(low, high);
    let start = draws.below((speech.len() - length + 1) as u64) as usize;
    if other.is_empty() || length == 0 {
        return;
    }
    let from = draws.below(other.len() as u64) as usize;
    let part: Vec<f32> = other.iter().cycle().skip(from).take(length).copied().collect();
    let energy = |values: &[f32]| values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
    let wanted = energy(speech) / 10f64.powf(decibels / 10.0);
    let has = energy(&part);
    if has <= 0.0 {
        return;
    }
    let scale = (wanted / has).sqrt() as f32;
    speech[start..start + length].iter_mut().zip(part).for_each(|(to, v)| *to += scale * v);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

    #[test]
    fn half_of_the_speech_is_augmented_at_the_drawn_loudness() {
        let speech: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.3).sin()).collect();
        for sample in 0..50 {
            let mut draws = Key::new(1, Purpose::Augment, 0, sample).stream();
            let noise = generated(&mut draws, 300);
            let mut noisy = speech.clone();
            mix(&mut noisy, &noise, Augmentation::Noise, &mut draws);
            let added: Vec<f64> =
                noisy.iter().zip(&speech).map(|(a, b)| f64::from(a - b)).collect();
            let touched = added.iter().filter(|v| v.abs() > 0.0).count();
            assert!((480..=500).contains(&touched), "{touched}");
            let energy: f64 = added.iter().map(|v| v * v).sum();
            let clean: f64 = speech.iter().map(|&v| f64::from(v).powi(2)).sum();
            let decibels = 10.0 * (clean / energy).log10();
            assert!((-5.01..20.01).contains(&decibels), "{decibels}");
        }
    }

    #[test]
    fn augmentations_are_drawn_in_their_shares() {
        let mut counts = [0; 3];
        for sample in 0..1000 {
            match draw(&mut Key::new(1, Purpose::Augment, 0, sample).stream(), 7) {
                Augmentation::None => counts[0] += 1,
                Augmentation::Noise => counts[1] += 1,
                Augmentation::Speaker(other) => counts[2] += usize::from(other < 7),
            }
        }
        for (count, expected) in counts.into_iter().zip([500i32, 250, 250]) {
            assert!((count as i32 - expected).abs() < 60, "{counts:?}");
        }
    }
}
