//! Bookkeeping of a step: the gradients that are in, and the buckets that may leave. The same for
//! the CPU's memory and a GPU's.

use crate::engine::reducer::buckets::Layout;

/// The buckets of one step after another.
#[derive(Clone)]
pub(super) struct Progress {
    /// Buckets that are reduced in each step, in the order in which they leave.
    pub(super) order: Vec<usize>,
    /// True for each parameter that takes part.
    pub(super) trained: Vec<bool>,
    /// Place in `order` of the first bucket that has not left yet.
    pub(super) next: usize,
    /// Gradients that each bucket still waits for in the last pass.
    pub(super) missing: Vec<usize>,
    /// True in the last pass of a step, when buckets may leave.
    pub(super) last_pass: bool,
    /// Parameters whose slot holds a gradient of this shard.
    pub(super) written: Vec<bool>,
    /// Parameters that had a gradient in this step.
    pub(super) used: Vec<bool>,
}

impl Progress {
    /// Before the first step, in which all parameters take part.
    pub(super) fn new(layout: &Layout) -> Self {
        let buckets = layout.buckets.len();
        let parameters = layout.slots.len();
        Self {
            order: (0..buckets).collect(),
            trained: vec![true; parameters],
            next: 0,
            missing: vec![0; buckets],
            last_pass: false,
            written: vec![false; parameters],
            used: vec![false; parameters],
        }
    }

    /// Chooses the parameters that take part from now on.
    pub(super) fn train_only(&mut self, layout: &Layout, trained: &[bool]) {
        self.order = layout.trained(trained);
        self.trained = trained.to_vec();
    }

    /// No gradient is in.
    pub(super) fn begin_step(&mut self) {
        self.next = 0;
        self.last_pass = false;
        self.written.fill(false);
        self.used.fill(false);
    }

    /// Buckets leave when they are full, with `overlap`.
    pub(super) fn begin_last_pass(&mut self, layout: &Layout, overlap: bool) {
        self.last_pass = overlap;
        self.missing = layout.buckets.iter().map(Vec::len).collect();
    }

    /// A gradient of this parameter is in.
    pub(super) fn wrote(&mut self, parameter: usize) {
        self.written[parameter] = true;
        self.used[parameter] = true;
    }

    /// The last gradient of a parameter of `bucket` is in.
    pub(super) fn completed(&mut self, bucket: usize) {
        if self.last_pass {
            self.missing[bucket] -= 1;
        }
    }

    /// True if the next bucket is full and may leave. The last one stays for the end of the step.
    pub(super) fn may_send(&self) -> bool {
        self.last_pass
            && self.next < self.order.len() - 1
            && self.missing[self.order[self.next]] == 0
    }

    /// Parameters that take part and had no gradient in this step.
    pub(super) fn unused(&self) -> Vec<usize> {
        let is_unused = |&parameter: &usize| self.trained[parameter] && !self.used[parameter];
        (0..self.used.len()).filter(is_unused).collect()
    }
}
