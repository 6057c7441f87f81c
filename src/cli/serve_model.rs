//! `ddprun serve-model [RUN | CHECKPOINT]`: predictions over HTTP.

use std::thread;

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::address::refuse_others;
use crate::cli::answer;
use crate::cli::args::ServeModelArgs;
use crate::kinds::Kinds;
use crate::predict::{Predictor, Service};
use crate::record::to_stderr;
use crate::runs::choose_checkpoint;
use crate::session::read_token;
use crate::transport::token_text;
use crate::units::BatchSize;
use crate::user_error::{ErrorPage, ExitCode};

/// Loads the model and answers until Ctrl-C.
pub(crate) fn serve_model(args: &ServeModelArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let ServeModelArgs { word, host, port, model: choice, .. } = args;
    refuse_others(host, args.allow_remote, "the predictions", *port)?;
    let token = args.token_file.as_deref().map(read_token).transpose()?;
    let token = token.map(|key| token_text(&key).trim().to_owned());
    let chosen = choose_checkpoint(word.as_deref(), choice.latest, choice.strict)?;
    let run = chosen.run()?;
    let mut plan = run.plan.clone();
    if let Some(size) = choice.batch_size.and_then(BatchSize::new) {
        plan.val_batch_size = size;
    }
    let step = chosen.opened.state.step;
    let about = json!({
        "run": run.run.id.as_str(),
        "step": step,
        "model": plan.model.name(),
        "data": plan.data.source.kind.name,
        "classes": plan.data.classes,
    });
    // Before anything else: Ctrl-C ends this quietly from now on.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| {
        ErrorPage::of(ExitCode::Refused, &error).help("close other programs, and try again")
    })?;
    let max_body = u64::from(args.max_body) << 20;
    let service = Service::listen((host, *port), &plan, about, max_body, token)?;
    let mut model = Predictor::of(plan, &chosen.opened, kinds)?;
    if let Some(refusal) = model.unpredictable() {
        return Err(refusal.into());
    }
    let url = format!("http://{host}:{}", service.port());
    answer("service", || json!({ "url": url, "step": step }), || format!("{url}\n"))?;
    to_stderr(&format!("the checkpoint of step {step}; try:"));
    to_stderr(&format!("  curl --data-binary @FILE '{url}/predict?name=FILE'"));
    to_stderr("press Ctrl-C to stop");
    let top = choice.top.map(|k| k as usize);
    service.run(&mut model, top, |stopper| {
        thread::spawn(move || {
            signals.forever().next();
            stopper.stop();
        });
    });
    Ok(ExitCode::Ok)
}
