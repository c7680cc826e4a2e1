// The text of an answer as elements: Markdown, in which lines under and beside each piece show which side wrote it.
//
// Elements are made one by one, with text as text nodes, so no text becomes markup. Closed blocks are drawn once. The last block is redrawn
// when text comes, and only the differences are changed in the page, so that a selection or a scrolled block of code stays as it is.

import { parse } from "./markdown.js";

const MAX_MARKDOWN = 200_000; // characters of an answer; text after them is shown as it is
const MAX_PLAIN = 10_000; // characters of one block of such text
const REST = 4; // wait before the next drawing, as a multiple of the time that the last one took
const FRAME = 40; // shortest wait in milliseconds

// The description of an element; `update` makes the page look like it
function node(tag, attributes, ...children) {
  return { tag, attributes, children: children.flat() };
}

const text = (data) => ({ tag: "", data });

// Change the children of an element from one list of descriptions to another
function update(parent, old, now) {
  for (let i = 0; i < now.length; i++) {
    const before = old[i];
    if (before === undefined || before.tag !== now[i].tag) {
      now[i].dom = create(now[i]);
      if (before === undefined) parent.append(now[i].dom);
      else before.dom.replaceWith(now[i].dom);
      continue;
    }
    const dom = (now[i].dom = before.dom);
    if (now[i].tag === "") {
      if (now[i].data === before.data) continue;
      if (now[i].data.startsWith(before.data)) dom.appendData(now[i].data.slice(before.data.length));
      else dom.data = now[i].data;
    } else {
      updateElement(dom, before, now[i]);
    }
  }
  for (const { dom } of old.slice(now.length)) dom.remove();
}

// With dir="auto" the browser searches the whole element for each child that is added, so the attribute is put back when all are there
function updateElement(dom, before, now) {
  if (now.attributes.dir === "auto") dom.removeAttribute("dir");
  update(dom, before.children, now.children);
  setAttributes(dom, now.attributes.dir === "auto" ? { ...before.attributes, dir: null } : before.attributes, now.attributes);
}

function create({ tag, data, attributes, children }) {
  if (tag === "") return document.createTextNode(data);
  const element = document.createElement(tag);
  for (const child of children) element.append((child.dom = create(child)));
  setAttributes(element, {}, attributes); // last, as in `updateElement`
  return element;
}

function setAttributes(element, old, now) {
  for (const name of Object.keys(old)) if (!(name in now)) element.removeAttribute(name);
  for (const [name, value] of Object.entries(now)) {
    if (old[name] === value) continue;
    if (name === "side") element.style.setProperty("--side", value);
    else element.setAttribute(name, value);
  }
}

/** The text of one answer. */
export class AnswerText {
  /**
   * @param root: the element that the text goes into.
   * @param around: called with each function that changes the page.
   */
  constructor(root, around = (change) => change()) {
    this.root = root;
    this.around = around;
    this.source = "";
    this.runs = []; // {end, origin, title}: text of one origin, up to an offset
    this.marks = []; // {at, words}: hand-overs
    this.closed = { at: 0, marks: 0 }; // the final part: the text up to an offset, and the number of marks
    this.shown = []; // descriptions of the blocks after the final part
    this.plain = null; // the text node that the rest of a long text is added to
    this.timer = 0;
    this.took = 0; // milliseconds that the last drawing took
  }

  add(piece, origin, title) {
    this.source += piece;
    const last = this.runs.at(-1);
    if (last && last.origin === origin && last.title === title && this.marks.at(-1)?.at !== last.end) last.end = this.source.length;
    else this.runs.push({ end: this.source.length, origin, title });
    if (!this.timer) this.timer = setTimeout(() => this.around(() => this.draw(true)), Math.max(FRAME, REST * this.took));
  }

  /** Mark that another side continues from here. */
  mark(words) {
    this.marks.push({ at: this.source.length, words });
  }

  /** Draw everything that has come, because no more will. */
  end() {
    this.draw(false);
  }

  draw(isOpen) {
    clearTimeout(this.timer);
    this.timer = 0;
    const began = performance.now();
    if (this.closed.at < MAX_MARKDOWN) this.drawMarkdown(isOpen && this.source.length < MAX_MARKDOWN);
    if (this.closed.at >= MAX_MARKDOWN) this.drawPlain();
    void this.root.offsetHeight; // include the browser's part of the work
    this.took = performance.now() - began;
  }

  drawMarkdown(isOpen) {
    const to = Math.min(this.source.length, MAX_MARKDOWN);
    const blocks = parse(this.source, { from: this.closed.at, to, isOpen });
    const drawing = new Drawing(this);
    const marks = []; // drawn before each block
    const now = blocks.map((block) => {
      marks.push(drawing.nextMark);
      return drawing.block(block);
    });
    update(this.root, this.shown, now);
    let open = blocks.length; // the first block that may change
    if (isOpen && open > 0) open -= blocks.at(-1).isCertain || open === 1 ? 1 : 2;
    this.shown = now.slice(open);
    if (!isOpen) this.closed = { at: to, marks: drawing.nextMark };
    else if (open < blocks.length) this.closed = { at: blocks[open].at, marks: marks[open] };
  }

  drawPlain() {
    while (this.closed.at < this.source.length) {
      if (this.plain === null || this.plain.length >= MAX_PLAIN) {
        const block = create(node("div", { class: "plain", dir: "auto" }, text("")));
        this.root.append(block);
        this.plain = block.firstChild;
      }
      const end = Math.min(this.source.length, this.closed.at + MAX_PLAIN - this.plain.length);
      this.plain.appendData(this.source.slice(this.closed.at, end));
      this.closed.at = end;
    }
  }
}

