// Colours of the page, read once for each theme.
const root = document.documentElement;
let seen = null, kept = {};

export function colour(name) {
  if (seen !== root.dataset.theme) { seen = root.dataset.theme; kept = {}; }
  return (kept[name] ??= getComputedStyle(root).getPropertyValue(name).trim());
}

const inks = {};
/** Black or white, whichever can be read on it. */
export function inkOn(background) {
  return (inks[background] ??= (() => {
    const [r, g, b] = [1, 3, 5].map(at => parseInt(background.slice(at, at + 2), 16) / 255).map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#FFFFFF";
  })());
}

const widths = new Map();
/** What a function takes, or the program of a thread: "name(int, float*)" and "thread 12 (python)" are known without. */
const TAIL = /\s?\([^()]*\)$/;
/** With less room than for so many characters of a name that ends in no number, how it begins says more than its ends. */
const FEW = 8;
/** A text no wider than that; what is left out is what stands in brackets behind it, then its middle, since ends tell names apart. */
export function fitted(g, text, wide) {
  const key = `${g.font}|${Math.floor(wide)}|${text}`;
  let found = widths.get(key);
  if (found !== undefined) return found;
  if (widths.size > 20000) widths.clear();
  found = text;
  if (g.measureText(found).width > wide && found.length > found.match(TAIL)?.[0].length) found = text = text.replace(TAIL, "");
  if (g.measureText(text).width > wide) {
    let low = 0, high = text.length;
    while (low < high) {
      const keep = Math.ceil((low + high) / 2), cut = text.slice(0, Math.ceil(keep / 2)) + "…" + text.slice(text.length - Math.floor(keep / 2));
      if (g.measureText(cut).width <= wide) low = keep; else high = keep - 1;
    }
    if (low >= 3 && low < FEW && !/\d$/.test(text)) { // the narrower it is, the fewer characters fit
      do { found = text.slice(0, low) + "…"; low--; } while (low >= 3 && g.measureText(found).width > wide);
    } else found = low < 3 ? "" : text.slice(0, Math.ceil(low / 2)) + "…" + text.slice(text.length - Math.floor(low / 2));
  }
  widths.set(key, found);
  return found;
}
