// The automaton of modes: which may follow which, and what each plan of each costs.
const STATE = { w: 150, h: 44 };
// Of more modes than this that may all follow each other, the changes are said and not drawn.
const DRAWN_CHANGES = 8;

class Automaton {
  constructor() {
    this.modes = view.modes;
    if (!this.modes) return;
    $("modes").hidden = false;
    this.svg = $("automaton");
    this.states = [];
    this.place();
    this.changes();
    this.modes.list.forEach((mode, m) => this.state(mode, m));
    this.worst();
    this.modes.list.forEach((mode, m) => mode.plans.forEach((plan) => this.row(mode, m, plan)));
    this.mark();
  }

  part(tag, attributes, inside) {
    const e = document.createElementNS(this.svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
    (inside || this.svg).append(e);
    return e;
  }

  // Two modes side by side, more on an ellipse, the initial one on the left.
  place() {
    const n = this.modes.list.length, rx = n === 1 ? 0 : 130 + 14 * n, ry = n < 3 ? 0 : 36 + 22 * n;
    const width = 2 * rx + STATE.w + 60, height = 2 * ry + STATE.h + 70;
    this.at = this.modes.list.map((_, m) => {
      const angle = Math.PI + (2 * Math.PI * m) / n;
      return [width / 2 + rx * Math.cos(angle), height / 2 + ry * Math.sin(angle)];
    });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.width = `min(100%, ${width}px)`;
  }

  changes() {
    const n = this.modes.list.length;
    this.isComplete = this.modes.changes.length === n * (n - 1);
    if (n > DRAWN_CHANGES && this.isComplete) return;
    for (const change of this.modes.changes) this.arrow(...change);
  }

  // A bent line from the rim of one state to that of another: there and back are two lines.
  arrow(from, to) {
    const [ax, ay] = this.at[from], [bx, by] = this.at[to], length = Math.hypot(bx - ax, by - ay) || 1;
    const cx = (ax + bx) / 2 - (50 * (by - ay)) / length, cy = (ay + by) / 2 + (50 * (bx - ax)) / length;
    const point = (t) => [(1 - t) ** 2 * ax + 2 * t * (1 - t) * cx + t * t * bx, (1 - t) ** 2 * ay + 2 * t * (1 - t) * cy + t * t * by];
    const inside = ([x, y], [ox, oy]) => Math.abs(x - ox) < STATE.w / 2 + 2 && Math.abs(y - oy) < STATE.h / 2 + 2;
    let first = 0, last = 100;
    while (first < 50 && inside(point(first / 100), this.at[from])) first++;
    while (last > 50 && inside(point(last / 100), this.at[to])) last--;
    const points = [];
    for (let i = first; i <= last; i++) points.push(point(i / 100));
    const [x, y] = point(last / 100), [px, py] = point((last - 4) / 100), turn = Math.atan2(y - py, x - px);
    const barb = (a) => `${x - 9 * Math.cos(turn + a)} ${y - 9 * Math.sin(turn + a)}`;
    const { worst } = this.modes.bounds, names = this.modes.list.map((mode) => mode.name);
    const kind = worst && worst.from === names[from] && worst.to === names[to] ? "change worst" : "change";
    this.part("path", { class: kind, d: `M ${points.map((p) => p.join(" ")).join(" L ")} M ${barb(0.4)} L ${x} ${y} L ${barb(-0.4)}` });
  }

  state(mode, m) {
    const [x, y] = this.at[m], plan = mode.plans[0];
    const group = this.part("g", { class: "mode", tabindex: 0, role: "button", "aria-label": mode.name });
    this.part("rect", { x: x - STATE.w / 2, y: y - STATE.h / 2, width: STATE.w, height: STATE.h, rx: 20 }, group);
    if (m === 0) this.part("rect", { class: "first", x: x - STATE.w / 2 + 3, y: y - STATE.h / 2 + 3, width: STATE.w - 6, height: STATE.h - 6, rx: 17 }, group);
    this.part("text", { x, y: y - 3, "text-anchor": "middle" }, group).textContent = clip(mode.name, 18);
    this.part("text", { x, y: y + 13, "text-anchor": "middle", class: "times" }, group).textContent = `every ${duration(plan.period_ns)}`;
    this.part("title", {}, group).textContent = `${mode.name}: ${mode.actors} actors, blocks of ${plan.block}, period ${duration(plan.period_ns)}, latency ${duration(plan.latency_ns)}`;
    group.addEventListener("click", () => showMode(m));
    group.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); showMode(m); } });
    this.states.push(group);
  }

  worst() {
    const { bounds } = this.modes;
    const words = [`Over all changes a block takes at most ${duration(bounds.mean_ns)} on average.`];
    if (bounds.worst) words.push(`The latency is at most ${duration(bounds.worst.latency_ns)}: the first block after ${bounds.worst.from} becomes ${bounds.worst.to}.`);
    if (bounds.worst_loss) words.push(`With losses the period is at most ${duration(bounds.worst_loss.period_ns)}: ${bounds.worst_loss.mode} without ${bounds.worst_loss.lost}.`);
    if (this.isComplete) words.push("Every mode may follow every other.");
    $("worst").textContent = words.join(" ");
  }

  row(mode, m, plan) {
    const row = document.createElement("tr"), targets = this.modes.changes.filter(([from]) => from === m).map(([, to]) => this.modes.list[to].name);
    const first = !plan.lost;
    for (const words of [first ? mode.name : "", plan.lost, String(plan.block), duration(plan.period_ns), duration(plan.latency_ns), bytes(plan.memory_bytes), plan.bound_by, first ? targets.join(", ") : ""]) row.append(text("td", words));
    row.dataset.mode = m;
    row.addEventListener("click", () => {
      showMode(m);
      if (!first) compare(plan.plan, `Without ${plan.lost}`, null);
    });
    $("modelist").tBodies[0].append(row);
  }

  // Marks the mode that is shown.
  mark() {
    if (!this.modes) return;
    this.states.forEach((group, m) => group.setAttribute("aria-pressed", String(m === state.mode)));
    for (const row of $("modelist").tBodies[0].rows) row.classList.toggle("chosen", Number(row.dataset.mode) === state.mode);
  }
}
