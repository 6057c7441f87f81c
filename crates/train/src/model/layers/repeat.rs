//! `name = "repeat"`

use candle_core::Result as CandleResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind, Need};
use crate::model::layers::sequential::{InOrder, end};
use crate::model::layers::{Decided, Flow, Layer, LayerMisfit, Node, Scope, Site};

/// layers several times, each time with parameters of their own: those of the key `blocks` are
/// called `blocks.0`, `blocks.1` and so on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// how often.
    #[schemars(range(min = 1, max = 100_000), example = 2)]
    pub times: u32,
    /// the layers.
    pub layers: Vec<Entry>,
}

impl Kind for Repeat {
    const NAME: &'static str = "repeat";
    const NEEDS: &'static [Need] = &[Need::EntryKey];
}

impl Layer for Repeat {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let layers = scope.sequence("layers", &self.layers, input)?;
        let output = end(&layers)?;
        Ok(Decided { output, layers, shortcut: Vec::new() })
    }

    fn times(&self) -> Option<u32> {
        Some(self.times)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(InOrder(site.sequence()?)))
    }
}
