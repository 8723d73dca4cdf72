// A canvas over a plane that can be moved and zoomed: by wheel, drag, keys and two fingers.
const tip = document.getElementById("tip");

class Plot {
  // `draw(context, width, height)` paints, `hit(x, y)` says what lies there: { text, actor } or null.
  constructor(id, { draw, hit, vertical, pick }) {
    this.canvas = document.getElementById(id);
    this.context = this.canvas.getContext("2d");
    Object.assign(this, { paint: draw, hit, vertical, pick });
    this.x = 0; this.y = 0; this.scale = 1; this.waiting = false; this.dragged = 0;
    this.limits = { least: 1e-9, most: 1e3 };
    this.pointers = new Map();
    const on = (name, f) => this.canvas.addEventListener(name, f, { passive: false });
    on("wheel", (e) => this.wheel(e));
    on("pointerdown", (e) => this.down(e));
    on("pointermove", (e) => this.move(e));
    on("pointerup", (e) => this.up(e));
    on("pointercancel", (e) => this.pointers.delete(e.pointerId));
    on("pointerleave", () => { tip.hidden = true; });
    on("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  get width() { return this.canvas.clientWidth; }
  get height() { return this.canvas.clientHeight; }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.now(); });
  }

  now() {
    const dots = window.devicePixelRatio || 1, { width, height } = this;
    if (!width || !height) return;
    const [w, h] = [Math.round(width * dots), Math.round(height * dots)];
    if (this.canvas.width !== w || this.canvas.height !== h) { this.canvas.width = w; this.canvas.height = h; }
    const c = this.context;
    c.setTransform(dots, 0, 0, dots, 0, 0);
    c.fillStyle = inks.ground;
    c.fillRect(0, 0, width, height);
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    this.paint(c, width, height);
  }

  // Zooms around a point of the canvas.
  zoom(factor, px, py) {
    const scale = Math.min(Math.max(this.scale * factor, this.limits.least), this.limits.most);
    const from = this.left || 0;
    this.x += (px - from) / this.scale - (px - from) / scale;
    if (this.vertical) this.y += py / this.scale - py / scale;
    this.scale = scale;
    this.bound();
    this.redraw();
  }

  pan(dx, dy) {
    this.x -= dx / this.scale;
    if (this.vertical) this.y -= dy / this.scale;
    this.bound();
    this.redraw();
  }

  bound() {
    if (this.extent === undefined) return;
    const seen = (this.width - (this.left || 0)) / this.scale;
    this.x = Math.max(0, Math.min(this.x, this.extent - seen));
  }

  // Shows a stretch of the plane.
  show(from, to) {
    const room = Math.max(this.width - (this.left || 0), 1);
    this.scale = Math.min(Math.max(room / Math.max(to - from, 1e-9), this.limits.least), this.limits.most);
    this.x = from;
    this.bound();
    this.redraw();
  }

  at(e) {
    const box = this.canvas.getBoundingClientRect();
    return [e.clientX - box.left - this.canvas.clientLeft, e.clientY - box.top - this.canvas.clientTop];
  }

  wheel(e) {
    e.preventDefault();
    const [x, y] = this.at(e);
    if (e.shiftKey) this.pan(-(e.deltaX || e.deltaY), 0);
    else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan(-e.deltaX, 0);
    else this.zoom(Math.exp(-e.deltaY / 300), x, y);
  }

  down(e) {
    this.canvas.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, this.at(e));
    if (this.pointers.size === 1) this.dragged = 0;
  }

  move(e) {
    const [x, y] = this.at(e), before = this.pointers.get(e.pointerId);
    if (!before) return this.hover(x, y, e);
    if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== e.pointerId)[1];
      const spread = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
      this.zoom(spread([x, y]) / spread(before), other[0], other[1]);
      this.dragged = 100;
    } else {
      this.dragged += Math.abs(x - before[0]) + Math.abs(y - before[1]);
      this.pan(x - before[0], y - before[1]);
    }
    this.pointers.set(e.pointerId, [x, y]);
  }

  up(e) {
    this.pointers.delete(e.pointerId);
    if (this.dragged > 4 || !this.pick) return;
    const found = this.hit(...this.at(e));
    this.pick(found);
  }

  hover(x, y, e) {
    const found = this.hit(x, y);
    tip.hidden = !found;
    this.canvas.style.cursor = found ? "pointer" : "grab";
    if (!found) return;
    tip.textContent = found.text;
    const right = e.clientX + 16 + tip.offsetWidth > innerWidth;
    tip.style.left = Math.max(4, right ? e.clientX - 12 - tip.offsetWidth : e.clientX + 16) + "px";
    const low = e.clientY + 16 + tip.offsetHeight > innerHeight;
    tip.style.top = Math.max(4, low ? e.clientY - 12 - tip.offsetHeight : e.clientY + 16) + "px";
  }

  key(e) {
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    if (moves[e.key]) this.pan(...moves[e.key]);
    else if (e.key === "+" || e.key === "=") this.zoom(1.5, this.width / 2, this.height / 2);
    else if (e.key === "-") this.zoom(1 / 1.5, this.width / 2, this.height / 2);
    else return;
    e.preventDefault();
  }
}
