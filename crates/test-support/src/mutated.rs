//! Damaged inputs for tests of everything that reads bytes which others wrote. The same seed gives
//! the same damage.

use train_numbers::rng::{Key, Purpose};

/// Values at which parsers go wrong.
const ODD: [u64; 10] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX];
/// Most changes of one input.
const MAX_CHANGES: u64 = 4;

/// `n` damaged inputs, each made of one of `originals`.
pub fn inputs(originals: &[Vec<u8>], n: u64, seed: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..n).map(move |number| {
        let mut dice = Dice { key: Key::new(seed, Purpose::Generate, number, 0), thrown: 0 };
        let mut bytes = originals[dice.below(originals.len())].clone();
        for _ in 0..=dice.below(MAX_CHANGES as usize) {
            damage(&mut bytes, originals, &mut dice);
        }
        bytes
    })
}

struct Dice {
    key: Key,
    thrown: u64,
}

impl Dice {
    /// A number below `n`; 0 if there is none.
    fn below(&mut self, n: usize) -> usize {
        self.thrown += 1;
        (self.key.bits(self.thrown) >> 11) as usize % n.max(1)
    }
}

fn damage(bytes: &mut Vec<u8>, originals: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(bytes.len());
    let length = dice.below((bytes.len() - at.min(bytes.len())).min(64) + 1);
    match dice.below(7) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = dice.below(256) as u8;
            }
        }
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..at + length)),
        4 => {
            let copy = bytes[at..at + length].to_vec();
            bytes.splice(at..at, copy);
        }
        5 => {
            let odd = ODD[dice.below(ODD.len())];
            let width = [1, 2, 4, 8][dice.below(4)].min(bytes.len() - at);
            let (big, little) = (odd.to_be_bytes(), odd.to_le_bytes());
            let odd = if dice.below(2) == 0 { &big[8 - width..] } else { &little[..width] };
            bytes[at..at + width].copy_from_slice(odd);
        }
        _ => {
            let other = &originals[dice.below(originals.len())];
            let from = dice.below(other.len());
            let part = &other[from..(from + length).min(other.len())];
            bytes.splice(at..at, part.iter().copied());
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_damage_and_another_one_other() {
    let original = [b"schema = 1\n".to_vec(), Vec::new()];
    let of = |seed| inputs(&original, 100, seed).collect::<Vec<_>>();
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}
