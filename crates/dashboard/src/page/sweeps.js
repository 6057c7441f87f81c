// A sweep: its best trial, parallel coordinates, importance, history, slices, two parameters, all trials. Without a sweep: the
// same of all ticked runs.

import { button, choice, h, refill } from "./dom.js";
import { saveCsv, saveDrawing } from "./export.js";
import { duration, metricValue, number, shown } from "./format.js";
import { parallel } from "./parallel.js";
import { heat, linear, scale } from "./scale.js";
import { trialTable } from "./trials.js";
import { differing, drawn, set, state } from "./store.js";

const SIZE = { width: 420, height: 200, left: 56, right: 14, top: 12, bottom: 28 };

/** The tab of sweeps. */
export function sweeps() {
  const root = h("div");
  const table = trialTable(build);
  /** What is brushed, by subject and axis; it outlives what is drawn. */
  const brushes = new Map();
  let pair = [null, null];

  function build() {
    const all = state.overview.sweeps;
    const sweep = all.find((each) => each.id === state.sweep) ?? all[0] ?? null;
    const subject = sweep && state.sweep !== "runs" ? once(sweep) : ticked();
    const options = [...all.map((each) => [each.id, each.name]), ["runs", "all ticked runs"]];
    const bar = h("div.tools", { key: "bar" }, choice("Sweep", options, subject.id, (next) => set({ sweep: next })), h("span", {}, subject.words ?? ""),
      button("CSV", () => saveCsv(`${subject.name}-trials`, [["trial", "run", "state", subject.metric, "seconds", ...subject.parameters.map(({ key }) => key)], ...subject.trials.map((trial) => [trial.number, trial.run, trial.state, trial.value, trial.seconds, ...subject.parameters.map(({ key }) => trial.values[key])])]), { title: "Save all trials" }));
    const valued = subject.trials.filter((trial) => trial.value !== null && trial.value !== undefined);
    if (subject.parameters.length === 0 || valued.length < 2) {
      refill(root, bar, h("div.empty", { key: "empty" }, h("b", {}, "Nothing to compare yet"), "Two runs that differ in a parameter and have a result are needed. ", h("code", {}, "ddprun sweep experiments/quickstart.toml optimizer.lr=0.1,0.01")));
      return;
    }
    // An axis for what is the same everywhere says nothing.
    const values = (key) => new Set(valued.map((trial) => JSON.stringify(trial.values[key])));
    const [varied, same] = [true, false].map((wanted) => subject.parameters.filter(({ key }) => values(key).size > 1 === wanted));
    const own = brushes.get(subject.id) ?? brushes.set(subject.id, new Map()).get(subject.id);
    refill(root, bar, best(subject, valued, same),
      h("section.card", { key: "parallel", "data-card": "parallel" }, h("h2", {}, `Parameters and ${subject.metric}`), parallel({ ...subject, parameters: varied }, own, build)),
      h("div.cards", { key: "cards" }, importance(subject), history(subject, valued), varied.map((parameter) => slice(subject, valued, parameter)), varied.length > 1 && contour(subject, valued, varied)),
      table(subject));
  }

  /** Results over two parameters: dots are trials, the ground is what lies between them. */
  function contour(subject, valued, varied) {
    const keys = varied.map(({ key }) => key);
    const rank = new Map(subject.importance.map((each) => [each.key, each.share ?? 0]));
    const usual = [...keys].sort((a, b) => (rank.get(b) ?? 0) - (rank.get(a) ?? 0));
    const [first, second] = [keys.includes(pair[0]) ? pair[0] : usual[0], keys.includes(pair[1]) ? pair[1] : usual[1]];
    const of = valued.filter((trial) => [first, second].every((key) => trial.values[key] !== undefined && trial.values[key] !== null));
    const axis = (key) => scale(of.map((trial) => trial.values[key]), varied.find((each) => each.key === key).log);
    const choose = (index) => (key) => {
      pair = [first, second];
      pair[index] = key;
      build();
    };
    const options = keys.map((key) => [key, key]);
    if (of.length < 3) return null;
    const [x, y] = [axis(first), axis(second)];
    const color = heat(subject);
    const known = of.map((trial) => [x.place(trial.values[first]), y.place(trial.values[second]), color.share(trial.value)]);
    const [columns, rows] = [28, 16];
    const ground = [];
    for (let i = 0; i < columns; i += 1) {
      for (let j = 0; j < rows; j += 1) {
        const [u, v] = [(i + 0.5) / columns, (j + 0.5) / rows];
        let [sum, weights] = [0, 0];
        for (const [a, b, share] of known) {
          const weight = 1 / ((a - u) ** 2 + (b - v) ** 2 + 1e-4) ** 1.5;
          sum += weight * share;
          weights += weight;
        }
        ground.push(h("rect.ground", { x: px(i / columns), y: py((j + 1) / rows), width: px(1 / columns) - px(0) + 0.4, height: py(0) - py(1 / rows) + 0.4, "--tint": color.of(sum / weights) }));
      }
    }
    return drawing("contour", `${first} and ${second}`, [choice("across", options, first, choose(0)), choice("up", options, second, choose(1))],
      frame(x, y, (value) => words(value), `${subject.metric} over ${first} and ${second}`, [ground, of.map((trial) => dot(subject, trial, px(x.place(trial.values[first])), py(y.place(trial.values[second])), color(trial.value)))]));
  }

  return {
    root,
    update(changed) {
      const isRuns = state.sweep === "runs" || !state.overview.sweeps.length;
      if (["tab", "overview", "sweep", "theme"].some((key) => changed.has(key)) || (isRuns && ["ticks", "filter"].some((key) => changed.has(key)))) build();
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
    number: runs.length - index, run: run.id, state: run.state, values: run.config, value: run.metrics[metric]?.[goal] ?? null, seconds: run.seconds,
  }));
  return { id: "runs", name: "all ticked runs", metric, goal, parameters: keys.map((key) => ({ key, log: false })), importance: [], trials, words: "" };
}

