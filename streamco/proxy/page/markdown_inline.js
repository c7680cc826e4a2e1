// Parses the text inside a block of Markdown, in three passes: tokens and links, then matching emphasis marks, then the tree.
// For the rules, and the differences from CommonMark, see the head of markdown.js.

const MAX_INLINE_DEPTH = 8; // levels of nested emphasis; deeper emphasis has no effect
const MAX_ADDRESS = 2000; // characters

const SPECIAL = /[\\`*_~[\]!&<\n]|https?:\/\//g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp|ndash|mdash|hellip|copy|times|rarr|larr));/y;
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", ndash: "–", mdash: "—", hellip: "…", copy: "©", times: "×", rarr: "→", larr: "←" };
const TARGET = /\([ \t]{0,9}(?:<([^<>\n]*)>|([^\s()<>]*(?:\([^\s()]*\)[^\s()]*)*))(?:[ \t\n]{1,9}(?:"[^"]{0,300}"|'[^']{0,300}'))?[ \t]{0,9}\)/y;
const ANGLED = /<(https?:\/\/[^\s<>]{1,2000})>/iy;
const BARE = /https?:\/\/[^\s<>"'`|\\[\]]+/y;
const DANGLING = /\[([^\]\n]*)(?:\](?:\([^)\s]*)?)?$/y; // a link whose address is incomplete

