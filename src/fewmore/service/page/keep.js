// Keeps unfinished work in the browser, so that a reload or "back" does not lose it.

const TAB = "fewmore-tab"; // in sessionStorage: each tab has its own work, for each model
const DAY = 86_400_000; // milliseconds; what is older is removed
const STORE = "trays";

let failed = false; // it is too much, or the browser stores nothing: ask before leaving instead
let busy = false;
let next = null; // what is to be stored after what is being stored now
let unfinished = false;

/** Returns the name of this page's work: one tab may show the pages of several models. */
function place() {
  const id = sessionStorage.getItem(TAB) ?? String(Math.random()).slice(2);
  sessionStorage.setItem(TAB, id);
  return `${id} ${location.pathname}`;
}

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("fewmore", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Runs work(store) in a transaction; resolves to the result of the request that it returns. */
async function transact(mode, work) {
  const database = await open();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = work(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request?.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** Stores the work: a value, or null if there is none. make() returns a promise of it. */
export async function keep(make) {
  next = make;
  unfinished = true;
  if (busy) return;
  busy = true;
  while (next) {
    const making = next;
    next = null;
    try {
      const work = await making();
      unfinished = Boolean(work);
      const value = { when: Date.now(), work };
      const write = (store) => (work ? store.put(value, place()) : store.delete(place()));
      await transact("readwrite", write);
      failed = false;
    } catch {
      failed = true;
      await transact("readwrite", (store) => store.delete(place())).catch(() => {}); // it is stale
    }
  }
  busy = false;
}

/** Returns what this tab has stored, or null. */
export async function kept() {
  try {
    const stored = await transact("readonly", (store) => store.get(place()));
    removeOld();
    return stored?.work ?? null;
  } catch {
    return null;
  }
}

/** Removes the work of tabs that were closed long ago. */
function removeOld() {
  const old = Date.now() - DAY;
  const visit = (store) => {
    store.openCursor().onsuccess = ({ target: { result: cursor } }) => {
      if (!cursor) return;
      if (cursor.value.when < old) cursor.delete();
      cursor.continue();
    };
  };
  transact("readwrite", visit).catch(() => {});
}

addEventListener("beforeunload", (event) => {
  if (unfinished && (failed || busy)) event.preventDefault();
});
