// The picture of one operation at one moment: which host has how much, and who pulls from whom. `stateAt` computes it
// from what is known of the operation's course, so that a live operation and a replay are the same thing.

const SVG = "http://www.w3.org/2000/svg";
const FADE = 1.6; // seconds on screen for which a broken stream stays visible
const TALLEST = 560; // what a tree of many branches may take
const FRESH = 1.2; // and a new one after a break is emphasised

export function svg(name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// How many bytes a stream had at a moment: straight lines between what is known.
export function positionAt(stream, at) {
  const points = [[stream.begun, stream.offset]];
  if (stream.first !== null && stream.first !== undefined) points.push([stream.first, stream.offset]);
  for (const sample of stream.samples || []) if (sample[0] > points[points.length - 1][0]) points.push(sample);
  if (stream.ended !== null && stream.ended >= points[points.length - 1][0]) points.push([stream.ended, stream.position]);
  if (at <= points[0][0]) return points[0][1];
  for (let index = 1; index < points.length; index++) {
    const [later, above] = points[index];
    if (at < later) {
      const [earlier, below] = points[index - 1];
      return below + ((above - below) * (at - earlier)) / Math.max(later - earlier, 1e-9);
    }
  }
  const last = points[points.length - 1];
  if (stream.ended === null && stream.rate > 0) return Math.min(stream.size, last[1] + stream.rate * Math.min(at - last[0], 0.5));
  return last[1];
}

export function stateAt(op, at, speed = 1) {
  const nodes = new Map();
  const edges = [];
  const node = (id) => {
    if (!nodes.has(id)) nodes.set(id, { id, share: 0, role: "waiting", mix: false, streams: 0 });
    return nodes.get(id);
  };
  const dead = new Map(op.deaths.map(([when, id]) => [id, when]));
  const streams = [...op.streams.values()].filter((stream) => stream.begun <= at).sort((a, b) => a.begun - b.begun);
  const latest = new Map(); // of each receiver of each ref: the stream that counts
  for (const stream of streams) latest.set(`${stream.to} ${stream.into} ${stream.ref}`, stream);
  const fade = FADE / speed;
  const striped = op.reduction && op.reduction.slots.length > 0 && op.assembled;
  const taking = new Map(); // of each host, shares of what streams into its slots
  for (const stream of streams) {
    const key = `${stream.to} ${stream.into} ${stream.ref}`;
    const current = latest.get(key) === stream;
    const ended = stream.ended !== null && stream.ended <= at;
    const broken = ended && stream.fault !== "" && stream.fault !== "not seen";
    const share = stream.size ? positionAt(stream, at) / stream.size : 1;
    const mix = stream.into !== "";
    node(stream.from);
    const to = node(stream.to);
    if (current) {
      if (mix) {
        if (!taking.has(stream.to)) taking.set(stream.to, []);
        taking.get(stream.to).push(share);
      } else if (stream.ref === op.ref) {
        to.share = Math.max(to.share, share);
        to.role = ended && !broken ? "complete" : "getting";
      } else {
        if (!taking.has(stream.to)) taking.set(stream.to, []);
        taking.get(stream.to).push(share);
      }
    }
    if (broken && at - stream.ended > fade && !(current && !dead.has(stream.to))) continue;
    if (broken && at - stream.ended > fade) continue;
    if (!current && !broken && (mix || stream.ref !== op.ref ? ended : true)) continue;
    const again = stream.offset > 0 && at - stream.begun < FRESH / speed;
    edges.push({
      key: stream.id, from: stream.from, to: stream.to, mix: mix || stream.ref !== op.ref,
      state: broken ? "broken" : ended ? "done" : stream.first !== null && stream.first <= at ? "flow" : "asked",
      fresh: again, rate: ended ? 0 : stream.rate || 0, stream,
    });
  }
  for (const [id, shares] of taking) {
    const to = node(id);
    if (to.role === "waiting") {
      to.mix = true;
      to.share = shares.reduce((sum, share) => sum + share, 0) / shares.length;
      to.role = to.share >= 0.9999 && !striped ? "combined" : "getting";
    }
  }
  if (op.putter) node(op.putter);
  for (const [id, when] of Object.entries(op.copies)) {
    if (when <= at || when <= op.began) {
      const holder = node(id);
      holder.share = 1;
      holder.role = "complete";
    }
  }
  if (op.reduction) {
    for (const slot of op.reduction.slots) if (slot.host) node(slot.host);
    op.reduction.homes.forEach((id) => {
      if (id && node(id).role === "waiting") Object.assign(node(id), { role: "ready", mix: true });
    });
  } else {
    for (const each of nodes.values()) {
      if (each.id === op.putter || ![...op.streams.values()].some((stream) => stream.to === each.id)) each.role = "source";
    }
  }
  for (const [id, when] of dead) if (when <= at && nodes.has(id)) nodes.get(id).role = "dead";
  return { nodes, edges };
}

// Where hosts stand: in columns by their distance from the root, folded if there are more columns than fit, or on a
// circle if the streams do not make a tree.
export function layout(state, op, width, phone) {
  const { nodes, edges } = state;
  const parents = new Map();
  const towards = op && op.reduction; // then the root is where the streams end
  let circular = false;
  for (const edge of edges) {
    if (edge.state === "broken") continue;
    if (towards && edge.mix) {
      if (parents.has(edge.from) && parents.get(edge.from) !== edge.to) circular = true;
      parents.set(edge.from, edge.to);
    } else if (!towards) parents.set(edge.to, edge.from);
  }
  const depth = new Map();
  const depthOf = (id, seen = new Set()) => {
    if (depth.has(id)) return depth.get(id);
    if (seen.has(id)) { circular = true; return 0; }
    seen.add(id);
    const above = parents.get(id);
    const found = above === undefined ? 0 : 1 + depthOf(above, seen);
    depth.set(id, found);
    return found;
  };
  for (const id of nodes.keys()) depthOf(id);
  if (towards && (op.kind === "allreduce" && op.reduction.slot_count > nodes.size)) circular = true;
  if (circular || !op) return onCircle(nodes, width, phone);

  const children = new Map();
  for (const id of nodes.keys()) {
    const above = parents.get(id);
    if (above !== undefined) children.set(above, [...(children.get(above) || []), id]);
  }
  const lanes = new Map();
  let lane = 0;
  const put = (id) => {
    const below = children.get(id) || [];
    if (!below.length) lanes.set(id, lane++);
    else {
      below.forEach(put);
      lanes.set(id, below.map((child) => lanes.get(child)).reduce((a, b) => a + b, 0) / below.length);
    }
  };
  const roots = [...nodes.keys()].filter((id) => parents.get(id) === undefined);
  const attached = roots.filter((id) => children.has(id));
  const alone = roots.filter((id) => !children.has(id));
  attached.forEach(put);
  const treeLanes = Math.max(1, lane);
  const deepest = Math.max(0, ...depth.values());
  const columns = deepest + 1;
  const least = phone ? (columns > 12 ? 40 : 58) : columns > 24 ? 50 : 80;
  const fit = Math.max(2, Math.floor((width - 40) / least));
  const perRow = columns <= fit ? columns : Math.min(fit, Math.ceil(columns / Math.ceil(columns / fit)));
  const folds = Math.ceil(columns / perRow);
  const step = Math.min(150, (width - 60) / Math.max(1, perRow));
  const crowded = treeLanes > 7;
  const labels = step >= 72 && !crowded;
  const rowHeight = crowded ? Math.max(19, Math.min(64, TALLEST / treeLanes)) : Math.min(24, step * 0.21) * 2.4 + (labels ? 46 : 16);
  const radius = Math.max(5, Math.min(24, step * (step >= 72 ? 0.21 : 0.3), crowded ? rowHeight * 0.34 : 24));
  const left = (width - step * (perRow - 1)) / 2;
  const top = radius + 34;
  const places = new Map();
  for (const [id, at] of lanes) {
    const column = towards ? deepest - depth.get(id) : depth.get(id);
    const fold = Math.floor(column / perRow);
    const within = column % perRow;
    const x = left + step * (fold % 2 ? perRow - 1 - within : within);
    places.set(id, { x, y: top + at * rowHeight + fold * (treeLanes * rowHeight + 14) });
  }
  let height = top + folds * (treeLanes * rowHeight + 14) - 14 - rowHeight + radius + (labels ? 50 : 26);
  if (alone.length) {
    const gap = Math.min(step, (width - 60) / alone.length);
    const y = attached.length ? height + radius : top;
    const from = (width - gap * (alone.length - 1)) / 2;
    alone.forEach((id, index) => places.set(id, { x: from + index * gap, y }));
    height = y + radius + 40;
  }
  return { places, radius, height: Math.max(height, 170), labels };
}

function onCircle(nodes, width, phone) {
  const ids = [...nodes.keys()].sort((a, b) => nodes.get(a).number - nodes.get(b).number);
  const height = Math.max(220, Math.min(phone ? 320 : 400, 160 + ids.length * 24));
  const rx = Math.max(60, Math.min(width / 2 - 70, (height / 2 - 46) * 2.1));
  const ry = height / 2 - 60;
  const around = Math.PI * (rx + ry);
  const radius = Math.max(6, Math.min(24, (around / Math.max(ids.length, 1)) * 0.3));
  const places = new Map();
  ids.forEach((id, index) => {
    const angle = ids.length === 1 ? 0 : (index / ids.length) * 2 * Math.PI - Math.PI / 2;
    const reach = ids.length === 1 ? 0 : 1;
    places.set(id, { x: width / 2 + reach * rx * Math.cos(angle), y: height / 2 - 12 + reach * ry * Math.sin(angle) });
  });
  return { places, radius, height, labels: radius >= 12 };
}

export class TreeView {
  constructor(element) {
    this.element = element;
    this.edges = element.appendChild(svg("g"));
    this.nodes = element.appendChild(svg("g"));
    this.texts = element.appendChild(svg("g"));
    this.shown = new Map();
    this.lines = new Map();
    this.places = new Map();
    this.height = 0;
  }

  // Draws; true if something still moves towards its place.
  draw(state, op, { hosts, short, rate, about, jump }) {
    const width = this.element.clientWidth || 800;
    for (const node of state.nodes.values()) node.number = hosts.get(node.id)?.number ?? 1e6;
    const plan = layout(state, op, width, width < 560);
    let moving = false;
    const ease = jump ? 1 : 0.16;
    for (const [id, place] of plan.places) {
      const now = this.places.get(id);
      if (!now || ease === 1) this.places.set(id, { ...place });
      else {
        now.x += (place.x - now.x) * ease;
        now.y += (place.y - now.y) * ease;
        if (Math.abs(place.x - now.x) + Math.abs(place.y - now.y) > 0.5) moving = true;
      }
    }
    for (const id of this.places.keys()) if (!plan.places.has(id)) this.places.delete(id);
    const height = this.height && !jump ? this.height + (plan.height - this.height) * 0.2 : plan.height;
    if (Math.abs(plan.height - height) > 0.5) moving = true;
    this.height = Math.abs(plan.height - height) > 0.5 ? height : plan.height;
    this.element.setAttribute("viewBox", `0 0 ${width} ${this.height.toFixed(1)}`);
    this.element.setAttribute("height", this.height.toFixed(1));
    this.drawNodes(state, plan, hosts, short);
    this.drawEdges(state, plan, rate, about);
    return moving;
  }

  drawNodes(state, plan, hosts, short) {
    const r = plan.radius;
    for (const [id, node] of state.nodes) {
      let group = this.shown.get(id);
      if (!group) {
        group = svg("g", { class: "node" });
        group.append(svg("title"), svg("circle", { class: "body" }), svg("circle", { class: "track", pathLength: 1 }),
          svg("circle", { class: "arc", pathLength: 1, transform: "rotate(-90)" }), svg("text", { class: "name" }), svg("text", { class: "below share" }), svg("text", { class: "below" }));
        this.nodes.append(group);
        this.shown.set(id, group);
      }
      const place = this.places.get(id);
      const host = hosts.get(id);
      const health = host && (host.state === "suspect" || host.state === "away") ? host.state : "";
      const gone = node.role === "dead" || (host && host.state === "dead" && node.role !== "complete" && !node.past);
      const role = gone ? "dead" : node.role;
      const [title, body, track, arc, name, share, below] = group.children;
      group.setAttribute("class", `node ${role} ${node.mix ? "mix" : ""} ${health}`);
      group.setAttribute("transform", `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})`);
      group.dataset.host = id;
      group.dataset.state = role;
      body.setAttribute("r", r);
      const ring = r + Math.max(3, r * 0.2);
      for (const circle of [track, arc]) {
        circle.setAttribute("r", ring);
        circle.setAttribute("stroke-width", Math.max(2.5, r * 0.17));
      }
      const share01 = Math.max(0, Math.min(1, node.share));
      const shows = role === "getting" || role === "complete" || role === "combined" || role === "dead";
      track.style.display = shows ? "" : "none";
      arc.style.display = shows && share01 > 0 ? "" : "none";
      arc.setAttribute("stroke-dasharray", `${share01.toFixed(4)} 2`);
      name.setAttribute("font-size", Math.max(9, r * 0.72));
      name.textContent = role === "dead" ? "✗" : host ? host.number : "?";
      const labels = plan.labels;
      share.setAttribute("y", ring + 15);
      share.textContent = labels ? (role === "getting" ? `${Math.floor(share01 * 100)}%` : role === "dead" ? `host ${host ? host.number : "?"} is dead` : "") : "";
      below.setAttribute("y", ring + (share.textContent ? 29 : 15));
      below.textContent = labels ? short(id) : "";
      title.textContent = `host ${host ? host.number : "?"}, ${host ? host.address : id}: ${role}${role === "getting" ? `, ${Math.floor(share01 * 100)}%` : ""}`;
    }
    for (const [id, group] of this.shown) if (!state.nodes.has(id)) { group.remove(); this.shown.delete(id); }
  }

  drawEdges(state, plan, rate, about) {
    const seen = new Set();
    for (const edge of state.edges) {
      const from = this.places.get(edge.from);
      const to = this.places.get(edge.to);
      if (!from || !to || edge.from === edge.to) continue;
      seen.add(edge.key);
      let line = this.lines.get(edge.key);
      if (!line) {
        line = { path: svg("path"), pulse: svg("path", { class: "pulse" }), text: svg("text", { class: "rate" }), title: svg("title") };
        line.path.append(line.title);
        this.edges.append(line.path, line.pulse);
        this.texts.append(line.text);
        this.lines.set(edge.key, line);
      }
      const { d, x, y, angle, length } = curve(from, to, plan.radius + Math.max(3, plan.radius * 0.2) + 3, edge.bend || 0);
      line.path.setAttribute("d", d);
      line.path.setAttribute("class", `edge ${edge.state} ${edge.mix ? "mix" : ""} ${edge.fresh ? "fresh" : ""}`);
      line.path.dataset.from = edge.from;
      line.path.dataset.to = edge.to;
      line.path.dataset.state = edge.state;
      line.title.textContent = about(edge);
      const flowing = edge.state === "flow";
      line.path.setAttribute("stroke-width", edge.fresh ? 5 : flowing ? 4 : 2);
      line.pulse.style.display = flowing ? "" : "none";
      if (flowing) {
        line.pulse.setAttribute("d", d);
        line.pulse.setAttribute("class", `pulse ${edge.mix ? "mix" : ""}`);
        line.pulse.setAttribute("stroke-width", Math.max(2.5, plan.radius * 0.18));
        line.pulse.setAttribute("stroke-dashoffset", (-(performance.now() / 18) % 16).toFixed(1));
      }
      const label = length > 46 && plan.radius >= 11 && flowing && edge.rate > 0 ? rate(edge.rate) : "";
      line.text.textContent = label;
      if (label) {
        line.text.setAttribute("x", x.toFixed(1));
        line.text.setAttribute("y", (y - 9).toFixed(1));
        line.text.setAttribute("transform", angle ? `rotate(${angle.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)})` : "");
      }
    }
    for (const [key, line] of this.lines) {
      if (!seen.has(key)) {
        line.path.remove();
        line.pulse.remove();
        line.text.remove();
        this.lines.delete(key);
      }
    }
  }
}

function curve(from, to, gap, bend) {
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const length = Math.hypot(dx, dy) || 1;
  const ux = dx / length;
  const uy = dy / length;
  const a = { x: from.x + ux * gap, y: from.y + uy * gap };
  const b = { x: to.x - ux * gap, y: to.y - uy * gap };
  const off = bend * length;
  const m = { x: (a.x + b.x) / 2 - uy * off, y: (a.y + b.y) / 2 + ux * off };
  let angle = (Math.atan2(dy, dx) * 180) / Math.PI;
  if (angle > 90 || angle < -90) angle += 180;
  return { d: `M${a.x.toFixed(1)} ${a.y.toFixed(1)}Q${m.x.toFixed(1)} ${m.y.toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`, x: (a.x + b.x) / 2 - (uy * off) / 2, y: (a.y + b.y) / 2 + (ux * off) / 2, angle, length: length - 2 * gap };
}
