//! One picture: a figure or texture in one colour, at a random place, size and angle, on a random
//! dim background, with noise.
//!
//! A class is a pair (colour, figure). Classes are numbered so that a few of them already share
//! colours and figures: neither the mean colour nor the outline alone tells them apart.

use crate::rng::{Key, Stream};

/// Hue in degrees, saturation and value.
const COLORS: [(&str, f32, f32, f32); 9] = [
    ("red", 0.0, 0.95, 1.0),
    ("blue", 225.0, 0.9, 1.0),
    ("green", 125.0, 0.9, 0.85),
    ("yellow", 56.0, 0.95, 1.0),
    ("magenta", 318.0, 0.9, 1.0),
    ("cyan", 178.0, 0.9, 0.95),
    ("orange", 28.0, 0.95, 1.0),
    ("purple", 270.0, 0.85, 0.9),
    ("white", 0.0, 0.03, 1.0),
];

const FIGURES: [(&str, Figure); 10] = [
    ("circle", Figure::Circle),
    ("square", Figure::Square),
    ("stripes", Figure::Stripes),
    ("triangle", Figure::Triangle),
    ("checker", Figure::Checker),
    ("ring", Figure::Ring),
    ("dots", Figure::Dots),
    ("cross", Figure::Cross),
    ("gradient", Figure::Gradient),
    ("star", Figure::Star),
];

/// Most classes that can be told apart.
pub(super) const MAX_CLASSES: usize = COLORS.len() * FIGURES.len();

/// Samples per pixel and direction, for smooth edges.
const SAMPLES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Circle,
    Square,
    Stripes,
    Triangle,
    Checker,
    Ring,
    Dots,
    Cross,
    Gradient,
    Star,
}

/// Folder name of a class: `red_circle`.
pub(super) fn class_name(class: usize) -> String {
    let (color, figure) = parts(class);
    format!("{}_{}", COLORS[color].0, FIGURES[figure].0)
}

/// Draws a picture of `class`, `size * size` RGB pixels.
pub(super) fn draw(class: usize, size: usize, key: Key) -> Vec<u8> {
    let (color, figure) = parts(class);
    let mut random = key.stream();
    let foreground = foreground(color, &mut random);
    let background = Background::draw(&mut random);
    let placed = PlacedFigure::draw(FIGURES[figure].1, &mut random);
    let noise = random.range(4.0, 12.0) as f32;
    let mut pixels = Vec::with_capacity(3 * size * size);
    for y in 0..size {
        for x in 0..size {
            let share = placed.coverage_of_pixel(x, y, size);
            let behind = background.at(x as f32 / size as f32, y as f32 / size as f32);
            for (front, behind) in foreground.into_iter().zip(behind) {
                let value = behind + share * (front - behind) + noise * random.normal() as f32;
                pixels.push(value.round().clamp(0.0, 255.0) as u8);
            }
        }
    }
    pixels
}

/// (colour, figure) of a class: pairs in the order of the larger of their two numbers, so that the
/// first n classes use about as many colours as figures.
fn parts(class: usize) -> (usize, usize) {
    let shell = |k: usize| {
        let column = (0..k).map(move |color| (color, k));
        let row = (0..=k).map(move |figure| (k, figure));
        column.chain(row)
    };
    let pairs = (0..FIGURES.len()).flat_map(shell);
    let mut existing = pairs.filter(|&(color, _)| color < COLORS.len());
    existing.nth(class % MAX_CLASSES).unwrap_or((0, 0))
}

fn foreground(color: usize, random: &mut Stream) -> [f32; 3] {
    let (_, hue, saturation, value) = COLORS[color];
    let hue = hue + random.range(-8.0, 8.0) as f32;
    let saturation = saturation * random.range(0.8, 1.0) as f32;
    let value = value * random.range(0.8, 1.0) as f32;
    hsv(hue, saturation, value)
}

/// RGB in 0..=255 of a hue in degrees, and saturation and value in 0..=1.
fn hsv(hue: f32, saturation: f32, value: f32) -> [f32; 3] {
    // https://en.wikipedia.org/wiki/HSL_and_HSV#HSV_to_RGB_alternative
    [5.0, 3.0, 1.0].map(|n| {
        let k = (n + hue.rem_euclid(360.0) / 60.0) % 6.0;
        255.0 * (value - value * saturation * k.min(4.0 - k).clamp(0.0, 1.0))
    })
}

/// A dim, nearly grey plane with a slope.
struct Background {
    color: [f32; 3],
    slope: [f32; 2],
}

impl Background {
    fn draw(random: &mut Stream) -> Self {
        let grey = random.range(25.0, 105.0);
        let color = [0; 3].map(|_| (grey + random.range(-14.0, 14.0)) as f32);
        Self { color, slope: [0; 2].map(|_| random.range(-30.0, 30.0) as f32) }
    }

    fn at(&self, x: f32, y: f32) -> [f32; 3] {
        let lighter = self.slope[0] * (x - 0.5) + self.slope[1] * (y - 0.5);
        self.color.map(|value| value + lighter)
    }
}

/// A figure with its place: the picture is the unit square.
struct PlacedFigure {
    figure: Figure,
    center: [f32; 2],
    radius: f32,
    sin: f32,
    cos: f32,
}

impl PlacedFigure {
    fn draw(figure: Figure, random: &mut Stream) -> Self {
        let is_texture =
            matches!(figure, Figure::Stripes | Figure::Checker | Figure::Dots | Figure::Gradient);
        // A texture fills the picture; its radius is the length of half a period.
        let radius = if figure == Figure::Gradient {
            random.range(0.5, 0.7)
        } else if is_texture {
            random.range(0.11, 0.17)
        } else {
            random.range(0.24, 0.42)
        };
        let room = if is_texture { 0.5 } else { 0.5 - radius };
        let center = [0; 2].map(|_| (0.5 + random.range(-room, room)) as f32);
        let angle = random.range(-20.0, 20.0).to_radians();
        let sin = angle.sin() as f32;
        let cos = angle.cos() as f32;
        Self { figure, center, radius: radius as f32, sin, cos }
    }

