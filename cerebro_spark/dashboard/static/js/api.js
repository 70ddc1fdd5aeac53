// Talks to the server. All addresses are relative: the page may lie behind a proxy with a prefix.

const LIMIT = 30_000;

/** An answer that says why not, in a sentence for people. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }

  /** Whether the server may have done what it was asked for: there was no answer, or not one of its refusals. */
  get unsure() {
    return !(this.status >= 400 && this.status < 500);
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, cache: "no-store", signal: AbortSignal.timeout(LIMIT) });
  } catch (error) {
    const slow = error.name === "TimeoutError";
    throw new Refused(slow ? `The server gave no answer within ${LIMIT / 1000} seconds.` : "The server cannot be reached.", 0);
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok || body === null) throw new Refused(body?.error ?? wordsOf(answer.status), answer.status);
  return body;
}

function wordsOf(status) {
  if (status === 401) return "You are no longer signed in: open the link with the token again.";
  if (status === 404) return "There is nothing under this address.";
  return `The server answered with ${status}, which it should not.`;
}

/** The address of a route of a run. */
export function runPath(run, rest = "", query = {}) {
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const words = new URLSearchParams(known).toString();
  return `api/runs/${encodeURIComponent(run)}${rest}${words && `?${words}`}`;
}

export function get(path) {
  return ask(path);
}

let serverFacts = null;

/** What the server says of itself; asked once. */
export function server() {
  serverFacts ??= ask("api/server").catch((error) => {
    serverFacts = null;
    throw error;
  });
  return serverFacts;
}

/** Send a command to a run; returns it as the server wrote it down. */
export async function send(run, command) {
  const answer = await post(runPath(run, "/commands"), command);
  return answer.command;
}

/** Ask what a command would change, without giving it. The answer is in a later forecast. */
export function wonder(run, command) {
  return post(runPath(run, "/questions"), command);
}

async function post(path, body) {
  const { csrf } = await server();
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrf };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body) });
}

/**
 * Listen to a stream of the server, as long as the page can be seen.
 *
 * A browser keeps at most six connections to a server over HTTP/1.1, for all of its tabs: hidden ones would leave none for
 * the tab that is looked at. So each stream must begin with what lets its reader catch up.
 *
 * @param {string} path Its address.
 * @param {Object<string, function>} handlers What to do with each kind of event.
 * @param {function} onState Called with "live", or "lost" while the browser tries to connect again.
 * @returns {function} Ends it.
 */
export function listen(path, handlers, onState) {
  let source = null;
  let again;
  const close = () => {
    clearTimeout(again);
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    source = new EventSource(path);
    source.onopen = () => onState("live");
    source.onerror = () => {
      onState("lost");
      // The browser gives up for good on an answer that is an error; a proxy that starts again gives a few of these.
      if (source.readyState === EventSource.CLOSED) again = setTimeout(open, 5000);
    };
    for (const [kind, handle] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
    }
  };
  const turn = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => {
    document.removeEventListener("visibilitychange", turn);
    close();
  };
}
