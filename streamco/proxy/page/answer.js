// One answer: its text, the line of figures, its buttons, and the drawing of its race.

import { AnswerText } from "./answer_text.js";
import { isRatingsPath, sendRating } from "./api.js";
import { drawRace, figuresOf, formatSeconds, make } from "./race.js";

const ORIGINS = {
  device: "made by the device",
  server: "made by the server",
  accepted: "drafted by the device, confirmed by the server",
  corrected: "the server's token in place of a rejected draft",
  bonus: "the server's token after a draft accepted whole",
};

export class AnswerView {
  /**
   * @param around: called with each function that changes the page.
   * @param onOrigin: called with each origin in the answer, and with "handover".
   * @param onRegenerate: called by the button.
   * @param onRated: called when the answer was rated.
   */
  constructor({ around, onOrigin, onRegenerate, onRated }) {
    this.onOrigin = onOrigin;
    this.onRegenerate = onRegenerate;
    this.onRated = onRated;
    this.pieces = []; // [endpoint, origin, text]
    this.origin = ""; // origin of the newest text
    this.thinking = "";
    this.report = null; // the newest report
    this.how = ""; // "done", "stopped" or "failed", or "" while it continues
    this.message = "";
    this.leftAt = null; // seconds after which the user stopped it
    this.hasFigures = false;
    this.ratings = ""; // path for a rating, or "" if it can't be rated
    this.made = null; // the side that made the last text of a race
    this.began = performance.now();
    this.root = make("article", "answer");
    this.body = make("div", "text");
    this.body.setAttribute("aria-busy", "true");
    this.text = new AnswerText(this.body, around);
    this.live = make("p", "live");
    this.live.setAttribute("aria-live", "off");
    this.race = make("figure", "race");
    this.race.setAttribute("aria-live", "off");
    this.race.hidden = true;
    this.root.append(make("h2", "", "Answer"), this.body, this.live, this.race);
    this.timer = setInterval(() => this.showWait(), 100);
    this.showWait();
  }

  /** The Markdown so far. */
  get source() {
    return this.text.source;
  }

  showWait() {
    this.live.textContent = `waiting for the first token, ${formatSeconds((performance.now() - this.began) / 1000)}`;
  }

  take(chunk) {
    const { endpoint, origin, report } = chunk.streamco ?? {};
    if (report) this.report = report;
    for (const { delta } of chunk.choices) {
      const thinking = delta?.reasoning_content ?? delta?.reasoning;
      if (thinking) this.addThinking(thinking);
      if (delta?.content) this.add(delta.content, String(endpoint ?? ""), String(origin ?? ""));
    }
    if (this.source && (report || !this.hasFigures)) this.showFigures();
  }

  addThinking(text) {
    clearInterval(this.timer);
    if (!this.thinking) {
      this.thinkingRoot = make("div", "thinking");
      this.thinkingRoot.title = "the model's thinking";
      this.thinkingRoot.dir = "auto";
      this.body.before(this.thinkingRoot);
    }
    this.thinking += text;
    this.thinkingRoot.append(text);
  }

  add(text, endpoint, origin) {
    clearInterval(this.timer);
    const last = this.pieces.at(-1);
    if (last && last[0] === endpoint && last[1] === origin) last[2] += text;
    else this.pieces.push([endpoint, origin, text]);
    if (this.report?.mode !== "speculate") {
      if (this.made !== null && this.made !== endpoint) {
        this.text.mark(`${this.made} → ${endpoint}`);
        this.onOrigin("handover");
      }
      this.made = endpoint;
    }
    const known = Object.hasOwn(ORIGINS, origin) ? origin : "";
    if (known && known !== this.origin) this.onOrigin(known);
    this.origin = known;
    this.text.add(text, known, known ? `${ORIGINS[known]} (${endpoint})` : "");
  }

  showFigures() {
    if (!this.report) return;
    this.hasFigures = true;
    this.live.textContent = figuresOf(this.report).join(" · ");
    drawRace(this.race, this.report);
  }

  end(how, message = "") {
    clearInterval(this.timer);
    this.how = how;
    this.message = message;
    if (how === "stopped") this.leftAt ??= (performance.now() - this.began) / 1000;
    this.text.end();
    this.body.setAttribute("aria-busy", "false");
    const figures = this.report ? figuresOf(this.report) : [];
    this.live.textContent = [how, ...figures].join(" · ");
    const rows = message ? [make("p", "failure", message)] : [];
    if (this.source) rows.push(this.makeActions());
    if (this.report && how === "done" && this.ratings && isDevicesOwn(this.report)) rows.push(this.makeThumbs());
    this.live.after(...rows);
    if (!this.report) return;
    drawRace(this.race, this.report, this.leftAt);
    const details = make("details");
    const whole = make("pre", "", JSON.stringify(this.report, null, 1));
    whole.tabIndex = 0; // it scrolls, so it must be reachable by keyboard
    details.append(make("summary", "", "Whole report"), whole);
    this.race.append(details);
  }

  makeActions() {
    const row = make("p", "actions");
    const copying = makeButton("Copy answer", () => copy(this.source, copying));
    this.again = makeButton("Regenerate", this.onRegenerate);
    row.append(copying, this.again);
    return row;
  }

  makeThumbs() {
    const row = make("p", "thumbs");
    const rate = async (good) => {
      for (const button of row.querySelectorAll("button")) button.disabled = true;
      try {
        row.textContent = await sendRating(this.ratings, good);
        this.ratings = "";
        this.onRated();
      } catch (error) {
        row.textContent = `Your rating could not be sent: ${error.message}`;
      }
    };
    row.append(makeButton("Good answer", () => rate(true)), makeButton("Not good enough", () => rate(false)));
    return row;
  }

  /** Show or hide the button that asks for another answer, which only the last answer has. */
  set isLast(isLast) {
    if (this.again) this.again.hidden = !isLast;
  }

  /** Say why there is no other answer. */
  note(message) {
    this.root.querySelector(":scope > .failure")?.remove();
    this.live.after(make("p", "failure", message));
  }

  /** The data that must be kept to show the answer again. */
  get saved() {
    const { pieces, thinking, report, message, leftAt, ratings } = this;
    return { pieces, thinking, report, how: this.how || "stopped", message, leftAt, ratings };
  }

  /** Show a kept answer. */
  restore({ pieces, thinking, report, how, message, leftAt, ratings }) {
    this.report = report;
    if (isRatingsPath(ratings)) this.ratings = ratings;
    this.leftAt = leftAt;
    if (thinking) this.addThinking(String(thinking));
    for (const [endpoint, origin, text] of pieces) this.add(text, endpoint, origin);
    this.end(String(how), String(message ?? ""));
  }
}

export function makeButton(text, onClick) {
  const button = make("button", "", text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

/** Copy a text, and show on the button for a moment whether it worked. */
export async function copy(text, button) {
  const words = button.textContent;
  if (button.dataset.isBusy) return;
  button.dataset.isBusy = "yes";
  button.textContent = (await isCopied(text)) ? "Copied" : "Could not copy";
  setTimeout(() => {
    button.textContent = words;
    delete button.dataset.isBusy;
  }, 1500);
}

async function isCopied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return isCopiedFromField(text); // a page that another machine serves over HTTP has no such clipboard
  }
}

function isCopiedFromField(text) {
  const focused = document.activeElement;
  const field = make("textarea", "unseen");
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isDone;
}

// Only an answer that the device wrote alone says something about the device
function isDevicesOwn({ endpoints, winner, hand_overs: changes, mode }) {
  return mode === "race" && changes.length === 0 && endpoints.some((side) => side.name === winner && side.kind === "device");
}