/** Trials that count for the best: of a sweep, those that were not stopped early. */
const whole = (subject, valued) => valued.filter((trial) => subject.id === "runs" || trial.state === "finished");

/** The best trial with its parameters. */
function best(subject, valued, same) {
  const of = whole(subject, valued);
  const sign = subject.goal === "max" ? -1 : 1;
  const sorted = [...of].sort((a, b) => sign * (a.value - b.value));
  const first = sorted[0];
  const counts = new Map();
  for (const trial of subject.trials) counts.set(trial.state, (counts.get(trial.state) ?? 0) + 1);
  const states = [...counts].map(([name, count]) => `${count} ${name}`).join(", ");
  const fixed = same.filter(({ key }) => first?.values[key] !== undefined);
  return h("section.card.best", { key: "best", "data-card": "best" }, h("header", {}, h("h2", {}, first ? `Best: trial ${first.number}, ${subject.metric} ${metricValue(subject.metric, first.value)}` : "No trial has finished yet"),
    first?.run && h("span.panel-tools", {}, button("Open its run", () => set({ focus: first.run, tab: "run" })))),
  first && h("dl.facts", {}, subject.parameters.filter((each) => !same.includes(each) && first.values[each.key] !== undefined).map(({ key }) => [h("dt", { key: `t ${key}` }, key), h("dd", { key: `d ${key}` }, h("b", {}, shown(first.values[key])))]), h("dt", {}, "Trials"), h("dd", {}, states), first.seconds > 0 && [h("dt", {}, "Duration"), h("dd", {}, duration(first.seconds))]),
  fixed.length > 0 && h("p.soft", {}, `The same in all trials: ${fixed.map(({ key }) => `${key} = ${shown(first.values[key])}`).join(", ")}`));
}

function importance(subject) {
  const known = subject.importance.filter((each) => each.share !== null);
  if (!known.length) return null;
  const sorted = [...known].sort((a, b) => b.share - a.share);
  return h("section.card", { key: "importance", "data-card": "importance" }, h("h2", {}, "Importance"), h("p.soft", {}, "How much of the order of the trials each parameter alone explains"), h("div.meter", {}, sorted.map((each) =>
    [h("span", {}, each.key), h("div.bar", {}, h("i", { "--tint": "var(--accent)", style: { width: `${100 * each.share}%` } })), h("span", {}, `${Math.round(100 * each.share)} %`)])));
}

