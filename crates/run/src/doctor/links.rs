//! Speed of gradient exchange between machines, measured with the collective that trains.

use std::time::{Duration, Instant};

use crate::collective::{Collective, Elements, Error};

/// Bytes of a small bucket, whose time is the latency.
pub const SMALL_BYTES: usize = 4 << 10;
/// Bytes of a bucket of gradients.
pub const BUCKET_BYTES: usize = 25 << 20;
/// All-reduces of small buckets in a row.
const SMALL_CALLS: u32 = 50;
/// Repetitions of a measurement, of which the fastest counts.
const REPETITIONS: u32 = 3;

/// Measured times and rates; all machines make the same calls.
pub struct Links {
    /// One all-reduce of [`SMALL_BYTES`].
    pub small: Duration,
    /// One all-reduce of [`BUCKET_BYTES`].
    pub bucket: Duration,
    /// Bytes per second that each machine receives while all others send to it alone.
    pub into: Vec<f64>,
}

impl Links {
    /// Measures with a group of one rank for each machine.
    ///
    /// # Errors
    ///
    /// A machine does not answer within the group's deadline, or is gone.
    pub fn measure(group: &dyn Collective) -> Result<Self, Error> {
        let lengths = [SMALL_BYTES / size_of::<f32>(), BUCKET_BYTES / size_of::<f32>()];
        let mut segments = group.segments(&lengths)?;
        let [small, bucket] = segments.as_mut_slice() else { return Err(no_segments()) };
        small.fill(1e-30);
        bucket.fill(1e-30);
        let small = time_of(group, SMALL_CALLS, || group.all_reduce(small))?;
        let time = time_of(group, 1, || group.all_reduce(bucket))?;
        let machines = group.world_size().count();
        let mut into = Vec::new();
        for receiver in 0..machines {
            let all: Elements = std::iter::once(0..lengths[1]).collect();
            let mut parts: Vec<Elements> = vec![Elements::new(); machines];
            parts[receiver] = all;
            let time = time_of(group, 1, || group.reduce_scatter(bucket, &parts))?;
            into.push((BUCKET_BYTES * (machines - 1)) as f64 / time.as_secs_f64().max(1e-9));
        }
        Ok(Self { small, bucket: time, into })
    }

    /// The machine that slows the others down, and in what way.
    pub fn slow(&self) -> Option<(usize, String)> {
        let best = self.into.iter().copied().fold(0.0, f64::max);
        let (slow, fast): (Vec<usize>, Vec<usize>) =
            (0..self.into.len()).partition(|&machine| self.into[machine] < best / 2.0);
        let rate = |machine: usize| speed(self.into[machine]);
        match (slow.as_slice(), fast.as_slice()) {
            ([], _) => None,
            // All that receive from it are slow, and it alone is not.
            ([one, _, ..], [sender]) => {
                Some((*sender, format!("sends slowly: the others receive {} from it", rate(*one))))
            }
            ([one, ..], _) => {
                let words =
                    format!("receives slowly: {}, but the fastest {}", rate(*one), speed(best));
                Some((*one, words))
            }
        }
    }
}

/// "812 MB/s"
pub fn speed(bytes_per_second: f64) -> String {
    format!("{:.0} MB/s", bytes_per_second / 1e6)
}

/// Mean time of `calls` calls in a row, after one that is not counted: the shortest of
/// [`REPETITIONS`], because machines do other things too.
fn time_of(
    group: &dyn Collective,
    calls: u32,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<Duration, Error> {
    call()?;
    let mut shortest = Duration::MAX;
    for _ in 0..REPETITIONS {
        group.barrier()?;
        let began = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        // Until the last machine is done.
        group.barrier()?;
        shortest = shortest.min(began.elapsed() / calls);
    }
    Ok(shortest)
}

fn no_segments() -> Error {
    Error::Connections { what: "the group gave no memory for two buckets".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(into: &[f64], expected: Option<(usize, &str)>) {
        let into = into.iter().map(|rate| rate * 1e6).collect();
        let links = Links { small: Duration::ZERO, bucket: Duration::ZERO, into };
        let found = links.slow();
        let found = found.as_ref().map(|(machine, words)| (*machine, words.as_str()));
        assert_eq!(found, expected);
    }

    #[test]
    fn the_machine_whose_network_is_slow_is_told_from_those_that_wait_for_it() {
        check(&[800.0, 700.0], None);
        check(
            &[800.0, 410.0, 900.0],
            Some((1, "receives slowly: 410 MB/s, but the fastest 900 MB/s")),
        );
        check(&[800.0, 90.0], Some((1, "receives slowly: 90 MB/s, but the fastest 800 MB/s")));
        let sends = "sends slowly: the others receive 90 MB/s from it";
        check(&[90.0, 800.0, 95.0], Some((1, sends)));
    }
}
