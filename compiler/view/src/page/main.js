// Joins the parts: choice of modes and plans, search, losses, what is selected.
const $ = (id) => document.getElementById(id);
const text = (tag, words) => { const e = document.createElement(tag); e.textContent = words; return e; };

function select(actor) {
  state.actor = actor === undefined ? null : actor;
  details();
  changed();
}

function details() {
  const box = $("details");
  box.replaceChildren();
  if (state.actor === null) { box.append(text("p", "Nothing: click an actor or a slot.")); return; }
  const actor = view.actors[state.actor], fired = view.plans[state.plan].actors[state.actor];
  box.append(text("p", `${actorLabel(state.actor)}: ${actor.op}`));
  box.append(text("p", `${actor.repetitions} firings an iteration; ${fired.firings} in ${fired.calls} calls a period on ${deviceName(fired.device)}, ${duration(fired.busy_ns)}, stage ${fired.stage}`));
  if (actor.gate) box.append(text("p", gateOf(state.actor)));
  const run = view.plans[state.plan].measured, calls = run && run.actors.find((a) => a.actor === state.actor);
  if (calls) box.append(text("p", `measured: ${calls.calls} calls, planned ${duration(calls.planned_ns)}, half in ${duration(calls.p50_ns)}, 99 % in ${duration(calls.p99_ns)}, longest ${duration(calls.max_ns)}`));
  const port = (p, from) => {
    const channel = view.channels[p.channel], window = p.window > p.rate ? ` of ${p.window}` : "";
    const ends = from ? channel.name : channel.readers.map((r) => actorLabel(r.actor)).join(", ") || "nobody";
    return `${p.name}: ${p.rate}${window} ${channel.token} ${from ? "from" : "to"} ${ends}${channel.initial ? `, ${channel.initial} initial` : ""}`;
  };
  for (const p of actor.inputs) box.append(text("p", "in " + port(p, true)));
  for (const p of actor.outputs) box.append(text("p", "out " + port(p, false)));
}

function headline(plan) {
  const run = plan.measured, went = run ? `; measured period half under ${duration(run.period_ns)}, 99 % under ${duration(run.period_p99_ns)}, late slots are red` : "";
  return `${plan.name}: blocks of ${plan.block}, period ${duration(plan.period_ns)}, latency ${duration(plan.latency_ns)}, ${plan.stages} stages, bound by ${plan.bound_by}${went}`;
}

const noRoles = () => null;
readInks();
$("title").textContent = view.model;
const calendar = new Gantt("calendar", () => 1, noRoles);
const spare = new Gantt("spare", () => 1, () => state.roles);
const wave = new Gantt("wave", (plan) => Math.min(plan.stages + 2, 12), noRoles);
const memory = new MemoryMap();
const graph = new GraphView();

function choose(plan) {
  state.plan = plan;
  const chosen = view.plans[plan];
  $("headline").textContent = headline(chosen);
  $("bottleneck").textContent = chosen.loads.slice(0, 2).map((l) => `${l.what} is busy ${duration(l.busy_ns)}, ${(100 * l.share).toFixed(1)} %`).join("; next, ");
  calendar.set(chosen);
  wave.set(chosen);
  memory.set(chosen);
  details();
  changed();
}

// Shows the plan of a contingency below the main one, or none.
function compare(plan, title, roles) {
  state.spare = plan;
  state.roles = roles;
  $("other").hidden = plan === null;
  for (const row of document.querySelectorAll("#contingencies tbody tr")) row.classList.toggle("chosen", Number(row.dataset.plan) === plan && plan !== null);
  if (plan === null) { spare.plan = undefined; return; }
  $("othertitle").textContent = `${title} - ${headline(view.plans[plan])}`;
  spare.set(view.plans[plan]);
  changed();
}

const lost = new Set();
function lose(device) {
  if (lost.has(device)) lost.delete(device); else lost.add(device);
  showLoss();
}

// The device that stands at the place of each other one: of alike hosts, those with the least losses come first.
function standInsOf(lost) {
  const standIns = new Map();
  const kindOf = (device) => view.kinds.findIndex((devices) => devices.includes(device));
  for (const hosts of view.alike_hosts ?? []) {
    const damages = new Map(hosts.map((host) => {
      const kinds = [...new Set(host.map(kindOf))];
      return [host, kinds.map((kind) => host.filter((d) => lost.has(d) && kindOf(d) === kind).length)];
    }));
    const compareDamages = (a, b) => {
      const at = damages.get(a).findIndex((n, i) => n !== damages.get(b)[i]);
      return at < 0 ? 0 : damages.get(a)[at] - damages.get(b)[at];
    };
    const byDamage = [...hosts].sort(compareDamages);
    hosts.forEach((roles, i) => roles.forEach((role, position) => standIns.set(role, byDamage[i][position])));
  }
  return standIns;
}

