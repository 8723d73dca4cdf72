// Lanes by time: one period of a plan, or several with the blocks that run through them.
const ROW = 26, AXIS = 24;

class Gantt {
  constructor(id, periods, roles) {
    this.periods = periods;
    this.roles = roles;
    this.lanes = [];
    this.plot = new Plot(id, {
      draw: (c, w, h) => this.draw(c, w, h),
      hit: (x, y) => this.hit(x, y),
      pick: (found) => select(found ? found.actor : null),
    });
    state.listeners.push(() => this.plot.redraw());
  }

  set(plan) {
    this.plan = plan;
    this.count = this.periods(plan);
    this.lanes = this.count === 1 ? withMeasured(plan) : plan.lanes;
    this.rowOf = plan.lanes.map((lane) => this.lanes.indexOf(lane));
    const last = Math.max(plan.period_ns, ...this.lanes.map((l) => (l.slots.length ? endOf(l.slots[l.slots.length - 1]) : 0)));
    this.plot.extent = Math.max((this.count - 1) * plan.period_ns + last, 1);
    this.plot.left = this.names();
    this.plot.canvas.style.height = Math.max(90, ROW * this.lanes.length + AXIS + 4) + "px";
    this.whole();
  }

  names() {
    const c = this.plot.context;
    c.font = "12px system-ui, sans-serif";
    const widest = Math.max(0, ...this.lanes.map((l) => c.measureText(this.name(l)).width));
    return Math.min(widest + 74, this.plot.width / 3 || 140);
  }

  name(lane) { return laneName(lane, this.roles()); }

  whole() {
    const room = Math.max(this.plot.width - this.plot.left, 1);
    this.plot.limits = { least: room / this.plot.extent, most: Math.max(40, (50 * room) / this.plot.extent) };
    this.plot.show(0, this.plot.extent);
  }

  draw(c, width, height) {
    if (!this.plan) return;
    const { x: from, scale, left } = this.plot;
    const room = Math.max(width - left, 1);
    // The canvas may have grown or shrunk since: the whole is the least that is shown.
    if (scale * this.plot.extent < room - 1) this.plot.scale = room / this.plot.extent;
    const label = this.axis(c, width, height);
    const to = from + room / this.plot.scale;
    this.lanes.forEach((lane, l) => this.lane(c, lane, AXIS + l * ROW, from, to, width));
    if (this.count === 1) this.transfers(c, from, to);
    c.fillStyle = inks.ground;
    c.fillRect(0, 0, left, height);
    c.fillStyle = inks.ink;
    this.lanes.forEach((lane, l) => {
      const share = (100 * lane.busy_ns) / Math.max(this.plan.period_ns, 1);
      c.textAlign = "left";
      c.fillText(this.name(lane), 6, AXIS + l * ROW + ROW / 2, left - 66);
      c.textAlign = "right";
      c.fillText(share.toFixed(1) + " %", left - 6, AXIS + l * ROW + ROW / 2);
    });
    c.textAlign = "left";
    label();
  }

  px(time) { return this.plot.left + (time - this.plot.x) * this.plot.scale; }

  axis(c, width, height) {
    const { x, scale, left } = this.plot, room = (width - left) / scale;
    const step = stepFor(room, width / 110);
    c.strokeStyle = inks.line; c.fillStyle = inks.soft; c.lineWidth = 1; c.textAlign = "center";
    const marks = [];
    c.beginPath();
    for (let t = Math.floor(x / step) * step; t <= x + room; t += step) {
      if (t < 0) continue;
      const at = Math.round(this.px(t)) + 0.5;
      c.moveTo(at, AXIS); c.lineTo(at, height);
      if (at > left + 24 || t === 0) marks.push([t, at]);
    }
    c.stroke();
    c.strokeStyle = inks.mark;
    c.beginPath();
    for (let p = 1; p <= this.count; p++) {
      const at = Math.round(this.px(p * this.plan.period_ns)) + 0.5;
      if (at >= left && at <= width) { c.moveTo(at, AXIS - 6); c.lineTo(at, height); }
    }
    c.stroke();
    c.textAlign = "left";
    return () => {
      c.fillStyle = inks.soft; c.textAlign = "center";
      for (const [t, at] of marks) if (at >= left - 1) c.fillText(t === 0 ? "0" : exact(t, step), at, AXIS / 2);
      c.textAlign = "left";
    };
  }

