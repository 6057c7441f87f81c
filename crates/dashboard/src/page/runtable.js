// The table of runs: their rows tick curves, their heads sort; which columns there are can be chosen.

import { button, h, refill, soon, tick } from "./dom.js";
import { saveCsv } from "./export.js";
import { duration, metricValue, number, shown, when } from "./format.js";
import { colors } from "./color.js";
import { fold, nested, stateOf, swatch } from "./list.js";
import { differing, listed, metrics, set, state } from "./store.js";

/** Columns of the configuration that are shown unless chosen otherwise. */
const MAX_KEYS = 24;
const HEIGHT = 34;

/** The tab of the table. */
export function runTable() {
  const tools = h("div.tools");
  const head = h("thead");
  const body = h("tbody");
  const scroller = h("div.scroll.runs", { tabindex: -1 }, h("table", {}, head, body));
  const root = h("div", {}, tools, scroller);
  let isNested = false;
  let sought = "";
  let [rows, columns, color, best] = [[], [], null, new Map()];

  function build() {
    const runs = listed();
    const all = columnsOf(runs);
    columns = state.columns ? state.columns.map((key) => all.find((column) => column.key === key)).filter(Boolean) : all.filter((column) => column.isUsual);
    if (!columns.some((column) => column.key === "label")) columns.unshift(all[0]);
    const by = all.find((column) => column.key === state.sort.key) ?? all.find((column) => column.key === "started");
    const sign = state.sort.down ? -1 : 1;
    const sorted = [...runs].sort((a, b) => compare(by.of(a), by.of(b), sign));
    rows = isNested ? nested(sorted) : sorted.map((run) => ({ run }));
    color = colors(state.overview.runs);
    best = new Map(columns.filter((column) => column.mode).map((column) => [column.key, bestValue(column, runs)]));
    refill(tools, h("span", {}, `${runs.length} run${runs.length === 1 ? "" : "s"}`),
      state.overview.sweeps.length > 0 && tick("trials under their sweep", isNested, (next) => {
        isNested = next;
        build();
      }),
      chooser(all), button("CSV", () => saveCsv("runs", [columns.map((column) => column.name), ...sorted.map((run) => columns.map((column) => column.csv?.(run) ?? column.of(run)))]), { title: "Save these columns of all listed runs" }));
    refill(head, h("tr", {}, h("th", { scope: "col" }, h("span.hidden", {}, "drawn")), columns.map(heading)));
    draw();
  }

  function draw() {
    const first = Math.max(0, Math.floor(scroller.scrollTop / HEIGHT) - 8);
    const last = Math.min(rows.length, Math.ceil((scroller.scrollTop + innerHeight) / HEIGHT) + 8);
    const room = (key, count) => count > 0 && h("tr.room", { key, "aria-hidden": "true" }, h("td", { colspan: columns.length + 1, style: { height: `${count * HEIGHT}px` } }));
    refill(body, room("above", first), rows.slice(first, last).map((item) => (item.sweep ? sweepRow(item) : row(item))), room("below", rows.length - last));
    if (!rows.length) refill(body, h("tr", {}, h("td", { colspan: columns.length + 1 }, "No run passes the filter.")));
  }

  function row({ run, isTrial }) {
    return h("tr", {
      key: run.id, class: `${run.id === state.focus ? "focus" : ""}${isTrial ? " trial" : ""}` || undefined, "data-run": run.id,
      onclick: () => set({ focus: run.id }), ondblclick: () => set({ focus: run.id, tab: "run" }),
    }, h("td", {}, swatch(run, color.of(run))), columns.map((column) => {
      const value = column.of(run);
      const isBest = rows.length > 1 && value !== undefined && value !== null && best.get(column.key) === value;
      const text = column.show(value, run);
      return h(`td${column.number ? ".number" : ""}${column.key === "label" ? ".name" : ""}${isBest ? ".best" : ""}`, { title: typeof text === "string" && text.length > 30 ? text : undefined },
        column.key === "label" ? h("button.link", { type: "button", onclick: (event) => event.detail === 0 && set({ focus: run.id, tab: "run" }) }, text) : text);
    }));
  }

  function sweepRow({ sweep, trials, isOpen }) {
    return h("tr.sweep", { key: `sweep ${sweep}`, onclick: () => fold(sweep) }, h("td"), columns.map((column) => {
      if (column.key === "label") return h("td.name", {}, h("button.link", { type: "button", "aria-expanded": String(isOpen) }, `${isOpen ? "▾" : "▸"} ${sweep} (${trials.length})`));
      return h(`td${column.number ? ".number" : ""}`, {}, column.mode ? column.show(bestValue(column, trials) ?? null, trials[0]) : "");
    }));
  }

  function chooser(all) {
    const chosen = new Set(columns.map((column) => column.key));
    const fits = (column) => column.name.toLowerCase().includes(sought.toLowerCase());
    return h("details.chooser", { key: "columns" }, h("summary", {}, `Columns (${columns.length} of ${all.length})`), h("div.drop", {},
      h("input", { type: "text", placeholder: "search", "aria-label": "Search for columns", value: sought, oninput: (event) => {
        sought = event.target.value;
        build();
      } }),
      h("div.choices", {}, all.filter(fits).map((column) => h("label", { key: column.key }, h("input", { type: "checkbox", checked: chosen.has(column.key), disabled: column.key === "label", onchange: (event) => {
        const keys = columns.map((each) => each.key);
        set({ columns: event.target.checked ? [...keys, column.key] : keys.filter((key) => key !== column.key) });
      } }), column.name))),
      button("as usual", () => set({ columns: null }))));
  }

  scroller.addEventListener("scroll", soon(draw));
  return {
    root,
    update(changed) {
      if (["tab", "overview", "filter", "ticks", "sort", "columns", "color", "colorBy", "group", "theme", "folds", "focus"].some((key) => changed.has(key))) build();
    },
  };
}

