// Hands what is on the screen to ui.perfetto.dev in another window, from page to page: nothing is uploaded.
const PERFETTO = "https://ui.perfetto.dev";

export async function openInPerfetto(slice, say) {
  const page = window.open(PERFETTO), answer = await fetch(slice);
  if (!answer.ok || !page) { say(page ? (await answer.json()).error : "the browser did not open a window"); return; }
  const buffer = await answer.arrayBuffer();
  const timer = setInterval(() => page.postMessage("PING", PERFETTO), 100);
  const heard = event => {
    if (event.origin !== PERFETTO || event.data !== "PONG") return;
    clearInterval(timer); removeEventListener("message", heard);
    page.postMessage({ perfetto: { buffer, title: "slice", keepApiOpen: false } }, PERFETTO);
  };
  addEventListener("message", heard);
  setTimeout(() => clearInterval(timer), 30000);
}
