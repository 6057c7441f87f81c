// What `ddprun eval` has found out: the confusion matrix, each class, and the worst samples.

import { button, h } from "./dom.js";
import { saveCsv } from "./export.js";
import { metricValue, number, when } from "./format.js";

/** Classes that a matrix shows. */
const MAX_CLASSES = 60;

/** The card of one evaluated part of the data. */
export function evaluation(found, index) {
  const names = found.classes.map((each) => each.class);
  return h("section.card", { key: `evaluation ${index}`, "data-card": "evaluation" }, h("header", {}, h("h2", {}, `Evaluation of ${found.split}`), h("span.panel-tools", {},
    found.confusion.length > 0 && button("confusion CSV", () => saveCsv(`confusion-${found.split}`, [["class", ...names], ...found.confusion.map((row, at) => [names[at], ...row])])),
    found.classes.length > 0 && button("classes CSV", () => saveCsv(`classes-${found.split}`, [Object.keys(found.classes[0]), ...found.classes.map((each) => Object.values(each))])))),
  h("p.soft", {}, `by ddprun eval, ${when(found.time)}: `, Object.entries(found.metrics).filter(([name]) => name.startsWith(found.split)).map(([name, value]) => `${name} ${metricValue(name, value)}`).join("  ")),
  found.confusion.length > 0 && matrix(found.confusion, names), found.classes.length > 0 && classes(found.classes), found.worst.length > 0 && worst(found.worst));
}

/** Rows are classes, columns what their samples are taken for; colours are shares of a row. */
function matrix(confusion, names) {
  const shown = confusion.slice(0, MAX_CLASSES);
  const cell = (row, count, i, j) => {
    const share = count / (row.reduce((sum, each) => sum + each, 0) || 1);
    return h("td.cell", { title: `${names[i]} taken for ${names[j]}: ${count} (${(100 * share).toFixed(1)} %)`, "--tint": i === j ? "var(--good)" : "var(--bad)", "--share": `${Math.round(60 * share)}%` }, count ? String(count) : "");
  };
  return [h("h3", {}, "Which classes are taken for which"), h("div.scrolled", { tabindex: 0, "aria-label": "Confusion matrix" }, h("table.confusion", {},
    h("thead", {}, h("tr", {}, h("th", {}, h("span.hidden", {}, "class")), shown.map((_, index) => h("th", { title: names[index], scope: "col" }, brief(names[index]))))),
    h("tbody", {}, shown.map((row, i) => h("tr", {}, h("th", { scope: "row" }, names[i]), row.slice(0, MAX_CLASSES).map((count, j) => cell(row, count, i, j))))))),
  confusion.length > MAX_CLASSES && h("p.soft", {}, `the first ${MAX_CLASSES} of ${confusion.length} classes; the CSV has all`)];
}

const brief = (name) => (name.length > 9 ? `${name.slice(0, 8)}…` : name);

function classes(all) {
  const columns = ["samples", "precision", "recall", "f1", "auroc", "average_precision"].filter((name) => all.some((each) => each[name] !== undefined));
  return [h("h3", {}, "Each class"), h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "class"), columns.map((name) => h("th.number", { scope: "col" }, name.replace("_", " "))))),
    h("tbody", {}, all.map((each) => h("tr", {}, h("td", {}, each.class), columns.map((name) => h("td.number", {}, number(each[name])))))))];
}

/** Samples with large losses are not all wrong. */
function worst(samples) {
  const isWrong = (each) => each.class !== undefined && each.class !== each.answer;
  const n = samples.filter(isWrong).length;
  const isClasses = samples.some((each) => each.class !== undefined);
  return [h("h3", {}, "The samples with the largest losses"), isClasses && h("p.soft", {}, n === samples.length ? "All of them are wrong." : `${n} wrong; ${samples.length - n} right, the least certain first`), h("div.worst", {}, samples.map((each, index) => h(`figure${isWrong(each) ? ".wrong" : ""}`, { key: `${index} ${each.sample}` },
    each.image && h("img", { src: each.image, alt: each.sample, loading: "lazy" }),
    h("figcaption", {}, h("b", {}, `loss ${number(each.loss)}`), each.class !== undefined && h("div", {}, isWrong(each) ? [each.class, " taken for ", h("span.bad", {}, each.answer)] : [each.class, h("span.soft", {}, ", right")]), h("div.soft", {}, each.sample)))))];
}
