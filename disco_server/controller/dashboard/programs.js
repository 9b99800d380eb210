// The captured programs of a session, and the steps of one of them as a graph.
//
// Steps run in their order, so each is a row, and what one reads of others is drawn as arcs
// beside them. A window of the steps is drawn, and above it where the time of all of them goes.

import { svg, titled } from "./charts.js";
import { Held } from "./held.js";
import { Pages, Rows, count, element, find, many, share, time } from "./text.js";

const ROWS = 25, STEPS = 40, COLOURS = 8, ROW = 44, EDGES = 76, NARROW = 34;

/** What one of the numbers means by which a rank says where a value comes from. */
function source(number) {
  if (number > 0) return `#${number}`;
  return number < 0 ? `input ${-number}` : "the session";
}

function reads(row) {
  const all = [...row.reads.map(source), ...(row.more ? [`${row.more} more`] : [])];
  return all.length ? `reads ${all.join(", ")}` : "reads nothing";
}

export class Programs {
  constructor(ask) {
    this.rows = new Rows(find("programs-rows"), "none is captured on this rank; session.capture(...) makes one");
    this.held = new Held(ask, "programs", () => `programs?from=${this.from}&program=${this.program}&step=${this.step}&steps=${STEPS}`, (found) => this.#draw(found));
    this.pages = new Pages(find("programs-pages"), ROWS, (from) => { this.from = from; this.held.follow(); });
    this.turns = new Pages(find("graph-pages"), STEPS, (step) => this.#turn(step));
    find("graph-close").addEventListener("click", () => this.#choose(0));
    find("graph-all").addEventListener("click", (event) => this.#jump(event));
    new ResizeObserver(() => this.#edges()).observe(find("graph-steps"));
  }

  show(session) {
    this.held.show(session);
  }

  #turn(step) {
    this.step = step;
    this.held.follow();
  }

  #choose(program) {
    this.program = this.program === program ? 0 : program;
    this.step = 0;
    this.#clear();
    if (this.list) this.#table(this.list);
    this.held.follow();
  }

  #clear() {
    this.graph = this.only = this.chosen = null;
    this.drawn = "";
    this.colours = new Map();
    find("graph").hidden = true;
    find("graph-what").textContent = "";
  }

  #draw(found) {
    if (!found) {
      Object.assign(this, { from: 0, program: 0, step: 0, list: null });
      this.#clear();
      this.rows.draw([]);
      this.pages.draw(0, 0, 0);
      return;
    }
    this.list = found.programs;
    this.from = found.programs.from;
    this.#table(found.programs);
    if (found.graph && found.graph.defined === this.program) this.#show(found.graph);
    else if (this.program && !found.graph) this.#choose(this.program); // it is gone
  }

  #table({ found, from, rows }) {
    this.rows.draw(rows.map((each) => [each.defined, each.defined === this.program, [
      { key: `${each.name}|${each.defined === this.program}`, make: () => this.#name(each) },
      count(each.steps), count(each.runs), this.#runs(each, each.mean_s), this.#runs(each, each.last_s),
    ]]));
    this.pages.draw(from, found, rows.length);
  }

  #name({ name, defined }) {
    const made = element("button", { type: "button", class: "link", "aria-pressed": defined === this.program }, name);
    made.addEventListener("click", () => this.#choose(defined));
    return made;
  }

  #runs({ namesakes }, seconds) {
    return seconds !== null && namesakes > 1 ? `${time(seconds)} (${namesakes} of that name)` : time(seconds);
  }

  // --- the graph -------------------------------------------------------------------------

