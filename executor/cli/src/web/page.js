// Asks the run for what it is, draws it, and sends what is set. Numbers and names come from the run as text and are never
// made into HTML.
const key = new URLSearchParams(location.search).get("key") ?? "";
const byId = (id) => document.getElementById(id);
const color = (name) => getComputedStyle(document.body).getPropertyValue(name);

async function ask(path, body) {
  const headers = { authorization: "Bearer " + key };
  const options = { headers, cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["content-type"] = "application/json";
  }
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function cells(row, texts) {
  for (const text of texts) row.insertCell().textContent = text;
}

function time(ns) {
  if (ns >= 1e9) return (ns / 1e9).toFixed(2) + " s";
  if (ns >= 1e6) return (ns / 1e6).toFixed(2) + " ms";
  return (ns / 1e3).toFixed(1) + " us";
}

// The head, queues and losses.

let before = null;

function showRun(run) {
  document.title = run.model + " · zbmd-run";
  byId("model").textContent = run.model;
  const now = performance.now();
  let rate = "";
  if (before && now > before.now) {
    const perSecond = (run.iterations - before.iterations) / ((now - before.now) / 1e3);
    rate = ", " + Math.max(0, perSecond).toFixed(1) + " a second";
  }
  before = { now, iterations: run.iterations };
  const mode = run.mode ? ", mode " + run.mode.mode : "";
  byId("summary").textContent = `iteration ${run.iterations}${rate}; plan ${run.plan}${mode}, period ` +
    `${time(run.period_planned_ns)}; epoch ${run.epoch}`;

  const fills = byId("fills");
  fills.replaceChildren();
  for (const fill of run.queues.concat(run.rings)) {
    const row = fills.insertRow();
    cells(row, [fill.name]);
    const bar = row.insertCell().appendChild(document.createElement("div"));
    bar.className = "bar";
    const level = bar.appendChild(document.createElement("div"));
    level.style.width = 100 * fill.filled / Math.max(1, fill.capacity) + "%";
    cells(row, [`${fill.filled} of ${fill.capacity}`]);
  }

  const losses = byId("losses");
  losses.replaceChildren();
  cells(losses.insertRow(), ["losses made good", run.recoveries]);
  for (const device of run.devices) cells(losses.insertRow(), [device.device, device.state]);
  for (const sink of run.deadlines ?? []) {
    const worst = time(sink.response.max_ns);
    cells(losses.insertRow(), [sink.sink, `${sink.missed} late by ${time(sink.limit_ns)}, worst ${worst}`]);
  }
}

// Lanes: what is planned, and below it when the slots of one period ended.

let plan = null;
let planName = "";

async function showLanes(run) {
  const name = [run.plan, run.mode?.mode, run.epoch].join("\n");
  if (name !== planName) {
    plan = await ask("plan.json");
    planName = name;
    byId("lanes").replaceChildren();
    for (const lane of plan.lanes) {
      const part = byId("lanes").appendChild(document.createElement("div"));
      part.append(lane.device, Object.assign(document.createElement("canvas"), { height: 56 }));
    }
  }
  for (const [index, lane] of plan.lanes.entries()) {
    const measured = lane.is_measured ? await ask("lanes.json?device=" + encodeURIComponent(lane.device)) : [];
    drawLane(byId("lanes").children[index].querySelector("canvas"), lane, measured);
  }
}

function drawLane(canvas, lane, measured) {
  const context = sized(canvas);
  const { width } = canvas;
  const last = measured.length ? measured[measured.length - 1][1] : 0;
  const scale = width / Math.max(plan.period_ns, last, 1);
  const box = (from, to, top, fill, name) => {
    context.fillStyle = fill;
    context.fillRect(from * scale, top, Math.max(1, (to - from) * scale - 1), 20);
    if (name && (to - from) * scale > 8 * name.length) {
      context.fillStyle = "#fff";
      context.fillText(name, from * scale + 3, top + 14);
    }
  };
  for (const slot of lane.slots) {
    box(slot.start_ns, slot.start_ns + slot.duration_ns, 4, color("--planned"), slot.name);
  }
  let begin = 0;
  for (const [number, end] of measured) {
    const slot = lane.slots[number];
    const isLate = slot && end - begin > 1.5 * slot.duration_ns + 1e3;
    if (slot) box(begin, end, 30, color(isLate ? "--late" : "--measured"), slot.name);
    begin = end;
  }
}

function sized(canvas) {
  const width = canvas.clientWidth || 600;
  if (canvas.width !== width) canvas.width = width;
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.font = "11px system-ui, sans-serif";
  return context;
}

// What can be set.

async function send(path, body) {
  try {
    await ask(path, body);
    byId("error").textContent = "";
  } catch (error) {
    byId("error").textContent = error.message;
  }
}

function showControls(values) {
  byId("controls-part").hidden = values.parameters.length === 0;
  for (const { name, numbers, min, max } of values.parameters) {
    const id = "set-" + name;
    let input = byId(id);
    if (!input) {
      const row = byId("controls").insertRow();
      cells(row, [name]);
      input = row.insertCell().appendChild(document.createElement("input"));
      input.id = id;
      const isOne = numbers.length === 1;
      Object.assign(input, isOne ? { type: "range", min, max, step: (max - min) / 1000 } : { size: 40 });
      input.addEventListener("change", () => send("set", { [name]: input.value.split(",").map(Number) }));
      row.insertCell();
    }
    if (document.activeElement !== input) input.value = numbers.join(",");
    input.closest("tr").cells[2].textContent = `${numbers.join(", ")} (${min} to ${max})`;
  }

  byId("modes-part").hidden = values.modes.length < 2;
  if (byId("modes").children.length !== values.modes.length) {
    byId("modes").replaceChildren();
    for (const mode of values.modes) {
      const button = byId("modes").appendChild(document.createElement("button"));
      button.textContent = mode;
      button.addEventListener("click", () => send("mode", { mode }));
    }
  }
  for (const button of byId("modes").children) button.disabled = button.textContent === values.mode;
}

function showChannels(channels) {
  const select = byId("channel");
  const known = [...select.options].map((option) => option.value).slice(1);
  if (known.join("\n") === channels.map((channel) => channel.name).join("\n")) return;
  const chosen = select.value;
  for (const option of [...select.options].slice(1)) option.remove();
  for (const channel of channels) {
    select.add(new Option(`${channel.name} (${channel.token}, ${channel.device})`, channel.name));
  }
  select.value = channels.some((channel) => channel.name === chosen) ? chosen : "";
}

// The channel that is looked at.

async function showChannel() {
  const name = byId("channel").value;
  if (!name) return;
  const block = await ask("block.json?channel=" + encodeURIComponent(name));
  const { min, max, rms } = block.figures;
  byId("figures").textContent = `iterations ${block.iteration} to ${block.iteration + block.iterations}: ` +
    `min ${min.toPrecision(4)}, max ${max.toPrecision(4)}, rms ${rms.toPrecision(4)}`;
  drawScope(block);
  if (block.spectrum.length) drawWaterfall(block.spectrum);
}

function drawScope(block) {
  const context = sized(byId("scope"));
  const { width, height } = byId("scope");
  const parts = [[block.re, color("--measured")], [block.im, color("--planned")]];
  const size = Math.max(1e-30, ...block.re.map(Math.abs), ...block.im.map(Math.abs));
  for (const [values, stroke] of parts) {
    context.strokeStyle = stroke;
    context.beginPath();
    values.forEach((value, index) => {
      const x = index / Math.max(1, values.length - 1) * width;
      context.lineTo(x, height / 2 - value / size * (height / 2 - 6));
    });
    context.stroke();
  }
  context.fillStyle = color("--late");
  context.fillText("± " + size.toPrecision(3), 4, 12);
}

// A line of decibels, from -120 to 0, below the lines before.
function drawWaterfall(spectrum) {
  const canvas = byId("waterfall");
  const width = canvas.clientWidth || 600;
  if (canvas.width !== width) canvas.width = width;
  const context = canvas.getContext("2d");
  context.drawImage(canvas, 0, 0, canvas.width, canvas.height - 2, 0, 2, canvas.width, canvas.height - 2);
  spectrum.forEach((decibels, index) => {
    const level = Math.min(1, Math.max(0, 1 + decibels / 120));
    context.fillStyle = `hsl(${260 - 220 * level} 90% ${8 + 55 * level}%)`;
    const from = Math.floor(index / spectrum.length * width);
    context.fillRect(from, 0, Math.ceil(width / spectrum.length), 2);
  });
}

// One round after the other, so that a slow run is not asked more often than it answers.

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function look() {
  for (let round = 0; ; round++) {
    try {
      const run = await ask("live.json");
      showRun(run);
      if (round % 4 === 0) {
        showControls(await ask("values.json"));
        showChannels(await ask("channels.json"));
        await showLanes(run);
      }
      await showChannel();
      document.body.dataset.state = "live";
      byId("trouble").textContent = "";
    } catch (error) {
      const isOver = error instanceof TypeError;
      document.body.dataset.state = isOver ? "over" : "live";
      byId("trouble").textContent = isOver ? "the run has ended, or cannot be reached" : error.message;
      await pause(1000);
    }
    await pause(150);
  }
}

look();
