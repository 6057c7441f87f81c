// A sweep: parallel coordinates, importance, history, slices. Without one: the same of all ticked runs.

import { h, fill, choice } from "./dom.js";
import { metricValue, number, shown } from "./format.js";
import { parallel } from "./parallel.js";
import { heat, linear, scale } from "./scale.js";
import { differing, drawn, set, state } from "./store.js";

const SIZE = { width: 420, height: 190, left: 52, right: 12, top: 10, bottom: 26 };

/** The tab of sweeps. */
export function sweeps() {
  const root = h("div");
  let look = "";

  function build() {
    const all = state.overview.sweeps;
    const sweep = all.find((each) => each.id === state.sweep) ?? all[0] ?? null;
    const subject = sweep && state.sweep !== "runs" ? once(sweep) : ticked();
    const options = [...all.map((each) => [each.id, each.name]), ["runs", "all ticked runs"]];
    const bar = h("div.tools", {}, choice("Sweep", options, subject.id, (next) => set({ sweep: next })), h("span", {}, subject.words ?? ""));
    const valued = subject.trials.filter((trial) => trial.value !== null && trial.value !== undefined);
    if (subject.parameters.length === 0 || valued.length < 2) {
      fill(root, bar, h("div.empty", {}, h("b", {}, "Nothing to compare yet"), "Two runs that differ in a parameter and have a result are needed. ", h("code", {}, "ddprun sweep experiments/quickstart.toml optimizer.lr=0.1,0.01")));
      return;
    }
    fill(root, bar,
      h("section.card", { "data-card": "parallel" }, h("h2", {}, `Parameters and ${subject.metric}`), parallel(subject)),
      h("div.cards", {}, importance(subject), history(subject, valued), subject.parameters.map((key) => slice(subject, valued, key))));
  }

  return {
    root,
    bar() {},
    update() {
      const now = JSON.stringify([state.overview.sweeps, state.sweep, document.documentElement.dataset.theme, state.overview.sweeps.length && state.sweep !== "runs" ? "" : drawn()]);
      if (now !== look) build();
      look = now;
    },
  };
}

/** A parameter with several ranges, under conditions, is one parameter. */
const once = (sweep) => ({ ...sweep, parameters: sweep.parameters.filter(({ key }, index) => sweep.parameters.findIndex((each) => each.key === key) === index) });

/** The ticked runs as if they were a sweep. */
function ticked() {
  const runs = drawn();
  const metric = runs.find((run) => run.monitor)?.monitor.metric ?? "val/loss";
  const goal = runs.find((run) => run.monitor)?.monitor.mode ?? "min";
  const keys = differing(runs).filter((key) => !/^(experiment\.(name|tags)$|logging\.|checkpoint\.)/.test(key)).slice(0, 8);
  const trials = runs.map((run, index) => ({
    number: runs.length - index, run: run.id, state: run.state, values: run.config, value: run.metrics[metric]?.[goal] ?? null,
  }));
  return { id: "runs", name: "all ticked runs", metric, goal, parameters: keys.map((key) => ({ key, log: false })), importance: [], trials, words: "" };
}

function importance(subject) {
  const known = subject.importance.filter((each) => each.share !== null);
  if (!known.length) return null;
  const sorted = [...known].sort((a, b) => b.share - a.share);
  return h("section.card", { "data-card": "importance" }, h("h2", {}, "Importance"), h("p.soft", {}, "How much of the order of the trials each parameter alone explains"), h("div.meter", {}, sorted.map((each) => {
    const bar = h("i", { "--tint": "var(--accent)" });
    bar.style.width = `${100 * each.share}%`;
    return [h("span", {}, each.key), h("div.bar", {}, bar), h("span", {}, `${Math.round(100 * each.share)} %`)];
  })));
}

/** The result of each trial in their order, and the best so far: of a sweep, among those that were not stopped early. */
function history(subject, valued) {
  const inOrder = [...valued].sort((a, b) => a.number - b.number);
  const x = linear(inOrder.map((trial) => trial.number));
  const y = scale(inOrder.map((trial) => trial.value), false);
  const better = subject.goal === "max" ? Math.max : Math.min;
  const whole = inOrder.filter((trial) => subject.id === "runs" || trial.state === "finished");
  let best = whole[0]?.value;
  // Level until a trial is better, and straight to its value there.
  const steps = whole.flatMap((trial) => {
    const before = best;
    best = better(best, trial.value);
    return [before, best].map((value) => `${px(x.place(trial.number))},${py(y.place(value))}`);
  });
  return h("section.card", { "data-card": "history" }, h("h2", {}, "History"), frame(x, y, subject.metric, [
    h("polyline.step", { points: steps.join(" ") }), dots(subject, inOrder, x, y, (trial) => trial.number)]));
}

function slice(subject, valued, parameter) {
  const { key, log } = parameter;
  const of = valued.filter((trial) => trial.values[key] !== undefined && trial.values[key] !== null);
  if (of.length < 2) return null;
  const x = scale(of.map((trial) => trial.values[key]), log);
  const y = scale(of.map((trial) => trial.value), false);
  return h("section.card", { "data-card": "slice" }, h("h2", {}, key), frame(x, y, subject.metric, dots(subject, of, x, y, (trial) => trial.values[key])));
}

const px = (share) => SIZE.left + share * (SIZE.width - SIZE.left - SIZE.right);
const py = (share) => SIZE.height - SIZE.bottom - share * (SIZE.height - SIZE.top - SIZE.bottom);

function dots(subject, trials, x, y, of) {
  const color = heat(subject);
  return trials.map((trial) => h("circle", {
    cx: px(x.place(of(trial))), cy: py(y.place(trial.value)), r: 4, "--tint": color(trial.value), onclick: () => trial.run && set({ focus: trial.run, tab: "run" }),
  }, h("title", {}, `trial ${trial.number}: ${metricValue(subject.metric, trial.value)}\n${shown(of(trial))}`)));
}

function frame(x, y, metric, inner) {
  const { width, height } = SIZE;
  return h("svg.drawing", { viewBox: `0 0 ${width} ${height}`, role: "img" },
    h("line.axis", { x1: px(0), x2: px(1), y1: py(0), y2: py(0) }), h("line.axis", { x1: px(0), x2: px(0), y1: py(0), y2: py(1) }),
    x.ticks(5).map((tick) => h("text", { x: px(x.place(tick)), y: height - 8, "text-anchor": "middle" }, typeof tick === "number" ? number(tick, 3) : shown(tick))),
    y.ticks(4).map((tick) => h("text", { x: px(0) - 6, y: py(y.place(tick)) + 4, "text-anchor": "end" }, metricValue(metric, tick).replace(".00 %", " %"))), inner);
}
