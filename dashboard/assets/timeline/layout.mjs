// Which rows are shown, in which order, and where: ranks that can be collapsed, pinned, filtered and sorted.
export const ROW = 16, COUNTER = 30, GAP = 6, FEW_RANKS = 32;

/** What of a run's rows stands where, in pixels from the top of all rows.
 * options: {folded: Set of ranks, unfolded: Set of ranks, open: Set of "tensor:RANK" and "counter:RANK", pinned: [rank], filter, sort}
 * Items are {type: "row" | "group" | "counter", top, height, rank, label, isFirst, isPinned, and row | key | counter}.
 */
export function makeLayout(rows, options) {
  const byRank = new Map();
  rows.ranks.forEach((rank, row) => { if (!byRank.has(rank)) byRank.set(rank, []); byRank.get(rank).push(row); });
  const counters = new Map();
  rows.counters.forEach((counter, number) => { if (!counters.has(counter.rank)) counters.set(counter.rank, []); counters.get(counter.rank).push(number); });
  const ranks = [...byRank.keys()];
  const exposed = rank => rows.exposed_ns[rank] || 0;
  if (options.sort === "exposed") ranks.sort((a, b) => exposed(b) - exposed(a) || a - b);
  if (options.sort === "least") ranks.sort((a, b) => exposed(a) - exposed(b) || a - b);
  const order = [...options.pinned.filter(rank => byRank.has(rank)), ...ranks.filter(rank => !options.pinned.includes(rank))];
  const wanted = options.filter.trim().toLowerCase(), items = [];
  const tensor = rows.kinds.indexOf("tensor"), compute = rows.kinds.indexOf("compute");
  let top = 0, pinnedHeight = 0;
  for (const rank of order) {
    const isPinned = options.pinned.includes(rank), begin = items.length;
    const put = (item, height) => { items.push({ ...item, top, height, rank, isPinned, isFirst: items.length === begin }); top += height; };
    const putRow = row => put({ type: "row", row, label: rows.depth[row] ? "" : rows.lanes[rows.lane[row]] }, ROW);
    const all = byRank.get(rank), before = top;
    top += GAP;
    if (wanted) {
      const ofRank = `rank ${rank}` === wanted;
      all.filter(row => ofRank || rows.lanes[rows.lane[row]].toLowerCase().includes(wanted)).forEach(putRow);
      for (const number of counters.get(rank) || []) if (ofRank || rows.counters[number].name.toLowerCase().includes(wanted)) put({ type: "counter", counter: number, label: rows.counters[number].name }, COUNTER);
    } else if (isFolded(rows, options, rank)) {
      putRow(all.find(row => rows.kind[row] === compute) ?? all.find(row => rows.kind[row] !== tensor) ?? all[0]);
    } else {
      const tensors = all.filter(row => rows.kind[row] === tensor), others = all.filter(row => rows.kind[row] !== tensor);
      others.forEach(putRow);
      group("tensor", tensors, `${new Set(tensors.map(row => rows.lane[row])).size} tensors`, putRow, !others.length);
      group("counter", counters.get(rank) || [], `${(counters.get(rank) || []).length} counters`, number => put({ type: "counter", counter: number, label: rows.counters[number].name }, COUNTER));
    }
    if (items.length === begin) top = before;
    else if (isPinned) pinnedHeight = top;
    function group(name, members, label, each, isOpen = false) {
      if (!members.length) return;
      const key = `${name}:${rank}`;
      const open = options.open.has(key) !== isOpen; // what is open by itself is closed by the same word
      put({ type: "group", key, label: `${open ? "▾" : "▸"} ${label}` }, ROW);
      if (open) members.forEach(each);
    }
  }
  return { items, height: top, pinnedHeight };
}

export function isFolded(rows, options, rank) {
  return options.folded.has(rank) || (!options.unfolded.has(rank) && Object.keys(rows.exposed_ns).length > FEW_RANKS);
}
