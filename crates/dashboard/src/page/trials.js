// All trials of a sweep as a table that sorts.

import { h } from "./dom.js";
import { duration, metricValue, shown } from "./format.js";
import { set } from "./store.js";

/** Rows at most; the CSV has all. */
const MAX_ROWS = 500;

/** A function from a subject to the card of its trials; `build` is called when the order changes. */
export function trialTable(build) {
  let sort = { key: "value", down: false, isUsual: true };

  return (subject) => {
    const columns = [
      { key: "number", name: "trial", number: true, of: (trial) => trial.number, show: String },
      { key: "state", name: "state", of: (trial) => trial.state, show: (state) => h(`span.state.${state}`, {}, state) },
      { key: "value", name: subject.metric, number: true, of: (trial) => trial.value, show: (value) => metricValue(subject.metric, value) },
      ...subject.parameters.map(({ key }) => ({ key: `values ${key}`, name: key, number: subject.trials.every((trial) => typeof (trial.values[key] ?? 0) === "number"), of: (trial) => trial.values[key], show: shown })),
      { key: "seconds", name: "time", number: true, of: (trial) => trial.seconds, show: (seconds) => (seconds ? duration(seconds) : "") },
    ];
    const by = columns.find((column) => column.key === sort.key) ?? columns[2];
    const isDown = sort.isUsual ? subject.goal === "max" : sort.down;
    const isAbsent = (value) => value === null || value === undefined;
    const sorted = [...subject.trials].sort((a, b) => {
      const [one, other] = [by.of(a), by.of(b)];
      if (isAbsent(one) || isAbsent(other)) return isAbsent(one) - isAbsent(other);
      const order = typeof one === "number" && typeof other === "number" ? one - other : String(shown(one)).localeCompare(String(shown(other)), "en", { numeric: true });
      return (isDown ? -order : order) || a.number - b.number;
    });
    const heading = (column) => h(`th.sort${column.number ? ".number" : ""}`, { key: column.key, scope: "col", "aria-sort": column === by ? (isDown ? "descending" : "ascending") : undefined },
      h("button.link", { type: "button", onclick: () => {
        sort = { key: column.key, down: column === by ? !isDown : false };
        build();
      } }, column.name));
    const shownRows = sorted.slice(0, MAX_ROWS);
    return h("section.card", { key: "trials", "data-card": "trials" }, h("h2", {}, "Trials"), h("div.scrolled.tall", { tabindex: 0, "aria-label": "Trials" }, h("table", {}, h("thead", {}, h("tr", {}, columns.map(heading))),
      h("tbody", {}, shownRows.map((trial) => h("tr", { key: trial.number, "data-trial": trial.number, ondblclick: () => trial.run && set({ focus: trial.run, tab: "run" }) }, columns.map((column) => {
        const text = column.show(column.of(trial));
        return h(`td${column.number ? ".number" : ""}`, {}, column.key === "number" && trial.run ? h("button.link", { type: "button", title: "Open its run", onclick: () => set({ focus: trial.run, tab: "run" }) }, text) : text);
      })))))), sorted.length > MAX_ROWS && h("p.soft", {}, `the first ${MAX_ROWS} of ${sorted.length}; the CSV has all`));
  };
}
