//! Counter-based random numbers: a [`Key`] in, the same numbers out, on every device and at every
//! world size.
//!
//! There is no state to save, to lose or to share between threads. A key is derived from the run's
//! seed and from what the numbers are for (`purpose`, epoch, sample or step), never from the rank.
//! Each draw mixes the key with a counter by the finaliser of `SplitMix64` (Steele, Lea and Flood,
//! OOPSLA 2014).

mod normal;

const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Purpose of random numbers; keeps the streams of different uses apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Initial weights; `a` = hash of the parameter's name.
    Init = 1,
    /// Order of the samples; `a` = epoch.
    Shuffle = 2,
    /// Augmentation; `a` = epoch, `b` = sample.
    Augment = 3,
    /// Dropout masks; `a` = step, `b` = global pass index and layer.
    Dropout = 4,
    /// Generated data sets; `a` = split, `b` = sample.
    Generate = 5,
    /// Values of a sweep's trials; `a` = trial, `b` = attempt.
    Sweep = 6,
    /// Text drawn from a trained model; `a` and `b` are 0.
    Sample = 7,
    /// A model's draws for a sample, such as noise or masks; `a` = epoch, `b` = sample.
    Draw = 8,
    /// Noise on gradients; `a` = step, `b` = hash of the parameter's name.
    GradientNoise = 9,
    /// Mixup of training images; `a` = epoch, `b` = step of the epoch.
    Mixup = 10,
    /// Parity of the epochs in which something alternating happens to a sample; `b` = sample.
    Alternate = 11,
}

/// A stream of random numbers, identified by what it is for.
///
/// # Example
///
/// ```
/// use train_numbers::rng::{Key, Purpose};
///
/// let of_sample = |sample| Key::new(42, Purpose::Augment, 3, sample);
/// // The same place gives the same numbers, in any order, on any rank.
/// assert_eq!(of_sample(7).uniform(0), of_sample(7).uniform(0));
/// assert_ne!(of_sample(7).uniform(0), of_sample(8).uniform(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    state: u64,
    turn: bool,
}

impl Key {
    /// The stream of `purpose` in the run with `seed`, at place (`a`, `b`).
    pub fn new(seed: u64, purpose: Purpose, a: u64, b: u64) -> Self {
        let first = Self { state: mix(seed ^ GOLDEN_GAMMA), turn: false };
        [purpose as u64, a, b].into_iter().fold(first, Self::with)
    }

    /// The sub-stream `part` of this stream.
    #[must_use]
    pub fn with(self, part: u64) -> Self {
        let state =
            mix(self.state.wrapping_add(GOLDEN_GAMMA) ^ mix(part.wrapping_add(GOLDEN_GAMMA)));
        Self { state, ..self }
    }

    /// The same stream with the flag [`Stream::turn`], by which transforms alternate from epoch to
    /// epoch. No number of the stream depends on it.
    #[must_use]
    pub fn in_turn(self, turn: bool) -> Self {
        Self { turn, ..self }
    }

