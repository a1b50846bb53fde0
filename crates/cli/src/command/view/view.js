// Curves and a table of the runs that the server lists. Asks again while runs grow and the page is seen.
"use strict";

const STYLES = 8; // Colours and dashes of view.css; more curves than that begin anew.
const FIRST = 6; // Curves drawn before anything is chosen.
const WIDTH = 560, HEIGHT = 300, LEFT = 58, RIGHT = 12, TOP = 34, BOTTOM = 36;

const byId = (id) => document.getElementById(id);
const runs = new Map(); // Name to what the list says of the run.
const data = new Map(); // Name to { run, next, steps: [[step, loss, ms]], evaluations }.
const chosen = new Map(); // Name to the number of its style.
let order = { key: "name", down: false };
let started = false;
let listed = ""; // The list as the table shows it.

async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "line", "path", "text", "rect"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function choose(name) {
  const taken = new Set(chosen.values());
  let style = 0;
  while (taken.has(style)) style += 1;
  chosen.set(name, style);
}

// The list of runs.

async function list() {
  const answer = await ask("/api/runs");
  const names = new Set(answer.runs.map((run) => run.name));
  for (const name of runs.keys()) {
    if (!names.has(name)) { runs.delete(name); data.delete(name); chosen.delete(name); }
  }
  for (const run of answer.runs) runs.set(run.name, run);
  if (!started && runs.size) {
    started = true;
    const newest = [...runs.values()].sort((a, b) => (a.written ?? Infinity) - (b.written ?? Infinity));
    newest.slice(0, FIRST).map((run) => run.name).sort().forEach(choose);
  }
  const running = answer.runs.filter((run) => run.state === "running").length;
  const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  say(`${count(runs.size, "run")}, ${running} running${answer.complete ? "" : "; there are more directories than are looked into"}`);
  const seen = JSON.stringify([answer.reports, answer.runs.map((run) => ({ ...run, written: null }))]);
  if (seen === listed) return;
  listed = seen;
  reports(answer.reports);
  table();
}

function say(text, gone = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("gone", gone);
}

function address(path) {
  return "/files/" + path.split("/").map(encodeURIComponent).join("/");
}

function reports(paths) {
  const items = paths.map((path) => element("li", {}, element("a", { href: address(path) }, path)));
  byId("reports").replaceChildren(...(items.length ? [element("h2", {}, "Other reports"), element("ul", {}, ...items)] : []));
}

function quality(evaluation) {
  if (!evaluation) return "";
  if (evaluation.accuracy != null) return (100 * evaluation.accuracy).toFixed(1) + " %";
  return number(evaluation.perplexity ?? evaluation.loss);
}

function number(value) {
  if (value == null) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 2 : 3);
}

function sortable(run, key) {
  const value = run[key];
  if (value == null) return null;
  return typeof value === "object" ? (value.accuracy ?? value.perplexity ?? value.loss) : value;
}

function table() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const rows = [...runs.values()].filter((run) => [run.name, run.model, run.task].join(" ").toLowerCase().includes(wanted));
  rows.sort((one, other) => {
    const [a, b] = [sortable(one, order.key), sortable(other, order.key)];
    if (a === null || b === null) return (a === null) - (b === null);
    const way = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return order.down ? -way : way;
  });
  for (const head of document.querySelectorAll("th[data-key]")) {
    if (head.dataset.key === order.key) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  const focused = document.activeElement?.dataset?.run;
  byId("runs").replaceChildren(...rows.map(row));
  if (focused !== undefined) document.querySelector(`input[data-run="${CSS.escape(focused)}"]`)?.focus();
}

function row(run) {
  const name = run.name || "this directory";
  const box = element("input", { type: "checkbox", "aria-label": `${name} in the curves`, "data-run": run.name });
  box.checked = chosen.has(run.name);
  box.addEventListener("change", () => {
    if (box.checked) choose(run.name); else chosen.delete(run.name);
    grow().then(draw, gone);
  });
  const links = element("td");
  if (run.report) links.append(element("a", { href: address(run.report) }, "report"));
  if (run.maps) links.append(element("a", { href: "/maps?run=" + encodeURIComponent(run.name) }, "maps"));
  links.append(element("a", { href: address((run.name ? run.name + "/" : "") + "config.toml") }, "config"));
  const cell = (text, kind) => element("td", kind ? { class: kind } : {}, text ?? "");
  const updates = run.step == null ? "" : `${run.step}${run.steps ? " of " + run.steps : ""}`;
  return element("tr", {}, element("td", {}, box), cell(name, "name"), cell(run.model), cell(run.task),
    cell(run.state, run.state), cell(updates, "number"), cell(number(run.loss), "number"), cell(quality(run.valid), "number"),
    cell(quality(run.test), "number"), cell(number(run.milliseconds), "number"), links);
}

// The curves.

// Reads what the chosen runs have written since, one reader after another; says whether there was anything.
let growing = Promise.resolve(false);
function grow() {
  growing = growing.catch(() => false).then(readOn);
  return growing;
}

async function readOn() {
  let grown = false;
  for (const name of [...chosen.keys()]) {
    const nothing = () => ({ run: null, next: 0, steps: [], evaluations: [] });
    const own = data.get(name) ?? nothing();
    data.set(name, own);
    let more = true;
    while (more) {
      const piece = await ask(`/api/metrics?run=${encodeURIComponent(name)}&from=${own.next}`);
      const newest = own.steps.length ? own.steps[own.steps.length - 1][0] : -1;
      const earlier = !piece.again && piece.steps.length && piece.steps[0][0] <= newest;
      if (earlier || (own.next > 0 && piece.run !== own.run)) {
        // Another run has taken the place of this one.
        Object.assign(own, nothing());
        continue;
      }
      if (piece.again) { own.steps = []; own.evaluations = []; }
      own.steps.push(...piece.steps);
      own.evaluations.push(...piece.evaluations);
      grown ||= piece.again || piece.next !== own.next;
      more = piece.next !== own.next && piece.next < piece.size;
      Object.assign(own, { run: piece.run, next: piece.next });
    }
  }
  return grown;
}

