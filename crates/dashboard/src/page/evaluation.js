// What `ddprun eval` has found out: the confusion matrix, each class, and the worst samples.

import { h } from "./dom.js";
import { metricValue, number } from "./format.js";

/** Classes that a matrix shows. */
const MAX_CLASSES = 60;

/** The card of one evaluated part of the data. */
export function evaluation(found) {
  const names = found.classes.map((each) => each.class);
  return h("section.card", { "data-card": "evaluation" }, h("h2", {}, `Evaluation of ${found.split}`),
    h("p.soft", {}, `by ddprun eval, ${new Date(found.time).toLocaleString()}: `, Object.entries(found.metrics).filter(([name]) => name.startsWith(found.split)).map(([name, value]) => `${name} ${metricValue(name, value)}`).join("  ")),
    found.confusion.length > 0 && matrix(found.confusion, names), found.classes.length > 0 && classes(found.classes), found.worst.length > 0 && worst(found.worst));
}

/** Rows are classes, columns what their samples are taken for; colours are shares of a row. */
function matrix(confusion, names) {
  const shown = confusion.slice(0, MAX_CLASSES);
  const cell = (row, count, i, j) => {
    const share = count / (row.reduce((sum, each) => sum + each, 0) || 1);
    return h("td.cell", { title: `${names[i]} taken for ${names[j]}: ${count} (${(100 * share).toFixed(1)} %)`, "--tint": i === j ? "var(--good)" : "var(--bad)", "--share": `${Math.round(80 * share)}%` }, count ? String(count) : "");
  };
  return [h("h3", {}, "Which classes are taken for which"), h("div.scrolled", {}, h("table.confusion", {},
    h("thead", {}, h("tr", {}, h("th"), shown.map((_, index) => h("th", { title: names[index] }, brief(names[index]))))),
    h("tbody", {}, shown.map((row, i) => h("tr", {}, h("th", {}, names[i]), row.slice(0, MAX_CLASSES).map((count, j) => cell(row, count, i, j))))))),
  confusion.length > MAX_CLASSES && h("p.soft", {}, `the first ${MAX_CLASSES} of ${confusion.length} classes`)];
}

const brief = (name) => (name.length > 9 ? `${name.slice(0, 8)}…` : name);

function classes(all) {
  const columns = ["samples", "precision", "recall", "f1", "auroc", "average_precision"].filter((name) => all.some((each) => each[name] !== undefined));
  return [h("h3", {}, "Each class"), h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "class"), columns.map((name) => h("th.number", {}, name.replace("_", " "))))),
    h("tbody", {}, all.map((each) => h("tr", {}, h("td", {}, each.class), columns.map((name) => h("td.number", {}, number(each[name])))))))];
}

function worst(samples) {
  return [h("h3", {}, "The samples with the largest losses"), h("div.worst", {}, samples.map((each) => h("figure", {},
    each.image && h("img", { src: each.image, alt: each.sample, loading: "lazy" }),
    h("figcaption", {}, h("b", {}, `loss ${number(each.loss)}`), each.class !== undefined && h("div", {}, each.class, " taken for ", each.answer), h("div.soft", {}, each.sample)))))];
}
