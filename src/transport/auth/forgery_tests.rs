//! Millions of forged messages, and whether the time of their refusal leaks where they are wrong.
//! Both run for minutes: `cargo test --lib forgery_tests -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use super::*;
use crate::rng::{Key as RngKey, Purpose as RngPurpose};

/// Forgeries of each of the four kinds.
const FORGERIES_PER_KIND: u64 = 2_500_000;

fn bytes<const N: usize>(draws: RngKey, at: u64) -> [u8; N] {
    let words = (0..N.div_ceil(8) as u64).flat_map(|i| draws.with(at).bits(i).to_le_bytes());
    let mut bytes = [0; N];
    bytes.iter_mut().zip(words).for_each(|(byte, drawn)| *byte = drawn);
    bytes
}

#[test]
#[ignore = "ten million forgeries"]
fn none_of_ten_million_forgeries_is_accepted() {
    let draws = RngKey::new(1, RngPurpose::Sample, 0, 0);
    let (token, nonce) = (Key(bytes(draws, u64::MAX)), Key(bytes(draws, u64::MAX - 1)));
    let hello = client_hello(Purpose::Node(1), &Key(bytes(draws, u64::MAX - 2)));
    let answered = server_hello(&token, &hello, &nonce).unwrap();
    let (proof, session) = client_proof(&token, &hello, &answered).unwrap();
    let auth = MessageAuth::new(session.send);
    let mut accepted = 0;
    for at in 0..FORGERIES_PER_KIND {
        // A client that guesses its proof; one that repeats a proof at a server with another nonce.
        accepted +=
            u64::from(verify_client(&token, &hello, &answered, &bytes(draws, at)).is_some());
        let later = server_hello(&token, &hello, &Key(bytes(draws, at))).unwrap();
        accepted += u64::from(verify_client(&token, &hello, &later, &proof).is_some());
        // A server that guesses; a message with a MAC of other bytes.
        let mut guessed = answered;
        guessed[MAC_BYTES..].copy_from_slice(&bytes::<MAC_BYTES>(draws, at));
        accepted += u64::from(client_proof(&token, &hello, &guessed).is_some());
        accepted += u64::from(auth.clone().verify(&at.to_le_bytes(), &bytes(draws, at)));
    }
    println!("{} forgeries, {accepted} accepted", 4 * FORGERIES_PER_KIND);
    assert_eq!(accepted, 0);
    assert!(
        verify_client(&token, &hello, &answered, &proof).is_some(),
        "the genuine proof is accepted"
    );
}

/// Tags that are ready before any of them is timed: making one leaves stores behind that a
/// comparison right after it would wait for, longer for one byte than for another.
const TAGS_PER_BLOCK: u64 = 1000;

/// A block of tags, each wrong in its first byte (class 0) or in its last (class 1).
fn wrong_tags(right: [u8; MAC_BYTES], draws: RngKey, block: u64) -> Vec<(usize, [u8; MAC_BYTES])> {
    let drawn = (0..TAGS_PER_BLOCK).map(|at| draws.bits(block * TAGS_PER_BLOCK + at) & 1);
    drawn
        .map(|class| {
            let (class, mut tag) = (class as usize, right);
            tag[class * (MAC_BYTES - 1)] ^= 1;
            (class, tag)
        })
        .collect()
}

/// Welch's t of the times that `verify` takes for tags that are wrong in their first and in their
/// last byte, without the slowest tenth, when other processes had the core (Reparaz, Balasch and
/// Verbauwhede 2017). [`MAX_WELCH_T`] separates equal from different.
fn welch(right: [u8; MAC_BYTES], verify: &mut impl FnMut(&[u8; MAC_BYTES]) -> bool) -> f64 {
    const BLOCKS: u64 = 1000;
    let draws = RngKey::new(2, RngPurpose::Sample, 0, 0);
    let mut times = [const { Vec::<f64>::new() }; 2];
    for block in 0..BLOCKS {
        for (class, tag) in black_box(wrong_tags(right, draws, block)) {
            let began = Instant::now();
            let accepted = black_box(verify(black_box(&tag)));
            times[class].push(began.elapsed().as_nanos() as f64);
            assert!(!accepted);
        }
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

/// Two distributions of times with a larger |t| differ: the limit of dudect, the program of the
/// same authors. A comparison that stops early is at some 2,000.
const MAX_WELCH_T: f64 = 10.0;

/// The least |t| of three measurements: a real difference shows in each, noise of the machine does
/// not.
fn least_welch(right: [u8; MAC_BYTES], mut verify: impl FnMut(&[u8; MAC_BYTES]) -> bool) -> f64 {
    (0..3).map(|_| welch(right, &mut verify).abs()).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "measures time"]
fn the_time_of_a_refusal_does_not_leak_where_a_tag_is_wrong() {
    let key = Key([3; MAC_BYTES]);
    let auth = MessageAuth::new(key.clone());
    let right = auth.clone().tag(b"a message");
    let ours = least_welch(right, |tag| auth.clone().verify(b"a message", tag));
    let hello = client_hello(Purpose::Node(1), &Key([7; MAC_BYTES]));
    let answered = server_hello(&key, &hello, &Key([8; MAC_BYTES])).unwrap();
    let (proof, _) = client_proof(&key, &hello, &answered).unwrap();
    let accepted = least_welch(proof, |tag| verify_client(&key, &hello, &answered, tag).is_some());
    let early = least_welch(right, |tag| black_box(right).iter().zip(tag).all(|(a, b)| a == b));
    println!(
        "Welch's t: a message {ours:.2}, a handshake {accepted:.2}; a comparison that stops early \
         {early:.2}"
    );
    assert!(early > MAX_WELCH_T, "the measurement would not see a difference");
    assert!(ours < MAX_WELCH_T, "a message: the time leaks where its tag is wrong (t = {ours:.2})");
    assert!(
        accepted < MAX_WELCH_T,
        "a handshake: the time leaks where its proof is wrong (t = {accepted:.2})"
    );
}