    /// Share of a pixel that the figure covers.
    fn coverage_of_pixel(&self, x: usize, y: usize, size: usize) -> f32 {
        let mut sum = 0.0;
        for sample in 0..SAMPLES * SAMPLES {
            let offset = |n: usize| (n as f32 + 0.5) / SAMPLES as f32;
            let px = (x as f32 + offset(sample % SAMPLES)) / size as f32;
            let py = (y as f32 + offset(sample / SAMPLES)) / size as f32;
            let dx = px - self.center[0];
            let dy = py - self.center[1];
            let u = (dx * self.cos + dy * self.sin) / self.radius;
            let v = (dy * self.cos - dx * self.sin) / self.radius;
            sum += coverage(self.figure, u, v);
        }
        sum / (SAMPLES * SAMPLES) as f32
    }
}

/// Share of the pixel at (u, v) that lies in the figure of radius 1 around 0 (`v` downwards).
fn coverage(figure: Figure, u: f32, v: f32) -> f32 {
    let r = u.hypot(v);
    let is_odd = |value: f32| value.floor().rem_euclid(2.0) == 1.0;
    let inside = match figure {
        Figure::Circle => r <= 1.0,
        Figure::Square => u.abs().max(v.abs()) <= 0.85,
        Figure::Triangle => v <= 0.6 && 1.732 * u.abs() - v <= 1.0,
        Figure::Ring => (0.55..=1.0).contains(&r),
        Figure::Cross => u.abs().min(v.abs()) <= 0.3 && u.abs().max(v.abs()) <= 1.0,
        Figure::Star => in_star(u, v, r),
        Figure::Stripes => is_odd(u),
        Figure::Checker => is_odd(u) != is_odd(v),
        Figure::Dots => {
            let to_middle = |value: f32| value.rem_euclid(2.0) - 1.0;
            to_middle(u).hypot(to_middle(v)) <= 0.62
        }
        Figure::Gradient => return (0.5 + 0.5 * u).clamp(0.0, 1.0),
    };
    f32::from(u8::from(inside))
}

/// Five points of radius 1, inner corners of radius 0.45.
fn in_star(u: f32, v: f32, r: f32) -> bool {
    let sector = std::f32::consts::TAU / 5.0;
    // Angle from the nearest point of the star, which has one point upwards.
    let angle = u.atan2(-v).rem_euclid(sector);
    let angle = angle.min(sector - angle);
    let x = r * angle.cos();
    let y = r * angle.sin();
    let (corner_y, corner_x) = (sector / 2.0).sin_cos();
    let corner_x = 0.45 * corner_x;
    let corner_y = 0.45 * corner_y;
    // Left of the line from the point (1, 0) to the corner.
    (corner_x - 1.0) * y - corner_y * (x - 1.0) >= 0.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::Purpose;

    #[test]
    fn all_ninety_classes_have_names_of_their_own_and_the_first_six_share_colours_and_figures() {
        let names: BTreeSet<String> = (0..MAX_CLASSES).map(class_name).collect();
        assert_eq!((MAX_CLASSES, names.len()), (90, 90));
        let first: BTreeSet<String> = (0..6).map(class_name).collect();
        let expected: BTreeSet<String> = ["red", "blue"]
            .iter()
            .flat_map(|c| ["circle", "square", "stripes"].map(|f| format!("{c}_{f}")))
            .collect();
        assert_eq!(first, expected);
    }

    #[test]
    fn pictures_of_a_class_have_its_colour_and_differ() {
        let red = (0..MAX_CLASSES).find(|&c| class_name(c) == "red_square").unwrap();
        let picture = |i| draw(red, 32, Key::new(1, Purpose::Generate, 0, i));
        assert_ne!(picture(0), picture(1));
        assert_eq!(picture(2), picture(2));
        for i in 0..20 {
            let reddish = picture(i)
                .chunks_exact(3)
                .filter(|p| p[0] > 150 && p[1] < 110 && p[2] < 110)
                .count();
            assert!((80..700).contains(&reddish), "{reddish} of 1024 pixels are red");
        }
    }

    #[test]
    fn figures_cover_the_area_that_geometry_gives() {
        // Share of the square from -1.2 to 1.2 on a fine grid.
        let area = |figure| {
            let n = 600;
            let at = |i: usize| -1.2 + 2.4 * (i as f32 + 0.5) / n as f32;
            let cells = (0..n * n).map(|i| coverage(figure, at(i % n), at(i / n)));
            f64::from(cells.sum::<f32>()) / (n * n) as f64 * 2.4 * 2.4
        };
        let pi = std::f64::consts::PI;
        let close = |figure, expected: f64| {
            let found = area(figure);
            assert!((found - expected).abs() < 0.03, "{figure:?}: {found} instead of {expected}");
        };
        close(Figure::Circle, pi);
        close(Figure::Square, 1.7 * 1.7);
        close(Figure::Ring, pi * (1.0 - 0.55 * 0.55));
        close(Figure::Cross, 2.0 * 2.0 * 0.6 - 0.36);
        // Ten triangles between the centre, a point and a corner.
        close(Figure::Star, 10.0 * 0.5 * 0.45 * (pi / 5.0).sin());
        close(Figure::Triangle, 1.6 * 1.6 / 1.732);
    }
}
