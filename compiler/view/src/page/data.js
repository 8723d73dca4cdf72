// The views of all modes, the one that is shown, and words for what is in it. Field names are those of the JSON form.
const given = document.getElementById("view");
const views = JSON.parse(given.textContent);
let view = views[Number(given.dataset.shown)];

function duration(ns) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) {
    if (ns >= size) return Number((ns / size).toPrecision(3)) + " " + unit;
  }
  return Math.round(ns) + " ns";
}

function bytes(n) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (n >= size) return Number((n / size).toFixed(1)) + " " + unit;
  }
  return n + " B";
}

const channelName = (c) => (view.channels[c] ? view.channels[c].name : "?");
// Names that say nothing have a label.
const actorLabel = (a) => view.actors[a].label || view.actors[a].name;
const deviceName = (d) => (view.devices[d] ? view.devices[d].name : "?");

// What opens an actor's gate, and what it gives meanwhile; nothing without a gate.
function gateOf(a) {
  const { gate, inputs } = view.actors[a];
  if (!gate) return "";
  const port = inputs[gate.input], looked = port.window > 1 ? `a token of ${port.window}` : "the token";
  return `works while ${looked} of ${channelName(port.channel)} is not zero; closed: ${gate.outputs.join(", ") || "nothing"}, state: ${gate.states}`;
}

// Roles of a plan that other devices take; those of the plan itself where the map has none.
function laneName(lane, roles) {
  const name = deviceName(roles && roles.has(lane.device) ? roles.get(lane.device) : lane.device);
  return lane.kind === "compute" ? name : name + " " + lane.kind;
}

// The actor that a slot is about: the one that fires, or the writer of the channel that is moved.
function actorOf(plan, slot) {
  if (["fire", "loop", "fetch", "await"].includes(slot.act)) return slot.id;
  return view.channels[channelOf(plan, slot)].from;
}

function channelOf(plan, slot) {
  return slot.act === "carry" ? plan.buffers[slot.id].channel : plan.rings[slot.id].channel;
}

function label(plan, slot) {
  const first = slot.first || 0, count = slot.count || 0;
  switch (slot.act) {
    case "fire": return `${actorLabel(slot.id)}[${first}..${first + count}]`;
    case "loop": return `${actorLabel(slot.id)} and others, ${count} executions`;
    case "carry": return `history of ${channelName(channelOf(plan, slot))}`;
    case "fetch": return `weights of ${actorLabel(slot.id)} from the tier`;
    case "await": return `weights of ${actorLabel(slot.id)}`;
    case "send": return `send ${channelName(channelOf(plan, slot))} to ${deviceName(plan.rings[slot.id].to)}, ${count} tokens`;
    case "recv": return `receive ${channelName(channelOf(plan, slot))} from ${deviceName(plan.rings[slot.id].from)}, ${count} tokens`;
    default: return `release ${channelName(channelOf(plan, slot))}`;
  }
}

const hue = (actor) => (actor * 137 + 210) % 360;
const QUIET = { send: "#8d99a6", recv: "#b3bcc5", release: "#d5d9dd", carry: "#c9b26b", fetch: "#6b9fc9", await: "#c98b6b" };
const palette = new Map();
const LATE = "#e03131";
function slotColour(slot) {
  if (slot.late) return LATE;
  if (QUIET[slot.act]) return QUIET[slot.act];
  if (!palette.has(slot.id)) palette.set(slot.id, `hsl(${hue(slot.id)},55%,45%)`);
  return palette.get(slot.id);
}
const deviceColour = (d) => `hsl(${(d * 67 + 200) % 360},45%,60%)`;

const endOf = (slot) => slot.start_ns + slot.duration_ns;

// First slot that ends after a time: slots of a lane do not overlap.
function firstAfter(slots, time) {
  let low = 0, high = slots.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (endOf(slots[middle]) > time) high = middle; else low = middle + 1;
  }
  return low;
}

// What is selected and looked for; those who draw are told of changes.
const state = { mode: Number(given.dataset.shown), plan: 0, spare: null, roles: null, actor: null, query: "", matches: null, listeners: [] };
function changed() { for (const tell of state.listeners) tell(); }

// Whether an actor stands out, given what is selected and looked for.
function bright(actor) {
  if (state.matches) return state.matches.has(actor);
  return state.actor === null || state.actor === actor;
}

function ink(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
let inks = {};
function readInks() { for (const n of ["ink", "soft", "line", "ground", "lane", "mark"]) inks[n] = ink("--" + n); }

function stepFor(length, marks) {
  const least = Math.max(length / Math.max(marks, 1), 1);
  for (let power = 1; ; power *= 10) {
    for (const factor of [1, 2, 5]) if (power * factor >= least) return power * factor;
  }
}
