// What differs between the configurations of the ticked runs, and between their machines.

import { button, h, refill, tick } from "./dom.js";
import { saveTable } from "./export.js";
import { metricValue, shown } from "./format.js";
import { colors } from "./color.js";
import { sample } from "./panel.js";
import { drawn, metrics, state } from "./store.js";
import { details } from "./source.js";

/** Runs beside each other at most. */
const MAX_RUNS = 10;

/** The tab of differences. */
export function compare() {
  const root = h("div");
  /** The machine of each run, read once for each of its states. */
  const machines = new Map();
  let all = false;
  let asked = 0;

  const machine = (run) => {
    const key = `${run.id} ${run.state}`;
    if (!machines.has(key)) machines.set(key, details(run.id).then((found) => found?.environment ?? {}, () => ({})));
    return machines.get(key);
  };

  async function build() {
    const runs = drawn().slice(0, MAX_RUNS);
    const turn = (asked += 1);
    if (runs.length < 2) {
      refill(root, h("div.empty", {}, h("b", {}, "Tick two or more runs"), "Their configurations, results and machines are compared here."));
      return;
    }
    const environments = await Promise.all(runs.map(machine));
    if (turn !== asked) return;
    const color = colors(state.overview.runs);
    const left = drawn().length - runs.length;
    const rows = (of) => [...new Set(of.flatMap((values) => Object.keys(values)))].sort().map((key) => [key, of.map((values) => values[key])]);
    const config = rows(runs.map((run) => run.config));
    const environment = rows(environments.map((each) => flat(each)));
    const results = metrics(runs).map((metric) => [metric, runs.map((run) => metricValue(metric, run.metrics[metric]?.last))]);
    const differ = ([, values]) => values.some((value) => JSON.stringify(value) !== JSON.stringify(values[0]));
    const part = (title, lines, mark) => {
      const kept = mark && !all ? lines.filter(differ) : lines;
      return [h("tr", { key: title }, h("th", { colspan: runs.length + 1, scope: "colgroup" }, title, mark && !kept.length ? ": no difference" : "")),
        kept.map((line) => h("tr", { key: `${title} ${line[0]}`, class: mark && all && differ(line) ? "differs" : undefined }, h("td.soft", {}, line[0]), line[1].map((value) => h("td.wrap", {}, shown(value)))))];
    };
    refill(root, h("div.tools", { key: "tools" }, tick("also what is equal", all, (next) => {
      all = next;
      build();
    }), button("CSV", () => saveTable("compare", root.querySelector("table"))), left > 0 && h("span", {}, `the first ${MAX_RUNS} of ${left + runs.length} ticked runs`)),
    h("div.scroll", { key: "table", tabindex: 0, "aria-label": "Differences" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, h("span.hidden", {}, "key")), runs.map((run) => h("th", { key: run.id, scope: "col" }, sample(color.of(run)), " ", run.label)))),
      h("tbody", {}, part("Configuration", config, true), part("Last values", results, false), part("Environment", environment, true)))));
  }

  return {
    root,
    update(changed) {
      if (["tab", "ticks", "filter", "overview", "theme"].some((key) => changed.has(key))) build();
    },
  };
}

/** Nested objects as one level: `machine.cpu`. */
export function flat(value, before = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return { [before]: value };
  return Object.assign({}, ...Object.entries(value).map(([key, inner]) => flat(inner, before ? `${before}.${key}` : key)));
}
