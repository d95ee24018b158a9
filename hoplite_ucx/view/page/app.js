// The page: follows the stream of changes and shows it. What comes from users (names, layouts, errors) becomes text,
// never markup, and control characters are written out.
import { TreeView, stateAt, svg } from "/tree.js";

const $ = (id) => document.getElementById(id);
const DELAY = 0.3; // seconds that the picture is behind: between two reports it can then be drawn smoothly
const REPLAY = 8;

// --- words and numbers ------------------------------------------------------------------------------------------------

// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu;
export const plain = (text) => String(text ?? "").replace(HIDDEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

function size(bytes) {
  for (const [unit, factor] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= factor) return `${+(bytes / factor).toPrecision(3)} ${unit}`;
  }
  return `${bytes} B`;
}
function rate(bytes) {
  for (const [unit, factor] of [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]]) if (bytes >= factor) return `${+(bytes / factor).toPrecision(3)} ${unit}`;
  return `${Math.round(bytes)} B/s`;
}
function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 1e-6) return "0 s";
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${+(s * 1e3).toPrecision(3)} ms`;
  if (s < 60) return `${+s.toPrecision(3)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else element.setAttribute(key, value);
  }
  for (const child of children) element.append(child instanceof Node ? child : document.createTextNode(plain(child)));
  return element;
}
function text(id, value) {
  const element = $(id);
  const shown = plain(value);
  if (element.textContent !== shown) element.textContent = shown;
}

// --- what is known ----------------------------------------------------------------------------------------------------

const known = { cluster: {}, hosts: new Map(), ops: new Map(), links: [], objects: [], failures: [] };
let numbers = 0;
let ahead = 0; // of the cluster's clock over this page's
let clocked = false;
const clock = () => performance.now() / 1000 + ahead;

function hostNumber(id) {
  return known.hosts.get(id)?.number;
}
const hostName = (id) => (hostNumber(id) === undefined ? plain(id) : `host ${hostNumber(id)}`);
function shortAddress(id) {
  const host = known.hosts.get(id);
  if (!host) return plain(id);
  const [name, port] = splitAddress(host.address);
  return known.sharedNames.has(name) ? `:${port}` : name;
}
function splitAddress(address) {
  const at = address.lastIndexOf(":");
  return [address.slice(0, at), address.slice(at + 1)];
}
function countNames() {
  const counts = new Map();
  for (const host of known.hosts.values()) {
    const [name] = splitAddress(host.address);
    counts.set(name, (counts.get(name) || 0) + 1);
  }
  known.sharedNames = new Set([...counts].filter(([, count]) => count > 1).map(([name]) => name));
}
// In sentences of the directory, nodes have long names.
const readable = (sentence) => plain(sentence).replace(/\bn[0-9a-f]{5,}(\.\d+)?\b/g, (id) => (known.hosts.has(id) ? hostName(id) : id));
const titleOf = (thing) => plain(thing.name) || thing.ref.slice(0, 8);

function emptyOp(id) {
  return { id, ref: "", name: "", kind: "broadcast", size: 0, layout: "", began: 0, ended: null, putter: "", copies: {}, deaths: [], reduction: null, slots: {}, assembling: {}, failure: "", sealed: null, streams: new Map(), whole: false, missing: true };
}

