// Charts that come as SVG from the server (collector/reports/svg.py): put into the page as elements, never as markup.
"use strict";
(() => {
  function draw(element) {
    if (element.tlkitSvg === element.dataset.svg) return;
    element.tlkitSvg = element.dataset.svg;
    const parsed = new DOMParser().parseFromString(element.dataset.svg, "image/svg+xml");
    if (parsed.querySelector("parsererror, script")) { element.textContent = "this chart cannot be drawn"; return; }
    element.replaceChildren(document.importNode(parsed.documentElement, true));
  }

  const tip = document.createElement("div");
  tip.className = "chart-tip"; tip.hidden = true; tip.setAttribute("aria-hidden", "true");
  function hover(event) { // the marks' own titles take a second to show
    const mark = event.target.closest && event.target.closest(".chart :is(rect, circle, path)");
    const title = mark && mark.querySelector("title");
    const words = (title && title.textContent) || (mark && mark.dataset.said) || "";
    if (title && words) { mark.dataset.said = words; title.remove(); }
    tip.hidden = !words;
    if (!words) return;
    if (!tip.isConnected) document.body.append(tip);
    tip.textContent = words;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  }
  document.addEventListener("pointermove", hover, { passive: true });

  // A click on a chart's column, and a stretch that is dragged over, lead to the address that the server has named.
  function go(href) {
    history.pushState({}, "", href);
    dispatchEvent(new CustomEvent("_dashprivate_pushstate")); // what Dash's own links do
  }
  function place(event, host) {
    const chart = host.querySelector("svg[data-x]");
    if (!chart) return null;
    const [begin, end, low, high] = chart.dataset.x.split(" ").map(Number);
    const box = chart.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    return { x: event.clientX, at: low + (Math.min(Math.max(x, begin), end) - begin) / (end - begin) * (high - low) };
  }
  let pressed = null;
  document.addEventListener("pointerdown", event => {
    const host = event.button === 0 && event.target.closest("[data-chosen]");
    pressed = host ? { host, from: place(event, host) } : null;
  });
  document.addEventListener("pointerup", event => {
    const began = pressed; pressed = null;
    if (!began || !began.from || !began.host.isConnected) return;
    const to = place(event, began.host), dragged = Math.abs(to.x - began.from.x) > 6;
    if (!dragged && event.target.closest("[data-chosen]") !== began.host) return;
    const wanted = new URL(began.host.dataset.chosen, location.origin), here = new URLSearchParams(location.search);
    const ends = [began.from.at, to.at].sort((a, b) => a - b).map(Math.round);
    const values = dragged ? { "{at}": here.get("step"), "{from}": ends[0], "{to}": ends[1] }
      : { "{at}": Math.round(to.at), "{from}": here.get("from"), "{to}": here.get("to") };
    for (const [key, value] of [...wanted.searchParams]) {
      if (!(value in values)) continue;
      if (values[value] === null || values[value] === undefined) wanted.searchParams.delete(key); else wanted.searchParams.set(key, values[value]);
    }
    go(wanted.pathname + wanted.search);
  });

  // Tables and charts that scroll are reached by keyboard only while there is something to scroll.
  const sized = new ResizeObserver(entries => { for (const entry of entries) reach(entry.target); });
  function reach(element) {
    if (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1) element.tabIndex = 0; else element.removeAttribute("tabindex");
  }
  function attach() {
    for (const element of document.querySelectorAll("[data-svg]")) draw(element);
    for (const element of document.querySelectorAll(".scrolls")) { sized.observe(element); reach(element); }
    tell();
  }
  // What Dash's own controls do not tell screen readers: their names, and that a check box is one.
  function tell() {
    for (const thumb of document.querySelectorAll(".slider [role=slider]:not([aria-labelledby])")) {
      const label = thumb.closest(".slider").querySelector("[id$=-label]");
      if (label) thumb.setAttribute("aria-labelledby", label.id);
    }
    for (const list of document.querySelectorAll(".switches[role=listbox], .switches [role=listbox]")) list.setAttribute("role", "group");
    for (const option of document.querySelectorAll(".switches [role=option]")) { option.removeAttribute("role"); option.removeAttribute("aria-selected"); }
  }
  new MutationObserver(attach).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-svg"] });
})();
