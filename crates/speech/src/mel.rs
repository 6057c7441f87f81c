//! Speech -> logarithms of the energy in mel bands, each band with mean 0 and deviation 1 over an
//! utterance, as NVIDIA `NeMo`'s preprocessor makes them.

use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};
use serde_json::{Value, json};

/// Seconds of a window, and from one to the next.
const WINDOW: f64 = 0.025;
const HOP: f64 = 0.01;
/// Share of a sample that is taken off the next.
const PREEMPHASIS: f64 = 0.97;
/// Added to energies, whose logarithm is taken.
const FLOOR: f64 = 1.0 / (1 << 24) as f64;
/// Added to deviations.
const STD_EPS: f64 = 1e-5;

/// All that the features of speech at `rate` samples a second are made by, in the words of librosa
/// and torchaudio.
pub(crate) fn described(rate: u32) -> Vec<(&'static str, Value)> {
    let length = samples(WINDOW, rate);
    let hop = samples(HOP, rate);
    vec![
        ("preemphasis", json!(PREEMPHASIS)),
        ("n_fft", json!(length.next_power_of_two())),
        ("win_length", json!(length)),
        ("hop_length", json!(hop)),
        ("window", json!("hann")),
        ("window_periodic", json!(false)),
        ("center", json!(true)),
        ("pad_mode", json!("constant")),
        ("power", json!(2)),
        ("mel_scale", json!("slaney")),
        ("mel_norm", json!("slaney")),
        ("f_min", json!(0)),
        ("f_max", json!(f64::from(rate) / 2.0)),
        ("log", json!("natural logarithm of energy + log_floor")),
        ("log_floor", json!(FLOOR)),
        ("frames", json!("samples // hop_length, those after the last whole one left out")),
        ("normalize", json!("per band over the frames: (x - mean) / (std + std_eps), ddof = 1")),
        ("std_eps", json!(STD_EPS)),
    ]
}

/// Makes features of speech at one sample rate.
pub struct LogMel {
    fft: Arc<dyn RealToComplex<f64>>,
    /// Window as long as a transform, zero at both ends.
    window: Vec<f64>,
    /// First frequency of each band, and weights from there on.
    bands: Vec<(usize, Vec<f64>)>,
    hop: usize,
}

impl LogMel {
    /// `bands` bands up to half of `rate` samples a second.
    pub fn new(rate: u32, bands: usize) -> Self {
        let length = samples(WINDOW, rate);
        let hop = samples(HOP, rate);
        let size = length.next_power_of_two();
        let hann = |i: usize| {
            let turn = std::f64::consts::TAU * i as f64 / (length - 1) as f64;
            0.5 - 0.5 * turn.cos()
        };
        let mut window = vec![0.0; size];
        let before = (size - length) / 2;
        (0..length).for_each(|i| window[before + i] = hann(i));
        let fft = RealFftPlanner::new().plan_fft_forward(size);
        Self { fft, window, bands: filters(rate, size, bands), hop }
    }

    pub fn bands(&self) -> usize {
        self.bands.len()
    }

    /// Frames of `samples` samples; all but the last are whole.
    pub fn frames(&self, samples: usize) -> usize {
        samples / self.hop + 1
    }

    /// The logarithms, (frames, bands), of speech of which the first `length` samples are real.
    pub fn logarithms(&self, speech: &[f32], length: usize) -> Vec<f64> {
        let mut emphasised = vec![0.0; speech.len()];
        let mut before = 0.0;
        for (to, &sample) in emphasised.iter_mut().zip(&speech[..length.min(speech.len())]) {
            *to = f64::from(sample) - PREEMPHASIS * before;
            before = f64::from(sample);
        }
        let size = self.window.len();
        let mut values = self.fft.make_input_vec();
        let mut spectrum = self.fft.make_output_vec();
        let mut features = Vec::with_capacity(self.frames(speech.len()) * self.bands.len());
        for frame in 0..self.frames(speech.len()) {
            for (i, value) in values.iter_mut().enumerate() {
                // The first frame is centred on the first sample.
                let at = (frame * self.hop + i).checked_sub(size / 2);
                let sample = at.and_then(|at| emphasised.get(at)).copied().unwrap_or(0.0);
                *value = sample * self.window[i];
            }
            // Its only error is vectors of other lengths than those that it made.
            drop(self.fft.process(&mut values, &mut spectrum));
            features.extend(self.bands.iter().map(|(first, weights)| {
                let bins = spectrum[*first..].iter().zip(weights);
                (bins.map(|(bin, weight)| bin.norm_sqr() * weight).sum::<f64>() + FLOOR).ln()
            }));
        }
        features
    }

    /// The features, (`frames`, bands), of speech of which the first `length` samples are real, and
    /// how many of the frames are; zeros after these.
    pub fn features(&self, speech: &[f32], length: usize, frames: usize) -> (Vec<f32>, usize) {
        let bands = self.bands.len();
        let real = (length / self.hop).min(frames);
        let logarithms = self.logarithms(speech, length);
        let mut features = vec![0.0; frames * bands];
        for band in 0..bands {
            let values = logarithms[band..].iter().step_by(bands).take(real);
            let mean = values.clone().sum::<f64>() / real.max(1) as f64;
            let squares: f64 = values.clone().map(|value| (value - mean).powi(2)).sum();
            let deviation = (squares / real.saturating_sub(1).max(1) as f64).sqrt() + STD_EPS;
            for (frame, value) in values.enumerate() {
                features[frame * bands + band] = ((value - mean) / deviation) as f32;
            }
        }
        (features, real)
    }
}

fn samples(seconds: f64, rate: u32) -> usize {
    ((seconds * f64::from(rate)) as usize).max(2)
}

/// Triangles of equal area over Slaney's mel scale.
fn filters(rate: u32, size: usize, bands: usize) -> Vec<(usize, Vec<f64>)> {
    let top = mel(f64::from(rate) / 2.0);
    let edges: Vec<f64> =
        (0..bands + 2).map(|i| hertz(top * i as f64 / (bands + 1) as f64)).collect();
    let bin = |k: usize| k as f64 * f64::from(rate) / size as f64;
    edges
        .windows(3)
        .map(|edge| {
            let weight = |k: usize| {
                let rising = (bin(k) - edge[0]) / (edge[1] - edge[0]);
                let falling = (edge[2] - bin(k)) / (edge[2] - edge[1]);
                rising.min(falling).max(0.0) * 2.0 / (edge[2] - edge[0])
            };
            let inside = |&k: &usize| weight(k) > 0.0;
            let first = (0..=size / 2).find(inside).unwrap_or(0);
            (first, (first..=size / 2).take_while(inside).map(weight).collect())
        })
        .collect()
}

/// Hertz of one mel below 1000 Hz, and the logarithm of the step above.
const LINEAR: f64 = 200.0 / 3.0;
const KNEE: f64 = 1000.0;

fn step() -> f64 {
    6.4f64.ln() / 27.0
}

fn mel(hertz: f64) -> f64 {
    if hertz < KNEE { hertz / LINEAR } else { KNEE / LINEAR + (hertz / KNEE).ln() / step() }
}

fn hertz(mel: f64) -> f64 {
    let knee = KNEE / LINEAR;
    if mel < knee { mel * LINEAR } else { KNEE * ((mel - knee) * step()).exp() }
}