function take(message) {
  const offset = message.now - performance.now() / 1000;
  ahead = clocked ? Math.max(ahead - 0.002, Math.min(offset, ahead + 0.05)) : offset;
  if (!clocked || Math.abs(offset - ahead) > 1.5) ahead = offset;
  clocked = true;
  if (message.first) {
    known.hosts.clear();
    known.ops.clear();
    numbers = 0;
  }
  if (message.cluster) known.cluster = message.cluster;
  const order = new Intl.Collator(undefined, { numeric: true });
  const arrived = Object.entries(message.hosts || {}).sort((a, b) => order.compare(a[1]?.address ?? "", b[1]?.address ?? ""));
  for (const [id, host] of arrived) {
    if (host === null) known.hosts.delete(id);
    else {
      const before = known.hosts.get(id);
      const rates = before ? before.rates : [];
      if (host.in !== undefined && (!before || before.in !== host.in || before.out !== host.out)) {
        rates.push([host.in, host.out]);
        if (rates.length > 60) rates.shift();
      }
      known.hosts.set(id, { ...host, number: before ? before.number : numbers++, rates });
    }
  }
  if (message.hosts) countNames();
  for (const [id, op] of Object.entries(message.ops || {})) {
    if (op === null) { known.ops.delete(id); continue; }
    const before = known.ops.get(id) || emptyOp(id);
    const assembled = before.assembled || Object.keys(op.assembling).length > 0;
    known.ops.set(id, { ...before, ...op, missing: false, assembled, streams: before.streams });
  }
  for (const [id, stream] of Object.entries(message.streams || {})) {
    if (stream === null) continue;
    if (!known.ops.has(stream.op)) known.ops.set(stream.op, emptyOp(stream.op));
    const streams = known.ops.get(stream.op).streams;
    const samples = streams.get(id)?.samples || [];
    if (stream.at !== undefined && (!samples.length || stream.at > samples[samples.length - 1][0])) samples.push([stream.at, stream.position]);
    streams.set(id, { ...stream, samples });
  }
  for (const name of ["links", "objects", "failures"]) if (message[name]) known[name] = message[name];
  stage.changed();
  refresh(message);
}

// --- the stage: one operation, live or at a chosen moment -------------------------------------------------------------

// Of a line, for whoever points at it: how the link works, and why so.
function about(edge) {
  const link = known.links.find((each) => each.from === edge.from && each.to === edge.to);
  const moves = edge.stream ? `, ${size(edge.stream.position)} of ${size(edge.stream.size)}${edge.rate ? ` at ${rate(edge.rate)}` : ""}` : "";
  return `${hostName(edge.from)} to ${hostName(edge.to)}${moves}${link ? `\n${plain(link.transport)}: ${plain(link.reason)}` : ""}`;
}

