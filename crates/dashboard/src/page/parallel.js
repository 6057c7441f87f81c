// Parallel coordinates: an axis for each parameter and one for the result; brushes choose trials.

import { h, fill } from "./dom.js";
import { metricValue, number, shown } from "./format.js";
import { scale, heat } from "./scale.js";
import { set, state } from "./store.js";

const HEIGHT = 300;
const TOP = 30;
const BOTTOM = 14;

/** The drawing, with a line that counts what the brushes leave. */
export function parallel(subject) {
  const trials = subject.trials.filter((trial) => trial.value !== null && trial.value !== undefined);
  const axes = [...subject.parameters.map(({ key, log }) => axis(key, trials, (trial) => trial.values[key], log)), axis(subject.metric, trials, (trial) => trial.value, false)];
  const width = Math.max(1060, 150 * axes.length);
  const at = (index) => 60 + (index * (width - 130)) / Math.max(axes.length - 1, 1);
  const high = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  const color = heat(subject);
  const brushes = new Map();
  const count = h("span.soft", { "aria-live": "polite" });
  const tickThese = h("button.icon.text", { type: "button", hidden: true, onclick: () => set({ hidden: others(subject, chosen()) }) }, "tick only these");

  const curves = trials.map((trial) => {
    const places = axes.map((each, index) => {
      const value = each.of(trial);
      return value === undefined || value === null ? null : `${at(index)},${high(each.scale.place(value)).toFixed(1)}`;
    }).filter(Boolean);
    const curve = h("polyline.curve", { points: places.join(" "), "--tint": color(trial.value), "data-trial": trial.number,
      onmouseenter: () => curve.classList.add("hot"), onmouseleave: () => curve.classList.remove("hot"), onclick: () => trial.run && set({ focus: trial.run, tab: "run" }) },
    h("title", {}, `trial ${trial.number}: ${metricValue(subject.metric, trial.value)}`));
    return curve;
  });

  const chosen = () => trials.filter((trial) => [...brushes].every(([index, [low, top]]) => {
    const value = axes[index].of(trial);
    if (value === undefined || value === null) return false;
    const place = axes[index].scale.place(value);
    return place >= low && place <= top;
  }));

  function show() {
    const kept = new Set(chosen());
    trials.forEach((trial, index) => curves[index].classList.toggle("off", !kept.has(trial)));
    fill(count, brushes.size ? `${kept.size} of ${trials.length} trials ` : "drag along an axis to choose trials");
    tickThese.hidden = !brushes.size;
  }

  const drawing = h("svg.drawing", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `Parameters and ${subject.metric}` }, curves, axes.map((each, index) => {
    const brush = h("rect.brush", { x: at(index) - 7, width: 14, y: 0, height: 0, rx: 3, visibility: "hidden" });
    const grip = h("rect.grip", { x: at(index) - 16, width: 32, y: TOP - 6, height: HEIGHT - TOP - BOTTOM + 12, "data-axis": each.name });
    drag(grip, brush, high, (range) => {
      if (range) brushes.set(index, range);
      else brushes.delete(index);
      show();
    });
    const ticks = each.scale.ticks(4).map((tick) => h("text", { x: at(index) + 9, y: high(each.scale.place(tick)) + 4 }, index === axes.length - 1 ? metricValue(subject.metric, tick) : typeof tick === "number" ? number(tick, 3) : shown(tick)));
    return [h("line.axis", { x1: at(index), x2: at(index), y1: high(0), y2: high(1) }), ticks, h("text", { x: at(index), y: 14, "text-anchor": "middle" }, each.name), brush, grip];
  }));
  show();
  return [h("div.scrolled", {}, drawing), h("p", {}, count, tickThese)];
}

const axis = (name, trials, of, log) => ({ name, of, scale: scale(trials.map(of), log) });

/** Dragging along an axis gives a range of places; a click gives none. */
function drag(grip, brush, high, change) {
  let from = null;
  const place = (event) => {
    const box = grip.getBoundingClientRect();
    const share = 1 - (event.clientY - box.top) / box.height;
    return Math.min(1, Math.max(0, share * 1.05 - 0.025));
  };
  grip.addEventListener("pointerdown", (event) => {
    grip.setPointerCapture(event.pointerId);
    from = place(event);
  });
  grip.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const [low, top] = [from, place(event)].sort((a, b) => a - b);
    brush.setAttribute("visibility", "visible");
    brush.setAttribute("y", high(top));
    brush.setAttribute("height", Math.max(high(low) - high(top), 1));
    change([low, top]);
  });
  grip.addEventListener("pointerup", (event) => {
    if (Math.abs(place(event) - from) < 0.015) {
      brush.setAttribute("visibility", "hidden");
      change(null);
    }
    from = null;
  });
}

function others(subject, kept) {
  const runs = new Set(kept.map((trial) => trial.run));
  return new Set(state.overview.runs.filter((run) => !runs.has(run.id)).map((run) => run.id));
}
