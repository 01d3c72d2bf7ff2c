// The timeline page: what is shown, what is chosen, and the one loop that asks the server and draws.
import { isElsewhere, linkFor, readAddress, writeAddress } from "./address.mjs";
import { colour } from "./colours.mjs";
import { help, press } from "./keys.mjs";
import { isFolded, ROW } from "./layout.mjs";
import { AXIS, drawAxis, drawFlows, drawMarkers, drawPointer, drawRegion, STEPS } from "./overlay.mjs";
import { Pane } from "./pane.mjs";
import { describeRegion, describeSpan, element, fillControls, swatch } from "./panels.mjs";
import { openInPerfetto } from "./perfetto.mjs";
import { listen } from "./pointer.mjs";
import { json, ranges } from "./server.mjs";
import { Spans } from "./spans.mjs";
import { duration } from "./units.mjs";
import { View } from "./view.mjs";

/** Collapsed ranks that are opened where evidence is of all of them. */
const FOCUS_RANKS = 2;

const byId = name => document.getElementById(`timeline-${name}`);

export class Timeline {
  constructor(place) {
    fillControls(document);
    this.element = place; this.canvas = element("canvas", { "aria-hidden": "true" }); this.tip = element("div", { class: "tip", hidden: true });
    place.replaceChildren(this.canvas, this.tip);
    this.view = new View(); this.panes = [new Pane("0")]; this.chosen = -1; this.chosenPane = 0; this.flows = []; this.span = null; this.region = null; this.regionRows = null;
    this.busy = false; this.again = false; this.isRestored = false; this.hasPath = false; this.focus = null; this.drag = null; this.pointer = { x: -1, y: -1, ns: 0 };
    this.forget();
    listen(this); this.listen();
    this.ready = this.begin();
  }
  async begin() { // of a run that is still being opened it is asked for again and again
    const late = setTimeout(() => { if (!this.rows) this.say("The timeline is being prepared …"); }, 400);
    for (let isLater = true; isLater && !this.rows;) {
      try { await this.load(() => { clearTimeout(late); this.say(""); }); return; } catch (error) { this.say(error.message); isLater = error.isLater && this.element.isConnected; }
      await new Promise(done => setTimeout(done, 1000));
    }
  }

  // What other modules ask.
  get rows() { return this.panes[0].rows; }
  get gutter() { return Math.min(250, Math.max(Math.round(this.element.clientWidth * 0.3), 134)); } // on a phone lanes keep their names
  get width() { return Math.max(this.element.clientWidth - this.gutter, 50); }
  get low() { return this.view.low; } get high() { return this.view.high; }
  x(ns) { return this.gutter + (ns - this.view.low) / this.view.length * this.width; }
  query() { return byId("query"); }
  say(words) { byId("details").replaceChildren(words); }
  key(event) { return press(this, event); }
  paneAt(y) { return this.panes.find(pane => y >= pane.top && y < pane.top + pane.height) || null; }
  isDim(pane, item, category, start, end) {
    const focus = this.focus;
    if (!focus || pane !== this.panes[0]) return false;
    return !((!focus.show || pane.rows.categories[category] === focus.show) && (!focus.ranks || focus.ranks.has(item.rank)) && (focus.low === undefined || end > focus.low && start < focus.high));
  }
  isChosen(pane, number) { return number === this.chosen && pane === this.panes[this.chosenPane]; }
  isMatch(pane, number) { return pane === this.panes[0] && this.spans.matches.has(number); }

  forget() { // all that somebody has set
    if (this.spans) this.spans.turn++; // what it still looks for is nobody's
    this.options = { folded: new Set(), unfolded: new Set(), open: new Set(), pinned: [], filter: "", sort: "" };
    this.spans = new Spans(byId("spans"), { go: number => this.go(number), region: () => this.region });
    this.markers = []; this.by = "name"; this.beside = ""; this.stepShown = undefined; this.panes.length = 1; this.panes[0].words = "";
  }
  async readdress() { // the state of an address to which the browser has gone
    if (!this.isRestored || !isElsewhere()) return;
    this.isRestored = false;
    this.forget(); this.letGo();
    for (const name of ["spans", "matches"]) byId(name).replaceChildren();
    this.query().value = ""; byId("beside").value = "";
    this.view.show(0, this.rows.end_ns);
    try { await this.restore(); } catch (error) { this.say(error.message); }
    this.isRestored = true;
    await this.ask();
  }

