//! PyTorch's CPU generator and `torch.randperm`, bit for bit.

const N: usize = 624;
const M: usize = 397;

/// MT19937 (Matsumoto and Nishimura 1998, <https://doi.org/10.1145/272991.272995>), seeded by
/// `init_genrand` as `torch.Generator.manual_seed` does.
struct Mersenne {
    state: [u32; N],
    next: usize,
}

impl Mersenne {
    fn new(seed: u32) -> Self {
        let mut state = [seed; N];
        for i in 1..N {
            let previous = state[i - 1];
            state[i] =
                1_812_433_253u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: N }
    }

    fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }
}

/// `torch.randperm(n, generator)` after `manual_seed(seed)`; only the low 32 bits of the seed
/// count.
pub(crate) fn randperm(n: usize, seed: u64) -> Vec<u32> {
    let mut random = Mersenne::new(seed as u32);
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in 0..n.saturating_sub(1) {
        let offset = random.next_u32() as usize % (n - i);
        order.swap(i, i + offset);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_equal_the_reference_implementation() {
        let mut random = Mersenne::new(0);
        let first: Vec<u32> = (0..5).map(|_| random.next_u32()).collect();
        assert_eq!(
            first,
            [2_357_136_044, 2_546_248_239, 3_071_714_933, 3_626_093_760, 2_588_848_963]
        );
        // C++ [rand.predef]: the 10000th output for the default seed 5489.
        let mut random = Mersenne::new(5489);
        let last = (0..10_000).map(|_| random.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn randperm_equals_pytorch() {
        // torch.randperm(20, generator=torch.Generator().manual_seed(0)), PyTorch 2.6
        let expected = [4, 5, 13, 19, 7, 14, 3, 6, 9, 17, 11, 2, 16, 18, 10, 12, 15, 8, 1, 0];
        assert_eq!(randperm(20, 0), expected);
        assert_eq!(randperm(20, 1 << 32), expected);
        assert!(randperm(0, 0).is_empty());
    }
}
