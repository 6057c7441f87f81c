use test_support::assert_refused;

use super::*;
use crate::Precision;

#[derive(Default)]
struct Recorded(Mutex<Vec<(usize, Vec<f32>)>>);

impl GradientSink for Recorded {
    fn add(&self, index: usize, gradient: &[f32]) -> Result<()> {
        self.0.lock().unwrap().push((index, gradient.to_vec()));
        Ok(())
    }

    fn complete(&self, index: usize) -> Result<()> {
        self.0.lock().unwrap().push((index, Vec::new()));
        Ok(())
    }
}

#[test]
fn a_weight_used_twice_reaches_the_sink_once_with_its_whole_gradient() -> Result<()> {
    let builder = Builder::new(1);
    let weight = builder.param("weight", &[2], Init::Constant(3.0))?;
    let params = builder.finish();
    let recorded = Arc::new(Recorded::default());
    let sink: Arc<dyn GradientSink> = recorded.clone();
    params.begin_pass(Some(&sink));
    // d/dw (w * w) = 2 w, with w entering at two places.
    let loss = (weight.tensor()? * weight.tensor()?)?.sum_all()?;
    let gradients = loss.backward()?;
    params.end_pass();
    assert_eq!(*recorded.0.lock().unwrap(), [(0, vec![6.0, 6.0]), (0, vec![])]);
    assert!(gradients.get(weight.var()?).is_none());
    Ok(())
}

#[test]
fn a_weight_is_complete_after_its_last_use_and_is_not_copied() -> Result<()> {
    let builder = Builder::new(1);
    let weight = builder.param("weight", &[1, 1], Init::Constant(3.0))?;
    let params = builder.finish();
    let recorded = Arc::new(Recorded::default());
    let sink: Arc<dyn GradientSink> = recorded.clone();
    params.begin_pass(Some(&sink));
    // d/dw (w (w x)) in two uses: w x = 6 for the outer, w = 3 times x = 2 for the inner.
    let x = Tensor::new(&[[2f32]], &candle_core::Device::Cpu)?;
    let linear = |x: &Tensor| crate::ops::linear(x, &weight.weight()?, None, Precision::Fp32);
    assert_eq!(weight.weight()?.tensor().id(), weight.var()?.as_tensor().id());
    params.begin_pass(Some(&sink));
    let gradients = linear(&linear(&x)?)?.sum_all()?.backward()?;
    params.end_pass();
    assert_eq!(*recorded.0.lock().unwrap(), [(0, vec![6.0]), (0, vec![6.0]), (0, vec![])]);
    assert!(gradients.get(weight.var()?).is_none());
    Ok(())
}

#[test]
fn describing_a_model_allocates_no_values() -> Result<()> {
    let builder = Builder::describe();
    let huge = builder.pp("head").param("weight", &[1 << 20, 1 << 20], Init::Constant(0.0))?;
    assert_eq!((huge.name(), huge.elem_count()), ("head.weight", 1 << 40));
    assert_refused(huge.var(), "has no values: the model was only described");
    Ok(())
}

#[test]
fn a_frozen_parameter_is_a_buffer_and_gets_no_gradient() -> Result<()> {
    let builder = Builder::new(1);
    let frozen = builder.frozen().param("frozen", &[1], Init::Constant(2.0))?;
    let weight = builder.param("weight", &[1], Init::Constant(3.0))?;
    assert_refused(builder.buffer("frozen", &[1], 0.0), "buffer `frozen` is registered twice");
    let params = builder.finish();
    let recorded = Arc::new(Recorded::default());
    let sink: Arc<dyn GradientSink> = recorded.clone();
    params.begin_pass(Some(&sink));
    (weight.tensor()? * frozen.tensor()?)?.sum_all()?.backward()?;
    params.end_pass();
    assert_eq!(*recorded.0.lock().unwrap(), [(0, vec![2.0]), (0, vec![])]);
    assert_eq!((frozen.is_trainable(), weight.is_trainable()), (false, true));
    assert_eq!((params.parameters().len(), params.buffers()[0].name()), (1, "frozen"));
    assert!(params.buffers()[0].is_frozen());
    Ok(())
}

#[test]
fn initial_values_depend_on_seed_and_name_only() -> Result<()> {
    let first = |seed, name: &str| -> Result<Vec<f32>> {
        Builder::new(seed).param(name, &[4], Init::Normal(1.0))?.var()?.to_vec1()
    };
    assert_eq!(first(1, "a")?, first(1, "a")?);
    assert_ne!(first(1, "a")?, first(1, "b")?);
    assert_ne!(first(1, "a")?, first(2, "a")?);
    Ok(())
}
