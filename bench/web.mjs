// Runs models in ONNX Runtime Web's WebAssembly under Node, one thread, their runs interleaved.
//
//     node bench/web.mjs request.json
//
// The request has `runtime`, the folder with the files of ONNX Runtime Web; `inputs`, a list of
// {name, type, dims, file}; `outputs`, their names; `models`, paths by label; `rounds`; `folder`,
// where outputs are written. Printed is JSON: for each label its CPU milliseconds, or its error.
// The functions are those of js/web/lib/wasm in the repository of ONNX Runtime.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const LIBRARY = "ort-wasm-simd-threaded.jsep";
const TYPES = { float: 1, int64: 7, bool: 9, float16: 10 };
const ALL_OPTIMIZATIONS = 99;
const ON_CPU = 1;
const ERRORS_ALONE = 3;
const POINTER = 4;

const request = JSON.parse(fs.readFileSync(process.argv[2]));
const file = (ending) => path.resolve(request.runtime, `${LIBRARY}.${ending}`);
const { default: load } = await import(pathToFileURL(file("mjs")));
const wasm = await load({ numThreads: 1, wasmBinary: fs.readFileSync(file("wasm")) });
await wasm._OrtInit(1, ERRORS_ALONE);

function copied(bytes) {
  const place = wasm._malloc(Math.max(bytes.length, 1));
  wasm.HEAPU8.set(bytes, place);
  return place;
}

function list(numbers) {
  const place = wasm._malloc(POINTER * Math.max(numbers.length, 1));
  numbers.forEach((number, at) => wasm.setValue(place + POINTER * at, number, "i32"));
  return place;
}

const text = (words) => copied(Buffer.from(`${words}\0`));

function lastError() {
  const place = list([0, 0]);
  wasm._OrtGetLastError(place, place + POINTER);
  return new Error(wasm.UTF8ToString(wasm.getValue(place + POINTER, "*")));
}

function checked(found) {
  if (!found) throw lastError();
  return found;
}

const inputs = request.inputs.map(({ type, dims, file }) => {
  const bytes = fs.readFileSync(file);
  const made = wasm._OrtCreateTensor(
    TYPES[type], copied(bytes), bytes.length, list(dims), dims.length, ON_CPU);
  return checked(made);
});
const names = [request.inputs.map(({ name }) => name), request.outputs];
const [inputNames, outputNames] = names.map((all) => list(all.map(text)));
const given = list(inputs);

async function session(model) {
  const options = checked(
    wasm._OrtCreateSessionOptions(ALL_OPTIMIZATIONS, 1, 1, 0, 0, 0, 0, ERRORS_ALONE, 0, 0));
  const bytes = fs.readFileSync(model);
  const place = copied(bytes);
  const made = await wasm._OrtCreateSession(place, bytes.length, options);
  wasm._free(place);
  return checked(made);
}

/** CPU milliseconds of a run; the outputs of float32 are written to files of this name. */
async function run(handle, name) {
  const count = request.outputs.length;
  const made = list(request.outputs.map(() => 0));
  const options = wasm._OrtCreateRunOptions(ERRORS_ALONE, 0, 0, 0);
  const before = process.cpuUsage();
  const failed = await wasm._OrtRun(
    handle, inputNames, given, inputs.length, outputNames, count, made, options);
  const { user, system } = process.cpuUsage(before);
  if (failed) throw lastError();
  for (let at = 0; at < count; at++) {
    const tensor = wasm.getValue(made + POINTER * at, "*");
    if (name) write(tensor, `${name}.${at}`);
    wasm._OrtReleaseTensor(tensor);
  }
  wasm._OrtReleaseRunOptions(options);
  return (user + system) / 1000;
}

function write(tensor, name) {
  const parts = list([0, 0, 0, 0]);
  wasm._OrtGetTensorData(tensor, ...[0, 1, 2, 3].map((at) => parts + POINTER * at));
  const [type, data, dims, rank] = [0, 1, 2, 3].map((at) =>
    wasm.getValue(parts + POINTER * at, "i32"));
  let elements = 1;
  for (let at = 0; at < rank; at++) elements *= wasm.getValue(dims + POINTER * at, "i32");
  if (type === TYPES.float) fs.writeFileSync(name, wasm.HEAPU8.slice(data, data + 4 * elements));
}

const found = {};
const sessions = {};
for (const [label, model] of Object.entries(request.models)) {
  found[label] = { times: [] };
  try {
    sessions[label] = await session(model);
    // The engine of Node optimizes what runs often.
    for (let turn = 0; turn < 2; turn++) await run(sessions[label]);
    await run(sessions[label], path.join(request.folder, label));
  } catch (error) {
    found[label] = { error: error.message };
    delete sessions[label];
  }
}
for (let round = 0; round < request.rounds; round++) {
  for (const [label, handle] of Object.entries(sessions)) found[label].times.push(await run(handle));
}
console.log(JSON.stringify(found));
process.exit(0);
