// Run the model on photos with onnxruntime-web.

import * as ort from "./ort.wasm.bundle.min.mjs";

ort.env.logLevel = "error";
ort.env.wasm.numThreads = 1; // more take headers that few static servers send
ort.env.wasm.wasmPaths = { wasm: new URL("ort-wasm-simd-threaded.wasm", import.meta.url).href };

export async function loadModel() {
  const about = await (await get("model.json")).json();
  const content = await (await get(`model.onnx?${about.hash.slice(0, 16)}`)).arrayBuffer();
  const session = await ort.InferenceSession.create(content, { executionProviders: ["wasm"] });
  return { about, run: (pixels) => run(session, pixels) };
}

// Decode a photo, upright and on white, to { data: RGB bytes, height, width }.
export async function readPixels(file) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const rgba = context.getImageData(0, 0, width, height).data;
  const data = new Uint8Array(3 * width * height);
  for (let from = 0, to = 0; from < rgba.length; from += 4) {
    data[to++] = rgba[from];
    data[to++] = rgba[from + 1];
    data[to++] = rgba[from + 2];
  }
  return { data, height, width };
}

async function run(session, { data, height, width }) {
  const image = new ort.Tensor("uint8", data, [height, width, 3]);
  const { probabilities, familiarity, features } = await session.run({ image }, [
    "probabilities",
    "familiarity",
    "features",
  ]);
  return {
    probabilities: probabilities.data,
    familiarity: familiarity.data[0],
    features: Array.from(features.data),
  };
}

async function get(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name} is not there (${response.status})`);
  return response;
}
