// The curves of all drawn runs, a panel for each metric; the Run tab shows those of one run.

import { button, choice, fill, h, refill, segments, soon, tick } from "./dom.js";
import { panel, sample } from "./panel.js";
import { points, smoothed, summary } from "./grid.js";
import { colorKey, colors } from "./color.js";
import { valueOf } from "./filter.js";
import { differing, drawn, metrics, set, state } from "./store.js";
import { series, timelines } from "./source.js";

/** Points of all runs of a panel together, and of one run at most. */
const ALL_POINTS = 60000;
const MAX_POINTS = 1000;
/** Runs from which on only smoothed lines are drawn, not also what they smooth. */
const MANY = 30;
/** Entries of a legend. */
const MAX_LEGEND = 24;

/** When each run was where, with the version of the run that it was read of; read when time is the axis. */
const places = new Map();

async function readPlaces(runs) {
  const stale = runs.filter((run) => places.get(run.id)?.version !== run.version);
  if (!stale.length) return;
  const found = await timelines(stale);
  for (const run of stale) places.set(run.id, { version: run.version, list: found[run.id] ?? [] });
}

/** Panels of the runs that `runsOf` gives, which read what they show when they come into sight. */
export function panelGrid(runsOf, single) {
  const grid = h("div.panels");
  const panels = new Map();
  const loaded = new Map();
  const visible = new Set();
  let wide = null;
  let shownX = "";
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const metric = entry.target.dataset.metric;
      if (entry.isIntersecting) visible.add(metric);
      else visible.delete(metric);
    }
    refresh();
  }, { rootMargin: "120px" });

  async function load(metric) {
    const runs = runsOf();
    const count = Math.max(100, Math.min(MAX_POINTS, Math.floor(ALL_POINTS / Math.max(runs.length, 1))));
    // Of a few more or less runs the same points are enough.
    const key = JSON.stringify([Math.round(Math.log2(count)), state.zoom, state.x]);
    let known = loaded.get(metric);
    if (known?.key !== key) loaded.set(metric, known = { key, runs: known?.runs ?? {}, versions: new Map() });
    const stale = runs.filter((run) => run.series.includes(metric) && known.versions.get(run.id) !== run.version);
    if (!stale.length) return false;
    for (const run of stale) known.versions.set(run.id, run.version);
    const range = steps(runs);
    const found = await series(metric, stale, count, range?.[0], range?.[1]).catch((trouble) => {
      for (const run of stale) known.versions.delete(run.id);
      throw trouble;
    });
    if (loaded.get(metric) !== known) return false;
    Object.assign(known.runs, found);
    return true;
  }

  const show = (metric) => panels.get(metric)?.draw(linesOf(runsOf(), loaded.get(metric)?.runs ?? {}, metric), state.zoom ?? extent(runsOf()));

  const refresh = soon(() => {
    const end = JSON.stringify([extent(runsOf()), state.zoom]);
    for (const metric of visible) {
      if (!panels.has(metric)) continue;
      if (isDirty || shownX !== end) show(metric);
      load(metric).then((isNew) => isNew && show(metric), () => {});
    }
    [isDirty, shownX] = [false, end];
  });
  let isDirty = true;

  function layout() {
    const runs = runsOf();
    const names = metrics(runs);
    for (const [metric, old] of panels) {
      if (names.includes(metric)) continue;
      sight.unobserve(old.root);
      old.forget();
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
    grid.querySelector(".empty")?.remove();
    if (!names.length && !single) {
      const many = state.overview.runs.length;
      fill(grid, h("div.empty", {}, many ? h("b", {}, "No curve to draw") : h("b", {}, "No runs yet"),
        many ? "No ticked run that passes the filter has recorded a number." : "Start one, and it shows up here: ",
        !many && h("code", {}, "ddprun experiments/quickstart.toml")));
    }
  }

  return {
    root: grid,
    update(changed) {
      const has = (...keys) => keys.some((key) => changed.has(key));
      if (state.x === "time" && has("tab", "x", "overview", "ticks", "filter")) {
        readPlaces(runsOf()).then(() => {
          isDirty = true;
          refresh();
        }, () => {});
      }
      if (has("tab", "overview", "filter", "ticks", "focus")) layout();
      if (changed.has("hot")) for (const metric of visible) panels.get(metric)?.highlight(state.hot);
      if (has("tab", "filter", "ticks", "focus", "x", "logX", "logY", "outliers", "group", "color", "colorBy", "smooth", "zoom", "zoomY", "theme")) isDirty = true;
      if (isDirty || has("overview")) refresh();
    },
  };
}

