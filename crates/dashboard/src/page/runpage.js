// Everything about one run.

import { h, fill, choice } from "./dom.js";
import { bytes, duration, metricValue, number, shown } from "./format.js";
import { tint } from "./color.js";
import { flat } from "./compare.js";
import { evaluation } from "./evaluation.js";
import { stateOf } from "./list.js";
import { phasesCard, usageCard } from "./ranks.js";
import { metrics, set, state } from "./store.js";
import { details, log } from "./source.js";

const LINES = 300;
const MAX_PARTS = 12;

/** The tab of one run. */
export function runPage() {
  const root = h("div");
  let rank = 0;
  let words = "";
  let asked = 0;
  let before = "";
  const usage = usageCard();

  async function build() {
    const run = state.byId.get(state.focus) ?? state.overview.runs[0];
    if (!run) {
      fill(root, h("div.empty", {}, h("b", {}, "No run yet"), "A run that you choose on the left is shown here."));
      return;
    }
    if (before !== run.id) rank = 0;
    before = run.id;
    const turn = (asked += 1);
    const found = await details(run.id).catch((error) => ({ problem: error.message }));
    if (turn !== asked) return;
    const lines = logCard(run, found);
    fill(root, heading(run), found?.problem && h("div.card.problem", {}, found.problem),
      found?.failure && h("div.card.failure", {}, h("h2", {}, "Why it failed"), h("pre", {}, found.failure)),
      h("div.cards", {}, factsCard(run, found), metricsCard(run), phasesCard(found, new Set((found?.stragglers ?? []).map((each) => each.rank))), stragglersCard(found), resourcesCard(run, found), eventsCard(found)), usage.show(found?.ranks_told?.usage), lines,
      (found?.evaluations ?? []).map((each) => evaluation(each)),
      table("Configuration", run.config), found?.environment && table("Environment", flat(found.environment)));
  }

  function logCard(run, found) {
    const ranks = found?.ranks ?? [];
    if (!ranks.length) return null;
    if (!ranks.includes(rank)) rank = ranks[0];
    const place = h("div.log", { tabindex: 0, "aria-label": "Log" });
    const read = async () => {
      const said = await log(run.id, rank, LINES).catch((error) => ({ lines: [error.message], size: 0 }));
      show(place, said, words);
      place.scrollTop = place.scrollHeight;
    };
    read();
    return h("section.card", { "data-card": "log" }, h("h2", {}, "Log"), h("div.tools", {},
      choice("Rank", ranks.map((each) => [String(each), String(each)]), String(rank), (next) => {
        rank = Number(next);
        read();
      }),
      h("input", { type: "text", value: words, placeholder: "search", "aria-label": "Search in the log", oninput: (event) => {
        words = event.target.value;
        read();
      } })), place);
  }

  return {
    root,
    bar() {},
    update(changed) {
      if (["tab", "focus", "overview", "theme"].some((key) => changed.has(key)) && !root.contains(document.activeElement)) build();
      else if (changed.has("focus") || changed.has("tab")) build();
    },
  };
}

function show(place, said, words) {
  const cut = said.size > said.lines.join("\n").length + said.lines.length;
  fill(place, h("pre", {}, cut && `… the last ${said.lines.length} lines of ${bytes(said.size)}\n`,
    said.lines.map((line) => (words && line.toLowerCase().includes(words.toLowerCase()) ? h("span.hit", {}, `${line}\n`) : `${line}\n`))));
}

function heading(run) {
  return h("div.title", {}, h("h1", {}, run.label), stateOf(run), run.tags.map((tag) => h("span.chip", {}, tag)), h("span.soft", {}, run.reason ?? ""),
    run.sweep && h("button.icon", { type: "button", title: `To the sweep ${run.sweep}`, onclick: () => set({ tab: "sweep", sweep: run.sweep }) }, "⤴"));
}

