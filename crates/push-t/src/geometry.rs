//! Points and directions.

use std::f64::consts::TAU;

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