  /** The colour of what a step does: kept while a program is shown, whatever takes longest. */
  #colour(name) {
    if (!this.colours.has(name) && this.colours.size < COLOURS) this.colours.set(name, `f${this.colours.size}`);
    return this.colours.get(name) ?? "fx";
  }

  #show(graph) {
    this.graph = graph;
    for (const { name } of graph.functions) this.#colour(name);
    this.step = graph.from;
    find("graph").hidden = false;
    const title = `Program ${graph.name}: ${many(graph.steps, "step")}`;
    if (find("graph-title").textContent !== title) find("graph-title").textContent = title;
    const timed = graph.timed ? `${time(graph.run_s)} for a run, the mean of ${count(graph.timed)} that were timed step by step while this is open` : "no run was timed yet: the next ones are, while this is open";
    if (find("graph-facts").textContent !== timed) find("graph-facts").textContent = timed;
    this.#legend();
    this.#all();
    const shape = `${graph.defined}|${graph.from}|${graph.rows.map((row) => row.name).join("\n")}`;
    if (shape !== this.drawn) { this.drawn = shape; this.chosen = null; this.#steps(); }
    for (const row of graph.rows) this.#figures(row);
    this.turns.draw(graph.from, graph.steps, graph.rows.length);
    this.#tell();
  }

  #legend() {
    const { functions, run_s: whole } = this.graph, place = find("graph-legend");
    const key = JSON.stringify([functions, this.only]);
    if (place.shown === key) return;
    place.shown = key;
    const focused = place.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    place.replaceChildren(...functions.map(({ name, seconds, count: times }) => {
      const figure = element("span", { class: "figure" }, ` ${whole ? `${share(seconds / whole)}, ` : ""}${count(times)} ×`);
      const button = element("button", { type: "button", class: "entry", "aria-pressed": this.only === name, "data-name": name }, element("span", { class: `key ${this.#colour(name)}` }), name, figure);
      button.addEventListener("click", () => { this.only = this.only === name ? null : name; this.#legend(); this.#all(); this.#mark(); });
      return element("li", {}, button);
    }));
    if (focused !== null) [...place.querySelectorAll("button")].find((each) => each.dataset.name === focused)?.focus();
  }

  /** Where the time of a run goes, over all steps; equal parts as long as nothing was timed. */
  #all() {
    const { parts, steps, from, rows, functions, run_s: whole } = this.graph, paths = new Map();
    const wide = (seconds) => (whole ? (seconds / whole) * 1000 : 1000 / parts.length);
    let x = 0, begin = null, end = 1000;
    parts.forEach(([number, seconds, step]) => {
      if (begin === null || step <= from) begin = x;
      if (step >= from + rows.length && end === 1000) end = x;
      const { name } = functions[number], kind = this.#colour(name) + (this.only !== null && this.only !== name ? " faded" : "");
      paths.set(kind, `${paths.get(kind) ?? ""}M${x.toFixed(2)},4h${wide(seconds).toFixed(2)}v20h-${wide(seconds).toFixed(2)}z`);
      x += wide(seconds);
    });
    const text = `the time of ${steps} steps; those from ${from + 1} to ${from + rows.length} are shown below`;
    find("graph-all").replaceChildren(svg("svg", { viewBox: "0 0 1000 28", preserveAspectRatio: "none", role: "img", "aria-label": text }, titled(text),
      ...[...paths].map(([kind, d]) => svg("path", { class: kind, d })),
      svg("rect", { class: "window", x: begin ?? 0, y: 1, width: Math.max(end - (begin ?? 0), 2), height: 26 })));
  }

  #jump(event) {
    const { parts, run_s: whole, steps } = this.graph, box = find("graph-all").getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width;
    let x = 0;
    const part = parts.find(([, seconds]) => { x += whole ? seconds / whole : 1 / parts.length; return x >= at; }) ?? parts.at(-1);
    this.#turn(Math.max(Math.min(part[2] - STEPS / 2, steps - STEPS), 0));
  }

  /** What the legend calls that which a step does. */
  #kind(row) {
    return this.graph.functions[row.function].name;
  }

  #steps() {
    find("graph-steps").replaceChildren(...this.graph.rows.map((row) => {
      const bar = element("span", { class: `bar ${this.#colour(this.#kind(row))}` });
      const button = element("button", { type: "button", class: "step", "data-step": row.step, "aria-pressed": false },
        element("span", { class: `key ${this.#colour(this.#kind(row))}` }), element("span", { class: "at" }, `#${row.step}`),
        element("span", { class: "what" }, row.name), element("span", { class: "took" }), element("span", { class: "reads" }, reads(row) + (row.outputs.length ? ` · output ${row.outputs.join(", ")}` : "")), bar);
      button.addEventListener("click", () => { this.chosen = this.chosen === row.step ? null : row.step; this.#mark(); this.#tell(); });
      return element("li", {}, button);
    }));
    this.#edges();
  }

  #figures(row) {
    const button = find("graph-steps").children[row.step - 1 - this.graph.from].firstChild;
    const took = row.mean_s === null ? "–" : `${time(row.mean_s)} · ${share(row.share)}`;
    const place = button.querySelector(".took");
    if (place.textContent !== took) place.textContent = took;
    button.querySelector(".bar").style.width = `${Math.round((row.share ?? 0) * 1000) / 10}%`;
  }

  /** An arc from each step to those that read what it made; from above for those before the window. */
  #edges() {
    const place = find("graph-edges");
    if (!this.graph || find("graph").hidden) return;
    const { from, rows } = this.graph, wide = find("graph").clientWidth < 600 ? NARROW : EDGES, right = wide - 2;
    const middle = (step) => (step - from - 0.5) * ROW;
    const image = svg("svg", { width: wide, height: rows.length * ROW, "aria-hidden": true });
    for (const row of rows) {
      const y = middle(row.step);
      for (const step of row.reads) {
        if (step <= 0) continue;
        const away = Math.min(6 + 7 * Math.log2(1 + row.step - step) * 1.6, wide - 4);
        const begin = step > from ? middle(step) + 6 : 0, end = y - 6, x = right - 5;
        const d = step > from
          ? `M${right},${begin}C${(x - away).toFixed(1)},${begin} ${(x - away).toFixed(1)},${end} ${x},${end}`
          : `M${(x - away / 2).toFixed(1)},0C${(x - away).toFixed(1)},${end / 2} ${(x - away).toFixed(1)},${end} ${x},${end}`;
        image.append(svg("path", { class: step > from ? "edge" : "edge outside", d: `${d}M${x - 1},${end - 3}l6,3l-6,3`, "data-from": step, "data-to": row.step }));
      }
    }
    place.replaceChildren(image);
    this.#mark();
  }

  #mark() {
    const near = new Set();
    for (const edge of find("graph-edges").querySelectorAll(".edge")) {
      const { from, to } = edge.dataset, mine = this.chosen !== null && (Number(from) === this.chosen || Number(to) === this.chosen);
      edge.classList.toggle("near", mine);
      edge.classList.toggle("faded", this.chosen !== null && !mine);
      if (mine) { near.add(Number(from)); near.add(Number(to)); }
    }
    for (const row of this.graph?.rows ?? []) {
      const button = find("graph-steps").children[row.step - 1 - this.graph.from]?.firstChild;
      if (!button) continue;
      button.setAttribute("aria-pressed", this.chosen === row.step);
      const aside = (this.chosen !== null && !near.has(row.step) && this.chosen !== row.step) || (this.only !== null && this.only !== this.#kind(row));
      button.classList.toggle("faded", aside);
    }
  }

  #tell() {
    const row = this.graph?.rows.find((each) => each.step === this.chosen);
    const readers = row ? this.graph.rows.filter((each) => each.reads.includes(row.step)).map((each) => `#${each.step}`) : [];
    const parts = row ? [
      `Step ${row.step}: ${row.name}`, `command ${row.recorded} of the capture`,
      row.mean_s === null ? "not timed yet" : `${time(row.mean_s)} in the mean, ${time(row.last_s)} last, ${share(row.share)} of a run`,
      reads(row), readers.length ? `read by ${readers.join(", ")}` : "read by none that is shown",
    ] : [];
    const text = parts.join(" · ");
    if (find("graph-what").textContent !== text) find("graph-what").textContent = text;
  }
}