/** Return the address, as the browser parses it, if a link may have it, and null otherwise. */
export function safeAddress(text) {
  const address = text.replace(new RegExp(ENTITY.source, "g"), (...match) => decoded(match)).replace(/\\([!-/:-@[-`{-~])/g, "$1");
  if (address.length > MAX_ADDRESS || !/^https?:[/]{2}/i.test(address) || /[\u0000-\u0020\u007f]/.test(address)) return null;
  try {
    const url = new URL(address);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

function decoded([, decimal, hexadecimal, name]) {
  if (name) return NAMED[name];
  const code = decimal ? Number(decimal) : parseInt(hexadecimal, 16);
  return code < 32 || (code >= 127 && code < 160) || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? "\ufffd" : String.fromCodePoint(code);
}

/** Return the nodes of lines without surrounding spaces. With `isOpen`, the last line is cut off. */
export function parseInline(lines, isOpen) {
  const text = lines.map((line) => line.text).join("\n");
  const tokens = new Tokenizer(text, isOpen).run();
  pairMarks(tokens, text, isOpen);
  return buildTree(tokens, text, lines);
}

// Tokens: {kind: "text", begin, end, text?}, {kind: "code", begin, end}, {kind: "break"}, {kind: "marks", ...}, {kind: "image", alt, address},
// {kind: "open", href} and {kind: "close"}
class Tokenizer {
  constructor(text, isOpen) {
    this.text = text;
    this.isOpen = isOpen;
    this.end = text.length;
    this.tokens = [];
    this.brackets = []; // places of tokens
    this.runs = null; // positions of runs of backticks by their length, last first
    this.dangling = -1;
    if (isOpen) this.findDangling();
  }

  findDangling() {
    const begin = this.text.lastIndexOf("[");
    if (begin < 0 || isWordy(this.text[begin - 1])) return; // list[0] is meant literally
    DANGLING.lastIndex = begin;
    const match = DANGLING.exec(this.text);
    if (!match) return;
    this.dangling = begin;
    this.danglingEnd = begin + 1 + match[1].length;
  }

  run() {
    for (let i = 0; i < this.end; ) {
      SPECIAL.lastIndex = i;
      const found = SPECIAL.exec(this.text);
      const next = found === null ? this.end : Math.min(found.index, this.end);
      if (next > i) this.put(i, next);
      i = next < this.end ? this.read(next) : next;
    }
    return this.tokens;
  }

  put(begin, end, text = this.text.slice(begin, end)) {
    this.tokens.push({ kind: "text", begin, end, text });
    return end;
  }

  // Read the token at a special character, and return where the next one begins
  read(i) {
    switch (this.text[i]) {
      case "\n":
        this.tokens.push({ kind: "break" });
        return i + 1;
      case "\\":
        return this.readEscape(i);
      case "`":
        return this.readCode(i);
      case "&":
        return this.readEntity(i);
      case "<":
        return this.readAddress(i, ANGLED, 1);
      case "h":
        return this.readAddress(i, BARE, 0);
      case "!":
        return this.text[i + 1] === "[" ? this.openBracket(i, i + 2) : this.put(i, i + 1);
      case "[":
        return this.openBracket(i, i + 1);
      case "]":
        return this.closeBracket(i);
      default:
        return this.readMarks(i);
    }
  }

  readEscape(i) {
    const next = this.text[i + 1];
    if (next === "\n") return i + 1;
    return next !== undefined && ESCAPABLE.test(next) ? this.put(i + 1, i + 2) : this.put(i, i + 1);
  }

  readEntity(i) {
    ENTITY.lastIndex = i;
    const match = ENTITY.exec(this.text);
    if (!match) return this.put(i, i + 1);
    this.put(i, i + match[0].length, decoded(match));
    return i + match[0].length;
  }

  readCode(i) {
    if (this.runs === null) {
      this.runs = new Map();
      for (const { 0: { length }, index } of [...this.text.matchAll(/`+/g)].reverse()) {
        if (!this.runs.has(length)) this.runs.set(length, []);
        this.runs.get(length).push(index);
      }
    }
    let length = 1;
    while (this.text[i + length] === "`") length++;
    const places = this.runs.get(length) ?? [];
    while (places.length > 0 && places.at(-1) <= i) places.pop();
    const close = places.at(-1);
    if (close === undefined && !this.isOpen) return this.put(i, i + length);
    const end = close ?? this.text.length;
    this.tokens.push({ kind: "code", begin: i + length, end });
    return end + length;
  }

  readAddress(i, pattern, margin) {
    pattern.lastIndex = i;
    const match = margin === 0 && isWordy(this.text[i - 1]) ? null : pattern.exec(this.text);
    if (!match) return this.put(i, i + 1);
    const begin = i + margin;
    const end = margin ? begin + match[1].length : begin + addressLength(match[0]);
    const href = safeAddress(this.text.slice(begin, end));
    if (href === null) return this.put(i, end + margin);
    this.tokens.push({ kind: "open", href });
    this.put(begin, end);
    this.tokens.push({ kind: "close" });
    return end + margin;
  }

  openBracket(i, end) {
    if (end - 1 === this.dangling) {
      this.end = this.danglingEnd; // only its text, until the address has come
      return end;
    }
    this.brackets.push(this.tokens.length);
    this.tokens.push({ kind: "text", begin: i, end, text: this.text.slice(i, end) });
    return end;
  }

  closeBracket(i) {
    const place = this.brackets.pop();
    TARGET.lastIndex = i + 1;
    const match = place === undefined ? null : TARGET.exec(this.text);
    if (!match) return this.put(i, i + 1);
    const opening = this.tokens[place];
    const address = match[1] ?? match[2];
    if (opening.text === "![") {
      this.tokens.length = place;
      this.tokens.push({ kind: "image", alt: this.text.slice(opening.end, i), begin: opening.end, address, href: safeAddress(address) });
      return TARGET.lastIndex;
    }
    this.brackets.length = 0; // links can't be nested
    const href = safeAddress(address);
    if (href === null) return this.put(i, TARGET.lastIndex);
    this.tokens[place] = { kind: "open", href };
    this.tokens.push({ kind: "close" });
    return TARGET.lastIndex;
  }

  readMarks(i) {
    const mark = this.text[i];
    let end = i + 1;
    while (this.text[end] === mark && end < this.end) end++;
    const before = classOf(this.text[i - 1]);
    const after = classOf(this.text[end]);
    const isLeft = after !== "space" && (after !== "punctuation" || before !== "letter");
    const isRight = before !== "space" && (before !== "punctuation" || after !== "letter");
    const canOpen = isLeft && (mark !== "_" || !isRight || before === "punctuation");
    const canClose = isRight && (mark !== "_" || !isLeft || after === "punctuation");
    const isMark = mark !== "~" || end - i === 2;
    this.tokens.push({ kind: "marks", mark, begin: i, end, left: end - i, canOpen: canOpen && isMark, canClose: canClose && isMark, opens: [], closes: 0 }); // opens: innermost first
    return end;
  }
}

function addressLength(address) {
  let open = 0;
  for (const char of address) open += char === "(" ? 1 : char === ")" ? -1 : 0;
  let { length } = address;
  for (; length > 0; length--) {
    const last = address[length - 1];
    if (last === ")" && open < 0) open++;
    else if (!".,:;!?*_~".includes(last)) break;
  }
  return length;
}

const isWordy = (char) => char !== undefined && /[\p{L}\p{N}]/u.test(char);

function classOf(char) {
  if (char === undefined || /\s/.test(char)) return "space";
  return /[\p{P}\p{S}]/u.test(char) ? "punctuation" : "letter";
}

// Find which emphasis marks belong together. Marks inside a link pair only with each other.
function pairMarks(tokens, text, isOpen) {
  const levels = [];
  let level = newLevel();
  const pop = () => {
    const opener = level.stack.pop();
    level.count[opener.mark]--;
    return opener;
  };
  tokens.forEach((token, place) => {
    if (token.kind === "open") {
      levels.push(level);
      level = newLevel();
    } else if (token.kind === "close") {
      level = levels.pop();
    }
    if (token.kind !== "marks") return;
    const isLast = isOpen && place + 1 === tokens.length;
    while (token.canClose && token.left > 0 && level.count[token.mark] > 0) {
      while (level.stack.at(-1).mark !== token.mark) pop();
      const opener = level.stack.at(-1);
      if (isLast && opener.left > token.left) {
        token.left = 0; // most likely the first of two marks
        break;
      }
      const length = Math.min(2, opener.left, token.left);
      opener.left -= length;
      token.left -= length;
      opener.opens.push(nodeOf(token.mark, length));
      token.closes++;
      if (opener.left === 0) pop();
    }
    if (isLast && classOf(text[token.begin - 1]) !== "letter") token.left = 0; // its text hasn't come
    if (token.canOpen && token.left > 0) {
      level.stack.push(token);
      level.count[token.mark]++;
    }
  });
  if (isOpen) closeMarks(tokens, text, level.stack);
}

const newLevel = () => ({ stack: [], count: { "*": 0, "_": 0, "~": 0 } });
const nodeOf = (mark, length) => (mark === "~" ? "strike" : length === 2 ? "strong" : "emphasis");

// Close marks that are open where the text is cut off; 2*3 is meant literally
function closeMarks(tokens, text, stack) {
  for (const opener of stack.reverse()) {
    if (isWordy(text[opener.begin - 1])) continue;
    while (opener.left > 0) {
      const length = Math.min(2, opener.left);
      opener.left -= length;
      opener.opens.push(nodeOf(opener.mark, length));
      tokens.push({ kind: "close" });
    }
  }
}

function buildTree(tokens, text, lines) {
  const tree = new Tree(lines);
  for (const token of tokens) {
    switch (token.kind) {
      case "text":
        tree.add(token.text, token.begin);
        break;
      case "code":
        tree.addCode(text, token);
        break;
      case "break":
        tree.put({ kind: "break" });
        break;
      case "image":
        tree.put({ kind: "image", alt: token.alt, address: token.address, href: token.href, at: tree.offset(token.begin) });
        break;
      case "open":
        tree.open({ kind: "link", href: token.href, nodes: [] });
        break;
      case "close":
        tree.close();
        break;
      case "marks":
        for (let i = 0; i < token.closes; i++) tree.close();
        if (token.left > 0) tree.add(token.mark.repeat(token.left), token.begin);
        for (const kind of token.opens.reverse()) tree.open({ kind, nodes: [] });
        break;
    }
  }
  return tree.nodes;
}

class Tree {
  constructor(lines) {
    this.lines = lines;
    this.line = 0; // the line that the last offset was in
    this.lineBegin = 0; // its position in the joined text
    this.nodes = [];
    this.path = []; // kinds of the open marks, or "" for those that are left out
    this.targets = [this.nodes]; // where nodes go
    this.links = 0;
  }

  // The offset in the source for a position in the joined text; positions only grow
  offset(place) {
    while (this.line + 1 < this.lines.length && place > this.lineBegin + this.lines[this.line].text.length) {
      this.lineBegin += this.lines[this.line].text.length + 1;
      this.line++;
    }
    return (this.lines[this.line]?.at ?? 0) + place - this.lineBegin;
  }

  get target() {
    return this.targets.at(-1);
  }

  put(node) {
    this.target.push(node);
  }

  add(text, place) {
    const at = this.offset(place);
    const last = this.target.at(-1);
    if (last?.kind === "text" && last.at + last.text.length === at) last.text += text;
    else this.put({ kind: "text", text, at });
  }

  addCode(text, { begin, end }) {
    let code = text.slice(begin, end);
    if (code.length > 2 && code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "") {
      code = code.slice(1, -1);
      begin++;
    }
    const leaves = [];
    for (const line of code.split("\n")) {
      leaves.push({ text: leaves.length > 0 ? ` ${line}` : line, at: this.offset(begin) - (leaves.length > 0 ? 1 : 0) });
      begin += line.length + 1;
    }
    if (code) this.put({ kind: "code", leaves });
  }

  open(node) {
    const isLeftOut = this.targets.length > MAX_INLINE_DEPTH || (node.kind === "link" && this.links > 0);
    this.path.push(isLeftOut ? "" : node.kind);
    if (isLeftOut) return;
    this.put(node);
    this.targets.push(node.nodes);
    if (node.kind === "link") this.links++;
  }

  close() {
    const kind = this.path.pop();
    if (!kind) return;
    this.targets.pop();
    if (kind === "link") this.links--;
  }
}
