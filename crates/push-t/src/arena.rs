//! The simulation.

use std::f64::consts::{PI, TAU};

use train_numbers::rng::Key;

use crate::geometry::{angle, distance, from};

/// Side of the arena in pixels, as in Push-T.
pub const ARENA: f64 = 512.0;
/// Where the disc shall be.
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
pub struct Push {
    pub(crate) agent: [f64; 2],
    pub(crate) velocity: [f64; 2],
    pub(crate) disc: [f64; 2],
}

impl Push {
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

    /// Whether the disc is at the goal.
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
