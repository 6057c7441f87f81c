// Everything about one run.

import { button, h, own, refill } from "./dom.js";
import { bytes, clock, day, duration, metricValue, number, shown, when } from "./format.js";
import { tint } from "./color.js";
import { flat } from "./compare.js";
import { axisTools, panelGrid, resetZoom } from "./curves.js";
import { evaluation } from "./evaluation.js";
import { saveCsv } from "./export.js";
import { stateOf } from "./list.js";
import { logCard } from "./log.js";
import { phasesCard, usageCard } from "./ranks.js";
import { metrics, set, state } from "./store.js";
import { details } from "./source.js";

const MAX_PARTS = 12;

/** The run that the tab is about; the newest where none was chosen, none where the chosen one is not there. */
const current = () => (state.focus ? state.byId.get(state.focus) : state.overview.runs[0]);

/** The tab of one run. */
export function runPage() {
  const root = h("div");
  const usage = usageCard();
  const log = logCard();
  const curves = panelGrid(() => [current()].filter(Boolean), true);
  let asked = 0;
  let found = null;
  let of = null;

  async function read() {
    const run = current();
    const turn = (asked += 1);
    if (!run) return build();
    if (of !== run.id) [found, of] = [null, run.id];
    if (!found) build();
    const answer = await details(run.id).catch((error) => ({ problem: error.message }));
    if (turn !== asked) return undefined;
    found = answer;
    build();
    if (found?.ranks?.length) log.show(run, found.ranks);
    return undefined;
  }

  function build() {
    const run = current();
    if (!run) {
      refill(root, missing());
      return;
    }
    const events = eventsCard(found);
    const hasUsage = usage.show(found?.ranks_told?.usage);
    refill(root, heading(run), found?.problem && h("div.card.problem", { key: "problem" }, found.problem), run.problem && h("div.card.problem", { key: "own problem" }, run.problem),
      found?.failure && h("div.card.failure", { key: "failure" }, h("h2", {}, "Why it failed"), h("pre", {}, found.failure)),
      h("div.cards", { key: "cards" }, factsCard(run, found), metricsCard(run), phasesCard(found, new Set((found?.stragglers ?? []).map((each) => each.rank))), stragglersCard(found), resourcesCard(run, found)),
      run.series.length > 0 && h("div.tools.apart", { key: "tools" }, axisTools(), resetZoom()), own(curves.root),
      hasUsage && own(usage.root), found?.ranks?.length > 0 && own(log.root), events,
      (found?.evaluations ?? []).map(evaluation),
      table("Configuration", run.config), found?.environment && table("Environment", flat(found.environment)));
  }

  return {
    root,
    update(changed) {
      const run = current();
      const isNews = changed.has("overview") && (!state.fresh || !run || state.fresh.has(run.id));
      if (changed.has("tab") || changed.has("focus") || isNews) read();
      else if (["theme", "x", "logX", "logY", "smooth", "zoom", "zoomY"].some((key) => changed.has(key))) build();
      if (run) curves.update(changed);
    },
  };
}

/** What there is to say without a run. */
function missing() {
  if (!state.overview.runs.length && !state.focus) return h("div.empty", { key: "none" }, h("b", {}, "No run yet"), "A run that you choose on the left is shown here.");
  if (state.overview.unread > 0) return h("div.empty", { key: "unread" }, h("b", {}, "Runs are still being read"), h("code", {}, state.focus));
  return h("div.empty", { key: "missing" }, h("b", {}, "This run is not there any more"), h("p", {}, h("code", {}, state.focus)), h("p", {}, "It was deleted or moved, or belongs to another folder than the served one."),
    button("Show the newest run", () => set({ focus: null })));
}

function heading(run) {
  return h("div.title", { key: "title" }, h("h1", {}, run.label), stateOf(run), run.tags.map((tag) => h("span.chip", {}, tag)), h("span.soft", {}, run.reason ?? ""),
    run.sweep && button(`Sweep ${run.sweep}`, () => set({ tab: "sweep", sweep: run.sweep })));
}

