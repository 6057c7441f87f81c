//! What a camera above the arena sees.

use crate::arena::{ARENA, GOAL, Push, RADII};
use crate::geometry::distance;

const GROUND: [f64; 3] = [255.0, 255.0, 255.0];
const PLACE: [f64; 3] = [144.0, 238.0, 144.0];
const DISC: [f64; 3] = [119.0, 136.0, 153.0];
const AGENT: [f64; 3] = [65.0, 105.0, 225.0];

/// The arena as `side` x `side` RGB pixels, from what [`Push::observe`] says: the goal, the disc on
/// it, the agent on both. A pixel that an edge crosses is mixed.
pub fn draw(observed: [f32; 4], side: usize) -> Vec<u8> {
    let [agent_x, agent_y, disc_x, disc_y] = observed.map(f64::from);
    let [agent, disc] = RADII;
    let circles =
        [(GOAL, disc, PLACE), ([disc_x, disc_y], disc, DISC), ([agent_x, agent_y], agent, AGENT)];
    let pixel = ARENA / side as f64;
    let middle = |i: usize| (i as f64 + 0.5) * pixel;
    let places = (0..side).flat_map(|y| (0..side).map(move |x| [middle(x), middle(y)]));
    let color = |place: [f64; 2]| {
        circles.iter().fold(GROUND, |below, (center, radius, color)| {
            let covered = (0.5 + (radius - distance(place, *center)) / pixel).clamp(0.0, 1.0);
            std::array::from_fn(|c| below[c] + covered * (color[c] - below[c]))
        })
    };
    places.flat_map(color).map(|value| value.round() as u8).collect()
}

impl Push {
    /// [`draw`] of what is seen now.
    pub fn draw(&self, side: usize) -> Vec<u8> {
        draw(self.observe(), side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_stands_on_the_disc_and_the_disc_on_the_goal() {
        let at = |picture: &[u8], x: usize, y: usize| picture[3 * (y * 64 + x)..][..3].to_vec();
        // A pixel is 8 wide: the disc's centre is at 32, 16, the agent's at 10, 40.
        let picture = draw([80.0, 320.0, 256.0, 128.0], 64);
        assert_eq!(picture.len(), 64 * 64 * 3);
        assert_eq!(at(&picture, 0, 0), [255, 255, 255]);
        assert_eq!(at(&picture, 32, 32), [144, 238, 144]);
        assert_eq!(at(&picture, 32, 16), [119, 136, 153]);
        assert_eq!(at(&picture, 10, 40), [65, 105, 225]);
        let over = Push::at([256.0, 256.0], [270.0, 256.0]).draw(64);
        assert_eq!(at(&over, 32, 32), [65, 105, 225]);
        assert_eq!(at(&over, 36, 32), [119, 136, 153]);
    }
}