  async load(onRows = () => {}) {
    const before = this.rows, atEnd = before && this.view.high >= before.end_ns * 0.999;
    if (before) { const known = await json("version"); if (known.version === this.version) return; }
    await this.panes[0].load(); onRows();
    const rows = this.rows; this.version = rows.version; this.view.end = Math.max(rows.end_ns, 1);
    this.arrange(); this.legend();
    if (!before) { await this.restore(); this.isRestored = true; }
    else if (atEnd && rows.end_ns > before.end_ns) this.view.show(this.view.low + rows.end_ns - this.view.high, rows.end_ns);
    await this.ask();
  }

  arrange() {
    const free = Math.max(this.element.clientHeight - AXIS - STEPS, 20), share = Math.floor(free / this.panes.length);
    this.panes.forEach((pane, number) => {
      pane.top = AXIS + STEPS + number * share; pane.height = share - (number ? 0 : this.panes.length - 1); pane.left = this.gutter; pane.width = this.width;
      if (pane.rows) { pane.arrange(this.options); pane.scrollTo(pane.first); }
    });
  }
  rearrange() { this.arrange(); this.remember(); return this.ask(); }

  legend() {
    const { used, colours, labels } = this.rows, shown = used.map(k => [labels[k], colours[k]]);
    byId("legend").replaceChildren(...shown.map(([label, fill]) => element("span", {}, swatch(fill), label)));
    byId("path").hidden = !this.rows.has_path;
    byId("beside").querySelector("[value=run]").hidden = !this.rows.compares;
  }

  async restore() { // the state that the address names
    const asked = readAddress(), { options } = this;
    for (const name of ["folded", "unfolded"]) for (const rank of asked[name] || []) options[name].add(+rank);
    for (const key of asked.open || []) options.open.add(key);
    options.pinned = (asked.pinned || []).map(Number); options.filter = asked.filter || ""; options.sort = asked.sort || "";
    byId("filter").value = options.filter; byId("sort").value = options.sort; this.hasPath = asked.path && this.rows.has_path; byId("path").setAttribute("aria-pressed", String(this.hasPath));
    this.markers = (asked.marks || []).map(Number).filter(Number.isFinite);
    const ranks = asked.ranks ? asked.ranks.map(Number) : asked.rank !== undefined ? [asked.rank] : null;
    for (const rank of ranks || []) options.unfolded.add(rank);
    this.arrange();
    this.whole();
    let step = null;
    if (asked.step !== undefined) {
      try { step = await json("step", { number: asked.step }); this.view.show(step.low_ns - (step.high_ns - step.low_ns) * 0.1, step.high_ns + (step.high_ns - step.low_ns) * 0.1); this.stepShown = asked.step; } catch (error) { this.say(error.message); }
    }
    if (!this.rows.categories.includes(asked.show)) asked.show = "";
    if (asked.show && !ranks) { // what is to be seen of all ranks is seen on the first ones, also where ranks are collapsed
      for (const rank of [...new Set(this.rows.ranks)].slice(0, FOCUS_RANKS)) options.unfolded.add(rank);
      this.arrange();
    }
    if (asked.show || asked.ranks) this.focus = { show: asked.show || "", ranks: asked.ranks ? new Set(ranks) : null, ...(step ? { low: step.low_ns, high: step.high_ns } : {}) };
    if (ranks && asked.scroll === undefined) this.toRank(ranks[0]);
    if (asked.to > asked.from) this.view.show(asked.from, asked.to);
    if (asked.scroll !== undefined) this.panes[0].scrollTo(asked.scroll);
    this.sayFocus();
    if (asked.q) { this.query().value = asked.q; await this.search(asked.q, asked.from === undefined && !step); if (this.focus) { this.spans.isOpen = false; await this.spans.show(); } }
    if (asked.panel === "spans" && !asked.q) { this.spans.isOpen = true; this.spans.order = asked.order || "duration"; await this.spans.show(); }
    if (asked.span !== undefined) await this.detail(asked.span).catch(error => this.say(error.message));
    if (asked.region && +asked.region[1] > +asked.region[0]) { this.region = [+asked.region[0], +asked.region[1]]; this.regionRows = asked.regionrows ? asked.regionrows.join(",") : null; this.by = asked.by || "name"; await this.showRegion(); }
    if (asked.beside) { byId("beside").value = asked.beside; await this.setBeside(asked.beside); }
  }