// Means over a window, at most as many points as can be told apart.
function smoothed(steps, window) {
  const points = [];
  const every = Math.max(1, Math.floor(steps.length / 500));
  let sum = 0;
  steps.forEach(([step, loss], at) => {
    sum += loss;
    if (at >= window) sum -= steps[at - window][1];
    if (at % every === 0 || at === steps.length - 1) points.push([step, sum / Math.min(at + 1, window)]);
  });
  return points;
}

function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  const all = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at += 1) all.push(at * step);
  return all;
}

function chart(title, curves, { log = false, percent = false } = {}) {
  const points = curves.flatMap((curve) => curve.points);
  const ends = (numbers) => numbers.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
  const [first, end] = ends(points.map(([step]) => step));
  const values = points.map(([, value]) => value).filter((value) => !log || value > 0);
  if (!values.length) return element("figure");
  const scale = log ? Math.log10 : (value) => value;
  let [low, high] = ends(values).map(scale);
  if (high - low < 1e-9) { low -= 0.5; high += 0.5; }
  const edge = 0.04 * (high - low);
  low -= edge; high += edge;
  const across = (step) => LEFT + (WIDTH - LEFT - RIGHT) * (end > first ? (step - first) / (end - first) : 0.5);
  const down = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * ((scale(value) - low) / (high - low));
  const label = (value) => percent ? `${+(100 * value).toFixed(1)} %` : `${+value.toPrecision(3)}`;

  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, ${curves.length} curves` });
  svg.append(element("text", { x: 4, y: 18, class: "title" }, title));
  for (const tick of ticks(low, high, 5)) {
    const value = log ? 10 ** tick : tick;
    const y = down(value);
    svg.append(element("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "grid" }),
      element("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, label(value)));
  }
  for (const tick of end > first ? ticks(first, end, 5).filter(Number.isInteger) : [first]) {
    svg.append(element("text", { x: across(tick), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, String(tick)));
  }
  svg.append(element("text", { x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "update"));
  for (const { points: own, style } of curves) {
    const seen = own.filter(([, value]) => !log || value > 0);
    const path = seen.map(([step, value], at) => `${at ? "L" : "M"}${across(step).toFixed(1)} ${down(value).toFixed(1)}`);
    // A point alone is a line too short to see.
    if (seen.length === 1) path.splice(0, 1, `M${across(seen[0][0]) - 5} ${down(seen[0][1]).toFixed(1)}h10`);
    svg.append(element("path", { d: path.join(""), class: `line c${style % STYLES}` }));
  }
  const caption = element("p", { class: "caption" });
  const cursor = element("line", { y1: TOP, y2: HEIGHT - BOTTOM, x1: -9, x2: -9, class: "cursor" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const step = first + ((x - LEFT) / (WIDTH - LEFT - RIGHT)) * (end - first);
    const near = (own) => own.reduce((best, point) => Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best);
    const told = curves.map(({ name, points: own }) => ({ name, point: near(own) }));
    const at = near(told.map(({ point }) => point));
    cursor.setAttribute("x1", across(at[0]));
    cursor.setAttribute("x2", across(at[0]));
    const value = (point) => percent ? label(point[1]) : number(point[1]);
    caption.textContent = `update ${at[0]}: ` + told.map(({ name, point }) => `${name} ${value(point)}`).join(", ");
  });
  return element("figure", {}, svg, caption);
}

function draw() {
  const window = Number(byId("window").value);
  const log = byId("log").checked;
  const shown = [...chosen].filter(([name]) => data.has(name));
  const curves = (points) => shown
    .map(([name, style]) => ({ name: name || "this directory", style, points: points(data.get(name)) }))
    .filter((curve) => curve.points.length);
  const valid = (figure) => (own) => own.evaluations
    .filter((evaluation) => evaluation.split === "valid" && evaluation[figure] != null)
    .map((evaluation) => [evaluation.step, evaluation[figure]]);
  const charts = [
    ["Training loss (nat)", curves((own) => smoothed(own.steps, window)), { log }],
    ["Validation loss (nat)", curves(valid("loss")), { log }],
    ["Validation accuracy", curves(valid("accuracy")), { percent: true }],
  ];
  byId("charts").replaceChildren(...charts.filter(([, own]) => own.length).map((parts) => chart(...parts)));
  byId("legend").replaceChildren(...shown.map(([name, style]) => element("li", {},
    element("svg", { width: 34, height: 10, "aria-hidden": "true" },
      element("path", { d: "M1 5H33", class: `line c${style % STYLES}` })), name || "this directory")));
}

// Controls, and the clock.

for (const id of ["window", "log"]) byId(id).addEventListener("change", draw);
byId("filter").addEventListener("input", table);
byId("none").addEventListener("click", () => { chosen.clear(); table(); draw(); });
for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
for (const head of document.querySelectorAll("th[data-key]")) {
  head.querySelector("button").addEventListener("click", () => {
    order = { key: head.dataset.key, down: order.key === head.dataset.key && !order.down };
    table();
  });
}

function gone(error) {
  say(`No answer: ${error.message.trim()}. The curves are the last that were read.`, true);
}

async function tick() {
  if (!document.hidden) {
    try {
      await list();
      if (await grow()) draw();
    } catch (error) {
      gone(error);
    }
  }
  setTimeout(tick, 2000);
}
tick();