  // Slots within one pixel are one line, in the colour of the longest of them.
  lane(c, lane, top, from, to, width) {
    const { left } = this.plot, slots = lane.slots, picky = state.matches !== null || state.actor !== null;
    c.fillStyle = inks.lane;
    c.fillRect(left, top + 3, width - left, ROW - 6);
    for (let p = 0; p < this.count; p++) {
      const offset = p * this.plan.period_ns;
      let line = null;
      for (let s = firstAfter(slots, from - offset); s < slots.length; s++) {
        const slot = slots[s];
        if (slot.start_ns + offset > to) break;
        const stage = slot.stage || 0;
        if (p < stage && this.count > 1) continue;
        const x0 = Math.max(this.px(slot.start_ns + offset), left - 2), x1 = this.px(endOf(slot) + offset);
        if (x1 - x0 < 1.5) {
          const pixel = Math.floor(x0);
          if (line && line.pixel === pixel) {
            // What is looked for is not hidden by what is longer.
            const a = picky && this.shown(slot), b = picky && this.shown(line.slot);
            if (a === b ? Boolean(slot.late) === Boolean(line.slot.late) ? slot.duration_ns > line.slot.duration_ns : slot.late : a) line.slot = slot;
            continue;
          }
          if (line) this.box(c, line.slot, line.pixel, 1, top, p);
          line = { pixel, slot };
          continue;
        }
        if (line) { this.box(c, line.slot, line.pixel, 1, top, p); line = null; }
        this.box(c, slot, x0, Math.min(x1, width + 2) - x0, top, p);
      }
      if (line) this.box(c, line.slot, line.pixel, 1, top, p);
    }
  }

  shown(slot) { return bright(actorOf(this.plan, slot)); }

  box(c, slot, x, w, top, period) {
    const shown = this.shown(slot);
    c.globalAlpha = shown ? 1 : 0.15;
    c.fillStyle = this.count > 1 ? `hsl(${((period - (slot.stage || 0)) * 67 + 200) % 360},55%,50%)` : slotColour(slot);
    c.fillRect(x, top + 3, w, ROW - 6);
    if (w > 3) {
      c.globalAlpha = shown ? 0.5 : 0.1;
      c.fillStyle = inks.ground;
      c.fillRect(x + w - 0.7, top + 3, 0.7, ROW - 6);
    }
    c.globalAlpha = 1;
    if (w < 40 || !shown || slot.act !== "fire") return;
    const text = actorLabel(slot.id), fits = Math.floor((w - 8) / 6.5);
    if (fits < 3) return;
    c.fillStyle = "#fff";
    c.fillText(text.length > fits ? text.slice(0, fits - 1) + "\u2026" : text, x + 4, top + ROW / 2);
  }

  transfers(c, from, to) {
    const { plan } = this;
    if (plan.transfers.length > 20000) return;
    c.strokeStyle = inks.soft; c.globalAlpha = 0.6; c.lineWidth = 1;
    c.beginPath();
    let drawn = 0;
    for (const t of plan.transfers) {
      if (t.periods) continue;
      const a = plan.lanes[t.from[0]].slots[t.from[1]], b = plan.lanes[t.to[0]].slots[t.to[1]];
      // A receipt may be waiting already when its tokens are sent.
      const start = endOf(a), end = Math.min(Math.max(b.start_ns, start), endOf(b));
      if (end < from || start > to || drawn++ > 600) continue;
      const [x0, x1] = [this.px(start), this.px(end)];
      const [y0, y1] = [t.from, t.to].map(([lane]) => AXIS + this.rowOf[lane] * ROW + ROW / 2);
      c.moveTo(x0, y0);
      c.bezierCurveTo((x0 + x1) / 2 + 6, y0, (x0 + x1) / 2 - 6, y1, x1, y1);
    }
    c.stroke();
    c.globalAlpha = 1;
  }

