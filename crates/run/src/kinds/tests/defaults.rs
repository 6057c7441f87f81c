//! What applies where an experiment is silent.

use super::*;

#[test]
fn whatever_is_not_given_is_pytorchs_default() {
    let options = |name: &str| {
        let choose = format!("optimizer.name={name}");
        good(GOOD, &[&choose, "~optimizer.momentum"]).experiment.optimizer.options
    };
    let json = |name: &str| serde_json::to_string(&options(name)).unwrap();
    let adam = r#"{"amsgrad":false,"betas":[0.9,0.999],"eps":1e-8,"weight_decay":0.0}"#;
    assert_eq!(json("adam"), adam);
    let adamw = r#"{"amsgrad":false,"betas":[0.9,0.999],"eps":1e-8,"weight_decay":0.01}"#;
    assert_eq!(json("adamw"), adamw);
    let sgd = r#"{"dampening":0.0,"momentum":0.0,"nesterov":false,"weight_decay":0.0}"#;
    assert_eq!(json("sgd"), sgd);
    let rmsprop = r#"{"alpha":0.99,"eps":1e-8,"momentum":0.0,"weight_decay":0.0}"#;
    assert_eq!(json("rmsprop"), rmsprop);
    assert_eq!(json("lion"), r#"{"betas":[0.9,0.99],"weight_decay":0.0}"#);
    let adagrad =
        r#"{"eps":1e-10,"initial_accumulator_value":0.0,"lr_decay":0.0,"weight_decay":0.0}"#;
    assert_eq!(json("adagrad"), adagrad);
    let nadam = r#"{"betas":[0.9,0.999],"decoupled_weight_decay":false,"eps":1e-8,"momentum_decay":0.004,"weight_decay":0.0}"#;
    assert_eq!(json("nadam"), nadam);
}
