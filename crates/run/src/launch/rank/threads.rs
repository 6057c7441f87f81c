//! Limits of the thread pools of libraries, which compete with our compute threads.

use crate::launch::rank::env::{self, Role};
use crate::launch::rank::inherit;

/// Candle's own pool, for sums of tensors: the calling thread only. Its threads spin while they
/// wait, and on busy cores a step took four times as long.
pub(in crate::launch) const CANDLE: (&str, &str) = ("CANDLE_NUM_THREADS", "1");
/// Rayon's global pool, for what does not run in ours.
pub(in crate::launch) const RAYON: &str = "RAYON_NUM_THREADS";

/// Limits the thread pools of this process, as our parent does for its ranks. Variables that are
/// set are left alone. To be called first: it does nothing in a process that has started threads.
pub fn limit_threads() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (name, value) in limits(env::from_environment().ok().as_ref(), cores) {
        inherit::set_if_absent(name, &value);
    }
}

/// Variables for a process of this role. A rank of another launcher has its share of the cores.
fn limits(role: Option<&Role>, cores: usize) -> Vec<(&'static str, String)> {
    let share = match role {
        Some(Role::Foreign(place)) => Some(place.share_of_cores(cores)),
        _ => None,
    };
    let candle = (CANDLE.0, CANDLE.1.to_owned());
    let rayon = share.map(|threads| (RAYON, threads.to_string()));
    [candle].into_iter().chain(rayon).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_of_another_launcher_has_its_share_of_the_cores() {
        let variables = |environment: &[(&str, &str)]| {
            let get = |name: &str| {
                let mut pairs = environment.iter().filter(|(key, _)| *key == name);
                pairs.next().map(|(_, value)| (*value).to_owned())
            };
            let limits = limits(env::parse(get).ok().as_ref(), 8);
            limits.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(variables(&[]), ["CANDLE_NUM_THREADS=1"]);
        let launched = [("RANK", "1"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")];
        assert_eq!(variables(&launched), ["CANDLE_NUM_THREADS=1", "RAYON_NUM_THREADS=2"]);
    }
}
