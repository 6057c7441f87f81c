use candle_core::Var;
use proptest::prelude::*;
use test_support::assert_refused;

use super::super::testing::{check_gradients, on_threads, values};
use super::*;
use crate::rng::Purpose;

fn plain(heads: usize, causal: bool) -> Attention {
    Attention { heads, causal, dropout: None, precision: Precision::Fp32 }
}

/// q (b, t, w), k and v (b, s, w), of which the queries of each sample see the first `lengths`.
fn slow(v: &[Vec<f64>], sizes: Sizes, attention: Attention, lengths: &[usize]) -> Vec<f64> {
    let Sizes { b, t, s, w } = sizes;
    let d = w / attention.heads;
    let mut y = vec![0.0; b * t * w];
    for (batch, head, query) in (0..b * attention.heads * t)
        .map(|i| (i / (attention.heads * t), i / t % attention.heads, i % t))
    {
        let keys = lengths.get(batch).copied().unwrap_or(s);
        let seen = if attention.causal { (query + 1).min(keys) } else { keys };
        let at = |length: usize, row: usize, j: usize| (batch * length + row) * w + head * d + j;
        let score = |key: usize| -> f64 {
            let products = (0..d).map(|j| v[0][at(t, query, j)] * v[1][at(s, key, j)]);
            products.sum::<f64>() / (d as f64).sqrt()
        };
        let exponentials: Vec<f64> = (0..seen).map(|key| score(key).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        for (key, exponential) in exponentials.iter().enumerate() {
            let element = ((batch * attention.heads + head) * t + query) * s + key;
            let kept = match attention.dropout {
                Some((p, key)) if key.uniform(element as u64) < p => 0.0,
                Some((p, _)) => 1.0 / (1.0 - p),
                None => 1.0,
            };
            for j in 0..d {
                y[at(t, query, j)] += kept * exponential / sum * v[2][at(s, key, j)];
            }
        }
    }
    y
}

fn check(sizes: Sizes, kind: Attention) {
    let Sizes { b, t, s, w } = sizes;
    check_gradients(
        &[&[b, t, w], &[b, s, w], &[b, s, w]],
        |x| attention(&x[0], &x[1], &x[2], kind),
        |v| slow(v, sizes, kind, &[]),
        1e-5,
    );
}

#[test]
fn keys_beyond_a_samples_length_are_seen_by_none_of_its_queries() {
    let dropout = Some((0.4, Key::new(1, Purpose::Dropout, 2, 3)));
    for (t, s) in [(5, 5), (70, 70), (3, 9)] {
        for kind in [plain(2, false), plain(2, true), Attention { dropout, ..plain(2, false) }] {
            let (sizes, lengths) = (Sizes { b: 3, t, s, w: 4 }, [2, s, 1]);
            check_gradients(
                &[&[3, t, 4], &[3, s, 4], &[3, s, 4]],
                |x| attention_within([&x[0], &x[1], &x[2]], kind, Some(&lengths)),
                |v| slow(v, sizes, kind, &lengths),
                1e-5,
            );
        }
    }
}

#[test]
fn each_text_of_a_sample_has_the_bits_of_the_text_alone() -> Result<()> {
    let dropout = Some((0.4, Key::new(1, Purpose::Dropout, 2, 3)));
    let lengths = vec![vec![70, 3, 40], vec![1, 119]];
    let (t, w) = (120, 8);
    let segments = Segments::new(lengths.clone());
    let all = tensor(values("segments", 5, 2 * t * 3 * w), (2, t, 3 * w))?;
    let kind = plain(2, true);
    let whole = attention_packed_in(Some(&segments), &all, kind)?;
    for (sample, lengths) in lengths.iter().enumerate() {
        let mut start = 0;
        for &length in lengths {
            let text = all.narrow(0, sample, 1)?.narrow(1, start, length)?.contiguous()?;
            let alone = attention_packed(&text, kind)?.flatten_all()?.to_vec1::<f32>()?;
            let among = whole.narrow(0, sample, 1)?.narrow(1, start, length)?;
            assert!(among.flatten_all()?.to_vec1::<f32>()? == alone, "{sample} {start}");
            start += length;
        }
    }
    // With dropout, and in its gradients, as computed text by text.
    for kind in [kind, Attention { dropout, ..kind }] {
        let shape = [2, 9, 4];
        let segments = Segments::new(vec![vec![4, 3], vec![9]]);
        check_gradients(
            &[&shape, &shape, &shape],
            |x| attention_in(Some(&segments), [&x[0], &x[1], &x[2]], kind),
            |v| in_texts(v, kind, &segments, ScoreBounds::default()),
            1e-5,
        );
    }
    let x = tensor(vec![0.0; 24], (2, 4, 3))?;
    let wrong = Segments::new(vec![vec![4], vec![3, 2]]);
    assert_refused(attention_packed_in(Some(&wrong), &x, plain(1, true)), "texts of [[4], [3, 2]]");
    Ok(())
}

#[test]
fn bounded_scores_and_their_gradients_equal_the_slow_ones() {
    let dropout = Some((0.4, Key::new(1, Purpose::Dropout, 2, 3)));
    let bounds = |window, softcap| ScoreBounds { window, softcap };
    let all = |segments: &Segments, t: usize, kind: Attention, bounds: ScoreBounds| {
        let shape = [2, t, 4];
        check_gradients(
            &[&shape, &shape, &shape],
            |x| attention_bounded(Some(segments), [&x[0], &x[1], &x[2]], kind, bounds),
            |v| in_texts(v, kind, segments, bounds),
            1e-5,
        );
    };
    let (kind, texts) = (plain(2, true), Segments::new(vec![vec![4, 3], vec![9]]));
    for window in [None, Some(1), Some(3), Some(8), Some(20)] {
        for softcap in [None, Some(0.3)] {
            all(&texts, 9, kind, bounds(window, softcap));
        }
    }
    all(&texts, 9, Attention { dropout, ..kind }, bounds(Some(3), Some(0.3)));
    // Several blocks of queries, whose first keys differ.
    let whole = Segments::new(vec![vec![70], vec![4, 66]]);
    for window in [3, 64] {
        all(&whole, 70, kind, bounds(Some(window), None));
    }
}

#[test]
fn bounds_that_mean_nothing_are_refused() -> Result<()> {
    let x = tensor(vec![0.0; 12], (1, 3, 4))?;
    for (causal, window, softcap) in
        [(true, Some(0), None), (true, None, Some(0.0)), (false, Some(2), None)]
    {
        let bounds = ScoreBounds { window, softcap };
        let found = attention_bounded(None, [&x, &x, &x], plain(2, causal), bounds);
        assert_refused(found, "scores within ScoreBounds");
    }
    Ok(())
}

/// [`slow`] of 2 samples of width 4 in which a query sees the keys of its own text up to itself.
fn in_texts(
    v: &[Vec<f64>],
    attention: Attention,
    segments: &Segments,
    bounds: ScoreBounds,
) -> Vec<f64> {
    let w = 4;
    let t = v[0].len() / (2 * w);
    let d = w / attention.heads;
    let mut y = vec![0.0; 2 * t * w];
    let heads = (0..2).flat_map(|sample| (0..attention.heads).map(move |head| (sample, head)));
    for (sample, head) in heads {
        for text in segments.of(sample, t) {
            for query in text.clone() {
                let at = |row: usize, j: usize| (sample * t + row) * w + head * d + j;
                let score = |key: usize| -> f64 {
                    let products = (0..d).map(|j| v[0][at(query, j)] * v[1][at(key, j)]);
                    let score = products.sum::<f64>() / (d as f64).sqrt();
                    bounds.softcap.map_or(score, |cap| cap * (score / cap).tanh())
                };
                let first = bounds.window.map_or(0, |window| (query + 1).saturating_sub(window));
                let seen = first.max(text.start)..query + 1;
                let sum: f64 = seen.clone().map(|key| score(key).exp()).sum();
                for key in seen {
                    let element = ((sample * attention.heads + head) * t + query) * t + key;
                    let kept = match attention.dropout {
                        Some((p, random)) if random.uniform(element as u64) < p => 0.0,
                        Some((p, _)) => 1.0 / (1.0 - p),
                        None => 1.0,
                    };
                    for j in 0..d {
                        y[at(query, j)] += kept * score(key).exp() / sum * v[2][at(key, j)];
                    }
                }
            }
        }
    }
    y
}

#[test]
fn lengths_that_leave_no_key_or_more_than_there_are_are_refused() {
    let x = tensor(vec![0.0; 24], (2, 4, 3)).unwrap();
    for lengths in [&[4, 0][..], &[4, 5], &[4]] {
        assert_refused(
            attention_packed_within(&x, plain(1, false), Some(lengths)),
            "2 samples of 4 keys",
        );
    }
}

#[test]
fn outputs_and_gradients_equal_the_slow_ones_over_odd_sizes() {
    for causal in [false, true] {
        check(Sizes { b: 1, t: 1, s: 1, w: 1 }, plain(1, causal));
        check(Sizes { b: 2, t: 5, s: 5, w: 6 }, plain(2, causal));
        check(Sizes { b: 1, t: 7, s: 3, w: 3 }, plain(3, causal));
        check(Sizes { b: 1, t: 3, s: 11, w: 7 }, plain(1, causal));
    }
}

#[test]
fn blocks_of_queries_add_up() {
    for causal in [false, true] {
        check(Sizes { b: 1, t: 101, s: 101, w: 2 }, plain(1, causal));
    }
}

#[test]
fn dropout_drops_the_same_probabilities_in_both_directions() {
    let dropout = Some((0.4, Key::new(1, Purpose::Dropout, 2, 3)));
    check(Sizes { b: 2, t: 9, s: 9, w: 4 }, Attention { dropout, ..plain(2, true) });
    check(Sizes { b: 1, t: 4, s: 13, w: 3 }, Attention { dropout, ..plain(1, false) });
}

fn packed(q: &[f32], k: &[f32], v: &[f32], w: usize) -> Vec<f32> {
    let rows = q.chunks(w).zip(k.chunks(w)).zip(v.chunks(w));
    rows.flat_map(|((q, k), v)| [q, k, v].concat()).collect()
}

#[test]
fn packed_operands_give_the_same_bits() -> Result<()> {
    let (b, t, w) = (2, 53, 12);
    let parts = ["q", "k", "v"].map(|name| values(name, 0, b * t * w));
    let [q, k, v] =
        parts.clone().map(|x| Var::from_tensor(&tensor(x, (b, t, w)).unwrap()).unwrap());
    let qkv = tensor(packed(&parts[0], &parts[1], &parts[2], w), (b, t, 3 * w))?;
    let qkv = Var::from_tensor(&qkv)?;
    let bits = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
    let (apart, together) =
        (attention(&q, &k, &v, plain(3, true))?, attention_packed(&qkv, plain(3, true))?);
    assert_eq!(bits(&apart)?, bits(&together)?);
    let apart = apart.sqr()?.sum_all()?.backward()?;
    let together = together.sqr()?.sum_all()?.backward()?;
    let [q, k, v] = [q, k, v].map(|x| bits(apart.get(&x).unwrap()).unwrap());
    assert_eq!(packed(&q, &k, &v, w), bits(together.get(&qkv).unwrap())?);
    Ok(())
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let bits = |threads: usize| {
        on_threads(threads, || {
            let qkv = tensor(values("qkv", 1, 2 * 130 * 48), (2, 130, 48)).unwrap();
            let qkv = Var::from_tensor(&qkv).unwrap();
            let dropout = Some((0.1, Key::new(1, Purpose::Dropout, 2, 3)));
            let y = attention_packed(&qkv, Attention { dropout, ..plain(4, true) }).unwrap();
            let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            [&y, grads.get(&qkv).unwrap()]
                .iter()
                .flat_map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap())
                .map(f32::to_bits)
                .collect::<Vec<_>>()
        })
    };
    let one = bits(1);
    assert!(one == bits(2) && one == bits(3));
}

