// Points of many runs -> columns over one common x, as charts need them. Pure.

/** Cells of a table of exact points at most; above, points share the chart's columns of pixels. */
const MAX_CELLS = 500000;

/** The points of one run over x: `{x, y, mean}`; of each stretch its lowest and highest. */
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

/** The columns `[x, y of run 1, y of run 2 ...]` of lines `{x, y}`, between `from` and `to`. */
export function table(lines, from, to, width) {
  const all = new Set();
  for (const { x } of lines) {
    // With a neighbour on each side, so that a line leads out of the picture.
    let first = x.findIndex((each) => each >= from);
    if (first < 0) first = x.length;
    for (let i = Math.max(first - 1, 0); i < x.length; i += 1) {
      all.add(x[i]);
      if (x[i] > to) break;
    }
  }
  if (all.size * lines.length <= MAX_CELLS) return exact(lines, [...all].sort((a, b) => a - b));
  return gridded(lines, from, to, Math.max(width, 100));
}

function exact(lines, xs) {
  const place = new Map(xs.map((x, index) => [x, index]));
  const columns = lines.map((line) => {
    const column = new Array(xs.length).fill(undefined);
    line.x.forEach((x, index) => {
      const at = place.get(x);
      if (at !== undefined) column[at] = line.y[index];
    });
    return column;
  });
  return [xs, ...columns];
}

/** Two cells for each column of pixels: the lowest and the highest of a line's points there. */
function gridded(lines, from, to, width) {
  const scale = width / (to - from || 1);
  const xs = Array.from({ length: 2 * width }, (_, index) => from + (index / 2 + 0.25) / scale);
  const columns = lines.map((line) => {
    const column = new Array(2 * width).fill(undefined);
    for (let i = 0; i < line.x.length; i += 1) {
      const at = 2 * Math.min(Math.floor((line.x[i] - from) * scale), width - 1);
      const y = line.y[i];
      if (at < 0 || line.x[i] > to || y === null) continue;
      if (column[at] === undefined || y < column[at]) column[at] = y;
      if (column[at + 1] === undefined || y > column[at + 1]) column[at + 1] = y;
    }
    return column;
  });
  return [xs, ...columns];
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
export function summary(lines, from, to) {
  const places = [...new Set(lines.flatMap((line) => line.x))].filter((x) => x >= from && x <= to).sort((a, b) => a - b);
  const stride = Math.max(1, Math.ceil(places.length / 400));
  const x = places.filter((_, index) => index % stride === 0);
  const rows = x.map((place) => lines.map((line) => at(line, place)).filter((value) => value !== null && Number.isFinite(value)));
  const pick = (of) => rows.map((row) => (row.length ? of(row) : null));
  return {
    x,
    mean: pick((row) => row.reduce((sum, value) => sum + value, 0) / row.length),
    low: pick((row) => Math.min(...row)),
    high: pick((row) => Math.max(...row)),
  };
}
