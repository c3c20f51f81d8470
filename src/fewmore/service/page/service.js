// Sends requests to the service, with the token and retries, and turns its errors into messages.

const TOKEN = "fewmore-token";
const RETRIES = 6; // while the service is busy
const HISTORY = 50; // changes at a time
const MOST_UNANSWERED = 8; // changes that keep their keys
const UNREACHABLE =
  "The service does not answer: start it again with fewmore serve, then try once more.";

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status; // 0: no response
  }

  /** Whether an image that was sent may be the cause. */
  get isOfImage() {
    return [413, 422].includes(this.status);
  }
}

/**
 * Takes the token out of the address (…/#token=…), where `fewmore serve` prints it, so that it does
 * not stay in the address bar. Returns it, or null if there is none.
 */
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return null;
  sessionStorage.setItem(TOKEN, token);
  history.replaceState(null, "", location.pathname + location.search);
  return token;
}

/** Set by the page: (whether there was a wrong one) → promise of a token, or of null. */
let askForToken = async () => null;
export const onTokenNeeded = (ask) => (askForToken = ask);

let pendingToken = null;
async function renewToken(used) {
  if (sessionStorage.getItem(TOKEN) !== used) return true; // another request has renewed it
  pendingToken ??= askForToken(Boolean(used)).finally(() => (pendingToken = null));
  const token = await pendingToken;
  if (token) sessionStorage.setItem(TOKEN, token);
  return Boolean(token);
}

