// A colour and a dash for each run, or for what it has in common with others.

import { drawn, state } from "./store.js";
import { valueOf } from "./filter.js";

// Eight colours that people with protanopia and deuteranopia tell apart, each at least 3 : 1 on the paper
// (`tests/browser/page.py` computes both); where more are needed, dashes tell the rest.
const LIGHT = ["#3563e9", "#ce8317", "#1fa579", "#9d2d86", "#0597d6", "#82530d", "#140080", "#3b4e2f"];
const DARK = ["#7aa2ff", "#ca9423", "#5efac1", "#b3548d", "#4defff", "#fff228", "#7247ef", "#748f55"];
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const STATES = { running: 0, finished: 4, stopped: 2, pruned: 3, failed: 1, killed: 5 };

/** Whether the page is dark. */
export const isDark = () => document.documentElement.dataset.theme === "dark";

/** Colours of what has been seen: nothing changes its own while the page is open. */
const spaces = new Map();

/** The colour of slot `index`. */
export const tint = (index) => (isDark() ? DARK : LIGHT)[index % LIGHT.length];

/** The dash of slot `index`, as canvases take it. */
export const dashOf = (index) => DASHES[Math.floor(index / LIGHT.length) % DASHES.length];

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i += 1) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return (value ^ (value >>> 15)) >>> 0;
}

/** The colour of a key: by its hash, and the next one that fewer keys have where others have that. */
function place(space, key) {
  if (!spaces.has(space)) spaces.set(space, { byKey: new Map(), counts: new Array(LIGHT.length).fill(0), count: 0, of: null, slots: null });
  const { byKey, counts } = spaces.get(space);
  if (!byKey.has(key)) {
    const least = Math.min(...counts);
    let at = hash(key) % counts.length;
    while (counts[at] > least) at = (at + 1) % counts.length;
    byKey.set(key, at);
    counts[at] += 1;
  }
  return byKey.get(key);
}

/** What runs are coloured by: their group, where there are groups. */
export const colorKey = () => state.group || state.color;

/** `{of, value, slotOf}`: the slot of a run, what it is coloured by, and the slot of such a value. */
export function colors(runs) {
  const by = colorKey();
  const space = `${by} ${by === "pattern" ? state.colorBy : ""}`;
  const value = (run) => valueOf(run, by, state.colorBy);
  if (by === "state") return { of: (run) => STATES[run.state] ?? 6, value, slotOf: (key) => STATES[key] ?? 6 };
  // The oldest first: on every page with the same runs they have the same colours.
  if (spaces.get(space)?.count !== runs.length) {
    for (let i = runs.length - 1; i >= 0; i -= 1) place(space, value(runs[i]));
    if (runs.length) spaces.get(space).count = runs.length;
  }
  const known = spaces.get(space);
  const ticked = drawn();
  if (known && known.of !== ticked) {
    // Only what shares its colour with others that are drawn needs a dash.
    [known.of, known.slots] = [ticked, new Map()];
    const seen = new Array(LIGHT.length).fill(0);
    for (let i = ticked.length - 1; i >= 0; i -= 1) {
      const key = value(ticked[i]);
      if (known.slots.has(key)) continue;
      const at = place(space, key);
      known.slots.set(key, at + LIGHT.length * seen[at]);
      seen[at] += 1;
    }
  }
  const slotOf = (key) => known?.slots.get(key) ?? place(space, key);
  return { of: (run) => slotOf(value(run)), value, slotOf };
}

/** A colour of the style sheet. */
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
