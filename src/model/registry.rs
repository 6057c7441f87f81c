//! Names -> build functions, in the order in which they are listed to users.

use candle_core::{Device, Result as CandleResult};

use super::pretrained::{Unfit, likeliest, misfit_help};
use super::{
    Model, cnn, diffusion_policy, dlinear, gpt, graph, itransformer, llama, mlp, nest, patchtst,
    peft, resnet, timebridge,
};
use crate::nn::state_dict::{
    self, LoadReport, Strict, Wanted, fit, header, load_adapters, load_state_dict,
};
use crate::nn::{Builder, Params};
use crate::plan::{Modality, ModelFacts, ModelPlan};

/// Registers a model's parameters through the builder and returns its forward function.
///
/// It runs twice: once with [`Builder::describe`], when no values exist, and once to build; so it must not
/// read values.
pub type Build = fn(&ModelPlan, &Builder) -> CandleResult<Box<dyn Model>>;

/// Models by name.
#[derive(Clone, Debug)]
pub struct Registry(Vec<Entry>);

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    build: Build,
    head: Head,
    /// What samples may be; empty = anything that it can be built for.
    takes: &'static [Modality],
}

/// The layers that depend on the number of outputs.
#[derive(Clone, Debug)]
enum Head {
    /// Those under these prefixes of keys (`fc.`); none = there is no such layer.
    Keys(Vec<String>),
    /// That of the parameter registered last.
    Last,
}

impl Head {
    fn of(keys: &[&str]) -> Self {
        Self::Keys(keys.iter().map(|&key| key.to_owned()).collect())
    }

    /// Prefixes of its keys in the model of `wanted`; empty if that has no such layer.
    fn keys(&self, wanted: &Wanted) -> Vec<String> {
        let names = || wanted.tensors.iter().map(|(name, _)| name.as_str());
        match self {
            Self::Keys(keys)
                if names().any(|name| keys.iter().any(|key| name.starts_with(key))) =>
            {
                keys.clone()
            }
            Self::Keys(_) => Vec::new(),
            Self::Last => {
                let last = names().next_back().and_then(|name| name.rsplit_once('.'));
                last.map(|(layer, _)| format!("{layer}.")).into_iter().collect()
            }
        }
    }
}

/// Why a model was not built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such name.
    #[error("no model is called `{name}`; there are {}", known.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
        /// All names.
        known: Vec<String>,
    },
    /// The build function refused.
    #[error("model `{name}` cannot be built: {source}")]
    Build {
        /// The model.
        name: String,
        /// Its words.
        source: candle_core::Error,
    },
}

impl Default for Registry {
    /// The models that come with ddprun.
    fn default() -> Self {
        use Modality::{Behaviour, Images, Series, Speech, Table, Text};
        let mut all = Self(Vec::new());
        all.add("mlp", mlp::build, Head::Last, &[Images, Table, Series, Behaviour]);
        all.add("simple_cnn", cnn::build, Head::of(&["fc2."]), &[Images]);
        for (name, build) in [
            ("resnet8", resnet::build_resnet8 as Build),
            ("resnet20", resnet::build_resnet20),
            ("resnet18", resnet::build_resnet18),
            ("resnet34", resnet::build_resnet34),
            ("resnet50", resnet::build_resnet50),
        ] {
            all.add(name, build, Head::of(&["fc."]), &[Images]);
        }
        let animals = resnet::build_animals90;
        all.add("resnet18_animals90", animals, Head::of(&["resnet18.fc."]), &[Images]);
        // Both of its layers depend on what is predicted.
        all.add("dlinear", dlinear::build, Head::of(&[]), &[Series]);
        all.add("itransformer", itransformer::build, Head::of(&["projector."]), &[Series]);
        all.add("patchtst", patchtst::build, Head::of(&["head."]), &[Series]);
        all.add("timebridge", timebridge::build, Head::of(&["decoder."]), &[Series]);
        // Its output layer is the table of its tokens.
        let table = Head::of(&["transformer.wte.", "lm_head."]);
        all.add("gpt", gpt::build, table, &[Text]);
        all.add("llama", llama::build, Head::of(&["lm_head."]), &[Text]);
        all.add("graph", graph::build, Head::Last, &[]);
        all.add("diffusion_policy", diffusion_policy::build, Head::of(&[]), &[Behaviour]);
        all.add("nest", nest::build, Head::of(&[]), &[Speech]);
        // A pre-trained encoder comes with what it was trained by.
        let head = Head::of(&["head.", "decoder.", "quantizer.", "mask_processor."]);
        all.add("fastconformer", nest::build_classifier, head, &[Speech]);
        all
    }
}

