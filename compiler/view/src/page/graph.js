// Actors and channels in layers, folded into rows where they are many.
const BOX = { w: 132, h: 44, dx: 200, dy: 66 };

// Marks the channels that close cycles, found in depth; those with initial tokens are looked at last, since one of
// each cycle has some, but so have windows that look back.
function closing(edges, n) {
  const out = Array.from({ length: n }, () => []), seen = new Array(n).fill(0), into = new Array(n).fill(0);
  for (const e of [...edges].sort((a, b) => a.delay - b.delay)) { out[e.from].push(e); into[e.to]++; }
  const starts = [...Array(n).keys()].sort((a, b) => into[a] - into[b] || a - b);
  for (const start of starts) {
    if (seen[start]) continue;
    const path = [[start, 0]];
    seen[start] = 1;
    while (path.length) {
      const top = path[path.length - 1], e = out[top[0]][top[1]++];
      if (!e) { seen[top[0]] = 2; path.pop(); continue; }
      e.back = seen[e.to] === 1;
      if (!seen[e.to]) { seen[e.to] = 1; path.push([e.to, 0]); }
    }
  }
}

function layers() {
  const n = view.actors.length, edges = [];
  view.channels.forEach((channel, c) => channel.readers.forEach((r) => edges.push({ from: channel.from, to: r.actor, delay: r.delay, channel: c, port: r.port })));
  closing(edges, n);
  const out = view.actors.map(() => []), waits = new Array(n).fill(0), level = new Array(n).fill(0);
  for (const e of edges) if (!e.back) { out[e.from].push(e.to); waits[e.to]++; }
  const ready = [];
  waits.forEach((w, a) => { if (!w) ready.push(a); });
  for (let i = 0; i < ready.length; i++) {
    for (const to of out[ready[i]]) {
      level[to] = Math.max(level[to], level[ready[i]] + 1);
      if (!--waits[to]) ready.push(to);
    }
  }
  const list = [];
  level.forEach((l, a) => { (list[l] = list[l] || []).push(a); });
  for (let l = 0; l < list.length; l++) list[l] = list[l] || [];
  // Each actor goes to the mean place of its neighbours, a few times to and fro.
  const place = new Array(n).fill(0), near = view.actors.map(() => []);
  for (const e of edges) { near[e.from].push(e.to); near[e.to].push(e.from); }
  for (let sweep = 0; sweep < 4; sweep++) {
    const order = sweep % 2 ? [...list].reverse() : list;
    for (const layer of order) {
      const mean = new Map(layer.map((a) => [a, near[a].length ? near[a].reduce((s, b) => s + place[b], 0) / near[a].length : place[a]]));
      layer.sort((a, b) => mean.get(a) - mean.get(b) || a - b);
      layer.forEach((a, i) => { place[a] = i - (layer.length - 1) / 2; });
    }
  }
  return { list, edges };
}

class GraphView {
  constructor() {
    this.plot = new Plot("graph", { vertical: true, draw: (c, w, h) => this.draw(c, w, h), hit: (x, y) => this.hit(x, y), pick: (f) => select(f && f.actor !== undefined ? f.actor : null) });
    this.plot.limits = { least: 0.02, most: 4 };
    state.listeners.push(() => this.plot.redraw());
    this.set();
  }

  // Lays out the graph of the view that is shown.
  set() {
    const { list, edges } = layers();
    this.edges = edges;
    this.at = new Array(view.actors.length).fill([0, 0]);
    const widest = Math.max(1, ...list.map((l) => l.length));
    const perRow = Math.max(8, Math.ceil(Math.sqrt((list.length * 2.4 * widest * BOX.dy) / BOX.dx)));
    let top = 0, right = 0;
    for (let row = 0; row * perRow < list.length; row++) {
      const part = list.slice(row * perRow, (row + 1) * perRow), high = Math.max(1, ...part.map((l) => l.length));
      part.forEach((layer, column) => layer.forEach((a, i) => {
        this.at[a] = [column * BOX.dx, top + (i + (high - layer.length) / 2) * BOX.dy];
        right = Math.max(right, column * BOX.dx + BOX.w);
      }));
      top += high * BOX.dy + 26;
    }
    this.size = [right, Math.max(top - 26, BOX.h)];
    this.plot.canvas.style.height = Math.min(560, Math.max(150, this.size[1] * Math.min(1, (this.plot.width - 40) / this.size[0]) + 60)) + "px";
    this.whole();
  }

  whole() {
    const { plot } = this, [w, h] = this.size;
    plot.scale = Math.min((plot.width - 40) / w, (plot.height - 40) / h, 1.2);
    if (!(plot.scale > 0.02)) plot.scale = 0.02;
    plot.x = -(plot.width / plot.scale - w) / 2;
    plot.y = -(plot.height / plot.scale - h) / 2;
    plot.redraw();
  }

  go(actor) {
    const { plot } = this, [x, y] = this.at[actor];
    plot.scale = Math.max(plot.scale, 0.9);
    plot.x = x + BOX.w / 2 - plot.width / plot.scale / 2;
    plot.y = y + BOX.h / 2 - plot.height / plot.scale / 2;
    plot.redraw();
  }

