// Receives images: dropped, pasted, chosen or photographed; and folders, one for each class.

import { cleanName, find, make } from "./dom.js";
import * as notice from "./notice.js";

const LARGE = 1_000_000; // bytes: larger photos are scaled down before they are sent
const SIDE = 1280; // pixels of the longer side then
const IMAGE = /\.(avif|bmp|gif|hei[cf]|ico|jfif|jpe?g|jp2|png|ppm|tiff?|webp)$/i;

/** Calls take(files, folders) whenever some arrive; folders are [{ name, files }]. */
export function onImages(take) {
  onDrop(document, document.body, take);
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return; // text, for the field that it is pasted into
    event.preventDefault();
    take(files, []);
  });
  for (const input of [find("files"), find("photo")]) {
    input.addEventListener("change", () => {
      take([...input.files], []);
      input.value = ""; // so that the same file can be chosen again
    });
  }
  onFolder(find("folder"), take);
  find("shown").addEventListener("click", () => find("files").click());
}

/** Calls take(files, folders) when a folder is chosen with this input. */
export function onFolder(input, take) {
  input.addEventListener("change", () => {
    const found = [...input.files].map((file) => [file, file.webkitRelativePath.split("/")]);
    input.value = "";
    take(...byFolder(found));
  });
}

/** Calls take(files, folders) for what is dropped within `area`; `marked` shows that it can be. */
export function onDrop(area, marked, take) {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  area.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    for (const other of document.querySelectorAll(".dropping")) {
      if (other !== marked) other.classList.remove("dropping");
    }
    marked.classList.add("dropping");
  });
  area.addEventListener("dragleave", (event) => {
    // Without a related target it has left the window, not one element for another.
    if (!event.relatedTarget) marked.classList.remove("dropping");
  });
  area.addEventListener("drop", async (event) => {
    marked.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    const { files, items } = event.dataTransfer;
    const plain = [...files]; // the event forgets them at the first await
    const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    if (!entries.some((entry) => entry.isDirectory)) {
      take(plain, []);
      return;
    }
    const found = await notice.attempt(() => walk(entries));
    if (found) take(...byFolder(found));
  });
}

/** Returns [[file, its path as parts]] of all files in the entries. */
async function walk(entries, path = []) {
  const found = [];
  for (const entry of entries) {
    if (entry.isDirectory) found.push(...(await walk(await list(entry), [...path, entry.name])));
    else found.push([await open(entry), [...path, entry.name]]);
  }
  return found;
}

const open = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));

async function list(directory) {
  const reader = directory.createReader();
  const entries = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return entries; // it gives a hundred at a time
    entries.push(...some);
  }
}

/**
 * Sorts images into those without a folder, and those of each class. A class is a folder within the
 * one that arrives, as for `fewmore train`, with all that lies deeper; or one of several that arrive.
 */
function byFolder(found) {
  const files = [];
  const folders = new Map();
  const arrived = new Set(found.filter(([, path]) => path.length > 1).map(([, path]) => path[0]));
  const level = arrived.size > 1 ? 0 : 1;
  for (const [file, path] of found) {
    const name = path.length > 1 ? cleanName(path[Math.min(level, path.length - 2)]) : undefined;
    if (path.some((part) => part.startsWith(".")) || !isImage(file)) continue;
    if (name === undefined) files.push(file);
    else if (folders.has(name)) folders.get(name).push(file);
    else folders.set(name, [file]);
  }
  const inOrder = [...folders].sort(([one], [other]) => one.localeCompare(other));
  return [files, inOrder.map(([name, of]) => ({ name, files: of }))];
}

const isImage = (file) => file.type.startsWith("image/") || IMAGE.test(file.name);

/**
 * Scales a large photo down: cameras take many times more pixels than any model uses. A file that
 * the browser cannot decode is returned as it is.
 */
export async function shrink(file) {
  if (file.size < LARGE) return file;
  const bitmap = await createImageBitmap(file).catch(() => null);
  const scale = bitmap && SIDE / Math.max(bitmap.width, bitmap.height);
  if (!bitmap || scale >= 1) return file;
  const width = Math.round(bitmap.width * scale);
  const height = Math.round(bitmap.height * scale);
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d");
  // The white ground is for transparent images.
  Object.assign(context, { fillStyle: "#fff", imageSmoothingQuality: "high" });
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.95));
  return new File([blob], file.name, { type: blob.type });
}
