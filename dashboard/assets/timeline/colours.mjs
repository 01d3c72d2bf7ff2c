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
/** A text no wider than that; what is left out is its middle, since ends tell names apart. */
export function fitted(g, text, wide) {
  const key = `${g.font}|${Math.floor(wide)}|${text}`;
  let found = widths.get(key);
  if (found !== undefined) return found;
  if (widths.size > 20000) widths.clear();
  found = text;
  if (g.measureText(text).width > wide) {
    let low = 0, high = text.length;
    while (low < high) {
      const keep = Math.ceil((low + high) / 2), cut = text.slice(0, Math.ceil(keep / 2)) + "…" + text.slice(text.length - Math.floor(keep / 2));
      if (g.measureText(cut).width <= wide) low = keep; else high = keep - 1;
    }
    found = low < 3 ? "" : text.slice(0, Math.ceil(low / 2)) + "…" + text.slice(text.length - Math.floor(low / 2));
  }
  widths.set(key, found);
  return found;
}
