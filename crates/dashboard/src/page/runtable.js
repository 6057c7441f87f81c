// The table of runs: their rows tick curves, their heads sort.

import { h, fill } from "./dom.js";
import { duration, metricValue, number, shown } from "./format.js";
import { colors } from "./color.js";
import { stateOf, swatch } from "./list.js";
import { differing, listed, metrics, set, state } from "./store.js";

/** Columns of the configuration at most. */
const MAX_KEYS = 24;

/** The tab of the table. */
export function runTable() {
  const root = h("div");
  let look = "";

  function build() {
    const runs = listed();
    if (!runs.length) {
      fill(root, h("div.empty", {}, h("b", {}, "No run to list"), "No run passes the filter."));
      return;
    }
    const columns = columnsOf(runs);
    const by = columns.find((column) => column.key === state.sort.key) ?? columns.find((column) => column.key === "started");
    const sign = state.sort.down ? -1 : 1;
    const sorted = [...runs].sort((a, b) => sign * compare(by.of(a), by.of(b)));
    const color = colors(state.overview.runs);
    const best = new Map(columns.filter((column) => column.mode).map((column) => [column.key, bestOf(column, runs)]));
    fill(root, h("div.scroll", {}, h("table", {},
      h("thead", {}, h("tr", {}, h("th"), columns.map((column) => heading(column)))),
      h("tbody", {}, sorted.map((run) => h("tr", {
        class: run.id === state.focus ? "focus" : undefined, "data-run": run.id,
        onclick: () => set({ focus: run.id }), ondblclick: () => set({ focus: run.id, tab: "run" }),
      }, h("td", {}, swatch(run, color.of(run))), columns.map((column) => {
        const value = column.of(run);
        const isBest = runs.length > 1 && value !== undefined && value !== null && best.get(column.key) === value;
        return h(`td${column.number ? ".number" : ""}${column.key === "label" ? ".name" : ""}${isBest ? ".best" : ""}`, {}, column.show(value, run));
      })))))));
  }

  return {
    root,
    bar() {},
    update() {
      const now = JSON.stringify([listed(), [...state.hidden], state.sort, state.focus, state.color, state.colorBy, document.documentElement.dataset.theme]);
      if (now !== look) build();
      look = now;
    },
  };
}

function heading(column) {
  const sorted = state.sort.key === column.key;
  const sort = () => set({ sort: { key: column.key, down: sorted ? !state.sort.down : Boolean(column.number) } });
  return h(`th.sort${column.number ? ".number" : ""}`, {
    "aria-sort": sorted ? (state.sort.down ? "descending" : "ascending") : undefined, tabindex: 0, title: column.title, onclick: sort,
    onkeydown: (event) => event.key === "Enter" && sort(),
  }, column.name);
}

function columnsOf(runs) {
  const text = (value) => value ?? "";
  const columns = [
    { key: "label", name: "run", of: (run) => run.label, show: text },
    { key: "state", name: "state", of: (run) => run.state, show: (_, run) => stateOf(run) },
    { key: "started", name: "started", number: true, of: (run) => run.started, show: (at) => (at ? new Date(at).toISOString().slice(0, 16).replace("T", " ") : "") },
    { key: "step", name: "step", number: true, of: (run) => run.step, show: (step, run) => (run.total_steps ? `${number(step)} / ${number(run.total_steps)}` : number(step)) },
    { key: "seconds", name: "time", number: true, of: (run) => run.seconds, show: duration },
  ];
  if (runs.some((run) => run.tags.length)) columns.push({ key: "tags", name: "tags", of: (run) => run.tags.join(" "), show: (_, run) => run.tags.map((tag) => h("span.chip", {}, tag)) });
  const [first, rest] = [true, false].map((wanted) => metrics(runs).filter((name) => isResult(name, runs) === wanted && name !== "loss_scale"));
  columns.push(...first.map(metricColumn));
  for (const key of differing(runs).filter((name) => name !== "experiment.tags").slice(0, MAX_KEYS)) {
    columns.push({ key: `config ${key}`, name: key, number: runs.every((run) => run.config[key] === undefined || typeof run.config[key] === "number"), of: (run) => run.config[key], show: shown });
  }
  columns.push(...rest.map(metricColumn));
  return columns;
}

/** Whether a metric is one that runs are judged by. */
const isResult = (metric, runs) => /^(val|test)\//.test(metric) || runs.some((run) => run.monitor?.metric === metric);

function metricColumn(metric) {
  const mode = /loss|mse|mae|rmse|perplexity|bits_per_byte/.test(metric) ? "min" : /^(lr|grad_norm|samples_per_second)$/.test(metric) ? "" : "max";
  const title = mode ? `its ${mode === "min" ? "lowest" : "highest"} value` : "its last value";
  return { key: metric, name: metric, number: true, mode, title, of: (run) => run.metrics[metric]?.[mode || "last"], show: (value) => metricValue(metric, value) };
}

function bestOf(column, runs) {
  const values = runs.map((run) => column.of(run)).filter((value) => Number.isFinite(value));
  return values.length ? values.reduce((a, b) => (column.mode === "min" ? Math.min(a, b) : Math.max(a, b))) : undefined;
}

/** Numbers before texts, what is absent last. */
function compare(a, b) {
  const absent = (value) => value === undefined || value === null;
  if (absent(a) || absent(b)) return absent(a) - absent(b);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(shown(a)).localeCompare(String(shown(b)), "en", { numeric: true });
}