// From blocks to descriptions of elements
class Drawing {
  constructor({ runs, marks, closed }) {
    this.runs = runs;
    this.marks = marks;
    this.nextMark = closed.marks;
  }

  // A block of the answer itself. The line beside it has the colours of the sides that wrote it
  block(block) {
    this.counts = new Map(); // characters by origin
    const content = this.content(block);
    if (this.counts.size === 0) this.counts.set(this.runs[this.runAt(block.at)]?.origin ?? "", 1); // a rule has no text
    return node("div", { class: "block", side: sideOf(this.counts) }, content);
  }

  // Blocks inside a quote or list have no `dir`, because the browser would ignore them when it determines the direction of the whole
  content(block, direction = { dir: "auto" }) {
    switch (block.kind) {
      case "heading":
        return node(`h${Math.min(6, block.level + 2)}`, direction, this.inline(block.inline));
      case "code":
        return this.code(block);
      case "quote":
        return node("blockquote", direction, block.blocks.map((inner) => this.content(inner, {})));
      case "list":
        return this.list(block, direction);
      case "table":
        return this.table(block, direction);
      case "rule":
        return node("hr", {});
      default:
        return node("p", direction, this.inline(block.inline));
    }
  }

  code({ language, leaves }) {
    const bar = node("div", { class: "label" }, node("span", {}, text(language || "code")), node("button", { type: "button", class: "copy-code" }, text("Copy")));
    const code = node("code", {}, leaves.flatMap((leaf) => this.codePieces(leaf)));
    return node("div", { class: "code", dir: "ltr" }, bar, node("pre", { tabindex: "0" }, code)); // it scrolls, so the keyboard must reach it
  }

  // Lines of code, without an underline below their indentation
  codePieces(leaf) {
    const pieces = [];
    for (const { 0: data, index } of leaf.text.matchAll(/\S[^\n]*|\s+/g)) {
      if (data.trim() === "") pieces.push(text(data));
      else pieces.push(...this.pieces({ text: data, at: leaf.at + index }));
    }
    return pieces;
  }

  list({ start, items }, direction) {
    const lines = items.map((blocks) => node("li", {}, blocks.map((inner) => this.content(inner, {}))));
    return start === null ? node("ul", direction, lines) : node("ol", { start: String(start), ...direction }, lines);
  }

  table({ align, head, rows }, direction) {
    const row = (tag, cells) => node("tr", {}, cells.map((cell, i) => node(tag, { class: align[i] ?? "" }, this.inline(cell))));
    const parts = [node("thead", {}, row("th", head)), node("tbody", {}, rows.map((cells) => row("td", cells)))];
    return node("div", { class: "scroll", tabindex: "0", ...direction }, node("table", {}, parts));
  }

  inline(nodes) {
    return nodes.flatMap((inner) => {
      switch (inner.kind) {
        case "text":
          return this.pieces(inner);
        case "code":
          return node("code", { dir: "ltr" }, inner.leaves.flatMap((leaf) => this.pieces(leaf)));
        case "break":
          return node("br", {});
        case "link":
          return link(inner.href, this.inline(inner.nodes));
        case "image":
          return this.image(inner);
        default:
          return node({ emphasis: "em", strong: "strong", strike: "s" }[inner.kind], {}, this.inline(inner.nodes));
      }
    });
  }

  // Images aren't loaded: their description and address are shown instead
  image({ alt, address, href, at }) {
    const where = href === null ? text(address) : link(href, [text(address)]);
    return node("span", { class: "image", dir: "auto" }, text("image: "), this.pieces({ text: alt, at }), text(alt ? " · " : ""), where);
  }

  // The pieces of a leaf, one for each origin, with hand-overs where they happened
  pieces({ text: data, at }) {
    const pieces = [];
    const end = at + data.length;
    for (let begin = at, i = this.runAt(at); begin < end; i++) {
      const run = this.runs[i] ?? { end, origin: "", title: "" };
      const stop = Math.min(run.end, end);
      for (; this.marks[this.nextMark]?.at <= begin; this.nextMark++) {
        pieces.push(node("span", { class: "handover", dir: "ltr", title: "hand-over: another side goes on from here" }, text(this.marks[this.nextMark].words)));
      }
      pieces.push(node("span", { class: run.origin && `tint ${run.origin}`, title: run.title }, text(data.slice(begin - at, stop - at))));
      this.counts.set(run.origin, (this.counts.get(run.origin) ?? 0) + stop - begin);
      begin = stop;
    }
    return pieces;
  }

  // The place of the first run that ends after an offset
  runAt(at) {
    let low = 0;
    for (let high = this.runs.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (this.runs[middle].end > at) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

function link(href, children) {
  return node("a", { href, title: href, target: "_blank", rel: "noopener noreferrer" }, children);
}

// Colours from top to bottom, in the order in which the origins first appear, each as long as its share of the text
function sideOf(counts) {
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  let before = 0;
  const stops = [...counts].map(([origin, count]) => {
    const begin = before;
    before += (100 * count) / total;
    return `${origin ? `var(--${origin}-line)` : "transparent"} ${begin.toFixed(1)}% ${before.toFixed(1)}%`;
  });
  return stops.length > 0 ? `linear-gradient(${stops.join(", ")})` : "none";
}
