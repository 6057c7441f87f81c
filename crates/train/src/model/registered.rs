//! The models that come with ddprun.

use crate::model::{
    Airbench94Config, DLinearConfig, DiffusionPolicyConfig, DiffusionPolicyImageConfig,
    EfficientNetConfig, FastConformerConfig, GptConfig, GraphConfig, ITransformerConfig,
    LlamaConfig, MlpConfig, Models, NestConfig, PatchTstConfig, SimpleCnnConfig, TimeBridgeConfig,
    convnext, mobilenet_v3, recurrent, resnet, vit,
};
use crate::registry::Registry;

impl Default for Models {
    /// Those that come with ddprun.
    fn default() -> Self {
        let mut all = Self(Registry::empty());
        all.add::<MlpConfig>();
        all.add::<SimpleCnnConfig>();
        all.add::<Airbench94Config>();
        resnet::register(&mut all);
        convnext::register(&mut all);
        mobilenet_v3::register(&mut all);
        all.add::<EfficientNetConfig>();
        vit::register(&mut all);
        all.add::<DLinearConfig>();
        recurrent::register(&mut all);
        all.add::<ITransformerConfig>();
        all.add::<PatchTstConfig>();
        all.add::<TimeBridgeConfig>();
        all.add::<GptConfig>();
        all.add::<LlamaConfig>();
        all.add::<GraphConfig>();
        all.add::<DiffusionPolicyConfig>();
        all.add::<DiffusionPolicyImageConfig>();
        all.add::<NestConfig>();
        all.add::<FastConformerConfig>();
        all
    }
}
