// How figures are written, and how tables and pages of them are drawn. All is set as text.

export const find = (id) => document.getElementById(id);

export function count(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (value >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  return value >= 10 || Number.isInteger(value) ? `${Math.round(value)}` : value.toPrecision(2);
}

export const many = (value, what) => `${value} ${what}${value === 1 ? "" : "s"}`;

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value >= 10 || at === 0 ? Math.round(value) : value.toPrecision(2)} ${units[at]}`;
}

export const rate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);
export const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`);

export function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toPrecision(2) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/**
 * The rows of a table. Rows and cells stay the same elements as long as they say the same, so
 * that neither the focus nor a click that has begun gets lost when the figures change.
 * A value is a text, or { key, make }: an element that is made anew when its key changes.
 */
export class Rows {
  constructor(body, empty) {
    this.body = body;
    this.empty = empty;
    this.rows = new Map();
    this.heads = [...body.closest("table").tHead.rows[0].cells];
  }

  draw(items) {
    const known = this.rows;
    this.rows = new Map();
    for (const [key, chosen, values] of items) {
      const row = known.get(key) ?? this.#row();
      row.classList.toggle("chosen", chosen);
      values.forEach((value, at) => this.#set(row.cells[at], value));
      this.rows.set(key, row);
    }
    const shown = [...this.rows.values()];
    if (!shown.length) shown.push(this.#nothing());
    if (shown.length !== this.body.rows.length || shown.some((row, at) => row !== this.body.rows[at])) {
      const focused = document.activeElement;
      this.body.replaceChildren(...shown);
      if (this.body.contains(focused)) focused.focus();
    }
  }

  #row() {
    // Named by roles too, since a narrow window shows rows as cards and not as a table.
    const row = element("tr", { role: "row" });
    for (const head of this.heads) {
      row.append(element("td", { class: head.className, "data-head": head.textContent, role: "cell" }));
    }
    return row;
  }

  #nothing() {
    if (this.none) return this.none;
    const cell = element("td", { class: "none", colspan: this.heads.length }, this.empty);
    this.none = element("tr", {}, cell);
    return this.none;
  }

  #set(cell, value) {
    const key = typeof value === "object" ? value.key : value;
    if (cell.shown === key) return;
    cell.shown = key;
    cell.replaceChildren(typeof value === "object" ? value.make() : value);
  }
}

/** Buttons to the pages of a list; hidden where one page has all of it. */
export class Pages {
  constructor(place, rows, go) {
    this.place = place;
    this.rows = rows;
    this.before = element("button", { type: "button" }, "Back");
    this.after = element("button", { type: "button" }, "Next");
    this.text = element("span");
    this.before.addEventListener("click", () => go(Math.max(this.from - rows, 0)));
    this.after.addEventListener("click", () => go(this.from + rows));
    place.append(this.before, this.text, this.after);
  }

  draw(from, found, shown) {
    this.from = from;
    this.place.hidden = found <= this.rows;
    const text = `${from + 1} to ${from + shown} of ${found}`;
    if (this.text.textContent !== text) this.text.textContent = text;
    this.before.disabled = from <= 0;
    this.after.disabled = from + shown >= found;
  }
}
