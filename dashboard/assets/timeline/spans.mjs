// The table of spans: searched, sorted and paged by the server; and the matches of a search that n and N go through.
import { element, table } from "./panels.mjs";
import { json } from "./server.mjs";
import { duration, moment } from "./units.mjs";

const PAGE = 50, MAX_BUTTONS = 16, MAX_FOUND_BY_ARGS = 500;
const COLUMNS = [["name", false, "name"], ["lane", false, "lane"], ["rank", true, "rank"], ["step", true, "step"], ["begins", true, "start"], ["takes", true, "duration"], ["exposed", true, "exposed"]];

export class Spans {
  /** act: {go(number), region()} */
  constructor(place, act) {
    this.place = place; this.act = act; this.wanted = ""; this.order = "duration"; this.descending = true; this.offset = 0; this.rank = null; this.step = null; this.category = "";
    this.inRegion = false; this.isOpen = false; this.found = null; this.byArgs = []; this.at = -1; this.matches = new Set(); this.turn = 0; this.ratio = 1;
  }

  /** How many spans a search has found. */
  get count() { return this.wanted && this.search ? this.search.count + this.byArgs.length : 0; }
  get words() {
    if (!this.wanted) return "";
    const looking = this.ratio < 1 ? `, args ${(100 * this.ratio).toFixed(0)} %` : "";
    if (!this.count) return `no match${looking}`;
    return (this.wasShown ? `${(this.at + 1).toLocaleString("en")} of ` : "") + `${this.count.toLocaleString("en")} matches${looking}`;
  }

  /** from: matches are gone through from this moment on. */
  async find(wanted, onChange, from = 0) {
    const turn = ++this.turn;
    this.wanted = wanted; this.offset = 0; this.at = -1; this.wasShown = false; this.byArgs = []; this.matches = new Set(); this.search = null; this.ratio = 1;
    if (wanted) {
      this.isOpen = true; this.order = "start"; this.descending = false;
      const found = await json("spans", this.question({ order: "start", limit: 500 }));
      if (turn !== this.turn) return;
      this.search = { count: found.count, first: found.spans };
      this.matches = new Set(found.spans.map(span => span.number));
      this.at = Math.max(found.spans.findIndex(span => span.start_ns >= from), 0) - 1;
    }
    await this.show();
    onChange();
    if (wanted && !wanted.startsWith("/")) this.lookIntoArgs(turn, onChange).catch(() => { this.ratio = 1; onChange(); });
  }

  async lookIntoArgs(turn, onChange) { // a fifth of a second at a time, in order not to keep the server
    let begin = 0;
    const known = new Set(this.matches);
    do {
      const found = await json("args", { q: this.wanted, begin, ...(this.rank === null ? {} : { rank: this.rank }) });
      if (turn !== this.turn) return;
      for (const span of found.spans) if (!known.has(span.number) && this.byArgs.length < MAX_FOUND_BY_ARGS && !this.isNamed(span)) { known.add(span.number); this.matches.add(span.number); this.byArgs.push(span); }
      begin = found.next; this.ratio = begin ? found.ratio : 1;
      if (found.spans.length || !begin) { this.draw(); onChange(); }
    } while (begin && this.byArgs.length < MAX_FOUND_BY_ARGS);
    this.ratio = 1; onChange();
  }
  isNamed(span) { const wanted = this.wanted.toLowerCase(); return span.name.toLowerCase().includes(wanted) || span.lane.toLowerCase().includes(wanted); }

  question(more) {
    const region = this.inRegion ? this.act.region() : null;
    return {
      ...(this.wanted ? { q: this.wanted } : {}), ...(this.rank === null ? {} : { rank: this.rank }), ...(this.step === null ? {} : { step: this.step }), ...(this.category ? { category: this.category } : {}),
      ...(region ? { low: Math.floor(region[0]), high: Math.ceil(region[1]) } : {}), order: this.order, ...(this.descending ? { descending: 1 } : {}), limit: PAGE, ...more,
    };
  }

