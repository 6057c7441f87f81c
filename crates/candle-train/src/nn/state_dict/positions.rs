//! Vectors of positions of an image -> those of an image of another size, as timm's
//! `resample_abs_pos_embed`: bicubic with antialiasing,
//! `torch.nn.functional.interpolate(mode="bicubic", antialias=True)`.

/// A grid of positions in a tensor (1, prefix + rows x columns, features), whose first vectors are
/// none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Vectors before the grid: of the class token and the like.
    pub prefix: usize,
    /// Rows and columns.
    pub sides: [usize; 2],
}

impl Grid {
    /// The square grid of a file whose tensor has so many vectors; `None` if none has.
    pub(super) fn square(prefix: usize, vectors: usize) -> Option<Self> {
        let places = vectors.checked_sub(prefix)?;
        let side = places.isqrt();
        (side > 0 && side * side == places).then_some(Self { prefix, sides: [side, side] })
    }

    fn vectors(self) -> usize {
        self.prefix + self.sides[0] * self.sides[1]
    }
}

/// The vectors of `from` at the places of `to`; those of the prefix stay.
pub(super) fn resampled(values: &[f32], from: Grid, to: Grid) -> Vec<f32> {
    let features = values.len() / from.vectors().max(1);
    let (prefix, grid) = values.split_at(from.prefix * features);
    let [rows, columns] = [0, 1].map(|axis| weights(from.sides[axis], to.sides[axis]));
    let mut out = prefix.to_vec();
    for down in &rows {
        for right in &columns {
            for feature in 0..features {
                let at = |row: usize, column: usize| {
                    f64::from(grid[(row * from.sides[1] + column) * features + feature])
                };
                let line = |row| right.iter().map(|&(column, w)| w * at(row, column)).sum::<f64>();
                out.push(down.iter().map(|&(row, w)| w * line(row)).sum::<f64>() as f32);
            }
        }
    }
    out
}

/// For each of `to` places, which of `from` it is made of, and how much each counts.
fn weights(from: usize, to: usize) -> Vec<Vec<(usize, f64)>> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let support = 2.0 * scale.max(1.0);
    let place = |i: usize| {
        let center = scale * (i as f64 + 0.5);
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weight = |j: usize| cubic((j as f64 - center + 0.5) / stretch);
        let sum: f64 = (first..end).map(weight).sum();
        (first..end).map(|j| (j, weight(j) / sum)).collect()
    };
    (0..to).map(place).collect()
}

/// Keys' cubic convolution with a = -1/2.
fn cubic(x: f64) -> f64 {
    let x = x.abs();
    match x {
        _ if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        _ if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sides, and the result.
    const GOLDEN: [([usize; 2], &[f32]); 2] = [
        (
            [2, 4],
            &[
                0.0, 0.1, 1.8683, 2.71915, 2.99544, 4.08982, 5.07368, 6.52279, 6.80014, 8.49278,
                14.94724, 17.45459, 18.09144, 20.84233, 23.10769, 26.2133, 26.85122, 30.20036,
            ],
        ),
        (
            [2, 2],
            &[0.0, 0.1, 2.5398, 3.53546, 5.77481, 7.32264, 16.81814, 19.47031, 24.62648, 27.83081],
        ),
    ];

    /// timm 1.0.31's `resample_abs_pos_embed` of 1 + 3 x 3 vectors of two features, i^2 / 10 in
    /// order.
    #[test]
    fn positions_of_another_size_are_timms() {
        let values: Vec<f32> = (0..20).map(|i| (i * i) as f32 / 10.0).collect();
        let from = Grid::square(1, 10).unwrap();
        for (sides, expected) in GOLDEN {
            let actual = resampled(&values, from, Grid { prefix: 1, sides });
            assert_eq!(actual.len(), expected.len());
            for (actual, expected) in actual.iter().zip(expected) {
                assert!((actual - expected).abs() < 2e-5, "{sides:?}: {actual} {expected}");
            }
        }
        assert_eq!(Grid::square(1, 11), None);
    }
}
