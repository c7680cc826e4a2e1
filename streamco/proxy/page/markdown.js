// Parses Markdown as models write it: a pure function from text to a tree, which knows nothing about the page, so it can be tested alone.
//
// A leaf of the tree has its text and `at`, the offset in the source where that text begins, which the page needs to tint it. Raw HTML is
// text. Images are nodes whose address is never loaded. Links are nodes only if their address begins with http or https.
//
// Differences from CommonMark, because answers are written by models and read while they come:
// - a single newline is a line break, as in chat programs; there are no indented code blocks and no underlined headings
// - two spaces are enough to put a list into an item
// - with `isOpen`, the text is cut off: open blocks are shown as if they ended properly, and the beginning of a marker is held back
//
// Time is linear in the text's length, whatever the text is: lines are read once for each level, there are few levels, and no search
// restarts at each character. Each regular expression is anchored, or stops at the first character that can begin it again.

import { parseInline } from "./markdown_inline.js";

const MAX_DEPTH = 12; // quotes and lists inside each other; deeper ones are text
const MAX_COLUMNS = 64; // most columns of a table

const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}>[ \t]?/;
const ITEM = /^( *)([-+*]|(\d{1,9})[.)])(?=[ \t]|$)/;
const MARKER = /^(?:[-+*=_~`#|:<]+|\d{1,9}[.)]?)?$/; // may become a list, a heading, a fence, a rule or a table

// Blocks. A line is its text without the markers of the blocks around it, and the offset where that text begins.

/**
 * Return the blocks of a part of the source. Each has `at`, where its first line begins, and `isCertain`: true if it begins there whatever
 * comes next.
 */
export function parse(source, { from = 0, to = source.length, isOpen = false } = {}) {
  const lines = [];
  for (let at = from; at < to; ) {
    const newline = source.indexOf("\n", at);
    const isPartial = newline < 0 || newline >= to;
    const end = isPartial ? to : newline;
    lines.push({ text: source.slice(at, source[end - 1] === "\r" && end > at ? end - 1 : end), at, isPartial: isPartial && isOpen });
    at = end + 1;
  }
  return readBlocks(lines, 0, isOpen);
}

function readBlocks(lines, depth, isOpen) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (isBlank(lines[i]) || isHeld(lines[i])) {
      i++;
      continue;
    }
    const { block, end } = readBlock(lines, i, depth, isOpen);
    blocks.push({ at: lines[i].at, isCertain: !lines[i].isPartial, ...block });
    i = end;
  }
  return blocks;
}

function readBlock(lines, i, depth, isOpen) {
  const { text } = lines[i];
  if (FENCE.test(text)) return readFence(lines, i);
  const heading = HEADING.exec(text);
  if (heading) return readHeading(lines[i], heading, i + 1);
  if (RULE.test(text)) return { block: { kind: "rule" }, end: i + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(text)) return readQuote(lines, i, depth, isOpen);
  if (depth < MAX_DEPTH && itemOf(lines[i])) return readList(lines, i, depth, isOpen);
  if (beginsTable(lines, i)) return readTable(lines, i);
  if (isOpen && mayBeginTable(lines, i)) {
    return { block: { kind: "table", align: [], head: readRow(lines[i]), rows: [], isCertain: false }, end: lines.length };
  }
  return readParagraph(lines, i, depth, isOpen);
}

const isBlank = ({ text }) => text.trim() === "";

// A partial line that is only the beginning of a marker, or nothing
function isHeld({ text, isPartial }) {
  return isPartial && MARKER.test(text.replace(/^[ \t>]+/, "").trimEnd());
}

// Whether the text is cut off after these lines. A line that is held back is the last one
const isEnd = (lines, end, isOpen) => isOpen && lines.slice(end, end + 2).every(isHeld);

function indentOf(text) {
  let columns = 0;
  for (let i = 0; text[i] === " " || text[i] === "\t"; i++) columns += text[i] === "\t" ? 4 - (columns % 4) : 1;
  return columns;
}

function withoutIndent(line, columns) {
  let i = 0;
  for (let passed = 0; passed < columns && (line.text[i] === " " || line.text[i] === "\t"); i++) {
    passed += line.text[i] === "\t" ? 4 - (passed % 4) : 1;
  }
  return from(line, i);
}

const from = (line, i) => ({ ...line, text: line.text.slice(i), at: line.at + i });

function trimmed(line) {
  const begin = from(line, line.text.length - line.text.trimStart().length);
  return { ...begin, text: begin.text.trimEnd() };
}

// An item's marker: its indentation, the column where its text begins, its number (null for a bullet), and the rest of its line
function itemOf(line) {
  const match = ITEM.exec(line.text);
  if (!match) return null;
  const after = line.text.slice(match[0].length);
  const spaces = after.length - after.trimStart().length;
  const gap = spaces > 4 || spaces === after.length ? Math.min(1, spaces) : spaces;
  const width = match[0].length + Math.max(1, gap);
  return { indent: match[1].length, width, number: match[3] === undefined ? null : Number(match[3]), rest: from(line, match[0].length + gap) };
}

function beginsBlock(line, depth) {
  const { text } = line;
  if (FENCE.test(text) || HEADING.test(text) || RULE.test(text)) return true;
  if (depth >= MAX_DEPTH) return false;
  if (QUOTE.test(text)) return true;
  const item = itemOf(line);
  return item !== null && item.indent < 4 && !isBlank(item.rest) && (item.number === null || item.number === 1);
}

// The text of a line after all markers of quotes and lists
function innermost(text) {
  for (let depth = 0; depth < MAX_DEPTH; depth++) {
    const match = QUOTE.exec(text) ?? (RULE.test(text) ? null : /^ *(?:[-+*]|\d{1,9}[.)])[ \t]+/.exec(text));
    if (!match) break;
    text = text.slice(match[0].length);
  }
  return text.trimStart();
}

// Reads the lines of a quote or item in order, to find whether a line without its marker continues the paragraph of the previous line
class Lines {
  constructor() {
    this.all = [];
    this.fence = ""; // the marks of an open fence
    this.isParagraph = false;
  }

  add(line) {
    this.all.push(line);
    const text = innermost(line.text);
    const wasFence = this.fence !== "";
    if (wasFence) {
      if (closesFence(text, this.fence)) this.fence = "";
    } else {
      this.fence = FENCE.exec(text)?.[1] ?? "";
    }
    this.isParagraph = !wasFence && !this.fence && text.trim() !== "" && !HEADING.test(text) && !RULE.test(text);
  }

  goesOnWith(line, depth) {
    return this.isParagraph && !isBlank(line) && !ITEM.test(line.text) && !beginsBlock(line, depth);
  }
}

function closesFence(text, marks) {
  const run = text.trim();
  return run.startsWith(marks) && run === marks[0].repeat(run.length);
}

function readFence(lines, i) {
  const [, marks, info] = FENCE.exec(lines[i].text);
  const indent = indentOf(lines[i].text);
  const leaves = [];
  let end = i + 1;
  for (; end < lines.length; end++) {
    const run = lines[end].text.trim();
    if (closesFence(run, marks)) {
      end++;
      break;
    }
    if (lines[end].isPartial && run && run === marks[0].repeat(run.length)) continue; // most likely the first of three marks
    addCode(leaves, withoutIndent(lines[end], indent));
  }
  return { block: { kind: "code", language: info.trim().split(/\s/, 1)[0], leaves }, end };
}

function addCode(leaves, { text, at }) {
  const last = leaves.at(-1);
  if (last && last.at + last.text.length + 1 === at) last.text += `\n${text}`;
  else leaves.push(last ? { text: `\n${text}`, at: at - 1 } : { text, at });
}

function readHeading(line, [marks, { length: level }], end) {
  const title = from(line, marks.length);
  title.text = title.text.trimEnd().replace(/[ \t]#+$/, "");
  return { block: { kind: "heading", level, inline: parseInline([trimmed(title)], line.isPartial) }, end };
}

function readQuote(lines, i, depth, isOpen) {
  const inner = new Lines();
  let end = i;
  for (; end < lines.length; end++) {
    const mark = QUOTE.exec(lines[end].text);
    if (mark) inner.add(from(lines[end], mark[0].length));
    else if (inner.goesOnWith(lines[end], depth)) inner.add(lines[end]);
    else break;
  }
  return { block: { kind: "quote", blocks: readBlocks(inner.all, depth + 1, isEnd(lines, end, isOpen)) }, end };
}

function readList(lines, i, depth, isOpen) {
  const first = itemOf(lines[i]);
  const items = [];
  let end = i;
  while (end < lines.length) {
    const item = itemOf(lines[end]);
    const isOne = item && (item.number === null) === (first.number === null) && !RULE.test(lines[end].text);
    if (!isOne || (items.length > 0 && isHeld(lines[end]))) break;
    const least = Math.min(item.width, item.indent + 2);
    const inner = new Lines();
    inner.add(item.rest);
    for (end++; end < lines.length; end++) {
      if (isBlank(lines[end]) || indentOf(lines[end].text) >= least) inner.add(withoutIndent(lines[end], item.width));
      else if (inner.goesOnWith(lines[end], depth)) inner.add(lines[end]);
      else break;
    }
    items.push(readBlocks(inner.all, depth + 1, isEnd(lines, end, isOpen)));
  }
  return { block: { kind: "list", start: first.number, items }, end };
}

function readParagraph(lines, i, depth, isOpen) {
  let end = i + 1;
  while (end < lines.length && !isBlank(lines[end]) && !isHeld(lines[end]) && !beginsBlock(lines[end], depth)) {
    if (beginsTable(lines, end) || (isOpen && mayBeginTable(lines, end))) break;
    end++;
  }
  return { block: { kind: "paragraph", inline: parseInline(lines.slice(i, end).map(trimmed), isEnd(lines, end, isOpen)) }, end };
}

// Tables

function beginsTable(lines, i) {
  const next = lines[i + 1];
  if (!next?.text.includes("|") || !lines[i].text.includes("|") || !/^[ \t|:-]*$/.test(next.text)) return false;
  const cells = cellsOf(next);
  return cells.every(({ text }) => /^:?-+:?$/.test(text)) && cells.length === cellsOf(lines[i]).length;
}

// A line at the end of an open text that a row of dashes may still follow
function mayBeginTable(lines, i) {
  if (!lines[i].text.trimStart().startsWith("|")) return false;
  return i + 1 === lines.length || (i + 2 === lines.length && lines[i + 1].isPartial && /^[ \t|:-]*$/.test(lines[i + 1].text));
}

function cellsOf(line) {
  const cells = [];
  let { text } = trimmed(line);
  const shift = line.text.length - line.text.trimStart().length;
  let begin = text.startsWith("|") ? 1 : 0;
  if (text.length > begin && text.endsWith("|") && !text.endsWith("\\|")) text = text.slice(0, -1);
  for (let i = begin; i <= text.length && cells.length < MAX_COLUMNS; i++) {
    if (text[i] === "\\") i++;
    else if (i === text.length || text[i] === "|") {
      cells.push(trimmed({ ...line, text: text.slice(begin, i), at: line.at + shift + begin }));
      begin = i + 1;
    }
  }
  if (begin < text.length && cells.length < MAX_COLUMNS) cells.push(trimmed({ ...line, text: text.slice(begin), at: line.at + shift + begin }));
  return cells;
}

function readTable(lines, i) {
  const align = cellsOf(lines[i + 1]).map(({ text }) => (text.endsWith(":") ? (text.startsWith(":") ? "center" : "end") : ""));
  const rows = [];
  let end = i + 2;
  for (; end < lines.length && lines[end].text.includes("|") && !isHeld(lines[end]); end++) rows.push(readRow(lines[end], align.length));
  return { block: { kind: "table", align, head: readRow(lines[i]), rows, isCertain: !lines[i + 1].isPartial }, end };
}

function readRow(line, columns = MAX_COLUMNS) {
  return cellsOf(line).slice(0, columns).map((cell, column, all) => parseInline([cell], line.isPartial && column + 1 === all.length));
}
