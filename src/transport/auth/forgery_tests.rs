//! Forgeries by the million, and the time that it takes to see that they are forged. Both run for minutes:
//! `cargo test --lib forged -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use super::*;
use crate::rng::{Key as Draws, Purpose as Of};

/// Forgeries of each of the four kinds.
const EACH: u64 = 2_500_000;

fn bytes<const N: usize>(draws: Draws, at: u64) -> [u8; N] {
    let words = (0..N.div_ceil(8) as u64).flat_map(|i| draws.with(at).bits(i).to_le_bytes());
    let mut bytes = [0; N];
    bytes.iter_mut().zip(words).for_each(|(byte, drawn)| *byte = drawn);
    bytes
}

#[test]
#[ignore = "ten million forgeries"]
fn of_ten_million_forgeries_none_is_accepted() {
    let draws = Draws::new(1, Of::Sample, 0, 0);
    let (token, nonce) = (Key(bytes(draws, u64::MAX)), Key(bytes(draws, u64::MAX - 1)));
    let opening = open(Purpose::Node(1), &Key(bytes(draws, u64::MAX - 2)));
    let answered = answer(&token, &opening, &nonce).unwrap();
    let (proof, session) = prove(&token, &opening, &answered).unwrap();
    let seal = Seal::new(session.send);
    let mut accepted = 0;
    for at in 0..EACH {
        // A client that guesses its proof; one that repeats a proof at a server with another nonce.
        accepted += u64::from(accept(&token, &opening, &answered, &bytes(draws, at)).is_some());
        let later = answer(&token, &opening, &Key(bytes(draws, at))).unwrap();
        accepted += u64::from(accept(&token, &opening, &later, &proof).is_some());
        // A server that guesses; a message with a MAC of other bytes.
        let mut guessed = answered;
        guessed[TAG..].copy_from_slice(&bytes::<TAG>(draws, at));
        accepted += u64::from(prove(&token, &opening, &guessed).is_some());
        accepted += u64::from(seal.clone().holds(&at.to_le_bytes(), &bytes(draws, at)));
    }
    println!("{} forgeries, {accepted} accepted", 4 * EACH);
    assert_eq!(accepted, 0);
    assert!(accept(&token, &opening, &answered, &proof).is_some(), "the true one is");
}

/// Welch's t of the times that `holds` takes for tags that are wrong in their first and in their last byte, without the
/// slowest tenth, in which others had the core (Reparaz, Balasch and Verbauwhede 2017). [`LIMIT`] separates equal from different.
fn welch(right: [u8; TAG], holds: &mut impl FnMut(&[u8; TAG]) -> bool) -> f64 {
    const SAMPLES: u64 = 1_000_000;
    let draws = Draws::new(2, Of::Sample, 0, 0);
    let mut times = [const { Vec::<f64>::new() }; 2];
    for at in 0..SAMPLES {
        let class = (draws.bits(at) & 1) as usize;
        let mut tag = right;
        tag[class * (TAG - 1)] ^= 1;
        let tag = black_box(tag);
        let began = Instant::now();
        let held = black_box(holds(&tag));
        times[class].push(began.elapsed().as_nanos() as f64);
        assert!(!held);
    }
    let mut all: Vec<f64> = times.concat();
    all.sort_unstable_by(f64::total_cmp);
    let most = all[all.len() * 9 / 10];
    let [first, last] = times.map(|mut times| {
        times.retain(|&time| time <= most);
        let n = times.len() as f64;
        let mean = times.iter().sum::<f64>() / n;
        (mean, times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (n - 1.0) / n)
    });
    (first.0 - last.0) / (first.1 + last.1).sqrt()
}

/// Above this t two distributions of times differ.
const LIMIT: f64 = 4.5;

/// The least |t| of three measurements: a difference that is there shows in each, a noisy moment of the machine does not.
fn least_welch(right: [u8; TAG], mut holds: impl FnMut(&[u8; TAG]) -> bool) -> f64 {
    (0..3).map(|_| welch(right, &mut holds).abs()).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "measures time"]
fn how_long_a_wrong_tag_takes_does_not_say_where_it_is_wrong() {
    let key = Key([3; TAG]);
    let seal = Seal::new(key.clone());
    let right = seal.clone().tag(b"a message");
    let ours = least_welch(right, |tag| seal.clone().holds(b"a message", tag));
    let opening = open(Purpose::Node(1), &Key([7; TAG]));
    let answered = answer(&key, &opening, &Key([8; TAG])).unwrap();
    let (proof, _) = prove(&key, &opening, &answered).unwrap();
    let accepted = least_welch(proof, |tag| accept(&key, &opening, &answered, tag).is_some());
    let early = least_welch(right, |tag| black_box(right).iter().zip(tag).all(|(a, b)| a == b));
    println!(
        "Welch's t: a message {ours:.2}, a handshake {accepted:.2}; a comparison that stops early {early:.2}"
    );
    assert!(early > LIMIT, "the measurement would not see a difference");
    assert!(ours < LIMIT, "a message: the time tells where its tag is wrong (t = {ours:.2})");
    assert!(
        accepted < LIMIT,
        "a handshake: the time tells where its proof is wrong (t = {accepted:.2})"
    );
}
