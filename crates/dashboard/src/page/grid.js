// Points of many runs: over x, smoothed, summed up. Pure.

/** The points of one run over x: `{x, y, meanX, mean}`; of each stretch its lowest and highest. */
export function points(series, toX) {
  const { step, mean, low, high } = series;
  const result = { x: [], y: [], meanX: [], mean: [] };
  for (let i = 0; i < step.length; i += 1) {
    const x = toX(step[i]);
    if (x === null || Number.isNaN(x)) continue;
    result.meanX.push(x);
    result.mean.push(mean[i]);
    if (!low || low[i] === high[i]) {
      result.x.push(x);
      result.y.push(low ? low[i] : mean[i]);
      continue;
    }
    const next = i + 1 < step.length ? toX(step[i + 1]) : null;
    result.x.push(x, next === null ? x : (x + next) / 2);
    result.y.push(low[i], high[i]);
  }
  return result;
}

/** The exponential moving average, freed from the bias of its start, as TensorBoard has it. */
export function smoothed(values, weight) {
  let last = 0;
  let count = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    last = last * weight + (1 - weight) * value;
    count += 1;
    return last / (1 - weight ** count);
  });
}

/** The value of a line at `x`, between its points; null outside of them. */
export function at(line, x) {
  const index = nearest(line.x, x);
  if (index < 0) return null;
  const { x: xs, y: ys } = line;
  if (xs[index] === x) return ys[index];
  const other = xs[index] < x ? index + 1 : index - 1;
  if (other < 0 || other >= xs.length || ys[index] === null || ys[other] === null) return null;
  return ys[index] + ((ys[other] - ys[index]) * (x - xs[index])) / (xs[other] - xs[index]);
}

/** The index of the point of sorted `xs` that is nearest to `x`; -1 without points. */
export function nearest(xs, x) {
  if (!xs.length) return -1;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

/** Mean, lowest and highest of a group of lines over common places. */
export function summary(lines) {
  const places = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const stride = Math.max(1, Math.ceil(places.length / 400));
  const x = places.filter((_, index) => index % stride === 0 || index === places.length - 1);
  const rows = x.map((place) => lines.map((line) => at(line, place)).filter((value) => value !== null && Number.isFinite(value)));
  const pick = (of) => rows.map((row) => (row.length ? of(row) : null));
  return {
    x,
    mean: pick((row) => row.reduce((sum, value) => sum + value, 0) / row.length),
    low: pick((row) => Math.min(...row)),
    high: pick((row) => Math.max(...row)),
  };
}

/**
 * The range of `lines` between two x, and how many points are beyond it. A few points far from all others (a loss of 280 among
 * losses of 0.5) are left out, so that the others can be told apart: those ten times as far out as the middle 80 % are wide.
 */
export function rangeOf(lines, from, to, isLog, isWhole) {
  const values = [];
  for (const { x, y, low, high } of lines) {
    for (let i = 0; i < x.length; i += 1) {
      if (x[i] < from || x[i] > to) continue;
      for (const value of low ? [low[i], high[i]] : [y[i]]) if (value !== null && Number.isFinite(value) && !(isLog && value <= 0)) values.push(value);
    }
  }
  if (!values.length) return { low: null, high: null, above: 0, below: 0 };
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (isWhole || isLog || values.length < 4) return { low, high, above: 0, below: 0 };
  const sorted = Float64Array.from(values).sort();
  const last = sorted.length - 1;
  const [q1, q9] = [sorted[Math.ceil(0.1 * last)], sorted[Math.floor(0.9 * last)]];
  const reach = 10 * (q9 - q1);
  if (!(reach > 0)) return { low, high, above: 0, below: 0 };
  const [top, bottom] = [q9 + reach, q1 - reach];
  // A line that is mostly there is another run, and no outlier.
  const isFar = (line) => 2 * line.y.filter((value) => value > top || (value !== null && value < bottom)).length > line.y.length;
  if (lines.some(isFar)) return { low, high, above: 0, below: 0 };
  let [above, below] = [0, 0];
  let [highest, lowest] = [q9, q1];
  for (const value of sorted) {
    if (value > top) above += 1;
    else if (value > highest) highest = value;
    if (value < bottom) below += 1;
    else if (value < lowest) lowest = value;
  }
  return { low: below ? lowest : low, high: above ? highest : high, above, below, lowest: low, highest: high };
}

/** Round numbers from `low` to `high`, about `count` of them. */
export function roundTicks(low, high, count, isWhole) {
  // What differs by rounding alone has no steps between.
  if (!(high - low > 1e-12 * Math.abs(high))) return [low];
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  if (isWhole) step = Math.max(1, Math.round(step));
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + 1e-9 * step; index += 1) ticks.push(Number((index * step).toPrecision(12)));
  return ticks;
}

/** Ticks of a logarithmic axis: powers of ten, and 2 and 5 times them where there is room. */
export function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 1) return roundTicks(low, high, count);
  const factors = decades * 3 <= count * 1.5 ? [1, 2, 5] : [1];
  const stride = factors.length > 1 ? 1 : Math.max(1, Math.round(decades / count));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += stride) {
    for (const factor of factors) {
      const tick = Number((factor * 10 ** power).toPrecision(12));
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks;
}

const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Ticks of seconds: whole minutes and hours. */
export function timeTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const step = SPANS.find((span) => span >= rough);
  if (rough < 1 || !step) return roundTicks(low / (step ? 1 : 86400), high / (step ? 1 : 86400), count).map((tick) => tick * (step ? 1 : 86400));
  return roundTicks(low / step, high / step, count, true).map((tick) => tick * step);
}
