// The curves of all drawn runs, a panel for each metric.

import { h, fill, choice, segments, tick, soon } from "./dom.js";
import { panel } from "./panel.js";
import { points, smoothed, summary } from "./grid.js";
import { colors, isDark, tint } from "./color.js";
import { shown } from "./format.js";
import { differing, drawn, metrics, set, state } from "./store.js";
import { series, timelines } from "./source.js";

/** Points of all runs of a panel together, and of one run at most. */
const ALL_POINTS = 60000;
const MAX_POINTS = 1000;
/** Runs from which on only smoothed lines are drawn, not also what they smooth. */
const MANY = 30;

/** When each run was where; read when time is the axis. */
let places = {};

/** The tab of curves. */
export function curves() {
  const tools = h("div.tools");
  const grid = h("div.panels");
  const root = h("div", {}, tools, grid);
  const panels = new Map();
  const loaded = new Map();
  const visible = new Set();
  let wide = null;
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const metric = entry.target.dataset.metric;
      if (entry.isIntersecting) visible.add(metric);
      else visible.delete(metric);
    }
    refresh();
  }, { rootMargin: "120px" });

  async function load(metric) {
    const runs = drawn();
    const count = Math.max(120, Math.min(MAX_POINTS, Math.floor(ALL_POINTS / Math.max(runs.length, 1))));
    const key = JSON.stringify([state.overview.now, count, state.zoom]);
    const known = loaded.get(metric);
    if (known?.key === key) return;
    loaded.set(metric, { key, runs: known?.runs ?? {} });
    const range = steps(runs);
    const found = await series(metric, count, range?.[0], range?.[1]);
    const now = loaded.get(metric);
    if (now?.key !== key) return;
    now.runs = found;
    show(metric);
  }

  function show(metric) {
    const of = panels.get(metric);
    if (!of) return;
    const lines = linesOf(loaded.get(metric)?.runs ?? {});
    of.draw(lines, state.zoom ?? extent());
  }

  const refresh = soon(() => {
    for (const metric of visible) {
      if (!panels.has(metric)) continue;
      show(metric);
      load(metric).catch(() => loaded.delete(metric));
    }
  });

  function layout() {
    const names = metrics(drawn());
    for (const [metric, old] of panels) {
      if (names.includes(metric)) continue;
      sight.unobserve(old.root);
      old.root.remove();
      panels.delete(metric);
      visible.delete(metric);
    }
    names.forEach((metric, index) => {
      let of = panels.get(metric);
      if (!of) {
        of = panel(metric, () => {
          wide = wide === metric ? null : metric;
          for (const each of panels.values()) each.root.classList.toggle("wide", each.metric === wide);
        });
        panels.set(metric, of);
        sight.observe(of.root);
      }
      if (grid.children[index] !== of.root) grid.insertBefore(of.root, grid.children[index] ?? null);
    });
    if (!names.length) {
      const many = state.overview.runs.length;
      fill(grid, h("div.empty", {}, many ? h("b", {}, "No curve to draw") : h("b", {}, "No runs yet"),
        many ? "No ticked run that passes the filter has recorded a number." : "Start one, and it shows up here: ",
        !many && h("code", {}, "ddprun experiments/quickstart.toml")));
    } else grid.querySelector(".empty")?.remove();
  }

  function bar() {
    const keys = differing(state.overview.runs).map((key) => [key, key]);
    fill(tools,
      segments("Horizontal axis", [["step", "Step"], ["epoch", "Epoch"], ["time", "Time", "Time since the start of the run"]], state.x, (x) => set({ x, zoom: null })),
      h("label", { title: "Exponential moving average; the raw curve stays behind it" }, "Smoothing",
        h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smooth, "aria-label": "Smoothing", oninput: (event) => set({ smooth: Number(event.target.value) }) })),
      tick("log x", state.logX, (logX) => set({ logX })), tick("log y", state.logY, (logY) => set({ logY })),
      choice("Group", [["", "no"], ["name", "name"], ...keys], state.group, (group) => set({ group })),
      choice("Colour", [["run", "run"], ["name", "name"], ["state", "state"], ["pattern", "pattern …"], ...keys], state.color, (color) => set({ color })),
      state.color === "pattern" && h("input", { type: "text", value: state.colorBy, placeholder: "lr=([^\\n]*)", "aria-label": "Pattern of colours",
        oninput: (event) => set({ colorBy: event.target.value }) }),
      state.zoom && h("button", { type: "button", title: "Double click in a chart does it, too", onclick: () => set({ zoom: null }) }, "Reset zoom"));
  }

  return {
    root,
    bar,
    update(changed) {
      const has = (...keys) => keys.some((key) => changed.has(key));
      if (state.x === "time" && has("x", "overview")) {
        timelines().then((found) => {
          places = found;
          refresh();
        }, () => {});
      }
      if (has("tab", "overview", "x", "logX", "logY", "group", "color", "zoom", "theme")) bar();
      if (has("tab", "overview", "filter", "hidden")) layout();
      if (changed.has("hot")) for (const metric of visible) panels.get(metric)?.highlight(state.hot);
      if (has("tab", "overview", "filter", "hidden", "x", "logX", "logY", "group", "color", "colorBy", "smooth", "zoom", "theme")) refresh();
    },
  };
}

