// One chart of a metric, with its tip, its tools and its numbers as a table.

import { button, fill, h, refill } from "./dom.js";
import { chart } from "./chart.js";
import { dashOf, tint } from "./color.js";
import { saveCsv, savePng } from "./export.js";
import { duration, isShare, metricValue, number, short } from "./format.js";
import { at } from "./grid.js";
import { set, state } from "./store.js";

/** Lines that a tip lists, columns and rows of a table at most. */
const MAX_TIPS = 9;
const MAX_COLUMNS = 20;
const MAX_ROWS = 100;

/** A line as legends show it: its colour and its dash. */
export function sample(slot) {
  return h("svg.sample", { viewBox: "0 0 22 8", "aria-hidden": "true" }, h("line", { x1: 0, x2: 22, y1: 4, y2: 4, "--tint": tint(slot), "stroke-dasharray": dashOf(slot).join(" ") || undefined }));
}

/** A chart of `metric`; `draw(lines, [from, to])` shows lines `{id, name, slot, x, y, faint, low, high}`. */
export function panel(metric, enlarge) {
  const note = h("span.note");
  const tip = h("div.tip", { hidden: true });
  const tools = h("span.panel-tools");
  const numbers = h("div.numbers.scroll", { hidden: true, tabindex: 0 });
  const sayX = (x) => (state.x === "time" ? duration(x) : short(x));
  const exactX = (x) => `${state.x} ${state.x === "time" ? duration(x) : number(state.x === "step" ? Math.round(x) : x)}`;
  const sayY = (y) => (isShare(metric) ? `${short(Number((100 * y).toPrecision(6)))} %` : short(y));
  let lines = [];
  let beyond = 0;

  const plot = chart(metric, {
    hover: show,
    drawn: (known) => {
      beyond = known.above + known.below;
      buttons(known);
    },
    zoom: ({ x, y }) => set({ ...(x && { zoom: x }), ...(y && { zoomY: { ...state.zoomY, [metric]: y } }) }),
    reset: () => set({ zoom: null, zoomY: {} }),
    hot: (id) => id !== state.hot && set({ hot: id }),
    pick: (id) => state.byId.has(id) && set({ focus: id }),
    follow: (x) => {
      const main = lines.filter((line) => !line.faint);
      const hot = main.find((line) => line.id === state.hot) ?? (main.length === 1 ? main[0] : null);
      const value = hot && x !== null ? at(hot, x) : null;
      fill(note, value === null ? "" : metricValue(metric, value));
    },
  });
  const root = h("section.panel", { "data-metric": metric, "aria-label": metric }, h("header", {}, h("h2", {}, metric), note, tools), plot.root, numbers, tip);

  function buttons(known = {}) {
    const words = known.above || known.below ? `${beyond} beyond` : "";
    const isOpen = !numbers.hidden;
    refill(tools,
      (words || state.outliers) && button(state.outliers ? "leave out" : words, () => set({ outliers: !state.outliers }), {
        "aria-pressed": String(state.outliers), title: state.outliers ? "Leave out points far from all others" : `Points from ${number(known.lowest)} to ${number(known.highest)} are marked at the edge; show them in full`,
      }),
      button("table", () => {
        numbers.hidden = isOpen;
        plot.root.hidden = !isOpen;
        table();
        buttons(known);
        if (isOpen) plot.redraw();
      }, { "aria-pressed": String(isOpen), title: "The numbers as a table", "aria-label": `Table of ${metric}` }),
      button("CSV", () => saveCsv(metric, [["run", state.x, metric], ...lines.filter((line) => !line.faint).flatMap((line) => line.x.map((x, index) => [line.name, x, line.y[index]]))]), { title: "Save the points that are drawn", "aria-label": `Save ${metric} as CSV` }),
      button("PNG", () => savePng(metric, plot, lines), { title: "Save the chart", "aria-label": `Save ${metric} as PNG` }),
      enlarge && button("⤢", enlarge, { title: "Enlarge", "aria-label": `Enlarge ${metric}` }));
  }

  function table() {
    if (numbers.hidden) return;
    const main = lines.filter((line) => !line.faint);
    const shown = main.slice(0, MAX_COLUMNS);
    const all = [...new Set(shown.flatMap((line) => line.x))].sort((a, b) => a - b);
    const stride = Math.max(1, Math.ceil(all.length / MAX_ROWS));
    const xs = all.filter((_, index) => index % stride === 0 || index === all.length - 1);
    const left = main.length - shown.length;
    refill(numbers, h("table", {}, h("thead", {}, h("tr", {}, h("th.number", {}, state.x), shown.map((line) => h("th.number", {}, line.name)))),
      h("tbody", {}, xs.map((x) => h("tr", {}, h("td.number", {}, state.x === "time" ? duration(x) : number(x)), shown.map((line) => h("td.number", {}, metricValue(metric, line.x.length && x >= line.x[0] && x <= line.x.at(-1) ? at(line, x) : null))))))),
    (left > 0 || stride > 1) && h("p.soft", {}, `${stride > 1 ? `Every ${stride}th row. ` : ""}${left > 0 ? `The first ${MAX_COLUMNS} of ${main.length} runs. ` : ""}CSV has all points.`));
  }

  function draw(next, [from, to]) {
    lines = next;
    const main = lines.filter((line) => !line.faint);
    plot.draw({
      lines, from, to, sayX, sayY, logX: state.logX, logY: state.logY, y: state.zoomY[metric], isTime: state.x === "time", isWholeX: state.x === "step",
      isWhole: state.outliers, limits: isShare(metric) ? [-0.02, 1] : null,
    });
    if (!main.length) fill(note, "no points yet");
    else if (note.textContent === "no points yet") fill(note);
    plot.describe(`${metric} of ${main.length} run${main.length === 1 ? "" : "s"}; left and right read its points`);
    table();
    if (!tools.firstChild) buttons();
  }

  /** The tip: each line with the value of its nearest point, and the step of that point. */
  function show(near, place) {
    if (!place || !near.length) {
      tip.hidden = true;
      fill(note);
      return;
    }
    const x = near[0].line.x[near[0].index];
    const listed = near.slice(0, MAX_TIPS).sort((a, b) => b.line.y[b.index] - a.line.y[a.index]);
    const more = near.length - listed.length;
    fill(note, metricValue(metric, near[0].line.y[near[0].index]));
    refill(tip, h("div.x", {}, exactX(x)),
      listed.map(({ line, index }) => h(`div${line === near[0].line ? ".nearest" : ""}`, {}, sample(line.slot), h("span.name", {}, line.name), line.x[index] !== x && h("span.soft", {}, `at ${sayX(line.x[index])}`), h("span.v", {}, metricValue(metric, line.y[index])))),
      more > 0 && h("div.x", {}, `and ${more} more`));
    tip.hidden = false;
    const box = root.getBoundingClientRect();
    const over = plot.root.getBoundingClientRect();
    const right = over.left - box.left + place.x + 16;
    tip.style.left = `${right + tip.offsetWidth > box.width ? Math.max(right - tip.offsetWidth - 32, 4) : right}px`;
    tip.style.top = `${Math.min(over.top - box.top + place.y + 12, box.height - tip.offsetHeight - 4)}px`;
  }

  return { root, draw, highlight: plot.highlight, metric, forget: plot.forget };
}
