// Times as people read them.  Knows nothing of the page.
const STEPS = [1, 2, 5].flatMap(factor => [0, 1, 2, 3, 4, 5, 6, 7, 8].map(power => factor * 10 ** power)).sort((a, b) => a - b)
  .concat([1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800].map(seconds => seconds * 1e9));

/** How long something takes. */
export function duration(ns) {
  const size = Math.abs(ns);
  if (size >= 3600e9) return `${+(ns / 3600e9).toPrecision(4)} h`;
  if (size >= 120e9) return `${+(ns / 60e9).toPrecision(4)} min`;
  for (const [unit, of] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (size >= of) return `${+(ns / of).toPrecision(4)} ${unit}`;
  return `${Math.round(ns)} ns`;
}

/** A moment of the run, so precise that moments `precision` ns apart differ. */
export function moment(ns, precision = 1) {
  const digits = Math.min(Math.max(Math.ceil(9 - Math.log10(Math.max(precision, 1))), 0), 9);
  const sign = ns < 0 ? "-" : "", size = Math.abs(Math.round(ns));
  const whole = Math.floor(size / 1e9), rest = String(size % 1e9).padStart(9, "0").slice(0, digits);
  const fraction = rest ? `.${rest.match(/.{1,3}/g).join("\u202f")}` : "";
  if (whole < 60) return `${sign}${whole}${fraction} s`;
  const two = value => String(value).padStart(2, "0");
  const days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24, minutes = Math.floor(whole / 60) % 60;
  return `${sign}${days ? `${days}d ` : ""}${days || hours ? `${two(hours)}:` : ""}${two(minutes)}:${two(whole % 60)}${fraction}`;
}

/** Where an axis has its ticks, and what they say: {base, ticks: [[ns, words]]}; with a base ticks say how far they are from it. */
export function ticks(low, high, width) {
  const wanted = (high - low) / Math.max(width / 110, 1);
  const step = STEPS.find(value => value >= wanted) ?? Math.ceil(wanted / 604800e9) * 604800e9;
  const isFine = step < 1e6 && Math.abs(high) > step * 1e4;
  const base = isFine ? Math.floor(low / (step * 100)) * step * 100 : 0;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push([at, isFine ? `+${duration(at - base)}` : at === 0 ? "0" : step >= 1e9 || Math.abs(at) >= 1e9 ? moment(at, step) : duration(at)]);
  return { base: isFine ? moment(base, step) : "", ticks: found };
}
