// One run in one part of the canvas: asks the server for its rectangles, draws them, and says what lies under a point.
import { colour, fitted, inkOn } from "./colours.mjs";
import { makeLayout, ROW } from "./layout.mjs";
import { bytes, json, ranges } from "./server.mjs";

const MAX_ROWS = 380;

export class Pane {
  /** run: "0", or "1" for the one that is compared; shift: what is added to the view's times to have the pane's. */
  constructor(run, words = "") {
    this.run = run; this.words = words; this.shift = 0; this.first = 0; this.tile = null; this.names = new Map();
    this.path = []; this.steps = null; this.counters = {}; this.rows = null; this.asked = ""; this.top = 0; this.height = 0; this.left = 0; this.width = 1;
  }
  async load() { this.rows = await json("rows", { run: this.run }); this.names.clear(); this.tile = null; this.asked = ""; }
  arrange(options) { this.layout = makeLayout(this.rows, options); this.itemOfRow = new Map(); for (const item of this.layout.items) if (item.type === "row") this.itemOfRow.set(item.row, item); }

  y(item) { return this.top + item.top - (item.isPinned ? 0 : this.first); }
  x(ns, view) { return this.left + (ns - this.shift - view.low) / view.length * this.width; }
  get room() { return this.layout.height - this.height + ROW; }
  scrollTo(first) { this.first = Math.min(Math.max(first, 0), Math.max(this.room, 0)); }
  /** Items on the screen, from top to bottom. */
  visible() {
    const pinned = this.layout.pinnedHeight;
    return this.layout.items.filter(item => item.isPinned ? item.top < this.height
      : item.top + item.height > this.first + pinned && item.top < this.first + this.height).slice(0, MAX_ROWS);
  }

  async ask(view, wantsPath) {
    const low = Math.floor(view.low + this.shift), high = Math.max(Math.ceil(view.high + this.shift), low + 1);
    const shown = this.visible(), rows = shown.filter(item => item.type === "row").map(item => item.row).sort((a, b) => a - b);
    const columns = Math.min(Math.max(Math.round(this.width), 1), 4096), window = { run: this.run, low, high };
    const counters = shown.filter(item => item.type === "counter").map(item => item.counter).sort((a, b) => a - b);
    const asked = JSON.stringify([low, high, columns, rows, counters, wantsPath]);
    if (asked === this.asked) return; // what is there already
    const [buffer, steps, path, values] = await Promise.all([
      rows.length ? bytes("view", { ...window, rows: ranges(rows), columns }) : null,
      json("steps", window),
      wantsPath && this.rows.has_path ? json("path", { ...window, columns }) : { stretches: [] },
      counters.length ? json("counter", { ...window, numbers: ranges(counters), columns }) : {},
    ]);
    this.tile = { low, high, columns, rows, ...decode(buffer) };
    this.steps = steps; this.path = path.stretches; this.counters = values; this.asked = asked;
  }

  async label() { // names of spans that are wide enough to carry one
    const wanted = [...new Set((this.unnamed || []).filter(number => !this.names.has(number)))].sort((a, b) => a - b).slice(0, 200);
    if (!wanted.length) return false;
    if (this.names.size > 20000) this.names.clear();
    for (const number of wanted) this.names.set(number, "");
    const found = await json("names", { run: this.run, numbers: ranges(wanted) });
    for (const number of wanted) this.names.set(number, found[number] || "");
    return true;
  }

  draw(g, view, marks) {
    const from = this.top + this.layout.pinnedHeight;
    for (const isPinned of [false, true]) {
      g.save(); g.beginPath(); g.rect(0, isPinned ? this.top : from, this.left + this.width, isPinned ? this.layout.pinnedHeight : this.height - this.layout.pinnedHeight); g.clip();
      if (isPinned) { g.fillStyle = colour("--back"); g.fillRect(0, this.top, this.left + this.width, this.layout.pinnedHeight); }
      this.gridlines(g, view);
      if (this.tile) this.spans(g, view, marks, isPinned);
      this.values(g, view, isPinned);
      g.restore();
    }
    if (this.path.length) this.drawPath(g, view);
    this.labels(g);
    if (this.words) { g.font = "600 11px system-ui, sans-serif"; const wide = g.measureText(this.words).width + 8; g.fillStyle = colour("--paper"); g.fillRect(this.left + this.width - wide - 2, this.top + 1, wide, 16); g.fillStyle = colour("--soft"); g.textAlign = "right"; g.fillText(this.words, this.left + this.width - 6, this.top + 9); g.textAlign = "left"; }
  }

