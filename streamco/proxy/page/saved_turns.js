// Keeps the conversation in sessionStorage, so that this tab, but no other, has it again after a reload.

const PLACE = "streamco-conversation";
const MAX_SAVED = 1_000_000; // characters; older turns aren't kept

/** Keep the newest turns that fit: each is {prompt, pieces, report, how, message, leftAt, thinking, ratings}. */
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
    forgetTurns(); // the browser keeps less than that, and an old conversation would be worse than none
  }
}

/** Return the turns that were kept, or none if something else is stored there. */
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
