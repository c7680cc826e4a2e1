// The conversation in sessionStorage: this tab has it again after a reload, and no other tab has it.

const PLACE = "streamco-conversation";
const MAX_SAVED = 1_000_000; // characters; what is older than that is not kept

/** Keep the newest turns that fit: each is {prompt, pieces, report, how, message, leftAt, thinking}. */
export function saveTurns(turns) {
  const kept = [];
  let size = 2;
  for (const turn of [...turns].reverse()) {
    const text = JSON.stringify(turn);
    size += text.length + 1;
    if (size > MAX_SAVED) break;
    kept.unshift(text);
  }
  try {
    sessionStorage.setItem(PLACE, `[${kept.join(",")}]`);
  } catch {
    forgetTurns(); // the browser keeps less than that; an old conversation would be worse than none
  }
}

/** Return the turns that were kept; none if what is there is something else. */
export function savedTurns() {
  try {
    const turns = JSON.parse(sessionStorage.getItem(PLACE) ?? "[]");
    return turns.filter(isTurn);
  } catch {
    return [];
  }
}

export function forgetTurns() {
  sessionStorage.removeItem(PLACE);
}

function isTurn({ prompt, pieces }) {
  const isPiece = (piece) => Array.isArray(piece) && piece.length === 3 && piece.every((part) => typeof part === "string");
  return typeof prompt === "string" && Array.isArray(pieces) && pieces.every(isPiece);
}