  hit(x, y) {
    const l = Math.floor((y - AXIS) / ROW), lane = this.lanes[l];
    if (!lane || x < this.plot.left) return null;
    const time = this.plot.x + (x - this.plot.left) / this.plot.scale, slack = 2 / this.plot.scale;
    const period = this.count > 1 ? Math.min(Math.floor(time / this.plan.period_ns), this.count - 1) : 0;
    const within = time - period * this.plan.period_ns;
    const slots = lane.slots;
    let at = firstAfter(slots, within - slack), found = null;
    for (; at < slots.length && slots[at].start_ns <= within + slack; at++) {
      const far = Math.max(slots[at].start_ns - within, within - endOf(slots[at]), 0);
      if (!found || far < found.far) found = { far, slot: slots[at] };
      if (far === 0) break;
    }
    if (!found) return null;
    const { slot } = found, stage = slot.stage || 0;
    if (this.count > 1 && period < stage) return null;
    const block = this.count > 1 ? `block ${period - stage}` : stage ? `block ${stage} before the newest` : "the newest block";
    const text = `${label(this.plan, slot)}\n${this.name(lane)} at ${duration(slot.start_ns)} for ${duration(slot.duration_ns)}\nstage ${stage}, ${block}${howItWent(slot)}`;
    return { text, actor: actorOf(this.plan, slot), slot };
  }

  // Brings the next slot of one of these actors to the middle.
  next(actors) {
    const middle = this.plot.x + (this.plot.width - this.plot.left) / this.plot.scale / 2;
    let best = null, first = null;
    for (const lane of this.lanes) {
      for (const slot of lane.slots) {
        if ((slot.act !== "fire" && slot.act !== "loop") || !actors.has(slot.id)) continue;
        const centre = slot.start_ns + slot.duration_ns / 2;
        if (!first || centre < first.centre) first = { centre, slot };
        if (centre > middle * (1 + 1e-9) + 0.5 && (!best || centre < best.centre)) best = { centre, slot };
      }
    }
    const target = best || first;
    if (!target) return;
    const length = Math.min(Math.max(target.slot.duration_ns * 8, 20), this.plot.extent / 2);
    this.plot.show(target.centre - length / 2, target.centre + length / 2);
  }
}

// Lanes, each followed by how it really went.
function withMeasured(plan) {
  const rows = [];
  plan.lanes.forEach((lane, l) => {
    rows.push(lane);
    for (const m of plan.measured ? plan.measured.lanes : []) {
      if (m.lane !== l) continue;
      const whole = { act: "loop", id: (lane.slots.find((s) => s.act === "fire") || { id: 0 }).id, count: lane.executions };
      const slots = m.slots.map((slot) => ({ ...(slot.slot === null ? whole : lane.slots[slot.slot]), ...slot, measured: true }));
      rows.push({ device: lane.device, kind: "measured", busy_ns: m.busy_ns, slots });
    }
  });
  return rows;
}

function howItWent(slot) {
  if (!slot.measured) return "";
  return `\nmeasured: 99 % in ${duration(slot.p99_ns)}, ${duration(Math.abs(slot.late_ns))} ${slot.late_ns > 0 ? "late" : "early"}`;
}

// A time on an axis with steps of that size: never two marks alike.
function exact(time, step) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) {
    if (step >= size / 1000 && time >= size) {
      return Number((time / size).toFixed(Math.max(0, Math.ceil(Math.log10(size / step))))) + " " + unit;
    }
  }
  return Math.round(time) + " ns";
}
