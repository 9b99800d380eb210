// A part of a session's page about what a rank holds: it asks while it is open, and only then.

import { find } from "./text.js";

const EVERY_MS = 2000;

export class Held {
  /**
   * `name` begins the ids of its elements; `path` says what to ask for, and `draw` gets the
   * answer, or null where the session has changed.
   */
  constructor(ask, name, path, draw) {
    Object.assign(this, { ask, name, path, draw, session: "" });
    this.place = find(name);
    this.rank = find(`${name}-rank`);
    this.place.addEventListener("toggle", () => this.follow());
    this.rank.addEventListener("input", () => this.follow());
  }

  /** Shows a session; none where its id is empty. */
  show(session) {
    this.session = session;
    this.rank.value = 0;
    this.#say("");
    this.draw(null);
    this.follow();
  }

  async follow() {
    clearTimeout(this.timer);
    const mine = this.under = {};
    if (this.session && this.place.open && !document.hidden) await this.#fetch(mine);
    if (mine === this.under && this.session && this.place.open) this.timer = setTimeout(() => this.follow(), EVERY_MS);
  }

  async #fetch(mine) {
    const first = Math.max(Math.trunc(Number(this.rank.value)) || 0, 0);
    const found = await this.ask(`${this.path()}&session=${this.session}&first=${first}`);
    if (mine !== this.under) return; // something else is wanted by now
    if (!found) { this.#say("the controller has no answer: is there such a rank?"); return; }
    this.rank.max = found.num_workers - 1;
    this.#say(found.note);
    if (!found.note) this.draw(found);
  }

  #say(text) {
    const place = find(`${this.name}-note`);
    if (place.textContent !== text) place.textContent = text;
  }
}
