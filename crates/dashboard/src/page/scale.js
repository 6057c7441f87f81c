// Values of a parameter -> places from 0 to 1. Pure.

import { logTicks, roundTicks } from "./grid.js";

/** A scale of `values`: of numbers, logarithmic if `log` says so or they span magnitudes; else of categories. */
export function scale(values, log) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.every((value) => typeof value === "number" && Number.isFinite(value))) return categories(known);
  const low = Math.min(...known);
  const high = Math.max(...known);
  if (low > 0 && (log || high / low >= 20)) return numbers(known, low, high, Math.log, Math.exp);
  return linear(known);
}

/** A scale of numbers that count something, however far they go. */
export function linear(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return numbers(values, low, high, (value) => value, null);
}

function numbers(values, low, high, forward, backward) {
  const [from, to] = [forward(low), forward(high)];
  const place = (value) => (to === from ? 0.5 : (forward(value) - from) / (to - from));
  // A few values that are apart are their own ticks; else round numbers are.
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  const areApart = distinct.every((value, index) => index === 0 || place(value) - place(distinct[index - 1]) > 0.08);
  const round = (count) => {
    const found = backward ? logTicks(low, high, count) : roundTicks(low, high, count, values.every(Number.isInteger));
    return found.length > 1 ? found : [low, high];
  };
  return { place, ticks: (count) => (distinct.length <= count && areApart ? distinct : round(count)) };
}

function categories(values) {
  const key = (value) => JSON.stringify(value);
  const names = new Map();
  for (const value of [...values].sort(order)) if (!names.has(key(value))) names.set(key(value), value);
  const keys = [...names.keys()];
  const place = (value) => (keys.length < 2 ? 0.5 : keys.indexOf(key(value)) / (keys.length - 1));
  return { place, ticks: (count) => [...names.values()].filter((_, index) => keys.length <= 2 * count || index % Math.ceil(keys.length / (2 * count)) === 0) };
}

/** Numbers first. */
function order(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? -1 : 1;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

const STOPS = [[68, 73, 160], [49, 104, 176], [33, 145, 140], [110, 190, 90], [240, 180, 40]];

/** A colour for each result of a subject: the better, the brighter. `share` is its place among all, `of` the colour of a place. */
export function heat(subject) {
  const values = subject.trials.map((trial) => trial.value).filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  // By rank: one that diverged does not make all others alike.
  const share = (value) => {
    const rank = values.length < 2 ? 1 : values.indexOf(value) / (values.length - 1);
    return subject.goal === "max" ? rank : 1 - rank;
  };
  const of = (place) => {
    const at = place * (STOPS.length - 1);
    const index = Math.min(Math.max(Math.floor(at), 0), STOPS.length - 2);
    const mixed = STOPS[index].map((part, channel) => Math.round(part + (at - index) * (STOPS[index + 1][channel] - part)));
    return `rgb(${mixed.join(" ")})`;
  };
  return Object.assign((value) => of(share(value)), { share, of });
}