/** Set by the page: called with the version of the model if a change was made for another one. */
let outdated = () => {};
export const onOutdated = (react) => (outdated = react);

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function problemOf(response) {
  const problem = await response.json().catch(() => ({}));
  if (response.status === 412) outdated(problem.version);
  if (response.status === 412 && problem.changes?.length) {
    const between = problem.changes.map(({ change }) => change).join(", ");
    const sentence = `Nothing was changed, because someone else was faster: ${between}.`;
    return new Problem(412, `${sentence} Look at it, then decide again.`);
  }
  const status = `the service answered ${response.status} ${response.statusText}`;
  return new Problem(response.status, problem.detail || status);
}

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function call(method, path, body = null, headers = {}) {
  for (let attempt = 0; ; attempt++) {
    const token = sessionStorage.getItem(TOKEN);
    let response;
    try {
      response = await fetch(path, { method, body, headers: { ...headers, ...authorization() } });
    } catch {
      throw new Problem(0, UNREACHABLE);
    }
    if (response.ok) return response;
    if ((response.status === 429 || response.status === 503) && attempt < RETRIES) {
      await pause(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    const problem = await problemOf(response);
    if (response.status !== 401 || !(await renewToken(token))) throw problem;
  }
}

const read = async (path) => (await call("GET", path)).json();

function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const unanswered = []; // [key, what was sent] of changes whose response was lost

async function isSame(one, other) {
  if (one === other || !(one instanceof Blob && other instanceof Blob)) return one === other;
  if (one.size !== other.size) return false;
  const [a, b] = await Promise.all([one, other].map(async (blob) => blob.arrayBuffer()));
  const bytes = new Uint8Array(b);
  return new Uint8Array(a).every((value, index) => value === bytes[index]);
}

async function keyOf(sent) {
  for (const [key, earlier] of unanswered) {
    if (earlier.length !== sent.length) continue;
    const same = await Promise.all(earlier.map((part, index) => isSame(part, sent[index])));
    if (same.every(Boolean)) return key;
  }
  const key = randomKey();
  unanswered.push([key, sent]);
  if (unanswered.length > MOST_UNANSWERED) unanswered.shift();
  return key;
}

/**
 * Sends a change with a key, so that it is applied once, however often it is sent: a change that
 * got no response keeps its key when the person tries again. `sent` is what the change consists of.
 */
async function change(sent, method, path, body = null, headers = {}) {
  const key = await keyOf(sent);
  try {
    const response = await call(method, path, body, { ...headers, "Idempotency-Key": key });
    const made = await response.json();
    unanswered.length = 0; // what is sent from now on is meant for the state after this change
    return made;
  } catch (problem) {
    const index = unanswered.findIndex(([other]) => other === key);
    if (problem.status && index >= 0) unanswered.splice(index, 1);
    throw problem;
  }
}

const ifMatch = (version) => ({ "If-Match": `"${version}"` });

function form(images, fields = {}) {
  const data = new FormData();
  for (const [key, value] of Object.entries(fields)) data.append(key, value);
  images.forEach((image, index) => {
    data.append("images", image, image.name || `image-${index + 1}.png`);
  });
  return data;
}

const classPath = (name) => `api/classes?name=${encodeURIComponent(name)}`;

export const model = () => read("api/model");
/** Returns the latest changes, or those before a number. */
export const changes = (before = null) => {
  return read(`api/sessions?limit=${HISTORY}${before === null ? "" : `&before=${before}`}`);
};
export const map = () => read("api/map");

/** Takes back the change that led to this version, and no other. */
export function undo(version) {
  return change(["undo", version], "POST", "api/sessions/undo", null, ifMatch(version));
}

export function teach(name, images) {
  return change(["teach", name, ...images], "POST", "api/classes", form(images, { name }));
}

export function add(name, images) {
  return change(["add", name, ...images], "POST", "api/classes/images", form(images, { name }));
}

/** Forgets the class that the page shows in this version. */
export function forget(name, version) {
  return change(["forget", name, version], "DELETE", classPath(name), null, ifMatch(version));
}

/** Returns some images of a class: { listed, total, images }. */
export const images = (name, offset) => {
  const query = new URLSearchParams({ name, offset, limit: 60 });
  return read(`api/classes/images?${query}`);
};

export function removeImage(name, image, version) {
  const path = `api/classes/images?${new URLSearchParams({ name, image })}`;
  return change(["remove", name, image, version], "DELETE", path, null, ifMatch(version));
}

export function rename(name, to, version) {
  const headers = { "Content-Type": "application/json", ...ifMatch(version) };
  const body = JSON.stringify({ name: to });
  return change(["rename", name, to, version], "PATCH", classPath(name), body, headers);
}

/**
 * Calls changed(version) for every change, while the page is visible, and back() when the service
 * answers again after it did not.
 */
export async function follow(changed, back) {
  let refused; // the token, or null, that the person was asked to replace in vain
  for (let failures = 0; ; ) {
    while (document.hidden) await pause(1); // a browser has few connections for all its tabs
    const stop = new AbortController();
    const stopIfHidden = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", stopIfHidden);
    try {
      const token = sessionStorage.getItem(TOKEN);
      const request = { headers: authorization(), signal: stop.signal };
      const response = await fetch("api/events", request);
      if (response.status === 401 && token !== refused && !(await renewToken(token))) {
        refused = token;
      }
      if (!response.ok) throw await problemOf(response);
      if (failures) back();
      failures = 0;
      await readVersions(response.body, changed);
    } catch {
      if (!stop.signal.aborted) failures += 1; // and it is tried again
    } finally {
      document.removeEventListener("visibilitychange", stopIfHidden);
    }
    await pause(Math.min(2 ** failures, 60));
  }
}

async function readVersions(body, changed) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const id = event.match(/^id: (\d+)$/m);
      if (id) changed(Number(id[1]));
    }
  }
}

export async function predict(images) {
  const response = await call("POST", "api/predict?top=5", form(images));
  return response.json();
}

export async function classes() {
  const known = [];
  for (;;) {
    const page = await read(`api/classes?offset=${known.length}&limit=1000`);
    known.push(...page.classes);
    if (!page.classes.length || known.length >= page.total) return known;
  }
}

/**
 * Returns a blob: address of a file of the service, fetched with the token, which neither <img> nor
 * a link can send.
 */
export async function file(path) {
  const response = await call("GET", path.replace(/^\//, ""));
  return URL.createObjectURL(await response.blob());
}