const tree = new TreeView($("tree"));
const stage = {
  chosen: null, // an operation that somebody has picked; else the latest
  at: null, // a moment of it; else live
  playing: false,
  last: 0,
  drawn: null,
  busy: false,

  op() {
    if (this.chosen && known.ops.has(this.chosen)) return known.ops.get(this.chosen);
    const all = [...known.ops.values()].filter((op) => !op.missing && (op.streams.size || op.reduction || op.ended));
    const running = all.filter((op) => op.ended === null);
    const pick = (ops) => ops.reduce((best, op) => (!best || op.began > best.began ? op : best), null);
    const moving = running.filter((op) => [...op.streams.values()].some((stream) => stream.ended === null));
    const last = known.ops.get(this.lingering);
    const over = (seconds) => (last && last.ended !== null && clock() - last.ended < seconds ? last : null);
    const found = pick(moving) || over(5) || pick(running) || over(30);
    if (found) this.lingering = found.id;
    return found;
  },

  span(op) {
    return [op.began, op.ended ?? Math.max(op.began + 1e-4, clock() - DELAY)];
  },

  changed() {
    if (!this.busy) {
      this.busy = true;
      requestAnimationFrame((now) => this.frame(now));
    }
  },

  frame(now) {
    const seconds = Math.min(0.1, (now - this.last) / 1000);
    this.last = now;
    const op = this.op();
    let again = false;
    let state;
    let at = clock() - DELAY;
    let slower = 1;
    if (op) {
      const [began, end] = this.span(op);
      slower = this.slowdown(op);
      if (this.at !== null) {
        if (this.playing) {
          this.at += seconds / slower;
          if (this.at >= end) {
            this.at = end;
            this.playing = false;
          }
          again = this.playing;
        }
        at = Math.min(Math.max(this.at, began), end);
      } else if (op.ended !== null) at = Math.min(at, Math.max(op.ended, began));
      state = stateAt(op, at, this.at === null ? 1 : 1 / slower);
      if (this.at === null && op.ended === null) again = true;
      if (this.at === null && op.ended !== null && clock() - DELAY - op.ended < 3) again = true;
    } else state = this.resting();
    const jump = this.drawn !== (op ? op.id : "") || document.hidden;
    this.drawn = op ? op.id : "";
    if (op) for (const node of state.nodes.values()) node.past = this.at !== null || op.ended !== null;
    const moving = tree.draw(state, op, { hosts: known.hosts, short: shortAddress, rate, about, jump });
    this.words(op, state, at);
    timeline.draw(op, at);
    this.busy = again || moving || state.edges.some((edge) => edge.state === "flow");
    if (this.busy) requestAnimationFrame((next) => this.frame(next));
  },

  // Nothing moves: the hosts and their links.
  resting() {
    const nodes = new Map();
    for (const host of known.hosts.values()) {
      if (host.state !== "left") nodes.set(host.id, { id: host.id, share: 0, role: host.state === "dead" ? "dead" : "idle", mix: false });
    }
    const edges = [];
    const seen = new Set();
    for (const link of known.links) {
      const key = [link.from, link.to].sort().join(" ");
      if (seen.has(key) || !nodes.has(link.from) || !nodes.has(link.to)) continue;
      seen.add(key);
      edges.push({ key, from: link.from, to: link.to, state: "link", mix: false, rate: 0 });
    }
    return { nodes, edges };
  },

  slowdown(op) {
    const value = $("speed").value;
    const [began, end] = this.span(op);
    return value === "fit" ? REPLAY / Math.max(end - began, 1e-6) : +value;
  },

  words(op, state, at) {
    $("scrub").hidden = !op;
    $("op-kind").textContent = op ? (op.kind === "broadcast" ? "broadcast" : op.kind) : "";
    $("op-kind").className = `badge ${op ? op.kind : ""}`;
    if (!op) {
      const count = [...known.hosts.values()].filter((host) => host.state === "up").length;
      text("op-title", known.hosts.size ? "Nothing moves" : "No hosts yet");
      text("op-form", known.hosts.size ? `${count} ${count === 1 ? "host is" : "hosts are"} ready` : "agents appear here when they join");
      text("op-status", "");
      $("incidents").replaceChildren();
      $("sources").hidden = true;
      return;
    }
    text("op-title", titleOf(op));
    text("op-form", [op.reduction ? `${op.reduction.op} of ${op.reduction.count}${op.reduction.count < op.reduction.source_count ? ` of ${op.reduction.source_count}` : ""}` : "", size(op.size), plain(op.layout)].filter(Boolean).join(" · "));
    const total = [...state.edges].reduce((sum, edge) => sum + (edge.state === "flow" ? edge.rate : 0), 0);
    const getters = [...state.nodes.values()].filter((node) => node.role !== "source" && node.role !== "dead");
    const share = getters.length ? getters.reduce((sum, node) => sum + node.share, 0) / getters.length : 0;
    const over = op.ended !== null && at >= op.ended;
    let status = "";
    if (op.failure && over) status = "failed";
    else if (over) status = `done in ${duration(op.ended - op.began)}`;
    else if (state.edges.some((edge) => edge.state === "flow")) status = `${Math.floor(share * 100)}%${total ? ` · ${rate(total)}` : ""}`;
    else status = op.reduction ? "waiting for sources" : "waiting";
    text("op-status", status);
    this.showSources(op);
    this.showIncidents(op, at);
    const [began, end] = this.span(op);
    const seek = $("seek");
    if (document.activeElement !== seek || this.playing || this.at === null) seek.value = Math.round(((at - began) / Math.max(end - began, 1e-9)) * 1000);
    text("moment", `${duration(at - began)} of ${duration(end - began)}`);
    $("play").textContent = this.playing ? "❚❚" : "▶";
    $("play").setAttribute("aria-label", this.playing ? "pause" : "play");
    $("live").setAttribute("aria-pressed", String(this.at === null && !this.chosen));
  },

  showSources(op) {
    const box = $("sources");
    box.hidden = !op.reduction;
    if (!op.reduction) return;
    const { sources, ready, chosen, source_count: count, names } = op.reduction;
    const mark = `${op.id} ${sources.length} ${ready.length} ${chosen.length} ${op.sealed}`;
    if (box.dataset.mark === mark) return;
    box.dataset.mark = mark;
    const isReady = new Set(ready);
    const isChosen = new Set(chosen);
    const late = op.sealed === null ? count - new Set([...ready, ...chosen]).size : 0;
    box.replaceChildren(make("span", {}, `${chosen.length} of ${op.reduction.count} sources are in${late > 0 ? `, ${late} ${late === 1 ? "is" : "are"} not there yet` : ""}`));
    for (const ref of sources.slice(0, 64)) {
      const state = isChosen.has(ref) ? "chosen" : isReady.has(ref) ? "ready" : "";
      box.append(make("i", { class: state, title: `${plain(names[ref] || ref.slice(0, 8))}: ${state === "chosen" ? "goes in" : state || "not there yet"}` }));
    }
  },

  showIncidents(op, at) {
    const lines = [];
    const deaths = op.deaths.filter(([when]) => when <= at);
    for (const [when, id] of deaths) lines.push([when, "dead", "✗", `${hostName(id)} died`]);
    for (const stream of op.streams.values()) {
      if (stream.begun > at) continue;
      if (stream.offset > 0 && op.kind === "broadcast") {
        const before = [...op.streams.values()].filter((each) => each.to === stream.to && each.ref === stream.ref && each.ended !== null && each.ended <= stream.begun + 0.001 && each !== stream).sort((a, b) => a.ended - b.ended).pop();
        const later = before ? `, ${duration(Math.max(0, (stream.first ?? stream.begun) - before.ended))} after it lost ${hostName(before.from)}` : "";
        lines.push([stream.begun, "again", "↪", `${hostName(stream.to)} continues from ${hostName(stream.from)} at ${Math.floor((100 * stream.offset) / stream.size)}%${later}`]);
      } else if (stream.fault && !["halted", "placed again", "dropped", "dead", "ended early", "not seen"].includes(stream.fault) && stream.ended <= at) {
        lines.push([stream.ended, "dead", "✗", `${hostName(stream.to)} lost its stream from ${hostName(stream.from)}: ${plain(stream.fault)}`]);
      }
    }
    if (op.failure && op.ended !== null && at >= op.ended) lines.push([op.ended, "dead", "✗", plain(op.failure)]);
    lines.sort((a, b) => a[0] - b[0]);
    const shown = lines.slice(-40);
    const mark = shown.map((line) => line.join("|")).join("\n");
    const list = $("incidents");
    if (list.dataset.mark === mark) return;
    list.dataset.mark = mark;
    list.replaceChildren(...shown.map(([when, kind, sign, what]) => make("li", { class: kind }, make("time", {}, duration(when - op.began)), make("b", {}, sign), make("span", {}, what))));
    list.scrollTop = list.scrollHeight;
  },

  async choose(id) {
    this.chosen = id;
    this.at = null;
    this.playing = false;
    const op = known.ops.get(id);
    if (op && op.ended !== null) {
      await this.load(op);
      this.play(true);
    }
    this.changed();
    showOperations();
  },

  async load(op) {
    if (op.whole) return;
    const answer = await fetch(`/api/operation/${op.id}`, { headers: authorization() });
    if (!answer.ok) return;
    const whole = await answer.json();
    const streams = new Map(whole.streams.map((stream) => [stream.id, stream]));
    known.ops.set(op.id, { ...known.ops.get(op.id), ...whole, streams, whole: true });
  },

  play(fromStart) {
    const op = this.op();
    if (!op) return;
    const [began, end] = this.span(op);
    if (fromStart || this.at === null || this.at >= end) this.at = began;
    this.playing = true;
    this.last = performance.now();
    this.changed();
  },
};