/** The card of a drawing, which can be saved. */
function drawing(kind, title, tools, inner) {
  return h("section.card", { key: `${kind} ${kind === "contour" ? "" : title}`, "data-card": kind }, h("header", {}, h("h2", {}, title), h("span.panel-tools", {},
    button("PNG", (event) => saveDrawing(title, event.target.closest(".card").querySelector("svg.drawing")), { "aria-label": `Save ${title} as PNG` }))), tools && h("div.tools", {}, tools), inner);
}

/** The result of each trial in their order, and the best so far: of a sweep, among those that were not stopped early. */
function history(subject, valued) {
  const inOrder = [...valued].sort((a, b) => a.number - b.number);
  const x = linear(inOrder.map((trial) => trial.number));
  const y = scale(inOrder.map((trial) => trial.value), false);
  const better = subject.goal === "max" ? Math.max : Math.min;
  let best = whole(subject, inOrder)[0]?.value;
  // Level until a trial is better, and straight to its value there.
  const steps = whole(subject, inOrder).flatMap((trial) => {
    const before = best;
    best = better(best, trial.value);
    return [before, best].map((value) => `${px(x.place(trial.number))},${py(y.place(value))}`);
  });
  const legend = subject.id !== "runs" && h("p.soft", {}, "● finished  ○ pruned  — best so far");
  return drawing("history", "History", null, [frame(x, y, (value) => result(subject, value), `History of ${subject.metric}`, [
    h("polyline.step", { points: steps.join(" ") }), dots(subject, inOrder, x, y, (trial) => trial.number)]), legend]);
}

function slice(subject, valued, parameter) {
  const { key, log } = parameter;
  const of = valued.filter((trial) => trial.values[key] !== undefined && trial.values[key] !== null);
  if (of.length < 2) return null;
  const x = scale(of.map((trial) => trial.values[key]), log);
  const y = scale(of.map((trial) => trial.value), false);
  return drawing("slice", key, null, frame(x, y, (value) => result(subject, value), `${subject.metric} by ${key}`, dots(subject, of, x, y, (trial) => trial.values[key])));
}

const px = (share) => SIZE.left + share * (SIZE.width - SIZE.left - SIZE.right);
const py = (share) => SIZE.height - SIZE.bottom - share * (SIZE.height - SIZE.top - SIZE.bottom);
const words = (value) => (typeof value === "number" ? number(value, 3) : shown(value));
const result = (subject, value) => metricValue(subject.metric, value).replace(".00 %", " %");

function dots(subject, trials, x, y, of) {
  const color = heat(subject);
  return trials.map((trial) => dot(subject, trial, px(x.place(of(trial))), py(y.place(trial.value)), color(trial.value)));
}

/** A trial; one that was stopped early is hollow. */
function dot(subject, trial, cx, cy, color) {
  const text = `trial ${trial.number}${trial.state === "finished" ? "" : `, ${trial.state}`}: ${metricValue(subject.metric, trial.value)}\n${subject.parameters.map(({ key }) => `${key} ${shown(trial.values[key])}`).join("\n")}`;
  return h(`circle${trial.state === "pruned" ? ".pruned" : ""}`, { cx, cy, r: 4, "--tint": color, onclick: () => trial.run && set({ focus: trial.run, tab: "run" }) }, h("title", {}, text));
}

function frame(x, y, sayY, label, inner) {
  const { width, height } = SIZE;
  return h("svg.drawing", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}; the table of trials has its numbers` }, inner,
    h("line.axis", { x1: px(0), x2: px(1), y1: py(0), y2: py(0) }), h("line.axis", { x1: px(0), x2: px(0), y1: py(0), y2: py(1) }),
    x.ticks(5).map((tick) => h("text", { x: px(x.place(tick)), y: height - 10, "text-anchor": "middle" }, words(tick))),
    y.ticks(4).map((tick) => h("text", { x: px(0) - 6, y: py(y.place(tick)) + 4, "text-anchor": "end" }, sayY(tick))));
}
