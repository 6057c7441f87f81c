//! A disc that an agent pushes to a goal, after Push-T (Florence et al., 2021; Chi et al., 2023), without rotation:
//! the agent starts in front of the disc and must go around it, by the left or by the right. Both are right, their
//! mean is not: it leads into the disc and pushes it away.

use std::f64::consts::{FRAC_PI_2, PI, TAU};

use crate::data::sources::control::episodes::Episodes;
use crate::rng::{Key, Purpose, Stream};

/// Side of the arena in pixels, as in Push-T.
pub const ARENA: f64 = 512.0;
/// Where the disc shall be.
pub const GOAL: [f64; 2] = [256.0, 256.0];
/// Radius of the agent and of the disc.
pub const RADII: [f64; 2] = [15.0, 30.0];
/// Largest distance from the goal that counts as there.
pub const TOLERANCE: f64 = 12.0;
/// Actions after which an episode is over.
pub const MOST_STEPS: usize = 80;

/// Distance at which the expert goes around the disc.
const AROUND: f64 = 70.0;
/// How far ahead the expert aims, in one action.
const AHEAD: f64 = 24.0;
/// Angle behind the disc from which the expert pushes.
const BEHIND: f64 = 0.25;
/// Steps of the simulation in an action, and seconds of each.
const SUBSTEPS: usize = 10;
const SECONDS: f64 = 0.01;
/// The agent is drawn to its target by a spring that does not swing.
const STIFFNESS: f64 = 100.0;
const DAMPING: f64 = 20.0;
/// Deviation of the expert's aim.
const TREMBLE: f64 = 2.0;
/// Steps that a demonstration goes on at the goal.
const REST: usize = 4;

/// The state of the simulation: 10 actions a second, each a place that the agent shall go to.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    agent: [f64; 2],
    velocity: [f64; 2],
    disc: [f64; 2],
}

impl Push {
    /// A start drawn from `key`: the disc anywhere around the goal, the agent between them.
    pub fn start(key: Key) -> Self {
        let mut draws = key.stream();
        let (angle, distance) = (draws.range(0.0, TAU), draws.range(90.0, 130.0));
        let disc = from(GOAL, angle, distance);
        let agent = from(disc, angle + PI + draws.range(-0.35, 0.35), AROUND);
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

    /// What an expert does who goes around the disc by `side` (1 or -1), then pushes it straight to the goal.
    pub fn expert(&self, side: f64, draws: &mut Stream) -> [f32; 2] {
        let to_goal = angle(self.disc, GOAL);
        let at = angle(self.disc, self.agent);
        let mut turn = wrapped(to_goal + PI - at);
        let target = if turn.abs() <= BEHIND {
            let touching = RADII[0] + RADII[1];
            let left = distance(self.disc, GOAL).min(AHEAD);
            from(self.disc, to_goal, left - touching)
        } else {
            // Half-way around, the nearer side is the one that was chosen.
            if turn.abs() > FRAC_PI_2 && turn * side < 0.0 {
                turn += TAU * side;
            }
            let most = AHEAD / AROUND;
            from(self.disc, at + turn.clamp(-most, most), AROUND)
        };
        target.map(|value| (value + TREMBLE * draws.normal()) as f32)
    }
}

/// Demonstrations from `n` starts, half of them by either side.
pub(super) fn demonstrate(n: usize, seed: u64) -> Episodes {
    let mut episodes = Episodes::default();
    for episode in 0..n as u64 {
        let key = Key::new(seed, Purpose::Generate, 0, episode);
        let mut draws = key.with(1).stream();
        let side = if draws.uniform() < 0.5 { 1.0 } else { -1.0 };
        let mut push = Push::start(key.with(0));
        let mut rest = REST;
        for _ in 0..MOST_STEPS {
            let action = push.expert(side, &mut draws);
            episodes.observations.push(push.observe().to_vec());
            episodes.actions.push(action.to_vec());
            push.act(action);
            rest -= usize::from(push.is_solved());
            if rest == 0 {
                break;
            }
        }
        episodes.ends.push(episodes.actions.len());
    }
    episodes
}

/// The point `distance` away from `point` in the direction `angle`.
fn from([x, y]: [f64; 2], angle: f64, distance: f64) -> [f64; 2] {
    [x + distance * angle.cos(), y + distance * angle.sin()]
}

fn distance([x, y]: [f64; 2], [to_x, to_y]: [f64; 2]) -> f64 {
    (to_x - x).hypot(to_y - y)
}

/// Direction from one point to another.
fn angle([x, y]: [f64; 2], [to_x, to_y]: [f64; 2]) -> f64 {
    (to_y - y).atan2(to_x - x)
}

/// The same angle between -pi and pi.
fn wrapped(angle: f64) -> f64 {
    angle - TAU * (angle / TAU).round()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(episode: u64) -> Key {
        Key::new(3, Purpose::Generate, 0, episode)
    }

    /// Steps until it is solved by an action for each state.
    fn run(mut push: Push, mut act: impl FnMut(&Push) -> [f32; 2]) -> Option<usize> {
        (1..=MOST_STEPS).find(|_| {
            push.act(act(&push));
            push.is_solved()
        })
    }

    #[test]
    fn an_expert_solves_it_by_either_side_from_every_start() {
        for episode in 0..100 {
            for side in [1.0, -1.0] {
                let mut draws = key(episode).with(1).stream();
                let steps = run(Push::start(key(episode)), |push| push.expert(side, &mut draws));
                assert!(steps.is_some_and(|steps| steps < 60), "{episode} {side} {steps:?}");
            }
        }
    }

    #[test]
    fn the_mean_of_both_sides_pushes_the_disc_away() {
        let mut solved = 0;
        for episode in 0..50 {
            let start = Push::start(key(episode));
            let mut draws = [1, 2].map(|part| key(episode).with(part).stream());
            let steps = run(start, |push| {
                let [left, right] = &mut draws;
                let (left, right) = (push.expert(1.0, left), push.expert(-1.0, right));
                [0, 1].map(|axis| f32::midpoint(left[axis], right[axis]))
            });
            solved += usize::from(steps.is_some());
        }
        assert!(solved <= 5, "{solved} of 50");
    }

    #[test]
    fn a_wall_holds_the_disc_and_the_disc_the_agent() {
        let mut push = Push { agent: [100.0, 256.0], velocity: [0.0; 2], disc: [50.0, 256.0] };
        for _ in 0..30 {
            push.act([0.0, 256.0]);
        }
        assert_eq!(push.disc, [30.0, 256.0]);
        assert!((push.agent[0] - 75.0).abs() < 1e-6, "{push:?}");
    }

    #[test]
    fn demonstrations_end_at_the_goal_and_use_both_sides() {
        let episodes = demonstrate(40, 1);
        assert_eq!(episodes.ends.len(), 40);
        let mut sides = [0, 0];
        let mut first = 0;
        for &end in &episodes.ends {
            let [x, y] = [2, 3].map(|i| f64::from(episodes.observations[end - 1][i]));
            assert!(distance([x, y], GOAL) < 2.0 * TOLERANCE);
            let at = |step: usize| {
                let o = &episodes.observations[first + step];
                let [ax, ay, dx, dy] = [o[0], o[1], o[2], o[3]].map(f64::from);
                angle([dx, dy], [ax, ay])
            };
            sides[usize::from(wrapped(at(5) - at(0)) > 0.0)] += 1;
            first = end;
        }
        assert!(sides.iter().all(|&n| n >= 10), "{sides:?}");
    }
}
