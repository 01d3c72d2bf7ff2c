// Questions to the server; an error is what it says, and whether it may be asked again later.
const NOT_YET = 202; // the run is still being opened

async function answerTo(path, parameters, signal) {
  const answer = await fetch(`/data/${path}?${new URLSearchParams(parameters)}`, { signal });
  if (answer.ok && answer.status !== NOT_YET) return answer;
  let words = answer.statusText;
  try { words = (await answer.json()).error || words; } catch { /* not ours */ }
  throw Object.assign(new Error(words), { isLater: answer.status === NOT_YET });
}

export async function json(path, parameters = {}, signal = undefined) { return (await answerTo(path, parameters, signal)).json(); }
export async function bytes(path, parameters, signal = undefined) { return (await answerTo(path, parameters, signal)).arrayBuffer(); }

/** Ascending numbers as the server reads them: 0-12,15. */
export function ranges(numbers) {
  const parts = [];
  for (const number of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === number - 1) last[1] = number; else parts.push([number, number]);
  }
  return parts.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(",");
}
