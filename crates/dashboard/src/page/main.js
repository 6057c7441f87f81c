// The page: its head, its tabs, its keys; and the numbers that come as runs go on.

import { fill, h, refill } from "./dom.js";
import { compare } from "./compare.js";
import { curves } from "./curves.js";
import { filter } from "./filter.js";
import { when } from "./format.js";
import { list, toggle } from "./list.js";
import { runPage } from "./runpage.js";
import { runTable } from "./runtable.js";
import { sweeps } from "./sweeps.js";
import { recall, reload, set, state, subscribe } from "./store.js";
import { inside, watch } from "./source.js";

const TABS = [["curves", "Curves", curves], ["table", "Table", runTable], ["compare", "Compare", compare], ["sweep", "Sweep", sweeps], ["run", "Run", runPage]];
const KEYS = [["/", "filter"], ["1 … 5", "the tabs"], ["j  k", "next and previous run"], ["x", "draw the run or not"], ["Enter", "all about the run"], ["← → ↑ ↓", "points and lines of a chart that has the focus"], ["l", "logarithmic y"], ["s", "more or less smoothing"], ["r", "reset the zoom"], ["t", "light or dark"], ["?", "these keys"], ["Esc", "leave a field, reset the zoom"]];
const FILTERS = [["resnet", "in the name, state, tags or configuration"], ["optimizer.lr=0\\.1$", "a regular expression"], ["lr<0.01", "a number of the configuration: its last words are enough"], ["val/loss<0.3", "the best, else the last value"], ["failed lr>=1e-3", "all of them"]];
/** Runs from which on the filter waits until somebody has typed, and for how long. */
const MANY = 200;
const PAUSE = 180;

const place = (id) => document.getElementById(id);
const built = new Map();

function view() {
  const tab = TABS.find(([key]) => key === state.tab) ?? TABS[0];
  if (!built.has(tab[0])) built.set(tab[0], tab[2]());
  return built.get(tab[0]);
}

function tabs() {
  const go = (event) => {
    const index = TABS.findIndex(([key]) => key === state.tab);
    const next = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    set({ tab: TABS[(next + TABS.length) % TABS.length][0] });
    place("tabs").querySelector("[aria-selected=true]").focus();
  };
  refill(place("tabs"), TABS.map(([key, name]) => h("button", { key, id: `tab-${key}`, type: "button", role: "tab", "aria-selected": String(key === state.tab), "aria-controls": "view", tabindex: key === state.tab ? 0 : -1, onkeydown: go, onclick: () => set({ tab: key }) }, name)));
  place("view").setAttribute("aria-labelledby", `tab-${state.tab}`);
}

function theme(next) {
  document.documentElement.dataset.theme = next;
  place("theme").textContent = next === "dark" ? "☀" : "☾";
  try {
    localStorage.setItem("ddprun theme", next);
  } catch {
    // A page from a file may have no storage.
  }
  set({ theme: next });
}

function firstTheme() {
  try {
    const kept = localStorage.getItem("ddprun theme");
    if (kept === "dark" || kept === "light") return kept;
  } catch {
    // As above.
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

const otherTheme = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

function keys(runs) {
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      document.activeElement?.blur();
      if (state.zoom || Object.keys(state.zoomY).length) set({ zoom: null, zoomY: {} });
      return;
    }
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox" && event.target.type !== "range") return;
    const isInList = place("list").contains(event.target);
    const isFree = event.target === document.body || isInList;
    const tab = TABS[Number(event.key) - 1];
    const acts = {
      "/": () => place("filter").focus(),
      j: () => runs.step(1), k: () => runs.step(-1), ArrowDown: () => runs.step(1), ArrowUp: () => runs.step(-1),
      x: () => state.focus && toggle(state.focus),
      Enter: () => event.target === document.body && state.focus && set({ tab: "run" }),
      l: () => set({ logY: !state.logY }), r: () => set({ zoom: null, zoomY: {} }), t: otherTheme,
      s: () => set({ smooth: state.smooth === 0 ? 0.6 : state.smooth < 0.9 ? 0.9 : 0 }),
      "?": () => place("keys").showModal(),
    };
    const act = tab ? () => set({ tab: tab[0] }) : acts[event.key];
    if (!act || (event.key.startsWith("Arrow") && !isFree)) return;
    if (event.key === "/" || event.key.startsWith("Arrow")) event.preventDefault();
    act();
  };
}

function filterField() {
  const field = place("filter");
  let waiting = 0;
  const act = () => set({ filter: field.value });
  field.addEventListener("input", () => {
    const { problem } = filter(field.value);
    field.setAttribute("aria-invalid", String(problem !== ""));
    place("filter-note").textContent = problem;
    clearTimeout(waiting);
    if (state.overview.runs.length < MANY) act();
    else waiting = setTimeout(act, PAUSE);
  });
  return field;
}

function help() {
  const rows = (pairs) => h("dl.facts", {}, pairs.map(([name, what]) => [h("dt", {}, h("kbd", {}, name)), h("dd", {}, what)]));
  fill(place("keys"), h("h2", {}, "Keyboard"), rows(KEYS), h("h2", {}, "Filter"), rows(FILTERS), h("form", { method: "dialog" }, h("button.small", {}, "Close")));
  place("keys").addEventListener("click", (event) => event.target === place("keys") && place("keys").close());
  place("help").addEventListener("click", () => place("keys").showModal());
}

function start() {
  const runs = list(place("list"));
  const field = filterField();
  place("theme").addEventListener("click", otherTheme);
  help();
  document.addEventListener("keydown", keys(runs));
  let shown = null;
  subscribe((changed) => {
    if (changed.has("tab")) tabs();
    const now = view();
    if (shown !== now) {
      fill(place("view"), now.root);
      place("view").scrollTop = 0;
    }
    // A tab that comes back has missed what changed meanwhile.
    const all = shown === now ? changed : new Set([...changed, "tab", "overview", "ticks", "filter", "theme", "x", "zoom"]);
    shown = now;
    if (changed.has("overview")) {
      place("folder").textContent = state.overview.folder;
      place("folder").title = state.overview.folder;
      document.title = `${state.overview.title || state.overview.folder} · ddprun`;
    }
    if (changed.has("filter") && document.activeElement !== field) field.value = state.filter;
    runs.update(changed);
    now.update(all);
  });
  recall();
  tabs();
  theme(firstTheme());
  addEventListener("popstate", recall);
  // On paper charts are drawn as in the light.
  matchMedia("print").addEventListener("change", (print) => {
    document.documentElement.dataset.theme = print.matches ? "light" : state.theme;
    set({ hot: null, theme: state.theme });
  });
  const live = place("live");
  const report = (words, kind) => {
    if (live.textContent !== words) live.textContent = words;
    live.className = `live ${kind}`;
  };
  const read = () => reload().then(() => {
    document.documentElement.dataset.ready = "true";
  });
  if (inside) {
    read();
    report(`as of ${when(inside.overview.now)}`, "");
    return;
  }
  watch(read, (trouble) => {
    report(trouble ? (trouble.isShut ? "not let in" : "offline") : "live", trouble ? "off" : "on");
    place("trouble").textContent = trouble?.message ?? "";
    place("trouble").hidden = !trouble;
  });
}

start();