function factsCard(run, found) {
  const facts = [
    ["Step", run.total_steps ? `${number(run.step)} of ${number(run.total_steps)}` : number(run.step)],
    ["Epoch", run.epochs ? `${run.epoch} of ${run.epochs}` : String(run.epoch)],
    ["Duration", duration(run.seconds)],
    ["Time left", run.state === "running" && run.total_steps && run.step > 0 ? `about ${duration((run.seconds / run.step) * (run.total_steps - run.step))}` : ""],
    ["Started", when(run.started)],
    ["Last update", when(run.updated)],
    ["Devices", run.devices.join(", ")],
    ["Folder", run.folder],
    ["ddprun", found?.version],
  ];
  return h("section.card", { key: "facts" }, h("h2", {}, "Run"), h("dl.facts", {}, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", { key: `t ${name}` }, name), h("dd", { key: `d ${name}` }, value)])),
    found?.arithmetic?.length > 0 && h("pre.soft", {}, `\n${found.arithmetic.join("\n")}`));
}

function metricsCard(run) {
  const names = metrics([run]).filter((name) => run.metrics[name]);
  if (!names.length) return null;
  const columns = ["last", "min", "max"];
  return h("section.card", { key: "metrics" }, h("header", {}, h("h2", {}, "Metrics"), h("span.panel-tools", {}, button("CSV", () => saveCsv(`${run.run}-metrics`, [["metric", "last", "lowest", "highest"], ...names.map((name) => [name, ...columns.map((which) => run.metrics[name][which])])])))),
    h("table", {}, h("thead", {}, h("tr", {}, ["metric", "last", "lowest", "highest"].map((name, index) => h(`th${index ? ".number" : ""}`, { scope: "col" }, name)))),
      h("tbody", {}, names.map((name) => h("tr", { key: name }, h("td", {}, name, run.monitor?.metric === name && h("span.soft", {}, "  ranks checkpoints")), columns.map((which) => h("td.number", {}, metricValue(name, run.metrics[name][which]))))))));
}

/** For whom the others waited. */
function stragglersCard(found) {
  const all = found?.stragglers ?? [];
  if (!all.length) return null;
  const last = all.slice(-MAX_PARTS).reverse();
  const most = Math.max(...last.map((each) => each.lag_seconds));
  return h("section.card", { key: "stragglers", "data-card": "stragglers" }, h("h2", {}, "Ranks that the others waited for"), h("table", {}, h("thead", {}, h("tr", {}, ["rank", "up to step", "lag per step", "", "of it for its data"].map((name) => h("th", { scope: "col" }, name || h("span.hidden", {}, "beside the longest"))))),
    h("tbody", {}, last.map((each) => h("tr", {}, h("td", {}, String(each.rank)), h("td", {}, number(each.step)), h("td", {}, `${duration(each.lag_seconds)} of ${duration(each.step_seconds)}`),
      h("td", {}, h("div.bar", {}, h("i", { "--tint": tint(1), style: { width: `${(100 * each.lag_seconds) / most}%` } }))), h("td", {}, duration(each.data_seconds)))))));
}

/** Memory and speed; of a run that goes on also its processes. */
function resourcesCard(run, found) {
  const facts = [
    ["peak memory of rank 0", found?.peak_memory ? bytes(found.peak_memory) : ""],
    ["samples per second", number(run.metrics.samples_per_second?.last)],
  ].filter(([, value]) => value);
  const processes = found?.processes ?? [];
  if (!facts.length && !processes.length) return null;
  return h("section.card", { key: "resources", "data-card": "resources" }, h("h2", {}, "Resources"), h("dl.facts", {}, facts.map(([name, value]) => [h("dt", { key: `t ${name}` }, name), h("dd", { key: `d ${name}` }, value)])),
    processes.length > 0 && h("table", {}, h("thead", {}, h("tr", {}, ["process", "pid", "CPU", "memory", "threads"].map((name, index) => h(`th${index ? ".number" : ""}`, { scope: "col" }, name)))),
      h("tbody", {}, processes.map((each) => h("tr", { key: each.pid }, h("td", {}, each.name), h("td.number", {}, String(each.pid)), h("td.number", {}, each.cpu === null ? "" : `${Math.round(100 * each.cpu)} %`), h("td.number", {}, bytes(each.memory)), h("td.number", {}, String(each.threads)))))));
}

function eventsCard(found) {
  const events = found?.events ?? [];
  if (!events.length) return null;
  const first = day(events[0].time);
  const isOneDay = events.every((each) => day(each.time) === first);
  return h("section.card.whole", { key: "events" }, h("h2", {}, "Events"), isOneDay && h("p.soft", {}, first), h("div.log", { tabindex: 0, role: "log", "aria-label": "Events", "aria-live": "off" },
    h("pre", {}, events.map((each, index) => h("span", { key: `${each.time} ${index}` }, `${isOneDay ? clock(each.time) : when(each.time)}  ${each.text}\n`)).reverse())));
}

function table(title, values) {
  const keys = Object.keys(values).filter((key) => values[key] !== null).sort();
  if (!keys.length) return null;
  return h("section.card", { key: title }, h("h2", {}, title), h("table", {}, h("tbody", {}, keys.map((key) => h("tr", { key }, h("th.soft", { scope: "row" }, key), h("td.wrap", {}, shown(values[key])))))));
}
