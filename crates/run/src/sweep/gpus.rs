//! Which GPUs a trial gets, and how it is made to see only those. Pure.

use crate::sweep::request::Job;

/// The `wanted` GPUs of a machine with `count` that `jobs` use least.
pub(super) fn free<'a>(
    count: usize,
    jobs: impl Iterator<Item = &'a Job>,
    wanted: usize,
) -> Vec<usize> {
    let mut trials = vec![0; count];
    for gpu in jobs.flat_map(|job| &job.gpus) {
        trials[*gpu] += 1;
    }
    least_used(&trials, wanted)
}

/// Numbers of the `wanted` GPUs with the fewest trials on them, of those that CUDA shows:
/// `trials[gpu]` run on each. In their order; all of them if there are fewer.
fn least_used(trials: &[usize], wanted: usize) -> Vec<usize> {
    let mut gpus: Vec<usize> = (0..trials.len()).collect();
    gpus.sort_by_key(|&gpu| (trials[gpu], gpu));
    gpus.truncate(wanted);
    gpus.sort_unstable();
    gpus
}

/// `CUDA_VISIBLE_DEVICES` of a process that shall see `gpus` of those that this one sees with
/// `ours`.
pub fn visible(gpus: &[usize], ours: Option<&str>) -> String {
    let named: Vec<&str> =
        ours.map_or(Vec::new(), |names| names.split(',').map(str::trim).collect());
    let name =
        |gpu: &usize| named.get(*gpu).map_or_else(|| gpu.to_string(), |name| (*name).to_owned());
    gpus.iter().map(name).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_side_by_side_share_no_gpu_as_long_as_one_is_free() {
        assert_eq!(least_used(&[0, 0, 0, 0], 2), [0, 1]);
        assert_eq!(least_used(&[1, 1, 0, 0], 2), [2, 3]);
        assert_eq!(
            least_used(&[1, 0, 1, 1], 2),
            [0, 1],
            "one is free, the other the first of the rest"
        );
        assert_eq!(least_used(&[2, 1, 1], 1), [1]);
        assert_eq!(least_used(&[0, 0], 3), [0, 1]);
        assert_eq!(least_used(&[], 1), [0; 0]);
    }

    #[test]
    fn a_trial_sees_its_gpus_by_the_names_that_we_see_them_by() {
        assert_eq!(visible(&[1, 3], None), "1,3");
        assert_eq!(visible(&[0, 1], Some("4, 6,7")), "4,6");
        assert_eq!(visible(&[1], Some("GPU-8932f937,GPU-1e4d")), "GPU-1e4d");
        assert_eq!(visible(&[], Some("4")), "");
    }
}
