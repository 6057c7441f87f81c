// The page: its head, its tabs, its keys; and the numbers that come as runs go on.

import { h, fill } from "./dom.js";
import { compare } from "./compare.js";
import { curves } from "./curves.js";
import { list, toggle } from "./list.js";
import { runPage } from "./runpage.js";
import { runTable } from "./runtable.js";
import { sweeps } from "./sweeps.js";
import { isPattern, listed, recall, reload, set, state, subscribe } from "./store.js";
import { inside, watch } from "./source.js";

const TABS = [["curves", "Curves", curves], ["table", "Table", runTable], ["compare", "Compare", compare], ["sweep", "Sweep", sweeps], ["run", "Run", runPage]];
const KEYS = [["/", "filter"], ["1 … 5", "the tabs"], ["j  k", "next and previous run"], ["x", "draw the run or not"], ["Enter", "all about the run"], ["l", "logarithmic y"], ["s", "more or less smoothing"], ["r", "reset the zoom"], ["t", "light or dark"], ["?", "these keys"], ["Esc", "leave a field, reset the zoom"]];

const place = (id) => document.getElementById(id);
const built = new Map();

function view() {
  if (!built.has(state.tab)) built.set(state.tab, (TABS.find(([key]) => key === state.tab) ?? TABS[0])[2]());
  return built.get(state.tab);
}

function tabs() {
  fill(place("tabs"), TABS.map(([key, name]) => h("button", { type: "button", role: "tab", "aria-selected": String(key === state.tab), onclick: () => set({ tab: key }) }, name)));
}

function problems() {
  return state.overview.problems.map((problem) => h("div.card.problem", { role: "alert" }, problem));
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

function step(by) {
  const runs = listed();
  const index = runs.findIndex((run) => run.id === state.focus);
  const next = runs[Math.min(Math.max(index + by, 0), runs.length - 1)];
  if (next) set({ focus: next.id, hot: next.id });
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    document.activeElement?.blur();
    set({ zoom: null });
    return;
  }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox" && event.target.type !== "range") return;
  const tab = TABS[Number(event.key) - 1];
  const acts = {
    "/": () => place("filter").focus(),
    j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
    x: () => state.focus && toggle(state.focus),
    Enter: () => event.target === document.body && state.focus && set({ tab: "run" }),
    l: () => set({ logY: !state.logY }), r: () => set({ zoom: null }), t: otherTheme,
    s: () => set({ smooth: state.smooth === 0 ? 0.6 : state.smooth < 0.9 ? 0.9 : 0 }),
    "?": () => place("keys").showModal(),
  };
  const act = tab ? () => set({ tab: tab[0] }) : acts[event.key];
  if (!act || (event.key.startsWith("Arrow") && event.target !== document.body)) return;
  if (event.key === "/" || event.key.startsWith("Arrow")) event.preventDefault();
  act();
}

function start() {
  const runs = list(place("list"));
  const filter = place("filter");
  filter.addEventListener("input", () => {
    filter.setAttribute("aria-invalid", String(!isPattern(filter.value)));
    set({ filter: filter.value });
  });
  place("theme").addEventListener("click", otherTheme);
  place("help").addEventListener("click", () => place("keys").showModal());
  place("keys").addEventListener("click", () => place("keys").close());
  fill(place("keys"), h("h2", {}, "Keyboard"), h("dl.facts", {}, KEYS.map(([name, what]) => [h("dt", {}, h("kbd", {}, name)), h("dd", {}, what)])));
  document.addEventListener("keydown", key);
  const notes = h("div");
  const body = h("div");
  place("view").append(notes, body);
  let shown = null;
  let said = "";
  subscribe((changed) => {
    if (changed.has("tab")) tabs();
    const now = view();
    if (shown !== now) {
      fill(body, now.root);
      place("view").scrollTop = 0;
    }
    // A tab that comes back has missed what changed meanwhile.
    const all = shown === now ? changed : new Set([...changed, "tab", "overview", "hidden", "filter", "theme"]);
    shown = now;
    if (changed.has("overview")) {
      place("folder").textContent = state.overview.folder;
      place("folder").title = state.overview.folder;
      document.title = `${state.overview.title || state.overview.folder} · ddprun`;
      if (said !== state.overview.problems.join()) fill(notes, problems());
      said = state.overview.problems.join();
    }
    runs.update(changed);
    now.update(all);
  });
  tabs();
  theme(firstTheme());
  // On paper charts are drawn as in the light.
  matchMedia("print").addEventListener("change", (print) => {
    document.documentElement.dataset.theme = print.matches ? "light" : state.theme;
    set({ hot: null });
    set({ zoom: state.zoom });
  });
  recall();
  filter.value = state.filter;
  const live = place("live");
  const report = (words, kind) => {
    live.textContent = words;
    live.className = `live ${kind}`;
  };
  const read = () => reload().then(() => {
    document.documentElement.dataset.ready = "true";
  }, (error) => report(error.message, "off"));
  read();
  if (inside) report(`as of ${new Date(inside.overview.now).toLocaleString()}`, "");
  else watch(read, (on) => report(on ? "live" : "the server does not answer", on ? "on" : "off"));
}

start();