function heading(column) {
  const isSorted = state.sort.key === column.key;
  const sort = () => set({ sort: { key: column.key, down: isSorted ? !state.sort.down : Boolean(column.number) } });
  return h(`th.sort${column.number ? ".number" : ""}`, { key: column.key, scope: "col", "aria-sort": isSorted ? (state.sort.down ? "descending" : "ascending") : undefined, title: column.title },
    h("button.link", { type: "button", onclick: sort }, column.name));
}

function columnsOf(runs) {
  const text = (value) => value ?? "";
  const columns = [
    { key: "label", name: "run", of: (run) => run.label, show: text, isUsual: true },
    { key: "state", name: "state", of: (run) => run.state, show: (_, run) => stateOf(run), isUsual: true },
    { key: "started", name: "started", number: true, of: (run) => run.started, show: (at) => when(at).slice(0, 16), csv: (run) => when(run.started), isUsual: true },
    { key: "step", name: "step", number: true, of: (run) => run.step, show: (step, run) => (run.total_steps ? `${number(step)} / ${number(run.total_steps)}` : number(step)), isUsual: true },
    { key: "seconds", name: "time", number: true, of: (run) => run.seconds, show: duration, isUsual: true },
    { key: "updated", name: "last update", number: true, of: (run) => run.updated, show: (at) => when(at).slice(0, 16), csv: (run) => when(run.updated) },
    { key: "devices", name: "devices", of: (run) => run.devices.join(" "), show: text },
    { key: "reason", name: "reason", of: (run) => run.reason ?? "", show: text },
  ];
  columns.push({ key: "tags", name: "tags", of: (run) => run.tags.join(" "), show: (_, run) => run.tags.map((tag) => h("span.chip", {}, tag)), isUsual: runs.some((run) => run.tags.length) });
  const [first, rest] = [true, false].map((wanted) => metrics(runs).filter((name) => isResult(name, runs) === wanted && name !== "loss_scale"));
  columns.push(...first.map(metricColumn));
  const differs = differing(runs).filter((name) => name !== "experiment.tags");
  const keys = new Set(differs);
  for (const key in runs[0]?.config) keys.add(key);
  [...keys].forEach((key, index) => {
    const isNumber = runs.every((run) => run.config[key] === undefined || typeof run.config[key] === "number");
    columns.push({ key: `config ${key}`, name: key, number: isNumber, of: (run) => run.config[key], show: shown, isUsual: index < Math.min(differs.length, MAX_KEYS) });
  });
  columns.push(...rest.map(metricColumn));
  return columns;
}

/** Whether a metric is one that runs are judged by. */
const isResult = (metric, runs) => /^(val|test)\//.test(metric) || runs.some((run) => run.monitor?.metric === metric);

function metricColumn(metric) {
  const mode = /loss|mse|mae|rmse|perplexity|bits_per_byte/.test(metric) ? "min" : /^(lr|grad_norm|samples_per_second)$/.test(metric) ? "" : "max";
  const title = mode ? `its ${mode === "min" ? "lowest" : "highest"} value` : "its last value";
  return { key: metric, name: metric, number: true, mode, title, of: (run) => run.metrics[metric]?.[mode || "last"], show: (value) => metricValue(metric, value), isUsual: true };
}

function bestValue(column, runs) {
  const values = runs.map((run) => column.of(run)).filter((value) => Number.isFinite(value));
  return values.length ? values.reduce((a, b) => (column.mode === "min" ? Math.min(a, b) : Math.max(a, b))) : undefined;
}

/** Numbers before texts; what is absent last, however it is sorted. */
function compare(a, b, sign) {
  const isAbsent = (value) => value === undefined || value === null || value === "";
  if (isAbsent(a) || isAbsent(b)) return isAbsent(a) - isAbsent(b);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(shown(a)).localeCompare(String(shown(b)), "en", { numeric: true });
}
