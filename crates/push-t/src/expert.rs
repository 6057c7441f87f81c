//! An expert that solves the task, by either side of the disc.

use std::f64::consts::{FRAC_PI_2, PI, TAU};

use train_numbers::rng::{Key, Purpose, Stream};

use crate::arena::{
    DETOUR_DISTANCE, GOAL, MAX_STEPS, PushEnv, RADII, angle, distance, from, wrapped,
};

/// Distance ahead that the expert aims at, in one action.
const LOOKAHEAD: f64 = 24.0;
/// Angle behind the disc from which the expert pushes.
const PUSH_ANGLE: f64 = 0.25;
/// Deviation of the expert's aim.
const AIM_STD: f64 = 2.0;
/// Steps that a demonstration goes on at the goal.
const STEPS_AT_GOAL: usize = 4;

impl PushEnv {
    /// Action of an expert that goes around the disc by `side` (1 or -1), then pushes it straight to the
    /// goal.
    pub fn expert(&self, side: f64, draws: &mut Stream) -> [f32; 2] {
        let to_goal = angle(self.disc, GOAL);
        let at = angle(self.disc, self.agent);
        let mut turn = wrapped(to_goal + PI - at);
        let target = if turn.abs() <= PUSH_ANGLE {
            let touching = RADII[0] + RADII[1];
            let left = distance(self.disc, GOAL).min(LOOKAHEAD);
            from(self.disc, to_goal, left - touching)
        } else {
            // Half-way around, the nearer side is the one that was chosen.
            if turn.abs() > FRAC_PI_2 && turn * side < 0.0 {
                turn += TAU * side;
            }
            let most = LOOKAHEAD / DETOUR_DISTANCE;
            from(self.disc, at + turn.clamp(-most, most), DETOUR_DISTANCE)
        };
        target.map(|value| (value + AIM_STD * draws.normal()) as f32)
    }
}

/// Observations and actions, one episode after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demonstrations {
    /// [`PushEnv::observe`] at each step.
    pub observations: Vec<[f32; 4]>,
    /// Action of the expert at each step.
    pub actions: Vec<[f32; 2]>,
    /// The step after the last one of each episode.
    pub ends: Vec<usize>,
}

/// Demonstrations from `n` starts, half of them by either side.
pub fn demonstrate(n: usize, seed: u64) -> Demonstrations {
    let mut episodes = Demonstrations::default();
    for episode in 0..n as u64 {
        let key = Key::new(seed, Purpose::Generate, 0, episode);
        let mut draws = key.with(1).stream();
        let side = if draws.uniform() < 0.5 { 1.0 } else { -1.0 };
        let mut push = PushEnv::start(key.with(0));
        let mut rest = STEPS_AT_GOAL;
        for _ in 0..MAX_STEPS {
            let action = push.expert(side, &mut draws);
            episodes.observations.push(push.observe());
            episodes.actions.push(action);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::TOLERANCE;

    fn key(episode: u64) -> Key {
        Key::new(3, Purpose::Generate, 0, episode)
    }

    /// Steps until it is solved by an action for each state.
    fn run(mut push: PushEnv, mut act: impl FnMut(&PushEnv) -> [f32; 2]) -> Option<usize> {
        (1..=MAX_STEPS).find(|_| {
            push.act(act(&push));
            push.is_solved()
        })
    }

    #[test]
    fn an_expert_solves_it_by_either_side_from_every_start() {
        for episode in 0..100 {
            for side in [1.0, -1.0] {
                let mut draws = key(episode).with(1).stream();
                let steps = run(PushEnv::start(key(episode)), |push| push.expert(side, &mut draws));
                assert!(steps.is_some_and(|steps| steps < 60), "{episode} {side} {steps:?}");
            }
        }
    }

    #[test]
    fn the_mean_of_both_sides_pushes_the_disc_away() {
        let mut solved = 0;
        for episode in 0..50 {
            let start = PushEnv::start(key(episode));
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
        let mut push = PushEnv { agent: [100.0, 256.0], velocity: [0.0; 2], disc: [50.0, 256.0] };
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
