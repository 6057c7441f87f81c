// What differs between the configurations of the ticked runs, and between their machines.

import { h, fill, tick } from "./dom.js";
import { metricValue, shown } from "./format.js";
import { colors } from "./color.js";
import { drawn, metrics, state } from "./store.js";
import { details } from "./source.js";

/** Runs beside each other at most. */
const MAX_RUNS = 10;

/** The tab of differences. */
export function compare() {
  const root = h("div");
  let all = false;
  let asked = 0;

  async function build() {
    const runs = drawn().slice(0, MAX_RUNS);
    if (runs.length < 2) {
      fill(root, h("div.empty", {}, h("b", {}, "Tick two or more runs"), "Their configurations, results and machines are compared here."));
      return;
    }
    const turn = (asked += 1);
    const machines = await Promise.all(runs.map((run) => details(run.id).then((found) => found?.environment ?? {}, () => ({}))));
    if (turn !== asked) return;
    const color = colors(state.overview.runs);
    const left = drawn().length - runs.length;
    const rows = (of) => [...new Set(of.flatMap((values) => Object.keys(values)))].sort().map((key) => [key, of.map((values) => values[key])]);
    const config = rows(runs.map((run) => run.config));
    const environment = rows(machines.map((machine) => flat(machine)));
    const results = metrics(runs).map((metric) => [metric, runs.map((run) => metricValue(metric, run.metrics[metric]?.last))]);
    const differ = ([, values]) => values.some((value) => JSON.stringify(value) !== JSON.stringify(values[0]));
    const part = (title, lines, mark) => {
      const kept = mark && !all ? lines.filter(differ) : lines;
      return [h("tr", {}, h("th", { colspan: runs.length + 1 }, title, mark && !kept.length ? ": no difference" : "")),
        kept.map((line) => h("tr", { class: mark && all && differ(line) ? "differs" : undefined }, h("td.soft", {}, line[0]), line[1].map((value) => h("td.wrap", {}, shown(value)))))];
    };
    fill(root, h("div.tools", {}, tick("also what is equal", all, (next) => {
      all = next;
      build();
    }), left > 0 && h("span", {}, `the first ${MAX_RUNS} of ${left + runs.length} ticked runs`)),
    h("div.scroll", {}, h("table", {},
      h("thead", {}, h("tr", {}, h("th"), runs.map((run) => h("th", {}, h("span.dot", { "--tint": color.of(run) }), " ", run.label)))),
      h("tbody", {}, part("Configuration", config, true), part("Last values", results, false), part("Environment", environment, true)))));
  }

  return {
    root,
    bar() {},
    update(changed) {
      if (["tab", "hidden", "filter", "overview", "theme"].some((key) => changed.has(key))) build();
    },
  };
}

/** Nested objects as one level: `machine.cpu`. */
export function flat(value, before = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return { [before]: value };
  return Object.assign({}, ...Object.entries(value).map(([key, inner]) => flat(inner, before ? `${before}.${key}` : key)));
}
