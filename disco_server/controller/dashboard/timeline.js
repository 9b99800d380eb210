// What the ranks of a session did: a lane for each, coloured by function.
//
// While it runs, the last seconds are asked for every other second. A pause keeps what is
// there, in full detail, to zoom into. However many commands there are, a lane is one path for
// each colour.

import { svg } from "./charts.js";
import { Pages, Rows, bytes, count, element, find, many, rate, share, time } from "./text.js";

const RANKS = 8, COLOURS = 8, EVERY_MS = 2000, LONGEST_MS = 60000, SHORTEST_MS = 10, WHOLE_MS = 10000;
const LANE = 24, GAP = 8, LEFT = 58, BAND = 46, AXIS = 18;

export class Timeline {
  constructor(ask) {
    this.ask = ask;
    this.place = find("timeline");
    this.rows = new Rows(find("operations"), "");
    this.pages = new Pages(find("timeline-pages"), RANKS, (first) => this.#turn(first));
    this.colours = new Map();
    this.show("");
    const press = { pause: () => this.pause(), "zoom-in": () => this.zoom(0.5), "zoom-out": () => this.zoom(2), earlier: () => this.move(-0.5), later: () => this.move(0.5), all: () => this.whole() };
    for (const [id, action] of Object.entries(press)) find(id).addEventListener("click", action);
    const keys = { " ": press.pause, "+": press["zoom-in"], "=": press["zoom-in"], "-": press["zoom-out"], ArrowLeft: press.earlier, ArrowRight: press.later, 0: press.all, Home: press.all };
    this.place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    this.place.addEventListener("pointerdown", (event) => this.#begin(event));
    this.place.addEventListener("pointermove", (event) => this.#over(event));
    this.place.addEventListener("pointerup", (event) => this.#end(event));
    this.place.addEventListener("pointerleave", () => this.#tell(""));
    new ResizeObserver(() => this.#draw()).observe(this.place);
  }

  /** Shows a session; none where its id is empty. */
  show(session) {
    clearTimeout(this.timer);
    this.session = session;
    this.first = 0;
    this.ms = WHOLE_MS;
    this.data = null;
    this.only = null;
    this.colours.clear();
    this.#setPaused(false);
    this.place.replaceChildren();
    find("legend").replaceChildren();
    find("operations-table").hidden = true;
    find("timeline-pages").hidden = true;
    this.#tell("");
    if (session) this.#follow();
  }

  async #follow() {
    clearTimeout(this.timer);
    const mine = this.session;
    if (!this.paused && !document.hidden) await this.#fetch(600);
    if (mine === this.session && !this.paused) this.timer = setTimeout(() => this.#follow(), EVERY_MS);
  }

  async #fetch(spans) {
    const { session, first, paused } = this;
    const found = await this.ask(`timeline?session=${session}&first=${first}&count=${RANKS}&ms=${Math.round(this.ms)}&spans=${spans}`);
    // An answer that was under way when a pause began would take the place of what it keeps.
    if (!found || session !== this.session || first !== this.first || paused !== this.paused) return;
    this.data = found;
    this.view = [0, found.seconds * 1e6];
    this.pages.draw(first, found.num_workers, found.ranks.length);
    this.#draw();
  }

  #setPaused(paused) {
    this.paused = paused;
    find("pause").textContent = paused ? "Go on" : "Pause";
    find("pause").setAttribute("aria-pressed", paused);
  }

  async pause() {
    if (!this.session) return;
    this.#setPaused(!this.paused);
    if (this.paused) await this.#fetch(4000);
    else { this.ms = WHOLE_MS; this.#follow(); }
  }

  /** Shows a part of the time that is shown now, or several times as much. */
  async zoom(factor, around = 0.5) {
    if (!this.data) return;
    if (!this.paused) {
      this.ms = Math.min(Math.max(this.ms * factor, SHORTEST_MS), LONGEST_MS);
      this.#follow();
      return;
    }
    const [from, to] = this.view, middle = from + (to - from) * around;
    this.#look(middle - (to - from) * factor * around, middle + (to - from) * factor * (1 - around));
  }

  async move(part) {
    if (!this.data) return;
    if (!this.paused) await this.pause();
    const [from, to] = this.view, by = (to - from) * part, end = this.data.seconds * 1e6;
    const shift = Math.min(Math.max(by, -from), end - to);
    this.#look(from + shift, to + shift);
  }

  whole() {
    if (!this.data) return;
    if (this.paused) this.#look(0, this.data.seconds * 1e6);
    else { this.ms = WHOLE_MS; this.#follow(); }
  }

  #look(from, to) {
    const end = this.data.seconds * 1e6, least = Math.min(end, 100);
    from = Math.max(from, 0);
    to = Math.min(Math.max(to, from + least), end);
    this.view = [Math.min(from, to - least), to];
    this.#draw();
  }

  #turn(first) {
    this.first = first;
    if (this.paused) this.#fetch(4000);
    else this.#follow();
  }

  // --- drawing ---------------------------------------------------------------------------

  #colour(name) {
    if (!this.colours.has(name) && this.colours.size < COLOURS) this.colours.set(name, this.colours.size);
    return this.colours.has(name) ? `f${this.colours.get(name)}` : "fx";
  }

  #draw() {
    if (!this.data || !this.place.clientWidth) return;
    const { ranks, functions, seconds, bandwidth } = this.data, [from, to] = this.view;
    functions.forEach(({ name }) => this.#colour(name));
    this.width = Math.max(this.place.clientWidth - LEFT - 2, 50);
    const scale = this.width / (to - from), bottom = ranks.length * (LANE + GAP);
    const height = bottom + BAND + AXIS;
    const most = functions.slice(0, 3).map(({ name, seconds: took }) => `${name} ${time(took)}`);
    const text = `${many(ranks.length, "rank")}, ${time((to - from) / 1e6)}; longest in all: ${most.join(", ") || "nothing"}`;
    const image = svg("svg", { width: LEFT + this.width + 2, height, role: "img", "aria-label": text });
    ranks.forEach((rank, row) => image.append(...this.#lane(rank, row * (LANE + GAP), scale)));
    image.append(...this.#band(bandwidth, seconds, bottom, from, to), ...this.#axis(height, from, to));
    this.selection = svg("rect", { class: "selection", y: 0, height: bottom, width: 0 });
    image.append(this.selection);
    this.place.replaceChildren(image);
    this.#legend();
    this.#operations();
  }

  #lane(rank, y, scale) {
    const [from, to] = this.view, paths = new Map();
    const box = (start, long, top, tall) => {
      const left = LEFT + Math.max(start - from, 0) * scale;
      const wide = Math.max((Math.min(start + long, to) - Math.max(start, from)) * scale, 0.6);
      return `M${left.toFixed(1)},${top}h${wide.toFixed(1)}v${tall}h-${wide.toFixed(1)}z`;
    };
    for (const [start, long, number] of rank.spans) {
      if (start > to || start + long < from) continue;
      const { name } = this.data.functions[number];
      const kind = this.#colour(name) + (this.only && this.only !== name ? " faded" : "");
      paths.set(kind, (paths.get(kind) ?? "") + box(start, long, y, LANE));
    }
    const waits = rank.waits.filter(([start, long]) => start <= to && start + long >= from).map(([start, long]) => box(start, long, y + LANE - 7, 7)).join("");
    const label = svg("text", { x: 0, y: y + LANE / 2 + 4 });
    label.textContent = `rank ${rank.worker}`;
    return [
      label, svg("rect", { class: "lane", x: LEFT, y, width: this.width, height: LANE }),
      ...[...paths].map(([kind, d]) => svg("path", { class: `call ${kind}`, d })),
      ...(waits ? [svg("path", { class: "wait", d: waits })] : []),
    ];
  }

  #band(values, seconds, top, from, to) {
    const part = (seconds * 1e6) / values.length, tall = BAND - 14;
    const most = Math.max(...values, 0), scale = this.width / (to - from), base = top + 10 + tall;
    let d = `M${LEFT},${base}`;
    values.forEach((value, at) => {
      const start = Math.max(at * part, from), end = Math.min((at + 1) * part, to);
      if (end <= start) return;
      const y = (base - (most ? (value / most) * tall : 0)).toFixed(1);
      d += `L${(LEFT + (start - from) * scale).toFixed(1)},${y}H${(LEFT + (end - from) * scale).toFixed(1)}`;
    });
    const label = svg("text", { x: 0, y: base - tall / 2 + 4 });
    label.textContent = "moved";
    const mark = svg("text", { x: LEFT + this.width, y: top + 8, "text-anchor": "end" });
    mark.textContent = most ? `collectives, at most ${rate(most)}` : "no collectives";
    return [label, svg("rect", { class: "lane", x: LEFT, y: top + 10, width: this.width, height: tall }), svg("path", { class: "band", d: `${d}L${LEFT + this.width},${base}z` }), mark];
  }

  #axis(height, from, to) {
    const end = this.data.seconds * 1e6, marks = this.width > 500 ? 5 : 2;
    return Array.from({ length: marks + 1 }, (_, at) => {
      const moment = from + ((to - from) * at) / marks, ago = (end - moment) / 1e6;
      const mark = svg("text", { x: LEFT + (this.width * at) / marks, y: height - 4, "text-anchor": at === 0 ? "start" : at === marks ? "end" : "middle" });
      mark.textContent = ago < 1e-6 ? (this.paused ? "pause" : "now") : `${time(ago)} before`;
      return mark;
    });
  }

  #legend() {
    const all = this.data.functions.reduce((sum, each) => sum + each.seconds, 0) || 1;
    const shown = this.data.functions.slice(0, COLOURS + 4);
    const known = new Map([...find("legend").children].map((item) => [item.dataset.name, item]));
    const items = shown.map(({ name, seconds, count: times }) => {
      const item = known.get(name) ?? this.#entry(name);
      item.firstChild.setAttribute("aria-pressed", this.only === name);
      item.querySelector(".figure").textContent = ` ${share(seconds / all)}, ${count(times)} ×`;
      return item;
    });
    const wait = known.get("") ?? element("li", { "data-name": "" }, element("span", { class: "key wait" }), "waiting for other ranks");
    find("legend").replaceChildren(...items, wait);
  }

  #entry(name) {
    const button = element("button", { type: "button", class: "entry" }, element("span", { class: `key ${this.#colour(name)}` }), name, element("span", { class: "figure" }));
    button.addEventListener("click", () => {
      this.only = this.only === name ? null : name;
      this.#draw();
      button.focus();
    });
    return element("li", { "data-name": name }, button);
  }

  #operations() {
    const found = this.data.collectives;
    find("operations-table").hidden = !found.length;
    this.rows.draw(found.slice(0, 25).map((each) => [each.name, false, [
      each.name, count(each.count), bytes(each.bytes), rate(each.bytes_per_s), time(each.seconds), time(each.wait_s),
    ]]));
  }