  gridlines(g, view) {
    if (!this.steps) return;
    g.strokeStyle = colour("--soft"); g.globalAlpha = 0.35; g.lineWidth = 1; g.setLineDash([3, 3]);
    for (const low of this.steps.low_ns) { const x = Math.round(this.x(low, view)) + 0.5; if (x >= this.left) { g.beginPath(); g.moveTo(x, this.top); g.lineTo(x, this.top + this.height); g.stroke(); } }
    g.setLineDash([]); g.globalAlpha = 1;
  }

  spans(g, view, marks, isPinned) {
    const tile = this.tile, { colours, shades } = this.rows, scale = (tile.high - tile.low) / tile.columns, edge = this.left + this.width;
    g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle";
    if (!isPinned) this.unnamed = [];
    for (let k = 0; k < tile.count; k++) {
      const item = this.itemOfRow.get(tile.rows[tile.row[k]]);
      if (!item || item.isPinned !== isPinned) continue;
      const start = tile.low + tile.left[k] * scale, end = tile.low + tile.right[k] * scale;
      const left = Math.max(this.x(start, view), this.left), right = Math.min(this.x(end, view), edge);
      if (right < this.left || left > edge) continue;
      const top = this.y(item), wide = Math.max(right - left, 1), fill = colours[tile.category[k]], number = tile.span[k];
      const isDim = marks.isDim(this, item, tile.category[k], start, end);
      g.globalAlpha = (0.15 + 0.85 * tile.shade[k] / shades) * (isDim ? 0.22 : 1);
      g.fillStyle = fill; g.fillRect(left, top, wide, ROW - 1); g.globalAlpha = 1;
      if (number < 0) continue;
      if (marks.isChosen(this, number)) outline(g, left, top, wide, colour("--text"), 2);
      else if (marks.isMatch(this, number)) outline(g, left, top, wide, "#E6007E", 2);
      if (wide > 40) {
        const name = this.names.get(number);
        if (name === undefined) this.unnamed.push(number);
        else if (name) { g.globalAlpha = isDim ? 0.4 : 1; g.fillStyle = isDim ? colour("--text") : inkOn(fill); g.fillText(short(g, name, wide - 8), left + 4, top + ROW / 2); g.globalAlpha = 1; }
      }
    }
  }

  values(g, view, isPinned) {
    for (const item of this.layout.items) {
      const points = item.type === "counter" && item.isPinned === isPinned && this.counters[item.counter];
      if (!points || !points.length) continue;
      const top = this.y(item), { low, high } = this.rows.counters[item.counter], base = Math.min(low, 0), size = Math.max(high, 0) - base || 1;
      const y = value => top + item.height - 3 - (value - base) / size * (item.height - 6);
      g.fillStyle = colour("--accent"); g.globalAlpha = 0.25;
      points.forEach(([at, , most], k) => {
        const left = Math.max(this.x(at, view), this.left), right = k + 1 < points.length ? this.x(points[k + 1][0], view) : this.left + this.width;
        if (right > left) g.fillRect(left, y(most), right - left, y(base) - y(most));
      });
      g.globalAlpha = 1; g.strokeStyle = colour("--accent"); g.lineWidth = 1; g.beginPath();
      points.forEach(([at, least, most], k) => {
        const left = Math.max(this.x(at, view), this.left), right = k + 1 < points.length ? this.x(points[k + 1][0], view) : this.left + this.width;
        if (right <= this.left) return;
        g.moveTo(left, y(least)); g.lineTo(left, y(most)); g.lineTo(Math.max(right, left), y(most));
      });
      g.stroke();
    }
  }

  drawPath(g, view) {
    g.save(); g.beginPath(); g.rect(this.left, this.top, this.width, this.height); g.clip();
    g.strokeStyle = colour("--bad"); g.lineWidth = 3;
    let before = null;
    for (const [row, start, end] of this.path) {
      const item = this.itemOfRow.get(row) || this.layout.items.find(each => each.rank === this.rows.ranks[row]);
      if (!item) { before = null; continue; }
      const y = this.y(item) + ROW - 1.5, left = this.x(start, view), right = Math.max(this.x(end, view), left + 1);
      g.beginPath(); g.moveTo(left, y); g.lineTo(right, y); g.stroke();
      if (before && before[1] !== y && Math.abs(before[0] - left) < 2) { g.lineWidth = 1; g.beginPath(); g.moveTo(left, before[1]); g.lineTo(left, y); g.stroke(); g.lineWidth = 3; }
      before = [right, y];
    }
    g.restore();
  }

