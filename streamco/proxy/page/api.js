// Requests to the proxy. The key, if there is one, is sent with each of them and to nobody else.

const KEY = "streamco-key"; // in sessionStorage

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

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

/**
 * Ask for an answer and yield its chunks.
 *
 * @param limit: maximum number of tokens, or NaN for no limit.
 * @param onRefused: called if the key is missing or wrong.
 * @param onRatings: called with the path for a rating of the answer, if it can be rated.
 */
export async function* answerChunks(messages, { limit, signal, onRefused, onRatings }) {
  const body = { model: "streamco", messages, stream: true, stream_options: { include_origin: true } };
  if (limit >= 1) body.max_tokens = Math.floor(limit);
  const asked = { ...headers(), "x-streamco-reader": "person" };
  const response = await fetch("v1/chat/completions", { method: "POST", headers: asked, body: JSON.stringify(body), signal });
  if (response.status === 401) onRefused();
  if (!response.ok) throw new Error(await failureOf(response));
  onRatings(response.headers.get("x-streamco-rating") ?? "");
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
  throw new Error("expected the rest of the answer, got the connection cut");
}

/** Return true if this is a path as the proxy gives it, so that the key is sent to nobody else. */
export function isRatingsPath(path) {
  return typeof path === "string" && /^\/streamco\/ratings\/[\w-]+$/.test(path);
}

/** Send a rating, and return the message for the user. */
export async function sendRating(path, good) {
  const response = await fetch(path.slice(1), { method: "POST", headers: headers(), body: JSON.stringify({ good }) });
  if (!response.ok) return failureOf(response);
  const { learned } = await response.json();
  return learned ? `Thank you: noted as ${good ? "good" : "not good enough"}.` : "Thank you. Nothing could be learned from it.";
}

/** Return true if the proxy wants another key than this tab has. */
export async function needsKey() {
  try {
    return (await fetch("v1/models", { headers: headers() })).status === 401;
  } catch {
    return false; // the next prompt will show the problem
  }
}

/** Return the additions of a demo's page: prompts to choose from, and whether it can kill the server. */
export async function pageSettings() {
  try {
    return await (await fetch("page.json")).json();
  } catch {
    return { prompts: [], kills_server: false };
  }
}

/** Kill the demo's server, and wait until it runs again. Return "", or why it doesn't run. */
export async function killServer() {
  try {
    const response = await fetch("streamco/demo/kill", { method: "POST", headers: headers() });
    return response.ok ? "" : await failureOf(response);
  } catch (error) {
    return error.message;
  }
}
