//! Noise on gradients.

use ddprun::optim::{self, Sgd};
use ddprun::units::Rank;

use crate::check_same_bits;
use crate::support::{engine, group, plan, step};

#[test]
fn noise_on_gradients_is_the_same_at_any_world_size() {
    check_same_bits("mlp", &[10], |plan| plan.clip.noise = Some(0.3));
}

#[test]
fn noise_has_the_variance_that_was_asked_for_also_on_clipped_gradients() {
    noise_has_its_variance(None);
    noise_has_its_variance(Some(0.01));
}

fn noise_has_its_variance(limit: Option<f64>) {
    let moved = |noise| {
        let mut plan = plan("mlp", &[10], 1);
        (plan.clip.noise, plan.clip.value) = (noise, limit);
        plan.optimizer = optim::plan(&Sgd::default(), 1.0);
        let mut engine = engine(&plan, group(&plan).remove(0));
        let values = |engine: &ddprun::engine::Engine| -> Vec<f32> {
            let params = engine.params().parameters().iter();
            params
                .flat_map(|param| {
                    let values = param.var().unwrap().flatten_all().unwrap();
                    values.to_vec1::<f32>().unwrap()
                })
                .collect()
        };
        let lr = step(&mut engine, &plan, Rank(0)).unwrap().lr;
        (values(&engine), lr)
    };
    let ((plain, lr), (noisy, _)) = (moved(None), moved(Some(0.09)));
    let n = plain.len() as f64;
    let differences = plain.iter().zip(&noisy).map(|(a, b)| f64::from(b - a) / lr);
    let (sum, squares) = differences.fold((0.0, 0.0), |(s, q), d| (s + d, q + d * d));
    let deviation = (squares / n - (sum / n).powi(2)).sqrt();
    assert!((deviation - 0.3).abs() < 0.3 * 4.0 / n.sqrt(), "{deviation} over {n} elements");
    assert!((sum / n).abs() < 0.3 * 4.0 / n.sqrt(), "{}", sum / n);
}