function factsCard(run, found) {
  const of = (milliseconds) => (milliseconds ? new Date(milliseconds).toLocaleString() : "");
  const facts = [
    ["step", run.total_steps ? `${number(run.step)} of ${number(run.total_steps)}` : number(run.step)],
    ["epoch", run.epochs ? `${run.epoch} of ${run.epochs}` : String(run.epoch)],
    ["time", duration(run.seconds)],
    ["started", of(run.started)],
    ["last words", of(run.updated)],
    ["devices", run.devices.join(", ")],
    ["folder", run.folder],
    ["ddprun", found?.version],
  ];
  return h("section.card", {}, h("h2", {}, "Run"), h("dl.facts", {}, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    found?.arithmetic?.length > 0 && h("pre.soft", {}, `\n${found.arithmetic.join("\n")}`));
}

function metricsCard(run) {
  const names = metrics([run]).filter((name) => run.metrics[name]);
  if (!names.length) return null;
  return h("section.card", {}, h("h2", {}, "Metrics"), h("table", {}, h("thead", {}, h("tr", {}, ["", "last", "lowest", "highest"].map((name, index) => h(`th${index ? ".number" : ""}`, {}, name)))),
    h("tbody", {}, names.map((name) => h("tr", {}, h("td", {}, name, run.monitor?.metric === name && h("span.soft", {}, "  ranks checkpoints")), ["last", "min", "max"].map((which) => h("td.number", {}, metricValue(name, run.metrics[name][which]))))))));
}

/** For whom the others waited. */
function stragglersCard(found) {
  const all = found?.stragglers ?? [];
  if (!all.length) return null;
  const last = all.slice(-MAX_PARTS).reverse();
  const most = Math.max(...last.map((each) => each.lag_seconds));
  return h("section.card", { "data-card": "stragglers" }, h("h2", {}, "Ranks that the others waited for"), h("table", {}, h("thead", {}, h("tr", {}, ["rank", "up to step", "lag per step", "", "of it for its data"].map((name) => h("th", {}, name)))),
    h("tbody", {}, last.map((each) => {
      const bar = h("i", { "--tint": tint(1) });
      bar.style.width = `${(100 * each.lag_seconds) / most}%`;
      return h("tr", {}, h("td", {}, String(each.rank)), h("td", {}, number(each.step)), h("td", {}, `${duration(each.lag_seconds)} of ${duration(each.step_seconds)}`), h("td", {}, h("div.bar", {}, bar)), h("td", {}, duration(each.data_seconds)));
    }))));
}

/** Memory and speed; of a run that goes on also its processes. */
function resourcesCard(run, found) {
  const facts = [
    ["peak memory of rank 0", found?.peak_memory ? bytes(found.peak_memory) : ""],
    ["samples per second", number(run.metrics.samples_per_second?.last)],
  ].filter(([, value]) => value);
  const processes = found?.processes ?? [];
  if (!facts.length && !processes.length) return null;
  return h("section.card", { "data-card": "resources" }, h("h2", {}, "Resources"), h("dl.facts", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    processes.length > 0 && h("table", {}, h("thead", {}, h("tr", {}, ["process", "pid", "CPU", "memory", "threads"].map((name, index) => h(`th${index ? ".number" : ""}`, {}, name)))),
      h("tbody", {}, processes.map((each) => h("tr", {}, h("td", {}, each.name), h("td.number", {}, String(each.pid)), h("td.number", {}, each.cpu === null ? "" : `${Math.round(100 * each.cpu)} %`), h("td.number", {}, bytes(each.memory)), h("td.number", {}, String(each.threads)))))));
}

function eventsCard(found) {
  const events = found?.events ?? [];
  if (!events.length) return null;
  return h("section.card.whole", {}, h("h2", {}, "What happened"), h("div.log", { tabindex: 0, "aria-label": "Events" }, h("pre", {}, events.map((each) => `${new Date(each.time).toLocaleTimeString()}  ${each.text}\n`).reverse())));
}

function table(title, values) {
  const keys = Object.keys(values).filter((key) => values[key] !== null).sort();
  if (!keys.length) return null;
  return h("section.card", {}, h("h2", {}, title), h("table", {}, h("tbody", {}, keys.map((key) => h("tr", {}, h("td.soft", {}, key), h("td.wrap", {}, shown(values[key])))))));
}

