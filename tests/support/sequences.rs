//! Plans for models of sequences.

use ddprun::config::kind::Choice;
use ddprun::kinds::Kinds;
use ddprun::loss::{self, Mse, TimeFrequency};
use ddprun::plan::{Cameras, EmaPlan, ModelPlan, Plan};
use serde_json::json;

use crate::support::{choose, plan};

/// A plan for a forecaster of 3 series with 4 features of the date, 24 steps to 6, every dropout in
/// use.
pub(crate) fn forecast_plan(model: &str, world: u32) -> Plan {
    let mut plan = plan(model, &[24, 7], world);
    plan.model.target = vec![6, 3];
    plan.model.outputs = 3;
    let sizes = json!({
        "d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 2, "attn_dropout": 0.25, "patch_len": 8, "stride": 4,
        "period": 4, "num_p": 3, "stable_len": 3, "ia_layers": 1, "pd_layers": 1, "ca_layers": 1
    });
    let options = serde_json::from_value(sizes).unwrap();
    plan.model.kind.options.extend(Kinds::default().models.with_options(model, &options).options);
    plan.loss = loss::plan(&TimeFrequency { alpha: 0.35 });
    plan.data.classes = vec![];
    plan.distributed.find_unused_parameters = model == "timebridge";
    plan
}

/// A plan for a GPT of 12 tokens, every dropout in use.
pub(crate) fn gpt_plan(world: u32) -> Plan {
    let mut plan = plan("gpt", &[12], world);
    plan.model.target = vec![12];
    choose(&mut plan, &json!({ "d_model": 8, "n_heads": 2, "n_layers": 2 }));
    plan
}

/// A plan for a Llama of 12 tokens whose two heads of queries share one of keys.
pub(crate) fn llama_plan(world: u32) -> Plan {
    let mut plan = plan("llama", &[12], world);
    plan.model.target = vec![12];
    let sizes = json!({
        "d_model": 8, "n_heads": 2, "n_layers": 2, "d_ff": 12, "n_kv_heads": 1, "dropout": 0.0
    });
    choose(&mut plan, &sizes);
    plan
}

/// Adapters of such a Llama, with dropout.
pub(crate) fn lora_plan(world: u32) -> Plan {
    let mut plan = llama_plan(world);
    let targets = ["q_proj", "v_proj", "up_proj"];
    let lora = json!({ "r": 2, "alpha": 4.0, "dropout": 0.25, "targets": targets });
    choose(&mut plan, &json!({ "lora": lora }));
    plan
}

/// A plan for a diffusion policy: 2 observations of 3 numbers, 4 actions of 2, with averaged
/// weights.
pub(crate) fn policy_plan(world: u32) -> Plan {
    let mut plan = plan("diffusion_policy", &[2, 3], world);
    plan.model.target = vec![4, 2];
    plan.model.outputs = 2;
    let sizes = json!({
        "down_dims": [8, 16], "diffusion_step_embed_dim": 8, "n_groups": 4, "num_inference_steps": 2
    });
    choose(&mut plan, &sizes);
    plan.loss = loss::plan(&Mse {});
    plan.data.classes = vec![];
    plan.ema = Some(EmaPlan { decay: 0.9999, power: Some(0.75), use_buffers: false });
    plan
}

/// The same for observations of 3 numbers and images of two cameras.
pub(crate) fn seeing_policy_plan(world: u32) -> Plan {
    let shape = [3, 12, 12];
    let cameras = Cameras { names: vec!["front".to_owned(), "wrist".to_owned()], shape };
    let mut plan = policy_plan(world);
    plan.model = ModelPlan {
        kind: Choice { name: "diffusion_policy_image".to_owned(), ..plan.model.kind },
        input: vec![2, 3 + cameras.values()],
        cameras: Some(cameras),
        ..plan.model
    };
    let sizes = json!({ "vision_backbone": "resnet8", "spatial_softmax_num_keypoints": 3 });
    choose(&mut plan, &sizes);
    plan
}

/// A plan for an encoder of speech: 64 frames of 8 mel bands, dropout and batch norm in use.
pub(crate) fn speech_plan(model: &str, world: u32) -> Plan {
    let mut plan = plan(model, &[2, 65, 8], world);
    let sizes = json!({
        "d_model": 8, "n_heads": 2, "n_layers": 1, "subsampling_channels": 4, "kernel_size": 3, "codebook_size": 16,
        "code_dim": 4, "mask_prob": 0.05, "mask_block": 16
    });
    let options = serde_json::from_value(sizes).unwrap();
    plan.model.kind.options.extend(Kinds::default().models.with_options(model, &options).options);
    plan
}