/** A function from a step of `run` to the chosen x. */
function toX(run) {
  if (state.x === "step") return (step) => (state.logX && step <= 0 ? null : step);
  if (state.x === "epoch") return (step) => (run.steps_per_epoch ? step / run.steps_per_epoch : null);
  const times = places[run.id] ?? [];
  return (step) => {
    if (times.length === 0) return null;
    let high = times.findIndex(([known]) => known >= step);
    if (high < 0) high = times.length - 1;
    const [s1, t1] = times[high];
    const [s0, t0] = times[Math.max(high - 1, 0)];
    return s1 === s0 ? t1 : t0 + ((t1 - t0) * (step - s0)) / (s1 - s0);
  };
}

/** The steps of the zoom, over all runs; null without one. */
function steps(runs) {
  if (!state.zoom) return null;
  const [from, to] = state.zoom;
  if (state.x === "step") return [Math.max(from, 0), Math.max(to, 0)];
  const ends = runs.map((run) => {
    if (state.x === "epoch") return [from * run.steps_per_epoch, to * run.steps_per_epoch];
    const times = places[run.id] ?? [];
    return [times.filter(([, seconds]) => seconds <= from).at(-1)?.[0] ?? 0, times.find(([, seconds]) => seconds >= to)?.[0] ?? run.step];
  });
  return [Math.max(0, Math.min(...ends.map(([low]) => low))), Math.max(0, ...ends.map(([, high]) => high))];
}

/** The whole x of all drawn runs. */
function extent() {
  const ends = drawn().map((run) => toX(run)(run.step)).filter((x) => x !== null && Number.isFinite(x));
  const high = ends.length ? ends.reduce((a, b) => Math.max(a, b)) : 1;
  if (!state.logX) return [0, high || 1];
  const starts = drawn().map((run) => toX(run)(1)).filter((x) => x > 0);
  return [starts.length ? starts.reduce((a, b) => Math.min(a, b)) : high / 1e4 || 1, high || 10];
}

function linesOf(found) {
  const runs = drawn().filter((run) => found[run.id]?.step.length);
  const color = colors(state.overview.runs);
  if (state.group) return groups(runs, found);
  const raw = [];
  const main = [];
  for (const run of runs) {
    const of = points(found[run.id], toX(run));
    const base = { id: run.id, name: run.label, color: color.of(run) };
    if (state.smooth === 0) main.push({ ...base, key: run.id, x: of.x, y: of.y });
    else {
      if (runs.length < MANY) raw.push({ ...base, key: `raw ${run.id}`, x: of.x, y: of.y, faint: isDark() ? 0.4 : 0.25 });
      main.push({ ...base, key: run.id, x: of.meanX, y: smoothed(of.mean, state.smooth) });
    }
  }
  return [...raw, ...main];
}

/** The mean of each group, with a band from its lowest to its highest run. */
function groups(runs, found) {
  const key = (run) => (state.group === "name" ? run.name : shown(run.config[state.group]));
  // In the order of all groups, so that a group has one colour in all charts.
  const keys = [...new Set(drawn().map(key))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return [...Map.groupBy(runs, key)].flatMap(([value, group]) => {
    const lines = group.map((run) => {
      const of = points(found[run.id], toX(run));
      return { x: of.meanX, y: state.smooth ? smoothed(of.mean, state.smooth) : of.mean };
    });
    const { x, mean, low, high } = summary(lines, 0, Infinity);
    const base = { id: `group ${value}`, color: tint(keys.indexOf(value)), x };
    const edge = { ...base, faint: 0.25, edge: true };
    return [
      { ...edge, key: `high ${value}`, name: "", y: high, band: true },
      { ...edge, key: `low ${value}`, name: "", y: low },
      { ...base, key: `mean ${value}`, name: `${state.group} ${value} (${group.length})`, y: mean },
    ];
  });
}

