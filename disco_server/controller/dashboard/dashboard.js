// Draws what the controller's stream of events says. Texts of others are set as text only.

import { slots, spark, timeline } from "./charts.js";

const KEPT = 60, LINES = 2000, RETRY_MS = 2000;
const find = (id) => document.getElementById(id);
const history = new Map();
let chosen = new URLSearchParams(location.hash.slice(1)).get("session") ?? "";
let token = sessionStorage.getItem("disco-token") ?? "";
let stream = null;
let seen = "";

// --- how figures are written -------------------------------------------------------------

function count(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (value >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  return value >= 10 || Number.isInteger(value) ? `${Math.round(value)}` : value.toPrecision(2);
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value >= 10 || at === 0 ? Math.round(value) : value.toPrecision(2)} ${units[at]}`;
}

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toPrecision(2) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

// --- drawing -----------------------------------------------------------------------------

function cell(content, kind = "") {
  const made = document.createElement("td");
  if (kind) made.className = kind;
  made.append(content);
  return made;
}

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function nothing(columns, text) {
  const made = cell(text, "none");
  made.colSpan = columns;
  return row(made);
}

function remember(key, value) {
  const values = history.get(key) ?? [];
  values.push(value ?? 0);
  history.set(key, values.slice(-KEPT));
  return history.get(key);
}

function forget(keys) {
  for (const key of history.keys()) if (!keys.has(key)) history.delete(key);
}

function drawTotals(view) {
  const used = view.nodes.reduce((sum, node) => sum + node.used, 0);
  const all = view.nodes.reduce((sum, node) => sum + node.slots, 0);
  const rates = view.sessions.map((session) => session.commands_per_s ?? 0);
  const totals = {
    nodes: count(view.nodes.length),
    "slots used": `${used} of ${all}`,
    sessions: count(view.sessions.length),
    "commands/s": count(rates.reduce((sum, rate) => sum + rate, 0)),
  };
  find("totals").replaceChildren(...Object.entries(totals).map(([name, value]) => {
    const made = document.createElement("div");
    const term = document.createElement("dt"), figure = document.createElement("dd");
    term.append(name);
    figure.append(value);
    made.append(term, figure);
    return made;
  }));
}

function drawNodes(nodes) {
  const rows = nodes.map((node) => row(
    cell(node.name), cell(node.state), cell(slots(node.used, node.slots)),
    cell([...new Set(node.devices)].join(", ")), cell(time(node.latency_s), "number"),
    cell(node.version), cell(node.carrier), cell(time(node.age_s), "number"),
  ));
  find("nodes").replaceChildren(...(rows.length ? rows : [nothing(8, "no worker daemon is connected; disco-worker --controller HOST:PORT starts one")]));
}

function drawSessions(sessions) {
  const focused = document.activeElement?.dataset?.session;
  const rows = sessions.map((session) => {
    const open = document.createElement("button");
    open.className = "link";
    open.dataset.session = session.session;
    open.append(session.name);
    open.disabled = !session.yours;
    open.setAttribute("aria-pressed", session.session === chosen);
    open.addEventListener("click", () => choose(session.session === chosen ? "" : session.session));
    const made = row(
      cell(open), cell(session.owner),
      cell(session.state + (session.state === "running" && !session.attached ? ", client away" : "")),
      cell(count(session.num_workers), "number"),
      cell(session.yours ? count(session.commands_per_s) : "–", "number"),
      cell(session.yours ? spark(remember(`s${session.session}`, session.commands_per_s), (rate) => `${count(rate)} commands/s`) : "–"),
      cell(session.yours ? count(session.queued) : "–", "number"),
      cell(session.yours ? bytes(session.memory_bytes) : "–", "number"),
      cell(session.carrier || "–"),
      cell(time(session.age_s), "number"),
    );
    if (session.session === chosen) made.className = "chosen";
    return made;
  });
  find("sessions").replaceChildren(...(rows.length ? rows : [nothing(10, "no session; disco_client.connect(...) opens one")]));
  if (focused) document.querySelector(`button[data-session="${CSS.escape(focused)}"]`)?.focus();
}

function doing(rank) {
  if (rank.state !== "running") return [`the process is ${rank.state}`, null];
  if (rank.collective) {
    const waits = rank.collective.met ? "" : "waits in ";
    return [waits + rank.collective.what, rank.collective.seconds];
  }
  return rank.current ? [`${rank.current.what} (#${rank.current.seq})`, rank.current.seconds] : ["idle", null];
}

function drawRanks(session) {
  find("session").hidden = !session;
  if (!session) return;
  find("session-title").textContent = `Session ${session.name}`;
  const rows = session.ranks.map((rank) => {
    const [what, since] = doing(rank);
    const memory = remember(`r${session.session}/${rank.worker}`, rank.memory_bytes);
    return row(
      cell(count(rank.worker), "number"), cell(rank.node), cell(rank.device),
      cell(`${rank.pid}`, "number"), cell(what, "now"), cell(time(since), "number"),
      cell(count(rank.commands_per_s), "number"),
      cell(rank.collective_bytes_per_s === null ? "–" : `${bytes(rank.collective_bytes_per_s)}/s`, "number"),
      cell(bytes(rank.memory_bytes), "number"), cell(spark(memory, bytes)),
    );
  });
  find("ranks").replaceChildren(...(rows.length ? rows : [nothing(10, "it has no ranks yet")]));
  const choice = find("rank");
  if (choice.options.length !== session.num_workers + 1) {
    const options = session.ranks.map((rank) => new Option(`${rank.worker}`, `${rank.worker}`));
    choice.replaceChildren(new Option("all", ""), ...options);
  }
}

const draw = {
  overview(view) {
    find("login").hidden = true;
    find("cluster").hidden = false;
    const state = find("state");
    const said = `live, controller ${view.version}`;
    if (seen !== said) state.textContent = seen = said; // said once, not each second
    state.className = "";
    drawTotals(view);
    drawNodes(view.nodes);
    drawSessions(view.sessions);
    const session = view.sessions.find((each) => each.session === chosen && each.yours);
    drawRanks(session);
    const keys = view.sessions.map((each) => `s${each.session}`);
    const ranks = (session?.ranks ?? []).map((rank) => `r${chosen}/${rank.worker}`);
    forget(new Set([...keys, ...ranks]));
  },
  timeline(data) {
    find("timeline").replaceChildren(timeline(data.ranks, data.seconds, time));
  },
  verdict(text) {
    const place = find("verdict");
    place.hidden = !text;
    if (place.textContent !== text) place.textContent = text;
  },
  logs: drawLogs,
  refused(text) {
    addLine("lost", text);
  },
};

// --- output ------------------------------------------------------------------------------

function addLine(kind, text, from = "", worker = "") {
  const line = document.createElement("div");
  line.className = kind;
  line.dataset.worker = worker;
  const only = find("rank").value;
  line.hidden = only !== "" && worker !== "" && `${worker}` !== only;
  if (from) {
    const place = document.createElement("span");
    place.className = "from";
    place.append(from);
    line.append(place);
  }
  line.append(text);
  find("logs").append(line);
}

function drawLogs(part) {
  const pane = find("logs");
  if (part.lost) addLine("lost", `… ${part.lost} lines are not kept any more`);
  for (const each of part.printed) {
    for (const text of each.lines) {
      addLine(each.stderr ? "stderr" : "stdout", text, `${each.worker} ${each.stderr ? "err" : "out"}  `, each.worker);
    }
  }
  while (pane.childElementCount > LINES) pane.firstChild.remove();
  if (find("follow").checked) pane.scrollTop = pane.scrollHeight;
}

find("rank").addEventListener("change", () => {
  const only = find("rank").value;
  for (const line of find("logs").children) {
    line.hidden = only !== "" && line.dataset.worker !== "" && line.dataset.worker !== only;
  }
});

// --- the stream --------------------------------------------------------------------------

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const event of whole) {
      const [name, data] = event.split("\n", 2);
      yield [name.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}

async function follow(session, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const query = session ? `?session=${encodeURIComponent(session)}` : "";
  const response = await fetch(`events${query}`, { headers, signal, cache: "no-store" });
  if (response.status === 401 || response.status === 403) {
    askForToken(token ? await response.text() : "");
    return false;
  }
  if (!response.ok) throw new Error(await response.text());
  for await (const [name, data] of events(response)) draw[name]?.(data);
  throw new Error("the controller ended the stream");
}

async function watch() {
  stream?.abort();
  const mine = stream = new AbortController();
  for (;;) {
    try {
      if (!await follow(chosen, mine.signal)) return;
    } catch (error) {
      if (mine.signal.aborted) return;
      seen = "";
      find("state").textContent = `not connected: ${error.message}; trying again`;
      find("state").className = "lost";
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    if (mine.signal.aborted) return;
    find("logs").replaceChildren(); // the next stream begins with its last lines again
  }
}

function choose(session) {
  chosen = session;
  history.forEach((_, key) => { if (key.startsWith("r")) history.delete(key); });
  location.hash = session ? `session=${session}` : "";
  find("logs").replaceChildren();
  find("timeline").replaceChildren();
  find("rank").replaceChildren(new Option("all", ""));
  draw.verdict("");
  watch();
}

function askForToken(problem) {
  find("cluster").hidden = true;
  find("login").hidden = false;
  find("refused").textContent = problem;
  find("state").textContent = "not signed in";
  seen = "";
  find("token").focus();
}

find("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = find("token").value.trim();
  sessionStorage.setItem("disco-token", token);
  find("token").value = "";
  watch();
});

watch();