    /// The number at position `counter`, uniform over all `u64`.
    #[inline(always)]
    pub fn bits(self, counter: u64) -> u64 {
        mix(self.state.wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
    }

    /// The state that identifies this stream, for a kernel that draws the same numbers.
    pub fn state(self) -> u64 {
        self.state
    }

    /// Uniform in [0, 1) with 53 bits.
    #[inline(always)]
    pub fn uniform(self, counter: u64) -> f64 {
        (self.bits(counter) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, of the uniform numbers at `counter` and the position after it.
    #[inline(always)]
    pub fn normal(self, counter: u64) -> f64 {
        normal::normal(self.uniform(counter), self.uniform(counter.wrapping_add(1)))
    }

    /// A sequential reader of this stream.
    pub fn stream(self) -> Stream {
        Stream { key: self, counter: 0 }
    }
}

/// Reads a [`Key`]'s numbers one after another.
#[derive(Clone, Debug)]
pub struct Stream {
    key: Key,
    counter: u64,
}

impl Stream {
    /// The flag that [`Key::in_turn`] has set.
    pub fn turn(&self) -> bool {
        self.key.turn
    }

    /// The next 64 random bits.
    pub fn next_bits(&mut self) -> u64 {
        self.counter += 1;
        self.key.bits(self.counter - 1)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.counter += 1;
        self.key.uniform(self.counter - 1)
    }

    /// Uniform in [`low`, `high`).
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Uniform over `0..n` without bias (Lemire 2019); 0 for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        loop {
            let product = u128::from(self.next_bits()) * u128::from(n);
            if (product as u64) >= n.wrapping_neg() % n.max(1) {
                return (product >> 64) as u64;
            }
        }
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        self.counter += 2;
        self.key.normal(self.counter - 2)
    }

    /// Draws from the distribution Beta(`alpha`, `alpha`), for an `alpha` above 0.
    pub fn beta(&mut self, alpha: f64) -> f64 {
        // The ratio of two numbers of a gamma distribution, by their logarithms: the numbers
        // themselves underflow for a small alpha.
        let [a, b] = [self.ln_gamma(alpha), self.ln_gamma(alpha)];
        1.0 / (1.0 + (b - a).exp())
    }

    /// Draws the logarithm of a number of the gamma distribution of shape `alpha` (Marsaglia and
    /// Tsang 2000).
    fn ln_gamma(&mut self, alpha: f64) -> f64 {
        if alpha < 1.0 {
            let boost = (1.0 - self.uniform()).ln() / alpha;
            return self.ln_gamma(alpha + 1.0) + boost;
        }
        let d = alpha - 1.0 / 3.0;
        loop {
            let x = self.normal();
            let v = (1.0 + x / (9.0 * d).sqrt()).powi(3);
            if v > 0.0 && (1.0 - self.uniform()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return (d * v).ln();
            }
        }
    }
}

/// A random permutation of `0..n` (Fisher and Yates).
pub fn permutation(key: Key, n: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut stream = key.stream();
    for last in (1..n).rev() {
        order.swap(last, stream.below(last as u64 + 1) as usize);
    }
    order
}

/// FNV-1a hash of a name, for keys that belong to a parameter or a layer.
pub fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[inline(always)]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_different_places_differ_and_equal_places_agree() {
        let key = |purpose, a, b| Key::new(42, purpose, a, b).bits(0);
        assert_eq!(key(Purpose::Augment, 3, 9), key(Purpose::Augment, 3, 9));
        assert_ne!(key(Purpose::Augment, 3, 9), key(Purpose::Augment, 9, 3));
        assert_ne!(key(Purpose::Augment, 3, 9), key(Purpose::Dropout, 3, 9));
    }

    #[test]
    fn counters_and_places_are_of_64_bits() {
        // The stream that dropout draws from in step 2^32 + 1 of the run with seed 0, before and
        // after position 2^32.
        let key = |step| Key::new(0, Purpose::Dropout, step, 0);
        let place = |i: u64| (1 << 32) - 1 + i;
        let draws = [place(0), place(1), place(2)].map(|counter| key(place(2)).bits(counter));
        assert_eq!(
            draws,
            [13_588_798_926_330_185_176, 294_436_513_670_394_822, 18_170_069_385_088_787_245]
        );
        let low = [u64::from(u32::MAX), 0, 1].map(|counter| key(1).bits(counter));
        assert!(draws.iter().all(|draw| !low.contains(draw)), "neither wraps");
        let same_step = [0, 1].map(|counter| key(place(2)).bits(counter));
        assert!(same_step.iter().all(|draw| !draws.contains(draw)), "the position does not wrap");
    }

    #[test]
    fn a_permutation_holds_each_index_once() {
        for n in [0, 1, 2, 7, 1000] {
            let mut order = permutation(Key::new(1, Purpose::Shuffle, 0, 0), n);
            order.sort_unstable();
            assert!(order.iter().enumerate().all(|(i, &v)| i as u32 == v));
        }
    }

    #[test]
    fn moments_are_those_of_the_named_distributions() {
        let mut stream = Key::new(7, Purpose::Init, 0, 0).stream();
        let n = 200_000;
        let (mut sum, mut squares, mut uniform) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let z = stream.normal();
            sum += z;
            squares += z * z;
            uniform += stream.uniform();
        }
        assert!((sum / f64::from(n)).abs() < 0.01);
        assert!((squares / f64::from(n) - 1.0).abs() < 0.01);
        assert!((uniform / f64::from(n) - 0.5).abs() < 0.005);
    }

    #[test]
    fn shares_have_the_moments_of_a_beta_distribution() {
        for alpha in [0.05, 0.2, 0.8, 1.0, 3.0] {
            let mut stream = Key::new(7, Purpose::Mixup, 0, 0).stream();
            let n = 100_000;
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..n {
                let share = stream.beta(alpha) - 0.5;
                assert!(share.abs() <= 0.5, "{alpha}");
                sum += share;
                squares += share * share;
            }
            let (mean, variance) = (sum / f64::from(n), squares / f64::from(n));
            let expected = 0.25 / (2.0 * alpha + 1.0);
            assert!(mean.abs() < 0.005 && (variance - expected).abs() < 0.003, "{alpha}");
        }
        let mut stream = Key::new(7, Purpose::Mixup, 0, 0).stream();
        assert!((0..1000).all(|_| stream.beta(1e-6).is_finite()));
    }

    #[test]
    fn below_reaches_every_value_and_never_the_bound() {
        let mut stream = Key::new(7, Purpose::Shuffle, 1, 0).stream();
        let mut seen = [0; 6];
        (0..6000).for_each(|_| seen[stream.below(6) as usize] += 1);
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
    }
}
