// The published tensors of a session, and which worker holds which part of one of them.

import { Held } from "./held.js";
import { Pages, Rows, bytes, count, element, find } from "./text.js";

const ROWS = 25;
const extents = (shape) => (shape ? `(${shape.join(", ")})` : "–");

export class Tensors {
  constructor(ask) {
    this.rows = new Rows(find("tensors-rows"), "none is published on this rank; session.publish(name, tensor) does it");
    this.parts = new Rows(find("layout-rows"), "");
    this.held = new Held(ask, "tensors", () => `tensors?from=${this.from}&name=${encodeURIComponent(this.name)}&place=${this.place}`, (found) => this.#draw(found));
    this.pages = new Pages(find("tensors-pages"), ROWS, (from) => { this.from = from; this.held.follow(); });
    this.turns = new Pages(find("layout-pages"), ROWS, (place) => { this.place = place; this.held.follow(); });
    find("layout-close").addEventListener("click", () => this.#choose(""));
  }

  show(session) {
    this.held.show(session);
  }

  #choose(name) {
    this.name = this.name === name ? "" : name;
    this.place = 0;
    find("layout").hidden = true;
    if (this.list) this.#table(this.list);
    this.held.follow();
  }

  #draw(found) {
    if (!found) {
      Object.assign(this, { from: 0, name: "", place: 0, list: null });
      find("layout").hidden = true;
      this.rows.draw([]);
      this.pages.draw(0, 0, 0);
      return;
    }
    this.list = found.tensors;
    this.#table(found.tensors);
    find("layout").hidden = !found.layout;
    if (found.layout) this.#layout(found.layout);
  }

  #table({ found, from, rows }) {
    this.rows.draw(rows.map((each) => [each.name, each.name === this.name, [
      each.distributed ? { key: `${each.name}|${each.name === this.name}`, make: () => this.#button(each.name) } : each.name,
      each.dtype || "–", extents(each.shape), each.distributed ? each.placement || "R" : "on each rank its own",
      each.distributed ? count(each.workers) : "–", extents(each.here), bytes(each.bytes),
    ]]));
    this.pages.draw(from, found, rows.length);
  }

  #button(name) {
    const made = element("button", { type: "button", class: "link", "aria-pressed": name === this.name }, name);
    made.addEventListener("click", () => this.#choose(name));
    return made;
  }

  #layout({ name, title, svg, workers }) {
    find("layout-title").textContent = `Layout of ${name}`;
    find("layout-facts").textContent = title;
    const place = find("layout-picture");
    if (place.shown !== svg) {
      place.shown = svg;
      // As an image nothing in it can be run.
      place.replaceChildren(...(svg ? [element("img", { src: `data:image/svg+xml,${encodeURIComponent(svg)}`, alt: `which worker holds which part of ${title}` })] : []));
    }
    this.parts.draw((workers?.rows ?? []).map((each) => [each.worker, false, [count(each.worker), each.part, extents(each.shape), bytes(each.bytes)]]));
    this.turns.draw(workers?.from ?? 0, workers?.found ?? 0, workers?.rows.length ?? 0);
  }
}