  labels(g) { // the rank stays in sight while its rows are
    const gutter = this.left - 4;
    g.fillStyle = colour("--paper"); g.fillRect(0, this.top, gutter, this.height);
    const room = gutter < 140 ? 24 : Math.min(62, gutter * 0.26 + 8);
    g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle";
    const ends = new Map();
    const shown = this.visible();
    for (const item of shown) ends.set(item.rank, this.y(item) + item.height);
    g.save(); g.beginPath(); g.rect(0, this.top, this.left + this.width, this.height); g.clip();
    for (const item of shown) {
      const top = this.y(item);
      if (!item.isPinned && top + item.height <= this.top + this.layout.pinnedHeight) continue;
      if (item.isFirst) { g.strokeStyle = colour("--line"); g.lineWidth = 1; g.beginPath(); g.moveTo(0, top - 3); g.lineTo(this.left + this.width, top - 3); g.stroke(); }
      g.fillStyle = item.type === "group" ? colour("--accent") : colour("--text");
      if (item.label) g.fillText(fitted(g, item.label, gutter - room - 4), room, top + (item.type === "counter" ? item.height / 2 : ROW / 2));
    }
    g.font = "600 12px system-ui, sans-serif";
    for (const [rank, end] of ends) {
      const first = shown.find(item => item.rank === rank), floor = this.top + (first.isPinned ? 0 : this.layout.pinnedHeight);
      const y = Math.min(Math.max(this.y(first), floor), end - ROW) + ROW / 2;
      g.fillStyle = colour("--text"); g.fillText((first.isPinned ? "• " : "") + (fitted(g, `rank ${rank}`, room - 8) || rank), 6, y);
    }
    g.restore();
  }

  itemAt(y) {
    if (y < this.top || y >= this.top + this.height) return null;
    return this.layout.items.find(item => { const top = this.y(item); return y >= top && y < top + item.height && (item.isPinned || y >= this.top + this.layout.pinnedHeight); }) || null;
  }

  /** The rectangle under a point: {row, item, span, category}; null over nothing. */
  at(x, y, view) {
    const item = this.itemAt(y);
    if (!item || item.type !== "row" || !this.tile || x < this.left) return null;
    const tile = this.tile, time = view.low + (x - this.left) / this.width * view.length + this.shift;
    const column = (time - tile.low) / (tile.high - tile.low) * tile.columns;
    let best = -1, least = Infinity;
    for (let k = 0; k < tile.count; k++) {
      if (tile.rows[tile.row[k]] !== item.row) continue;
      const away = Math.max(tile.left[k] - column, column - tile.right[k], 0) - (tile.span[k] >= 0 ? 0.01 : 0);
      if (away < 1.5 && away < least) { best = k; least = away; }
    }
    return best < 0 ? null : { item, row: item.row, span: tile.span[best], category: this.rows.categories[tile.category[best]] };
  }

  /** The nearest edge of a drawn span in a row, within some pixels; the moment itself if there is none. */
  snap(ns, item, view) {
    if (!item || item.type !== "row" || !this.tile) return { ns, isEdge: false };
    const tile = this.tile, scale = (tile.high - tile.low) / tile.columns, slack = view.length / this.width * 6;
    let best = ns, least = slack;
    for (let k = 0; k < tile.count; k++) {
      if (tile.rows[tile.row[k]] !== item.row || tile.span[k] < 0) continue;
      for (const column of [tile.left[k], tile.right[k]]) { const at = tile.low + column * scale - this.shift; if (Math.abs(at - ns) < least) { least = Math.abs(at - ns); best = at; } }
    }
    return { ns: best, isEdge: best !== ns };
  }
}

/** A name no wider than that; of a step its number says more than its ends. */
function short(g, name, wide) { return name.startsWith("STEP ") && g.measureText(name).width > wide ? fitted(g, name.slice(5), wide) : fitted(g, name, wide); }

function outline(g, left, top, wide, stroke, line) { g.strokeStyle = stroke; g.lineWidth = line; g.strokeRect(left + 1, top + 1, Math.max(wide - 2, 1), ROW - 3); }

function decode(buffer) {
  if (!buffer) return { count: 0 };
  const count = new Uint32Array(buffer, 0, 1)[0];
  const part = (kind, number) => new kind(buffer, 4 + 4 * count * number, count);
  return { count, row: part(Int32Array, 0), left: part(Float32Array, 1), right: part(Float32Array, 2), category: part(Int32Array, 3), shade: part(Int32Array, 4), span: part(Int32Array, 5) };
}
