// The list of runs on the left: what is drawn, in which colour, and how far it is. Only rows in sight exist.

import { button, h, refill, virtual } from "./dom.js";
import { ago, duration, metricValue, when } from "./format.js";
import { colors, dashOf, isDark, tint } from "./color.js";
import { bestOf, drawn, isTicked, listed, NEWEST, set, state, tickAll, tickOnly, tickRuns } from "./store.js";

const HEIGHT = 46;
/** Trials from which on those of a sweep are folded away at first. */
const MANY_TRIALS = 20;

/** Runs with their sweeps above their trials: `{run}` and `{sweep, trials, isOpen}`. */
export function nested(runs) {
  const trials = Map.groupBy(runs.filter((run) => run.sweep), (run) => run.sweep);
  const items = [];
  const told = new Set();
  for (const run of runs) {
    const own = run.sweep && trials.get(run.sweep);
    if (!own || own.length < 2) items.push({ run });
    else if (!told.has(run.sweep)) {
      told.add(run.sweep);
      const isOpen = own.length > MANY_TRIALS === state.folds.has(run.sweep);
      items.push({ sweep: run.sweep, trials: own, isOpen });
      if (isOpen) items.push(...own.map((trial) => ({ run: trial, isTrial: true })));
    }
  }
  return items;
}

/** Shows or hides the trials of a sweep in lists. */
export function fold(sweep) {
  const folds = new Set(state.folds);
  if (!folds.delete(sweep)) folds.add(sweep);
  set({ folds });
}

/** The list. */
export function list(root) {
  const head = h("div.list-head");
  const scroller = h("div.rows");
  const rows = virtual(scroller, HEIGHT);
  root.append(head, scroller);
  let items = [];
  let isFolded = matchMedia("(max-width: 860px)").matches;
  let onPaper = false;

  function header() {
    const runs = listed();
    const all = state.overview.runs.length;
    const some = drawn().length > 0;
    const { unread, problems } = state.overview;
    root.classList.toggle("folded", isFolded);
    refill(head, h("button.fold", { type: "button", "aria-expanded": String(!isFolded), onclick: () => {
      isFolded = !isFolded;
      build();
    } }, h("b", {}, String(runs.length)), runs.length === all ? ` run${all === 1 ? "" : "s"}` : ` of ${all} runs`),
    h("span.soft", { title: `The newest ${NEWEST} are drawn unless you tick others` }, drawn().length < runs.length && `${drawn().length} drawn`),
    unread > 0 && h("span.reading", {}, `${unread} to be read`), h("span.grow"),
    button(some ? "untick all" : "tick all", () => tickAll(!some)),
    problems.length > 0 && h("details.problems", { key: "problems" }, h("summary", {}, `${problems.length} cannot be read`), problems.map((problem) => h("p.problem", {}, problem))));
  }

  function build() {
    header();
    items = nested(listed());
    const color = colors(state.overview.runs);
    const first = items.findIndex((item) => item.run && item.run.id === state.focus);
    rows.show(items.length, (index) => (items[index].sweep ? sweepRow(items[index]) : row(items[index], color.of(items[index].run), index === Math.max(first, 0))), onPaper);
  }

  matchMedia("print").addEventListener("change", (print) => {
    onPaper = print.matches;
    build();
  });

  /** Goes up or down by `by` runs; keeps the keyboard in the list where it was there. */
  function step(by) {
    let index = items.findIndex((item) => item.run?.id === state.focus);
    if (index < 0) index = by > 0 ? -1 : 0;
    do index += by; while (items[index] && !items[index].run);
    if (!items[index]) return;
    const isHere = scroller.contains(document.activeElement);
    set({ focus: items[index].run.id, hot: items[index].run.id });
    rows.reveal(index);
    if (isHere) scroller.querySelector(".row.focus .name")?.focus();
  }

  let before = "";
  return {
    step,
    update(changed) {
      const has = (...keys) => keys.some((key) => changed.has(key));
      const now = `${isDark()} ${state.color} ${state.colorBy} ${state.group}`;
      if (has("overview", "filter", "ticks", "folds", "focus", "hot") || now !== before) build();
      before = now;
      if (changed.has("focus") && !has("hot")) {
        const index = items.findIndex((item) => item.run?.id === state.focus);
        if (index >= 0) rows.reveal(index);
      }
    },
  };
}

