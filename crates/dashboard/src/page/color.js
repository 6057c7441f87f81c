// A colour and a dash for each run, or for what it has in common with others.

import { state } from "./store.js";
import { valueOf } from "./filter.js";

// Eight colours that people with protanopia and deuteranopia tell apart, each at least 3 : 1 on the paper
// (`tests/browser/page.py` computes both); where more are needed, dashes tell the rest.
const LIGHT = ["#3563e9", "#ce8317", "#1fa579", "#9d2d86", "#0597d6", "#82530d", "#140080", "#3b4e2f"];
const DARK = ["#7aa2ff", "#ca9423", "#5efac1", "#b3548d", "#4defff", "#fff228", "#7247ef", "#748f55"];
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const STATES = { running: 0, finished: 4, stopped: 2, pruned: 3, failed: 1, killed: 5 };

/** Whether the page is dark. */
export const isDark = () => document.documentElement.dataset.theme === "dark";

/** Slots of what has been seen: nothing changes its colour while the page is open. */
const slots = new Map();

/** The colour of slot `index`. */
export const tint = (index) => (isDark() ? DARK : LIGHT)[index % LIGHT.length];

/** The dash of slot `index`, as canvases take it. */
export const dashOf = (index) => DASHES[Math.floor(index / LIGHT.length) % DASHES.length];

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i += 1) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return (value ^ (value >>> 15)) >>> 0;
}

/** The slot of a key: by its hash, and the next free one where another has that. */
function slot(space, key) {
  if (!slots.has(space)) slots.set(space, { byKey: new Map(), counts: new Array(LIGHT.length).fill(0) });
  const { byKey, counts } = slots.get(space);
  if (!byKey.has(key)) {
    const least = Math.min(...counts);
    let place = hash(key) % counts.length;
    while (counts[place] > least) place = (place + 1) % counts.length;
    byKey.set(key, place + counts.length * counts[place]);
    counts[place] += 1;
  }
  return byKey.get(key);
}

/** What runs are coloured by: their group, where there are groups. */
export const colorKey = () => state.group || state.color;

/** `{of(run), keys}`: the slot of a run, and of each value that colours stand for. */
export function colors(runs) {
  const by = colorKey();
  const space = `${by} ${by === "pattern" ? state.colorBy : ""}`;
  const value = (run) => valueOf(run, by, state.colorBy);
  const slotOf = (key) => (by === "state" ? STATES[key] ?? 6 : slot(space, key));
  // The oldest first: on every page with the same runs they have the same colours.
  if (by !== "state" && slots.get(space)?.count !== runs.length) {
    for (let i = runs.length - 1; i >= 0; i -= 1) slot(space, value(runs[i]));
    if (runs.length) slots.get(space).count = runs.length;
  }
  return { of: (run) => slotOf(value(run)), value, slotOf };
}

/** A colour of the style sheet. */
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
