// Receives images: dropped, pasted, chosen, or photographed with a phone.

import { find, make } from "./dom.js";
import * as notice from "./notice.js";

const LARGE = 1_000_000; // bytes: larger photos are scaled down before they are sent
const SIDE = 1280; // pixels of the longer side then

/** Calls take(files) whenever files arrive. */
export function onImages(take) {
  onDrop(take);
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return; // text, for the field that it is pasted into
    event.preventDefault();
    take(files);
  });
  for (const input of [find("files"), find("photo")]) {
    input.addEventListener("change", () => {
      take([...input.files]);
      input.value = ""; // so that the same file can be chosen again
    });
  }
  find("shown").addEventListener("click", () => find("files").click());
}

function onDrop(take) {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    // Without a related target it has left the window, not one element for another.
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    const { files, items } = event.dataTransfer;
    if ([...items].some((item) => item.webkitGetAsEntry?.()?.isDirectory)) {
      const sentence = "A folder cannot be dropped here: open it, and drop the images in it.";
      notice.show([sentence], { error: true });
    } else {
      take([...files]);
    }
  });
}

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