  /** The k-th match from here: its number; null if nothing was found. */
  async match(by) {
    if (!this.count) return null;
    this.at = (this.at + by + this.count) % this.count; this.wasShown = true;
    if (this.at >= this.search.count) return this.byArgs[this.at - this.search.count].number;
    if (this.at < this.search.first.length) return this.search.first[this.at].number;
    const found = await json("spans", { ...this.question({ order: "start", offset: this.at, limit: 1 }), descending: 0 });
    return found.spans.length ? found.spans[0].number : null;
  }

  async show() {
    if (!this.isOpen) { this.place.replaceChildren(); return; }
    this.found = await json("spans", this.question({ offset: this.offset }));
    this.draw();
  }

  draw() {
    if (!this.isOpen || !this.found) return;
    const { found } = this, last = Math.min(this.offset + found.spans.length, found.count);
    const row = span => [element("button", { type: "button", class: "plain", title: span.name, onclick: () => this.act.go(span.number) }, span.name), span.lane, String(span.rank), span.step >= 0 ? String(span.step) : "", moment(span.start_ns), duration(span.dur_ns), span.exposed_ns ? duration(span.exposed_ns) : ""];
    const change = values => () => { Object.assign(this, values); this.offset = 0; this.show(); };
    const ranks = Object.entries(found.by_rank), counted = ([rank, count]) => `${rank}: ${count.toLocaleString("en")}`;
    const ofRanks = () => ranks.length > MAX_BUTTONS
      ? [element("select", { "aria-label": "spans of rank", onchange: event => change({ rank: +event.target.value })() }, element("option", { value: "" }, "all ranks"), ...ranks.map(item => element("option", { value: item[0] }, `rank ${counted(item)}`)))]
      : ranks.length > 1 ? ranks.map(item => element("button", { type: "button", onclick: change({ rank: +item[0] }) }, counted(item))) : [];
    const page = (label, offset, can) => element("button", { type: "button", disabled: !can, onclick: () => { this.offset = offset; this.show(); } }, label);
    this.place.replaceChildren(
      element("h3", {}, this.wanted ? `Spans with “${this.wanted}”` : "Spans", ` (${found.count.toLocaleString("en")})`),
      element("div", { class: "toolbar" },
        ranks.length > 1 || this.rank !== null ? element("span", { class: "soft" }, "by rank") : null,
        ...(this.rank !== null ? [element("button", { type: "button", onclick: change({ rank: null }) }, `rank ${this.rank} ×`)] : ofRanks()),
        this.step !== null ? element("button", { type: "button", onclick: change({ step: null }) }, `step ${this.step} ×`) : null,
        this.category ? element("button", { type: "button", onclick: change({ category: "" }) }, `${this.category} ×`) : null,
        this.act.region() ? element("button", { type: "button", "aria-pressed": String(this.inRegion), onclick: change({ inRegion: !this.inRegion }) }, "in the region only") : null,
        page("◀", Math.max(this.offset - PAGE, 0), this.offset > 0), `${found.count ? (this.offset + 1).toLocaleString("en") : 0} to ${last.toLocaleString("en")}`, page("▶", this.offset + PAGE, last < found.count),
        element("button", { type: "button", onclick: () => { this.isOpen = false; this.show(); } }, "close")),
      table(COLUMNS, found.spans.map(row), { order: this.order, descending: this.descending, onOrder: key => { this.descending = key === this.order ? !this.descending : !["name", "lane", "start", "rank", "step"].includes(key); this.order = key; this.offset = 0; this.show(); } }),
      ...(this.byArgs.length ? [element("h4", {}, `By their args (${this.byArgs.length.toLocaleString("en")}${this.byArgs.length >= MAX_FOUND_BY_ARGS ? " and perhaps more" : ""})`), table(COLUMNS.map(([words, isNumber]) => [words, isNumber]), this.byArgs.slice(0, PAGE).map(row))] : []),
    );
  }
}
