// Images that come in: dropped, pasted, chosen, or photographed with a phone.

import { find, make } from "./dom.js";
import * as notice from "./notice.js";

const HEAVY = 1_000_000; // bytes: larger photos are made smaller before they travel
const SIDE = 1280; // pixels of the longer side then

/** Calls take(files) whenever there are some. */
export function onImages(take) {
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping"); // it has left the window, not one element for another
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!carriesFiles(event)) return;
    event.preventDefault();
    const folder = [...event.dataTransfer.items].some((item) => item.webkitGetAsEntry?.()?.isDirectory);
    if (folder) notice.show(["A folder cannot be dropped here: open it, and drop the images that are in it."], { error: true });
    else take([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return; // text, for the field it is pasted into
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

/** A photo of a camera is many times larger than what any model looks at; what the browser cannot read is sent as it is. */
export async function lighten(file) {
  if (file.size < HEAVY) return file;
  const bitmap = await createImageBitmap(file).catch(() => null);
  const scale = bitmap && SIDE / Math.max(bitmap.width, bitmap.height);
  if (!bitmap || scale >= 1) return file;
  const canvas = make("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  const context = canvas.getContext("2d");
  Object.assign(context, { fillStyle: "#fff", imageSmoothingQuality: "high" }); // what is transparent counts as white
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.95));
  return new File([blob], file.name, { type: blob.type });
}
