// Parallel coordinates: an axis for each parameter and one for the result; brushes choose trials.

import { button, h } from "./dom.js";
import { metricValue, number, shown } from "./format.js";
import { scale, heat } from "./scale.js";
import { set, tickOnly } from "./store.js";

const HEIGHT = 300;
const TOP = 30;
const BOTTOM = 14;
/** How far a key moves a brush. */
const STEP = 0.05;

/** The drawing, with a line that counts what the brushes leave. `brushes` are ranges of places by the name of their axis; `build` draws anew. */
export function parallel(subject, brushes, build) {
  const trials = subject.trials.filter((trial) => trial.value !== null && trial.value !== undefined);
  const axes = [...subject.parameters.map(({ key, log }) => axis(key, trials, (trial) => trial.values[key], log)), axis(subject.metric, trials, (trial) => trial.value, false)];
  const width = Math.max(940, 150 * axes.length);
  const at = (index) => 60 + (index * (width - 130)) / Math.max(axes.length - 1, 1);
  const high = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  const color = heat(subject);
  const isLeft = (trial) => axes.every(({ name, of, scale: { place } }) => {
    const range = brushes.get(name);
    const value = of(trial);
    if (!range) return true;
    if (value === undefined || value === null) return false;
    return place(value) >= range[0] && place(value) <= range[1];
  });
  const kept = trials.filter(isLeft);

  const curves = trials.map((trial) => {
    const places = axes.map((each, index) => {
      const value = each.of(trial);
      return value === undefined || value === null ? null : `${at(index)},${high(each.scale.place(value)).toFixed(1)}`;
    }).filter(Boolean);
    return h(`polyline.curve${kept.includes(trial) ? "" : ".off"}${trial.state === "pruned" ? ".pruned" : ""}`, { key: `trial ${trial.number}`, points: places.join(" "), "--tint": color(trial.value), "data-trial": trial.number,
      onclick: () => trial.run && set({ focus: trial.run, tab: "run" }) },
    h("title", {}, `trial ${trial.number}, ${trial.state}: ${metricValue(subject.metric, trial.value)}`));
  });

  function brush(name, range) {
    if (range) brushes.set(name, range);
    else brushes.delete(name);
    build();
  }

  const drawing = h("svg.drawing", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": `Parameters and ${subject.metric}` }, curves, axes.map((each, index) => {
    const range = brushes.get(each.name);
    const say = (tick) => (index === axes.length - 1 ? metricValue(subject.metric, tick) : typeof tick === "number" ? number(tick, 3) : shown(tick));
    const ticks = each.scale.ticks(4).map((tick) => h("text.tick", { x: at(index) + 9, y: high(each.scale.place(tick)) + 4 }, say(tick)));
    return h("g", { key: `axis ${each.name}` }, h("line.axis", { x1: at(index), x2: at(index), y1: high(0), y2: high(1) }), ticks, h("text", { x: at(index), y: 14, "text-anchor": "middle" }, each.name),
      h("rect.brush", { x: at(index) - 7, width: 14, y: range ? high(range[1]) : 0, height: range ? Math.max(high(range[0]) - high(range[1]), 1) : 0, rx: 3, visibility: range ? "visible" : "hidden" }),
      h("rect.grip", { x: at(index) - 18, width: 36, y: TOP - 6, height: HEIGHT - TOP - BOTTOM + 12, "data-axis": each.name, tabindex: 0, role: "slider", "aria-orientation": "vertical",
        "aria-label": `${each.name}: arrows move the upper end of a brush, with Shift the lower`, "aria-valuenow": Math.round(100 * (range?.[1] ?? 1)), "aria-valuetext": range ? `${kept.length} of ${trials.length} trials` : "all trials",
        onkeydown: (event) => keyed(event, range, (next) => brush(each.name, next)), ...drag(brushes, (next) => brush(each.name, next)) }));
  }));
  return [h("div.scrolled", {}, drawing), h("p", {}, h("span.soft", { "aria-live": "polite" }, brushes.size ? `${kept.length} of ${trials.length} trials ` : "drag along an axis to choose trials "),
    brushes.size > 0 && [button("tick only these", () => tickOnly(kept.map((trial) => trial.run)), { key: "tick" }), button("no brush", () => {
      brushes.clear();
      build();
    }, { key: "clear" })])];
}

const axis = (name, trials, of, log) => ({ name, of, scale: scale(trials.map(of), log) });

/** Dragging along an axis gives a range of places; a click gives none. Where a drag began stands with the brushes: what is drawn anew goes on. */
function drag(brushes, change) {
  const place = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = 1 - (event.clientY - box.top) / box.height;
    return Math.min(1, Math.max(0, share * 1.05 - 0.025));
  };
  return {
    onpointerdown: (event) => {
      event.currentTarget.setPointerCapture(event.pointerId);
      brushes.from = place(event);
    },
    onpointermove: (event) => {
      if (brushes.from === undefined) return;
      const to = place(event);
      if (Math.abs(to - brushes.from) >= 0.015) change([brushes.from, to].sort((a, b) => a - b));
    },
    onpointerup: (event) => {
      const isClick = Math.abs(place(event) - brushes.from) < 0.015;
      delete brushes.from;
      if (isClick) change(null);
    },
  };
}

function keyed(event, range, change) {
  const by = { ArrowUp: STEP, ArrowDown: -STEP }[event.key];
  if (event.key === "Backspace" || event.key === "Delete") change(null);
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  const [low, top] = range ?? [0, 1];
  const clamp = (value) => Math.min(1, Math.max(0, value));
  change(event.shiftKey ? [Math.min(clamp(low + by), top), top] : [low, Math.max(clamp(top + by), low)]);
}
