// A colour for each run, by itself or by what it has in common with others.

import { state } from "./store.js";
import { shown } from "./format.js";

const LIGHT = ["#3563e9", "#e8710a", "#12915f", "#d13b6f", "#8b4fd8", "#0e93a8", "#b58300", "#d0402f", "#5b7a1f", "#6b6f7b"];
const DARK = ["#7aa2ff", "#ff9d4d", "#4fcf98", "#ff7fab", "#b98bff", "#45c9dd", "#e3bd45", "#ff8272", "#a5c95a", "#aab0be"];

/** Whether the page is dark. */
export const isDark = () => document.documentElement.dataset.theme === "dark";

/** The colour of number `index`. */
export function tint(index) {
  const colors = isDark() ? DARK : LIGHT;
  if (index < colors.length) return colors[index];
  return `hsl(${Math.round((index * 137.508) % 360)} ${isDark() ? "70% 68%" : "62% 44%"})`;
}

/** What of a run decides its colour. */
export function colorKey(run) {
  if (state.color === "pattern") {
    try {
      const found = state.colorBy && run.words.match(new RegExp(state.colorBy, "i"));
      return found ? (found[1] ?? found[0]) : "no match";
    } catch {
      return "no match";
    }
  }
  if (state.color === "state") return run.state;
  if (state.color === "name") return run.name;
  return state.color === "run" ? run.id : shown(run.config[state.color]);
}

/** A function from a run to its colour, and what the colours mean. Runs keep theirs under a filter. */
export function colors(runs) {
  const keys = new Map();
  // Oldest first: a new run changes no colour.
  for (const run of [...runs].sort((a, b) => a.started - b.started || (a.id < b.id ? -1 : 1))) {
    const key = colorKey(run);
    if (!keys.has(key)) keys.set(key, tint(keys.size));
  }
  return { of: (run) => keys.get(colorKey(run)) ?? tint(0), keys };
}

/** A colour of the style sheet. */
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** `color` with an opacity. */
export const faded = (color, share) => (color.startsWith("#") ? color + Math.round(255 * share).toString(16).padStart(2, "0") : color.replace(")", ` / ${share})`));
