// The page: what is chosen, what is shown. All numbers come from the module.

import { Engine, files } from "./engine.mjs";

const MECHANISMS = [
  { name: "Scatterbrain: window and features", options: { mechanism: "scatterbrain", support: { kind: "local" } },
    about: "Exact weights in a window, hyperbolic random features elsewhere; three quarters of the budget go to the window." },
  { name: "Scatterbrain: clusters and features", options: { mechanism: "scatterbrain", support: { kind: "smyrf" } },
    about: "Exact weights in clusters of similar queries and keys (SMYRF), random features elsewhere." },
  { name: "Local window", options: { mechanism: "sparse", support: { kind: "local" } },
    about: "Softmax over the tokens just before." },
  { name: "Window and one global token", options: { mechanism: "sparse", support: { kind: "longformer", globals: 1 } },
    about: "Softmax over the tokens just before and the first token (Longformer)." },
  { name: "Window, global token and random blocks",
    options: { mechanism: "sparse", support: { kind: "bigbird", globals: 1, random: 1, block: 4 } },
    about: "Softmax over the tokens just before, the first token, and a random block of four (BigBird)." },
  { name: "Clusters", options: { mechanism: "sparse", support: { kind: "smyrf" } },
    about: "Softmax over the tokens of two rounds of clusters (SMYRF); a token whose clusters hold none before it gets nothing." },
  { name: "Performer", options: { mechanism: "performer" },
    about: "Hyperbolic random features whose products approximate exp(q.k), everywhere." },
  { name: "Linear attention", options: { mechanism: "linear" }, fixed: true,
    about: "Products of elu + 1 features: sums of a fixed size, so that there is no budget to choose." },
  { name: "Gaussian kernel", options: { mechanism: "gaussian" }, fixed: true,
    about: "Weights fall with the distance of query and key. Every pair is computed, as with softmax." },
  { name: "Cosine attention", options: { mechanism: "cosine" }, fixed: true,
    about: "Softmax of 10 times the cosine of query and key. Every pair is computed, as with softmax." },
];
// What a model is given to read at first, and a head that looks far in it.
const BEGINNINGS = {
  "stories260k": { text: document.getElementById("text").value, place: [2, 0] },
  "char-lm": { text: "ROMEO:\nBut soft, what light through yonder window breaks?\nIt is", place: [2, 0] },
};
const LENGTH = 80; // Tokens that "write on" writes.
const SEED = 1;

const $ = (id) => document.getElementById(id);
const shown = (x, digits = 3) => x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const quoted = (piece) => `“${piece.replaceAll("\n", "⏎")}”`;

let module; // The bytes of the WebAssembly module.
let model; // The name of the model that reads.
let engine; // The module with that model.
const engines = {}; // Those that were loaded.
let read; // The last answer about the text.
let maps; // Weights of the chosen head: { n, softmax, other }.
let cell = { row: 0, column: 0 };
let place = { layer: 0, head: 0 };
let writing = false;

const chosen = () => MECHANISMS[$("mechanism").selectedIndex];
const budget = () => 2 ** (Number($("budget").value) / 4 - 6);
const options = () => (chosen().fixed ? chosen().options : { ...chosen().options, budget: budget() });

// Runs `task` once, some time after the last call.
function later(task, delay) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(task, delay); };
}

function say(error) {
  $("error").hidden = error === undefined;
  $("error").textContent = error === undefined ? "" : `${error.message}.`;
  document.querySelector("main").classList.toggle("stale", error !== undefined);
}

