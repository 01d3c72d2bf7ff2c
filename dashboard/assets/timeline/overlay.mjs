// What lies over the rows: axis, numbers of steps, region, markers, the pointer's time, arrows.
import { colour } from "./colours.mjs";
import { ROW } from "./layout.mjs";
import { duration, moment, ticks } from "./units.mjs";

export const AXIS = 22, STEPS = 15;

export function drawAxis(g, t) {
  const wide = t.element.clientWidth, { base, ticks: found } = ticks(t.view.low, t.view.high, t.width), pane = t.panes[0];
  g.fillStyle = colour("--paper"); g.fillRect(0, 0, wide, AXIS + STEPS);
  g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle"; g.fillStyle = colour("--soft"); g.strokeStyle = colour("--line"); g.lineWidth = 1;
  if (base) g.fillText(base, 6, AXIS / 2);
  g.save(); g.beginPath(); g.rect(t.gutter, 0, t.width, t.element.clientHeight); g.clip();
  for (const [at, words] of found) {
    const x = t.x(at);
    g.beginPath(); g.moveTo(x, AXIS - 6); g.lineTo(x, AXIS); g.stroke();
    g.fillText(words, x + 3, AXIS / 2);
  }
  if (pane.steps) {
    const { numbers, low_ns: low, high_ns: high } = pane.steps;
    g.font = "11px system-ui, sans-serif";
    numbers.forEach((number, k) => {
      const left = Math.max(t.x(low[k] - pane.shift), t.gutter), right = Math.min(t.x(high[k] - pane.shift), t.gutter + t.width);
      if (right - left < 1) return;
      g.fillStyle = colour(number % 2 ? "--back" : "--line"); g.fillRect(left, AXIS, right - left - 1, STEPS - 1);
      const words = right - left > 60 ? `step ${number}` : String(number);
      if (g.measureText(words).width < right - left - 6) { g.fillStyle = colour("--text"); g.fillText(words, left + 4, AXIS + STEPS / 2); }
    });
    if (!numbers.length && pane.steps.count) { g.fillStyle = colour("--soft"); g.fillText(`${pane.steps.count.toLocaleString("en")} steps`, t.gutter + 4, AXIS + STEPS / 2); }
  }
  g.restore();
  g.strokeStyle = colour("--line"); g.beginPath(); g.moveTo(0, AXIS + STEPS - 0.5); g.lineTo(wide, AXIS + STEPS - 0.5); g.stroke();
}

export function drawRegion(g, t) {
  if (!t.region) return;
  const [low, high, top, bottom] = t.region, left = Math.max(t.x(low), t.gutter), right = Math.min(t.x(high), t.gutter + t.width);
  const [from, to] = t.regionRows ? [top, bottom] : [AXIS, t.element.clientHeight];
  g.fillStyle = colour("--accent");
  if (right > left) {
    g.globalAlpha = 0.13; g.fillRect(left, t.drag ? from : AXIS + STEPS, right - left, t.drag ? to - from : t.element.clientHeight); g.globalAlpha = 1;
    for (const x of [left, right]) g.fillRect(x - 0.5, AXIS, 1, t.element.clientHeight);
    const words = duration(high - low);
    g.font = "600 12px system-ui, sans-serif";
    const wide = g.measureText(words).width + 10, x = Math.min(Math.max((left + right) / 2 - wide / 2, t.gutter), t.gutter + t.width - wide);
    g.fillRect(x, 2, wide, AXIS - 4); g.fillStyle = colour("--paper"); g.textBaseline = "middle"; g.fillText(words, x + 5, AXIS / 2);
  }
}

export function drawMarkers(g, t) {
  g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
  let before = null;
  for (const at of [...t.markers].sort((a, b) => a - b)) {
    const x = t.x(at);
    if (x >= t.gutter && x <= t.gutter + t.width) {
      g.fillStyle = colour("--bad"); g.fillRect(x - 0.75, 4, 1.5, t.element.clientHeight);
      g.beginPath(); g.moveTo(x, 4); g.lineTo(x + 9, 8); g.lineTo(x, 12); g.fill();
      const words = before === null ? moment(at, t.view.length / 1000) : `+${duration(at - before)}`, wide = g.measureText(words).width + 6;
      g.fillStyle = colour("--paper"); g.fillRect(x + 2, AXIS + STEPS + 1, wide, 14);
      g.fillStyle = colour("--bad"); g.fillText(words, x + 5, AXIS + STEPS + 8);
    }
    before = at;
  }
}

export function drawPointer(g, t) {
  const { x, ns } = t.pointer;
  if (x < t.gutter || t.drag) return;
  g.strokeStyle = colour("--soft"); g.globalAlpha = 0.5; g.beginPath(); g.moveTo(x + 0.5, AXIS); g.lineTo(x + 0.5, t.element.clientHeight); g.stroke(); g.globalAlpha = 1;
  const words = moment(ns, Math.max(t.view.length / t.width, 1));
  g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle";
  const wide = g.measureText(words).width + 8, left = Math.min(x + 4, t.gutter + t.width - wide);
  g.fillStyle = colour("--back"); g.fillRect(left, 2, wide, AXIS - 5); g.fillStyle = colour("--text"); g.fillText(words, left + 4, AXIS / 2);
}

export function drawFlows(g, t) {
  const pane = t.panes[t.chosenPane] || t.panes[0];
  g.save(); g.beginPath(); g.rect(t.gutter, pane.top, t.width, pane.height); g.clip();
  g.strokeStyle = colour("--text"); g.fillStyle = colour("--text"); g.lineWidth = 1; g.globalAlpha = 0.75;
  const middle = row => { const item = pane.itemOfRow.get(row) || pane.layout.items.find(each => each.rank === pane.rows.ranks[row]); return item ? pane.y(item) + ROW / 2 : null; };
  for (const [from, start, to, end] of t.flows) {
    const [y0, y1] = [middle(from), middle(to)];
    if (y0 === null || y1 === null) continue;
    const [x0, x1] = [pane.x(start, t.view), pane.x(end, t.view)];
    g.beginPath(); g.moveTo(x0, y0); g.bezierCurveTo((x0 + x1) / 2, y0 - 18, (x0 + x1) / 2, y1 - 18, x1, y1); g.stroke();
    g.beginPath(); g.moveTo(x1, y1); g.lineTo(x1 - 6, y1 - 4); g.lineTo(x1 - 6, y1 + 4); g.fill();
  }
  g.restore();
}