  sayFocus() {
    const place = byId("focus"), { focus } = this;
    if (!focus) { place.replaceChildren(); return; }
    const label = this.rows.labels[this.rows.categories.indexOf(focus.show)];
    const words = [focus.show && `spans of “${label}”`, focus.ranks && `of rank ${[...focus.ranks].join(", ")}`, this.stepShown !== undefined && `in step ${this.stepShown}`].filter(Boolean).join(" ");
    place.replaceChildren(`The evidence: ${words}. The rest is pale. `, element("button", { type: "button", onclick: () => { this.focus = null; this.sayFocus(); this.remember(); this.draw(); } }, "show all"));
  }

  toRank(rank) { const item = this.panes[0].layout.items.find(each => each.rank === rank && each.isFirst); if (item) for (const pane of this.panes) pane.scrollTo(item.top - 6 - pane.layout.pinnedHeight); }

  remember() { // not before all that the address asks for is there, and not for a page that has been left
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => { if (location.pathname === "/timeline" && this.isRestored && this.element.isConnected) writeAddress(this.state()); }, 250);
  }
  state() {
    const { options, focus } = this;
    return {
      from: Math.round(this.view.low), to: Math.round(this.view.high), scroll: Math.round(this.panes[0].first) || "", q: this.query().value, span: this.chosen >= 0 && !this.chosenPane ? this.chosen : "",
      show: focus?.show, ranks: focus?.ranks ? [...focus.ranks] : "", step: this.stepShown, path: this.hasPath, beside: this.beside, sort: options.sort, filter: options.filter, pinned: options.pinned,
      folded: [...options.folded], unfolded: [...options.unfolded], open: [...options.open], marks: this.markers.map(Math.round), region: this.region ? this.region.slice(0, 2).map(Math.round) : "", regionrows: this.regionRows || "",
      by: this.region && this.by !== "name" ? this.by : "", panel: this.spans.isOpen && !this.spans.wanted ? "spans" : "", order: this.spans.isOpen && !this.spans.wanted ? this.spans.order : "",
    };
  }
  async copyLink() {
    writeAddress(this.state());
    const { base } = await json("link"), link = linkFor(base);
    try { await navigator.clipboard.writeText(link); this.say(`Copied: ${link}`); } catch { this.say(link); }
  }

  // One round of requests at a time; while it runs, only the newest wish is remembered, and the old picture is drawn to scale.
  async ask() {
    if (!this.rows || !this.panes[0].layout) return;
    this.draw();
    delete this.element.dataset.painted; // what is drawn to its end; not before all that the address asks for is there
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    try {
      do { this.again = false; await Promise.all(this.panes.filter(pane => pane.layout).map(pane => pane.ask(this.view, this.hasPath))); this.draw(); } while (this.again);
    } catch (error) { this.say(`no answer: ${error.message}`); } finally { this.busy = false; }
    if (this.isRestored) this.element.dataset.painted = `${Math.floor(this.view.low)}:${Math.ceil(this.view.high)}`;
  }

  draw() {
    if (!this.rows || this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.paint(); });
  }
  paint() {
    const ratio = devicePixelRatio || 1, wide = this.element.clientWidth, high = this.element.clientHeight;
    if (this.canvas.width !== Math.round(wide * ratio) || this.canvas.height !== Math.round(high * ratio)) { this.canvas.width = Math.round(wide * ratio); this.canvas.height = Math.round(high * ratio); }
    const g = this.canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0); g.fillStyle = colour("--paper"); g.fillRect(0, 0, wide, high);
    for (const pane of this.panes) if (pane.layout) { pane.draw(g, this.view, this); if (pane.top > AXIS + STEPS) { g.fillStyle = colour("--soft"); g.fillRect(0, pane.top - 2, wide, 2); } }
    drawAxis(g, this); drawFlows(g, this); drawRegion(g, this); drawMarkers(g, this); drawPointer(g, this);
    // Only what is on the screen has room for a name or not; while more is awaited, that is about to change.
    if (!this.busy) for (const pane of this.panes) if (pane.layout) pane.label().then(isNew => { if (isNew) this.draw(); }).catch(error => this.say(error.message));
  }

  zoom(factor, about) { this.view.zoom(factor, about); this.remember(); return this.ask(); }
  pan(share) { this.view.pan(share); this.remember(); return this.ask(); }
  scroll(pixels) { for (const pane of this.panes) if (pane.layout) pane.scrollTo(pane.first + pixels); this.remember(); return this.ask(); }
  show(low, high) { this.view.show(low, high); this.remember(); return this.ask(); }
  whole() { // the steps; what comes before the first one is shown when this is asked for again
    const { first_step_ns: low, last_step_ns: high, end_ns: end } = this.rows, room = (high - low) * 0.01;
    const isShown = Math.abs(this.view.low - (low - room)) < 1 + room && Math.abs(this.view.high - (high + room)) < 1 + room;
    return isShown || high <= low ? this.show(0, end) : this.show(low - room, high + room);
  }
  fit() {
    if (this.span) { const room = Math.max(this.span.dur_ns * 0.1, 50); return this.show(this.span.start_ns - room - this.panes[this.chosenPane].shift, this.span.start_ns + this.span.dur_ns + room - this.panes[this.chosenPane].shift); }
    return this.region ? this.show(this.region[0], this.region[1]) : this.whole();
  }

  // Choosing.
  async detail(number, pane = 0) { return this.take(await json("span", { number, run: this.panes[pane].run }), pane); }
  take(span, pane = 0) {
    this.chosen = span.number; this.chosenPane = pane; this.flows = span.flows; this.span = span;
    byId("details").replaceChildren(...describeSpan(span, { select: (row, at) => this.near(row, at, 0) }));
    this.remember(); this.draw();
    return span;
  }
  reveal(span) { // so that it is on the screen
    const pane = this.panes[this.chosenPane];
    if (!pane.itemOfRow.has(span.row)) { this.options.unfolded.add(span.rank); this.options.folded.delete(span.rank); if (pane.rows.kinds[pane.rows.kind[span.row]] === "tensor") this.options.open.add(`tensor:${span.rank}`); this.arrange(); }
    const item = pane.itemOfRow.get(span.row);
    if (item && !item.isPinned) { const y = pane.y(item); if (y < pane.top + pane.layout.pinnedHeight || y > pane.top + pane.height - ROW) pane.scrollTo(item.top - pane.height / 2); }
    const low = span.start_ns - pane.shift, high = low + span.dur_ns;
    if (high < this.view.low || low > this.view.high || high - low > this.view.length || (high - low) / this.view.length * this.width < 2) { const room = Math.max(span.dur_ns * 2, 1000); this.view.show(low - room, high + room); }
    this.remember();
    return this.ask();
  }
  async go(number) { await this.reveal(await this.detail(number)); this.element.scrollIntoView({ block: "nearest" }); }
  async near(row, at, turn) { await this.reveal(this.take(await json("near", { row, at, turn, run: this.panes[this.chosenPane].run }), this.chosenPane)); }
  step(turn) { return this.near(this.span.row, this.span.start_ns, turn); }
  rowBeside(turn) {
    const pane = this.panes[this.chosenPane], items = pane.layout.items.filter(item => item.type === "row"), at = items.findIndex(item => item.row === this.span.row), next = items[at + turn];
    const middle = Math.min(Math.max(this.span.start_ns + this.span.dur_ns / 2, this.view.low + pane.shift), this.view.high + pane.shift);
    return next ? this.near(next.row, Math.round(middle), 0) : undefined;
  }
  chooseMiddle() {
    const pane = this.panes[0], items = pane.visible().filter(item => item.type === "row"), compute = items.find(item => pane.rows.kinds[pane.rows.kind[item.row]] === "compute") || items[0];
    this.chosenPane = 0;
    return compute ? this.near(compute.row, Math.round((this.view.low + this.view.high) / 2), 0) : undefined;
  }
  follow(turn) {
    if (!this.span || !this.flows.length) { this.say("Choose a span with arrows first: a collective, a tensor, a kernel."); return undefined; }
    this.flowAt = ((this.flowAt ?? (turn > 0 ? -1 : 0)) + turn + this.flows.length) % this.flows.length;
    const [from, start, to, end] = this.flows[this.flowAt], isHere = to === this.span.row && Math.abs(end - this.span.start_ns) <= this.span.dur_ns;
    return this.near(isHere ? from : to, isHere ? start : end, 0);
  }
  async click(x, y) {
    if (y < AXIS && x >= this.gutter) { const near = this.markers.findIndex(at => Math.abs(this.x(at) - x) < 6); if (near >= 0) { this.markers.splice(near, 1); this.remember(); this.draw(); } else this.addMarker(this.view.low + (x - this.gutter) / this.width * this.view.length); return; }
    const pane = this.paneAt(y), item = pane && pane.itemAt(y);
    if (item && x < this.gutter) {
      if (item.type === "group") { this.options.open[this.options.open.has(item.key) ? "delete" : "add"](item.key); await this.rearrange(); } else this.fold(item.rank);
      return;
    }
    const found = pane && pane.at(x, y, this.view);
    this.chosen = -1; this.flows = []; this.span = null;
    if (found && found.span >= 0) await this.detail(found.span, this.panes.indexOf(pane));
    else if (found) this.say(`Several spans, mostly ${found.category}: zoom in to see each.`);
    else this.say("");
    this.draw();
  }
  letGo() {
    if (byId("help").childElementCount) { byId("help").replaceChildren(); return; }
    this.chosen = -1; this.span = null; this.flows = []; this.region = null; this.regionRows = null; this.focus = null; this.sayFocus(); byId("region").replaceChildren(); this.say(""); this.remember(); this.draw();
  }

  // Regions and markers.
  snapped(x, y, isRuler) {
    const ns = this.view.low + (x - this.gutter) / this.width * this.view.length, pane = isRuler ? this.panes[0] : this.paneAt(y);
    if (!pane || !pane.layout) return { ns, row: -1 };
    if (isRuler && pane.steps) { // of steps
      const edges = [...pane.steps.low_ns, ...pane.steps.high_ns].map(at => at - pane.shift), near = edges.filter(at => Math.abs(at - ns) < this.view.length / this.width * 6).sort((a, b) => Math.abs(a - ns) - Math.abs(b - ns))[0];
      return { ns: near ?? ns, row: -1 };
    }
    const item = pane.itemAt(y), { ns: at, isEdge } = pane.snap(ns, item, this.view);
    return { ns: at, row: isEdge && item ? item.row : -1, pane };
  }
  dragRegion(drag, x, y) {
    drag.end = this.snapped(x, y, drag.isRuler);
    const [low, high] = [drag.begin.ns, drag.end.ns].sort((a, b) => a - b), [top, bottom] = [drag.y, y].sort((a, b) => a - b);
    this.region = [low, high, top, bottom];
    const inside = drag.isRuler || !drag.pane ? [] : drag.pane.visible().filter(item => item.type === "row" && drag.pane.y(item) + ROW > top && drag.pane.y(item) < bottom).map(item => item.row).sort((a, b) => a - b);
    this.regionRows = drag.isRuler ? null : ranges(inside);
    this.draw();
  }
  async endRegion(drag) {
    const exact = async edge => edge.row < 0 ? Math.round(edge.ns) : (await json("edge", { row: edge.row, at: Math.round(edge.ns + edge.pane.shift), within: Math.ceil(this.view.length / this.width * 8), run: edge.pane.run })).ns - edge.pane.shift;
    const [low, high] = (await Promise.all([exact(drag.begin), exact(drag.end || drag.begin)])).sort((a, b) => a - b);
    if (high <= low) { this.region = null; this.draw(); return; }
    this.region = [low, high];
    await this.showRegion();
  }
  async showRegion() {
    // What lies before and after the run is nothing, and not idle time.
    const [low, high] = this.region.slice(0, 2).map(at => Math.round(Math.min(Math.max(at, 0), this.rows.end_ns)));
    this.region = high > low ? [low, high] : null;
    if (!this.region) { byId("region").replaceChildren(); this.remember(); this.draw(); return; }
    this.remember(); this.draw();
    const found = await json("region", { low, high, by: this.by, ...(this.regionRows ? { rows: this.regionRows } : {}) });
    const { categories, colours, labels } = this.rows;
    byId("region").replaceChildren(...describeRegion(found, this.by, {
      by: name => { this.by = name; this.showRegion(); }, close: () => { this.region = null; this.regionRows = null; byId("region").replaceChildren(); this.remember(); this.draw(); },
      search: words => { this.query().value = words; this.search(words, false); }, colourOf: name => colours[categories.indexOf(name)], labelOf: name => labels[categories.indexOf(name)],
    }));
    byId("region").dataset.of = `${low}:${high}:${this.by}`;
  }
  mark() { this.region = this.span ? [this.span.start_ns, this.span.start_ns + Math.max(this.span.dur_ns, 1)] : [this.view.low, this.view.high]; this.regionRows = null; return this.showRegion(); }
  addMarker(ns) { this.markers.push(Math.round(ns)); this.remember(); this.draw(); }

  // Rows.
  rankHere() { return this.span ? this.span.rank : this.paneAt(this.pointer.y)?.itemAt(this.pointer.y)?.rank ?? this.panes[0].visible()[0]?.rank; }
  fold(rank = this.rankHere()) {
    const { folded, unfolded } = this.options, now = isFolded(this.rows, this.options, rank);
    folded.delete(rank); unfolded.delete(rank);
    (now ? unfolded : folded).add(rank);
    return this.rearrange();
  }
  foldAll() {
    const ranks = Object.keys(this.rows.exposed_ns).map(Number), all = ranks.every(rank => isFolded(this.rows, this.options, rank));
    this.options.folded = new Set(all ? [] : ranks); this.options.unfolded = new Set(all ? ranks : []);
    return this.rearrange();
  }
  pin(rank = this.rankHere()) { const { pinned } = this.options, at = pinned.indexOf(rank); if (at >= 0) pinned.splice(at, 1); else pinned.push(rank); return this.rearrange(); }
  togglePath() { if (!this.rows.has_path) { this.say("This trace allows no critical path: its ranks' clocks are not aligned, or nothing was computed."); return undefined; } this.hasPath = !this.hasPath; byId("path").setAttribute("aria-pressed", String(this.hasPath)); this.remember(); return this.ask(); }
  toggleTable() { // beside evidence it begins with that
    this.spans.isOpen = !this.spans.isOpen;
    if (this.spans.isOpen && this.focus) { this.spans.category = this.focus.show; this.spans.step = this.stepShown ?? null; this.spans.rank = this.focus.ranks?.size === 1 ? [...this.focus.ranks][0] : null; this.spans.offset = 0; }
    this.remember(); return this.spans.show(); }
  nextBeside() { const values = ["", "step", ...(this.rows.compares ? ["run"] : [])], next = values[(values.indexOf(this.beside) + 1) % values.length]; byId("beside").value = next; return this.setBeside(next); }

  /** "step": a usual step of this run below; "run": the other run, aligned at the step on the screen. */
  async setBeside(what) {
    this.beside = what; this.panes.length = 1; this.panes[0].words = ""; this.chosenPane = 0;
    if (what) {
      const middle = (this.view.low + this.view.high) / 2, near = await json("steps", { low: Math.floor(this.view.low), high: Math.ceil(this.view.high) });
      let number = this.stepShown, at = near.numbers.indexOf(number);
      if (at < 0) { at = near.low_ns.findIndex((low, k) => low <= middle && middle < near.high_ns[k]); if (at < 0 && near.numbers.length) at = 0; number = near.numbers[at]; }
      if (number === undefined) { this.say("Zoom in until steps can be told apart: one of them is set beside another."); this.beside = ""; byId("beside").value = ""; return this.rearrange(); }
      const here = await json("step", { number }), other = new Pane(what === "run" ? "1" : "0");
      const wanted = what === "step" ? here.usual : number;
      let there = null;
      try { there = await json("step", { number: wanted, run: other.run }); } catch { there = await json("step", { number: (await json("steps", { low: 0, high: 2 ** 52, run: other.run })).numbers[0] ?? 0, run: other.run }); }
      other.shift = there.low_ns - here.low_ns; other.first = this.panes[0].first;
      const length = step => duration(step.took_ns);
      this.panes[0].words = `step ${number}: ${length(here)}`; other.words = `${what === "run" ? "the other run, " : "a usual one, "}step ${wanted}: ${length(there)}`;
      await other.load(); this.panes.push(other); this.stepShown = number;
      if (this.view.length > 3 * (here.high_ns - here.low_ns)) this.view.show(here.low_ns - (here.high_ns - here.low_ns) * 0.1, Math.max(here.high_ns, here.low_ns + there.high_ns - there.low_ns) + (here.high_ns - here.low_ns) * 0.1);
    }
    return this.rearrange();
  }

  // Search.
  async search(wanted, jump = true) {
    const said = () => { byId("matches").textContent = this.spans.words; this.draw(); };
    try { await this.spans.find(wanted.trim(), said, this.view.low); if (jump && this.spans.count) await this.match(1); } catch (error) { byId("matches").textContent = error.message; }
    this.remember();
  }
  async match(by) { const number = await this.spans.match(by); byId("matches").textContent = this.spans.words; if (number !== null) await this.reveal(await this.detail(number)); }

  hover(x, y) {
    clearTimeout(this.hovering); this.draw();
    const pane = this.paneAt(y), item = pane && pane.itemAt(y), tip = words => { this.tip.textContent = words; this.tip.hidden = false; this.tip.style.left = `${Math.max(Math.min(x + 12, this.element.clientWidth - 320), 4)}px`; this.tip.style.top = `${Math.min(y + 14, this.element.clientHeight - 70)}px`; };
    if (item && x < this.gutter) { const host = pane.rows.hosts[item.rank]; tip([`rank ${item.rank}${host ? ` on ${host}` : ""}`, item.label, `waits for communication ${duration(pane.rows.exposed_ns[item.rank] || 0)} in all`, item.type === "group" ? "click: open or close" : "click: collapse (X), P: pin"].filter(Boolean).join("\n")); return; }
    if (item && item.type === "counter") { const points = pane.counters[item.counter] || [], at = this.pointer.ns + pane.shift, last = points.filter(point => point[0] <= at).pop(); if (last) tip(`${item.label}: ${+last[2].toPrecision(6)}`); return; }
    const found = pane && pane.at(x, y, this.view);
    if (!found) { this.tip.hidden = true; return; }
    if (found.span < 0) { tip(`several spans, mostly ${found.category}`); return; }
    this.hovering = setTimeout(async () => {
      try { const span = await json("span", { number: found.span, run: pane.run }); tip(`${span.name}\n${duration(span.dur_ns)}, ${found.category === span.category ? span.category : `waits: ${found.category}`}, rank ${span.rank}${span.step >= 0 ? `, step ${span.step}` : ""}\n${span.lane}`); } catch { this.tip.hidden = true; }
    }, 60);
  }
  help() { const place = byId("help"); place.replaceChildren(...(place.childElementCount ? [] : help())); if (place.childElementCount) place.scrollIntoView({ block: "nearest" }); }

  listen() {
    new ResizeObserver(() => { this.arrange(); this.ask(); }).observe(this.element);
    const on = (name, work, kind = "click") => byId(name).addEventListener(kind, event => Promise.resolve(work(event)).catch(error => this.say(error.message)));
    on("in", () => this.zoom(0.5)); on("out", () => this.zoom(2)); on("fit", () => this.fit()); on("next", () => this.match(1)); on("previous", () => this.match(-1));
    on("path", () => this.togglePath()); on("table", () => this.toggleTable()); on("link", () => this.copyLink()); on("show-help", () => this.help()); on("collapse", () => this.foldAll());
    on("beside", event => this.setBeside(event.target.value), "change"); on("sort", event => { this.options.sort = event.target.value; return this.rearrange(); }, "change");
    on("filter", event => { this.options.filter = event.target.value; for (const pane of this.panes) pane.first = 0; return this.rearrange(); }, "input");
    on("download", () => element("a", { href: this.slice(), download: "slice.json" }).click()); on("perfetto", () => openInPerfetto(this.slice(), words => this.say(words)));
    this.query().addEventListener("keydown", event => {
      if (event.key === "Escape") this.element.focus();
      if (event.key !== "Enter") return;
      event.preventDefault();
      if (this.query().value.trim() && this.query().value.trim() === this.spans.wanted && this.spans.count) this.match(event.shiftKey ? -1 : 1); else this.search(this.query().value);
    });
  }
  slice() { return `/data/slice?${new URLSearchParams({ low: Math.floor(this.view.low), high: Math.ceil(this.view.high) })}`; }
}