$("play").addEventListener("click", async () => {
  const op = stage.op();
  if (!op) return;
  if (stage.playing) stage.playing = false;
  else {
    stage.chosen = op.id;
    if (op.ended !== null) await stage.load(op);
    stage.play(false);
  }
  stage.changed();
});
async function seekTo(fraction) {
  const op = stage.op();
  if (!op) return;
  stage.chosen = op.id;
  if (op.ended !== null) await stage.load(op);
  const [began, end] = stage.span(op);
  stage.at = began + (end - began) * fraction;
  stage.playing = false;
  stage.changed();
}
$("seek").addEventListener("input", () => seekTo($("seek").value / 1000));
$("speed").addEventListener("change", () => stage.changed());
$("live").addEventListener("click", () => {
  stage.chosen = stage.at = null;
  stage.playing = false;
  stage.changed();
  showOperations();
});
addEventListener("resize", () => { stage.drawn = null; stage.changed(); });

// --- the course of an operation, as bars ------------------------------------------------------------------------------

const timeline = {
  mark: "",
  draw(op, at) {
    const box = $("timeline");
    const streams = op ? [...op.streams.values()] : [];
    box.hidden = streams.length === 0;
    if (!streams.length) return;
    const [began, end] = stage.span(op);
    const width = box.clientWidth || 800;
    const left = width < 560 ? 48 : 64;
    const x = (when) => left + (width - left - 12) * Math.min(1, Math.max(0, (when - began) / Math.max(end - began, 1e-9)));
    const receivers = [...new Set(streams.sort((a, b) => a.begun - b.begun).map((stream) => stream.to))].slice(0, 64);
    const row = receivers.length > 24 ? 12 : 18;
    const height = receivers.length * row + 6;
    const mark = `${op.id} ${streams.length} ${width} ${op.ended} ${streams.filter((each) => each.ended !== null).length} ${known.hosts.size}`;
    const running = op.ended === null;
    if (this.mark !== mark || running) {
      this.mark = mark;
      const picture = svg("svg", { height, viewBox: `0 0 ${width} ${height}` });
      receivers.forEach((id, index) => {
        const y = index * row + row / 2 + 3;
        picture.append(svg("text", { x: 0, y, class: "from" }, row > 12 || index % 2 === 0 ? hostName(id) : ""));
        const here = streams.filter((each) => each.to === id);
        const alone = (stream) => here.every((each) => each === stream || (each.ended ?? end) <= stream.begun || each.begun >= (stream.ended ?? end) - 1e-3 || (each.ended !== null && each.ended <= stream.first));
        for (const stream of here) {
          const stop = stream.ended ?? end;
          const first = stream.first ?? stop;
          picture.append(svg("line", { class: "wait", x1: x(stream.begun), x2: x(first), y1: y, y2: y }));
          const mix = stream.into !== "" || stream.ref !== op.ref;
          const kind = stream.fault ? "broken" : mix ? "mix" : stream.ended !== null ? "over" : "";
          const wide = Math.max(1.5, x(stop) - x(first));
          if (stream.first !== null && stream.first !== undefined) picture.append(svg("rect", { class: `bar ${kind}`, x: x(first), y: y - row * 0.32, width: wide, height: row * 0.64, rx: 2 }));
          if (wide > 90 && row > 12 && alone(stream)) picture.append(svg("text", { x: x(first) + 6, y: y + 0.5, class: "label" }, `from ${hostName(stream.from)}`));
        }
      });
      for (const [when] of op.deaths) picture.append(svg("line", { class: "death", x1: x(when), x2: x(when), y1: 0, y2: height }));
      this.head = picture.appendChild(svg("line", { class: "head", y1: 0, y2: height }));
      box.replaceChildren(picture);
      this.x = x;
      this.left = left;
      this.width = width;
    }
    this.head.setAttribute("x1", x(at));
    this.head.setAttribute("x2", x(at));
  },
};
$("timeline").addEventListener("click", (event) => {
  const from = $("timeline").getBoundingClientRect().left + timeline.left;
  seekTo(Math.min(1, Math.max(0, (event.clientX - from) / (timeline.width - timeline.left - 12))));
});

