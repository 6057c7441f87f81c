//! Draws what policies do from one start, each beside the other, from what `ddprun sample` printed:
//!
//! ```sh
//! ddprun experiments/diffusion_push.toml && ddprun sample --episodes 20 > diffusion.csv
//! ddprun experiments/mse_push.toml && ddprun sample --episodes 20 > regression.csv
//! cargo run --release --example push_paths -- paths.svg diffusion.csv regression.csv
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::register_font;
use push_t::{ARENA, GOAL, RADII, TOLERANCE};

/// Pixels of a panel's side, and of the line above it.
const PANEL: u32 = 360;
const TITLE: u32 = 28;

const AGENT: RGBColor = RGBColor(31, 119, 180);
const DISC: RGBColor = RGBColor(214, 119, 39);
const PLACE: RGBColor = RGBColor(44, 130, 60);

/// Agent and disc at each step of an episode.
type Path2 = Vec<[f64; 4]>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let picture =
        words.next().ok_or("give the picture to write, then tables of `ddprun sample`")?;
    let tables: Vec<String> = words.collect();
    let panels = tables.len() as u32;
    // A machine for training often has no font.
    register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
        .map_err(|_| "the embedded font is damaged")?;
    let root = SVGBackend::new(&picture, (PANEL * panels, PANEL + TITLE)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, table) in root.split_evenly((1, panels as usize)).iter().zip(&tables) {
        let name = Path::new(table).file_stem().unwrap_or_default().to_string_lossy();
        draw(area, &name, &read(table)?)?;
    }
    root.present()?;
    Ok(())
}

/// The episodes of a table.
fn read(table: &str) -> Result<Vec<Path2>, Box<dyn Error>> {
    let mut episodes: BTreeMap<usize, Path2> = BTreeMap::new();
    for record in csv::Reader::from_path(table)?.records() {
        let record = record?;
        let number = |i: usize| record[i].parse::<f64>();
        let step = [number(2)?, number(3)?, number(4)?, number(5)?];
        episodes.entry(record[0].parse()?).or_default().push(step);
    }
    Ok(episodes.into_values().collect())
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    name: &str,
    episodes: &[Path2],
) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let at_goal = |step: &[f64; 4]| (step[2] - GOAL[0]).hypot(step[3] - GOAL[1]) <= TOLERANCE;
    let solved = episodes.iter().filter(|path| path.last().is_some_and(at_goal)).count();
    let title = format!("{name}: {solved} of {} at the goal", episodes.len());
    area.draw(&Text::new(title, (12, 8), ("sans-serif", 16)))?;
    let (_, arena) = area.split_vertically(TITLE);
    let scale = f64::from(PANEL - 20) / ARENA;
    let place = |x: f64, y: f64| ((10.0 + x * scale) as i32, (y * scale) as i32);
    let circle = |x, y, radius: f64, style: ShapeStyle| {
        Circle::new(place(x, y), (radius * scale) as i32, style)
    };
    arena.draw(&Rectangle::new([place(0.0, 0.0), place(ARENA, ARENA)], BLACK))?;
    arena.draw(&circle(GOAL[0], GOAL[1], RADII[1], PLACE.stroke_width(2)))?;
    for path in episodes {
        let line = |i: usize| path.iter().map(move |step| place(step[i], step[i + 1]));
        arena.draw(&PathElement::new(line(2).collect::<Vec<_>>(), DISC.mix(0.6)))?;
        arena.draw(&PathElement::new(line(0).collect::<Vec<_>>(), AGENT.mix(0.6)))?;
    }
    if let Some(&[x, y, disc_x, disc_y]) = episodes.first().and_then(|path| path.first()) {
        arena.draw(&circle(disc_x, disc_y, RADII[1], DISC.mix(0.5).filled()))?;
        arena.draw(&circle(x, y, RADII[0], AGENT.mix(0.8).filled()))?;
    }
    Ok(())
}