  draw(c, width, height) {
    const { x, y, scale } = this.plot, plan = view.plans[state.plan];
    c.save();
    c.scale(scale, scale);
    c.translate(-x, -y);
    const seen = { left: x - 60, top: y - 60, right: x + width / scale + 60, bottom: y + height / scale + 60 };
    for (const e of this.edges) this.edge(c, e, seen, scale);
    view.actors.forEach((actor, a) => {
      const [left, top] = this.at[a];
      if (left > seen.right || left + BOX.w < seen.left || top > seen.bottom || top + BOX.h < seen.top) return;
      c.globalAlpha = bright(a) ? 1 : 0.2;
      c.fillStyle = deviceColour(plan.actors[a].device);
      c.beginPath();
      c.roundRect(left, top, BOX.w, BOX.h, actor.role === "compute" ? 4 : 20);
      c.fill();
      if (actor.gate) { c.strokeStyle = inks.ink; c.lineWidth = 1.5; c.setLineDash([2, 3]); c.stroke(); c.setLineDash([]); }
      if (state.actor === a) { c.strokeStyle = inks.mark; c.lineWidth = 3; c.stroke(); }
      if (scale > 0.35) {
        c.fillStyle = "#10151a";
        c.textAlign = "center";
        c.font = "bold 12px system-ui, sans-serif";
        c.fillText(clip(actorLabel(a), 19), left + BOX.w / 2, top + 15);
        c.font = "11px system-ui, sans-serif";
        c.fillText(clip(actor.op.split("(")[0], 12) + " x" + actor.repetitions + " on " + deviceName(plan.actors[a].device), left + BOX.w / 2, top + 31, BOX.w - 6);
      }
      c.globalAlpha = 1;
    });
    c.restore();
    c.textAlign = "left";
  }

  edge(c, e, seen, scale) {
    const [ax, ay] = this.at[e.from], [bx, by] = this.at[e.to];
    const x0 = ax + BOX.w, y0 = ay + BOX.h / 2, x1 = bx, y1 = by + BOX.h / 2;
    const back = x1 < x0;
    if (Math.max(x0, x1) < seen.left - 100 || Math.min(x0, x1) > seen.right + 100) return;
    if (Math.max(y0, y1) < seen.top - 60 || Math.min(y0, y1) > seen.bottom + 60) return;
    c.globalAlpha = bright(e.from) || bright(e.to) ? 0.8 : 0.12;
    c.strokeStyle = e.back ? inks.mark : inks.soft;
    c.lineWidth = Math.min(1.2, 1 / scale);
    const { gate } = view.actors[e.to];
    c.setLineDash(e.back ? [5, 4] : gate && gate.input === e.port ? [2, 3] : []);
    c.beginPath();
    c.moveTo(x0, y0);
    const bend = back ? 70 : Math.max(20, (x1 - x0) / 2), under = back && Math.abs(y1 - y0) < BOX.h ? 60 : 0;
    c.bezierCurveTo(x0 + bend, y0 + under, x1 - bend, y1 + under, x1, y1);
    c.stroke();
    c.setLineDash([]);
    c.fillStyle = c.strokeStyle;
    c.beginPath(); c.moveTo(x1, y1); c.lineTo(x1 - 6, y1 - 3); c.lineTo(x1 - 6, y1 + 3); c.fill();
    if (scale > 0.55) {
      const channel = view.channels[e.channel], port = view.actors[e.to].inputs[e.port];
      c.font = "10px system-ui, sans-serif";
      c.fillStyle = inks.soft;
      c.textAlign = "left";
      c.fillText(channel.rate, x0 + 4, y0 - 7);
      c.textAlign = "right";
      c.fillText(port.window > port.rate ? `${port.rate} of ${port.window}` : port.rate, x1 - 6, y1 - 7);
      if (!back && scale > 0.8) {
        c.textAlign = "center";
        c.fillText(channel.token + (e.delay ? ` +${e.delay}` : ""), (x0 + x1) / 2, (y0 + y1) / 2 + 8);
      }
    }
    c.globalAlpha = 1;
  }

  hit(px, py) {
    const x = this.plot.x + px / this.plot.scale, y = this.plot.y + py / this.plot.scale;
    for (let a = 0; a < this.at.length; a++) {
      const [left, top] = this.at[a];
      if (x >= left && x <= left + BOX.w && y >= top && y <= top + BOX.h) {
        const actor = view.actors[a], fired = view.plans[state.plan].actors[a];
        return { actor: a, text: `${actorLabel(a)}\n${actor.op}\n${actor.repetitions} firings an iteration, on ${deviceName(fired.device)}\n${fired.calls} calls, ${duration(fired.busy_ns)} of a period${actor.gate ? "\n" + gateOf(a) : ""}` };
      }
    }
    return null;
  }
}

function clip(text, n) { return text.length > n ? text.slice(0, n - 1) + "\u2026" : text; }
