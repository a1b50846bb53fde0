// Visits the page in headless Chromium as a person with a keyboard would, checks what it shows, and writes screenshots:
// node docs/playground/visit.mjs FOLDER [PAGE]
//
// CHROMIUM names the browser (chromium). PAGE is a page of one file, which opens from disk.

import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { dirname, extname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const [folder, single] = process.argv.slice(2);
if (!folder) {
  console.error("usage: node visit.mjs FOLDER [PAGE]");
  process.exit(2);
}
mkdirSync(folder, { recursive: true });

const types = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm" };
const server = createServer((request, answer) => {
  const name = request.url === "/" ? "index.html" : request.url.slice(1);
  try {
    const bytes = readFileSync(join(here, name));
    answer.writeHead(200, { "content-type": types[extname(name)] ?? "application/octet-stream" }).end(bytes);
  } catch {
    answer.writeHead(404).end();
  }
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const page = single ? pathToFileURL(resolve(single)).href : `http://127.0.0.1:${server.address().port}/`;

// The DevTools protocol over pipes: messages end with a zero byte.
const profile = mkdtempSync(join(tmpdir(), "playground-"));
const browser = spawn(process.env.CHROMIUM ?? "chromium",
  ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", `--user-data-dir=${profile}`, "about:blank"],
  { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
const waiting = new Map();
const listeners = [];
let count = 0;
let rest = "";
browser.stdio[4].on("data", (data) => {
  const messages = (rest + data).split("\0");
  rest = messages.pop();
  for (const message of messages.map((text) => JSON.parse(text))) {
    if (message.id) {
      const { done, fail } = waiting.get(message.id);
      message.error ? fail(new Error(message.error.message)) : done(message.result);
    } else listeners.forEach((listener) => listener(message));
  }
});
const send = (method, params = {}, sessionId) => new Promise((done, fail) => {
  waiting.set(++count, { done, fail });
  browser.stdio[3].write(JSON.stringify({ id: count, method, params, sessionId }) + "\0");
});

const { targetId } = await send("Target.createTarget", { url: "about:blank" });
const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
const tell = (method, params) => send(method, params, sessionId);
const complaints = [];
const requested = [];
listeners.push(({ method, params }) => {
  if (method === "Runtime.exceptionThrown") complaints.push(params.exceptionDetails.exception?.description ?? "exception");
  if (method === "Log.entryAdded" && params.entry.level === "error") complaints.push(params.entry.text);
  const url = method === "Network.requestWillBeSent" ? params.request.url : page;
  requested.push(url);
  if (!url.startsWith(page) && !/^(data|blob):/.test(url)) complaints.push(`a request to ${url}`);
});
for (const domain of ["Page", "Runtime", "Network", "Log"]) await tell(`${domain}.enable`);

async function value(expression) {
  const { result, exceptionDetails } = await tell("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description}`);
  return result.value;
}
async function until(expression, seconds = 60) {
  for (const end = Date.now() + 1000 * seconds; Date.now() < end; await new Promise((go) => setTimeout(go, 50))) {
    if (await value(expression)) return;
  }
  throw new Error(`still not: ${expression}; the page says ${await value("document.getElementById('state').textContent")}`);
}
async function press(key, times = 1) {
  const code = { ArrowLeft: 37, ArrowUp: 38, ArrowRight: 39, ArrowDown: 40, Home: 36, End: 35, Tab: 9, Enter: 13 }[key];
  for (let n = 0; n < times; n++) {
    for (const type of ["keyDown", "keyUp"]) {
      const text = type === "keyDown" && key === "Enter" ? "\r" : undefined;
      await tell("Input.dispatchKeyEvent", { type, key, code: key, windowsVirtualKeyCode: code, text });
    }
  }
}
const shown = (id) => value(`document.getElementById("${id}").textContent`);
function check(what, holds) {
  if (!holds) complaints.push(`not so: ${what}`);
}
async function shoot(name, width, scheme) {
  await tell("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: width < 500 });
  await tell("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
  await value("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))");
  check(`${name} has no horizontal scrolling`, await value("document.documentElement.scrollWidth") <= width);
  const { data } = await tell("Page.captureScreenshot", { format: "png", captureBeyondViewport: true });
  writeFileSync(join(folder, `${name}.png`), Buffer.from(data, "base64"));
}

try {
  await tell("Page.navigate", { url: page });
  await until("document.readyState === 'complete' && document.getElementById('state').textContent === '' && document.getElementById('output-error').textContent !== ''");
  await until("document.querySelector('.heads button').textContent !== ''");

  // Type at the end of the text.
  const before = await shown("read");
  await value("document.getElementById('text').focus(), document.getElementById('text').setSelectionRange(1e6, 1e6)");
  await tell("Input.insertText", { text: " Tom wanted to play with the ball." });
  await until(`document.getElementById('read').textContent !== ${JSON.stringify(before)}`);
  check("perplexity is shown", /\d+ tokens, perplexity \d+\.\d+, read in/.test(await shown("read")));

  // Each mechanism, by keyboard.
  await value("document.getElementById('mechanism').focus()");
  const mechanisms = await value("document.getElementById('mechanism').length");
  for (let n = 0; n < mechanisms; n++) {
    check(`mechanism ${n} has an error between 0 and 2`, Number(await shown("output-error")) < 2);
    check(`mechanism ${n} is not refused`, await value("document.getElementById('error').hidden"));
    if (n + 1 < mechanisms) await press("ArrowDown");
  }
  await press("ArrowUp", mechanisms - 1);

  // The slider: less budget, more error; too little is refused in words.
  await value("document.getElementById('budget').focus()");
  const [error, budget] = [await shown("output-error"), await shown("budget-value")];
  await press("ArrowRight", 8);
  check("the budget grows with the arrow key", parseFloat(await shown("budget-value")) > parseFloat(budget));
  check("more budget, less error", Number(await shown("output-error")) < Number(error));
  await press("Home");
  check("too small a budget is refused in words", /budget is .* expected/.test(await shown("error")));
  await shoot("refused", 1280, "light");
  await press("ArrowRight", 14);
  check("the budget is as before", await shown("budget-value") === budget && await shown("output-error") === error);

  // A weight, and a head, by keyboard.
  await value("document.getElementById('other').focus()");
  const cell = await shown("here");
  await press("ArrowUp", 3);
  check("the arrow keys choose a weight", await shown("here") !== cell);
  await value("document.querySelector('.heads button[aria-pressed=true]').focus()");
  await press("ArrowDown");
  await press("ArrowRight");
  await press("Enter");
  check("Enter chooses a head", await value("document.getElementById('layer').value + document.getElementById('head').value") === "31");

  // Write on, with softmax and with the mechanism.
  for (const writer of ["softmax", "other"]) {
    await value(`document.getElementById('writer').value = '${writer}', document.getElementById('write').focus()`);
    const length = await value("document.getElementById('text').value.length");
    await press("Enter");
    await until("document.getElementById('write').textContent === 'Write on'");
    check(`${writer} writes`, await value("document.getElementById('text').value.length") > length);
    console.log(await shown("speed"));
  }
  await until("document.querySelector('.heads button').textContent !== ''");
  console.log(await shown("read"));
  for (const [width, scheme] of [[1280, "light"], [1280, "dark"], [400, "light"], [400, "dark"]]) {
    await shoot(`${width}-${scheme}`, width, scheme);
  }

  // The other model, loaded once it is chosen; it reads the text that is there, but for what it does not know.
  check("the other model is not loaded before", !requested.some((url) => url.includes("char-lm")));
  const said = await shown("read");
  await value("document.getElementById('text').value = 'ROMEO:\\nWhat light? Café', document.getElementById('model').focus()");
  await press("ArrowDown");
  await until(`document.getElementById('read').textContent !== ${JSON.stringify(said)}`);
  check("letters are tokens", /^22 tokens, perplexity \d+\.\d+.* know: 1; they are left out/.test(await shown("read")));
  check("its heads are shown", await value("document.getElementById('heads').rows.length") === 5);
  await value("document.getElementById('writer').value = 'softmax', document.getElementById('write').focus()");
  await press("Enter");
  await until("document.getElementById('write').textContent === 'Write on'");
  check("it writes on", (await value("document.getElementById('text').value")).length === 22 + 80);
  console.log(await shown("speed"));
  await shoot("letters", 400, "light");
  const unnamed = await value(`[...document.querySelectorAll("button, input, select, textarea, canvas")].filter((element) =>
    !(element.labels?.length || element.textContent.trim() || element.getAttribute("aria-label"))).map((element) => element.id)`);
  check(`every control has a name, unlike ${unnamed}`, unnamed.length === 0);
} catch (error) {
  complaints.push(error.message);
} finally {
  const closed = new Promise((gone) => browser.once("exit", gone));
  send("Browser.close").catch(() => {});
  await closed;
  server.close();
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
complaints.forEach((complaint) => console.error(complaint));
console.log(complaints.length === 0 ? "all as it should be" : `${complaints.length} complaints`);
process.exit(complaints.length === 0 ? 0 : 1);