function readText() {
  const start = performance.now();
  read = engine.ask({ do: "read", text: $("text").value }).words;
  const time = performance.now() - start;
  const count = read.tokens.length - 1;
  const loss = read.nats === null ? "" : `, perplexity ${shown(Math.exp(read.nats), 2)}`;
  const cut = read.cut ? " The text is longer than the model reads; the rest is left out." : "";
  const unknown = read.unknown === 0 ? "" : ` Characters that the model does not know: ${read.unknown}; they are left out.`;
  $("read").textContent = `${count} ${count === 1 ? "token" : "tokens"}${loss}, read in ${shown(time, 1)} ms.${cut}${unknown}`;
  $("next").replaceChildren(...read.next.map(([piece, p]) => {
    const item = document.createElement("li");
    const code = document.createElement("code");
    code.textContent = quoted(piece);
    item.append(code, `${shown(100 * p, 1)} %`);
    return item;
  }));
  const last = read.tokens.length - 1;
  cell = { row: last, column: Math.max(0, last - 1) };
  compare();
}

function compare() {
  const value = budget();
  const percent = `${shown(100 * value, value < 0.1 ? 1 : 0)} %`;
  $("budget-value").textContent = percent;
  $("budget").setAttribute("aria-valuetext", `${percent} of the entries of a row`);
  $("budget-row").hidden = Boolean(chosen().fixed);
  $("about").textContent = chosen().about;
  for (const id of ["label", "label-2"]) $(id).textContent = chosen().name;
  try {
    const { words, numbers } = engine.ask({ do: "compare", ...place, options: options(), seed: SEED });
    const n = words.tokens;
    maps = { n, softmax: numbers.slice(0, n * n), other: numbers.slice(n * n, 2 * n * n) };
    $("sizes").textContent = words.sizes === "" ? "" : `${words.sizes}, of ${n} tokens`;
    words.entropy.forEach((entropy, i) => {
      $(["entropy-softmax", "entropy-other"][i]).textContent = shown(entropy);
      $(["equal-softmax", "equal-other"][i]).textContent = shown(Math.exp(entropy), 1);
    });
    $("output-error").textContent = shown(words.error);
    $("weights-error").textContent = shown(words.weights_error);
    $("mass").textContent = words.on_support === null ? "no support" : `${shown(100 * words.on_support, 1)} %`;
    say();
    draw();
    errors();
  } catch (error) {
    maps = undefined; // Those drawn are of another text.
    $("sizes").textContent = "";
    say(error);
  }
}

// The errors of all heads take longer than one head: only once the slider rests.
const errors = later(() => {
  try {
    const { numbers } = engine.ask({ do: "errors", options: options(), seed: SEED });
    const buttons = $("heads").querySelectorAll("button");
    numbers.forEach((error, n) => {
      const button = buttons[n];
      button.textContent = shown(error, 2);
      button.setAttribute("aria-label", `layer ${button.dataset.layer}, head ${button.dataset.head}, error ${shown(error, 2)}`);
      button.style.background = `color-mix(in srgb, var(--accent) ${Math.round(45 * Math.min(1, error))}%, var(--panel))`;
    });
  } catch (error) {
    say(error);
  }
}, 150);

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
}

