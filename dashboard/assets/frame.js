// Theme, keys and navigation for all pages.  What the timeline page needs is loaded when it is opened (timeline/main.mjs).
"use strict";
window.tlkit = (() => {
  const root = document.documentElement;

  function switchTheme(clicks, theme) {
    let wanted = theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    if (clicks && clicks !== switchTheme.seen) wanted = wanted === "dark" ? "light" : "dark";
    switchTheme.seen = clicks;
    root.dataset.theme = wanted;
    if (window.tlkit.timeline) window.tlkit.timeline.draw();
    return wanted;
  }

  function setTitle(path, run) { // the tab's: the page, then the file
    const name = (path || "").replaceAll("/", "") || "verdict";
    const link = document.getElementById(`to-${name}`);
    const file = (run || "").split(" · ")[0];
    document.title = [link ? link.textContent : "", file, "tlkit"].filter(Boolean).join(" · ");
    return "";
  }

  // Where sliders and switches stand belongs to the address, so that it can be shared; those that change nothing are left out.
  function keepControls(names, asItIs, values) {
    if (!["", "verdict"].includes(location.pathname.replaceAll("/", ""))) return;
    const moved = names.map((name, k) => [name, values[k]]).filter(([, value]) => typeof value === "number" && value < asItIs);
    const wanted = [...moved.map(pair => pair.join(":")), ...(values[names.length] || [])].join(",");
    const query = new URLSearchParams(location.search);
    if ((query.get("what-if") || "") === wanted) return;
    if (wanted) query.set("what-if", wanted); else query.delete("what-if");
    history.replaceState(history.state, "", location.pathname + (query.size ? `?${query}` : ""));
  }

  const unfolded = new Set();
  addEventListener("toggle", event => {
    const key = event.target.dataset.key;
    if (key && event.target.isConnected) unfolded[event.target.open ? "add" : "delete"](key);
  }, true);

  // What replaces a block takes the focus from whatever of it had it: it goes to the same thing in its place.
  let held = null;
  const likes = name => [...document.querySelectorAll("#page :is(a, button, summary, input, select, [tabindex])")].filter(each => nameOf(each) === name);
  function nameOf(element) {
    const details = element.closest("details[data-key]");
    return [element.tagName, element.id, element.getAttribute("aria-label"), details && details.dataset.key, element.tagName === "A" ? element.textContent : ""].join("|"); // where a link leads changes with new steps
  }
  addEventListener("focusin", event => {
    const name = event.target.closest("#page > *") ? nameOf(event.target) : "";
    held = name ? { element: event.target, name, number: likes(name).indexOf(event.target) } : null;
  });
  addEventListener("focusout", event => setTimeout(() => { if (held && held.element === event.target && held.element.isConnected) held = null; }));
  function holdOn() {
    if (!held || held.element.isConnected || document.activeElement !== document.body) return;
    const again = likes(held.name)[Math.max(held.number, 0)];
    if (again) again.focus({ preventScroll: true });
  }

  let loading = null;
  function attach() {
    holdOn();
    for (const details of document.querySelectorAll("details[data-key]:not([open])")) if (unfolded.has(details.dataset.key)) details.open = true;
    if (document.getElementById("timeline") || window.tlkit.timeline) {
      loading ??= import("/assets/timeline/main.mjs");
      loading.then(module => { window.tlkit.timeline = module.attach(document.getElementById("timeline")); });
    }
    const here = location.pathname.replaceAll("/", "") || "verdict";
    const nav = document.querySelector("header nav"), shown = document.getElementById(`to-${here}`);
    if (nav && shown && nav.dataset.here !== here) { nav.dataset.here = here; nav.scrollLeft = shown.offsetLeft - nav.offsetLeft - (nav.clientWidth - shown.offsetWidth) / 2; } // on a phone some pages are out of sight
    for (const link of document.querySelectorAll("header nav a")) {
      link.classList.toggle("here", link.id === `to-${here}`);
      if (link.id === `to-${here}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    const wanted = root.dataset.theme === "dark" ? "light" : "dark";
    const button = document.getElementById("theme-switch");
    if (button && button.textContent !== wanted) button.textContent = wanted;
  }
  new MutationObserver(attach).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-theme"] });
  addEventListener("keydown", event => {
    if (event.target.closest("input, textarea, select, [contenteditable], [role=slider], [role=listbox]") || event.ctrlKey || event.metaKey || event.altKey) return;
    const links = document.querySelectorAll("header nav a");
    if (/^[1-9]$/.test(event.key) && links[+event.key - 1]) { links[+event.key - 1].click(); return; }
    if (event.key === "k" || event.key === "K") { document.getElementById("theme-switch").click(); return; }
    if (window.tlkit.timeline && window.tlkit.timeline.key(event)) event.preventDefault();
  });
  return { switchTheme, setTitle, keepControls, timeline: null };
})();
