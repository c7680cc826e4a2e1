// The chat page of streamco's proxy. Everything from outside is shown as text nodes, so it can't become markup or code.

import { AnswerView, copy, makeButton } from "./answer.js";
import { answerChunks, keepKey, killServer, needsKey, pageSettings } from "./api.js";
import { make } from "./race.js";
import { forgetTurns, savedTurns, saveTurns } from "./saved_turns.js";

const NEAR_END = 120; // within this many pixels of its end, the page follows the text

const $ = (id) => document.getElementById(id);
const turns = []; // {prompt, question, view}; sent whole with each prompt
let running = null; // the AbortController of the answer in progress
let killing = null; // the button that kills the server; only a demo has it
let isServerGone = false; // it was killed, and isn't running again yet

// The page

function follow(change) {
  const page = document.documentElement;
  const isAtEnd = page.scrollHeight - page.clientHeight - page.scrollTop < NEAR_END;
  change();
  if (isAtEnd) page.scrollTop = page.scrollHeight;
}

function toEnd() {
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
}

// The text of an empty conversation, and a demo's prompts that haven't been used
function showInvitation() {
  $("empty").hidden = $("conversation").childElementCount > 0;
  for (const starter of $("starters").children) starter.hidden = running !== null || turns.some(({ prompt }) => prompt === starter.textContent);
}

function showKilling() {
  if (killing !== null) killing.disabled = running === null || isServerGone || ["", "device"].includes(turns.at(-1)?.view.origin ?? "");
}

function notice(words) {
  $("notice").textContent = words;
}

// The legend explains the origins in this conversation
function explain(name) {
  $("legend").hidden = false;
  $("legend").querySelector(`[data-name="${name}"]`).hidden = false;
}

function forgetLegend() {
  $("legend").hidden = true;
  for (const line of $("legend").querySelectorAll("[data-name]")) line.hidden = true;
}

function setRunning(controller) {
  running = controller;
  const focused = document.activeElement; // a disabled button would lose the focus
  if (controller === null && (focused === $("stop") || focused === killing)) $("prompt").focus();
  $("send").disabled = controller !== null;
  $("stop").disabled = controller === null;
  if (controller !== null && focused === $("send")) $("stop").focus();
  showKilling();
  showRegenerate();
  follow(showInvitation);
}

function showRegenerate() {
  for (const { view } of turns) view.isLast = running === null && view === turns.at(-1).view;
}

function askForKey() {
  $("access").hidden = false;
  $("key").focus();
}

async function checkKey() {
  $("access").hidden = !(await needsKey());
}

// The conversation

function makeView() {
  return new AnswerView({ around: follow, onOrigin: explain, onRegenerate: regenerate, onRated: save });
}

function makeTurn(prompt) {
  const question = make("article", "user");
  const text = make("div", "text", prompt);
  text.dir = "auto";
  question.append(make("h2", "", "You"), text);
  const turn = { prompt, question, view: makeView() };
  turns.push(turn);
  $("conversation").append(question, turn.view.root);
  return turn;
}

function messages() {
  return turns.flatMap(({ prompt, view }) => [
    { role: "user", content: prompt },
    ...(view.source ? [{ role: "assistant", content: view.source }] : []),
  ]);
}

function save() {
  saveTurns(turns.map(({ prompt, view }) => ({ prompt, ...view.saved })));
}

function ask(prompt) {
  if (!isServerGone) notice("");
  const turn = makeTurn(prompt);
  toEnd();
  answer(turn, null);
}

// previous: the answer that is shown again if no new one comes
async function answer(turn, previous) {
  const { view } = turn;
  const controller = new AbortController();
  const { signal } = controller;
  const options = { limit: $("limit").valueAsNumber, signal, onRefused: askForKey, onRatings: (path) => (view.ratings = path) };
  setRunning(controller);
  save();
  try {
    for await (const chunk of answerChunks(messages(), options)) {
      follow(() => view.take(chunk));
      showKilling();
    }
    follow(() => view.end("done"));
  } catch (error) {
    follow(() => (signal.aborted ? view.end("stopped") : view.end("failed", error.message)));
  } finally {
    if (running === controller) {
      if (!view.source) withdraw(turn, previous);
      setRunning(null);
      save();
    }
  }
}

// No side has answered
function withdraw(turn, previous) {
  if (previous !== null) {
    turn.view.root.replaceWith(previous.root);
    previous.note(turn.view.message || "stopped before another answer came");
    turn.view = previous;
    return;
  }
  turns.pop();
  if (!$("prompt").value) $("prompt").value = turn.prompt;
}

function regenerate() {
  if (running !== null) return;
  const turn = turns.at(-1);
  const previous = turn.view;
  turn.view = makeView();
  previous.root.replaceWith(turn.view.root);
  toEnd();
  $("prompt").focus();
  answer(turn, previous);
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

function clear() {
  stop();
  turns.length = 0;
  setRunning(null); // text that still comes for the old conversation isn't kept
  forgetTurns();
  forgetLegend();
  $("conversation").replaceChildren();
  showInvitation();
  $("prompt").focus();
}

function restore() {
  for (const saved of savedTurns()) {
    if (saved.pieces.length > 0) makeTurn(saved.prompt).view.restore(saved);
    else $("prompt").value = saved.prompt; // the page was left before an answer came
  }
  showRegenerate();
  showInvitation();
  toEnd();
}

// A demo's additions: prompts to begin with, and a button that kills its server
async function showSettings() {
  const settings = await pageSettings();
  for (const prompt of settings.prompts) {
    const starter = makeButton("", () => running === null && ask(prompt));
    starter.append(make("span", "", prompt));
    $("starters").append(starter);
  }
  showInvitation();
  if (!settings.kills_server) return;
  killing = makeButton("Kill the server", kill);
  killing.id = "kill";
  killing.title = "Kills the server's process while it writes; it is started again afterwards";
  killing.disabled = true;
  $("stop").after(killing);
  $("empty").textContent = "Choose a prompt, or ask something below. While the server writes, you can kill it: the device goes on.";
}

async function kill() {
  isServerGone = true;
  $("stop").focus(); // a disabled button would lose the focus
  showKilling();
  notice("The server was killed and is being started again. Until then the device answers alone.");
  const failure = await killServer();
  isServerGone = failure !== "";
  notice(failure ? `The server did not start again: ${failure}` : "The server is running again.");
  showKilling();
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
$("clear").addEventListener("click", clear);
$("conversation").addEventListener("click", ({ target }) => {
  const button = target.closest(".copy-code");
  if (button === null) return;
  const code = button.closest(".code").querySelector("code").cloneNode(true);
  for (const mark of code.querySelectorAll(".handover")) mark.remove();
  copy(code.textContent, button);
});
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey($("key").value);
  $("key").value = "";
  $("prompt").focus();
  checkKey();
});
window.addEventListener("beforeunload", stop); // otherwise the answer would look as if it had failed
window.addEventListener("pagehide", () => running !== null && save());

restore();
checkKey();
showSettings();
$("prompt").focus();
