"use strict";

// The chat of streamco's proxy. Everything that comes from elsewhere is shown by textContent, so it can't become markup or code.

const ORIGINS = {
  device: "made by the device",
  server: "made by the server",
  accepted: "drafted by the device, confirmed by the server",
  corrected: "the server's token in place of a rejected draft",
  bonus: "the server's token after a draft accepted whole",
};
const OUTCOMES = {
  "won": "made the answer",
  "took over": "took over and went on",
  "read ahead": "read ahead, for a hand-over",
  "lost": "lost the race",
  "failed": "failed",
  "not started": "was not asked",
  "drafted": "drafted",
  "verified": "verified the drafts",
};
// The parts of a speculated answer: field of its figures, tint, words
const MADE = [
  ["accepted", "accepted", "accepted"],
  ["corrected", "corrected", "corrected"],
  ["bonus", "bonus", "bonus"],
  ["device", "device", "by the device alone"],
  ["remote", "server", "by the server alone"],
];
const KEY = "streamco-key"; // in sessionStorage
const NEAR_END = 120; // pixels from the page's end, within which it follows the text

const $ = (id) => document.getElementById(id);
const conversation = []; // sent whole with each prompt
let running = null; // the AbortController of the answer under way

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

// Figures

const formatSeconds = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(2)} s`);

function formatUsd(value) {
  if (value === null || value === undefined) return "not known";
  if (value === 0) return "$0";
  return value < 1e-6 ? "under $0.000001" : `$${value.toFixed(value < 0.01 ? 6 : 4)}`;
}

const formatShare = (share) => `${Math.round(share * 100)} %`;
const formatTokens = (count) => `${count} token${count === 1 ? "" : "s"}`;

function budgetText({ dispatch, speculation }) {
  if (speculation) return `budget: ${formatShare(speculation.budget)} of the drafts may be verified`;
  if (dispatch.constraint === null || dispatch.budget >= 1) return "no budget limits the sides";
  const left = Math.max(0, dispatch.budget - (dispatch.budget_share ?? 0));
  return `budget left ${formatShare(left)} of all prompt tokens`;
}

function gradeText({ verdict, score }, { endpoints, winner }) {
  const isServers = endpoints.some((side) => side.name === winner && side.kind !== "device");
  return `${isServers ? "the device was " : ""}${verdict}${score === null ? "" : `, ${score.toFixed(2)}`}`;
}

function figuresOf(report) {
  const parts = [];
  if (report.grade) parts.push(gradeText(report.grade, report));
  if (report.ttft !== null) parts.push(`first token ${formatSeconds(report.ttft)}`);
  if (report.tokens_per_second !== null) parts.push(`${report.tokens_per_second.toFixed(1)} tokens/s`);
  parts.push(`cost ${formatUsd(report.cost_usd)}`, budgetText(report));
  return parts;
}

// One answer

class AnswerView {
  constructor() {
    this.text = "";
    this.report = null; // the newest one
    this.hasFigures = false;
    this.ratings = ""; // path that a rating goes to; "": none is taken
    this.run = null; // the span that text of the same origin goes into
    this.made = null; // the side that made the last text of a race
    this.began = performance.now();
    this.root = make("article", "answer");
    this.body = make("div", "text");
    this.body.dir = "auto";
    this.body.setAttribute("aria-busy", "true");
    this.live = make("p", "live");
    this.live.setAttribute("aria-live", "off");
    this.race = make("figure", "race");
    this.race.setAttribute("aria-live", "off");
    this.race.hidden = true;
    this.root.append(make("h2", "", "Answer"), this.body, this.live, this.race);
    this.timer = setInterval(() => this.showWait(), 100);
    this.showWait();
  }

  showWait() {
    this.live.textContent = `waiting for the first token, ${formatSeconds((performance.now() - this.began) / 1000)}`;
  }

  take(chunk) {
    const { endpoint, origin, report } = chunk.streamco ?? {};
    if (report) this.report = report;
    for (const { delta } of chunk.choices) {
      const thinking = delta?.reasoning_content ?? delta?.reasoning;
      if (thinking) this.add(thinking, "thinking", "the model's thinking");
      if (delta?.content) this.addAnswer(delta.content, endpoint, origin);
    }
    if (this.text && (report || !this.hasFigures)) this.showFigures();
  }

  addAnswer(text, endpoint, origin) {
    this.text += text;
    const known = Object.hasOwn(ORIGINS, origin) ? origin : "";
    if (this.report?.mode !== "speculate") {
      if (this.made !== null && this.made !== endpoint) this.markChange(this.made, endpoint);
      this.made = endpoint;
    }
    this.add(text, known && `tint ${known}`, known ? `${ORIGINS[known]} (${endpoint})` : "");
  }

  add(text, className, title) {
    clearInterval(this.timer);
    if (this.run === null || this.run.className !== className || this.run.title !== title) {
      this.run = make("span", className);
      this.run.title = title;
      this.body.append(this.run);
    }
    this.run.append(text);
  }

  markChange(source, target) {
    const mark = make("span", "handover", `${source} → ${target}`);
    mark.title = "hand-over: another side goes on from here";
    this.body.append(mark);
    this.run = null;
  }

  showFigures() {
    if (!this.report) return;
    this.hasFigures = true;
    this.live.textContent = figuresOf(this.report).join(" · ");
    drawRace(this.race, this.report);
  }

  end(how, message = "") {
    clearInterval(this.timer);
    this.body.setAttribute("aria-busy", "false");
    const figures = this.report ? figuresOf(this.report) : [];
    this.live.textContent = [how, ...figures].join(" · ");
    if (message) this.live.after(make("p", "failure", message));
    if (!this.report) return;
    if (how === "done" && this.ratings && isDevicesOwn(this.report)) this.live.after(makeThumbs(this.ratings));
    drawRace(this.race, this.report, how === "stopped" ? (performance.now() - this.began) / 1000 : null);
    const details = make("details");
    const whole = make("pre", "", JSON.stringify(this.report, null, 1));
    whole.tabIndex = 0; // it scrolls, so the keyboard must reach it
    details.append(make("summary", "", "Whole report"), whole);
    this.race.append(details);
  }
}

// Only an answer that the device wrote alone teaches something about the device
function isDevicesOwn({ endpoints, winner, hand_overs: changes, mode }) {
  return mode === "race" && changes.length === 0 && endpoints.some((side) => side.name === winner && side.kind === "device");
}

function makeThumbs(path) {
  const row = make("p", "thumbs");
  const rate = async (good) => {
    for (const button of row.querySelectorAll("button")) button.disabled = true;
    try {
      row.textContent = await sendRating(path, good);
    } catch (error) {
      row.textContent = `Your rating could not be sent: ${error.message}`;
    }
  };
  for (const [text, good] of [["Good answer", true], ["Not good enough", false]]) {
    const button = make("button", "", text);
    button.type = "button";
    button.addEventListener("click", () => rate(good));
    row.append(button);
  }
  return row;
}

// The timeline

// leftAt: seconds after which the user stopped the answer, which no report says; null: it was not stopped
function drawRace(figure, report, leftAt = null) {
  if (report.speculation) {
    drawSpeculation(figure, report, leftAt);
    return;
  }
  const sides = [...report.endpoints].sort((a, b) => (a.opened ?? Infinity) - (b.opened ?? Infinity));
  const isAtWork = sides.some((side) => side.opened !== null && side.stopped === null);
  const last = Math.max(isAtWork ? (leftAt ?? report.duration) : 0, 0.001, ...sides.map((side) => side.stopped ?? 0));
  const axis = make("div", "axis");
  axis.append(make("span", "", "0 ms"), make("span", "", formatSeconds(last)));
  const scale = make("div", "side");
  scale.append(make("span"), axis);
  const list = make("ul");
  for (const change of report.hand_overs) list.append(make("li", "", changeWords(change)));
  if (report.ending !== null && report.duration > last * 1.05) {
    list.append(make("li", "", `the text was shown until ${formatSeconds(report.duration)}, at its pace`));
  }
  addNotes(list, report);
  const caption = make("figcaption", "", "When each side was asked, had its first token (thick mark), and stopped");
  figure.replaceChildren(caption, ...sides.map((side) => drawSide(side, report, last, leftAt)), scale, list);
  figure.hidden = false;
}

function addNotes(list, report) {
  for (const note of report.notes) list.append(make("li", "", `note: ${note}`));
}

// Both sides of a speculated answer work from its beginning to its end, so times would say nothing: shares of tokens do.
function drawSpeculation(figure, report, leftAt) {
  const made = report.speculation;
  const parts = MADE.map(([field, tint, words]) => ({ count: made[field], tint, words }));
  const kept = Math.max(0, made.drafted - made.wasted);
  const drafts = [
    { count: kept, tint: "accepted", words: "in the answer" },
    { count: made.drafted - kept, tint: "waiting device", words: "not in it" },
  ];
  const sides = report.endpoints.map((side) => {
    const row = make("div", "side");
    row.append(make("span", "name", side.name), make("span", "words", sideWords(side, report, leftAt)));
    return row;
  });
  const list = make("ul");
  addNotes(list, report);
  const caption = make("figcaption", "", "What the answer's tokens are, and what became of the drafts");
  figure.replaceChildren(caption, drawShares("answer", "", parts), drawShares("drafts", " drafted", drafts), ...sides, list);
  figure.hidden = false;
}

function drawShares(name, what, parts) {
  const row = make("div", "side");
  const track = make("div", "track");
  const total = parts.reduce((sum, { count }) => sum + count, 0);
  const words = [];
  let before = 0;
  for (const part of parts.filter(({ count }) => count > 0)) {
    const bar = make("div", `bar ${part.tint}`);
    bar.style.left = `${(100 * before) / total}%`;
    bar.style.width = `${(100 * part.count) / total}%`;
    track.append(bar);
    before += part.count;
    words.push(`${part.count} ${part.words} (${formatShare(part.count / total)})`);
  }
  const text = [`${formatTokens(total)}${what}`, words.join(", ")].filter(Boolean).join(": ");
  track.setAttribute("aria-hidden", "true"); // the words say the same
  row.append(make("span", "name", name), track, make("span", "words", text));
  return row;
}

function drawSide(side, report, last, leftAt) {
  const row = make("div", "side");
  const track = make("div", "track");
  const percent = (seconds) => `${(100 * Math.min(seconds, last)) / last}%`;
  const put = (className, from, to = null) => {
    const mark = make("div", className);
    mark.style.left = percent(from);
    if (to !== null) mark.style.width = percent(to - from);
    track.append(mark);
  };
  if (side.opened !== null) {
    const kind = side.kind === "device" ? "device" : "server";
    const end = side.stopped ?? last;
    const first = side.ttft === null ? end : side.opened + side.ttft;
    if (first > side.opened) put(`bar waiting ${kind}`, side.opened, Math.min(first, end));
    if (first < end) put(`bar ${kind}`, first, end);
    if (side.ttft !== null) put("first", first);
  }
  for (const change of report.hand_overs) put("change", change.at);
  row.append(make("span", "name", side.name), track, make("span", "words", sideWords(side, report, leftAt)));
  return row;
}

function sideWords(side, report, leftAt) {
  if (side.opened === null) return side.error ? `failed: ${side.error}` : OUTCOMES["not started"];
  const words = [side.opened < 0.005 ? "asked at once" : `asked at ${formatSeconds(side.opened)}`];
  if (side.ttft !== null) words.push(`first token ${formatSeconds(side.ttft)} later`);
  if (side.stopped !== null) words.push(`stopped at ${formatSeconds(side.stopped)}`);
  else words.push(leftAt === null ? "at work" : `at work when you stopped it at ${formatSeconds(leftAt)}`);
  words.push((side.is_estimated ? "~" : "") + formatTokens(side.completion_tokens));
  const isBeginning = side.outcome === "won" && (report.hand_overs.length > 0 || report.ending !== "complete");
  const outcome = isBeginning ? "began the answer" : (OUTCOMES[side.outcome] ?? side.outcome);
  return `${words.join(", ")}: ${outcome}${side.error ? ` (${side.error})` : ""}`;
}

function changeWords(change) {
  const why = change.is_planned ? `cheaper, saved ${formatUsd(change.saved_usd)}` : change.reason;
  const pause = change.pause === null ? "" : `, first token ${formatSeconds(change.pause)} later`;
  return `hand-over at ${formatSeconds(change.at)}, after token ${change.position}: ${change.source} → ${change.target}${pause}; ${why}`;
}

// The API

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) if (block.startsWith("data: ")) yield block.slice(6);
  }
}

async function failureOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `expected an answer, got status ${response.status}`;
  }
}

async function readAnswer(view, signal) {
  const limit = $("limit").valueAsNumber;
  const body = { model: "streamco", messages: conversation, stream: true, stream_options: { include_origin: true } };
  if (limit >= 1) body.max_tokens = Math.floor(limit);
  const asked = { ...headers(), "x-streamco-reader": "person" };
  const response = await fetch("v1/chat/completions", { method: "POST", headers: asked, body: JSON.stringify(body), signal });
  if (response.status === 401) askForKey();
  if (!response.ok) throw new Error(await failureOf(response));
  view.ratings = response.headers.get("x-streamco-rating") ?? "";
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    follow(() => view.take(chunk));
  }
  throw new Error("expected the rest of the answer, got the connection cut");
}

async function sendRating(path, good) {
  const response = await fetch(path.slice(1), { method: "POST", headers: headers(), body: JSON.stringify({ good }) });
  if (!response.ok) return failureOf(response);
  const { learned } = await response.json();
  return learned ? `Thank you: noted as ${good ? "good" : "not good enough"}.` : "Thank you. Nothing could be learned from it.";
}

function askForKey() {
  $("access").hidden = false;
  $("key").focus();
}

async function checkKey() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    $("access").hidden = response.status !== 401;
  } catch {
    $("access").hidden = true; // the next prompt shows what is wrong
  }
}

// The conversation

function follow(change) {
  const page = document.documentElement;
  const isAtEnd = page.scrollHeight - page.clientHeight - page.scrollTop < NEAR_END;
  change();
  if (isAtEnd) page.scrollTop = page.scrollHeight;
}

function show(...elements) {
  $("empty").hidden = true;
  $("conversation").append(...elements);
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
}

function setRunning(controller) {
  running = controller;
  const focused = document.activeElement; // a disabled button would lose the focus
  if (controller === null && focused === $("stop")) $("prompt").focus();
  $("send").disabled = controller !== null;
  $("stop").disabled = controller === null;
  if (controller !== null && focused === $("send")) $("stop").focus();
}

async function ask(prompt) {
  const question = make("article", "user");
  const text = make("div", "text", prompt);
  text.dir = "auto";
  question.append(make("h2", "", "You"), text);
  const view = new AnswerView();
  const controller = new AbortController();
  show(question, view.root);
  conversation.push({ role: "user", content: prompt });
  setRunning(controller);
  try {
    await readAnswer(view, controller.signal);
    follow(() => view.end("done"));
  } catch (error) {
    follow(() => (controller.signal.aborted ? view.end("stopped") : view.end("failed", error.message)));
  } finally {
    if (running === controller) {
      setRunning(null);
      remember(prompt, view);
    }
  }
}

function remember(prompt, view) {
  if (view.text) {
    conversation.push({ role: "assistant", content: view.text });
  } else {
    conversation.pop(); // no side has answered it
    if (!$("prompt").value) $("prompt").value = prompt;
  }
}

function stop() {
  running?.abort();
}

function send() {
  const prompt = $("prompt").value;
  if (running !== null || !prompt.trim()) return;
  $("prompt").value = "";
  ask(prompt);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => {
  stop();
  setRunning(null); // what still comes for the old conversation is not remembered
  conversation.length = 0;
  $("conversation").replaceChildren();
  $("empty").hidden = false;
  $("prompt").focus();
});
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value);
  $("key").value = "";
  $("prompt").focus();
  checkKey();
});

checkKey();
$("prompt").focus();
