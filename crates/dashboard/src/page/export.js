// What is shown, as files: tables as CSV, charts as PNG.

import { dashOf, ink, tint } from "./color.js";

const LEGEND = 12;

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A cell of CSV. What a spreadsheet would take for a formula is text. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const safe = /^[=+\-@\t]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Rows of cells as a file. */
export const saveCsv = (name, rows) => save(`${name}.csv`, new Blob([`${rows.map((row) => row.map(cell).join()).join("\n")}\n`], { type: "text/csv" }));

/** The table in `element` as a file, as it reads. */
export const saveTable = (name, element) => saveCsv(name, [...element.querySelectorAll("tr")].map((row) => [...row.cells].map((each) => each.dataset.value ?? each.textContent.trim())));

/** A chart with its title and what its lines are. */
export function savePng(title, chart, lines) {
  const { width, height } = chart.size();
  const named = lines.filter((line) => !line.faint).slice(0, LEGEND);
  const [top, bottom] = [26, 18 * Math.ceil(named.length / 2) + 8];
  const sheet = document.createElement("canvas");
  [sheet.width, sheet.height] = [2 * width, 2 * (top + height + bottom)];
  const context = sheet.getContext("2d");
  context.scale(2, 2);
  context.fillStyle = ink("paper");
  context.fillRect(0, 0, width, top + height + bottom);
  context.fillStyle = ink("ink");
  context.font = "600 13px system-ui, sans-serif";
  context.fillText(title, 12, 18);
  for (const each of chart.sheets) context.drawImage(each, 0, top, width, height);
  context.font = "11px system-ui, sans-serif";
  named.forEach((line, index) => {
    const [x, y] = [12 + (index % 2) * (width / 2), top + height + 14 + 18 * (index >> 1)];
    context.strokeStyle = tint(line.slot);
    context.lineWidth = 2;
    context.setLineDash(dashOf(line.slot));
    context.beginPath();
    context.moveTo(x, y - 4);
    context.lineTo(x + 22, y - 4);
    context.stroke();
    context.fillText(line.name, x + 28, y, width / 2 - 44);
  });
  sheet.toBlob((blob) => save(`${title}.png`, blob));
}

const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "text-anchor", "paint-order"];

/** A drawing with the style of the page, as a picture. */
export function saveDrawing(title, svg) {
  const copy = svg.cloneNode(true);
  const [from, to] = [[svg, ...svg.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  from.forEach((element, index) => {
    const style = getComputedStyle(element);
    for (const name of STYLED) to[index].setAttribute(name, style.getPropertyValue(name));
    to[index].removeAttribute("style");
  });
  const { width, height } = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const image = new Image();
  image.onload = () => {
    const sheet = document.createElement("canvas");
    [sheet.width, sheet.height] = [2 * width, 2 * height];
    const context = sheet.getContext("2d");
    context.scale(2, 2);
    context.fillStyle = ink("paper");
    context.fillRect(0, 0, width, height);
    context.drawImage(image, 0, 0);
    sheet.toBlob((blob) => save(`${title}.png`, blob));
  };
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
}