// --- lists ------------------------------------------------------------------------------------------------------------

function showOperations() {
  const all = [...known.ops.values()].filter((op) => !op.missing && (op.streams.size || op.streams_count || op.reduction));
  all.sort((a, b) => (b.ended === null) - (a.ended === null) || b.began - a.began);
  $("no-operations").hidden = all.length > 0;
  const current = stage.op();
  $("operations").replaceChildren(...all.slice(0, 60).map((op) => {
    const moving = [...op.streams.values()].some((stream) => stream.ended === null);
    const state = op.failure ? "failed" : op.ended !== null ? "done" : moving ? "running" : "waiting";
    const receivers = new Set([...op.streams.values()].map((stream) => stream.to)).size;
    const took = op.failure ? "failed" : op.ended !== null ? duration(op.ended - op.began) : state === "running" ? "now" : "waits";
    const what = op.reduction ? `${op.kind}, ${op.reduction.op} of ${op.reduction.count}` : receivers ? `to ${receivers} ${receivers === 1 ? "host" : "hosts"}` : "broadcast";
    const deaths = op.deaths.length ? ` · ${op.deaths.length} ${op.deaths.length === 1 ? "death" : "deaths"}` : "";
    const ago = op.ended !== null ? ` · ${duration(Math.round(clock() - op.ended))} ago` : "";
    const button = make("button", { "aria-current": String(current?.id === op.id) },
      make("span", { class: `dot ${state}`, title: state }), make("span", { class: "name" }, titleOf(op)), make("span", {}, took),
      make("span", { class: "sub" }, `${what} · ${size(op.size)}${deaths}${ago}`));
    button.dataset.op = op.id;
    button.addEventListener("click", () => stage.choose(op.id));
    return make("li", {}, button);
  }));
}

