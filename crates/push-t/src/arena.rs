//! The simulation, and its picture.

use std::f64::consts::{PI, TAU};

use train_numbers::rng::Key;

/// Side of the arena in pixels, as in Push-T.
pub const ARENA: f64 = 512.0;
/// Goal of the disc.
pub const GOAL: [f64; 2] = [256.0, 256.0];
/// Radius of the agent and of the disc.
pub const RADII: [f64; 2] = [15.0, 30.0];
/// Largest distance from the goal that counts as there.
pub const TOLERANCE: f64 = 12.0;
/// Actions after which an episode is over.
pub const MAX_STEPS: usize = 80;

/// Steps of the simulation in an action, and seconds of each.
const SUBSTEPS: usize = 10;
const SECONDS: f64 = 0.01;
/// The agent is drawn to its target by a spring that does not swing.
const STIFFNESS: f64 = 100.0;
const DAMPING: f64 = 20.0;

/// Distance at which an expert goes around the disc.
pub(crate) const DETOUR_DISTANCE: f64 = 70.0;

/// The state of the simulation: 10 actions a second, each a place that the agent shall go to.
#[derive(Clone, Debug, PartialEq)]
pub struct PushEnv {
    pub(crate) agent: [f64; 2],
    pub(crate) velocity: [f64; 2],
    pub(crate) disc: [f64; 2],
}

impl PushEnv {
    /// A start drawn from `key`: the disc anywhere around the goal, the agent between them.
    pub fn start(key: Key) -> Self {
        let mut draws = key.stream();
        let angle = draws.range(0.0, TAU);
        let distance = draws.range(90.0, 130.0);
        let disc = from(GOAL, angle, distance);
        let agent = from(disc, angle + PI + draws.range(-0.35, 0.35), DETOUR_DISTANCE);
        Self { agent, velocity: [0.0; 2], disc }
    }

    /// Agent and disc at rest at these places.
    pub fn at(agent: [f64; 2], disc: [f64; 2]) -> Self {
        Self { agent, velocity: [0.0; 2], disc }
    }

    /// Agent x, y, disc x, y, in pixels.
    pub fn observe(&self) -> [f32; 4] {
        [self.agent[0], self.agent[1], self.disc[0], self.disc[1]].map(|value| value as f32)
    }

    /// True if the disc is at the goal.
    pub fn is_solved(&self) -> bool {
        distance(self.disc, GOAL) <= TOLERANCE
    }

    /// Lets the agent go towards `target` for a tenth of a second.
    pub fn act(&mut self, target: [f32; 2]) {
        for _ in 0..SUBSTEPS {
            for (axis, aim) in target.into_iter().enumerate() {
                let aim = f64::from(aim).clamp(0.0, ARENA);
                let pull = STIFFNESS * (aim - self.agent[axis]) - DAMPING * self.velocity[axis];
                self.velocity[axis] += pull * SECONDS;
                self.agent[axis] += self.velocity[axis] * SECONDS;
            }
            self.touch();
        }
    }

    /// Moves the disc out of the agent's way, and the agent off a disc that a wall holds.
    fn touch(&mut self) {
        let [agent, disc] = RADII;
        let gap = distance(self.agent, self.disc);
        if gap >= agent + disc {
            return;
        }
        let angle = angle(self.agent, self.disc);
        let inside = |value: f64| value.clamp(disc, ARENA - disc);
        self.disc = from(self.agent, angle, agent + disc).map(inside);
        if distance(self.agent, self.disc) < agent + disc {
            self.agent = from(self.disc, angle + PI, agent + disc);
            self.velocity = [0.0; 2];
        }
    }
}

/// The point `distance` away from `point` in the direction `angle`.
pub(crate) fn from([x, y]: [f64; 2], angle: f64, distance: f64) -> [f64; 2] {
    [x + distance * angle.cos(), y + distance * angle.sin()]
}

pub(crate) fn distance([x, y]: [f64; 2], [to_x, to_y]: [f64; 2]) -> f64 {
    (to_x - x).hypot(to_y - y)
}

/// Direction from one point to another.
pub(crate) fn angle([x, y]: [f64; 2], [to_x, to_y]: [f64; 2]) -> f64 {
    (to_y - y).atan2(to_x - x)
}

/// The same angle between -pi and pi.
pub(crate) fn wrapped(angle: f64) -> f64 {
    angle - TAU * (angle / TAU).round()
}

const GROUND: [f64; 3] = [255.0, 255.0, 255.0];
const PLACE: [f64; 3] = [144.0, 238.0, 144.0];
const DISC: [f64; 3] = [119.0, 136.0, 153.0];
const AGENT: [f64; 3] = [65.0, 105.0, 225.0];

/// The arena as `side` x `side` RGB pixels, from what [`PushEnv::observe`] says: the goal, the disc on
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

impl PushEnv {
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
        let over = PushEnv::at([256.0, 256.0], [270.0, 256.0]).draw(64);
        assert_eq!(at(&over, 32, 32), [65, 105, 225]);
        assert_eq!(at(&over, 36, 32), [119, 136, 153]);
    }
}
