// One chart: the curves of a metric, drawn by uPlot.

import { h, fill, soon } from "./dom.js";
import { duration, metricValue, number, short, isShare } from "./format.js";
import { ink, faded } from "./color.js";
import { table, nearest } from "./grid.js";
import { set, state } from "./store.js";

/** Runs that a tip lists at most. */
const MAX_TIPS = 9;

/** A chart of `metric`; `draw(lines, from, to)` shows lines `{id, name, color, x, y, faint, band}`. */
export function panel(metric, enlarge) {
  const plot = h("div.plot");
  const note = h("span.note");
  const tip = h("div.tip", { hidden: true });
  const button = h("button", { type: "button", title: "Enlarge", "aria-label": `Enlarge ${metric}`, onclick: enlarge }, "⤢");
  const root = h("section.panel", { "data-metric": metric, "aria-label": metric }, h("header", {}, h("h2", {}, metric), note, button), plot, tip);
  let chart = null;
  let shape = "";
  let lines = [];
  let current = [0, 1];

  const size = () => ({ width: Math.max(plot.clientWidth, 120), height: Math.max(plot.clientHeight, 120) });
  new ResizeObserver(soon(() => chart?.setSize(size()))).observe(plot);

  function draw(next, range) {
    lines = next;
    current = range;
    const shown = lines.length > 0;
    const data = table(lines, range[0], range[1], size().width);
    if (state.logY) clip(data);
    const wanted = JSON.stringify([lines.map((line) => [line.key, line.color, line.faint]), state.x, state.logX, state.logY, ink("ink")]);
    if (chart && wanted === shape) {
      chart.setData(data, false);
      chart.setScale("x", { min: range[0], max: range[1] });
      return;
    }
    chart?.destroy();
    chart = null;
    shape = wanted;
    fill(note, shown ? "" : "no points yet");
    if (shown) chart = new uPlot(options(lines, range), data, plot);
  }

  function options(of, range) {
    const axis = { stroke: ink("soft"), grid: { stroke: ink("grid"), width: 1 }, ticks: { stroke: ink("line"), width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
    const alone = of.length <= 2;
    return {
      ...size(),
      legend: { show: false },
      focus: { alpha: 0.18 },
      cursor: {
        dataIdx: (u, series, index) => nearby(u.data[series], index),
        focus: { prox: of.length > 1 ? 24 : -1, dist: (u, index, at, line, pointer) => distance(u, lines[index - 1], line - pointer) },
        drag: { x: true, y: false, setScale: false },
        sync: { key: "runs", scales: ["x", null], setSeries: false },
        points: { size: 7, width: 2 },
        bind: { dblclick: () => () => set({ zoom: null }) },
      },
      scales: {
        x: { time: false, distr: state.logX ? 3 : 1, range: () => state.zoom ?? current },
        y: { distr: state.logY ? 3 : 1, range: state.logY ? undefined : (u, low, high) => roomy(low, high) },
      },
      axes: [
        { ...axis, space: 64, size: 30, gap: 3, values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : state.x === "time" ? duration(tick) : short(tick))) },
        { ...axis, size: 52, gap: 3, values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : isShare(metric) ? `${short(100 * tick)} %` : short(tick))) },
      ],
      series: [{}, ...of.map((line) => ({
        label: line.name,
        stroke: line.faint ? faded(line.color, line.faint) : line.color,
        width: line.faint ? 1 : alone ? 1.8 : 1.4,
        spanGaps: false,
        points: { show: line.x.length < 3 || undefined, size: 5 },
      }))],
      bands: of.flatMap((line, index) => (line.band ? [{ series: [index + 1, index + 2], fill: faded(line.color, 0.14) }] : [])),
      hooks: {
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          const zoom = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          set({ zoom });
        }],
        setCursor: [(u) => show(u)],
        setSeries: [(u, index, what) => {
          if (what.focus === undefined || !u.over.matches(":hover")) return;
          const hot = index === null ? null : lines[index - 1]?.id ?? null;
          if (hot !== state.hot) set({ hot });
        }],
      },
    };
  }

  function show(u) {
    const { left, top } = u.cursor;
    const outside = left < 0 || left === null || left === undefined;
    const x = outside ? null : u.posToVal(left, "x");
    const hot = lines.find((line) => line.id === state.hot && !line.faint) ?? (lines.filter((line) => !line.faint).length === 1 ? lines.find((line) => !line.faint) : null);
    fill(note, hot && x !== null ? metricValue(metric, value(hot, x)) : "");
    if (outside || !u.over.matches(":hover")) {
      tip.hidden = true;
      return;
    }
    const y = u.posToVal(top, "y");
    const near = lines.filter((line) => !line.faint && !line.edge && line.x.length && x >= line.x[0] && x <= line.x[line.x.length - 1])
      .map((line) => ({ line, y: value(line, x) }))
      .filter((each) => each.y !== null)
      .sort((a, b) => Math.abs(a.y - y) - Math.abs(b.y - y));
    const listed = near.slice(0, MAX_TIPS).sort((a, b) => b.y - a.y);
    const more = near.length - listed.length;
    fill(tip, h("div.x", {}, `${state.x} ${state.x === "time" ? duration(x) : number(state.x === "step" ? Math.round(x) : x)}`),
      listed.map((each) => h("div", { "--tint": each.line.color }, h("span.dot"), h("span.name", {}, each.line.name), h("span.v", {}, metricValue(metric, each.y)))),
      more > 0 && h("div.x", {}, `and ${more} more`));
    tip.hidden = listed.length === 0;
    const box = root.getBoundingClientRect();
    const over = u.over.getBoundingClientRect();
    const right = over.left - box.left + left + 16;
    tip.style.left = `${right + tip.offsetWidth > box.width ? Math.max(right - tip.offsetWidth - 32, 4) : right}px`;
    tip.style.top = `${Math.min(over.top - box.top + top + 12, box.height - tip.offsetHeight - 4)}px`;
  }

  /** Brings out the line of one run. */
  function highlight(id) {
    if (!chart || chart.over.matches(":hover")) return;
    const index = lines.findIndex((line) => line.id === id && !line.faint);
    chart.setSeries(index < 0 ? null : index + 1, { focus: true });
  }

  return { root, draw, highlight, metric, plot, image: () => chart?.ctx.canvas };
}

/** How far the pointer is from a line; in charts where it is not, only the line that is brought out is near. */
function distance(u, line, own) {
  if (u.over.matches(":hover")) return own;
  return line && line.id === state.hot && !line.faint ? 0 : Infinity;
}

/** The point of a column that is nearest to `index`; a line that is over there has none. */
function nearby(column, index) {
  let [before, after] = [index, index];
  while (before > 0 && column[before] === undefined) before -= 1;
  while (after < column.length - 1 && column[after] === undefined) after += 1;
  if (column[before] === undefined || column[after] === undefined) return index;
  return index - before < after - index ? before : after;
}

const value = (line, x) => line.y[nearest(line.x, x)] ?? null;

/** What a logarithm cannot show is absent. */
function clip(data) {
  for (const column of data.slice(1)) column.forEach((y, index) => { if (y !== undefined && !(y > 0)) column[index] = null; });
}

function roomy(low, high) {
  if (low === null || high === null) return [0, 1];
  // What differs by rounding alone is drawn as the constant that it is.
  const spread = high - low > 1e-9 * Math.abs(high) ? high - low : Math.abs(high) || 1;
  const room = spread * 0.06;
  return [low - room, high + room];
}
