// Keys of the timeline; those of Perfetto where it has one.
import { element } from "./panels.mjs";
import { ROW } from "./layout.mjs";

const HELP = [
  ["W S, + -", "zoom in and out"], ["A D", "move"], ["F", "fit the chosen span, the region, or the run"], ["0", "the steps of the run; again: all of it"],
  ["/", "search; Enter and shift+Enter: next and previous match (also n, N)"], ["← →", "previous and next span of the row (moves while none is chosen)"], ["↑ ↓", "span in the row above and below (scrolls while none is chosen)"],
  ["Enter", "choose a span in the middle of the screen"], ["[ ]", "what the chosen span is connected with"], ["M", "mark: the region becomes the chosen span, or what is on the screen"], ["shift+M", "a marker at the pointer; a click on the ruler, too"],
  ["C", "critical path"], ["T", "table of spans, longest first"], ["B", "beside: a usual step, the other run, nothing"], ["P", "pin the rank of the chosen span or under the pointer"], ["X", "collapse it"], ["L", "copy a link to this view"], ["Esc", "let go"], ["?", "this help"],
  ["drag on the ruler, shift-drag", "a region, whose edges snap to spans"], ["wheel, drag", "zoom, move; alt+wheel: scroll; shift+wheel: sideways"],
];

/** Whether a key is one of the timeline's, which then acts. */
export function press(timeline, event) {
  const t = timeline, hasSpan = t.chosen >= 0;
  if (event.key === "Enter" && event.target.closest("button, a, summary")) return false; // it is theirs
  const acts = {
    w: () => t.zoom(0.5), s: () => t.zoom(2), a: () => t.pan(-0.2), d: () => t.pan(0.2), "+": () => t.zoom(0.5), "=": () => t.zoom(0.5), "-": () => t.zoom(2),
    ArrowLeft: () => (hasSpan ? t.step(-1) : t.pan(-0.2)), ArrowRight: () => (hasSpan ? t.step(1) : t.pan(0.2)),
    ArrowUp: () => (hasSpan ? t.rowBeside(-1) : t.scroll(-ROW * 3)), ArrowDown: () => (hasSpan ? t.rowBeside(1) : t.scroll(ROW * 3)),
    PageUp: () => t.scroll(-t.panes[0].height), PageDown: () => t.scroll(t.panes[0].height),
    Enter: () => (t.spans.count ? t.match(event.shiftKey ? -1 : 1) : t.chooseMiddle()), "/": () => t.query().focus(), f: () => t.fit(), 0: () => t.whole(),
    n: () => t.match(1), N: () => t.match(-1), "[": () => t.follow(-1), "]": () => t.follow(1), m: () => t.mark(), M: () => t.addMarker(t.pointer.ns),
    c: () => t.togglePath(), t: () => t.toggleTable(), b: () => t.nextBeside(), p: () => t.pin(), x: () => t.fold(), l: () => t.copyLink(), "?": () => t.help(), Escape: () => t.letGo(),
  };
  const key = event.shiftKey || event.key.length > 1 ? event.key : event.key.toLowerCase();
  const act = acts[key] || (event.key.length === 1 && !event.shiftKey ? undefined : acts[event.key.toLowerCase()]);
  if (!act) return false;
  Promise.resolve(act()).catch(error => t.say(error.message));
  return true;
}

export function help() {
  return [element("h3", {}, "Keys"), element("div", { class: "scrolls" }, element("table", { class: "compact facts" }, element("tbody", {}, ...HELP.map(([keys, words]) => element("tr", {}, element("th", { scope: "row" }, keys), element("td", {}, words))))))];
}