function draw() {
  if (!maps) return;
  const { n } = maps;
  const side = Math.max(1, Math.floor(720 / n));
  const [low, high] = [colour("--map-0"), colour("--map-1")];
  const style = getComputedStyle(document.documentElement);
  for (const name of ["softmax", "other"]) {
    const canvas = $(name);
    canvas.width = canvas.height = n * side;
    const context = canvas.getContext("2d");
    const image = new ImageData(n, n);
    maps[name].forEach((weight, at) => {
      // Tokens to come are not weights of 0, but nothing.
      const seen = at % n <= Math.floor(at / n);
      const share = Math.sqrt(Math.max(0, Math.min(1, weight)));
      for (let c = 0; c < 3; c++) image.data[4 * at + c] = low[c] + share * (high[c] - low[c]);
      image.data[4 * at + 3] = seen ? 255 : 0;
    });
    const small = new OffscreenCanvas(n, n);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.fillStyle = style.getPropertyValue("--shade");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    context.strokeStyle = style.getPropertyValue("--accent");
    context.lineWidth = 2;
    const { row, column } = cell;
    context.strokeRect(1, row * side, Math.max(2, (row + 1) * side - 2), side);
    context.fillStyle = style.getPropertyValue("--wrong");
    const dot = Math.max(6, side / 2);
    context.fillRect((column + 0.5) * side - dot / 2, (row + 0.5) * side - dot / 2, dot, dot);
    canvas.setAttribute("aria-label", `Weights of ${name === "other" ? chosen().name : name}, ${n} by ${n}`);
  }
  const { row, column } = cell;
  const [softmax, other] = [maps.softmax, maps.other].map((map) => shown(map[row * n + column]));
  $("here").textContent = `Token ${row} ${quoted(read.pieces[row])} looks at token ${column} ${quoted(read.pieces[column])}: `
    + `softmax ${softmax}, ${chosen().name} ${other}.`;
  $("words").replaceChildren(...["softmax", "other"].map((name) => {
    const line = document.createElement("p");
    const title = document.createElement("strong");
    title.textContent = `${name === "other" ? chosen().name : name}: `;
    line.append(title);
    for (let j = 0; j <= row; j++) {
      const word = document.createElement("span");
      word.textContent = read.pieces[j].replaceAll("\n", "⏎");
      word.style.background = `rgb(${high.join(" ")} / ${Math.sqrt(maps[name][row * n + j]) * 0.55})`;
      if (j === row) word.className = "looks";
      line.append(word);
    }
    return line;
  }));
}

function move(row, column) {
  if (!maps) return;
  row = Math.max(0, Math.min(maps.n - 1, row));
  cell = { row, column: Math.max(0, Math.min(row, column)) };
  draw();
}

function choose(layer, head) {
  place = { layer, head };
  $("layer").value = layer;
  $("head").value = head;
  for (const button of $("heads").querySelectorAll("button")) {
    const own = Number(button.dataset.layer) === layer && Number(button.dataset.head) === head;
    button.setAttribute("aria-pressed", own);
    button.tabIndex = own ? 0 : -1;
  }
  compare();
}

async function write() {
  if (writing) { writing = false; return; }
  const options_ = $("writer").value === "other" ? options() : {};
  const name = $("writer").value === "other" ? chosen().name : "softmax";
  const temperature = Number($("temperature").value);
  try {
    readText();
    const own = engine;
    const seed = crypto.getRandomValues(new Uint32Array(1))[0];
    own.ask({ do: "begin", options: options_, temperature, seed });
    writing = true;
    $("write").textContent = "Stop";
    $("text").readOnly = $("model").disabled = true;
    let [time, count, bytes, pause] = [0, 0, 0, performance.now()];
    const tell = () => {
      const speed = Math.round(count / time * 1000).toLocaleString("en");
      const state = Math.round(bytes / 1024).toLocaleString("en");
      $("speed").textContent = `${count} tokens with ${name}: ${speed} tokens/s, a state of ${state} KiB.`;
    };
    while (writing && count < LENGTH) {
      const start = performance.now();
      const { words } = own.ask({ do: "write" });
      const end = performance.now();
      time += end - start;
      if (words.done) break;
      count++;
      bytes = words.bytes;
      $("text").value = words.text;
      if (end - pause > 30) {
        $("text").scrollTop = $("text").scrollHeight;
        await new Promise((resolve) => setTimeout(resolve));
        pause = performance.now();
      }
      if (count % 10 === 0) tell();
    }
    if (count > 0) tell();
    else $("speed").textContent = `The text ends here, says the model with ${name}.`;
    say();
  } catch (error) {
    say(error);
    $("speed").textContent = `${error.message}.`;
  } finally {
    writing = false;
    $("write").textContent = "Write on";
    $("text").readOnly = $("model").disabled = false;
    readText();
  }
}

