// The timeline page: a canvas that asks the server for what it can show.
const GUTTER = 210, AXIS = 22, ROW = 16, GAP = 6, MIN_NS = 100;
const root = document.documentElement;

function colour(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }

function duration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (Math.abs(ns) >= size) return `${+(ns / size).toPrecision(4)} ${unit}`;
  return `${Math.round(ns)} ns`;
}

async function fetchJson(path, parameters) {
  const answer = await fetch(`/data/${path}?${new URLSearchParams(parameters)}`);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error || answer.statusText);
  return value;
}

class Timeline {
  constructor(element) {
    this.element = element;
    this.canvas = document.createElement("canvas");
    this.tip = document.createElement("div");
    this.tip.className = "tip"; this.tip.hidden = true;
    element.replaceChildren(this.canvas, this.tip);
    this.low = 0; this.high = 1; this.first = 0; this.tile = null; this.busy = false; this.again = false;
    this.matches = []; this.matchAt = -1; this.matchSet = new Set(); this.flows = []; this.chosen = -1; this.names = new Map();
    this.version = -1;
    this.listen();
    this.ready = this.load().catch(error => this.say(error.message));
  }

  async load() {
    const rows = await fetchJson("rows", {});
    const grew = this.rows && rows.end_ns > this.rows.end_ns;
    const atEnd = this.rows && this.high >= this.rows.end_ns * 0.999;
    this.rows = rows; this.version = rows.version; this.names.clear();
    this.place();
    if (!this.restored) { this.restored = true; await this.restore(); }
    else if (grew && atEnd) { this.low += rows.end_ns - this.high; this.high = rows.end_ns; }
    await this.ask();
  }

  place() { // where each row is, in pixels from the top of all rows
    this.tops = []; let top = 0, rank = null;
    this.rows.names.forEach((name, row) => {
      if (this.rows.ranks[row] !== rank) { rank = this.rows.ranks[row]; top += GAP; }
      this.tops.push(top); top += ROW;
    });
    this.total = top;
  }

  get width() { return Math.max(this.element.clientWidth - GUTTER, 50); }
  get height() { return this.element.clientHeight - AXIS; }
  x(ns) { return GUTTER + (ns - this.low) / (this.high - this.low) * this.width; }
  ns(x) { return this.low + (x - GUTTER) / this.width * (this.high - this.low); }

  async restore() { // the state that the address names
    const query = new URLSearchParams(location.search);
    this.low = 0; this.high = Math.max(this.rows.end_ns, 1);
    const rank = query.get("rank");
    if (rank !== null) this.toRank(+rank);
    if (query.has("from") && query.has("to") && +query.get("to") > +query.get("from")) [this.low, this.high] = [+query.get("from"), +query.get("to")];
    if (query.has("step")) {
      try {
        const step = await fetchJson("step", { number: query.get("step") });
        const room = (step.high_ns - step.low_ns) * 0.2;
        [this.low, this.high] = [step.low_ns - room, step.high_ns + room];
      } catch (error) { this.say(error.message); }
    }
    if (query.has("q")) { this.query().value = query.get("q"); await this.search(query.get("q"), rank, !query.has("from")); }
  }

  toRank(rank) {
    const row = this.rows.ranks.indexOf(rank);
    if (row >= 0) this.first = Math.max(this.tops[row] - GAP, 0);
  }

