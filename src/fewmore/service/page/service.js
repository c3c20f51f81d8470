// Sends requests to the service, with the token and retries, and turns its errors into messages.

const TOKEN = "fewmore-token";
const RETRIES = 6; // while the service is busy
const UNREACHABLE =
  "The service does not answer: start it again with fewmore serve, then try once more.";

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/**
 * Takes the token out of the address (…/#token=…), where `fewmore serve` prints it, so that it does
 * not stay in the address bar.
 */
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  sessionStorage.setItem(TOKEN, token);
  history.replaceState(null, "", location.pathname + location.search);
}

/** Set by the page: (what is wrong with the last token) → promise of a token, or of null. */
let askForToken = async () => null;
export const onTokenNeeded = (ask) => (askForToken = ask);

let pendingToken = null;
async function renewToken(used, wrong) {
  if (sessionStorage.getItem(TOKEN) !== used) return true; // another request has renewed it
  pendingToken ??= askForToken(used ? wrong : "").finally(() => (pendingToken = null));
  const token = await pendingToken;
  if (token) sessionStorage.setItem(TOKEN, token);
  return Boolean(token);
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function problemOf(response) {
  const problem = await response.json().catch(() => ({}));
  const status = `the service answered ${response.status} ${response.statusText}`;
  return new Problem(response.status, problem.detail || status);
}

async function call(method, path, body = null, headers = {}) {
  for (let attempt = 0; ; attempt++) {
    const token = sessionStorage.getItem(TOKEN);
    const authorization = token ? { Authorization: `Bearer ${token}` } : {};
    let response;
    try {
      response = await fetch(path, { method, body, headers: { ...headers, ...authorization } });
    } catch {
      throw new Problem(0, UNREACHABLE);
    }
    if (response.ok) return response;
    if ((response.status === 429 || response.status === 503) && attempt < RETRIES) {
      await pause(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    const problem = await problemOf(response);
    if (response.status !== 401 || !(await renewToken(token, problem.message))) throw problem;
  }
}

const read = async (path) => (await call("GET", path)).json();

function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Sends a change with a key: if it is retried because the service was busy, it is applied once. */
async function change(method, path, body = null, headers = {}) {
  const response = await call(method, path, body, { ...headers, "Idempotency-Key": randomKey() });
  return response.json();
}

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
export const changes = () => read("api/sessions");
export const map = () => read("api/map");
export const undo = () => change("POST", "api/sessions/undo");
export const teach = (name, images) => change("POST", "api/classes", form(images, { name }));
export const add = (name, images) => change("POST", "api/classes/images", form(images, { name }));
export const forget = (name) => change("DELETE", classPath(name));

export function rename(name, to) {
  const headers = { "Content-Type": "application/json" };
  return change("PATCH", classPath(name), JSON.stringify({ name: to }), headers);
}

export async function predict(image) {
  const response = await call("POST", "api/predict?top=5", form([image]));
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
