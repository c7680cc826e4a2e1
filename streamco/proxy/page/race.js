// Shows an answer's race: the line of figures below it, and a drawing of when each side was working.

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
// The parts of a speculated answer: field of its figures, tint, text
const MADE = [
  ["accepted", "accepted", "accepted"],
  ["corrected", "corrected", "corrected"],
  ["bonus", "bonus", "bonus"],
  ["device", "device", "by the device alone"],
  ["remote", "server", "by the server alone"],
];

/** Make an element; its text can't become markup. */
export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

// Figures

export const formatSeconds = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(2)} s`);

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

/** Return the text of the line below an answer. */
export function figuresOf(report) {
  const parts = [];
  if (report.grade) parts.push(gradeText(report.grade, report));
  if (report.ttft !== null) parts.push(`first token ${formatSeconds(report.ttft)}`);
  if (report.tokens_per_second !== null) parts.push(`${report.tokens_per_second.toFixed(1)} tokens/s`);
  parts.push(`cost ${formatUsd(report.cost_usd)}`, budgetText(report));
  return parts;
}

// The timeline

/** Draw a report. `leftAt`: seconds after which the user stopped the answer, which reports don't have, or null. */
export function drawRace(figure, report, leftAt = null) {
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

// Both sides of a speculated answer work from beginning to end, so times would say nothing, but shares of tokens do.
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
  track.setAttribute("aria-hidden", "true"); // the text says the same
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