function bar(name, used, pooled, limit) {
  const meter = make("div", { class: "meter" });
  for (const [part, kind] of [[used, ""], [pooled, "pooled"]]) {
    const piece = make("i", { class: kind });
    piece.style.width = `${limit ? Math.min(100, (100 * part) / limit) : 0}%`;
    meter.append(piece);
  }
  return make("div", { class: "bar-row", title: `${size(used)} used, ${size(pooled)} kept for the next objects, of ${size(limit)}` }, make("span", {}, name), meter, make("span", {}, `${size(used)} / ${size(limit)}`));
}

function spark(rates, highest) {
  const picture = svg("svg", { viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const [index, kind] of [[0, "in"], [1, "out"]]) {
    const points = rates.map((pair, step) => `${(120 - (rates.length - 1 - step) * 2).toFixed(1)},${(22.5 - (21 * pair[index]) / highest).toFixed(1)}`);
    if (points.length > 1) picture.append(svg("polyline", { class: `spark ${kind}`, points: points.join(" "), "vector-effect": "non-scaling-stroke" }));
  }
  return picture;
}

const STATES = { up: "up", suspect: "suspect", away: "not connected", leaving: "leaving", dead: "dead", left: "left" };

function showHosts() {
  const all = [...known.hosts.values()].sort((a, b) => a.number - b.number);
  const highest = Math.max(1e6, ...all.flatMap((host) => host.rates.flat()));
  $("hosts").replaceChildren(...all.map((host) => {
    const card = make("article", { class: `host ${host.state}` },
      make("div", { class: "host-head" }, make("b", {}, `host ${host.number}`), make("span", { class: "address mono", title: `${plain(host.address)} (${plain(host.id)})` }, shortAddress(host.id).startsWith(":") ? host.address : shortAddress(host.id)), make("span", { class: `badge ${host.state}` }, STATES[host.state] || host.state)));
    card.dataset.host = host.id;
    card.dataset.state = host.state;
    if (host.why) card.append(make("div", { class: "why" }, readable(host.why).replace(/^host \d+ is dead: /, "")));
    if (host.state === "dead" || host.state === "left") return card;
    if (host.memory) {
      card.append(bar("memory", host.memory.used, host.memory.pooled, host.memory.limit));
      for (const gpu of host.gpus || []) card.append(bar(`GPU ${plain(gpu.name)}`, gpu.used, gpu.pooled || 0, gpu.limit));
      card.append(spark(host.rates, highest));
      card.append(make("div", { class: "host-foot" }, make("span", {}, make("span", { class: "in-mark" }, "▼ "), rate(host.in || 0), "  ", make("span", { class: "out-mark" }, "▲ "), rate(host.out || 0)),
        make("span", { title: `${host.workers} ${host.workers === 1 ? "worker" : "workers"}, ${host.calls} open calls` }, `${host.objects} ${host.objects === 1 ? "object" : "objects"}`)));
    } else card.append(make("div", { class: "why muted" }, "its agent does not answer"));
    return card;
  }));
}

function showLinks() {
  const used = known.links.filter((link) => link.bytes > 0);
  const idle = known.links.length - used.length;
  text("no-links", idle ? `${used.length ? `${idle} more` : idle} ${idle === 1 ? "link is" : "links are"} open and ${idle === 1 ? "has" : "have"} carried nothing yet${used.length ? "" : `: ${[...new Set(known.links.map((link) => `${link.transport}, ${link.reason}`))].slice(0, 3).join("; ")}`}.` : "No link is open yet.");
  $("no-links").hidden = known.links.length > 0 && !idle;
  $("links").hidden = used.length === 0;
  $("links").tBodies[0].replaceChildren(...used.slice(0, 60).map((link) => make("tr", {},
    make("td", { class: "nowrap" }, hostName(link.from)), make("td", { class: "nowrap" }, hostName(link.to)),
    make("td", { class: "nowrap" }, make("span", { class: "transport" }, link.transport), link.lanes.length ? ` ${link.lanes.map(plain).join(", ")}` : ""),
    make("td", { class: "number" }, link.rate >= 1 ? rate(link.rate) : "–"), make("td", { class: "number" }, size(link.bytes)), make("td", { class: "wrap muted" }, link.reason))));
}

function showObjects() {
  $("no-objects").hidden = known.objects.length > 0;
  $("objects").hidden = known.objects.length === 0;
  $("objects").tBodies[0].replaceChildren(...known.objects.map((object) => {
    const creator = [...known.hosts.values()].find((host) => host.address === object.creator);
    return make("tr", {},
      make("td", {}, object.name ? make("span", {}, object.name) : make("span", { class: "mono", title: object.ref }, object.ref.slice(0, 16))),
      make("td", { class: "number" }, size(object.size)), make("td", { class: "wrap muted" }, object.layout || object.state), make("td", { class: "number" }, object.copies),
      make("td", { class: "number" }, object.age === null ? "–" : duration(Math.round(object.age))), make("td", { class: "nowrap" }, creator ? `host ${creator.number}` : object.creator || "–"));
  }));
}

const openFailures = new Set();
function showFailures() {
  const all = [...known.failures].reverse();
  $("no-failures").hidden = all.length > 0;
  $("failures").replaceChildren(...all.slice(0, 50).map((failure) => {
    const key = `${failure.at}`;
    const about = !failure.node && failure.ref ? `${titleOf(failure)}: ` : "";
    const box = make("details", {}, make("summary", {}, make("span", { class: `badge ${failure.what}` }, failure.what), make("time", {}, `${duration(Math.max(0, Math.round(clock() - failure.at)))} ago`), make("span", { class: "text" }, about + readable(failure.detail))),
      make("p", {}, failure.remedy));
    if (failure.story.length) {
      const last = failure.story[failure.story.length - 1].at;
      box.append(make("ol", { class: "story" }, ...failure.story.map((line) => make("li", {}, make("time", {}, `−${duration(last - line.at)}`), make("span", {}, readable(line.text).replace(/^directory [0-9a-f]+: /, ""))))));
    }
    box.open = openFailures.has(key);
    box.addEventListener("toggle", () => (box.open ? openFailures.add(key) : openFailures.delete(key)));
    return box;
  }));
}

function showFacts() {
  const up = [...known.hosts.values()].filter((host) => host.state === "up").length;
  const flow = [...known.hosts.values()].reduce((sum, host) => sum + (host.in || 0), 0);
  const facts = [["hosts", up], ["objects", known.cluster.objects ?? "–"], ["moving", rate(flow)], ["up for", known.cluster.uptime === undefined ? "–" : duration(Math.round(known.cluster.uptime))]];
  $("facts").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

const stale = new Set();
let refreshing = false;
function refresh(message) {
  for (const part of ["cluster", "hosts", "ops", "streams", "links", "objects", "failures"]) if (message[part]) stale.add(part);
  if (refreshing) return;
  refreshing = true;
  setTimeout(() => {
    refreshing = false;
    const parts = new Set(stale);
    stale.clear();
    if (parts.has("hosts") || parts.has("cluster")) showFacts();
    if (parts.has("hosts")) showHosts();
    if (parts.has("ops") || parts.has("streams")) showOperations();
    if (parts.has("links") || parts.has("hosts")) showLinks();
    if (parts.has("objects") || parts.has("hosts")) showObjects();
    if (parts.has("failures") || parts.has("hosts")) showFailures();
    if (parts.has("cluster")) showState();
  }, 120);
}

function showState() {
  const there = known.cluster.connected;
  $("state").dataset.state = there ? "live" : "lost";
  text("state-text", there ? `cluster ${known.cluster.cluster.slice(0, 8)}` : "the directory does not answer; this page tries again");
}

// --- the connection ---------------------------------------------------------------------------------------------------

// The key comes behind the # of the address, which is not sent anywhere, and is kept for this address only.
const given = new URLSearchParams(location.hash.slice(1)).get("key");
let key = given;
try {
  if (given) localStorage.setItem("hoplite key", given);
  else key = localStorage.getItem("hoplite key");
} catch { /* no storage: the address has it */ }
const authorization = () => ({ Authorization: `Bearer ${key ?? ""}` });

function notice(message) {
  $("notice").hidden = !message;
  text("notice", message);
}

async function follow() {
  const answer = await fetch("/api/changes", { headers: authorization(), cache: "no-store" });
  if (!answer.ok) {
    const why = (await answer.text()).trim();
    const error = new Error(why || `the view answered ${answer.status}`);
    error.final = answer.status === 401 || answer.status === 403;
    throw error;
  }
  notice("");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) take(JSON.parse(line));
  }
}

async function keepFollowing() {
  for (let pause = 0.5; ; pause = Math.min(pause * 2, 8)) {
    try {
      await follow();
      pause = 0.5;
    } catch (error) {
      $("state").dataset.state = "lost";
      text("state-text", error.final ? "refused" : "not connected");
      notice(error.final ? error.message : "The view does not answer. It ends with the process that serves it; this page tries again.");
      if (error.final) return;
    }
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
  }
}

const THEMES = ["", "light", "dark"];
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
let theme = "";
try { theme = localStorage.getItem("hoplite theme") || ""; } catch { /* as the system has it */ }
setTheme(theme);
$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  setTheme(theme);
  try { localStorage.setItem("hoplite theme", theme); } catch { /* for now only */ }
});

known.sharedNames = new Set();
stage.changed();
keepFollowing();