/** The tab of curves. */
export function curves() {
  const tools = h("div.tools");
  const legend = h("div.legend");
  const grid = panelGrid(drawn, false);
  const root = h("div", {}, tools, legend, grid.root);

  function bar() {
    const keys = differing(state.overview.runs).map((key) => [key, key]);
    const sweeps = state.overview.sweeps.length ? [["sweep", "sweep"]] : [];
    refill(tools, axisTools(),
      choice("Group", [["", "no"], ["name", "name"], ...sweeps, ...keys], state.group, (group) => set({ group })),
      choice("Colour", [["run", "run"], ["name", "name"], ["state", "state"], ...sweeps, ["pattern", "pattern …"], ...keys], state.color, (color) => set({ color })),
      state.color === "pattern" && h("input", { key: "pattern", type: "text", value: state.colorBy, placeholder: "lr=([^\\n]*)", "aria-label": "Pattern of colours",
        oninput: (event) => set({ colorBy: event.target.value }) }),
      resetZoom());
  }

  function key() {
    const runs = drawn();
    const by = colorKey();
    const color = colors(state.overview.runs);
    const isByRun = by === "run";
    const values = [...Map.groupBy(runs, (run) => color.value(run))].sort(([a], [b]) => (isByRun ? 0 : a.localeCompare(b, "en", { numeric: true })));
    const shown = values.slice(0, MAX_LEGEND);
    legend.classList.toggle("by-run", isByRun);
    refill(legend, shown.map(([value, of]) => h("span", { key: value, onmouseenter: () => set({ hot: state.group ? `group ${value}` : isByRun ? value : null }), onmouseleave: () => set({ hot: null }) },
      sample(color.slotOf(value)), isByRun ? of[0].label : value, !isByRun && h("span.soft", {}, ` ${of.length}`))), values.length > shown.length && h("span.soft", {}, `and ${values.length - shown.length} more`));
  }

  return {
    root,
    update(changed) {
      const has = (...keys) => keys.some((key_) => changed.has(key_));
      if (has("tab", "overview", "x", "logX", "logY", "smooth", "outliers", "group", "color", "colorBy", "zoom", "zoomY", "theme")) bar();
      if (has("tab", "overview", "filter", "ticks", "group", "color", "colorBy", "theme")) key();
      grid.update(changed);
    },
  };
}

/** What charts of runs have in common, on both tabs. */
export function axisTools() {
  return [
    segments("Horizontal axis", [["step", "Step"], ["epoch", "Epoch"], ["time", "Time", "Time since the start of the run"]], state.x, (x) => set({ x, zoom: null })),
    h("label", { key: "smooth", title: "Exponential moving average; the raw curve stays behind it" }, "Smoothing",
      h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smooth, "aria-label": "Smoothing", oninput: (event) => set({ smooth: Number(event.target.value) }) })),
    tick("log x", state.logX, (logX) => set({ logX })), tick("log y", state.logY, (logY) => set({ logY })),
  ];
}

export const resetZoom = () => (state.zoom || Object.keys(state.zoomY).length > 0) && h("span", { key: "zoom" }, button("Reset zoom", () => set({ zoom: null, zoomY: {} }), { title: "Double click in a chart does it, too" }));

/** A function from a step of `run` to the chosen x. */
function toX(run) {
  if (state.x === "step") return (step) => (state.logX && step <= 0 ? null : step);
  if (state.x === "epoch") return (step) => (run.steps_per_epoch ? step / run.steps_per_epoch : null);
  const times = places.get(run.id)?.list ?? [];
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
    const times = places.get(run.id)?.list ?? [];
    return [times.filter(([, seconds]) => seconds <= from).at(-1)?.[0] ?? 0, times.find(([, seconds]) => seconds >= to)?.[0] ?? run.step];
  });
  return [Math.max(0, Math.min(...ends.map(([low]) => low))), Math.max(0, ...ends.map(([, high]) => high))];
}

/** The whole x of all drawn runs. */
function extent(runs) {
  let [low, high] = [Infinity, 0];
  for (const run of runs) {
    const of = toX(run);
    const end = of(run.step);
    if (end !== null && Number.isFinite(end) && end > high) high = end;
    const start = state.logX ? of(1) : null;
    if (start > 0 && start < low) low = start;
  }
  if (!state.logX) return [0, high || 1];
  return [Number.isFinite(low) ? low : high / 1e4 || 1, high || 10];
}

/** Points over x of each answer of the server; an answer that stays is not worked through again. */
const worked = new WeakMap();

function pointsOf(run, found) {
  const key = state.x === "time" ? JSON.stringify(places.get(run.id)?.version ?? null) : `${state.x} ${state.logX}`;
  let known = worked.get(found);
  if (known?.key !== key) worked.set(found, known = { key, points: points(found, toX(run)), smooth: null, weight: -1 });
  if (state.smooth > 0 && known.weight !== state.smooth) [known.smooth, known.weight] = [smoothed(known.points.mean, state.smooth), state.smooth];
  return known;
}

function linesOf(all, found, metric) {
  const runs = all.filter((run) => found[run.id]?.step.length && run.series.includes(metric));
  const color = colors(state.overview.runs);
  if (state.group && all.length > 1) return groups(runs, found, color);
  const raw = [];
  const main = [];
  for (const run of runs) {
    const { points: of, smooth } = pointsOf(run, found[run.id]);
    const base = { id: run.id, name: run.label, slot: color.of(run) };
    if (state.smooth === 0) main.push({ ...base, x: of.x, y: of.y });
    else {
      if (runs.length < MANY) raw.push({ ...base, x: of.x, y: of.y, faint: 0.3 });
      main.push({ ...base, x: of.meanX, y: smooth });
    }
  }
  return [...raw, ...main];
}

/** The mean of each group, with a band from its lowest to its highest run. */
function groups(runs, found, color) {
  return [...Map.groupBy(runs, (run) => valueOf(run, state.group, ""))].map(([value, group]) => {
    const lines = group.map((run) => {
      const { points: of, smooth } = pointsOf(run, found[run.id]);
      return { x: of.meanX, y: state.smooth ? smooth : of.mean };
    });
    const { x, mean, low, high } = summary(lines);
    const band = group.length > 1 ? { low, high } : {};
    return { id: `group ${value}`, slot: color.slotOf(value), x, y: mean, ...band, name: `${state.group} ${value} (${group.length})` };
  });
}