  // --- the pointer -----------------------------------------------------------------------

  #at(event) {
    const x = event.clientX - this.place.getBoundingClientRect().left - LEFT;
    return Math.min(Math.max(x / this.width, 0), 1);
  }

  #begin(event) {
    if (!this.data || event.button) return;
    this.from = this.#at(event);
    this.place.setPointerCapture(event.pointerId);
  }

  #over(event) {
    if (!this.data) return;
    const at = this.#at(event);
    if (this.from !== undefined) {
      const [left, right] = [Math.min(at, this.from), Math.max(at, this.from)];
      this.selection.setAttribute("x", LEFT + left * this.width);
      this.selection.setAttribute("width", (right - left) * this.width);
      return;
    }
    const y = event.clientY - this.place.getBoundingClientRect().top;
    const rank = this.data.ranks[Math.floor(y / (LANE + GAP))];
    const moment = this.view[0] + at * (this.view[1] - this.view[0]);
    this.#tell(rank ? this.#what(rank, moment) : "");
  }

  async #end(event) {
    if (this.from === undefined) return;
    const at = this.#at(event), parts = [Math.min(at, this.from), Math.max(at, this.from)];
    this.from = undefined;
    if ((parts[1] - parts[0]) * this.width < 5) { this.selection.setAttribute("width", 0); return; }
    const before = this.data.end_ns;
    if (!this.paused) await this.pause();
    // What was chosen has moved by the time that passed meanwhile.
    const moved = (this.data.end_ns - before) / 1e3, [from, to] = this.view;
    this.#look(from + (to - from) * parts[0] - moved, from + (to - from) * parts[1] - moved);
  }

  #what(rank, moment) {
    const near = 3 * (this.view[1] - this.view[0]) / this.width;
    const span = rank.spans.find(([start, long]) => start - near <= moment && moment <= start + long + near);
    if (!span) return `rank ${rank.worker}: nothing`;
    const [, long, number, times, seq] = span, { name } = this.data.functions[number];
    return times > 1
      ? `rank ${rank.worker}: ${times} commands from #${seq} in ${time(long / 1e6)}, most of it ${name}`
      : `rank ${rank.worker}: ${name} (#${seq}) for ${time(long / 1e6)}`;
  }

  #tell(text) {
    if (find("timeline-what").textContent !== text) find("timeline-what").textContent = text;
  }
}
