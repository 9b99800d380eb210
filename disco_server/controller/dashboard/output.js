// What the ranks print: kept here, and shown as far as it fits what is looked for.

import { element, find, many } from "./text.js";

const KEPT = 5000, SHOWN = 500;
const LEVEL = /\b(DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b/, FAILED = /^\s*(Traceback \(|[\w.]*(Error|Exception)\b)/;

function levelOf(text) {
  const found = LEVEL.exec(text.slice(0, 120))?.[1];
  if (found === "ERROR" || found === "CRITICAL" || found === "FATAL") return "error";
  if (found === "WARN" || found === "WARNING") return "warning";
  return !found && FAILED.test(text) ? "error" : "";
}

export class Output {
  constructor() {
    this.pane = find("logs");
    this.lines = [];
    for (const id of ["logs-find", "logs-level", "rank", "logs-since"]) {
      find(id).addEventListener("input", () => this.draw());
    }
  }

  clear() {
    this.lines = [];
    this.draw();
  }

  add(part) {
    const before = this.lines.length;
    if (part.lost) this.lines.push({ text: `… ${many(part.lost, "line")} not kept any more` });
    for (const { time, worker, stderr, lines } of part.printed) {
      for (const text of lines) this.lines.push({ time, worker, stderr, text, level: levelOf(text) });
    }
    const fresh = this.lines.slice(before).filter(this.#wanted());
    this.lines = this.lines.slice(-KEPT); // older ones may still be shown, until others come
    this.pane.append(...fresh.slice(-SHOWN).map((line) => this.#row(line)));
    while (this.pane.childElementCount > SHOWN) this.pane.firstChild.remove();
    this.#finish();
  }

  refuse(text) {
    this.lines.push({ text });
    this.draw();
  }

  draw() {
    const found = this.lines.filter(this.#wanted());
    this.pane.replaceChildren(...found.slice(-SHOWN).map((line) => this.#row(line)));
    this.#finish(found.length);
  }

  #wanted() {
    const text = find("logs-find").value.toLowerCase(), level = find("logs-level").value;
    const rank = find("rank").value, since = Number(find("logs-since").value);
    const first = since ? Date.now() / 1e3 - since : 0;
    const levels = { warning: ["warning", "error"], error: ["error"] }[level];
    return (line) => line.worker === undefined || (
      (!text || line.text.toLowerCase().includes(text)) && (rank === "" || `${line.worker}` === rank) &&
      line.time >= first && (!levels || levels.includes(line.level)) && (level !== "stderr" || line.stderr));
  }

  #row(line) {
    if (line.worker === undefined) return element("div", { class: "lost" }, line.text);
    const moment = new Date(line.time * 1e3).toTimeString().slice(0, 8);
    const from = element("span", { class: "from" }, `${moment} ${line.worker} ${line.stderr ? "err" : "out"}  `);
    return element("div", { class: `${line.stderr ? "stderr" : "stdout"} ${line.level}`, "data-worker": line.worker }, from, line.text);
  }

  #finish(found = this.lines.filter(this.#wanted()).length) {
    const text = found > SHOWN ? `the last ${SHOWN} of ${found} lines` : many(found, "line");
    if (find("logs-count").textContent !== text) find("logs-count").textContent = text;
    if (find("follow").checked) this.pane.scrollTop = this.pane.scrollHeight;
  }
}
