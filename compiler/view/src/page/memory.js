// Regions of each device: offsets downwards, a period to the right. Narrow buffers are as thin as they are.
const REGION = 120, GAP = 22;

class MemoryMap {
  constructor() {
    this.plot = new Plot("memory", { draw: (c, w, h) => this.draw(c, w, h), hit: (x, y) => this.hit(x, y), pick: (f) => select(f ? f.actor : null) });
    this.plot.left = 8;
    state.listeners.push(() => this.plot.redraw());
  }

  set(plan) {
    this.plan = plan;
    this.regions = [];
    for (const m of plan.memories) {
      const has = (region) => plan.buffers.map((b, id) => ({ ...b, id })).filter((b) => b.device === m.device && b.region === region);
      for (const [region, size] of [["arena", m.arena_bytes], ["exchange", m.exchange_bytes]]) {
        if (!size) continue;
        const items = has(region);
        if (region === "arena" && m.scratch_bytes) items.push({ scratch: true, offset_bytes: m.scratch_offset_bytes, stride_bytes: m.scratch_bytes, places: 1, live_ns: null });
        items.sort((a, b) => a.offset_bytes - b.offset_bytes);
        this.regions.push({ device: m.device, region, size, items });
      }
    }
    this.plot.extent = Math.max(plan.period_ns, 1);
    this.plot.canvas.style.height = Math.max(60, this.regions.length * (REGION + GAP) + 8) + "px";
    this.whole();
  }

  whole() {
    const room = Math.max(this.plot.width - 16, 1);
    this.plot.limits = { least: room / this.plot.extent, most: Math.max(40, (50 * room) / this.plot.extent) };
    this.plot.show(0, this.plot.extent);
  }

  px(time) { return 8 + (time - this.plot.x) * this.plot.scale; }

  draw(c, width) {
    if (!this.plan) return;
    if (this.plot.scale * this.plot.extent < width - 17) this.plot.scale = (width - 16) / this.plot.extent;
    this.regions.forEach((r, i) => {
      const top = GAP + i * (REGION + GAP), unit = REGION / r.size;
      c.fillStyle = inks.ink;
      c.fillText(`${deviceName(r.device)} ${r.region} ${bytes(r.size)}, ${r.items.length} ${r.items.length === 1 ? "buffer" : "buffers"}`, 8, top - 9, width - 16);
      c.fillStyle = inks.lane;
      c.fillRect(8, top, width - 16, REGION);
      for (const b of r.items) {
        const [from, to] = b.live_ns || [0, this.plot.extent];
        const x0 = Math.max(this.px(from), 8), x1 = Math.min(this.px(to), width - 8);
        if (x1 <= x0) continue;
        const y = top + b.offset_bytes * unit, h = Math.max(b.stride_bytes * b.places * unit, 0.5);
        c.globalAlpha = b.scratch || bright(view.channels[b.channel].from) ? 0.9 : 0.15;
        c.fillStyle = b.scratch ? inks.soft : `hsl(${hue(view.channels[b.channel].from)},${b.live_ns ? 55 : 30}%,${b.live_ns ? 50 : 58}%)`;
        c.fillRect(x0, y, x1 - x0, h);
        c.fillStyle = inks.ground;
        if (h > 2) for (let p = 0; p < Math.min(b.places, 64); p++) c.fillRect(x0, y + p * b.stride_bytes * unit, x1 - x0, 0.7);
        if (h > 12 && x1 - x0 > 70) {
          c.fillStyle = "#fff";
          c.fillText(clip(b.scratch ? "scratch" : channelName(b.channel), Math.floor((x1 - x0) / 7)), x0 + 4, y + h / 2);
        }
        c.globalAlpha = 1;
      }
    });
  }

  hit(x, y) {
    const i = Math.floor((y - GAP) / (REGION + GAP)), r = this.regions && this.regions[i];
    if (!r) return null;
    const offset = ((y - GAP - i * (REGION + GAP)) / REGION) * r.size, time = this.plot.x + (x - 8) / this.plot.scale, slack = r.size / REGION;
    if (offset < 0 || offset > r.size + slack) return null;
    let best = null;
    for (const b of r.items) {
      const [from, to] = b.live_ns || [0, this.plot.extent];
      if (time < from || time > to) continue;
      const end = b.offset_bytes + b.stride_bytes * b.places, far = Math.max(b.offset_bytes - offset, offset - end, 0);
      if (far <= slack && (!best || far < best.far)) best = { far, b };
    }
    if (!best) return null;
    const { b } = best, size = bytes(b.stride_bytes * b.places);
    if (b.scratch) return { actor: null, text: `scratch of kernels\n${size} at ${b.offset_bytes}` };
    const channel = view.channels[b.channel], live = b.live_ns ? `live from ${duration(b.live_ns[0])} to ${duration(b.live_ns[1])}` : "live always";
    return { actor: channel.from, text: `${channel.name}\n${size} at ${b.offset_bytes}: ${b.places} x (${b.head_tokens} + ${b.block_tokens}) ${channel.token}\n${live}${b.over == null ? "" : `, over ${view.channels[b.over].name}`}${b.part_of == null ? "" : `, in ${view.channels[b.part_of].name}`}` };
  }
}