// Shows what runs in this mode without the devices that are lost.
function showLoss() {
  for (const button of $("devices").children) button.setAttribute("aria-pressed", String(lost.has(Number(button.dataset.device))));
  if (!lost.size) { $("verdict").textContent = ""; compare(null); return; }
  const standIns = standInsOf(lost);
  const kinds = view.kinds.map((roles) => roles.map((role) => standIns.get(role) ?? role));
  const wanted = kinds.map((devices, kind) => [kind, devices.filter((d) => lost.has(d)).length]).filter(([, n]) => n);
  const found = view.contingencies.find((c) => JSON.stringify(c.counts) === JSON.stringify(wanted));
  const names = [...lost].sort((a, b) => a - b).map(deviceName).join(" and ");
  if (!found) { $("verdict").textContent = `No plan was made for the loss of ${names}.`; compare(null); return; }
  // Survivors of a kind take its first roles in order.
  const roles = new Map();
  kinds.forEach((devices, kind) => {
    const survivors = devices.filter((d) => !lost.has(d));
    survivors.forEach((d, i) => roles.set(view.kinds[kind][i], d));
  });
  const longer = (100 * (view.plans[found.plan].period_ns / view.plans[0].period_ns - 1)).toFixed(1);
  $("verdict").textContent = `Without ${names} a period is ${longer} % longer.`;
  compare(found.plan, `Without ${names}`, roles);
}

function deviceButtons() {
  view.devices.forEach((device, d) => {
    const button = text("button", device.name);
    button.type = "button";
    if (device.host) button.title = `on host ${device.host}`;
    button.dataset.device = d;
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => lose(d));
    $("devices").append(button);
  });
}

function losses() {
  $("losses").hidden = !view.contingencies.length;
  const body = $("contingencies").tBodies[0];
  body.replaceChildren();
  for (const entry of view.contingencies) {
    const plan = view.plans[entry.plan], row = document.createElement("tr");
    const longer = 100 * (plan.period_ns / Math.max(view.plans[0].period_ns, 1) - 1);
    for (const words of [entry.lost, String(plan.memories.length), duration(plan.period_ns), `${longer < 0 ? "" : "+"}${longer.toFixed(1)} %`, duration(plan.latency_ns), plan.bound_by]) row.append(text("td", words));
    row.dataset.plan = entry.plan;
    row.addEventListener("click", () => compare(state.spare === entry.plan ? null : entry.plan, `Without ${entry.lost}`, null));
    body.append(row);
  }
}

function plans() {
  $("plans").replaceChildren();
  view.plans.forEach((plan, p) => { const option = text("option", `${p}: ${plan.name}`); option.value = p; $("plans").append(option); });
}

// Makes the page about a mode: devices that are lost stay lost, and what is selected stays where the mode has it.
function showMode(mode) {
  const name = state.actor === null ? null : view.actors[state.actor].name;
  view = views[mode];
  const same = view.actors.findIndex((a) => a.name === name);
  Object.assign(state, { mode, plan: 0, actor: same < 0 ? null : same });
  automaton.mark();
  compare(null);
  graph.set();
  plans();
  losses();
  search($("search").value);
  choose(0);
  showLoss();
}

function search(query) {
  state.query = query.trim().toLowerCase();
  state.matches = null;
  $("found").textContent = "";
  if (state.query) {
    const has = (name) => name.toLowerCase().includes(state.query);
    state.matches = new Set();
    view.actors.forEach((a, i) => { if (has(actorLabel(i)) || has(a.op.split("(")[0])) state.matches.add(i); });
    for (const c of view.channels) if (has(c.name)) state.matches.add(c.from);
    const n = state.matches.size;
    $("found").textContent = n === 1 ? "1 actor" : `${n} actors`;
  }
  changed();
}

$("plans").addEventListener("change", (e) => choose(Number(e.target.value)));
$("search").addEventListener("input", (e) => search(e.target.value));
$("search").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && state.matches && state.matches.size) { calendar.next(state.matches); graph.go(Math.min(...state.matches)); }
});
$("whole").addEventListener("click", () => { for (const part of [calendar, spare, wave, memory, graph]) if (part.plan !== undefined || part === graph) part.whole(); });
document.addEventListener("keydown", (e) => { if (e.key === "Escape") { $("search").value = ""; search(""); select(null); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readInks(); changed(); });
deviceButtons();
const automaton = new Automaton();
plans();
losses();
choose(0);
// What a test, or a curious reader, may look at in the console.
window.zbmd = { views, state, calendar, spare, wave, memory, graph, automaton, get view() { return view; } };
document.body.dataset.ready = "1";
