//! Attention over sequences, and what turns its queries and keys.

use super::graph::Graph;
use super::value::{Attribute, Value};

impl Graph {
    /// q (n, t, heads d), k and v (n, s, heads d) -> (n, t, heads d); causal: a step sees only
    /// itself and those before it.
    pub fn attention(&mut self, operands: [&Value; 3], heads: usize, causal: bool) -> Value {
        self.attention_within(operands, heads, causal, None)
    }

    /// Causal [`Graph::attention`] of as many queries as keys, in which a query sees the last
    /// `window` keys up to its own, and scores s are `softcap` tanh(s / `softcap`).
    pub fn attention_bounded(
        &mut self,
        operands: [&Value; 3],
        heads: usize,
        window: Option<usize>,
        softcap: Option<f64>,
    ) -> Value {
        self.attention_of(operands, heads, None, |graph, mut scores| {
            if let Some(cap) = softcap {
                scores = graph.softcapped(&scores, cap);
            }
            let hidden = graph.hidden_behind(&scores, window);
            graph.add(&scores, &hidden)
        })
    }

    /// [`Graph::attention`] in which the queries of a sample see its first keys only, as many as
    /// `lengths` (n, 1) says, which is at least one.
    pub fn attention_within(
        &mut self,
        operands: [&Value; 3],
        heads: usize,
        causal: bool,
        lengths: Option<&Value>,
    ) -> Value {
        self.attention_of(operands, heads, lengths, |graph, scores| {
            if !causal {
                return scores;
            }
            let hidden = graph.hidden_behind(&scores, None);
            graph.add(&scores, &hidden)
        })
    }

    /// Attention whose scores `changed` takes before the softmax.
    fn attention_of(
        &mut self,
        [q, k, v]: [&Value; 3],
        heads: usize,
        lengths: Option<&Value>,
        changed: impl FnOnce(&mut Self, Value) -> Value,
    ) -> Value {
        let keys = k.dims()[1];
        let width = q.features();
        let q = self.scaled(q, 1.0 / ((width / heads.max(1)) as f64).sqrt());
        let [q, v] = [&q, v].map(|x| {
            let x = self.heads(x, heads);
            self.transposed(&x, &[0, 2, 1, 3])
        });
        let k = self.heads(k, heads);
        let k = self.transposed(&k, &[0, 2, 3, 1]);
        let scores = self.matmul(&q, &k);
        let mut scores = changed(self, scores);
        if let Some((keys, lengths)) = keys.zip(lengths) {
            // (n, 1, 1, s)
            let is_seen = self.is_within(keys, lengths);
            let is_seen = self.unsqueezed(&is_seen, &[1, 2]);
            let least = self.scalar(f64::from(f32::MIN));
            let dims = scores.dims().to_vec();
            scores = self.node("Where", &[&is_seen, &scores, &least], &[], &dims);
        }
        let shares = self.softmax(&scores);
        let seen = self.matmul(&shares, &v);
        let seen = self.transposed(&seen, &[0, 2, 1, 3]);
        self.reshaped(&seen, &[0, 0, width as i64])
    }

    /// Queries, keys and values side by side, (n, t, 3 width) -> (n, t, width).
    pub fn attention_packed(&mut self, qkv: &Value, heads: usize, causal: bool) -> Value {
        self.attention_packed_within(qkv, heads, causal, None)
    }

    /// [`Graph::attention_within`] of such.
    pub fn attention_packed_within(
        &mut self,
        qkv: &Value,
        heads: usize,
        causal: bool,
        lengths: Option<&Value>,
    ) -> Value {
        let width = qkv.features() / 3;
        let [q, k, v] = [0, 1, 2].map(|i| self.narrowed(qkv, 2, i * width, width));
        self.attention_within([&q, &k, &v], heads, causal, lengths)
    }

