// What frame.js loads: the timeline of the page that is open.
import { Timeline } from "./timeline.mjs";

let timeline = null;
/** The timeline of the page's element; null without one. */
export function attach(place) {
  if (!place) timeline = null;
  else if (!timeline || timeline.element !== place) timeline = new Timeline(place);
  return timeline;
}

// Back and forward, and links of Dash, which tells of them in its own way.
for (const kind of ["popstate", "_dashprivate_pushstate"]) addEventListener(kind, () => setTimeout(() => { if (timeline && timeline.element.isConnected) timeline.readdress(); }));

setInterval(async () => { // a live run: the rows of a newer version
  if (!timeline || !timeline.rows || timeline.busy || document.hidden) return;
  const live = document.getElementById("status");
  if (!live || !live.textContent) return;
  try { await timeline.load(); } catch (error) { timeline.say(error.message); }
}, 1000);