function listen() {
  $("text").addEventListener("input", later(readText, 200));
  $("model").addEventListener("input", () => take($("model").value));
  $("write").addEventListener("click", write);
  for (const id of ["mechanism", "budget"]) $(id).addEventListener("input", compare);
  for (const id of ["layer", "head"]) {
    $(id).addEventListener("input", () => choose(Number($("layer").value), Number($("head").value)));
  }
  $("heads").addEventListener("click", ({ target }) => {
    if (target.dataset.layer) choose(Number(target.dataset.layer), Number(target.dataset.head));
  });
  $("heads").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || !event.target.dataset.layer) return;
    const [layer, head] = [Number(event.target.dataset.layer) + step[0], Number(event.target.dataset.head) + step[1]];
    const next = $("heads").querySelector(`button[data-layer="${layer}"][data-head="${head}"]`);
    if (next) next.focus();
    event.preventDefault();
  });
  for (const name of ["softmax", "other"]) {
    const canvas = $(name);
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      const at = (offset, size) => Math.floor(offset / size * maps.n);
      move(at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width));
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("keydown", (event) => {
      const { row, column } = cell;
      const to = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
        ArrowRight: [row, column + 1], Home: [row, 0], End: [row, row] }[event.key];
      if (to) { move(...to); event.preventDefault(); }
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

function fill({ layers, heads, parameters, vocabulary, context }) {
  $("parameters").textContent = `${Math.round(parameters / 1000)} thousand`;
  $("model-about").textContent = `${layers} layers of ${heads} heads, ${vocabulary} tokens, reads ${context} of them`;
  const numbers = (count) => Array.from({ length: count }, (_, n) => new Option(n, n));
  $("layer").replaceChildren(...numbers(layers));
  $("head").replaceChildren(...numbers(heads));
  const row = (cells) => { const row = document.createElement("tr"); row.append(...cells); return row; };
  const title = (words, scope) => {
    const cell = document.createElement("th");
    cell.scope = scope;
    cell.textContent = words;
    return cell;
  };
  const columns = numbers(heads).map((_, head) => title(`head ${head}`, "col"));
  const lines = numbers(layers).map((_, layer) => row([title(`layer ${layer}`, "row"), ...numbers(heads).map((_, head) => {
    const cell = document.createElement("td");
    const button = document.createElement("button");
    button.type = "button";
    Object.assign(button.dataset, { layer, head });
    button.setAttribute("aria-label", `layer ${layer}, head ${head}`);
    cell.append(button);
    return cell;
  })]));
  $("heads").replaceChildren(row([title("", "col"), ...columns]), ...lines);
}

// A file of the page: embedded in it, or beside it.
async function file(name) {
  const embedded = globalThis.REGARD_FILES?.[name];
  if (embedded) return Uint8Array.from(atob(embedded), (c) => c.charCodeAt(0));
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return new Uint8Array(await answer.arrayBuffer());
}

// Has `name` read, and its own beginning unless the text was changed.
async function take(name) {
  try {
    $("state").textContent = "Loading the model.";
    const parts = engines[name] ?? await Promise.all(files(name).map(file));
    engines[name] ??= await Engine.make(module, parts);
    if ($("model").value !== name) return; // Another was chosen meanwhile.
    if (model && $("text").value === BEGINNINGS[model].text) $("text").value = BEGINNINGS[name].text;
    [model, engine] = [name, engines[name]];
    fill(engine.ask({ do: "about" }).words);
    $("speed").textContent = "";
    readText();
    choose(...BEGINNINGS[name].place);
    $("state").textContent = "";
  } catch (error) {
    $("state").textContent = `The model could not be loaded: ${error.message}`;
    throw error;
  }
}

$("mechanism").replaceChildren(...MECHANISMS.map(({ name }) => new Option(name)));
try {
  const packed = await file("playground.wasm.gz");
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  module = await new Response(unpacked).arrayBuffer();
} catch (error) {
  $("state").textContent = `The program could not be loaded: ${error.message}`;
  throw error;
}
await take($("model").value);
listen();
