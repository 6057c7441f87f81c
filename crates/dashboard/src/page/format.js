// Numbers and times as people read them.

/** Whether a metric is a share from 0 to 1 that is shown in percent. */
export const isShare = (metric) => /(accuracy|success)$/.test(metric);

/** A number with about `digits` digits that mean something. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (!Number.isFinite(value)) return "NaN";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(Math.max(digits - 2, 1)).replace(/\.?0+e/, "e").replace("e+", "e");
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString("en-US").replaceAll(",", "\u202f");
  return String(Number(value.toPrecision(digits)));
}

/** The value of a metric by its name. */
export function metricValue(metric, value) {
  if (value === null || value === undefined) return "";
  return isShare(metric) ? `${twoDecimals(100 * value)} %` : number(value);
}

/** As the command line rounds: halfway to the even digit. Only odd eighths are halfway, and `toFixed` rounds all of them up. */
export function twoDecimals(value) {
  const isHalfway = Math.abs(8 * value) % 2 === 1;
  const isOdd = isHalfway && Math.floor(Math.abs(100 * value)) % 2 === 1;
  return (isHalfway && !isOdd ? value - Math.sign(value) * 0.001 : value).toFixed(2);
}

/** `1h 4m`, `12.3s` */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds === 0) return "0s";
  if (seconds < 1) return `${Math.round(1000 * seconds)}ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(1))}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${Math.floor(seconds % 60)}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours}h ${minutes % 60}m` : `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

const two = (value) => String(value).padStart(2, "0");

/** `2026-11-20 14:00:05`, by the reader's clock: every time on the page is. */
export function when(milliseconds) {
  if (!milliseconds) return "";
  return `${day(milliseconds)} ${clock(milliseconds)}`;
}

/** `2026-11-20` */
export function day(milliseconds) {
  const date = new Date(milliseconds);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** `14:00:05` */
export function clock(milliseconds) {
  const date = new Date(milliseconds);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
}

/** `3 min ago`; exact times are in titles. */
export function ago(milliseconds, now) {
  const seconds = Math.max(0, (now - milliseconds) / 1000);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return day(milliseconds);
}

/** `12.3 MB` */
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = count;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${Number(size.toPrecision(3))} ${units[unit]}`;
}

/** `12k`, `1.5M`: for axes. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return String(Number(value.toPrecision(5)));
}

/** A value of a configuration as text. */
export function shown(value) {
  if (value === undefined || value === null) return "";
  if (typeof value === "number") {
    const text = String(Number(value.toPrecision(6)));
    return value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(5).replace(/\.?0+e/, "e") : text;
  }
  return typeof value === "string" ? value : JSON.stringify(value);
}