/** Draws this run alone, or the usual ones again. */
function solo(id) {
  const isAlone = drawn().length === 1 && isTicked(id);
  if (isAlone) set({ ticks: { base: "newest", on: new Set(), off: new Set() } });
  else tickOnly([id]);
}

/** Ticks or unticks a run. */
export const toggle = (id) => tickRuns([id], !isTicked(id));

/** The box of a run that says whether it is drawn, in its colour and with its dash. */
export function swatch(run, slot, isReached = true) {
  return h("button.swatch", {
    type: "button", role: "checkbox", "aria-checked": String(isTicked(run.id)), "aria-label": `Draw ${run.label}`, tabindex: isReached ? 0 : -1,
    title: "Draw it; with Alt or a double click: it alone", "--tint": tint(slot),
    onclick: (event) => {
      event.stopPropagation();
      if (event.altKey) solo(run.id);
      else toggle(run.id);
    },
    ondblclick: (event) => {
      event.stopPropagation();
      solo(run.id);
    },
  }, h("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, h("rect", { x: 1, y: 1, width: 12, height: 12, rx: 3 }), dashOf(slot).length > 0 && h("line", { x1: 2, x2: 12, y1: 7, y2: 7, "stroke-dasharray": dashOf(slot).map((each) => each / 2.5).join(" ") })));
}

/** The state of a run. */
export const stateOf = (run) => h(`span.state.${run.state}`, { title: run.reason || run.state }, run.state);

function row({ run, isTrial }, slot, isReached) {
  const { monitor } = run;
  const share = run.state === "running" && run.total_steps ? Math.min(1, run.step / run.total_steps) : null;
  return h("div.row", {
    key: run.id, role: "listitem", class: `row${isTicked(run.id) ? "" : " unticked"}${state.focus === run.id ? " focus" : ""}${state.hot === run.id ? " hot" : ""}${isTrial ? " trial" : ""}`, title: run.id, "data-run": run.id,
    onclick: () => set({ focus: run.id }),
    ondblclick: () => set({ focus: run.id, tab: "run" }),
    onmouseenter: () => set({ hot: run.id }),
    onmouseleave: () => set({ hot: null }),
  },
  swatch(run, slot, isReached),
  h("button.name", { type: "button", tabindex: isReached ? 0 : -1, "aria-current": state.focus === run.id ? "true" : undefined, onclick: (event) => {
    // A key opens the run; the pointer chooses it, and opens it by a double click.
    if (event.detail === 0) set({ focus: run.id, tab: "run" });
  } }, isTrial ? run.run : run.label), h("span.value", { title: monitor ? `best ${monitor.metric}` : "" }, monitor ? metricValue(monitor.metric, bestOf(run)) : ""),
  h("span.under", {}, stateOf(run), h("span", {}, share !== null ? `${Math.floor(100 * share)} %` : duration(run.seconds)), run.problem && h("span.bad", { title: run.problem }, "⚠"), h("span", { title: when(run.updated) }, ago(run.updated, state.overview.now))),
  share !== null && h("span.progress", {}, h("i", { style: { width: `${100 * share}%` } })));
}

function sweepRow({ sweep, trials, isOpen }) {
  const ids = trials.map((run) => run.id);
  const ticked = ids.filter(isTicked).length;
  const known = state.overview.sweeps.find((each) => each.id === sweep);
  return h("div.row.sweep", { key: `sweep ${sweep}`, role: "listitem", onclick: () => fold(sweep) },
    h("input", { type: "checkbox", "aria-label": `Draw the trials of ${sweep}`, checked: ticked === ids.length, indeterminate: ticked > 0 && ticked < ids.length, onclick: (event) => event.stopPropagation(), onchange: () => tickRuns(ids, ticked < ids.length) }),
    h("button.name", { type: "button", "aria-expanded": String(isOpen) }, `${isOpen ? "▾" : "▸"} ${sweep}`),
    h("span.value", {}, `${ids.length} trials`), h("span.under", {}, h("span", {}, known?.words ?? ""), h("span")));
}