impl Registry {
    /// Adds a model, or replaces the one of the same name.
    pub fn register(&mut self, name: &str, build: Build) {
        self.register_with_head(name, build, &[]);
    }

    /// [`Registry::register`], with the key prefixes (`fc.`) that `except_head` exempts from
    /// pretrained weights.
    pub fn register_with_head(&mut self, name: &str, build: Build, head: &[&str]) {
        self.add(name, build, Head::of(head), &[]);
    }

    fn add(&mut self, name: &str, build: Build, head: Head, takes: &'static [Modality]) {
        let entry = Entry { name: name.to_owned(), build, head, takes };
        match self.0.iter_mut().find(|entry| entry.name == name) {
            Some(existing) => *existing = entry,
            None => self.0.push(entry),
        }
    }

    /// All names, in order of registration.
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|entry| entry.name.as_str()).collect()
    }

    /// Names and shapes of parameters and buffers, without allocating one.
    ///
    /// # Errors
    ///
    /// The message of [`Error`].
    pub fn describe(&self, plan: &ModelPlan) -> Result<ModelFacts, String> {
        let params = self.described(plan).map_err(|error| error.to_string())?;
        let key = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
        Ok(ModelFacts {
            parameters: params.parameters().iter().map(|p| key(p.name(), p.shape())).collect(),
            buffers: params.buffers().iter().map(|b| key(b.name(), b.shape())).collect(),
            least_rows: params.least_rows(),
        })
    }

    fn described(&self, plan: &ModelPlan) -> Result<Params, Error> {
        let builder = Builder::describe();
        self.run(plan, &builder)?;
        Ok(builder.finish())
    }

    /// Why the model `name` cannot learn from such samples; `None` if it can, or if it is not known.
    pub fn refuses(&self, name: &str, given: Modality) -> Option<String> {
        let takes = self.0.iter().find(|entry| entry.name == name)?.takes;
        if takes.is_empty() || takes.contains(&given) {
            return None;
        }
        let wanted: Vec<&str> = takes.iter().map(|kind| kind.words()).collect();
        Some(format!("`{name}` takes {}, but the data is {}", wanted.join(" or "), given.words()))
    }

    /// The models that were made for such samples.
    pub fn made_for(&self, given: Modality) -> Vec<&str> {
        let fits = self.0.iter().filter(|entry| entry.takes.contains(&given));
        fits.map(|entry| entry.name.as_str()).collect()
    }

    /// The model with initial values for `seed`; equal seeds give equal values.
    ///
    /// # Errors
    ///
    /// An unknown name, options that do not fit, or too little memory.
    pub fn build(&self, plan: &ModelPlan, seed: u64) -> Result<(Box<dyn Model>, Params), Error> {
        self.build_on(plan, seed, &Device::Cpu)
    }

    /// [`Registry::build`] in the memory of `device`.
    ///
    /// # Errors
    ///
    /// As [`Registry::build`].
    pub fn build_on(
        &self,
        plan: &ModelPlan,
        seed: u64,
        device: &Device,
    ) -> Result<(Box<dyn Model>, Params), Error> {
        let builder = Builder::on(seed, device);
        let model = self.run(plan, &builder)?;
        Ok((model, builder.finish()))
    }

    /// Compares the plan's pretrained weights with the model, by the header of their file alone.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not fit.
    pub fn check_pretrained(&self, plan: &ModelPlan) -> Result<(), Unfit> {
        let Some(path) = &plan.pretrained else { return Ok(()) };
        let params = self.described(plan).map_err(|error| Unfit::of_model(&error))?;
        let wanted = Wanted::of(&params);
        let head = self.head(plan, &wanted);
        if plan.except_head && head.is_empty() {
            return Err(Unfit::without_head(&plan.name));
        }
        let keys: Vec<&str> = head.iter().map(String::as_str).collect();
        let strict = if plan.except_head { Strict::ExceptHead(&keys) } else { Strict::All };
        let file = header(path).map_err(|error| Unfit::of_file(&error))?;
        let Err(misfit) = fit(&wanted, &file, strict) else { return Ok(()) };
        let others = self.names().into_iter().filter(|&name| name != plan.name);
        let others = others.filter_map(|name| {
            let plan = ModelPlan { name: name.to_owned(), ..plan.clone() };
            Some((name, Wanted::of(&self.described(&plan).ok()?)))
        });
        let other = likeliest(others, &file, &misfit);
        let help = misfit_help(plan, &keys, &misfit, other);
        Err(Unfit::of_misfit(path, misfit, help))
    }

    /// Prefixes of the keys that `except_head` exempts.
    fn head(&self, plan: &ModelPlan, wanted: &Wanted) -> Vec<String> {
        let entry = self.0.iter().find(|entry| entry.name == plan.name);
        entry.map_or_else(Vec::new, |entry| entry.head.keys(wanted))
    }

    /// Loads the plan's pretrained weights; `None` if it names none.
    ///
    /// # Errors
    ///
    /// As [`load_state_dict`].
    pub fn load_pretrained(
        &self,
        plan: &ModelPlan,
        params: &Params,
    ) -> Result<Option<LoadReport>, state_dict::Error> {
        let Some(path) = &plan.pretrained else { return Ok(None) };
        let head = self.head(plan, &Wanted::of(params));
        let keys: Vec<&str> = head.iter().map(String::as_str).collect();
        let strict = if plan.except_head { Strict::ExceptHead(&keys) } else { Strict::All };
        load_state_dict(params, path, strict).map(Some)
    }

    /// Loads the adapters that the plan starts from, if it names some.
    ///
    /// # Errors
    ///
    /// As [`load_adapters`].
    pub fn load_adapters(
        &self,
        plan: &ModelPlan,
        params: &Params,
    ) -> Result<(), state_dict::Error> {
        match plan.lora.as_ref().and_then(|lora| lora.adapters.as_deref()) {
            Some(folder) => load_adapters(params, &folder.join(peft::ADAPTERS)),
            None => Ok(()),
        }
    }

    fn run(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>, Error> {
        let Some(entry) = self.0.iter().find(|entry| entry.name == plan.name) else {
            let known = self.names().into_iter().map(str::to_owned).collect();
            return Err(Error::Unknown { name: plan.name.clone(), known });
        };
        (entry.build)(plan, builder)
            .map_err(|source| Error::Build { name: plan.name.clone(), source })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use candle_core::{DType, Tensor};

    use super::*;
    use crate::nn::ForwardContext;
    use crate::plan::{
        BackboneMode, Flow, LayerOp, LayerPlan, LlamaPlan, PolicyPlan, Precision, SequencePlan,
        SpeechPlan, Stem,
    };
    use crate::rng::{Key, Purpose};

    pub(in super::super) fn plan(name: &str, input: &[usize], outputs: usize) -> ModelPlan {
        ModelPlan {
            name: name.to_owned(),
            outputs,
            input: input.to_vec(),
            target: vec![],
            stem: Stem::Imagenet,
            zero_init_residual: false,
            freeze_backbone: false,
            backbone_mode: BackboneMode::Train,
            hidden: vec![16, 8],
            dropout: 0.1,
            sequence: SequencePlan::default(),
            layers: vec![],
            policy: PolicyPlan::default(),
            speech: SpeechPlan::default(),
            llama: LlamaPlan::default(),
            lora: None,
            pretrained: None,
            except_head: false,
            options: std::collections::BTreeMap::new(),
            n_parameters: 0,
            n_tensors: 0,
            n_buffer_elements: 0,
            least_rows: None,
        }
    }

    /// 6 tokens of a vocabulary of 5.
    fn text(name: &str) -> ModelPlan {
        let mut plan = plan(name, &[6], 5);
        plan.target = vec![6];
        plan.sequence = SequencePlan {
            d_model: 8,
            n_heads: 2,
            d_ff: 6,
            n_layers: 1,
            ..SequencePlan::default()
        };
        plan.llama.n_kv_heads = 1;
        plan
    }

    /// 5 series with 4 features of the date, 24 steps to 4.
    fn forecast(name: &str) -> ModelPlan {
        let mut plan = plan(name, &[24, 9], 5);
        plan.target = vec![4, 5];
        plan.sequence = SequencePlan {
            d_model: 8,
            n_heads: 2,
            d_ff: 8,
            n_layers: 1,
            patch_len: 4,
            stride: 2,
            period: 6,
            num_p: 2,
            stable_len: 3,
            layers: [1, 1, 1],
            ..SequencePlan::default()
        };
        plan
    }

    /// 2 observations of 3 numbers, 4 actions of 5.
    fn policy() -> ModelPlan {
        let mut plan = plan("diffusion_policy", &[2, 3], 5);
        plan.target = vec![4, 5];
        plan.policy = PolicyPlan {
            down_dims: vec![8, 16],
            diffusion_step_embed_dim: 8,
            n_groups: 4,
            num_inference_steps: 2,
            ..PolicyPlan::default()
        };
        plan
    }

    /// 16 frames of 8 mel bands, clean and noisy.
    fn speech(name: &str) -> ModelPlan {
        let mut plan = plan(name, &[2, 17, 8], 5);
        plan.sequence =
            SequencePlan { d_model: 8, n_heads: 2, n_layers: 1, ..SequencePlan::default() };
        plan.speech =
            SpeechPlan { subsampling_channels: 4, codebook_size: 5, ..SpeechPlan::default() };
        plan
    }

    #[test]
    fn every_registered_model_is_described_and_the_small_ones_run_in_both_modes() {
        let registry = Registry::default();
        // A graph has the layers of its file; its own tests run it.
        for name in registry.names().into_iter().filter(|&name| name != "graph") {
            let forecasts = ["dlinear", "itransformer", "patchtst", "timebridge"].contains(&name);
            let plan = match name {
                "gpt" | "llama" => text(name),
                "diffusion_policy" => policy(),
                "nest" | "fastconformer" => speech(name),
                _ if forecasts => forecast(name),
                _ => plan(name, &[3, 32, 32], 5),
            };
            let facts = registry.describe(&plan).unwrap();
            if facts.parameters.iter().map(|p| p.1.iter().product::<usize>()).sum::<usize>()
                > 2_000_000
            {
                continue;
            }
            let (model, params) = registry.build(&plan, 1).unwrap();
            assert_eq!(params.parameters().len(), facts.parameters.len());
            let shape = [&[2], &plan.input[..]].concat();
            let x = Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
            let times: &[usize] = if name == "nest" { &[2] } else { &plan.target };
            let expected = [&[2], &times[..times.len().min(1)], &[5]].concat();
            let key = Key::new(1, Purpose::Dropout, 0, 0);
            for pass in
                [ForwardContext::train(key, Precision::Fp32), ForwardContext::eval(Precision::Bf16)]
            {
                assert_eq!(model.forward(&x, &pass).unwrap().dims(), expected, "{name}");
            }
        }
    }

    #[test]
    fn a_model_says_how_few_values_its_batch_norms_see_in_a_sample() {
        let vector = Flow::Vector(4);
        let norm = LayerOp::BatchNorm;
        let path = "bn".to_owned();
        let (input, output) = (vector, vector);
        let norm = LayerPlan { path, draws: None, op: norm, input, output };
        let graph = ModelPlan { layers: vec![norm], ..plan("graph", &[4], 4) };
        let mut cifar = plan("resnet18", &[3, 8, 8], 5);
        cifar.stem = Stem::Cifar;
        let short = ModelPlan { input: vec![2, 9, 8], ..speech("fastconformer") };
        for (plan, expected) in [
            (plan("resnet8", &[3, 32, 32], 5), Some(64)),
            (plan("resnet8", &[3, 8, 8], 5), Some(4)),
            (plan("resnet8", &[3, 3, 4], 5), Some(1)),
            (plan("resnet18", &[3, 33, 32], 5), Some(2)),
            (cifar, Some(1)),
            (graph, Some(1)),
            (forecast("patchtst"), Some(5 * 12)),
            (speech("fastconformer"), Some(2)),
            (short, Some(1)),
            (plan("mlp", &[7], 5), None),
        ] {
            let registry = Registry::default();
            assert_eq!(registry.describe(&plan).unwrap().least_rows, expected, "{}", plan.name);
            let (model, _) = registry.build(&plan, 1).unwrap();
            let shape = [&[1], &plan.input[..]].concat();
            let one = Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
            let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
            let refused = model.forward(&one, &pass).is_err();
            assert_eq!(refused, expected == Some(1), "{}, a batch of one", plan.name);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Registry::default().describe(&plan("resnet9", &[3, 8, 8], 2)).unwrap_err();
        assert!(error.starts_with("no model is called `resnet9`; there are mlp, "), "{error}");
    }

    #[test]
    fn a_users_model_is_registered_and_replaces_one_of_its_name() {
        let mut registry = Registry::default();
        registry.register("mine", mlp::build);
        registry.register("mlp", cnn::build);
        let n = Registry::default().names().len();
        assert_eq!((registry.names()[0], registry.names().len()), ("mlp", n + 1));
        let facts = registry.describe(&plan("mine", &[4], 2)).unwrap();
        assert_eq!(facts.parameters[0], ("layers.0.weight".to_owned(), vec![16, 4]));
        assert_eq!(
            registry.describe(&plan("mlp", &[1, 28, 28], 2)).unwrap().parameters[0].0,
            "conv1.weight"
        );
    }
}
