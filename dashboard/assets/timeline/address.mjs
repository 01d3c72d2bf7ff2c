// The state of the page in its address, so that a link shows what somebody sees.
const NUMBERS = ["from", "to", "scroll", "span", "rank", "step"];

// What somebody has chosen is a step in the browser's history; where they look is not, and neither is what follows at once.
const CHOICES = ["q", "span", "region", "beside", "panel", "step"], SOON_MS = 1000;
let written = null, chosen = "", pushed = 0;
const choices = query => CHOICES.map(name => query.get(name) || "").join("|");

/** Whether the browser has gone to another state of the page: back, forward, or by a link. */
export function isElsewhere() { return location.pathname === "/timeline" && location.search !== written; }

/** What the address asks for; what makes no sense is left out. */
export function readAddress() {
  const query = new URLSearchParams(location.search), found = {};
  written = location.search; chosen = choices(query);
  for (const name of NUMBERS) if (/^-?\d{1,18}$/.test(query.get(name) || "")) found[name] = +query.get(name);
  for (const name of ["q", "show", "filter", "sort", "beside", "by", "order", "panel"]) if (query.get(name)) found[name] = query.get(name).slice(0, 200);
  for (const name of ["ranks", "pinned", "folded", "unfolded", "marks", "region", "regionrows", "open"]) if (query.get(name)) found[name] = query.get(name).slice(0, 1500).split(",");
  found.path = query.get("path") === "1";
  return found;
}

/** Put the state into the address. */
export function writeAddress(state) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = Array.isArray(value) ? value.join(",") : value === true ? "1" : value === false || value === null || value === undefined ? "" : String(value);
    if (text) query.set(name, text);
  }
  const isStep = choices(query) !== chosen && performance.now() - pushed > SOON_MS;
  if (isStep) pushed = performance.now();
  history[isStep ? "pushState" : "replaceState"](history.state, "", `/timeline?${query}`);
  written = location.search; chosen = choices(query);
}

/** The link that others can open: this page's address at a name of the machine that they can reach. */
export function linkFor(base) { return (base || location.origin) + location.pathname + location.search; }