#[test]
fn large_scores_stay_finite_and_bf16_rounds_every_result() -> Result<()> {
    let x = tensor(values("x", 0, 24).iter().map(|v| 300.0 * v).collect(), (1, 4, 6))?;
    let y = attention(&x, &x, &x, plain(1, false))?.flatten_all()?.to_vec1::<f32>()?;
    assert!(y.iter().all(|v| v.is_finite()));
    let bf16 = Attention { precision: Precision::Bf16, ..plain(1, false) };
    let y = attention(&x, &x, &x, bf16)?.flatten_all()?.to_vec1::<f32>()?;
    assert!(y.iter().all(|v| v.to_bits().trailing_zeros() >= 16));
    Ok(())
}

#[test]
fn widths_and_lengths_that_do_not_fit_are_refused() -> Result<()> {
    let x = |b: usize, t: usize, w: usize| tensor(vec![0.0; b * t * w], (b, t, w));
    assert_refused(
        attention(&x(1, 2, 5)?, &x(1, 2, 5)?, &x(1, 2, 5)?, plain(2, false)),
        "a width of 5 for 2 heads",
    );
    assert_refused(
        attention(&x(1, 2, 4)?, &x(1, 3, 4)?, &x(1, 2, 4)?, plain(2, false)),
        "queries [1, 2, 4], keys [1, 3, 4]",
    );
    assert_refused(
        attention_packed(&x(1, 2, 4)?, plain(1, false)),
        "queries, keys and values in 4 columns",
    );
    let dropout = Some((1.5, Key::new(0, Purpose::Dropout, 0, 0)));
    assert_refused(
        attention_packed(&x(1, 2, 3)?, Attention { dropout, ..plain(1, false) }),
        "a dropout probability of 1.5",
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn errors_against_f64_are_bounded(
        t in 1usize..150, s in 1usize..150, heads in 1usize..4, d in 1usize..130, causal in any::<bool>()
    ) {
        let (w, kind) = (heads * d, plain(heads, causal));
        let [q, k, v] = [("q", t), ("k", s), ("v", s)]
            .map(|(name, length)| tensor(values(name, 7, length * w), (1, length, w)).unwrap());
        let exact = [&q, &k, &v].map(|x| {
            let x = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            x.into_iter().map(f64::from).collect::<Vec<_>>()
        });
        let exact = slow(&exact, Sizes { b: 1, t, s, w }, kind, &[]);
        let y = attention(&q, &k, &v, kind).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let worst = y.iter().zip(&exact).map(|(y, e)| (f64::from(*y) - e).abs()).fold(0.0, f64::max);
        println!("attention: max error {worst:.1e} at (t {t}, s {s}, heads {heads}, d {d})");
        prop_assert!(worst < 1e-6);
    }
}
