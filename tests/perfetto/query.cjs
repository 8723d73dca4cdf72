// Asks Perfetto's own trace processor about a trace: node query.cjs FOLDER TRACE SQL, rows as JSON on stdout.
//
// FOLDER holds `engine_bundle.js` and `trace_processor.wasm` of a release of ui.perfetto.dev. The engine is a web
// worker that talks TraceProcessorRpcStream (protos/perfetto/trace_processor/trace_processor.proto) over a port; this
// is as much of a browser as it needs, and as much of the protocol as a query does.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, trace, sql] = process.argv.slice(2);
if (!sql) {
  console.error("usage: node query.cjs FOLDER TRACE SQL");
  process.exit(2);
}

// Protocol Buffers: a message is a list of [field, number or bytes].
function varint(n) {
  const out = [];
  for (n = BigInt(n); n >= 0x80n; n >>= 7n) out.push(Number(n & 0x7fn) | 0x80);
  out.push(Number(n));
  return Buffer.from(out);
}
function message(fields) {
  return Buffer.concat(fields.flatMap(([field, value]) => Buffer.isBuffer(value)
    ? [varint((BigInt(field) << 3n) | 2n), varint(value.length), value]
    : [varint(BigInt(field) << 3n), varint(value)]));
}
class Reader {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }
  get more() { return this.at < this.bytes.length; }
  varint() {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  take(n) { this.at += n; return this.bytes.subarray(this.at - n, this.at); }
  field() {
    const key = Number(this.varint()), wire = key & 7;
    const value = wire === 0 ? this.varint() : wire === 2 ? this.take(Number(this.varint())) : this.take(wire === 1 ? 8 : 4);
    return [key >> 3, value];
  }
}
function* fields(bytes) { for (const r = new Reader(bytes); r.more;) yield r.field(); }

// As much of a worker's global scope as the engine looks at.
class XMLHttpRequest {
  open(_, name) { this.name = path.basename(name); }
  send() {
    const bytes = fs.readFileSync(path.join(folder, this.name));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    this.status = 200;
  }
}
const scope = {
  WorkerGlobalScope: function () {}, XMLHttpRequest, TextDecoder, TextEncoder, URL,
  performance, crypto, setTimeout, clearTimeout, queueMicrotask,
  location: { href: "https://localhost/engine_bundle.js", protocol: "https:", host: "localhost" },
  console: { log() {}, warn() {}, error() {}, info() {}, debug() {} },
};
scope.self = scope;
vm.createContext(scope);
// The engine asks whether what it is given is a Uint8Array of its own world.
const port = { onmessage: null, postMessage: (bytes) => reply(Buffer.from(bytes)) };
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), scope, { filename: "engine_bundle.js" });
const Bytes = vm.runInContext("Uint8Array", scope);

let waiting = null, columns = [], rows = [], pending = Buffer.alloc(0);
function reply(bytes) {
  // Messages may come in parts.
  pending = Buffer.concat([pending, bytes]);
  for (;;) {
    const r = new Reader(pending);
    if (!r.more) return;
    let body;
    try {
      if (r.varint() !== 10n) throw new Error("a reply that is no message");
      const length = Number(r.varint());
      if (r.at + length > pending.length) return;
      body = r.take(length);
    } catch (error) {
      fail(error.message);
    }
    pending = pending.subarray(r.at);
    for (const [field, value] of fields(body)) {
      if (field === 5) fail(value.toString());
      if (field === 201) for (const [f, v] of fields(value)) if (f === 2 && v.length) fail(v.toString());
      if (field === 203) result(value);
    }
    if (!waiting) continue;
    const response = [...fields(body)].find(([f]) => f === 3);
    if (response && Number(response[1]) === waiting.method && waiting.isDone()) { const { resolve } = waiting; waiting = null; resolve(); }
  }
}
function fail(text) {
  console.error(`trace processor: ${text}`);
  process.exit(1);
}

let isLast = false;
function result(bytes) {
  for (const [field, value] of fields(bytes)) {
    if (field === 1) columns.push(value.toString());
    if (field === 2 && value.length) fail(value.toString());
    if (field === 3) batch(value);
  }
}
function batch(bytes) {
  const kinds = [], numbers = [], floats = [];
  let strings = [], blobs = 0;
  for (const [field, value] of fields(bytes)) {
    if (field === 1) for (const r = new Reader(value); r.more;) kinds.push(Number(r.varint()));
    if (field === 2) for (const r = new Reader(value); r.more;) numbers.push(BigInt.asIntN(64, r.varint()));
    if (field === 3) for (let at = 0; at < value.length; at += 8) floats.push(value.readDoubleLE(at));
    if (field === 4) blobs += 1;
    if (field === 5) strings = value.toString().split("\0");
    if (field === 6) isLast = value !== 0n;
  }
  if (blobs) fail("a query with blobs");
  let row = [], n = 0, f = 0, s = 0;
  for (const kind of kinds) {
    row.push(kind === 1 ? null : kind === 2 ? numbers[n++] : kind === 3 ? floats[f++] : strings[s++]);
    if (row.length === columns.length) { rows.push(row); row = []; }
  }
}

let sequence = 0;
function call(method, args, isDone = () => true) {
  const rpc = message([[1, ++sequence], [2, method], ...args]);
  const stream = message([[1, rpc]]);
  return new Promise((resolve) => {
    waiting = { method, isDone, resolve };
    port.onmessage({ data: new Bytes(stream) });
  });
}

async function main() {
  scope.onmessage({ data: port });
  // The engine has finished its own start when its promises have.
  await new Promise((resolve) => setTimeout(resolve, 0));
  const bytes = fs.readFileSync(trace);
  const CHUNK = 8 << 20;
  for (let at = 0; at < bytes.length; at += CHUNK) await call(1, [[101, bytes.subarray(at, at + CHUNK)]]);
  await call(2, []);
  await call(3, [[103, message([[1, Buffer.from(sql)]])]], () => isLast);
  // Numbers of 64 bits as they are: JSON has them, whatever JavaScript makes of them.
  const cell = (c) => (typeof c === "bigint" ? c.toString() : JSON.stringify(c));
  const lines = rows.map((row) => `[${row.map(cell).join(",")}]`);
  process.stdout.write(`{"columns":${JSON.stringify(columns)},"rows":[${lines.join(",\n")}]}\n`);
}
main().catch((error) => fail(error.stack || String(error)));
