// Mouse, pen and finger: move, zoom, regions, markers, hovering.
const AXIS = 22, TAP = 4;

export function listen(timeline) {
  const t = timeline, element = t.element;
  const nsAt = x => t.view.low + (x - t.gutter) / t.width * t.view.length;
  const fingers = new Map();
  element.addEventListener("wheel", event => {
    event.preventDefault();
    if (event.shiftKey) t.pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) t.pan(event.deltaX / t.width);
    else if (event.ctrlKey || event.offsetX >= t.gutter && !event.altKey) t.zoom(Math.exp(event.deltaY * 0.0015), nsAt(event.offsetX));
    else t.scroll(event.deltaY);
  }, { passive: false });
  element.addEventListener("pointerdown", event => {
    if (event.target !== t.canvas) return;
    element.setPointerCapture(event.pointerId);
    const [x, y] = [event.offsetX, event.offsetY];
    fingers.set(event.pointerId, x);
    const pane = t.paneAt(y), isRuler = y < AXIS;
    t.drag = { x, y, low: t.view.low, high: t.view.high, first: t.panes[0].first, moved: false, isRegion: x >= t.gutter && (isRuler || event.shiftKey), isRuler, pane,
      begin: t.snapped(x, y, isRuler) };
    if (fingers.size === 2) { const [a, b] = [...fingers.values()]; t.pinch = { apart: Math.max(Math.abs(a - b), 10), length: t.view.length, about: nsAt((a + b) / 2) }; t.drag.moved = true; }
  });
  element.addEventListener("pointermove", event => {
    const [x, y] = [event.offsetX, event.offsetY], drag = t.drag;
    t.pointer = { x, y, ns: nsAt(x) };
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, x);
    if (fingers.size === 2 && t.pinch) {
      const [a, b] = [...fingers.values()], length = t.pinch.length * t.pinch.apart / Math.max(Math.abs(a - b), 10);
      t.zoom(length / t.view.length, t.pinch.about);
      return;
    }
    if (!drag) { t.hover(x, y); return; }
    if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > TAP) drag.moved = true;
    if (!drag.moved) return;
    if (drag.isRegion) { t.dragRegion(drag, x, y); return; }
    const by = (x - drag.x) / t.width * (drag.high - drag.low);
    t.view.show(drag.low - by, drag.high - by);
    for (const pane of t.panes) pane.scrollTo(drag.first - (y - drag.y));
    t.remember(); t.ask();
  });
  const end = event => {
    fingers.delete(event.pointerId);
    if (fingers.size) return;
    const drag = t.drag; t.drag = null; t.pinch = null;
    if (!drag) return;
    if (drag.moved && drag.isRegion) t.endRegion(drag).catch(error => t.say(error.message));
    else if (!drag.moved && event.type === "pointerup") t.click(event.offsetX, event.offsetY).catch(error => t.say(error.message));
  };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
  element.addEventListener("pointerleave", () => { t.tip.hidden = true; t.pointer = { x: -1, y: -1, ns: (t.view.low + t.view.high) / 2 }; t.draw(); });
  element.addEventListener("dblclick", event => { if (event.offsetX >= t.gutter && event.offsetY > AXIS) t.zoom(0.25, nsAt(event.offsetX)); });
}
