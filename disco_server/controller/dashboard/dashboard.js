// Draws what the controller says. Texts of others are set as text only.

import { makeSure, post, save } from "./actions.js";
import { chart, slots, spark } from "./charts.js";
import { Output } from "./output.js";
import { Programs } from "./programs.js";
import { Tensors } from "./tensors.js";
import { Pages, Rows, bytes, count, element, find, many, rate, share, time } from "./text.js";
import { Timeline } from "./timeline.js";

const KEPT = 60, RETRY_MS = 2000, PART_S = 15, LOAD_MS = 10000, TYPING_MS = 300, ROWS = 25, TRACED = 16;
const LISTS = ["nodes", "sessions", "waiting", "over", "ranks"];
const NAMES = { cpu: "processor", memory: "memory", gpu: "GPU" };
const history = new Map();
const loads = new Map();
const given = new URLSearchParams(location.hash.slice(1));
let chosen = given.get("session") ?? "";
let token = given.get("token") ?? sessionStorage.getItem("disco-token") ?? "";
if (given.has("token")) {
  sessionStorage.setItem("disco-token", token);
  globalThis.history.replaceState(null, "", chosen ? `#session=${chosen}` : location.pathname);
}
let view = null, node = "", seen = "", drawnOf = "";

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

/** The controller's answer; nothing where there is none. */
async function ask(path) {
  try {
    const answer = await fetch(path, { headers: headers(), cache: "no-store" });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

const rows = {
  nodes: new Rows(find("nodes"), "no worker daemon is connected; disco-worker --controller HOST:PORT starts one"),
  sessions: new Rows(find("sessions"), "no session; disco_client.connect(...) opens one"),
  waiting: new Rows(find("waiting"), "none waits"),
  over: new Rows(find("over"), "none ended"),
  ranks: new Rows(find("ranks"), "it has no ranks now"),
};
const from = Object.fromEntries(LISTS.map((list) => [list, 0]));
const pages = Object.fromEntries(LISTS.map((list) => [list, new Pages(find(`${list}-pages`), ROWS, (first) => {
  from[list] = first;
  cluster.start();
})]));
const output = new Output(), timeline = new Timeline(ask), programs = new Programs(ask), tensors = new Tensors(ask);

// --- drawing -----------------------------------------------------------------------------

function remember(key, value) {
  const values = history.get(key) ?? Array(KEPT).fill(null);
  values.push(value ?? null);
  history.set(key, values.slice(-KEPT));
  return history.get(key);
}

function link(text, [kind, key], pressed, disabled, act) {
  return {
    key: `${text}|${pressed}|${disabled}`,
    make() {
      const made = element("button", { type: "button", class: "link", "aria-pressed": pressed, [kind]: key }, text);
      made.disabled = disabled;
      made.addEventListener("click", act);
      return made;
    },
  };
}

function line(values, describe, options) {
  return { key: `${values.join()}|${options?.more?.join() ?? ""}`, make: () => spark(values, describe, options) };
}

function drawTotals(totals) {
  const shown = {
    nodes: count(totals.nodes) + (totals.away ? `, ${totals.away} away` : ""),
    "slots used": `${totals.used} of ${totals.slots}`,
    sessions: count(totals.sessions),
    "waiting for slots": count(totals.waiting),
    "commands/s": count(totals.commands_per_s),
    processor: share(totals.cpu),
    ...(totals.gpu === null ? {} : { GPU: share(totals.gpu) }),
  };
  const key = Object.entries(shown).flat().join("|");
  if (find("totals").shown === key) return;
  find("totals").shown = key;
  find("totals").replaceChildren(...Object.entries(shown).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

/** The newest figure of a machine, and its last hour as a line. */
function figure(name, key, now, describe, most) {
  const values = loads.get(name)?.[key];
  return {
    key: `${now}|${values?.join() ?? ""}`,
    make() {
      const made = element("span", { class: "figure" }, element("span", { class: "now" }, describe(now)));
      if (values) made.append(spark(values, describe, { most, name: NAMES[key], width: 72 }));
      return made;
    },
  };
}

function network(name, load) {
  const series = loads.get(name), now = load.received_per_s + load.sent_per_s;
  return {
    key: `${now}|${series?.received_per_s.join() ?? ""}|${series?.sent_per_s.join() ?? ""}`,
    make() {
      const made = element("span", { class: "figure" }, element("span", { class: "now" }, rate(now)));
      if (series) made.append(spark(series.received_per_s, rate, { more: series.sent_per_s, name: "received, and sent", width: 72 }));
      return made;
    },
  };
}

const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;

function drawNodes({ found, from: first, rows: nodes }) {
  rows.nodes.draw(nodes.map((each) => {
    const { name, load } = each;
    const gpu = load?.gpus.length ? mean(load.gpus.map((one) => one.busy)) : null;
    return [name, name === node, [
      link(name, ["data-node", name], name === node, false, () => showNode(name === node ? "" : name)),
      each.state, { key: `${each.used}/${each.slots}`, make: () => slots(each.used, each.slots) },
      load ? figure(name, "cpu", load.cpu, share, 1) : "–",
      load ? figure(name, "memory", load.memory, share, 1) : "–",
      load ? network(name, load) : "–",
      gpu === null ? "–" : figure(name, "gpu", gpu, share, 1),
      time(each.latency_s), [...new Set(each.devices.slice(0, 64))].slice(0, 4).join(", "),
      each.version, each.carrier, time(each.age_s),
    ]];
  }));
  pages.nodes.draw(first, found, nodes.length);
  find("nodes-table").classList.toggle("no-gpus", nodes.every((each) => !each.load?.gpus.length));
  const shown = nodes.find((each) => each.name === node);
  if (shown) drawNodeFacts(shown);
}

function drawNodeFacts({ state, drained, devices, version, carrier, load }) {
  const parts = [drained ? `drained: ${drained}` : state, many(devices.length, "slot"), `release ${version}`, `its stream: ${carrier}`];
  const button = find("drain"), text = state === "draining" ? "Take back …" : "Drain …";
  button.hidden = !view.may.drain || state === "away";
  if (button.textContent !== text) button.textContent = text;
  if (load) {
    parts.push(many(load.cores, "core"), `${bytes(load.memory_bytes)} of memory`);
    load.gpus.forEach((gpu, at) => parts.push(`GPU ${at}: ${share(gpu.busy)} busy, ${share(gpu.memory)} of ${bytes(gpu.memory_bytes)}`));
  }
  const facts = parts.join(" · ");
  if (find("node-facts").textContent !== facts) find("node-facts").textContent = facts;
}

function showNode(name) {
  node = name;
  find("node").hidden = !name;
  find("node-title").textContent = `Node ${name}`;
  find("node-charts").replaceChildren();
  find("node-facts").replaceChildren();
  if (view) drawNodes(view.nodes);
  fetchNode();
}

/** How much of the last hour is shown, in how many parts: not more than the oldest node was here. */
function span(nodes, most) {
  const oldest = Math.max(...nodes.map((each) => each.age_s), 0);
  const seconds = Math.round(Math.min(Math.max(oldest, 300), 3600));
  return { seconds, query: `seconds=${seconds}&parts=${Math.min(most, Math.floor(seconds / PART_S))}` };
}

async function fetchNode() {
  const mine = node, shown = view?.nodes.rows.filter((each) => each.name === mine) ?? [];
  if (!shown.length) return;
  const { seconds, query } = span(shown, 180);
  const found = (await ask(`load?${query}&node=${encodeURIComponent(mine)}`))?.nodes[mine];
  if (!found || mine !== node) return;
  const charts = [
    chart("processor", found.cpu, share, { most: 1, seconds }), chart("memory", found.memory, share, { most: 1, seconds }),
    chart("received, and sent (dashed)", found.received_per_s, rate, { more: found.sent_per_s, seconds }),
  ];
  if (found.gpu) charts.push(chart("GPUs, and their memory (dashed)", found.gpu, share, { most: 1, more: found.gpu_memory, seconds }));
  find("node-charts").replaceChildren(...charts);
}

/** The last hour of the nodes that are shown, and of the one that is open. */
async function fetchLoads() {
  const names = view?.nodes.rows.map((each) => each.name) ?? [];
  if (!names.length || document.hidden) return;
  const query = names.map((name) => `node=${encodeURIComponent(name)}`).join("&");
  const found = await ask(`load?${span(view.nodes.rows, 60).query}&${query}`);
  if (!found) return;
  loads.clear();
  for (const [name, series] of Object.entries(found.nodes)) loads.set(name, series);
  drawNodes(view.nodes);
  await fetchNode();
}

/** Whether its program may be asked to interrupt it. */
const takesCommands = (session) => session.state === "running" || session.state === "idle";

function drawSessions({ found, from: first, rows: sessions }) {
  rows.sessions.draw(sessions.map((each) => [each.session, each.session === chosen, [
    link(each.name, ["data-session", each.session], each.session === chosen, !each.yours, () => choose(each.session === chosen ? "" : each.session)),
    each.owner, each.state + (takesCommands(each) && !each.attached ? ", client away" : ""),
    count(each.num_workers), each.yours ? count(each.commands_per_s) : "–",
    each.yours ? line(remember(`s${each.session}`, each.commands_per_s), (value) => `${count(value)} commands/s`) : "–",
    each.yours ? count(each.queued) : "–", each.yours ? bytes(each.memory_bytes) : "–",
    each.carrier || "–", time(each.age_s),
  ]]));
  pages.sessions.draw(first, found, sessions.length);
}

function drawWaiting({ found, from: first, rows: sessions }) {
  find("queue").hidden = !found;
  rows.waiting.draw(sessions.map((each, at) => [each.session, false, [
    count(first + at + 1), each.name, each.owner, count(each.num_workers), time(each.age_s), each.waits_for || "–",
  ]]));
  pages.waiting.draw(first, found, sessions.length);
}

function drawOver({ found, from: first, rows: sessions }) {
  find("ended").hidden = !found && !find("over-find").value;
  rows.over.draw(sessions.map((each) => [each.session, each.session === chosen, [
    link(each.name, ["data-session", each.session], each.session === chosen, !each.yours, () => choose(each.session === chosen ? "" : each.session)),
    each.owner, { key: each.state + each.end_reason, make: () => element("span", { class: each.state === "failed" ? "bad" : "" }, each.end_reason.replace("_", " ") || each.state) },
    count(each.num_workers), time(each.ended_s), time(each.age_s), each.end_message || "–",
  ]]));
  pages.over.draw(first, found, sessions.length);
}

function doing(rank) {
  if (rank.state !== "running") return [rank.state === "unknown" ? "–" : `the process is ${rank.state}`, null];
  if (rank.collective) {
    const waits = rank.collective.met ? "" : "waits in ";
    return [waits + rank.collective.what, rank.collective.seconds];
  }
  return rank.current ? [`${rank.current.what} (#${rank.current.seq})`, rank.current.seconds] : ["idle", null];
}

function drawSession(session, may) {
  find("session").hidden = !session;
  if (!session) return;
  const title = `Session ${session.name}`;
  if (find("session-title").textContent !== title) find("session-title").textContent = title;
  const facts = `${session.owner} · ${many(session.num_workers, "worker")} · ${session.ended_s === null ? session.state : `${session.state} ${time(session.ended_s)} ago: ${session.end_message}`}`;
  if (find("session-facts").textContent !== facts) find("session-facts").textContent = facts;
  find("interrupt").hidden = !may.interrupt || !takesCommands(session);
  find("stop").hidden = !may.stop || session.ended_s !== null || session.state === "ending";
  const { found, from: first, rows: ranks } = session.ranks;
  rows.ranks.draw(ranks.map((rank) => {
    const [what, since] = doing(rank);
    const memory = remember(`r${session.session}/${rank.worker}`, rank.memory_bytes);
    return [rank.worker, false, [
      count(rank.worker), rank.node, rank.device, `${rank.pid}`, what, time(since),
      count(rank.commands_per_s), rate(rank.collective_bytes_per_s), bytes(rank.memory_bytes),
      line(memory, bytes),
      { key: "stack", make() {
        const made = element("button", { type: "button", "aria-label": `stack of rank ${rank.worker}` }, "Stack");
        made.addEventListener("click", () => showStack(rank.worker));
        return made;
      } },
    ]];
  }));
  pages.ranks.draw(first, found, ranks.length);
}

async function showStack(worker) {
  const panel = find("stack");
  panel.dataset.worker = worker;
  panel.hidden = false;
  find("stack-title").textContent = `Stack of rank ${worker}`;
  find("stack-text").textContent = "…";
  const mine = chosen, found = await ask(`stack?session=${mine}&first=${worker}`);
  if (mine !== chosen || panel.dataset.worker !== `${worker}`) return;
  const rank = found?.ranks.find((each) => each.worker === worker);
  find("stack-title").textContent = `Stack of rank ${worker}${rank?.node ? ` on ${rank.node}, process ${rank.pid}` : ""}, ${new Date().toTimeString().slice(0, 8)}`;
  find("stack-text").textContent = rank?.stack || `(${rank?.note || "it has no stack"})`;
  find("stack-title").focus();
}

function forget() {
  const keys = new Set(view.sessions.rows.map((each) => `s${each.session}`));
  for (const rank of view.session?.ranks.rows ?? []) keys.add(`r${chosen}/${rank.worker}`);
  for (const key of history.keys()) if (!keys.has(key)) history.delete(key);
}

const draw = {
  overview(found) {
    const first = !view;
    view = found;
    find("login").hidden = true;
    find("cluster").hidden = false;
    const said = `live, controller ${view.version}`;
    if (seen !== said) find("state").textContent = seen = said; // said once, not each second
    find("state").className = "";
    for (const list of ["nodes", "sessions", "over"]) from[list] = view[list].from;
    drawTotals(view.totals);
    drawNodes(view.nodes);
    drawSessions(view.sessions);
    drawWaiting(view.waiting);
    drawOver(view.over);
    drawSession(view.session?.yours ? view.session : null, view.may);
    forget();
    const names = view.nodes.rows.map((each) => each.name).join("\n");
    if (first || names !== drawnOf) { drawnOf = names; fetchLoads(); }
  },
  verdict(text) {
    const place = find("verdict");
    place.hidden = !text;
    if (place.textContent !== text) place.textContent = text;
  },
  logs: (part) => output.add(part),
  refused: (text) => output.refuse(text),
};

// --- the streams -------------------------------------------------------------------------

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

/** A stream of events that begins again by itself. */
class Stream {
  constructor(path, lost = () => {}, begin = () => {}) {
    Object.assign(this, { path, lost, begin });
  }

  stop() {
    this.abort?.abort();
  }

  async start() {
    this.stop();
    const mine = this.abort = new AbortController();
    for (;;) {
      try {
        this.begin();
        if (!await this.#follow(mine.signal)) return;
      } catch (error) {
        if (mine.signal.aborted) return;
        this.lost(error);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      if (mine.signal.aborted) return;
    }
  }

  async #follow(signal) {
    const response = await fetch(this.path(), { headers: headers(), signal, cache: "no-store" });
    if (response.status === 401 || response.status === 403) {
      askForToken(token ? await response.text() : "");
      return false;
    }
    if (!response.ok) throw new Error(await response.text());
    for await (const [name, data] of events(response)) draw[name]?.(data);
    throw new Error("the controller ended the stream");
  }
}

const cluster = new Stream(() => {
  const wanted = new URLSearchParams({ session: chosen });
  for (const list of LISTS) if (from[list]) wanted.set(`${list}_from`, from[list]);
  for (const list of ["nodes", "sessions", "over"]) {
    const text = find(`${list}-find`).value;
    if (text) wanted.set(`${list}_find`, text);
  }
  return `events?${wanted}`;
}, (error) => {
  seen = "";
  find("state").textContent = `not connected: ${error.message}; trying again`;
  find("state").className = "lost";
});
const session = new Stream(() => `session?session=${encodeURIComponent(chosen)}`, undefined, () => output.clear());

function choose(id) {
  chosen = id;
  from.ranks = 0;
  for (const key of history.keys()) if (key.startsWith("r")) history.delete(key);
  location.hash = id ? `session=${id}` : "";
  find("stack").hidden = true;
  find("said").textContent = "";
  draw.verdict("");
  output.clear();
  for (const part of [timeline, programs, tensors]) part.show(id);
  cluster.start();
  if (id) session.start();
  else session.stop();
}

function askForToken(problem) {
  cluster.stop();
  session.stop();
  find("cluster").hidden = true;
  find("login").hidden = false;
  find("refused").textContent = problem;
  find("state").textContent = "not signed in";
  seen = "";
  find("token").focus();
}

function begin() {
  cluster.start();
  if (chosen) session.start();
  for (const part of [timeline, programs, tensors]) part.show(chosen);
}

find("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = find("token").value.trim();
  sessionStorage.setItem("disco-token", token);
  find("token").value = "";
  begin();
});

for (const list of ["nodes", "sessions", "over"]) {
  let typing;
  find(`${list}-find`).addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { from[list] = 0; cluster.start(); }, TYPING_MS);
  });
}

// --- actions -----------------------------------------------------------------------------

find("interrupt").addEventListener("click", () => {
  const { session: id, name } = view.session;
  makeSure({
    title: `Interrupt session ${name}?`,
    text: "What its workers execute ends, and what was issued and has not begun is left out. The session goes on.",
    yes: "Interrupt it", name,
    async act() {
      const problem = await post("interrupt", { session: id, confirm: name }, headers());
      if (!problem) find("said").textContent = `session ${name} was interrupted`;
      return problem;
    },
  });
});
find("stop").addEventListener("click", () => {
  const { session: id, name, num_workers: workers } = view.session;
  makeSure({
    title: `Stop session ${name}?`,
    text: `It ends at once with its ${many(workers, "worker")}, and so does its program's session. What is in their memory is lost.`,
    yes: "Stop it", name,
    act: () => post("stop", { session: id, confirm: name }, headers()),
  });
});
find("drain").addEventListener("click", () => {
  const name = node, undo = view.nodes.rows.find((each) => each.name === name)?.state === "draining";
  makeSure({
    title: undo ? `Let node ${name} take sessions again?` : `Drain node ${name}?`,
    text: undo ? "New sessions may get its slots from now on." : "It takes no new sessions from now on. Those that run there go on.",
    yes: undo ? "Take it back" : "Drain it", name,
    act: () => post("drain", { node: name, confirm: name, undo: undo ? "yes" : "" }, headers()),
  });
});
find("node-close").addEventListener("click", () => showNode(""));
find("close-session").addEventListener("click", () => choose(""));
find("stack-close").addEventListener("click", () => { find("stack").hidden = true; });
find("stack-again").addEventListener("click", () => showStack(Number(find("stack").dataset.worker)));

async function download(kind, path, ending) {
  const { name } = view.session;
  const problem = await save(path, headers(), `${name}${ending}`);
  find("said").textContent = problem ? `the ${kind} cannot be had: ${problem}` : `the ${kind} was saved as ${name}${ending}`;
}

find("download-trace").addEventListener("click", () => download("trace", `trace?session=${chosen}&first=${timeline.first}&count=${TRACED}`, ".trace.json"));
find("download-logs").addEventListener("click", () => download("log", `logs?session=${chosen}`, ".log"));

setInterval(fetchLoads, LOAD_MS);
document.addEventListener("visibilitychange", fetchLoads);
begin();
