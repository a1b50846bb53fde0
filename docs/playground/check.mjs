// Compares the module with what the same requests gave natively: node docs/playground/check.mjs
//
// figures.json is written by cargo run -p regard-playground --example figures.

import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { Engine, MODELS, files } from "./engine.mjs";

const BOUND = 1e-5; // Of numbers that are at most 1 in magnitude, relative to larger ones.

const file = (name) => readFileSync(new URL(name, import.meta.url));
const module = gunzipSync(file("playground.wasm.gz"));
const engines = {};
for (const model of MODELS) engines[model] = await Engine.make(module, files(model).map(file));
const engine = engines[MODELS[0]];

let worst = 0;
let failed = 0;
for (const { model, request, count, last, words } of JSON.parse(file("figures.json"))) {
  const answer = engines[model].ask(request);
  const numbers = answer.numbers.slice(-last.length);
  const error = Math.max(...last.map((want, n) => Math.abs(numbers[n] - want) / Math.max(1, Math.abs(want))));
  worst = Math.max(worst, error);
  const same = ["tokens", "label", "sizes"].every(
    (key) => words[key] === null || JSON.stringify(words[key]) === JSON.stringify(answer.words[key]));
  const entropies = (words.entropy ?? []).every((want, n) => Math.abs(answer.words.entropy[n] - want) < BOUND);
  if (answer.numbers.length !== count || !(error <= BOUND) || !same || !entropies) {
    failed++;
    console.error(`off by ${error}: ${JSON.stringify(request)}`);
  }
}
for (const [request, want] of [["sing", "unknown variant"], ["write", "nothing was begun"]]) {
  try {
    engine.ask({ do: request });
    failed++;
    console.error(`'${request}' was answered`);
  } catch (error) {
    if (!error.message.includes(want)) { failed++; console.error(error.message); }
  }
}

engine.ask({ do: "read", text: "Once upon a time" });
for (const [name, options] of [["softmax", {}], ["linear", { mechanism: "linear" }]]) {
  engine.ask({ do: "begin", options, temperature: 0.8, seed: 1 });
  const start = performance.now();
  let count = 0;
  while (count < 200 && !engine.ask({ do: "write" }).words.done) count++;
  console.log(`${name}: ${Math.round(count / (performance.now() - start) * 1000)} tokens/s over ${count} tokens`);
}
console.log(`module of ${module.length} bytes; largest difference ${worst.toExponential(1)}, bound ${BOUND}`);
process.exit(failed === 0 ? 0 : 1);