  remember() {
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => {
      if (location.pathname !== "/timeline") return;
      const query = new URLSearchParams(location.search);
      query.delete("step"); query.set("from", Math.round(this.low)); query.set("to", Math.round(this.high));
      const wanted = this.query().value; if (wanted) query.set("q", wanted); else query.delete("q");
      history.replaceState(history.state, "", `/timeline?${query}`);
    }, 300);
  }

  // One request at a time; while it runs, only the newest wish is remembered, and the old picture is drawn to scale.
  async ask() {
    if (!this.rows) return;
    this.draw();
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    try {
      do {
        this.again = false;
        const visible = this.visible();
        const low = Math.floor(this.low), high = Math.max(Math.ceil(this.high), low + 1);
        const parameters = new URLSearchParams({ low, high, first: visible.from, count: visible.count, columns: Math.min(Math.round(this.width), 4096) });
        const answer = await fetch(`/data/view?${parameters}`);
        if (!answer.ok) { this.say((await answer.json()).error); break; }
        const columns = Math.min(Math.round(this.width), 4096);
        this.tile = { low, high, from: visible.from, columns, ...this.decode(await answer.arrayBuffer()) };
        this.draw();
      } while (this.again);
    } catch (error) { this.say(`the server does not answer: ${error.message}`); } finally { this.busy = false; }
    this.element.dataset.painted = `${Math.floor(this.low)}:${Math.ceil(this.high)}`;
    this.label().catch(error => this.say(error.message));
  }

  decode(buffer) {
    const count = new Uint32Array(buffer, 0, 1)[0];
    const part = (kind, number) => new kind(buffer, 4 + 4 * count * number, count);
    return { count, row: part(Int32Array, 0), left: part(Float32Array, 1), right: part(Float32Array, 2), category: part(Int32Array, 3),
      shade: part(Int32Array, 4), span: part(Int32Array, 5) };
  }

  visible() {
    let from = 0;
    while (from < this.tops.length - 1 && this.tops[from] + ROW < this.first) from++;
    let to = from;
    while (to < this.tops.length && this.tops[to] < this.first + this.height) to++;
    return { from, count: Math.max(to - from, 1) };
  }

  draw() {
    if (!this.rows) return;
    const ratio = devicePixelRatio || 1, wide = this.element.clientWidth, high = this.element.clientHeight;
    if (this.canvas.width !== wide * ratio || this.canvas.height !== high * ratio) { this.canvas.width = wide * ratio; this.canvas.height = high * ratio; }
    const g = this.canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.fillStyle = colour("--paper"); g.fillRect(0, 0, wide, high);
    g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle";
    this.axis(g, wide);
    g.save(); g.beginPath(); g.rect(0, AXIS, wide, this.height); g.clip();
    if (this.tile) this.spans(g);
    this.arrows(g);
    this.lanes(g);
    g.restore();
  }

  axis(g, wide) {
    const wanted = (this.high - this.low) / Math.max(this.width / 120, 1);
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(value => value >= wanted);
    g.fillStyle = colour("--soft"); g.strokeStyle = colour("--line"); g.lineWidth = 1;
    for (let at = Math.ceil(this.low / step) * step; at < this.high; at += step) {
      const x = this.x(at);
      if (x < GUTTER) continue;
      g.beginPath(); g.moveTo(x, AXIS - 5); g.lineTo(x, wide * 4); g.globalAlpha = 0.5; g.stroke(); g.globalAlpha = 1;
      g.fillText(duration(at), x + 3, AXIS / 2);
    }
  }

  spans(g) {
    const tile = this.tile, colours = this.rows.colours, scale = (tile.high - tile.low) / tile.columns;
    this.texts = [];
    for (let k = 0; k < tile.count; k++) {
      const row = tile.from + tile.row[k];
      if (row >= this.tops.length) continue;
      const left = Math.max(this.x(tile.low + tile.left[k] * scale), GUTTER), right = this.x(tile.low + tile.right[k] * scale);
      if (right < GUTTER || left > GUTTER + this.width) continue;
      const top = AXIS + this.tops[row] - this.first, wide = Math.max(right - left, 1);
      g.globalAlpha = 0.15 + 0.85 * tile.shade[k] / this.rows.shades;
      g.fillStyle = colours[tile.category[k]];
      g.fillRect(left, top, wide, ROW - 1);
      g.globalAlpha = 1;
      const number = tile.span[k];
      if (number >= 0 && (number === this.chosen || this.matchSet.has(number))) {
        g.strokeStyle = number === this.chosen ? colour("--text") : "#E6007E"; g.lineWidth = 2;
        g.strokeRect(left + 1, top + 1, Math.max(wide - 2, 1), ROW - 3);
      }
      if (number >= 0 && wide > 60) {
        const name = this.names.get(number);
        if (name !== undefined) {
          g.save(); g.beginPath(); g.rect(left, top, wide - 2, ROW); g.clip();
          g.fillStyle = "#000"; g.fillText(name, left + 4, top + ROW / 2); g.restore();
        } else if (this.texts.length < 200) this.texts.push(number);
      }
    }
  }

  async label() { // names of spans that are wide enough to carry one
    const wanted = (this.texts || []).filter(number => !this.names.has(number));
    if (!wanted.length) return;
    if (this.names.size > 20000) this.names.clear();
    for (const number of wanted) this.names.set(number, "");
    const found = await fetchJson("names", { numbers: wanted.join(",") });
    for (const number of wanted) this.names.set(number, found[number] || "");
    this.draw();
  }

  arrows(g) {
    g.strokeStyle = colour("--text"); g.lineWidth = 1; g.globalAlpha = 0.7;
    const middle = rank => {
      const row = this.rows.ranks.findIndex((value, at) => value === rank && this.rows.names[at].startsWith("communication"));
      const other = row >= 0 ? row : this.rows.ranks.indexOf(rank);
      return AXIS + this.tops[other] - this.first + ROW / 2;
    };
    for (const [from, start, to, end] of this.flows) {
      const [x0, y0, x1, y1] = [this.x(start), middle(from), this.x(end), middle(to)];
      g.beginPath(); g.moveTo(x0, y0); g.bezierCurveTo((x0 + x1) / 2, y0 - 20, (x0 + x1) / 2, y1 - 20, x1, y1); g.stroke();
      g.beginPath(); g.arc(x1, y1, 2.5, 0, 7); g.stroke();
    }
    g.globalAlpha = 1;
  }

  lanes(g) {
    g.fillStyle = colour("--paper"); g.fillRect(0, AXIS, GUTTER - 2, this.height);
    let rank = null;
    for (let row = 0; row < this.tops.length; row++) {
      const top = AXIS + this.tops[row] - this.first;
      if (top > this.element.clientHeight || top < AXIS - ROW * 2) { rank = this.rows.ranks[row]; continue; }
      const isFirst = this.rows.ranks[row] !== rank || row === 0;
      if (isFirst) { rank = this.rows.ranks[row]; g.strokeStyle = colour("--line"); g.beginPath(); g.moveTo(0, top - GAP / 2); g.lineTo(this.element.clientWidth, top - GAP / 2); g.stroke(); }
      g.fillStyle = colour("--text");
      if (isFirst) { g.font = "600 12px system-ui, sans-serif"; g.fillText(`rank ${rank}`, 6, top + ROW / 2); g.font = "12px system-ui, sans-serif"; }
      if (this.rows.names[row]) { g.save(); g.beginPath(); g.rect(60, top, GUTTER - 66, ROW); g.clip(); g.fillText(this.rows.names[row], 62, top + ROW / 2); g.restore(); }
    }
  }

  at(x, y) { // the rectangle under a point
    if (!this.tile || x < GUTTER || y < AXIS) return -1;
    const tile = this.tile, time = this.ns(x), column = (time - tile.low) / (tile.high - tile.low) * tile.columns;
    const slack = 1.5, wanted = y - AXIS + this.first;
    let best = -1;
    for (let k = 0; k < tile.count; k++) {
      const top = this.tops[tile.from + tile.row[k]];
      if (wanted >= top && wanted < top + ROW && column >= tile.left[k] - slack && column <= tile.right[k] + slack &&
          (best < 0 || tile.span[k] >= 0)) best = k;
    }
    return best;
  }

  zoom(factor, x) {
    const about = this.ns(x ?? GUTTER + this.width / 2);
    const span = Math.max((this.high - this.low) * factor, MIN_NS);
    const share = (about - this.low) / (this.high - this.low);
    const limit = Math.max(this.rows.end_ns * 1.2, MIN_NS);
    this.low = about - Math.min(span, limit) * share; this.high = this.low + Math.min(span, limit);
    this.remember(); this.ask();
  }

  pan(share) { const by = (this.high - this.low) * share; this.low += by; this.high += by; this.remember(); this.ask(); }
  scroll(pixels) { this.first = Math.min(Math.max(this.first + pixels, 0), Math.max(this.total - this.height + ROW, 0)); this.ask(); }
  fit() { this.low = 0; this.high = Math.max(this.rows.end_ns, 1); this.remember(); this.ask(); }

  listen() {
    const element = this.element;
    element.addEventListener("wheel", event => {
      event.preventDefault();
      if (event.shiftKey) this.pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
      else if (event.ctrlKey || event.offsetX >= GUTTER && !event.altKey && Math.abs(event.deltaY) > Math.abs(event.deltaX)) this.zoom(Math.exp(event.deltaY * 0.0015), event.offsetX);
      else this.scroll(event.deltaY);
    }, { passive: false });
    element.addEventListener("pointerdown", event => { this.drag = { x: event.offsetX, y: event.offsetY, low: this.low, high: this.high, first: this.first, moved: false }; element.setPointerCapture(event.pointerId); });
    element.addEventListener("pointermove", event => {
      if (!this.drag) { this.hover(event.offsetX, event.offsetY); return; }
      const dx = event.offsetX - this.drag.x, dy = event.offsetY - this.drag.y;
      if (Math.abs(dx) + Math.abs(dy) > 3) this.drag.moved = true;
      if (!this.drag.moved) return;
      const by = dx / this.width * (this.drag.high - this.drag.low);
      this.low = this.drag.low - by; this.high = this.drag.high - by; this.first = this.drag.first;
      this.scroll(-dy); this.remember();
    });
    element.addEventListener("pointerup", event => { const drag = this.drag; this.drag = null; if (drag && !drag.moved) this.choose(event.offsetX, event.offsetY); });
    element.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    element.addEventListener("dblclick", event => this.zoom(0.25, event.offsetX));
    new ResizeObserver(() => this.ask()).observe(element);
    const on = (name, work) => document.getElementById(`timeline-${name}`).addEventListener("click", work);
    on("in", () => this.zoom(0.5)); on("out", () => this.zoom(2)); on("fit", () => this.fit());
    on("next", () => this.match(1)); on("previous", () => this.match(-1));
    on("download", () => { const link = document.createElement("a"); link.href = this.slice(); link.download = "slice.json"; link.click(); });
    on("perfetto", () => this.perfetto());
    this.query().addEventListener("keydown", event => { if (event.key === "Enter") { this.search(this.query().value).then(() => this.remember()); event.preventDefault(); } });
  }

  query() { return document.getElementById("timeline-query"); }
  say(words) { document.getElementById("timeline-details").textContent = words; }
  slice() { return `/data/slice?${new URLSearchParams({ low: Math.floor(this.low), high: Math.ceil(this.high) })}`; }

  hover(x, y) {
    clearTimeout(this.hovering);
    const k = this.at(x, y);
    if (k < 0) { this.tip.hidden = true; return; }
    this.hovering = setTimeout(async () => {
      const tile = this.tile, number = tile.span[k];
      let words = `several spans, mostly ${this.rows.categories[tile.category[k]]}`;
      if (number >= 0) {
        const span = await fetchJson("span", { number });
        words = `${span.name}\n${duration(span.dur_ns)}, ${span.category}, rank ${span.rank}, ${span.lane}`;
      }
      this.tip.textContent = words; this.tip.hidden = false;
      this.tip.style.left = `${Math.min(x + 12, this.element.clientWidth - 300)}px`; this.tip.style.top = `${Math.min(y + 12, this.element.clientHeight - 60)}px`;
    }, 60);
  }

  async choose(x, y) {
    const k = this.at(x, y), number = k < 0 ? -1 : this.tile.span[k];
    this.chosen = number; this.flows = [];
    if (number >= 0) await this.detail(number); else this.say("");
    this.draw();
  }

  async detail(number) {
    const span = await fetchJson("span", { number });
    this.chosen = number; this.flows = span.flows;
    this.say(`${span.name}\nrank ${span.rank}, ${span.lane}, ${span.category}\nfrom ${duration(span.start_ns)} for ${duration(span.dur_ns)}\n${span.args}`);
    return span;
  }

  async search(wanted, rank, jump = true) {
    const said = document.getElementById("timeline-matches");
    if (!wanted) { this.matches = []; this.matchSet.clear(); said.textContent = ""; this.draw(); return; }
    try {
      const found = await fetchJson("search", rank === null || rank === undefined ? { q: wanted } : { q: wanted, rank });
      this.matches = found.spans; this.matchSet = new Set(found.spans); this.matchAt = -1;
      said.textContent = found.count ? `${found.count.toLocaleString()} matches` : "no match";
      if (found.count && jump) await this.match(1);
    } catch (error) { said.textContent = error.message; }
  }

  async match(step) {
    if (!this.matches.length) return;
    this.matchAt = (this.matchAt + step + this.matches.length) % this.matches.length;
    const span = await this.detail(this.matches[this.matchAt]);
    const room = Math.max(span.dur_ns * 2, 1000);
    this.low = span.start_ns - room; this.high = span.start_ns + span.dur_ns + room;
    const top = this.tops[span.row];
    if (top < this.first || top > this.first + this.height - ROW) this.first = Math.max(top - this.height / 2, 0);
    this.remember(); await this.ask();
  }

  async perfetto() {
    const page = window.open("https://ui.perfetto.dev");
    const answer = await fetch(this.slice());
    if (!answer.ok || !page) { this.say(page ? (await answer.json()).error : "the browser did not open a window"); return; }
    const buffer = await answer.arrayBuffer();
    const timer = setInterval(() => page.postMessage("PING", "https://ui.perfetto.dev"), 100);
    const heard = event => {
      if (event.origin !== "https://ui.perfetto.dev" || event.data !== "PONG") return;
      clearInterval(timer); removeEventListener("message", heard);
      page.postMessage({ perfetto: { buffer, title: "slice", keepApiOpen: false } }, "https://ui.perfetto.dev");
    };
    addEventListener("message", heard);
    setTimeout(() => clearInterval(timer), 30000);
  }

  key(event) { // whether it is one of ours
    const acts = {
      "/": () => this.query().focus(), w: () => this.zoom(0.5), s: () => this.zoom(2), a: () => this.pan(-0.2), d: () => this.pan(0.2), D: () => this.pan(0.2),
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), ArrowUp: () => this.scroll(-ROW * 3),
      ArrowDown: () => this.scroll(ROW * 3), 0: () => this.fit(), n: () => this.match(1), N: () => this.match(-1),
    };
    if (!acts[event.key]) return false;
    acts[event.key]();
    return true;
  }
}

let timeline = null;
/** The timeline of the page's element; null without one. */
export function attach(element) {
  if (!element) timeline = null;
  else if (!timeline || timeline.element !== element) timeline = new Timeline(element);
  return timeline;
}
setInterval(async () => { // a live run: the rows of a newer version
  if (!timeline || !timeline.rows || timeline.busy || document.hidden) return;
  const live = document.getElementById("status");
  if (!live || !live.textContent) return;
  try { await timeline.load(); } catch (error) { timeline.say(error.message); }
}, 1000);
