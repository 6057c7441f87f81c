// The list of runs on the left: what is drawn, and in which colour.

import { h, fill } from "./dom.js";
import { ago, duration, metricValue } from "./format.js";
import { colors, isDark } from "./color.js";
import { listed, set, state } from "./store.js";

/** The list. */
export function list(root) {
  const head = h("div.list-head");
  const rows = h("div.rows", { role: "list" });
  root.append(head, rows);
  const byId = new Map();
  let look = "";

  function build() {
    const runs = listed();
    const color = colors(state.overview.runs);
    byId.clear();
    const some = runs.some((run) => !state.hidden.has(run.id));
    const all = state.overview.runs.length;
    fill(head, h("span", {}, h("b", {}, String(runs.length)), runs.length === all ? ` run${all === 1 ? "" : "s"}` : ` of ${all} runs`), state.overview.unread > 0 && h("span.reading", {}, `${state.overview.unread} to be read`), h("span.grow"),
      h("button", { type: "button", onclick: () => set({ hidden: some ? new Set([...state.hidden, ...runs.map((run) => run.id)]) : without(runs) }) }, some ? "untick all" : "tick all"));
    fill(rows, runs.map((run) => {
      const element = row(run, color.of(run));
      byId.set(run.id, element);
      return element;
    }));
  }

  return {
    update(changed) {
      // A list that looks as before is left alone: the pointer may be on it.
      if (["overview", "filter", "hidden", "color", "colorBy", "theme"].some((key) => changed.has(key))) {
        const now = JSON.stringify([listed(), [...state.hidden], state.color, state.colorBy, isDark(), state.overview.runs.length, state.overview.unread]);
        if (now !== look) build();
        look = now;
      }
      if (changed.has("hot") || changed.has("focus") || changed.has("overview")) {
        for (const [id, element] of byId) {
          element.classList.toggle("hot", id === state.hot);
          element.classList.toggle("focus", id === state.focus);
        }
      }
      if (changed.has("focus")) byId.get(state.focus)?.scrollIntoView({ block: "nearest" });
    },
  };
}

function without(runs) {
  const hidden = new Set(state.hidden);
  runs.forEach((run) => hidden.delete(run.id));
  return hidden;
}

/** Ticks or unticks a run. */
export function toggle(id) {
  const hidden = new Set(state.hidden);
  if (!hidden.delete(id)) hidden.add(id);
  set({ hidden });
}

/** Draws this run alone, or all again. */
export function solo(id) {
  const others = listed().filter((run) => run.id !== id).map((run) => run.id);
  const alone = others.every((other) => state.hidden.has(other)) && !state.hidden.has(id);
  set({ hidden: new Set(alone ? [] : others) });
}

/** The box of a run that says whether it is drawn. */
export function swatch(run, color) {
  return h("button.swatch", {
    type: "button", role: "checkbox", "aria-checked": String(!state.hidden.has(run.id)), "aria-label": `Draw ${run.label}`,
    title: "Draw it; with Alt or a double click: it alone", "--tint": color,
    onclick: (event) => {
      event.stopPropagation();
      if (event.altKey) solo(run.id);
      else toggle(run.id);
    },
    ondblclick: () => solo(run.id),
  });
}

/** The state of a run. */
export const stateOf = (run) => h(`span.state.${run.state}`, { title: run.reason || run.state }, run.state);

function row(run, color) {
  const { monitor } = run;
  const best = monitor ? run.metrics[monitor.metric]?.[monitor.mode === "max" ? "max" : "min"] : undefined;
  const share = run.state === "running" && run.total_steps ? Math.min(1, run.step / run.total_steps) : null;
  const bar = share !== null && h("i");
  if (bar) bar.style.width = `${100 * share}%`;
  return h("div.row", {
    role: "listitem", class: `row${state.hidden.has(run.id) ? " unticked" : ""}${state.focus === run.id ? " focus" : ""}`, title: run.id, "data-run": run.id,
    onclick: () => set({ focus: run.id }),
    ondblclick: () => set({ focus: run.id, tab: "run" }),
    onmouseenter: () => set({ hot: run.id }),
    onmouseleave: () => set({ hot: null }),
  },
  swatch(run, color), h("span.name", {}, run.label), h("span.value", { title: monitor ? `best ${monitor.metric}` : "" }, monitor ? metricValue(monitor.metric, best) : ""),
  h("span.under", {}, stateOf(run), h("span", {}, share !== null ? `${Math.floor(100 * share)} %` : duration(run.seconds)), h("span", {}, ago(run.updated, state.overview.now))),
  bar && h("span.progress", {}, bar));
}