    /// Mask (n, steps) of the first `lengths` (n, 1) of so many steps, truth values.
    pub fn is_within(&mut self, steps: usize, lengths: &Value) -> Value {
        let places: Vec<f32> = (0..steps).map(|place| place as f32).collect();
        let places = self.floats(&[1, steps], &places);
        self.node("Less", &[&places, lengths], &[], &[None, Some(steps)])
    }

    /// (n, t, heads d) -> (n, t, heads, d)
    fn heads(&mut self, x: &Value, heads: usize) -> Value {
        let d = x.features() / heads.max(1);
        self.reshaped(x, &[0, 0, heads as i64, d as i64])
    }

    /// cap tanh(x / cap)
    pub fn softcapped(&mut self, x: &Value, cap: f64) -> Value {
        let x = self.scaled(x, 1.0 / cap);
        let x = self.unary("Tanh", &x, &[]);
        self.scaled(&x, cap)
    }

    /// (t, t): 0 up to the diagonal and within the window, and what no softmax leaves anything of
    /// elsewhere.
    fn hidden_behind(&mut self, scores: &Value, window: Option<usize>) -> Value {
        let t = self.length(scores, 2);
        let shape = self.concatenated(&[&t, &t], 0);
        let least = self.scalar(f64::from(f32::MIN));
        let square = self.node("Expand", &[&least, &shape], &[], &[None, None]);
        let diagonal = self.integer(1);
        let upper = [Attribute::Int("upper", 1)];
        let behind = self.node("Trilu", &[&square, &diagonal], &upper, &[None, None]);
        let Some(window) = window else { return behind };
        let last = self.integer(-(window as i64));
        let lower = [Attribute::Int("upper", 0)];
        let before = self.node("Trilu", &[&square, &last], &lower, &[None, None]);
        self.add(&behind, &before)
    }

    /// Pairs of features of each head turned by their angles: x (n, t, heads d); `cosines` and
    /// `sines` (steps, pairs) for the longest sequence. Features behind the pairs stay.
    pub fn rotary(&mut self, x: &Value, heads: usize, [cosines, sines]: [&Value; 2]) -> Value {
        let width = x.features();
        let d = x.features() / heads.max(1);
        let half = cosines.features();
        let steps = self.length(x, 1);
        // (t, 1, d / 2)
        let [cosines, sines] = [cosines, sines].map(|table| {
            let table = self.cut(table, 0, &steps);
            self.unsqueezed(&table, &[1])
        });
        let x = self.heads(x, heads);
        let a = self.narrowed(&x, 3, 0, half);
        let b = self.narrowed(&x, 3, half, half);
        let product = |graph: &mut Self, a: &Value, b: &Value| graph.mul(a, b);
        let a_cos = product(self, &a, &cosines);
        let b_sin = product(self, &b, &sines);
        let b_cos = product(self, &b, &cosines);
        let a_sin = product(self, &a, &sines);
        let first = self.sub(&a_cos, &b_sin);
        let second = self.add(&b_cos, &a_sin);
        let mut parts = vec![first, second];
        if 2 * half < d {
            parts.push(self.narrowed(&x, 3, 2 * half, d - 2 * half));
        }
        let turned = self.concatenated(&parts.iter().collect::<Vec<_>>(), 3);
        self.reshaped(&turned, &[0, 0, width as i64])
    }

    /// (n, t, `kv_heads` d) -> (n, t, heads d): each head as often as it is used.
    pub fn heads_repeated(&mut self, x: &Value, kv_heads: usize, heads: usize) -> Value {
        let times = heads / kv_heads.max(1);
        let d = x.features() / kv_heads.max(1);
        if times == 1 {
            return x.clone();
        }
        let x = self.reshaped(x, &[0, 0, kv_heads as i64, 1, d as i64]);
        let all: Vec<&Value> = std::iter::repeat_n(&x, times).collect();
        let x = self.concatenated(&all, 3);
        self.reshaped(&x, &[0, 0, (heads * d) as i64])
    }
}
