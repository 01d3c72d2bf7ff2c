// What is said below the canvas: a span in full, a region, in tables that hold text only.
import { duration, moment } from "./units.mjs";

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) if (key === "class") made.className = value; else if (key in made) made[key] = value; else made.setAttribute(key, value);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

/** A table; cells are text or elements. Columns are [words, isNumber, key to sort by or null]. */
export function table(columns, rows, { order = null, descending = false, onOrder = null, caption = "" } = {}) {
  const head = columns.map(([words, isNumber, key]) => {
    const cell = element("th", { scope: "col", class: isNumber ? "number" : "" });
    if (key && onOrder) {
      cell.setAttribute("aria-sort", key === order ? (descending ? "descending" : "ascending") : "none");
      cell.append(element("button", { type: "button", class: "plain", onclick: () => onOrder(key) }, words + (key === order ? (descending ? " ▼" : " ▲") : "")));
    } else cell.append(words);
    return cell;
  });
  const body = rows.map(cells => element("tr", {}, ...cells.map((cell, k) => element("td", { class: columns[k][1] ? "number" : "" }, cell ?? ""))));
  return element("div", { class: "scrolls" }, element("table", { class: "compact" }, caption ? element("caption", {}, caption) : null, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)));
}

export function swatch(colour) { const made = element("span", { class: "swatch" }); made.style.background = colour; return made; }

/** A span in full. act: {select(row, time), show(span)} for what is connected with it. */
export function describeSpan(span, act) {
  const rows = [
    ["rank", String(span.rank)], ["lane", span.lane], ["category", span.category],
    ...(span.step >= 0 ? [["step", String(span.step)]] : []),
    ["begins", moment(span.start_ns)], ["ends", moment(span.start_ns + span.dur_ns)], ["takes", `${duration(span.dur_ns)} (${span.dur_ns.toLocaleString("en")} ns)`],
    ...(span.exposed_ns ? [["exposed", `${duration(span.exposed_ns)}: the training waits meanwhile`]] : []),
  ];
  const said = new Set(rows.map(([key, value]) => `${key}=${value}`)); // an arg that repeats it says nothing
  rows.push(...span.args.map(([key, value, unit]) => [key, unit === "ns" ? moment(value) : String(value)]).filter(([key, value]) => !said.has(`${key}=${value}`)));
  const flows = span.flows.map(([from, start, to, end, words]) => {
    const goTo = from === span.row && start === span.start_ns ? [to, end] : words === "submitted" || words === "launched" ? [from, start] : [to, end];
    return element("li", {}, element("button", { type: "button", class: "plain", onclick: () => act.select(goTo[0], goTo[1]) }, `${words}, ${moment(goTo[1])}`));
  });
  return [
    element("h3", {}, span.name),
    element("div", { class: "columns" },
      element("div", { class: "scrolls" }, element("table", { class: "compact facts" }, element("tbody", {}, ...rows.map(([key, value]) => element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, value)))))),
      flows.length ? element("div", {}, element("h4", {}, "Connected with  ( [ and ] )"), element("ul", {}, ...flows)) : null),
  ];
}

/** A region: what it holds. act: {by(name), close(), search(text), colourOf(category), labelOf(category)} */
export function describeRegion(found, by, act) {
  const length = found.high_ns - found.low_ns, whole = length * found.ranks;
  const communication = found.communication, share = (ns, of) => (of ? `${(100 * ns / of).toFixed(1)} %` : "");
  const named = category => element("span", {}, swatch(act.colourOf(category)), act.labelOf(category));
  const said = communication ? [
    ["exposed: the training waits for communication", communication.waiting_ns], ["of it while bytes move", communication.exposed_ns], ["hidden behind computation", communication.hidden_ns],
  ].map(([words, ns]) => [words, duration(ns / Math.max(found.ranks, 1)), share(ns, whole)]) : [];
  const total = communication ? communication.exposed_ns + communication.hidden_ns : 0;
  const groupings = [["name", "name"], ["lane", "lane or tensor"], ["rank", "rank"]].map(([key, words]) => element("button", { type: "button", "aria-pressed": String(key === by), onclick: () => act.by(key) }, words));
  return [
    element("h3", {}, `Region of ${duration(length)}, ${moment(found.low_ns)} to ${moment(found.high_ns)}, ${found.ranks} rank${found.ranks === 1 ? "" : "s"}`),
    element("div", { class: "columns" },
      table([["time of a rank by category"], ["mean", true], ["share", true]], found.categories.map(row => [named(row.category), duration(row.ns / Math.max(found.ranks, 1)), share(row.ns, whole)])),
      communication ? element("div", { id: "timeline-overlap" }, table([["communication of a rank"], ["mean", true], ["share", true]], said),
        element("p", { class: "soft" }, total ? `${share(communication.hidden_ns, total)} of the moving of bytes overlaps computation.` : "No bytes move here.")) : null),
    element("div", { class: "toolbar" }, "spans by", ...groupings, element("button", { type: "button", onclick: act.close }, "close (Esc)")),
    table([["name"], ["category"], ["count", true], ["sum", true], ["mean", true], ["longest", true], ["exposed", true]],
      found.groups.map(row => [element("button", { type: "button", class: "plain", title: row.name, onclick: () => act.search(row.name) }, row.name), named(row.category), row.count.toLocaleString("en"), duration(row.sum_ns), duration(row.mean_ns), duration(row.longest_ns), row.exposed_ns === null ? "–" : row.exposed_ns ? duration(row.exposed_ns) : ""])),
    found.other_groups ? element("p", { class: "soft" }, `and ${found.other_groups.toLocaleString("en")} more with less time`) : null,
  ].filter(part => part !== null); // whoever puts them into the page would write the word
}

/** Controls stand on the page as descriptions, since they belong to the script alone: they become what they describe. */
export function fillControls(root) {
  for (const place of root.querySelectorAll("[data-input], [data-select]")) {
    if (place.childElementCount) continue;
    const { input, select, label, placeholder, options } = place.dataset;
    if (input) { place.append(element("input", { id: `timeline-${input}`, type: "search", "aria-label": label, placeholder, maxLength: 200, autocomplete: "off", spellcheck: false })); continue; }
    const described = options.split("|").map(text => [text.slice(0, text.indexOf("=")), text.slice(text.indexOf("=") + 1)]);
    place.append(element("select", { id: `timeline-${select}`, "aria-label": label }, ...described.map(([value, words]) => element("option", { value }, words))));
  }
}
